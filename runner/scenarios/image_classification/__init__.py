"""Alias, for one release: recipes rendered by 0.1 start the trainer of images by this name."""
