"""Golden files show a copy of another file as a reference to it, so that a person reads each text
once: `(= axolotl.yaml)` in a config map, `(= sft/plan.json, stages[0])` in a later plan."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from typing import Any

# A block of text in YAML: `  axolotl.yaml: |`, and the deeper lines below it.
BLOCK = re.compile(r"^(?P<indent> *)(?P<key>[\w.\-]+): \|(?P<end>[-+]?)$")
PLAN = "plan.json"


def with_references(files: Mapping[str, str]) -> dict[str, str]:
    """The same files by path, each copy of a file or of a plan's stage as a reference. What differs
    by one character from the original is no copy, and stays."""
    return {path: _with_references(path, files) for path in files}


def _with_references(path: str, files: Mapping[str, str]) -> str:
    if path.endswith(".yaml"):
        return "".join(_without_blocks(path, files))
    if path.rpartition("/")[2] == PLAN:
        return _without_stages(path, files)
    return files[path]


def _without_blocks(path: str, files: Mapping[str, str]) -> Iterator[str]:
    """The lines of a YAML file, each block with a whole other file in it as a reference."""
    lines = files[path].splitlines(keepends=True)
    number = 0
    while number < len(lines):
        line = lines[number]
        number += 1
        begin = BLOCK.match(line.rstrip("\n"))
        if begin is None:
            yield line
            continue
        block = _block_lines(lines[number:], len(begin["indent"]))
        original = _original(_block_text(block), path, files)
        if original:
            yield f"{begin['indent']}{begin['key']}: (= {original})\n"
        else:
            yield line
            yield from block
        number += len(block)


def _block_lines(lines: list[str], indent: int) -> list[str]:
    """The first lines that are blank or deeper than `indent` spaces."""
    for number, line in enumerate(lines):
        is_deeper = line.startswith(" " * (indent + 1))
        if line.strip() and not is_deeper:
            return lines[:number]
    return lines


def _block_text(block: list[str]) -> str:
    if not block:
        return ""
    margin = len(block[0]) - len(block[0].lstrip(" "))
    return "".join(line[margin:] if line.strip() else "\n" for line in block)


def _original(text: str, path: str, files: Mapping[str, str]) -> str:
    """The file with that text, the nearest one to `path` first; empty if none has it."""
    folder = path.rpartition("/")[0]
    same = [other for other, known in files.items() if known == text and other != path]
    same.sort(key=lambda other: (other.rpartition("/")[0] != folder, other))
    if not text or not same:
        return ""
    return same[0].removeprefix(f"{folder}/")


def _without_stages(path: str, files: Mapping[str, str]) -> str:
    """A plan whose stages that are in a shorter plan are references to it."""
    plan = json.loads(files[path])
    if _written(plan) != files[path]:
        return files[path]
    shorter = _shorter_plans(path, len(plan["stages"]), files)
    for index, stage in enumerate(plan["stages"]):
        for other, stages in shorter:
            if index < len(stages) and stages[index] == stage:
                plan["stages"][index] = f"(= {other}, stages[{index}])"
                break
    return _written(plan)


def _shorter_plans(path: str, count: int, files: Mapping[str, str]) -> list[tuple[str, list[Any]]]:
    """The stages of every plan that has fewer of them, the shortest plans first."""
    plans = [other for other in files if other.rpartition("/")[2] == PLAN and other != path]
    stages = [(other, json.loads(files[other])["stages"]) for other in plans]
    fewer = [(other, known) for other, known in stages if len(known) < count]
    return sorted(fewer, key=lambda plan: (len(plan[1]), plan[0]))


def _written(plan: Mapping[str, Any]) -> str:
    return json.dumps(plan, indent=1, ensure_ascii=False) + "\n"
