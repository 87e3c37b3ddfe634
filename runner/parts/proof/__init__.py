"""What is trained, shown token by token and judged on the engine's own rows and batches before the first step."""
