"""Alias of `runner.trainer.plugin`, for one release: recipes rendered by 0.1 name it here, and images of 0.1 have it here alone."""

from runner.trainer.plugin import RecipePlugin

__all__ = ["RecipePlugin"]
