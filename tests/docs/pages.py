"""The pages as their reader meets them: commands, links, headings."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from tests.conftest import ROOT

DOCS = ROOT / "docs"
README = ROOT / "README.md"
PAGES = [README, *sorted(DOCS.rglob("*.md"))]
# For people who change the code; their commands are not the reader's.
HOUSE = [
    ROOT / "ARCHITECTURE.md",
    ROOT / "CONTRIBUTING.md",
    *sorted((ROOT / "runner").rglob("DECISIONS.md")),
]
# Blocks between fences, and in the README those that are indented; what stands in other fences is
# no command.
_FENCED = re.compile(r"^```(\w*|\{.*?)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_INDENTED = re.compile(r"(?:^ {4}\S.*\n)+", re.MULTILINE)
_SPAN = re.compile(r"`([^`]+)`")
_LINK = re.compile(r"(!?)\[(?:[^\[\]]|\[[^\]]*\])*\]\(([^)\s]+)\)")


@dataclass(frozen=True)
class Command:
    """What a page tells its reader to type. words: without `recipe`; spoken: whether it stands in a
    sentence, not in a block."""

    words: tuple[str, ...]
    spoken: bool = False

    def __str__(self) -> str:
        return f"recipe {shlex.join(self.words)}"


def name(page: Path) -> str:
    return page.relative_to(ROOT).with_suffix("").as_posix()


def prose(page: Path) -> str:
    """A page without its blocks."""
    return _INDENTED.sub("", _FENCED.sub("", page.read_text("utf-8")))


def commands(page: Path) -> Iterator[Command]:
    """Every command of a page, as its blocks and then its sentences have them."""
    text = page.read_text("utf-8")
    blocks = [body for kind, body in _FENCED.findall(text) if kind == "sh"]
    if page == README:
        blocks += [
            re.sub("^    ", "", block, flags=re.MULTILINE) for block in _INDENTED.findall(text)
        ]
    for line in "\n".join(blocks).splitlines():
        if found := re.search(r"(?:^|\| )recipe (.*)", line):
            yield Command(tuple(shlex.split(found[1], comments=True)))
    for span in _SPAN.findall(prose(page)):
        said = " ".join(span.split())
        if said.startswith("recipe "):
            yield Command(tuple(shlex.split(said, comments=True)[1:]), spoken=True)
        elif "| recipe " in said:
            yield Command(tuple(shlex.split(said.partition("| recipe ")[2])), spoken=True)


def links(page: Path) -> Iterator[str]:
    """Where a page's links and pictures lead, but for addresses elsewhere."""
    for _, target in _LINK.findall(prose(page)):
        if not re.match(r"[a-z]+:", target):
            yield target


def anchors(page: Path) -> set[str]:
    """What can be linked to on a page: its headings, as GitHub and MyST write them."""
    headings = re.findall(r"^#{1,6} (.+)$", _FENCED.sub("", page.read_text("utf-8")), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}
