"""Options and helpers that several commands share."""

import os
import shlex
import shutil
import sys
import textwrap
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from importlib import import_module
from inspect import getfile, signature
from itertools import zip_longest
from pathlib import Path
from types import NoneType
from typing import Any, TypeVar, get_args, get_origin

import click
from click.shell_completion import CompletionItem

from runner import catalog, scenarios
from runner.check import by_schema
from runner.check.validate import load, override, valid
from runner.recipe.overrides import from_options
from runner.recipe.reading import read
from runner.recipe.recipe import Override, Recipe
from runner.tools import packaged
from runner.tools.problem import Problem, Stop, counted
from runner.tools.text import Styled, printable

# Completes a word in a shell: files, settings or the catalog's names.
Completing = Callable[[click.Context, click.Parameter, str], list[CompletionItem]]
Command = TypeVar("Command", bound=Callable[..., object])


def _words(begun: str, names: Iterable[str]) -> list[CompletionItem]:
    """The names that begin with `begun`, in any case; if none does, those that contain it."""
    all_names = list(names)
    low = begun.lower()
    beginning = [word for word in all_names if word.lower().startswith(low)]
    return [
        CompletionItem(word)
        for word in beginning or [word for word in all_names if low in word.lower()]
    ]


def complete_recipe(
    context: click.Context, parameter: click.Parameter, begun: str
) -> list[CompletionItem]:
    """Files and folders, which the shell completes itself."""
    return [CompletionItem(begun, type="file")]


def complete_starter(
    context: click.Context, parameter: click.Parameter, begun: str
) -> list[CompletionItem]:
    return _words(begun, packaged.named()) or complete_recipe(context, parameter, begun)


def _completing(names: Callable[[], Iterable[str]]) -> Completing:
    return lambda context, parameter, begun: _words(begun, names())


complete_gpu, complete_model = _completing(catalog.gpu_names), _completing(catalog.model_ids)
OFFERED = {
    "gpus": catalog.gpu_names,
    "models": catalog.model_ids,
}  # the catalog's values, by a schema's `x-offers`


def complete_setting(
    context: click.Context, parameter: click.Parameter, begun: str
) -> list[CompletionItem]:
    """Settings of the recipe that the command line names, or of all scenarios; after a `=`, the
    setting's values."""
    having = _scenarios(context)
    name, equals, value = begun.partition("=")
    if not equals:
        if parameter.name == "sets":
            ending = "="
        else:
            ending = ""
        settings = (
            f"{setting_name}{ending}"
            for scenario in having
            for setting_name, _ in by_schema.settings(scenario)
        )
        return _words(begun, dict.fromkeys(settings))
    parts = [part for scenario in having if (part := by_schema.part(scenario, name))]
    of_kind = {"boolean": ("true", "false")}
    values = (
        choice
        for part in parts
        for choice in part.get("enum", of_kind.get(str(part.get("type")), ()))
    )
    offered = next(
        (OFFERED[part["x-offers"]]() for part in parts if part.get("x-offers") in OFFERED), None
    )
    if offered is None:
        offered = list(dict.fromkeys(map(str, values)))
    return [CompletionItem(f"{name}={item.value}") for item in _words(value, offered)]


def _scenarios(context: click.Context) -> Sequence[str]:
    """The scenario of the recipe, or the starter, that the command line names; all if it names no
    readable one."""
    # `args` has the words that click could not assign yet, because the option before them lacks its
    # value.
    arguments = [context.params.get("path"), context.params.get("source"), *context.args]
    for file in (packaged.named().get(str(word), Path(str(word))) for word in arguments if word):
        with suppress(Stop, OSError):
            if (
                file.is_file()
                and (scenario := read(file).data.get("scenario")) in scenarios.names()
            ):
                return [scenario]
    return scenarios.names()


OPTIONS = "options.toml"  # beside the modules of commands; ours explains its entries
recipe_path = click.argument(
    "path", metavar="RECIPE", shell_complete=complete_recipe
)  # for commands without a table


def command(function: Callable[..., object]) -> click.Command:
    """The click command of a function, with its name, and the arguments and options of
    `with_options`. A `_` at the end, which keeps a word of Python's free, is not in the name."""
    return click.command(function.__name__.rstrip("_").replace("_", "-"))(with_options(function))


