"""Alias of `runner.trainer.plugin`. Rendered configs name it here, because images of 0.1 have only
this module."""

from runner.trainer.plugin import RecipePlugin

__all__ = ["RecipePlugin"]
