"""Methods: what a credit rule needs beyond sampled groups (Monte Carlo values, trees, gold answers), and presets."""
