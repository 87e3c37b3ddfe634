"""Alias, for one release: recipes rendered by 0.1 name the plug-in here, and images of 0.1 have it here alone."""
