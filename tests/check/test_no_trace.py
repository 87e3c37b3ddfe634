"""Nothing that a person can write into a recipe, or behind --set, ends in a trace."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from runner.check.validate import examine
from runner.recipe.overrides import from_options
from runner.recipe.recipe import Override
from runner.tools.problem import Problem, Stop
from tests.conftest import RECIPES, ROOT

VALUES = st.sampled_from(
    ["", "0", "-1", "1e400", "99999999999999999999", ".nan", "yes", "null", "[]", "[1, [2]]", "{}", "{a: {b: 1}}", "'x'", "*x", "&x 1",
     "!!python/object:os.system x", "|", "> text", "2e-5", "a: b", "#", "\t", "[", '"', "../../etc/passwd", "/", "ä" * 400, "\\x00", "?", "- 1"]
)  # fmt: skip


@st.composite
def mangled(draw, text: str) -> str:
    """A recipe's text with some lines taken out, doubled, moved in or given another value."""
    lines = text.splitlines()
    for _ in range(draw(st.integers(1, 4))):
        at = draw(st.integers(0, len(lines) - 1))
        kind = draw(st.sampled_from(["delete", "double", "value", "indent", "cut", "swap"]))
        line = lines[at]
        if kind == "delete":
            del lines[at]
        elif kind == "double":
            lines.insert(at, line)
        elif kind == "value" and ":" in line:
            lines[at] = f"{line.split(':', 1)[0]}: {draw(VALUES)}"
        elif kind == "indent":
            lines[at] = draw(st.sampled_from(["  ", "\t", "    ", ""])) + line.lstrip()
        elif kind == "cut":
            lines = lines[: at + 1]
        else:
            other = draw(st.integers(0, len(lines) - 1))
            lines[at], lines[other] = lines[other], lines[at]
        if not lines:
            break
    return "\n".join(lines)


@pytest.mark.parametrize("path", RECIPES, ids=lambda path: path.stem)
@given(data=st.data())
@settings(
    max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
def test_a_mangled_recipe_gives_problems_and_never_a_trace(path, tmp_path, data):
    text = data.draw(mangled(path.read_text("utf-8")))
    copy = tmp_path / "recipe.yaml"
    copy.write_text(text, "utf-8")
    data_dir = tmp_path / "data"
    if not data_dir.exists():
        os.symlink(ROOT / "recipes" / "data", data_dir)
    for problem in examine(copy):
        assert isinstance(problem, Problem) and problem.message
        assert str(problem)


@given(
    st.sampled_from(["train", "train.epochs", "data.question", "machines.nodes", "openshift.claims", "openshift.claims.0", "openshift.claims.9.name",
                     "scenario", "name.x", "demo.questions.0", "model.base", "advanced.axolotl", "advanced.axolotl.max_steps", "advanced.axolotl.fsdp_config", "advanced.x", "0", "train.0", "openshift.claims.name"]),
    VALUES | st.text(max_size=400),
)  # fmt: skip
@settings(max_examples=300, deadline=None)
def test_no_set_option_ends_in_a_trace(setting, value):
    try:
        problems = examine(ROOT / "recipes" / "survival.yaml", from_options([f"{setting}={value}"]))
    except Stop as stop:
        assert stop.text
        return
    assert all(str(problem) for problem in problems)


@given(st.text(max_size=40), VALUES)
@settings(max_examples=100, deadline=None)
def test_no_name_of_a_setting_ends_in_a_trace(setting, value):
    test_no_set_option_ends_in_a_trace.hypothesis.inner_test(setting, value)


@pytest.mark.parametrize(
    "option", ["train.\u00b2=1", "data.system_prompt=\udcff", "limits.time=" + "9" * 400 + " s"]
)
def test_an_odd_option_is_answered(option):
    setting, _, value = option.partition("=")
    test_no_set_option_ends_in_a_trace.hypothesis.inner_test(setting, value)


@pytest.mark.parametrize("option", ["", "=", "=1", "a", ".", "..=1", ".a=1", "a.=1", "a..b=1"])
def test_a_set_option_without_a_setting_is_wrong_use(option):
    try:
        changes = from_options([option])
    except Stop as stop:
        assert stop.code == 2
        return
    problems = examine(Path(ROOT / "recipes" / "survival.yaml"), changes)
    assert problems


@pytest.mark.parametrize("place", ["file", "data.path", "model.base", "serve.recipes"])
def test_a_name_that_is_too_long_for_a_file_is_said_so(place, tmp_path):
    long, file = "x" * 300, tmp_path / "demo.yaml"
    shutil.copy(ROOT / "recipes" / "minimal" / "lyrics-demo.yaml", file)
    values = {
        "data.path": {"path": long, "songs": {"lyrics": "text"}},
        "model.base": f"./{long}",
        "serve.recipes": [long],
    }
    name = place if place != "data.path" else "data"
    changes = [] if place == "file" else [Override(name, None, values[place], "")]
    found = examine(tmp_path / long if place == "file" else file, changes)
    problem = next(one for one in found if long in f"{one.file} {one.message}")
    assert "File name too long" in problem.message or (
        place == "model.base" and "no folder" in problem.message
    )
