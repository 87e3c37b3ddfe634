"""Merging on request: the adapter of a run, or one in a folder, into its base model."""

from functools import partial
from pathlib import Path

from runner.recipe.recipe import Recipe
from runner.run import inference
from runner.run.run_folder import find
from runner.run.run_folder import folder as folder_of
from runner.run.stage_folder import StageFolder
from runner.scenarios import translate
from runner.tools.problem import Stop
from runner.tools.run_files import ADAPTER, BEST_IMAGES, BEST_MODEL
from runner.trainer import merging
from runner.trainer.results import precision_of


def of_run(recipe: Recipe, run_dir: str | None, out: Path | None) -> Path:
    """Merges the adapter of a recipe's run; returns where the model lies.

    Raises Stop where the recipe trains no adapter, or the run has none yet.
    """
    plan = translate(recipe, folder_of(recipe.name, "run").place())
    stages = [stage.name for stage in plan.stages if stage.trains and stage.config.get("adapter")]
    if not stages:
        best = f"{BEST_MODEL}/" if "base_model" in plan.stages[-1].config else BEST_IMAGES
        raise Stop(
            f"`{recipe.document.file}` trains the model itself and no adapter, so there is nothing to merge.",
            f"Its model is in `{best}` of the run.",
        )
    run = find(recipe.name, run_dir)
    plan = inference.plan_of(recipe, run)
    folder = StageFolder(plan, plan.stage(stages[-1]))
    config, adapter = folder.stage.config, folder.path / ADAPTER
    # The run may have been moved or fetched since the adapter's own note.
    base = (config["base_model"], config.get("revision_of_model"))
    merge = partial(
        _merge, adapter, precision=precision_of(config), trust=bool(config.get("trust_remote_code")), base=base
    )
    if out and not (folder.model.exists() and out.exists() and out.samefile(folder.model)):
        return merge(out)
    with run.lock():
        written = merge(folder.model)
        if folder.finished:
            folder.mark("finished", outputs=folder.outputs())
    return written


def folder(adapter: Path, out: Path | None) -> Path:
    """Merges the adapter in a folder. Raises Stop where it is none, or its base cannot be loaded."""
    return _merge(adapter, out or adapter.with_name(f"{adapter.name}-merged"), "auto", trust=False)


def _merge(adapter: Path, out: Path, precision: str, trust: bool, base: tuple[str, str | None] | None = None) -> Path:
    if out.exists() and (not out.is_dir() or (any(out.iterdir()) and not (out / "config.json").is_file())):
        raise Stop(f"`{out}` holds other things than a model.", "Name an empty or a new folder with `--out`.")
    try:
        base = merging.base_of(adapter, base)
        for kind, kept in (("adapter itself", adapter), ("adapter's base model", Path(base[0]))):
            if out.exists() and kept.exists() and out.samefile(kept):
                raise Stop(f"`{out}` holds the {kind}, which would be lost.", "Name another folder with `--out`.")
        return merging.merge(adapter, out, precision, trust, base)
    except merging.NotAnAdapter as error:
        raise Stop(str(error), "A finished run of scenario `lora` has one in `lora_adapter/`.") from None
    except (merging.CannotLoad, OSError, ValueError) as error:
        raise Stop(
            f"The adapter in `{adapter}` cannot be merged: {' '.join(str(error).split()[:40])}",
            "Check the base model that its adapter_config.json names, that all of the adapter's files are whole, and your network.",
        ) from None
