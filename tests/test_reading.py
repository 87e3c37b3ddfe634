"""Reading: every way in which a file can be no recipe has its own message; nothing ends in a trace."""

from __future__ import annotations

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from runner.problem import Stop
from runner.recipe import reading
from runner.recipe.document import Document
from runner.recipe.scalars import scalar


def said(text: str) -> str:
    with pytest.raises(Stop) as stop:
        reading.parse("r.yaml", text)
    return stop.value.text


BROKEN = {
    "tab": (
        "a:\n\tb: 1\n",
        "r.yaml:2:1: A tab stands here, and YAML allows only spaces to indent.\n"
        "    2 | \tb: 1\n      | ^\nReplace the tab by spaces, two for each level.",
    ),
    "duplicate key": (
        "a: 1\nb: 2\na: 3\n",
        "r.yaml:3:1: `a` is set twice; it is already set in line 1.\n    3 | a: 3\n      | ^\nKeep one of the two.",
    ),
    "two documents": (
        "a: 1\n---\nb: 2\n",
        "r.yaml:2:1: A second document starts here; one file holds one recipe.\n"
        "    2 | ---\n      | ^^^\nPut it into a file of its own, or delete this `---`.",
    ),
    "empty": ("", "r.yaml:1:1: This file is empty.\nStart from a copy: `recipe new my-demo --from survival`."),
    "comments alone": (
        "# nothing\n",
        "r.yaml:1:1: This file is empty.\nStart from a copy: `recipe new my-demo --from survival`.",
    ),
    "no settings": (
        "hello world\n",
        "r.yaml:1:1: This is not a recipe: it has no `setting: value` lines.\n"
        "    1 | hello world\n      | ^\nStart from a copy: `recipe new my-demo --from survival`.",
    ),
    "second colon": (
        "a: b: c\n",
        "r.yaml:1:5: A second `: ` stands in this line, or the line is indented too far.\n"
        "    1 | a: b: c\n      |     ^\nPut quotes around a value that holds `: `, and indent as the line above.",
    ),
    "open quote": (
        'a: "b\nc: 1\n',
        'r.yaml:1:4: A quote opens here and is never closed.\n    1 | a: "b\n      |    ^\n'
        "Close it, or double a quote that belongs to the text.",
    ),
    "open bracket": (
        "a: [1, 2\nb: 3\n",
        "r.yaml:1:4: A `[` or `{` opens here and is never closed.\n    1 | a: [1, 2\n      |    ^\n"
        "Close it, or put quotes around a text that starts with a bracket.",
    ),
    "odd indentation": (
        "a:\n  b: 1\n c: 2\n",
        "r.yaml:3:2: This line does not fit the lines above it.\n    3 |  c: 2\n      |  ^\n"
        "Indent it exactly as its neighbours: settings of one section start in the same column.",
    ),
    "reserved sign": (
        "a: @x\n",
        "r.yaml:1:4: A value cannot start with `@`.\n    1 | a: @x\n      |    ^\nPut quotes around the value.",
    ),
    "endless alias": (
        "a: &a [*a]\n",
        "r.yaml:1:8: `*a` stands inside what `&a` names, so it would hold itself without end.\n"
        "    1 | a: &a [*a]\n      |        ^^\nWrite the value out here.",
    ),
    "unknown alias": (
        "a: *b\n",
        "r.yaml:1:4: `*b` repeats something that no `&b` has named.\n    1 | a: *b\n      |    ^^\n"
        "Write the value out here.",
    ),
    "control sign": (
        "a: \x07\n",
        "r.yaml:1:1: This line holds a character that YAML does not allow (U+0007).\n    1 | a: \ufffd\n      | ^\nDelete it.",
    ),
    "colon without a space": (
        "a:\n  b:1  # one\n  c: 2\n",
        "r.yaml:2:3: The space after the `:` is missing here.\n    2 |   b:1  # one\n      |   ^^\nWrite `b: 1`.",
    ),
    "no colon": (
        "a: 1\nb\nc: 2\n",
        "r.yaml:2:1: The `:` after a setting's name is missing here.\n    2 | b\n      | ^\nWrite `name: value`.",
    ),
    "non-breaking space": (
        "a:\n  b:\u00a01\n  c: 2\n",
        "r.yaml:2:5: A non-breaking space stands here, which only looks like a space; it comes with text copied from "
        "web pages.\n    2 |   b:\u00a01\n      |     ^\nType a space in its place.",
    ),
    "a quote that closes lines further down": (
        'a: "b\nc: 1\nd: "[x]"\n',
        'r.yaml:1:4: A quote opens here and is not closed in this line.\n    1 | a: "b\n      |    ^\n'
        "Close it, or double a quote that belongs to the text.",
    ),
    "a tag": (
        "a: !!python/name:x 1\n",
        "r.yaml:1:4: `!!python/name:x` is a tag of YAML, and a recipe has no use for it.\n"
        "    1 | a: !!python/name:x 1\n      |    ^^^^^^^^^^^^^^^^^\nDelete it, and keep the value.",
    ),
}


