"""Things that act: launching stages, keeping run folders, measuring, asking and comparing models."""
