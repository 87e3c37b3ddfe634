"""How dense Python code is: how much one line decides, and whether its names say what they hold.

    python tests/density.py runner                  the whole package
    python tests/density.py runner/plan.py          what you have just changed

A file's own figures above the bounds show where to look; `tests/test_house.py` holds the bounds for
the package. Size is measured in nodes of the syntax tree, which neither wrapping nor packing
changes.
"""

from __future__ import annotations

import ast
import io
import sys
import tokenize
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, fields
from pathlib import Path

# Words that name nothing of the field: a reader has to find out what they hold.
_WORDS = """
    how own what said told words whole there found given known one each kind made here way some every others other asked
    named stated shown seen both them it its such thing things at by under above below around about rest left lost gone
    mine meant taken beside first why like
"""
VAGUE_NAMES = frozenset(_WORDS.split())
COMPLEX = 15  # a function with more branches than this is read twice

Function = ast.FunctionDef | ast.AsyncFunctionDef
LAYOUT = {
    tokenize.COMMENT,
    tokenize.NL,
    tokenize.NEWLINE,
    tokenize.INDENT,
    tokenize.DEDENT,
    tokenize.ENDMARKER,
}
BRANCHES = (
    ast.If,
    ast.For,
    ast.AsyncFor,
    ast.While,
    ast.ExceptHandler,
    ast.IfExp,
    ast.Assert,
    ast.comprehension,
    ast.match_case,
)
CONTEXTS = (ast.Load, ast.Store, ast.Del)  # one of them belongs to every name; they are no code
COMPREHENSIONS = (ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)


@dataclass
class Counts:
    """What stands in some files, added up."""

    code_lines: int = 0  # without blank lines, comments and docstrings
    nodes: int = 0
    conditional_expressions: int = 0  # `a if b else c`
    comprehensions: int = 0
    walruses: int = 0  # `:=`
    tuple_assignments: int = 0  # `a, b = x, y`
    functions: int = 0
    complex_functions: int = 0
    untyped_parameters: int = 0  # typed `Any`, or as a container of `Any`
    names: int = 0  # parameters and variables of functions; each counts once a function
    vague_names: int = 0

    def __add__(self, other: Counts) -> Counts:
        return Counts(
            *(getattr(self, field.name) + getattr(other, field.name) for field in fields(Counts))
        )


@dataclass(frozen=True)
class Density:
    """The measures of some code. All of them are shares, so that more code in the same style
    changes none."""

    nodes_per_line: float
    conditional_expressions_per_1000_lines: float
    comprehensions_per_1000_lines: float
    walruses_per_1000_lines: float
    tuple_assignments_per_1000_lines: float
    vague_names_percent: float
    complex_functions_per_1000: float
    untyped_parameters_per_1000_functions: float


def count_files(files: Iterable[Path]) -> Counts:
    return sum((count_source(file.read_text("utf-8")) for file in files), Counts())


def count_source(source: str) -> Counts:
    tree = ast.parse(source)
    counts = Counts(code_lines=_count_code_lines(source, tree))
    for node in ast.walk(tree):
        if not isinstance(node, CONTEXTS):
            _count_node(node, counts)
    return counts


def density(counts: Counts) -> Density:
    lines = max(counts.code_lines, 1)
    functions = max(counts.functions, 1)
    return Density(
        nodes_per_line=counts.nodes / lines,
        conditional_expressions_per_1000_lines=1000 * counts.conditional_expressions / lines,
        comprehensions_per_1000_lines=1000 * counts.comprehensions / lines,
        walruses_per_1000_lines=1000 * counts.walruses / lines,
        tuple_assignments_per_1000_lines=1000 * counts.tuple_assignments / lines,
        vague_names_percent=100 * counts.vague_names / max(counts.names, 1),
        complex_functions_per_1000=1000 * counts.complex_functions / functions,
        untyped_parameters_per_1000_functions=1000 * counts.untyped_parameters / functions,
    )


def _count_node(node: ast.AST, counts: Counts) -> None:
    counts.nodes += 1
    if isinstance(node, ast.IfExp):
        counts.conditional_expressions += 1
    elif isinstance(node, COMPREHENSIONS):
        counts.comprehensions += 1
    elif isinstance(node, ast.NamedExpr):
        counts.walruses += 1
    elif isinstance(node, ast.Assign):
        counts.tuple_assignments += _assigns_a_tuple(node)
    elif isinstance(node, Function):
        _count_function(node, counts)


def _count_function(function: Function, counts: Counts) -> None:
    names = _bound_names(function)
    counts.functions += 1
    counts.complex_functions += _complexity(function) > COMPLEX
    counts.untyped_parameters += sum(_is_typed_any(argument) for argument in _arguments(function))
    counts.names += len(names)
    counts.vague_names += len(names & VAGUE_NAMES)


def _assigns_a_tuple(node: ast.Assign) -> bool:
    return isinstance(node.targets[0], ast.Tuple) and isinstance(node.value, ast.Tuple)


def _complexity(function: Function) -> int:
    """McCabe's: 1, and 1 for each branch and for each further operand of `and` and `or`."""
    branches = 1
    for node in ast.walk(function):
        if isinstance(node, BRANCHES):
            branches += 1
        elif isinstance(node, ast.BoolOp):
            branches += len(node.values) - 1
    return branches


def _arguments(function: Function) -> Iterator[ast.arg]:
    arguments = function.args
    yield from (*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs)
    if arguments.vararg:
        yield arguments.vararg
    if arguments.kwarg:
        yield arguments.kwarg


def _is_typed_any(argument: ast.arg) -> bool:
    if argument.annotation is None:
        return False
    return any(
        isinstance(node, ast.Name) and node.id == "Any" for node in ast.walk(argument.annotation)
    )


def _bound_names(function: Function) -> set[str]:
    names: set[str] = set()
    for node in ast.walk(function):
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            names.add(node.id)
        elif isinstance(node, ast.arg):
            names.add(node.arg)
    return names - {"self", "cls"}


def _count_code_lines(source: str, tree: ast.Module) -> int:
    lines: set[int] = set()
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type not in LAYOUT:
            lines.update(range(token.start[0], token.end[0] + 1))
    return len(lines - _docstring_lines(tree))


def _docstring_lines(tree: ast.Module) -> set[int]:
    lines: set[int] = set()
    for node in ast.walk(tree):
        if not isinstance(node, ast.Module | ast.ClassDef | Function):
            continue
        if ast.get_docstring(node, clean=False) is not None:
            docstring = node.body[0]
            lines.update(range(docstring.lineno, (docstring.end_lineno or docstring.lineno) + 1))
    return lines


def main(paths: list[str]) -> None:
    if not paths:
        sys.exit(__doc__)
    files: list[Path] = []
    for path in map(Path, paths):
        files += sorted(path.rglob("*.py")) if path.is_dir() else [path]
    counts = count_files(files)
    print(
        f"{counts.code_lines:,} lines of code, {counts.nodes:,} nodes, {counts.functions:,} functions"
    )
    for name, value in vars(density(counts)).items():
        print(f"{value:8.1f}  {name.replace('_', ' ')}")


if __name__ == "__main__":
    main(sys.argv[1:])
