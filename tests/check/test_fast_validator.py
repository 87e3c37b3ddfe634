"""What passes without the validator is what the validator takes: every starter, and whatever a
setting may be changed to."""

from __future__ import annotations

import copy
import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jsonschema import Draft202012Validator

from runner.check.by_schema import fits, schema
from runner.recipe import reading
from tests.conftest import STARTERS

ODD = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(2**70), 2**70),
    st.floats(),
    st.sampled_from(["", "auto", "bf16", "4", "1Gi", "none", "a b", "x" * 300]),
    st.just([]),
    st.just({}),
    st.just([1, "a", None]),
    st.just({"epocs": 3}),
)
DOCUMENTS = [reading.read(path).data for path in STARTERS]


@pytest.mark.parametrize("path", STARTERS, ids=lambda path: path.stem)
def test_a_starter_passes_without_the_validator(path):
    data = reading.read(path).data
    assert fits(schema(data["scenario"]), data)


@settings(max_examples=300, deadline=None)
@given(st.data())
def test_what_passes_is_what_the_validator_takes(data):
    """One setting or section of a starter is changed, taken away or given twice over."""
    document = copy.deepcopy(data.draw(st.sampled_from(DOCUMENTS)))
    whole = schema(document["scenario"])
    section = document
    while True:
        keys = list(section) if isinstance(section, dict) else range(len(section))
        key = data.draw(st.sampled_from(keys))
        if isinstance(section[key], dict | list) and section[key] and data.draw(st.booleans()):
            section = section[key]
            continue
        if data.draw(st.booleans()):
            section[key] = data.draw(ODD)
        elif isinstance(section, dict):
            section[data.draw(st.sampled_from(["new", key]))] = section.pop(key)
        else:
            section.append(section[key])
        break
    assert not fits(whole, document) or Draft202012Validator(whole).is_valid(document), json.dumps(
        document
    )


@pytest.mark.parametrize(
    ("part", "value"),
    [
        ({"type": ["string", "number"]}, 1),
        ({"enum": [1, True]}, True),
        ({"const": 1}, True),
        ({"minimum": 1}, 0),
        ({"type": "integer", "multipleOf": 2}, 3),
        ({"$ref": "#/$defs/other"}, 3),
        ({"type": "array", "uniqueItems": True}, [1, 1]),
    ],
)
def test_what_it_cannot_tell_is_left_to_the_validator(part, value):
    assert not fits(part, value)
