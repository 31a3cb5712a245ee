"""The built-in world: a deterministic generator of a fictional encyclopaedia with multi-hop questions."""
