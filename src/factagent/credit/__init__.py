"""Credit assignment: which facts are the same, which of them helped, and what each step earns for it.

Pure numpy over a group of trajectories; no torch, no files, no clock. The encoders are the one exception: they load a
model when asked to, and only then.
"""
