"""The commands `recipe export`, `push`, `register` and `merge`."""

import os
from pathlib import Path

from runner import parts
from runner.commands.options import command, end, open_recipe, say
from runner.parts.export import exporting, sending, trained_model
from runner.parts.export.gguf import KINDS
from runner.parts.report.facts import run_of
from runner.plan import precision_of
from runner.recipe.recipe import Recipe
from runner.run import inference, progress, run_folder
from runner.scenarios import translate
from runner.tools.problem import Stop
from runner.tools.run_files import ADAPTER, BEST_IMAGES, BEST_MODEL
from runner.trainer import merging


def kind_of(form: str, quantize: str | None) -> str | None:
    """The kind of a GGUF file. Raises Stop if it is unknown, or the format is not GGUF."""
    if quantize and form != "gguf":
        raise Stop("`--quantize` needs `--format gguf`.", "Leave it out.", code=2)
    if quantize and quantize.lower() not in KINDS:
        raise Stop(f"There is no format `{quantize}`.", f"Use one of {', '.join(KINDS)}.", code=2)
    if quantize:
        return quantize.lower()
    return None


@command
def export(run: str, form: str, quantize: str | None, stage: str | None, out: str | None) -> None:
    """Export the model of a RUN for others, with a model card. Verifies that the export is the
    trained model.

    RUN is a run folder, or a recipe: that means its latest run.
    """
    file_kind = kind_of(form, quantize)
    source = trained_model.of(run_of(run), stage)
    out_folder = None
    if out:
        out_folder = Path(os.path.abspath(out))
    with source.folder.run.lock():
        folder = exporting.export(source, form, file_kind, out_folder, say)
    say(f"{os.path.relpath(folder)}/")
    if parts.has("tracking"):
        from runner.parts.tracking import servers

        servers.send_export(source.folder, folder, file_kind or form, say)
    options: list[str] = []
    if form != "safetensors":
        options += ["--format", form]
    if file_kind:
        options += ["--quantize", file_kind]
    sentence = f"The export in {os.path.relpath(folder)} is verified: it is the trained model"
    if source.folder.run.kind == "run":
        end(f"{sentence}.", "push", run, "OWNER/NAME", *options)
    else:
        if Path(run).is_file():
            recipe = run
        else:
            recipe = "RECIPE"
        end(f"{sentence} of a rehearsal. Train the real one before you share it.", "run", recipe)


@command
def push(
    run: str, name: str, form: str, quantize: str | None, stage: str | None, public: bool
) -> None:
    """Upload the model of a RUN to the Hugging Face hub as NAME, with its card. If needed, it is
    exported first.

    The token comes from HF_TOKEN or `hf auth login`. RUN is a run folder, or a recipe: that means
    its latest run.
    """
    file_kind = kind_of(form, quantize)
    source = trained_model.of(run_of(run), stage)
    with source.folder.run.lock():
        say(sending.push(source, name, form, file_kind, public, say))
    end(
        f"The model of {run} is on the Hugging Face hub, as {name}.",
        "register",
        run,
        "--registry",
        "URL",
    )


@command
def register(
    run: str, server: str, name: str | None, version: str | None, uri: str | None, stage: str | None
) -> None:
    """Add the model of a RUN to a Model Registry: its address, and the recipe, data and evaluation
    behind it.

    The token comes from MODEL_REGISTRY_TOKEN. RUN is a run folder, or a recipe: that means its
    latest run.
    """
    import model_registry  # noqa: F401 - fails here, before anything is read

    source = trained_model.of(run_of(run), stage)
    name = name or source.run.name
    version = version or f"{source.run.planned.fingerprint}-{source.run.state.id[:8]}"
    where = sending.register(source, server, name, version, uri)
    say(f"{name} {version} is in the registry; its address is {where}")
    end(
        f"The model of {run} is in the Model Registry, as {name}, version {version}.", "report", run
    )


