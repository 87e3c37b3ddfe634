"""Rules about where rows come from: one source a section, and files that are there with the columns that are named."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from dataclasses import replace

from runner.check import columns
from runner.check.first_rows import first_rows
from runner.data import conversation_formats
from runner.recipe import templates
from runner.recipe.document import Path_
from runner.recipe.recipe import Recipe, Settings, sets_of
from runner.tools.files import text_files
from runner.tools.names import listed, nearest
from runner.tools.names import setting as name_of
from runner.tools.problem import Problem

SOURCES = ("path", "hub", "packed")
# What says where one data set comes from, and so means nothing beside a list of several.
OF_ONE = ("path", "hub", "packed", "revision", "subset", "split", "sample")


def one_source(recipe: Recipe) -> Iterator[Problem]:
    for home, data in recipe.data_sections:
        beside = [setting for setting in OF_ONE if data.get(setting)] if data.get("sets") else []
        for setting in beside:
            yield recipe.document.problem(
                (*home, setting),
                f"`{name_of(home)}` has `sets`, and beside them `{setting}`, which is a line of one data set.",
                f"Move it into the set that it belongs to, or delete {'it' if len(beside) == 1 else 'these lines'}.",
            )
    for home, data in recipe.data_sets():
        given = [source for source in SOURCES if data.get(source)]
        if len(given) > 1:
            yield recipe.document.problem(
                (*home, given[0]),
                f"`{name_of(home)}` has {'both ' if len(given) == 2 else ''}{listed(given)}, and only one can be read.",
                f"Delete {'one of the two lines' if len(given) == 2 else 'all but one of the lines'}.",
            )
        if not given:
            yield recipe.document.problem(
                home,
                f"`{name_of(home)}` names no data.",
                "Give `path` (a local file) or `hub` (a dataset on the hub).",
                key=True,
            )


def once(recipe: Recipe) -> Iterator[Problem]:
    """No data set stands in a list twice: its rows would be read again and taken for duplicates, or weigh double."""
    for home, data in recipe.data_sections:
        seen: dict[tuple[str | None, ...], Path_] = {}
        for path, one in sets_of(home, data):
            file = os.path.realpath(recipe.folder / one["path"]) if one.get("path") else None
            same = (file, *(one.get(setting) for setting in ("hub", "subset", "split", "revision")))
            if (first := seen.setdefault(same, path)) != path:
                yield recipe.document.problem(
                    (*path, "path" if file else "hub"),
                    f"`{name_of(path)}` is the same data as `{name_of(first)}`, and each row is learned once.",
                    "Delete one of the two; a larger `share` of the other takes more of its rows.",
                )


def shares_of_rows(recipe: Recipe) -> Iterator[Problem]:
    """Shares that add up to 1 look like parts of a mix, and each is a part of its own data set's rows."""
    for home, data in recipe.data_sections:
        shares = [own["share"] for own in data.get("sets") or () if own.get("share")]
        if len(shares) > 1 and abs(sum(shares) - 1) < 0.005:
            yield recipe.document.problem(
                (*home, "sets", 0, "share"),
                f"The shares of `{name_of(home)}.sets` add up to 1, and each is the part of its own data set's rows that is taken.",
                "Nothing to do, if so many rows are to be left out. `recipe prepare` says what part of the mix each set then has.",
                severity="note",
            )


QUESTION_ANSWER = ("question", "answer")


def one_form(recipe: Recipe) -> Iterator[Problem]:
    """Rows in columns have templates for question and answer, and those in other forms have none."""
    for home, data in recipe.data_sets():
        if data.knows("form") and not data.get("songs"):
            yield from said_of(home, _one_form(recipe, home, data))


def said_of(home: Path_, problems: Iterable[Problem]) -> Iterator[Problem]:
    """Problems with a data set, which they name where it is one of several."""
    name = f"`{name_of(home)}`"
    for problem in problems:
        said = isinstance(home[-1], str) or name in problem.message
        yield problem if said else replace(problem, message=f"{name}: {problem.message}")


def _one_form(recipe: Recipe, home: Path_, data: Settings) -> Iterator[Problem]:
    form, there = data["form"], [setting for setting in QUESTION_ANSWER if data.get(setting)]
    missing = [setting for setting in QUESTION_ANSWER if setting not in there]
    if there and form not in ("auto", "columns"):
        yield recipe.document.problem(
            (*home, there[0]),
            f"`{there[0]}` is for rows in columns, and `{name_of(home)}.form` is {form}, which says where its words stand.",
            f"Delete {listed(there)}, or write `form: columns`.",
            key=True,
        )
    elif missing and (there or form == "columns"):
        yield recipe.document.problem(
            (*home, there[0] if there else "form"),
            f"Rows in columns need `question` and `answer`, and `{name_of(home)}` lacks {listed(missing)}.",
            f'Write `{missing[0]}: "[column]"`, with the name of a column in brackets.',
            key=True,
        )
    elif form == "auto" and missing and data.get("hub") and not data.get("path"):
        yield recipe.document.problem(
            (*home, "hub"),
            f"What the rows of `{data['hub']}` look like is told from their columns when they are prepared.",
            "`recipe prepare` shows it; `form`, or `question` and `answer`, say it here.",
            severity="note",
        )