def with_options(function: Command) -> Command:
    """Gives a command's function the arguments and options of its parameters, in their order, for
    click. The signature says their types: `bool` is a flag, a tuple is repeatable, and what may be
    None can be left out. The tables `options.toml`, here and beside its module, say the rest.
    Raises LookupError for a parameter that they do not have."""
    ours = _beside(Path(__file__))
    own_tables = _beside(Path(getfile(function)))
    layers = (ours["shared"], own_tables.get("shared", {}), own_tables.get(function.__name__, {}))
    for function_parameter in reversed([*signature(function, eval_str=True).parameters.values()]):
        if function_parameter.kind is not function_parameter.VAR_KEYWORD:
            entry: dict[str, Any] = {}
            for layer in layers:
                entry |= layer.get(function_parameter.name, {})
            if not entry:
                raise LookupError(
                    f"{OPTIONS} lacks the parameter `{function_parameter.name}` of the command `{function.__name__}`."
                )
            parameter(function_parameter.name, function_parameter.annotation, **entry)(function)
    return function


def _beside(module: Path) -> Mapping[str, Any]:
    file = module.with_name(OPTIONS)
    if file.is_file():
        return packaged.toml(str(file), OPTIONS)
    return {}


def parameter(
    name: str,
    of: object,
    *,
    argument: bool = False,
    option: str = "",
    choices: str | Sequence[str] = (),
    range: Sequence[Any] = (),
    complete: str = "",
    **entries: Any,
) -> Callable[[Command], Command]:
    """Click's argument or option for a parameter. of: its type in the signature; entries: those
    that click knows itself."""
    several = get_origin(of) is tuple
    optional = NoneType in get_args(of)
    if several or optional:
        value_type = get_args(of)[0]
    else:
        value_type = of
    if choices:
        entries["type"] = click.Choice(_named(choices) if isinstance(choices, str) else choices)
    elif range:
        entries["type"] = {int: click.IntRange, float: click.FloatRange}[value_type](*range)
    else:
        if value_type is Path:
            entries["type"] = click.Path(dir_okay=False, path_type=Path)
        else:
            entries["type"] = value_type
    if complete:
        entries["shell_complete"] = _named(complete)
    else:
        entries["shell_complete"] = None
    if argument:
        if optional and "metavar" in entries:
            entries["metavar"] = f"[{entries['metavar']}]"
        return click.argument(
            name,
            nargs=-1 if several else 1,
            required=not optional and "default" not in entries,
            **entries,
        )
    if value_type is bool:
        entries["is_flag"] = True
    entries["required"] = value_type is not bool and not (
        several or optional or "default" in entries
    )
    flags = option.split() or [f"--{name.replace('_', '-')}"]
    return click.option(*flags, name, multiple=several, **entries)


def _named(dotted: str) -> Any:
    """The object called MODULE.NAME."""
    module, _, name = dotted.rpartition(".")
    return getattr(import_module(module), name)


def set_words(sets: tuple[str, ...]) -> list[str]:
    """The same `--set` options as words of another command."""
    return [word for change in sets for word in ("--set", change)]


def short(label: str) -> str:
    """A GPU's label without its maker."""
    return label.removeprefix("NVIDIA-")


def say(text: str = "", err: bool = False) -> None:
    """Prints a text; control characters are removed, except our own."""
    click.echo(text if isinstance(text, Styled) else printable(text), err=err)


# The least width of a last column that is wrapped beside the others, and of other columns, in
# characters.
BESIDE, KEEPS = 30, 12