@command
def merge(path: str, sets: tuple[str, ...], run_dir: str | None, out: str | None) -> None:
    """Merge an adapter into its base model, and write the complete model. The adapter is that of a
    RECIPE or of a folder."""
    out_folder = Path(out) if out else None
    if (Path(path) / "adapter_config.json").is_file():
        if sets or run_dir:
            raise Stop(
                "`--set` and `--run` need a recipe, but this is an adapter.",
                "Leave them out.",
                code=2,
            )
        written = merge_adapter(Path(path), out_folder)
    elif Path(path).is_dir():
        raise Stop(
            f"`{path}` contains no adapter: it has no `adapter_config.json`.",
            "Name a recipe, or `lora_adapter` in the folder of a run.",
        )
    else:
        recipe, _ = open_recipe(path, sets, look=False)
        written = merge_run(recipe, run_dir, out_folder)
    follows: tuple[str | Path, ...]
    if Path(path).is_file():
        follows = ("ask", path, "QUESTION")
    else:
        follows = ("models", "add", written)
    end(f"The merged model is in {written}. It needs no adapter.", *follows)


def merge_run(recipe: Recipe, run_dir: str | None, out: Path | None) -> Path:
    """Merges the adapter of a recipe's run, and returns the model's folder. Raises Stop if there is
    no adapter."""
    plan = translate(recipe, run_folder.folder(recipe.name, "run").place())
    trained = [stage for stage in plan.stages if stage.trains]
    stages = [stage.name for stage in trained if stage.config.get("adapter")]
    if not stages:
        if "base_model" in plan.stages[-1].config:
            best = f"{BEST_MODEL}/"
        else:
            best = BEST_IMAGES
        raise Stop(
            f"`{recipe.document.file}` trains the model itself and no adapter, so there is nothing to merge.",
            f"Its model is in `{best}` of the run.",
        )
    run = progress.find_run(recipe, run_dir)
    plan = inference.plan_of(recipe, run)
    folder = run_folder.StageFolder(plan, plan.stage(stages[-1]))
    config = folder.stage.config
    adapter = folder.path / ADAPTER
    # The run may have been moved or fetched since the adapter recorded its base model.
    base = (config["base_model"], config.get("revision_of_model"))
    options = (precision_of(config), bool(config.get("trust_remote_code")), base)
    if out and not (folder.model.exists() and out.exists() and out.samefile(folder.model)):
        return merge_adapter(adapter, out, *options)
    with run.lock():
        written = merge_adapter(adapter, folder.model, *options)
        if folder.finished:
            folder.mark("finished", outputs=folder.outputs())
    return written


def merge_adapter(
    adapter: Path,
    out: Path | None,
    precision: str = "auto",
    trust: bool = False,
    base: merging.Base | None = None,
) -> Path:
    """Merges the adapter in a folder; returns the model's folder. Raises Stop if it or its base
    cannot be loaded."""
    out = out or adapter.with_name(f"{adapter.name}-merged")
    if out.exists() and not _may_be_replaced(out):
        raise Stop(
            f"`{out}` contains something other than a model.",
            "Name an empty or a new folder with `--out`.",
        )
    try:
        base = merging.base_of(adapter, base)
        sources = {"adapter itself": adapter, "adapter's base model": Path(base[0])}
        for title, kept in sources.items():
            if out.exists() and kept.exists() and out.samefile(kept):
                raise Stop(
                    f"`{out}` holds the {title}, which would be lost.",
                    "Name another folder with `--out`.",
                )
        return merging.merge(adapter, out, precision, trust, base)
    except (OSError, ValueError) as error:
        reason = " ".join(str(error).split()[:40])
        raise Stop(
            f"The adapter in `{adapter}` cannot be merged: {reason}",
            "Check the base model that its adapter_config.json names, that all of the adapter's files are complete, and your network.",
        ) from None


def _may_be_replaced(folder: Path) -> bool:
    """Whether it is empty or holds a model."""
    if not folder.is_dir():
        return False
    return not any(folder.iterdir()) or (folder / "config.json").is_file()
