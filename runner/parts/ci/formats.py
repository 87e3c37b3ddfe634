"""The verdict of `recipe check` for other programs, by a template each beside this file: GitHub's
lines, SARIF, JUnit and GitLab's code quality."""

import json
import re
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from urllib.parse import quote

from runner import __version__
from runner.check.batch import CheckReport, Format
from runner.recipe.reading import STANDARD_INPUT
from runner.tools.problem import Problem
from runner.tools.text import json_text, template

GITHUB, GITLAB = "github.txt.jinja", "gitlab.json.jinja"
# Characters that XML 1.0 cannot contain (its section 2.2).
_NO_XML = "[^\t\n\r\u0020-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]"


def _relative(file: str) -> str:
    """The path of a file in its repository: with `/`, and without `./`."""
    return file.replace("\\", "/").removeprefix("./")


def _rules(problems: Sequence[Problem]) -> list[str]:
    """The rules that are broken, sorted; each once."""
    return sorted({problem.rule for problem in problems})


def _in_words(rule: str) -> str:
    """A rule for people: `data: column missing`."""
    section, _, check = rule.partition("/")
    return f"{section}: {check.replace('-', ' ')}"


def _xml(text: str) -> str:
    """A text in XML, also in an attribute, where a line's end would become a blank."""
    from html import (
        escape,
    )  # late, because every check loads this module for the names of its formats

    return "".join(
        f"&#{ord(character)};" if character in "\r\n\t" else character
        for character in escape(re.sub(_NO_XML, "\ufffd", text))
    )


def written(name: str, files: Sequence[str], verdict: CheckReport) -> str:
    """The text of a template. names: the tests of JUnit."""
    filters = {
        "json": json.dumps,
        "relative": _relative,
        "quoted": quote,
        "rules": _rules,
        "in_words": _in_words,
    }
    form = template(Path(__file__).with_name(name), **filters, xml=_xml)
    names = []
    for file in files:
        names.append(STANDARD_INPUT if file == "-" else file)
    names += dict.fromkeys(
        problem.file for problem in verdict.problems if problem.file not in names
    )
    text = form.render(
        problems=verdict.problems,
        fingerprints=verdict.fingerprints,
        names=names,
        version=__version__,
    ).rstrip("\n")
    if ".json." in name:
        return json_text(json.loads(text))
    if ".xml." in name:
        from xml.etree import ElementTree as Xml

        root = Xml.fromstring(text)
        Xml.indent(root)
        return Xml.tostring(root, encoding="unicode", xml_declaration=True)
    return text


def formats() -> Mapping[str, Format]:
    """The formats of `recipe check --format` beside text and JSON."""
    names = {
        "github": GITHUB,
        "sarif": "sarif.json.jinja",
        "junit": "junit.xml.jinja",
        "gitlab": GITLAB,
    }
    return {form: partial(written, name) for form, name in names.items()}
