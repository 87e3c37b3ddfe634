"""Rewards that can be checked: what an answer is worth, when a model learns from its own answers."""
