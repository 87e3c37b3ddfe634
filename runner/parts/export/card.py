"""Card: the README.md of an exported model. Its facts are those of the run's page (`report/facts.py`), in the same sentences."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any

from runner import __version__
from runner.parts.evaluate import gates
from runner.parts.export.source import TrainedModel
from runner.parts.report import sentences
from runner.tools.text import yaml_text
from runner.tools.vllm import RANKS

if TYPE_CHECKING:
    from jinja2 import Environment

# Sections of a recipe that say where it ran and not what was made.
_PLACES = ("name", "description", "openshift", "nodes", "communication", "machines", "limits", "image", "demo")
_LIBRARY = {"safetensors": "transformers", "adapter": "peft", "gguf": "gguf"}
# How a model came from its base, as the hub calls it.
_RELATION = {"safetensors": "finetune", "adapter": "adapter", "gguf": "quantized"}


def text(source: TrainedModel, form: str, kind: str, proof: Mapping[str, Any], file: str) -> str:
    """The card. form, kind, proof: of the export; file: the name of a GGUF file, else empty."""
    known = {
        "source": source, "run": source.run, "stage": source.stage, "form": form, "kind": kind, "file": file, "say": sentences,
        "system": (source.chat.system_prompt or "").strip() if source.chat.chat else "",
        "metrics": measured(source), "data": list(_data(source)), "origin": list(_origin(source)), "recipe": _recipe(source),
        "proof": list(_proof(proof)), "version": __version__, "rank": proof.get("max_lora_rank", RANKS[-1]),
    }  # fmt: skip
    return f"---\n{head(source, form)}\n---\n\n{shelf().get_template('card.md.jinja').render(known)}"


def shelf() -> Environment:
    """The templates of the texts beside a model."""
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    found = Environment(
        loader=FileSystemLoader(Path(__file__).parent), undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True,
        autoescape=False, keep_trailing_newline=True,
    )  # fmt: skip
    found.filters |= {"plain": plain, "cell": cell}
    return found


def head(source: TrainedModel, form: str) -> str:
    """What the hub reads, as YAML, in its own words."""
    from huggingface_hub import EvalResult, ModelCardData

    run, base = source.run, source.hub_base
    results = [
        EvalResult(
            task_type="text-generation", dataset_type="held-out", dataset_name="held-out rows of the run", metric_type=name,
            metric_value=value,
        )
        for name, value in measured(source).items() if isinstance(value, int | float)
    ]  # fmt: skip
    data = ModelCardData(
        license=run.planned.licence or None,
        base_model=base or None,
        base_model_relation=_RELATION[form] if base else None,
        datasets=_hub_data(source) or None,
        library_name=_LIBRARY[form],
        pipeline_tag="text-generation",
        model_name=run.name if results else None,
        eval_results=results or None,
        tags=["recipe-runner", *(["rehearsal"] if run.rehearsal else [])],
    )
    return str(data.to_yaml())


def measured(source: TrainedModel) -> Mapping[str, Any]:
    """What was measured of this very model; nothing where it was of another one."""
    return source.stage.measured if gates.current(source.folder) else {}


def _hub_data(source: TrainedModel) -> list[str]:
    """The data sets on the hub that a run, and no rehearsal, was trained on."""
    if source.run.rehearsal:
        return []
    data = source.run.planned.settings.get("data") or {}
    sets = [data, *(data.get("sets") or [])]
    return [one["hub"] for one in sets if isinstance(one, dict) and one.get("hub")]


def _data(source: TrainedModel) -> Iterator[tuple[str, str]]:
    for part, facts in source.run.data.items():
        for name, value in sentences.data(facts):
            yield (f"{part}: {name}" if part else name), value


def _origin(source: TrainedModel) -> Iterator[tuple[str, str]]:
    """As on the page, but without folders of this machine."""
    for name, value in sentences.origin(source.run):
        yield name, PurePosixPath(value).name if value.startswith("/") else value


def _recipe(source: TrainedModel) -> str:
    settings = source.run.planned.settings
    return yaml_text({name: value for name, value in settings.items() if name not in _PLACES}).rstrip()


def _proof(proof: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    for name, value in proof.items():
        yield name.replace("_", " "), f"{value:.3g}" if isinstance(value, float) else str(value)


def plain(text: str) -> str:
    """A text as Markdown shows it, and no browser runs it."""
    return str(text).replace("&", "&amp;").replace("<", "&lt;")


def cell(text: str) -> str:
    """The same in a cell of a table."""
    return " ".join(plain(text).split()).replace("|", "\\|")
