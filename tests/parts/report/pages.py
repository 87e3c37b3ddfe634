"""Reading a page as a browser or a tool would, and holding its figures against the files that they
are of."""

from __future__ import annotations

import json
from html.parser import HTMLParser
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

VOID = {"meta", "br", "link", "img", "input"}


class Page(HTMLParser):
    """A page's elements in their order, each with its attributes; its words; and what is wrong with
    how it is built."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str]]] = []
        self.open: list[str] = []
        self.words: list[str] = []
        self.wrong: list[str] = []
        self.feed(text)
        self.close()
        if self.open:
            self.wrong.append(f"never closed: {self.open}")

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, {name: value or "" for name, value in attrs}))
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, {name: value or "" for name, value in attrs}))

    def handle_endtag(self, tag: str) -> None:
        if not self.open or self.open.pop() != tag:
            self.wrong.append(f"</{tag}> closes something else")

    def handle_data(self, data: str) -> None:
        if self.open and self.open[-1] not in ("style", "script"):
            self.words.append(data)

    @property
    def said(self) -> str:
        return " ".join(" ".join(self.words).split())

    def all(self, tag: str) -> list[dict[str, str]]:
        return [attributes for name, attributes in self.elements if name == tag]

    def curve(self, name: str) -> list[list[float]]:
        """The values of the first line of that name, as the script reads them."""
        (first, *_) = [line for line in self.all("path") if line.get("data-name") == name]
        return json.loads(first["data-values"])


def read(file: Path) -> Page:
    """A page that is built well: closed elements, names that are there, a table or words for every
    drawing, and nothing from elsewhere."""
    text = file.read_text("utf-8")
    assert len(text.encode()) < 2_000_000
    page = Page(text)
    assert not page.wrong, page.wrong
    ids = [attributes["id"] for _, attributes in page.elements if "id" in attributes]
    assert len(ids) == len(set(ids))
    for tag, attributes in page.elements:
        for name in attributes.get("aria-labelledby", "").split():
            assert name in ids, name
        if attributes.get("href", "").startswith("#"):
            assert attributes["href"][1:] in ids, attributes["href"]
        outside = {"src", "srcset", "action", "style"} if tag != "span" else {"src"}
        assert not outside & set(attributes) and tag not in ("link", "iframe", "object", "base")
        assert not [name for name in attributes if name.startswith("on")]
    for drawing in page.all("svg"):
        assert drawing.get("aria-hidden") or (
            drawing["role"] == "img" and drawing["aria-labelledby"]
        )
    levels = [int(tag[1]) for tag, _ in page.elements if tag in ("h1", "h2", "h3", "h4")]
    assert levels[0] == 1 and levels.count(1) == 1
    assert all(after <= before + 1 for before, after in pairwise(levels))
    assert ("main" in dict(page.elements)) and page.all("html") == [{"lang": "en"}]
    return page


def load(file: Path) -> Any:
    return json.loads(file.read_text("utf-8"))


def holds_the_figures_of(page: Page, stage: Path) -> None:
    """The figures of a stage's summary and history are those on the page."""
    summary, history = load(stage / "training_summary.json"), load(stage / "training_history.json")
    wanted = [
        f"steps {summary['steps']:,}",
        f"trained parameters {summary['trainable_parameters']:,} of",
    ]
    wanted += [f"{when} {summary[key]:.4f}" for when, key in (
        ("validation loss at the start", "first_validation_loss"), ("validation loss at best", "best_validation_loss"),
        ("training loss at the end", "last_training_loss"),
    )]  # fmt: skip
    wanted += [f"{name} {version}" for name, version in summary["versions"].items()]
    for words in wanted:
        assert words in page.said, words
    lines = {line["data-name"] for line in page.all("path") if "data-name" in line}
    for name, entries, key in (
        ("training", history["steps"], "loss"), ("validation", history["epochs"], "validation_loss"),
        ("learning rate", history["steps"], "learning_rate"), ("tokens a second", history["steps"], "tokens_per_second"),
        ("accuracy", history["epochs"], "accuracy"),
    ):  # fmt: skip
        points = [[entry["step"], entry[key]] for entry in entries if entry.get(key) is not None]
        assert (name in lines) == (len(points) > 1), name
        if len(points) > 1 and sum(line.get("data-name") == name for line in page.all("path")) == 1:
            assert page.curve(name) == [
                [step, pytest.approx(value, rel=1e-6)] for step, value in points
            ]
