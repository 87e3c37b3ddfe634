"""Versions: which packages a run was made with."""

from __future__ import annotations

import importlib.metadata
import platform

from runner import __version__

PACKAGES = ("axolotl", "torch", "transformers", "peft", "trl", "accelerate", "datasets", "deepspeed")


def versions() -> dict[str, str]:
    installed = {"recipe-runner": __version__, "python": platform.python_version()}
    for package in PACKAGES:
        try:
            installed[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            continue
    return installed
