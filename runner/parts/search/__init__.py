"""Search: one training with several settings, one after the other. Poor trials end early; the best becomes a recipe."""
