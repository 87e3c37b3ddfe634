"""The lock file: models outside the catalog, recorded beside a recipe, so that no machine needs a
network for them."""

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, get_type_hints

from runner import catalog
from runner.catalog import Facts, Model, models
from runner.recipe import reading
from runner.recipe.document import Document
from runner.tools.files import write_text
from runner.tools.problem import Problem, Stop, did_you_mean, found_by, listed
from runner.tools.settings import Section

LOCK = "models.lock.yaml"
ON_HUB = ("branch", "revision")
RARE = ("config", "stored", "text_type", "towers")  # fields that few models have


def _fields() -> Mapping[str, str]:
    """The fields of an entry, in order, each with its comment."""
    return catalog.table("lock-file")["fields"]


TYPES = get_type_hints(Model)


def _lacking(key: str, value: object) -> str:
    """The form, in words, that a field's value lacks; empty if it is right."""
    forms = catalog.table("lock-file")["forms"]
    form, description = forms.get(key) or forms[TYPES.get(key, str).__name__]
    is_known = key != "chat_template" or value in ("", *catalog.table("templates"))
    if re.fullmatch(form, json.dumps(value)) and is_known:
        return ""
    return str(description)


def find(folder: Path, name: str, revision: str) -> tuple[Model | None, list[Problem]]:
    """The model `name` from the lock file in `folder`, and the problems with its entry; (None, [])
    without an entry. revision: the branch, tag or commit that the recipe names."""
    try:
        document = _read(folder / LOCK)
    except Stop as stop:
        return None, found_by("lock-file", stop.problems)
    if document is None or name not in document.data["models"]:
        return None, []
    problems = _wrong(document, name)
    if problems:
        return None, found_by("lock-entry", problems)
    entry = document.data["models"][name]
    if entry["source"] == "hub" and revision not in (entry["branch"], entry["revision"]):
        problem = document.problem(
            ("models", name, "branch"),
            f"This is `{name}` at `{entry['branch']}`, and the recipe asks for `{revision}`.",
            f"Run `recipe models add {name} --revision {revision} --out {document.file}`, or change `revision` there.",
            check="lock-entry",
        )
        return None, [problem]
    return model_of(name, entry), []


def entries(file: Path) -> dict[str, Facts]:
    """Every entry of a lock file by the model's name; empty without a file. Raises Stop with all
    problems."""
    document = _read(file)
    if not document:
        return {}
    models: dict[str, dict[str, Any]] = document.data["models"]
    problems = list[Problem]()
    for name in models:
        problems += _wrong(document, name)
    if problems:
        raise Stop(problems)
    return models


def add(file: Path, name: str, entry: Section) -> None:
    """Writes an entry into a lock file, and replaces an older one of that name. Raises Stop if the
    file is broken."""
    bad = [key for key, value in entry.items() if _lacking(key, value)]
    if bad:
        raise Stop(
            f"Impossible values in the entry of `{name}`: {listed(bad)}.",
            "Check that its `config.json` is the original one.",
        )
    new_entries = {str(model): old_entry for model, old_entry in entries(file).items()}
    new_entries[name] = dict(entry)
    blocks = list[str]()
    for model in sorted(new_entries):
        block = f"  {json.dumps(model, ensure_ascii=False)}:\n"
        for key, comment in _fields().items():
            if key in new_entries[model]:
                # Values are JSON, which YAML reads the same.
                value = json.dumps(new_entries[model][key], ensure_ascii=False)
                block += f"    {key}: {value}"
                if comment:
                    block += f"   # {comment}"
                block += "\n"
        blocks.append(block)
    head = str(catalog.table("lock-file")["head"])
    write_text(file, head + "\n".join(blocks))


def entry_of(model: Model, branch: str) -> Facts:
    """A model's entry. branch: the requested revision on the hub."""
    source = "folder"
    if model.revision:
        source = "hub"
    computed = {
        "source": source,
        "branch": branch,
        "linear": list(model.linear),
        "config": model.own,
        "towers": model.tower_settings,
    }
    entry = {}
    for key in _fields():
        if key in ON_HUB and not model.revision:
            continue
        value = computed[key] if key in computed else getattr(model, key)
        if value or key not in RARE:
            entry[key] = value
    return entry


def model_of(name: str, entry: Section) -> Model:
    facts = {key: value for key, value in entry.items() if key in TYPES}
    if entry["source"] == "folder":
        # The entry has the same values as its config.json, so that file counts as the source.
        facts["source"] = f"{name}/config.json"
    else:
        facts["source"] = f"config.json of {name} on the hub, as {LOCK} has it"
    return models.of_facts({**facts, "id": name})


def _read(file: Path) -> Document | None:
    """The lock file, or None. Raises Stop if it is not a lock file."""
    if not file.is_file():
        return None
    restored = f"`git checkout {file.name}` restores an older version."
    remedy = f"{restored} Or delete the file, and run `recipe models add NAME`."
    document = reading.read(file, "lock file", remedy)
    if not isinstance(document.data.get("models"), dict):
        raise Stop(
            document.problem(("models",), "A lock file lists its models under `models`.", remedy)
        )
    return document


def _wrong(document: Document, name: str) -> list[Problem]:
    entry = document.data["models"][name]
    entry_path = ("models", name)
    remedy = f"`recipe models add {name}` writes the entry again."
    if not isinstance(entry, dict):
        return [document.problem(entry_path, f"The entry of `{name}` is empty.", remedy)]
    problems = []
    fields = _fields()
    for key, value in entry.items():
        if key not in fields:
            hint = did_you_mean(str(key), fields).rstrip() or remedy
            problems.append(
                document.problem(
                    (*entry_path, key), f"`{key}` is not a setting of an entry.", hint, key=True
                )
            )
            continue
        form = _lacking(key, value)
        if form:
            problems.append(
                document.problem((*entry_path, key), f"`{key}` must be {form}.", remedy)
            )
    optional = RARE if entry.get("source") == "hub" else (*ON_HUB, *RARE)
    missing = [key for key in fields if key not in optional and key not in entry]
    if not problems and missing:
        problems.append(
            document.problem(
                entry_path, f"The entry of `{name}` lacks {listed(missing)}.", remedy, key=True
            )
        )
    if not problems and entry["num_attention_heads"] % entry["num_key_value_heads"]:
        problems.append(
            document.problem(
                (*entry_path, "num_key_value_heads"),
                "`num_attention_heads` must be a multiple of `num_key_value_heads`.",
                remedy,
            )
        )
    return problems
