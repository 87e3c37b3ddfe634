"""`recipe merge`: an adapter becomes part of its base model."""

from pathlib import Path

import click

from runner.commands.options import complete_recipe, end, open_recipe, run_option, say, set_option
from runner.recipe.recipe import Recipe
from runner.run import inference, run_folder
from runner.run.stage_folder import StageFolder
from runner.scenarios import translate
from runner.tools.problem import Stop
from runner.tools.run_files import ADAPTER, BEST_IMAGES, BEST_MODEL
from runner.trainer import merging
from runner.trainer.results import precision_of


@click.command()
@click.argument("path", metavar="RECIPE|ADAPTER", shell_complete=complete_recipe)
@set_option
@run_option
@click.option(
    "--out", metavar="DIR", help="Where to write the model. Default: best_model of the run, or ADAPTER-merged."
)
def merge(path: str, sets: tuple[str, ...], run_dir: str | None, out: str | None) -> None:
    """Add the adapter that a RECIPE trained, or that lies in a folder, to its base model, and write the whole model."""
    from runner.tools.process import hush

    hush()
    if (Path(path) / "adapter_config.json").is_file():
        if sets or run_dir:
            raise Stop("`--set` and `--run` go with a recipe, and this is an adapter.", "Leave them out.", code=2)
        written = merge_adapter(Path(path), Path(out) if out else None)
    elif Path(path).is_dir():
        raise Stop(
            f"`{path}` holds no adapter: it has no `adapter_config.json`.",
            "Name a recipe, or `lora_adapter` in the folder of a run.",
        )
    else:
        recipe, _ = open_recipe(path, sets)
        written = merge_run(recipe, run_dir, Path(out) if out else None)
    say(f"the whole model is in {written}")
    end(
        "It can be asked and served without its adapter.",
        *(("ask", path, "QUESTION") if Path(path).is_file() else ("doctor",)),
    )


def merge_run(recipe: Recipe, run_dir: str | None, out: Path | None) -> Path:
    """Merges the adapter of a recipe's run; returns the folder of the model.

    Raises Stop where the recipe trains no adapter, or the run has none yet.
    """
    plan = translate(recipe, run_folder.folder(recipe.name, "run").place())
    stages = [stage.name for stage in plan.stages if stage.trains and stage.config.get("adapter")]
    if not stages:
        best = f"{BEST_MODEL}/" if "base_model" in plan.stages[-1].config else BEST_IMAGES
        raise Stop(
            f"`{recipe.document.file}` trains the model itself and no adapter, so there is nothing to merge.",
            f"Its model is in `{best}` of the run.",
        )
    run = run_folder.find(recipe.name, run_dir)
    plan = inference.plan_of(recipe, run)
    folder = StageFolder(plan, plan.stage(stages[-1]))
    config, adapter = folder.stage.config, folder.path / ADAPTER
    # The run may have been moved or fetched since the adapter's own note.
    base = (config["base_model"], config.get("revision_of_model"))
    options = (precision_of(config), bool(config.get("trust_remote_code")), base)
    if out and not (folder.model.exists() and out.exists() and out.samefile(folder.model)):
        return _merge(adapter, out, *options)
    with run.lock():
        written = _merge(adapter, folder.model, *options)
        if folder.finished:
            folder.mark("finished", outputs=folder.outputs())
    return written


def merge_adapter(adapter: Path, out: Path | None) -> Path:
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
    except (OSError, ValueError) as error:
        raise Stop(
            f"The adapter in `{adapter}` cannot be merged: {' '.join(str(error).split()[:40])}",
            "Check the base model that its adapter_config.json names, that all of the adapter's files are whole, and your network.",
        ) from None
