"""`recipe check` for programs: SARIF, JUnit, GitLab's code quality and GitHub's lines, of the same
problems; and the quiet ways."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree

import pytest

from runner.check import batch
from runner.check.batch import CheckReport, judged
from runner.commands import check, cli
from runner.parts.ci import formats
from runner.recipe.overrides import from_options
from runner.tools.problem import Problem
from tests.conftest import RECIPES, ROOT

GOOD = ROOT / "recipes" / "minimal" / "lora.yaml"
ERROR = Problem(
    "a b/ü.yaml",
    3,
    5,
    "`epocs` is not a setting, 100 %.",
    "Did you mean `epochs`?",
    "    epocs: 3",
    5,
)
NOTE = Problem("good.yaml", 2, 1, "This is late: a, b.", severity="note", source="x: 1")
WHOLE = Problem("gone.yaml", 0, 0, "There is no such file.")
OPTION = Problem("--set train.epochs=-3", 0, 0, "`epochs` must be more than 0.\nReally.")
FILES = ("a b/ü.yaml", "good.yaml", "fine.yaml", "gone.yaml")
VERDICT = CheckReport(4, (ERROR, NOTE, WHOLE, OPTION))


def test_sarif_says_where_each_problem_is_in_characters():
    (run,) = json.loads(formats.formats()["sarif"](FILES, VERDICT))["runs"]
    known = {rule["id"] for rule in run["tool"]["driver"]["rules"]}
    results = run["results"]
    assert [one["level"] for one in results] == ["error", "note", "error", "error"]
    assert {one["ruleId"] for one in results} == known
    places = [one.get("locations", [{}])[0].get("physicalLocation") for one in results]
    assert places[0] == {
        "artifactLocation": {"uri": "a%20b/%C3%BC.yaml"},
        "region": {"startLine": 3, "startColumn": 5, "endColumn": 10},
    }
    assert places[2] == {"artifactLocation": {"uri": "gone.yaml"}} and places[3] is None
    assert run["columnKind"] == "unicodeCodePoints"
    assert (
        results[0]["message"]["text"] == "`epocs` is not a setting, 100 %. Did you mean `epochs`?"
    )


def test_a_fingerprint_stays_when_lines_are_added_above():
    def mark(problem: Problem) -> str:
        (run,) = json.loads(formats.formats()["sarif"](FILES, CheckReport(1, (problem,))))["runs"]
        return run["results"][0]["partialFingerprints"]["recipe/v1"]

    moved = Problem(ERROR.file, 9, 7, ERROR.message, ERROR.hint, f"  {ERROR.source}", 5)
    assert mark(moved) == mark(ERROR) != mark(NOTE)


def test_junit_has_a_test_for_each_recipe_and_one_for_the_command_line():
    root = ElementTree.fromstring(formats.formats()["junit"](FILES, VERDICT).encode())
    cases = {case.get("name"): case for case in root.iter("testcase")}
    assert list(cases) == [*FILES, OPTION.file]
    assert [name for name, case in cases.items() if case.find("failure") is not None] == [
        "a b/ü.yaml",
        "gone.yaml",
        OPTION.file,
    ]
    assert (root.get("tests"), root.get("failures"), root.get("errors")) == ("5", "3", "0")
    assert cases["a b/ü.yaml"].find("failure").text == str(ERROR)
    assert cases["good.yaml"].find("system-out").text == str(NOTE)


def test_junit_takes_what_xml_cannot_write():
    odd = Problem("x\x01.yaml", 1, 1, "`\x0b\ud800<&>` is no name.")
    root = ElementTree.fromstring(
        formats.formats()["junit"]([odd.file], CheckReport(1, (odd,))).encode()
    )
    assert root.find(".//failure").get("message") == "`\ufffd\ufffd<&>` is no name."


def test_gitlab_gets_a_line_of_every_problem():
    report = json.loads(formats.formats()["gitlab"](FILES, VERDICT))
    assert [
        (one["location"]["path"], one["location"]["lines"]["begin"], one["severity"])
        for one in report
    ] == [
        ("a b/ü.yaml", 3, "major"),
        ("good.yaml", 2, "info"),
        ("gone.yaml", 1, "major"),
        ("--set train.epochs=-3", 1, "major"),
    ]
    assert len({one["fingerprint"] for one in report}) == 4


def test_github_reads_a_line_of_each_problem_and_no_other_command():
    assert formats.formats()["github"](FILES, VERDICT).splitlines() == [
        "::error file=a b/ü.yaml,line=3,col=5::`epocs` is not a setting, 100 %25. Did you mean `epochs`?",
        "::notice file=good.yaml,line=2,col=1::This is late: a, b.",
        "::error file=gone.yaml::There is no such file.",
        "::error file=--set train.epochs=-3::`epochs` must be more than 0.%0AReally.",
    ]


@pytest.mark.parametrize("style", check.formats())
def test_every_form_is_whole_where_nothing_is_wrong(style, capsys):
    assert cli._code(["check", str(GOOD), "--format", style]) == 0
    said = capsys.readouterr().out
    assert (said == "") == (style == "github")
    if style == "junit":
        assert ElementTree.fromstring(said.encode()).get("tests") == "1"
    elif style != "github":
        json.loads(said)


def test_quiet_says_errors_alone(tmp_path, capsys):
    assert cli._code(["check", str(ROOT / "recipes" / "gemma.yaml"), "--quiet"]) == 0
    assert capsys.readouterr().out == ""
    assert (
        cli._code(
            ["check", str(ROOT / "recipes" / "gemma.yaml"), "--quiet", "--set", "train.epochs=-3"]
        )
        == 1
    )
    said = capsys.readouterr().out
    assert "--set train.epochs=-3" in said and "note:" not in said and "checked" not in said


def test_a_recipe_may_come_on_standard_input():
    def check(text: bytes, *options: str) -> subprocess.CompletedProcess[bytes]:
        command = [sys.executable, "-m", "runner", "check", "-", *options]
        return subprocess.run(
            command, input=text, capture_output=True, cwd=GOOD.parent, env={"PYTHONPATH": str(ROOT)}
        )

    done = check(GOOD.read_bytes())
    assert done.returncode == 0 and b"1 recipe checked, no problems." in done.stdout, (
        done.stdout + done.stderr
    )
    assert done.stderr.endswith(b"Next: recipe plan RECIPE\n"), (
        "no other command reads standard input"
    )
    done = check(
        GOOD.read_bytes().replace(b"scenario:", b"epocs: 3\nscenario:"), "--format", "junit"
    )
    root = ElementTree.fromstring(done.stdout)
    assert done.returncode == 1
    assert [case.get("name") for case in root.iter("testcase")] == ["standard input"]
    assert b"standard input:3:1: `epocs`" in done.stdout
    done = check(b"\xff\xfe")
    assert (
        done.returncode == 1
        and "standard input: This file is not UTF-8 text." in done.stdout.decode()
    )


def test_several_processes_find_what_one_does(monkeypatch):
    files = [str(path) for path in RECIPES]
    changes = from_options(["train.epochs=-3"])
    one, several = (judged(files, changes, jobs=jobs) for jobs in (1, 3))
    assert one == several and len(one.errors) >= len(files)
    monkeypatch.setattr(batch, "cores", lambda: 2)
    hundreds = [Path(f"{number}.yaml") for number in range(500)]
    assert [batch.processes(hundreds[:many]) for many in (1, 199, 200, 500)] == [1, 1, 2, 2]
    assert batch.processes([*hundreds, "-"]) == 1, (
        "another process cannot read this one's standard input"
    )
