"""Alias of `runner.trainer.plugin`."""

from runner.trainer.plugin import RecipePlugin

__all__ = ["RecipePlugin"]
