"""Search: the same training with several settings, one after the other. Poor trials end early, and the best becomes a
recipe."""
