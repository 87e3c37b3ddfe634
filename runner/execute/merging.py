"""Merging on request: the adapter of a run, or one in a folder, into its base model."""

from __future__ import annotations

from pathlib import Path

from runner.execute import runs
from runner.problem import Stop
from runner.recipe.recipe import Recipe
from runner.training import merging


def of_run(recipe: Recipe, run_dir: str | None, out: Path | None) -> Path:
    """Merges the adapter of a recipe's run; returns where the model lies.

    Raises Stop where the recipe trains no adapter, or the run has none yet.
    """
    file = recipe.document.file
    if recipe.scenario == "pipeline":
        raise Stop(
            f"`{file}` trains in stages, and its stage `lora` makes its adapter part of the model itself.",
            "Its model is in `lora/best_model/` of the run. To merge again, name `lora/lora_adapter` of the run instead of the recipe.",
        )
    if "adapter" not in recipe.train:
        best = "best_model.pth" if "image_column" in recipe.data else "best_model/"
        raise Stop(
            f"`{file}` trains the model itself and no adapter, so there is nothing to merge.",
            f"Its model is in `{best}` of the run.",
        )
    run = runs.latest(recipe.name, run_dir)
    precision = recipe.model.precision if run.kind == "run" else "fp32"
    return _merge(run.path / "lora_adapter", out or run.path / "best_model", precision, recipe.model.trust_remote_code)


def folder(adapter: Path, out: Path | None) -> Path:
    """Merges the adapter in a folder. Raises Stop where it is none, or its base cannot be loaded."""
    return _merge(adapter, out or adapter.with_name(f"{adapter.name}-merged"), "auto", trust_remote_code=False)


def _merge(adapter: Path, out: Path, precision: str, trust_remote_code: bool) -> Path:
    if out.exists() and (not out.is_dir() or (any(out.iterdir()) and not (out / "config.json").is_file())):
        raise Stop(f"`{out}` holds other things than a model.", "Name an empty or a new folder with `--out`.")
    try:
        for kind, kept in (("adapter itself", adapter), ("adapter's base model", Path(merging.base_of(adapter)[0]))):
            if out.exists() and kept.exists() and out.samefile(kept):
                raise Stop(f"`{out}` holds the {kind}, which would be lost.", "Name another folder with `--out`.")
        return merging.merge(adapter, out, precision, trust_remote_code)
    except merging.NotAnAdapter as error:
        raise Stop(str(error), "A finished run of scenario `lora` has one in `lora_adapter/`.") from None
    except (merging.CannotLoad, OSError, ValueError) as error:
        raise Stop(
            f"The adapter in `{adapter}` cannot be merged: {' '.join(str(error).split()[:40])}",
            "Check the base model that its adapter_config.json names, that all of the adapter's files are whole, and your network.",
        ) from None
