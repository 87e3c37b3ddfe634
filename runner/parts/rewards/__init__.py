"""Rewards that can be checked: scores for a model's own answers, from which it learns."""
