"""Things that act: preparing data, making twins, launching training, keeping run folders, asking models."""
