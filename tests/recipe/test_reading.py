"""Reading: every way in which a file can be no recipe has its own message; nothing ends in a
trace."""

from __future__ import annotations

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from runner.recipe import reading
from runner.recipe.document import Document
from runner.recipe.reading import scalar
from runner.tools.problem import Problem, Stop


def problem_of(text: str) -> Problem:
    with pytest.raises(Stop) as stop:
        reading.parse("r.yaml", text)
    (problem,) = stop.value.problems
    return problem


# The text of a recipe, and where it is wrong: line and column.
BROKEN = {
    "tab": ("a:\n\tb: 1\n", (2, 1)),
    "duplicate key": ("a: 1\nb: 2\na: 3\n", (3, 1)),
    "two documents": ("a: 1\n---\nb: 2\n", (2, 1)),
    "empty": ("", (1, 1)),
    "comments alone": ("# nothing\n", (1, 1)),
    "no settings": ("hello world\n", (1, 1)),
    "a path of Windows": ('a: "C:\\data"\n', (1, 7)),
    "a path of Windows whose folder begins with U": ('a:\n  b: "C:\\Users\\me"\n', (2, 9)),
    "the last entry of a list without its dash": ("a:\n  - What?\n  Where?\nb: 1\n", (3, 3)),
    "the last entry of a list of settings without its dash": ("a:\n  - b: 1\n  b: 2\n", (3, 3)),
    "a section without a colon after a list": ("a:\n  - What?\nb\n  c: 1\n", (3, 1)),
    "second colon": ("a: b: c\n", (1, 5)),
    "open quote": ('a: "b\nc: 1\n', (1, 4)),
    "open bracket": ("a: [1, 2\nb: 3\n", (1, 4)),
    "odd indentation": ("a:\n  b: 1\n c: 2\n", (3, 2)),
    "reserved sign": ("a: @x\n", (1, 4)),
    "endless alias": ("a: &a [*a]\n", (1, 8)),
    "unknown alias": ("a: *b\n", (1, 4)),
    "control sign": ("a: \x07\n", (1, 1)),
    "colon without a space": ("a:\n  b:1  # one\n  c: 2\n", (2, 3)),
    "no colon": ("a: 1\nb\nc: 2\n", (2, 1)),
    "non-breaking space": ("a:\n  b:\u00a01\n  c: 2\n", (2, 5)),
    "a quote that closes lines further down": ('a: "b\nc: 1\nd: "[x]"\n', (1, 4)),
    "a tag": ("a: !!python/name:x 1\n", (1, 4)),
}


@pytest.mark.parametrize("case", BROKEN, ids=str)
def test_every_broken_file_has_its_own_message(case, golden_message):
    text, place = BROKEN[case]
    problem = problem_of(text)
    assert (problem.line, problem.column) == place
    golden_message(str(problem))


@pytest.mark.parametrize(
    ("missing", "offered"), [("museum", False), ("hom", True), ("home-1", True)]
)
def test_only_a_similar_name_is_offered_for_a_missing_file(missing, offered, tmp_path):
    """`museum.yaml` and `home.yaml` have most letters in common, but only because of their
    ending."""
    (tmp_path / "home.yaml").write_text("scenario: lora\n")
    with pytest.raises(Stop) as stop:
        reading.read(tmp_path / f"{missing}.yaml")
    assert (str(tmp_path / "home.yaml") in stop.value.text) == offered


def test_of_a_very_long_line_only_the_part_around_the_caret_is_shown():
    shown = str(problem_of(f"a: 1\nb: '{'x' * 5000}' c: 2")).splitlines()[1:]
    assert max(map(len, shown)) < 250
    assert shown[0][shown[1].index("^")] == "'"


def test_aliases_that_multiply_are_refused_quickly(golden_message):
    lines = ["a: &a [1, 1, 1, 1, 1, 1, 1, 1, 1, 1]"]
    lines += [
        f"{chr(98 + i)}: &{chr(98 + i)} [{', '.join([f'*{chr(97 + i)}'] * 10)}]" for i in range(8)
    ]
    golden_message(problem_of("\n".join(lines)))


@pytest.mark.parametrize(
    "text", ["a: " + "[" * 100 + "]" * 100, "a: " + "[" * 5000, "{" * 3000, "[" * 200_000]
)
def test_endless_nesting_is_refused(text):
    assert "nested" in problem_of(text).message


def test_a_missing_file_names_a_near_one(tmp_path, golden_message):
    (tmp_path / "survival.yaml").write_text("a: 1")
    with pytest.raises(Stop, match="survival") as stop:
        reading.read(tmp_path / "survivl.yaml")
    golden_message(stop.value.text)


@pytest.mark.parametrize("name", ["\0.yaml", "\ud800.yaml"])
def test_a_name_that_no_file_can_have_is_refused(name, tmp_path):
    with pytest.raises(Stop, match="No file can have such a name"):
        reading.read(tmp_path / name)


def test_a_file_that_is_no_text_is_said_so(tmp_path, golden_message):
    path = tmp_path / "r.yaml"
    path.write_bytes(b"\xff\xfe\x00a")
    with pytest.raises(Stop, match="UTF-8") as stop:
        reading.read(path)
    golden_message(stop.value.text)


@pytest.mark.parametrize(
    ("before", "place"),
    [(b"", (1, 1)), (b"\xef\xbb\xbfab", (1, 3)), (b"\xef\xbb\xbfname: \xc3\xa9\nb", (2, 2))],
    ids=["the first byte", "behind a byte order mark", "in a later line"],
)
def test_a_byte_of_another_encoding_has_its_place(before, place, tmp_path):
    path = tmp_path / "r.yaml"
    path.write_bytes(before + b"\xe9t\xe9")
    with pytest.raises(Stop, match="not UTF-8 text") as stop:
        reading.read(path)
    (problem,) = stop.value.problems
    assert (problem.line, problem.column) == place


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
    document = reading.parse(
        "r.yaml", "train:\n  epochs: 4   # times\n  list:\n    - x\n    - yy\n"
    )
    assert (document.keys["train", "epochs"].line, document.keys["train", "epochs"].column) == (
        2,
        3,
    )
    value = document.values["train", "epochs"]
    assert (value.line, value.column, document.text[value.start : value.end]) == (2, 11, "4")
    assert (
        document.values["train", "list", 1].line,
        document.values["train", "list", 1].column,
    ) == (5, 7)


def test_a_repeat_stands_where_it_is_repeated():
    document = reading.parse("r.yaml", "a: &x [1, 2]\nb: *x\n")
    assert document.data == {"a": [1, 2], "b": [1, 2]}
    assert (document.values["b",].line, document.values["b",].column) == (2, 4)
    assert (document.values["a", 1].line, document.values["a", 1].column) == (1, 11)


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
    st.characters(
        min_codepoint=32, max_codepoint=0xD7FF, exclude_categories=("Cc", "Cs", "Zl", "Zp")
    ),
    max_size=20,
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
