"""What is written as YAML says the same to readers of YAML 1.1 and 1.2."""

from __future__ import annotations

import io

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st
from ruamel.yaml import YAML

from runner.tools.text import template, yaml_text
from tests.conftest import ROOT

# Hashes, labels, quantities and versions, as manifests hold them: what may look like a number to
# somebody.
LIKE_NUMBERS = st.text("0123456789abcdefox_.+-eEynYN", min_size=1, max_size=12)
ODD = [
    "840195e251",
    "1e3",
    "0o17",
    "0b101",
    "0x1f",
    "017",
    "1_000",
    "3.6",
    ".5",
    "5.",
    "+1",
    "y",
    "N",
    "no",
    "null",
    "~",
    "2026-11-22",
    "1:30",
]


def read_as(version: str, text: str) -> object:
    reader = YAML(typ="safe", pure=True)
    reader.version = version
    return reader.load(io.StringIO(text))


@pytest.mark.parametrize("text", ODD)
def test_what_looks_like_a_number_to_some_reader_stays_text(text):
    written = yaml_text({"label": text})
    assert written == f"label: '{text}'\n"


@given(st.one_of(LIKE_NUMBERS, st.text(max_size=20)))
def test_texts_are_read_back_as_they_were(text):
    written = yaml_text({"label": text})
    assert yaml.safe_load(written) == {"label": text}


@given(LIKE_NUMBERS)
def test_readers_of_both_versions_agree(text):
    written = yaml_text({"label": text})
    assert {repr(read_as(version, written)) for version in ("1.1", "1.2")} == {
        repr({"label": text})
    }


def test_a_template_is_compiled_once():
    """Compiling those of `recipe plan` takes a second."""
    file = ROOT / "runner" / "parts" / "planner" / "problems.txt.jinja"
    assert template(file) is template(file)