@pytest.mark.parametrize("case", BROKEN, ids=str)
def test_every_broken_file_has_its_own_message(case):
    text, expected = BROKEN[case]
    assert said(text) == expected


def test_of_a_very_long_line_only_the_part_around_the_caret_is_shown():
    shown = said(f"a: 1\nb: '{'x' * 5000}' c: 2").splitlines()[1:3]
    assert max(map(len, shown)) < 250
    assert shown[0][shown[1].index("^")] == "c"


def test_aliases_that_multiply_are_refused_quickly():
    lines = ["a: &a [1, 1, 1, 1, 1, 1, 1, 1, 1, 1]"]
    lines += [f"{chr(98 + i)}: &{chr(98 + i)} [{', '.join([f'*{chr(97 + i)}'] * 10)}]" for i in range(8)]
    assert "Written out, this file would hold more than 100,000 values." in said("\n".join(lines))


@pytest.mark.parametrize("text", ["a: " + "[" * 100 + "]" * 100, "a: " + "[" * 5000, "{" * 3000])
def test_endless_nesting_is_refused(text):
    assert "nested" in said(text)


def test_a_missing_file_names_a_near_one(tmp_path):
    (tmp_path / "survival.yaml").write_text("a: 1")
    with pytest.raises(Stop) as stop:
        reading.read(tmp_path / "survivl.yaml")
    assert stop.value.text == (
        f"{tmp_path}/survivl.yaml: There is no such file.\nDid you mean `{tmp_path}/survival.yaml`?"
    )


def test_a_file_that_is_no_text_is_said_so(tmp_path):
    path = tmp_path / "r.yaml"
    path.write_bytes(b"\xff\xfe\x00a")
    with pytest.raises(Stop) as stop:
        reading.read(path)
    assert stop.value.text == (
        f"{path}: This file is not text in UTF-8.\nIn your editor, save it again with the encoding UTF-8."
    )


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("2e-5", 2e-5),
        ("5.0e-5", 5e-5),
        (".5", 0.5),
        ("0x10", 16),
        ("0o17", 15),
        ("017", 17),
        ("1_000", "1_000"),
        ("yes", "yes"),
        ("no", "no"),
        ("on", "on"),
        ("true", True),
        ("~", None),
        ("null", None),
        ("None", "None"),
        ("1:30", "1:30"),
        ("2001-01-01", "2001-01-01"),
        ("-.inf", -math.inf),
    ],
)
def test_scalars_are_read_as_yaml_1_2_has_them(text, value):
    assert scalar(text) == value
    assert type(scalar(text)) is type(value)


def test_places_are_those_of_the_text():
    document = reading.parse("r.yaml", "train:\n  epochs: 4   # times\n  list:\n    - x\n    - yy\n")
    assert (document.keys["train", "epochs"].line, document.keys["train", "epochs"].column) == (2, 3)
    value = document.values["train", "epochs"]
    assert (value.line, value.column, document.text[value.start : value.end]) == (2, 11, "4")
    assert (document.values["train", "list", 1].line, document.values["train", "list", 1].column) == (5, 7)


@given(st.text(max_size=300))
@settings(max_examples=300, deadline=None)
def test_no_text_ends_in_anything_but_a_document_or_problems(text):
    try:
        assert isinstance(reading.parse("r.yaml", text), Document)
    except Stop as stop:
        assert stop.problems
        assert all(problem.message for problem in stop.problems)


# What YAML prints as it is: neither control signs nor lone surrogates.
_words = st.text(
    st.characters(min_codepoint=32, max_codepoint=0xD7FF, exclude_categories=("Cc", "Cs", "Zl", "Zp")), max_size=20
)
_yaml = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(10**9), 10**9)
    | st.floats(allow_nan=False, allow_infinity=False)
    | _words,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(_words, inner, max_size=4),
    max_leaves=12,
)


@given(st.dictionaries(_words, _yaml, min_size=1, max_size=5))
@settings(max_examples=200, deadline=None)
def test_json_is_read_as_json_reads_it(value):
    import json

    assert reading.parse("r.yaml", json.dumps(value, ensure_ascii=False)).data == value
