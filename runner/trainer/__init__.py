"""The code inside the training process: the runner's Axolotl plugin and its trainer callbacks."""
