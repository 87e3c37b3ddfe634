"""`recipe check` for programs: SARIF, JUnit, GitLab's code quality and GitHub's lines, of the same
problems; and the quiet ways."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tomllib
from dataclasses import replace
from importlib import import_module
from itertools import chain
from pathlib import Path
from xml.etree import ElementTree

import pytest

from runner import parts, scenarios
from runner.check import batch, rules, schema_errors
from runner.check.batch import CheckReport, judged
from runner.check.validate import as_written
from runner.commands import check, cli
from runner.data import songs
from runner.parts.ci import formats
from runner.recipe import reading
from runner.recipe.overrides import from_options
from runner.scenarios.shared.contradictions import check_name_of_row
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
    setting="train",
    check="setting-unknown",
)
NOTE = Problem(
    "good.yaml",
    2,
    1,
    "This is late: a, b.",
    severity="note",
    source="x: 1",
    setting="openshift.deadline_hours",
    check="deadline-too-early",
)
WHOLE = Problem("gone.yaml", 0, 0, "There is no such file.")
OPTION = Problem("--set train.epochs=-3", 0, 0, "`epochs` must be more than 0.\nReally.")
FILES = ("a b/ü.yaml", "good.yaml", "fine.yaml", "gone.yaml")
VERDICT = CheckReport(4, (ERROR, NOTE, WHOLE, OPTION))


def test_sarif_says_where_each_problem_is_in_characters():
    (run,) = json.loads(formats.formats()["sarif"](FILES, VERDICT))["runs"]
    known = [rule["id"] for rule in run["tool"]["driver"]["rules"]]
    results = run["results"]
    assert [one["level"] for one in results] == ["error", "note", "error", "error"]
    assert [one["ruleId"] for one in results] == [
        "train/setting-unknown",
        "openshift/deadline-too-early",
        "recipe/other",
        "recipe/other",
    ]
    assert [known[one["ruleIndex"]] for one in results] == [one["ruleId"] for one in results]
    assert len(known) == len(set(known)) == 3
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


def test_a_fingerprint_stays_when_its_line_moves_or_the_message_is_worded_differently():
    moved = replace(ERROR, line=9, column=7, source=f"  {ERROR.source}", message="Other words.")
    report = CheckReport(1, (ERROR,))
    assert report.fingerprints == CheckReport(1, (moved,)).fingerprints
    others = (NOTE, replace(ERROR, check="other"), replace(ERROR, source="epocs: 4"))
    assert len({*CheckReport(4, (ERROR, *others)).fingerprints}) == 4
    assert len({*CheckReport(1, (ERROR, ERROR)).fingerprints}) == 2, "each of two is in a baseline"
    (run,) = json.loads(formats.formats()["sarif"](FILES, report))["runs"]
    (entry,) = json.loads(formats.formats()["gitlab"](FILES, report))
    (problem,) = json.loads(check.formats()["json"](FILES, report))["problems"]
    fingerprint = entry["fingerprint"]
    assert report.fingerprints == (fingerprint,)
    assert run["results"][0]["partialFingerprints"] == {"recipe/v1": fingerprint}
    assert problem["fingerprint"] == fingerprint


def test_the_rule_of_a_finding_is_the_same_in_every_format_and_wherever_its_line_is(tmp_path):
    data = tmp_path / "rows.csv"
    data.write_text("question,reply\na,b\nc,d\n")
    text = GOOD.read_text("utf-8")
    old = re.search(r"(?ms)^data:.*?(?=^\S|\Z)", text)[0]
    file = tmp_path / "x.yaml"
    found = []
    for lines_above in ("", "# a line\n\n"):
        new = 'data:\n  path: rows.csv\n  question: "[question]"\n  answer: "[answer]"\n'
        file.write_text(lines_above + text.replace(old, new), encoding="utf-8")
        report = judged([str(file)])
        entries = json.loads(formats.formats()["gitlab"]([str(file)], report))
        found.append({entry["check_name"]: entry["fingerprint"] for entry in entries})
        (problem,) = report.as_json()["problems"]
        assert problem["rule"] == "data/column-missing"
    assert found[0] == found[1] and "data/column-missing" in found[0]


@pytest.mark.parametrize(
    ("lines", "rule"),
    [
        ("epocs: 3", "recipe/setting-unknown"),
        ("train: {epochs: -3}", "train/out-of-range"),
        ("train: {epochs: many}", "train/wrong-kind"),
        ("train: {epocs: 3}", "train/setting-unknown"),
        ("train: {packing: sometimes}", "train/not-a-choice"),
        ("train: {lora_rank: 64, lora_alpha: 1}", "train/adapters"),
        ("train: {warmup_steps: 3, warmup_ratio: 0.1}", "train/warmup-steps-and-warmup-ratio"),
        ("train: {epochs: 3", "recipe/yaml"),
    ],
)
def test_a_rule_has_the_name_of_its_section_and_of_what_it_checks(tmp_path, lines, rule):
    text = GOOD.read_text("utf-8").replace("../data", str(ROOT / "recipes" / "data"))
    assert "\ntrain:" not in text
    file = tmp_path / "x.yaml"
    file.write_text(f"{text}{lines}\n", encoding="utf-8")
    assert rule in {problem.rule for problem in judged([str(file)]).problems}


@pytest.mark.parametrize(
    "change",
    [
        *("machines.gpu=NVIDIA-T4", "data.path=none.csv", "model.base=none/none", "train.epochs=x"),
        *("data.question=[x]", "machines.memory=1 GB", "data.chat_template=none", "epocs=3"),
    ],
)
def test_every_finding_about_the_starters_has_a_rule(change):
    problems = judged([str(path) for path in RECIPES], from_options([change])).problems
    assert problems
    for problem in problems:
        assert re.fullmatch("[a-z_]+/[a-z0-9-]+", problem.rule), problem
        assert not problem.rule.endswith("/other"), problem


@pytest.mark.golden
def test_the_names_of_checks_stay_the_same(golden_message):
    """People's baselines and filters have them: a function of RULES that gets another name changes
    one."""
    names = set(schema_errors.CHECKS.values())
    shared = rules._shared_rules(as_written(reading.read(GOOD)), look=True)
    for_settings = [
        import_module(part.module(name))
        for part in parts.found().values()
        for name in part.rules_of.values()
    ]
    for module in (songs, *for_settings):
        shared += (*module.RULES, *getattr(module, "FILE_RULES", ()))
    for rule in (*shared, *chain.from_iterable(map(scenarios.rules, scenarios.names()))):
        names.add(rules.check_name(rule))
    for file in (ROOT / "runner").rglob("*.py"):
        text = file.read_text("utf-8")
        names.update(re.findall(r'(?:check=|found_by\()"([a-z-]+)"', text))
    # The rule of a table has this name; its rows have their own.
    names.discard("rule")
    for table in (ROOT / "runner").rglob("contradictions.toml"):
        for row in tomllib.loads(table.read_text("utf-8")).get("rows", ()):
            for home in row.get("each", ("train",)):
                names.add(check_name_of_row(row, home))
    golden_message("\n".join(f"{name}." for name in sorted(names)))


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
    assert [one["check_name"] for one in report] == [problem.rule for problem in VERDICT.problems]


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


@pytest.mark.parametrize(
    ("fail_on", "code"), [((), 0), (("error",), 0), (("warning",), 0), (("note",), 1)]
)
def test_a_check_may_fail_on_notes(tmp_path, capsys, fail_on, code):
    text = GOOD.read_text("utf-8").replace("../data", str(ROOT / "recipes" / "data"))
    file = tmp_path / "x.yaml"
    file.write_text(text + "train: {lora_rank: 64, lora_alpha: 1}\n", encoding="utf-8")
    options = [f"--fail-on={severity}" for severity in fail_on]
    assert cli._code(["check", str(file), *options]) == code
    said = capsys.readouterr()
    assert ("1 note found. Fix it, then check again." in said.err) == bool(code)
    assert cli._code(["check", str(file), *options, "--format", "gitlab"]) == code
    capsys.readouterr()
    assert cli._code(["check", str(file), *options, "--quiet"]) == code
    assert ("note:" in capsys.readouterr().out) == bool(code), "what fails is shown"


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
        and "standard input:1:1: This file is not UTF-8 text." in done.stdout.decode()
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
