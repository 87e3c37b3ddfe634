"""What will be trained, token by token, and the verdict on the engine's own rows and batches, before the first step."""