def table(rows: Sequence[Sequence[str]], movable: Collection[str] = ()) -> None:
    """Prints rows in columns. In a narrow terminal the columns `movable`, else the last, move
    under the others."""
    titles = rows[0]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    # A narrow terminal would break lines anywhere; piped output keeps one line for each row.
    if sys.stdout.isatty():
        columns = max(40, shutil.get_terminal_size().columns)
    else:
        columns = sys.maxsize
    room = columns - sum(width + 2 for width in widths[:-1])
    last = len(widths) - 1
    if room < widths[last]:
        moved = [index for index, title in enumerate(titles) if title in movable]
    else:
        moved = []
    if not moved and room < min(BESIDE, widths[last]):
        moved = [last]
    widths[last] = min(widths[last], room)
    firsts = [index for index in range(len(widths)) if index not in moved]
    while sum(widths[index] + 2 for index in firsts) - 2 > columns:
        # Names in the first column are copied, so they are wrapped last.
        widths[
            max(firsts, key=lambda index: (index > 0 and widths[index] > KEEPS, widths[index]))
        ] -= 1
    for row in rows:
        several = zip_longest(
            *(textwrap.wrap(row[index], max(1, widths[index])) for index in firsts), fillvalue=""
        )
        padded = [
            [cell.ljust(widths[index]) for cell, index in zip(cells, firsts, strict=True)]
            for cells in several
        ]
        moved_text = "".join(row[index] for index in moved)
        if len(moved) > 1:
            if row is not titles:
                moved_text = " · ".join(f"{titles[index]}: {row[index]}" for index in moved)
            else:
                moved_text = ""
        elif len(padded) == 1 and len(moved_text) <= room:
            padded[0].append(moved_text)
            moved_text = ""
        for cells in padded:
            say("  ".join(cells).rstrip())
        if moved_text:
            say(textwrap.fill(moved_text, columns, initial_indent="    ", subsequent_indent="    "))


# The commands about a recipe that have no `--set`, and those that have `--run`.
_WITHOUT_SET = {"edit", "export", "push", "register", "report"}
_WITH_RUN = {"ask", "chat", "compare", "evaluate", "gate", "merge", "promote", "serve"}


def end(outcome: str, verb: str, *then: object, same: bool = True) -> None:
    """The last two lines of a command, for people: the result, and the next command to type. They
    go to standard error, because programs read the output. same: with this command's `--set` and
    `--run`, if it is about the same recipe."""
    context = click.get_current_context(silent=True)
    arguments = [verb, *map(str, then)]
    options = context.params if context else {}
    shared = []
    for path in (options.get("path"), *options.get("paths", ())):
        if path in arguments[1:]:
            shared.append(path)
    if same and shared and verb not in _WITHOUT_SET:
        run: tuple[str, ...] = ()
        if options.get("run_dir") and verb in _WITH_RUN:
            run = ("--run", options["run_dir"])
        position = arguments.index(shared[0], 1) + 1
        arguments[position:position] = [*set_words(options.get("sets", ())), *run]
    command = " ".join(word if word.isupper() else shlex.quote(word) for word in arguments)
    say(f"\n{outcome}\nNext: recipe {command}", err=True)


def open_recipe(
    path: str,
    sets: tuple[str, ...],
    *,
    environment: bool = False,
    more: list[Override] | None = None,
    look: bool = True,
    aside: bool = False,
) -> tuple[Recipe, list[Override]]:
    """The recipe after the changes of the environment (if `environment` is true), `--set` and
    `more`, in this order. Prints what changed. look: whether to read the files that it names.
    aside: print on standard error."""
    wished = os.environ if environment else {}
    recipe, effective, notes = load(path, [*from_options(sets), *(more or [])], wished, look)
    _print_number_of_notes([path, *set_words(sets)], notes)
    for change in effective:
        say(f"{change}", err=aside)
    return recipe, effective


def _print_number_of_notes(words: Sequence[str], problems: Iterable[Problem]) -> None:
    """Prints how many notes on lines of the recipe there are, which every command would repeat, and
    the others whole. words: of `recipe check`, which shows all."""
    on_lines = 0
    for problem in problems:
        if problem.line:
            on_lines += 1
        else:
            print_notes([problem])
    if on_lines:
        say(f"`recipe check {shlex.join(words)}` has {counted(on_lines, 'note')}.\n", err=True)


def print_notes(problems: Iterable[Problem]) -> None:
    for problem in problems:
        if problem.severity == "note":
            say(f"{problem}\n", err=True)


def with_section(recipe: Recipe, section: str, origin: str) -> Recipe:
    """The recipe with a section that it may lack, if its scenario has one. origin: the option
    that needs it."""
    if section in recipe.settings or not recipe.settings.knows(section):
        return recipe
    document, _ = override(recipe.document, [Override(section, None, {}, by=origin)])
    return valid(document, look=False)[0]
