"""Every message that code names is in a table, with a place for each of its words; and no table has
more."""

from __future__ import annotations

import ast
import re
import tomllib
from string import Formatter

from tests.conftest import ROOT

TABLES = sorted((ROOT / "runner").rglob("messages.toml"))


def places(text: str) -> set[str]:
    """The words that a text has a place for."""
    return {
        re.split(r"[.\[]", field)[0]
        for _, field, _, _ in Formatter().parse(text)
        if field is not None
    }


def test_code_and_tables_of_messages_agree():
    written = {
        f"{table.parent.name}.{name}": (table, set().union(*map(places, message.values())))
        for table in TABLES
        for name, message in tomllib.loads(table.read_text("utf-8")).items()
    }
    named: dict[str, set[str]] = {}
    for file in sorted((ROOT / "runner").rglob("*.py")):
        for node in ast.walk(ast.parse(file.read_text("utf-8"))):
            if (
                isinstance(node, ast.Call)
                and isinstance(node.func, ast.Name)
                and node.func.id == "worded"
            ):
                name = ast.literal_eval(node.args[0])
                assert name not in named, f"{file}: `{name}` is used twice"
                assert name in written, f"{file}: no table has `{name}`"
                assert written[name][0].parent in file.parents, (
                    f"{file}: `{name}` belongs to another room"
                )
                named[name] = {word.arg for word in node.keywords}
    assert len(named) > 100
    assert {name: words for name, (_, words) in written.items()} == named
