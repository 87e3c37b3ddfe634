"""A plan that was saved as JSON, for pods and for commands that come later."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from runner.plan import Plan, no_section
from runner.scenarios import section_schema
from runner.tools.problem import Stop
from runner.tools.settings import Section, Settings


def from_json(text: str) -> Plan:
    """The plan that `Plan.as_json` wrote. Raises ValueError if the text is not a plan."""
    from pydantic import TypeAdapter

    plan: Plan = TypeAdapter(Plan).validate_json(text)
    return replace(
        plan,
        site=_settings(plan.site, "openshift"),
        nodes=_settings(plan.nodes, "nodes"),
        code_from_git=_settings(plan.code_from_git, "image", "code_from_git"),
    )


def _settings(values: Section | None, *path: str) -> Any:
    """A recipe's section as settings, which its schema types. path: of the section in recipes."""
    if values is None:
        return None
    if not values:
        return no_section()
    return Settings(values, section_schema(*path))


def read_plan(file: Path, form: Callable[[str], Plan] = from_json) -> Plan:
    """The plan in a file. form: parses its text. Raises Stop if the file is missing or broken."""
    try:
        return form(file.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        hint = "In a pod: render and submit the recipe again. On plain machines: start the scripts again."
        raise Stop(f"{file} is missing or broken: {error}", hint) from None
