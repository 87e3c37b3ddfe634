"""The verdict of `recipe check` for other programs: GitHub's lines, SARIF, JUnit and GitLab's code quality."""

import re
from collections.abc import Mapping, Sequence

from runner import __version__
from runner.check.batch import CheckReport, Format
from runner.recipe.reading import STANDARD_INPUT
from runner.tools.names import content_hash
from runner.tools.problem import Problem
from runner.tools.text import json_text

# The names of errors and notes in each format.
GITHUB = {"error": "error", "note": "notice"}
GITLAB = {"error": "major", "note": "info"}
SARIF_SCHEMA = "https://docs.oasis-open.org/sarif/sarif/v2.1.0/errata01/os/schemas/sarif-schema-2.1.0.json"
# Characters that XML 1.0 cannot contain (its section 2.2).
_NO_XML = re.compile("[^\t\n\r\u0020-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


def github(files: Sequence[str], verdict: CheckReport) -> str:
    """Lines that GitHub Actions shows beside the recipe's own (docs.github.com, "Workflow commands")."""

    def escaped(text: str) -> str:
        return text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")

    lines = []
    for problem in verdict.problems:
        file = escaped(_relative(problem.file)).replace(",", "%2C").replace(":", "%3A")
        place = f",line={problem.line},col={problem.column}" if problem.line else ""
        lines.append(f"::{GITHUB[problem.severity]} file={file}{place}::{escaped(_said(problem))}")
    return "\n".join(lines)


def sarif(files: Sequence[str], verdict: CheckReport) -> str:
    """SARIF 2.1.0, with columns that count characters. A problem of the command line has no location."""
    meanings = {"error": "What stops a recipe.", "note": "What is valid, but probably not intended."}
    rules = [
        {"id": f"recipe-{severity}", "shortDescription": {"text": words}, "defaultConfiguration": {"level": severity}}
        for severity, words in meanings.items()
    ]
    driver = {"name": "recipe-runner", "semanticVersion": __version__, "rules": rules}
    results = [
        {
            "ruleId": f"recipe-{problem.severity}",
            "level": problem.severity,
            "message": {"text": _said(problem)},
            **({} if problem.file.startswith("--set ") else {"locations": [{"physicalLocation": _physical(problem)}]}),
            "partialFingerprints": {"recipe/v1": _fingerprint(problem)},
        }
        for problem in verdict.problems
    ]
    run = {"tool": {"driver": driver}, "columnKind": "unicodeCodePoints", "results": results}
    return json_text({"$schema": SARIF_SCHEMA, "version": "2.1.0", "runs": [run]})


def _physical(problem: Problem) -> Mapping[str, object]:
    from urllib.parse import quote

    place: dict[str, object] = {"artifactLocation": {"uri": quote(_relative(problem.file))}}
    if problem.line:
        end = problem.column + problem.width
        place["region"] = {"startLine": problem.line, "startColumn": problem.column, "endColumn": end}
    return place


def junit(files: Sequence[str], verdict: CheckReport) -> str:
    """JUnit's XML: a test for each recipe, which fails with its errors and prints its notes."""
    from xml.etree import ElementTree as Xml

    def shown(text: str) -> str:
        return _NO_XML.sub("\ufffd", text)

    # Problems of the command line belong to no file, so they are a separate test.
    named = [STANDARD_INPUT if file == "-" else file for file in files]
    cases = [*named, *dict.fromkeys(problem.file for problem in verdict.problems if problem.file not in named)]
    of = {name: [problem for problem in verdict.problems if problem.file == name] for name in cases}
    failed = sum(any(problem.severity == "error" for problem in of[name]) for name in cases)
    counts = {"tests": str(len(cases)), "failures": str(failed), "errors": "0"}
    root = Xml.Element("testsuites", attrib={"name": "recipe check", **counts})
    suite = Xml.SubElement(root, "testsuite", attrib={"name": "recipe check", **counts})
    for name in cases:
        case = Xml.SubElement(suite, "testcase", classname="recipe check", name=shown(name), file=shown(name))
        errors, notes = ([one for one in of[name] if (one.severity == "error") is wrong] for wrong in (True, False))
        if errors:
            failure = Xml.SubElement(case, "failure", type="error", message=shown(errors[0].message))
            failure.text = shown("\n\n".join(map(str, errors)))
        if notes:
            Xml.SubElement(case, "system-out").text = shown("\n\n".join(map(str, notes)))
    Xml.indent(root)
    return Xml.tostring(root, encoding="unicode", xml_declaration=True)


def gitlab(files: Sequence[str], verdict: CheckReport) -> str:
    """GitLab's code quality (docs.gitlab.com, "Code Quality report format"), which needs a line for every problem."""
    return json_text(
        [
            {
                "description": _said(problem),
                "check_name": f"recipe-{problem.severity}",
                "fingerprint": _fingerprint(problem),
                "severity": GITLAB[problem.severity],
                "location": {"path": _relative(problem.file), "lines": {"begin": max(1, problem.line)}},
            }
            for problem in verdict.problems
        ]
    )


def formats() -> Mapping[str, Format]:
    """The formats of `recipe check --format` beside text and JSON."""
    return {form.__name__: form for form in (github, sarif, junit, gitlab)}


def _said(problem: Problem) -> str:
    return f"{problem.message} {problem.hint}".strip()


def _relative(file: str) -> str:
    """The path of a file in its repository: with `/`, and without `./`."""
    return file.replace("\\", "/").removeprefix("./")


def _fingerprint(problem: Problem) -> str:
    """The same text for the same problem, even after new lines above it."""
    return content_hash([problem.file, problem.message, problem.source.strip()], 32)
