"""The real model takes training steps on fake tensors, and every byte is counted: `recipe plan --exact`."""
