"""Methods: what a credit rule needs beyond the sampled groups (Monte Carlo values, trees, gold answers), and presets."""
