"""What lives inside the training process: the runner's Axolotl plugin and the trainer callbacks behind it."""
