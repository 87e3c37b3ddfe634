"""Asking: the questions of `recipe new`."""
