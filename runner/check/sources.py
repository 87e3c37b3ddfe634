"""Rules about where rows come from: one source a section, and files that are there with the columns that are named."""

from __future__ import annotations

import os
from collections.abc import Iterator

from runner.check import columns
from runner.data import forms
from runner.files import text_files
from runner.names import listed, nearest
from runner.problem import Problem
from runner.recipe import templates
from runner.recipe.recipe import Recipe, Settings


def _at(recipe: Recipe, setting: str, message: str, hint: str, severity: str = "error") -> Problem:
    return recipe.document.problem(tuple(setting.split(".")), message, hint, severity=severity)


SOURCES = ("path", "hub", "packed")


def one_source(recipe: Recipe) -> Iterator[Problem]:
    for home, data in recipe.data_sections():
        given = [source for source in SOURCES if data.get(source)]
        if len(given) > 1:
            yield _at(
                recipe,
                f"{home}.{given[0]}",
                f"`{home}` has {'both ' if len(given) == 2 else ''}{listed(given)}, and only one can be read.",
                f"Delete {'one of the two lines' if len(given) == 2 else 'all but one of the lines'}.",
            )
        if not given:
            yield recipe.document.problem(
                tuple(home.split(".")),
                f"`{home}` names no data.",
                "Give `path` (a local file) or `hub` (a dataset on the hub).",
                key=True,
            )


QUESTION_ANSWER = ("question", "answer")
TEMPLATES = (*QUESTION_ANSWER, "prompt", "chosen", "rejected")


def one_form(recipe: Recipe) -> Iterator[Problem]:
    """Rows in columns have templates for question and answer, and those in other forms have none."""
    for home, data in recipe.data_sections():
        if not data.knows("form") or data.get("songs"):
            continue
        form, there = data["form"], [setting for setting in QUESTION_ANSWER if data.get(setting)]
        missing = [setting for setting in QUESTION_ANSWER if setting not in there]
        if there and form not in ("auto", "columns"):
            yield recipe.document.problem(
                (*home.split("."), there[0]),
                f"`{there[0]}` is for rows in columns, and `{home}.form` is {form}, which says where its words stand.",
                f"Delete {listed(there)}, or write `form: columns`.",
                key=True,
            )
        elif missing and (there or form == "columns"):
            yield recipe.document.problem(
                (*home.split("."), there[0] if there else "form"),
                f"Rows in columns need `question` and `answer`, and `{home}` lacks {listed(missing)}.",
                f'Write `{missing[0]}: "[column]"`, with the name of a column in brackets.',
                key=True,
            )
        elif form == "auto" and missing and data.get("hub") and not data.get("path"):
            yield _at(
                recipe,
                f"{home}.hub",
                f"What the rows of `{data['hub']}` look like is told from their columns when they are prepared.",
                "`recipe prepare` shows it; `form`, or `question` and `answer`, say it here.",
                severity="note",
            )


def _form(recipe: Recipe, home: str, data: Settings, setting: str, there: list[str]) -> Iterator[Problem]:
    """The form of a file with these columns, told where the recipe leaves it open, and refused where it has none."""
    file = recipe.folder / data[setting]
    stated = forms.stated(data["form"], data.get("question"), data.get("answer"))
    form = stated or forms.told(there)
    missing = [column for column in forms.COLUMNS.get(form, ()) if column not in there] if form else []
    if form is None or missing:
        what = f"lacks {listed(missing)}, which the form {form} has" if form else "has the columns of no form"
        meant = forms.told(there)
        yield recipe.document.problem(
            (*home.split("."), setting),
            f"`{file}` {what}; its columns are {listed(there)}.",
            f"Write `form: {meant}`, or delete the line." if meant else forms.NO_FORM,
        )
    elif stated is None:
        yield _at(
            recipe,
            f"{home}.{setting}",
            f"The rows of `{file}` are read in the form {form}, told from their columns.",
            "Nothing to do; `form` says otherwise where that is wrong.",
            severity="note",
        )


def data_files(recipe: Recipe) -> Iterator[Problem]:
    """Local data files are there and have the columns that the templates name."""
    for home, data in recipe.data_sections():
        yield from _data_files(recipe, home, data)


def _data_files(recipe: Recipe, home: str, data: Settings) -> Iterator[Problem]:
    names: dict[str, str] = {setting: data[setting] for setting in TEMPLATES if data.get(setting)}
    for setting, template in names.items():
        if templates.unclosed(template) is not None:
            yield _at(
                recipe,
                f"{home}.{setting}",
                f"`{setting}` opens a bracket and does not close it.",
                "Write `[column]`, or `[[` for a bracket that is text.",
            )
    needed = {column: setting for setting, template in names.items() for column in templates.columns(template)}
    needed |= {data[part]: part for part in ("image_column", "label_column", "column", "text") if data.get(part)}
    if songs := data.get("songs"):
        needed |= {songs[setting]: f"songs.{setting}" for setting in ("instruction", "lyrics")}
    for setting in ("path", "validation_path", "sample"):
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
            yield _at(
                recipe,
                f"{home}.{setting}",
                f"`{name}` lies on a claim, so its columns are not checked here.",
                "Nothing to do, if the file is on the claim before the job starts.",
                severity="note",
            )
            continue
        if not os.path.exists(file):
            yield _at(
                recipe,
                f"{home}.{setting}",
                f"There is no file `{file}`.",
                "Paths start from the recipe's own folder.",
            )
            continue
        if data.get("image_column") and file.suffix != ".parquet":
            yield _at(
                recipe,
                f"{home}.{setting}",
                f"`{file}` is no file of images.",
                "Name a Parquet file, or a folder with CIFAR-10's binary files, Parquet files, or a folder of images for each class.",
            )
            continue
        if file.suffix == ".txt":
            continue
        try:
            there = columns.of(file, data.get("split"))
        except columns.Unreadable as reason:
            yield _at(
                recipe,
                f"{home}.{setting}",
                f"`{file}` cannot be read: {reason}",
                reason.hint,
                reason.severity,
            )
            continue
        if data.knows("form") and not songs:
            yield from _form(recipe, home, data, setting, there)
        # A copy of a starter recipe brings a sample that says nothing about one's own file.
        other = (
            " Or delete the line `sample`, if it is of other data." if setting == "sample" and data.get("path") else ""
        )
        for column, user in needed.items():
            if there.count(column) > 1:
                yield _at(
                    recipe,
                    f"{home}.{user}",
                    f"`{file}` has {there.count(column)} columns called `{column}`, and only one can be meant.",
                    "Give each column a name of its own.",
                )
            if column not in there:
                near = nearest(column, there)
                meant = f"[{near}]" if user in names else near
                hint = (f"Did you mean `{meant}`? " if near else "") + f"Its columns are {listed(there)}.{other}"
                yield _at(
                    recipe,
                    f"{home}.{user}",
                    f"`{user.rpartition('.')[2]}` names the column `{column}`, which `{file}` does not have.",
                    hint,
                )


RULES = (one_source, one_form, data_files)
