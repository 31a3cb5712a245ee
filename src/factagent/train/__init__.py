"""Training on one machine: samples, losses, checkpoints, the learner and its loop. Needs the extra `train` (torch)."""
