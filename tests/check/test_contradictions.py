"""The tables of contradictions name settings that recipes have, and hold as their terms say."""

from __future__ import annotations

import re
import tomllib

import pytest

from runner import catalog
from runner.check import by_schema
from runner.check.validate import load
from runner.parts.pretrain.translation import OWN
from runner.recipe.document import applies, holds, path_of
from runner.scenarios import names
from runner.scenarios.language.translation import ANSWERS
from runner.scenarios.shared.contradictions import DERIVED
from tests.conftest import ROOT

TABLES = [
    file
    for file in sorted((ROOT / "runner").rglob("contradictions.toml"))
    if "axolotl_files" not in file.parts
]
ROWS = [
    (file.parent.name, row)
    for file in TABLES
    for row in tomllib.loads(file.read_text("utf-8"))["rows"]
]
RECIPE = load(ROOT / "recipes" / "survival.yaml")[0]
DATA = {"a": {"on": True, "off": False, "four": 4, "two": 2, "word": "Two words"}}


@pytest.mark.parametrize(
    "room, row", ROWS, ids=lambda part: part if isinstance(part, str) else part["when"][0]
)
def test_each_term_names_a_setting_of_one_scenario(room, row):
    for home in row.get("each", [""]):
        terms = [term.replace("*", home) for term in (*row["when"], *row.get("unless", ()))]
        words = [
            word
            for term in terms
            for side in re.split("[=><~?]", term)[:2]
            for word in side.split("|")
        ]
        derived = [word.split(".") for word in words if word.split(".")[0] in DERIVED]
        assert all(
            name in DERIVED[of](RECIPE) for of, name, *_ in (path for path in derived if path[1:])
        )
        theirs = [
            word.removeprefix("advanced.axolotl.")
            for word in words
            if word.startswith("advanced.axolotl.")
        ]
        assert {*theirs} <= {*catalog.axolotl_settings()["properties"]}
        named = [
            word
            for word in words
            if re.fullmatch(r"[a-z]+\.[a-z_.]+", word) and word.split(".") not in derived
        ]
        named = [word for word in named if not word.startswith("advanced.axolotl.")]
        if any(
            all(by_schema.part(scenario, path_of(name)) for name in named) for scenario in names()
        ):
            return
    raise AssertionError(f"{room}: no scenario has all of {row['when']}")


@pytest.mark.parametrize(
    "room, row", ROWS, ids=lambda part: part if isinstance(part, str) else part["when"][0]
)
def test_a_word_alone_is_a_setting_or_derived(room, row):
    for term in (*row["when"], *row.get("unless", ())):
        word = re.split("[=><~?|]", term)[0]
        assert (
            "." in word
            or word
            in (
                "advised",
                "base_folder",
                "disk_of_pods",
                "similar_gpus",
                "on_pods",
                *OWN,
                *ANSWERS,
                *DERIVED,
            )
            or by_schema.part("lora", word)
        ), term


@pytest.mark.parametrize(
    "term",
    [
        "a.on",
        "a.four=4",
        "a.four=3|4",
        "a.four>3",
        "a.four>a.two",
        "a.two<4",
        "a.word~two.*",
        "a.off?",
    ],
)
def test_a_term_holds(term):
    assert holds(DATA, term)


@pytest.mark.parametrize(
    "term",
    [
        "a.off",
        "a.none",
        "a.four=5",
        "a.four>4",
        "a.two>a.four",
        "a.word>1",
        "a.none<1",
        "a.word~two",
        "b?",
    ],
)
def test_a_term_does_not_hold(term):
    assert not holds(DATA, term)


def test_all_terms_hold_and_none_of_the_others():
    assert applies(DATA, ["a.on", "a.four"]) and not applies(DATA, ["a.on"], ["a.off", "a.two"])
