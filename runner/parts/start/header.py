"""The first lines of a copy with other data, another model or other machines, and its description:
made from the copy's own settings, because the starter's words would not be true of it."""

import re
from collections.abc import Iterator
from pathlib import PurePath

from runner.catalog.hardware import NO_GPU
from runner.check import by_schema
from runner.check.validate import as_written
from runner.commands import cli
from runner.recipe.document import Document, leaves
from runner.recipe.recipe import DEMO_QUESTIONS, TEXT
from runner.scenarios.shared.axolotl import ASKED_OF_ROWS
from runner.tools.problem import Stop
from runner.tools.settings import BrokenSetting

# The commands that the first lines show; those of the second list need a cluster or plain machines.
VERBS = ("check", "plan", "rehearse", "run")
FOR_MACHINES = ("render",)
MOST_NAMED = 3  # data sets that a sentence names
_ADVICE = re.compile("`(?:make|recipe new) ")
_HEADER = re.compile(r"\A(?:#.*\n)+")


def with_header(text: str, document: Document, starter: str) -> str:
    """The text of a copy, whose first comments are about the copy. document: the copy; starter:
    the name of the recipe that it was copied from."""
    lines = [_subject(document, starter), "", *_commands(document)]
    demo = _demo(document)
    if demo:
        lines += ["", demo]
    editor_line = text.partition("\n")[0]
    comments = [f"# {line}".rstrip() for line in lines]
    header = "\n".join([editor_line, "#", *comments]) + "\n"
    return header + _HEADER.sub("", text, count=1)


def without_advice(text: str) -> str:
    """The text of a copy that differs only in its name, without the paragraphs at its top that
    tell how to copy the starter or how to run it from its repository."""
    comments = _HEADER.match(text)
    if not comments:
        return text
    paragraphs = comments[0].split("\n#\n")
    kept = [paragraph for paragraph in paragraphs if not _ADVICE.search(paragraph)]
    header = "\n#\n".join(kept).rstrip("\n") + "\n"
    return header + text[comments.end() :]


def description(document: Document, starter: str) -> str:
    """What `recipe list` shows for a copy."""
    return f"{_facts(document)} (a copy of {starter})"


def _subject(document: Document, starter: str) -> str:
    name = str(document.data["name"])
    return f"{name[:1].upper()}{name[1:]}: {_facts(document)}. Copied from {starter}."


def _facts(document: Document) -> str:
    """Model, data and machines in words."""
    model = _model(document)
    data = _data(document)
    facts = []
    if model and data:
        facts.append(f"{model} learns from {data}")
    elif data:
        facts.append(f"a model learns from {data}")
    elif model:
        facts.append(model)
    machines = _machines(document)
    if machines:
        facts.append(f"planned for {machines}")
    return ", ".join(facts)


def _model(document: Document) -> str:
    """The name of the base model, without its owner; empty without one."""
    base = document.lookup(("model", "base"))
    if not isinstance(base, str):
        return ""
    return base.rstrip("/").rpartition("/")[2]


def _data(document: Document) -> str:
    """The names of the data sets, without folders."""
    names = dict[str, None]()
    for path, value in leaves(document.data, bool):
        if "data" in path and path[-1] in ("path", "hub") and isinstance(value, str):
            names[PurePath(value).name] = None
    named = list(names)[:MOST_NAMED]
    if len(names) > MOST_NAMED:
        return f"{', '.join(named)} and others"
    if len(named) > 1:
        return f"{', '.join(named[:-1])} and {named[-1]}"
    return "".join(named)


def _machines(document: Document) -> str:
    """The number and kind of GPUs; empty if they are unknown or have errors."""
    try:
        recipe = as_written(document)
        gpu = recipe.machines.gpu
        count = sum(recipe.gpu_counts)
    except (BrokenSetting, Stop, AttributeError, KeyError, TypeError):
        return ""  # the check of the copy reports it
    if gpu == NO_GPU:
        return "a CPU"
    if count == 1:
        return f"one {gpu}"
    return f"{count} {gpu}"


def _commands(document: Document) -> Iterator[str]:
    """A line for each command of the first steps, with the sentence of `recipe --help`."""
    verbs = list(VERBS)
    if document.lookup(("openshift",)) or document.lookup(("nodes",)):
        verbs += FOR_MACHINES
    summaries = cli.commands()
    width = max(map(len, verbs))
    for verb in verbs:
        if verb in summaries:
            summary = summaries[verb][0].removesuffix(".")
            sentence = summary[:1].lower() + summary[1:]
            yield f"  recipe {verb.ljust(width)} {document.file}   {sentence}"


def _demo(document: Document) -> str:
    """What the demo asks if the recipe names no questions; empty if it does, or has no demo."""
    has_demo = by_schema.has(document.data["scenario"], "demo.questions")
    section = document.lookup(("demo",)) or {}
    if not has_demo or any(section.get(name) for name in DEMO_QUESTIONS):
        return ""
    try:
        kind = as_written(document).rows
    except (BrokenSetting, Stop, KeyError):
        kind = ""
    if kind == TEXT:
        asked = f"The demo lets the model continue {ASKED_OF_ROWS} beginnings of texts that are held back."
    else:
        asked = f"The demo asks {ASKED_OF_ROWS} questions of the rows, of those that it learns and of those held back."
    return f"{asked} Ask others with `questions` under `demo`."
