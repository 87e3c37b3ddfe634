"""Templates of Kubernetes' objects: their places have the names of the fields, and a word without a
place is an error."""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest
import yaml

from runner.parts.jobs import kubernetes, podspec
from runner.parts.jobs.pytorchjob import PYTORCH
from runner.tools.text import from_template
from tests.conftest import ROOT
from tests.parts.jobs.test_trainjob import SURVIVAL, plan_of

# The objects of Kubernetes; EvalHub's task is none.
TEMPLATES = [
    file
    for file in sorted((ROOT / "runner" / "parts").rglob("*.yaml"))
    if file.stem != "evalhub-task"
    and re.search(r"\$[a-z]\w*$", file.read_text("utf-8"), re.MULTILINE)
]
assert len(TEMPLATES) > 8
# Where a field's own name would say too little, or would stand for two things of one template.
OTHER_NAMES = {
    "securityContext": {"podSecurityContext", "containerSecurityContext"},
    "name": {"runtime", "base_name"},
    "storage": {"size"},
    "containerName": {"part"},
    "accessModes": {"mode"},
    "command": {"module"},
}


def places(value: object, key: str = "") -> Iterator[tuple[str, str]]:
    """Each place of a template with the field that it fills."""
    if isinstance(value, dict):
        for name, inner in value.items():
            yield from places(inner, name)
    elif isinstance(value, list):
        for inner in value:
            yield from places(inner, key)
    elif isinstance(value, str) and value.startswith("$"):
        yield key, value[1:].removesuffix("?")


@pytest.mark.parametrize("file", TEMPLATES, ids=lambda file: file.stem)
def test_a_place_has_the_name_of_the_field_that_it_fills(file):
    found = list(places(yaml.safe_load(file.read_text("utf-8"))))
    assert found
    for field, place in found:
        if re.fullmatch(r"[a-z][A-Za-z]*", field):  # others are names of annotations
            assert place in OTHER_NAMES.get(field, ()) or place == field or f"{place}s" == field, (
                f"{file.name}: `{field}: ${place}`"
            )


def test_a_word_without_a_place_is_an_error_and_does_not_disappear():
    plan = plan_of(SURVIVAL)
    (stage,) = [stage for stage in plan.stages if stage.trains]
    own = {"command": [], "env": [], "resources": {}}
    pod = podspec.pod(plan, {}, PYTORCH, [], stage.machines, own, terminationGracePeriodSeconds=60)
    assert pod["spec"]["terminationGracePeriodSeconds"] == 60
    with pytest.raises(
        TypeError, match=r"pod\.yaml has no place for terminationGracePeriodsSeconds"
    ):
        podspec.pod(plan, {}, PYTORCH, [], stage.machines, own, terminationGracePeriodsSeconds=60)
    with pytest.raises(TypeError, match=r"container\.yaml has no place for probe"):
        kubernetes.container(plan, PYTORCH, [], **own, probe={})


def test_a_forgotten_field_is_an_error_and_does_not_disappear():
    plan = plan_of(SURVIVAL)
    with pytest.raises(TypeError, match=r"container\.yaml needs env, resources$"):
        kubernetes.container(plan, PYTORCH, [], command=[])
    built = kubernetes.container(plan, PYTORCH, [], command=[], env=[], resources=None)
    assert "resources" not in built, "what is said to be none has no key"
    assert "ports" not in built, "a place with a question mark needs no field"


def test_a_text_refuses_a_word_without_a_blank_and_a_blank_without_a_word(tmp_path):
    file = tmp_path / "note.txt"
    file.write_text("Sent by $name.\n", encoding="utf-8")
    assert from_template(file, name="me") == "Sent by me.\n"
    with pytest.raises(TypeError, match="no place for nane"):
        from_template(file, name="me", nane="you")
    with pytest.raises(KeyError):
        from_template(file)