def _form(recipe: Recipe, home: Path_, data: Settings, setting: str, said: str, there: list[str]) -> Iterator[Problem]:
    """The form of data with these columns, told where the recipe leaves it open, and refused where it has none."""
    stated = conversation_formats.stated(data["form"], data.get("question"), data.get("answer"))
    form = stated or conversation_formats.told(there)
    missing = [column for column in conversation_formats.COLUMNS.get(form, ()) if column not in there] if form else []
    if form is None or missing:
        what = f"lacks {listed(missing)}, which the form {form} has" if form else "has the columns of no form"
        meant = conversation_formats.told(there)
        yield recipe.document.problem(
            (*home, setting),
            f"`{said}` {what}; its columns are {listed(there)}.",
            f"Write `form: {meant}`, or delete the line." if meant else conversation_formats.NO_FORM,
        )
    elif stated is None:
        yield recipe.document.problem(
            (*home, setting),
            f"The rows of `{said}` are read in the form {form}, told from their columns.",
            "Nothing to do; `form` says otherwise where that is wrong.",
            severity="note",
        )


def data_files(recipe: Recipe) -> Iterator[Problem]:
    """Local data files are there and have the columns that the templates name."""
    for home, data in recipe.data_sections:
        for path, one in sets_of(home, data):
            yield from said_of(path, _data_files(recipe, path, one, ("path", "sample")))
        yield from _data_files(recipe, home, data, ("validation_path",))


def templates_name_columns(recipe: Recipe) -> Iterator[Problem]:
    for home, data in recipe.data_sections:
        for path, one in (
            (home, data),
            *(((*home, "sets", index), own) for index, own in enumerate(data.get("sets") or ())),
        ):
            for setting in templates.SETTINGS:
                template = one.get(setting)
                if template and templates.unclosed(template) is not None:
                    yield recipe.document.problem(
                        (*path, setting),
                        f"`{setting}` opens a bracket and does not close it.",
                        "Write `[column]`, or `[[` for a bracket that is text.",
                    )
                elif template and not templates.columns(template):
                    yield recipe.document.problem(
                        (*path, setting),
                        f"`{setting}` names no column, so it says the same in every row.",
                        f'Write the column in brackets and quotes, for example `{setting}: "[{template.strip() or setting}]"`.',
                    )


def _data_files(recipe: Recipe, home: Path_, data: Settings, files: tuple[str, ...]) -> Iterator[Problem]:
    for setting in files:
        name = data.get(setting)
        if not name:
            continue
        file = recipe.folder / name
        if os.path.isdir(file) and (data.get("image_column") or (data.get("text") and text_files(file))):
            continue
        if setting == "sample" and file.suffix == ".parquet" and os.path.isfile(file):
            # The rehearsal looks into it; here opening Parquet would slow every check down.
            continue
        if recipe.on_claim(name) and not os.path.exists(file):
            yield recipe.document.problem(
                (*home, setting),
                f"`{name}` lies on a claim, so its columns are not checked here.",
                "Nothing to do, if the file is on the claim before the job starts.",
                severity="note",
            )
            continue
        if not os.path.exists(file):
            yield recipe.document.problem(
                (*home, setting),
                f"There is no file `{file}`.",
                "Paths start from the recipe's own folder.",
            )
            continue
        if data.get("image_column") and file.suffix != ".parquet":
            yield recipe.document.problem(
                (*home, setting),
                f"`{file}` is no file of images.",
                "Name a Parquet file, or a folder with CIFAR-10's binary files, Parquet files, or a folder of images for each class.",
            )
            continue
        if file.suffix == ".txt":
            continue
        try:
            there = columns.of(file, data.get("split"))
        except columns.Unreadable as reason:
            yield recipe.document.problem(
                (*home, setting),
                f"`{file}` cannot be read: {reason}",
                reason.hint,
                severity=reason.severity,
            )
            continue
        # A copy of a starter recipe brings a sample that says nothing about one's own file.
        other = (
            " Or delete the line `sample`, if it is of other data." if setting == "sample" and data.get("path") else ""
        )
        yield from fits(recipe, home, data, setting, str(file), there, other)


def fits(
    recipe: Recipe, home: Path_, data: Settings, setting: str, said: str, there: list[str], other: str = ""
) -> Iterator[Problem]:
    """Whether data with these columns has those that the recipe names, and a form. setting: that names the data; said: the
    data, as a person names it; other: what else helps."""
    if data.knows("form") and not data.get("songs"):
        yield from _form(recipe, home, data, setting, said, there)
    for column, user in templates.needed(data).items():
        if there.count(column) > 1:
            yield recipe.document.problem(
                (*home, user),
                f"`{said}` has {there.count(column)} columns called `{column}`, and only one can be meant.",
                "Give each column a name of its own.",
            )
        if column not in there:
            near = nearest(column, there)
            meant = f"[{near}]" if user in templates.SETTINGS else near
            hint = (f"Did you mean `{meant}`? " if near else "") + f"Its columns are {listed(there)}.{other}"
            yield recipe.document.problem(
                (*home, user),
                f"`{user.rpartition('.')[2]}` names the column `{column}`, which `{said}` does not have.",
                hint,
            )


RULES = (one_source, once, shares_of_rows, one_form, templates_name_columns)
FILE_RULES = (data_files, first_rows)
