"""Rules about where rows come from: one source in each section, files with the named columns, and
the hub."""

import os
import re
from collections.abc import Iterator
from dataclasses import replace
from importlib.util import find_spec

from runner import catalog
from runner.catalog.models import why_no_hub
from runner.data import conversation_formats, data_sets, row_files, rows
from runner.data.data_sets import DataSource
from runner.recipe import templates
from runner.recipe.document import Path_
from runner.recipe.recipe import Recipe, Settings, sets_of
from runner.tools.files import remote, saved_by_datasets, text_files
from runner.tools.problem import (
    Problem,
    Stop,
    Unreachable,
    did_you_mean,
    errors_of,
    listed,
    nearest,
)
from runner.tools.problem import setting as name_of

# Settings of a single data set, which a section with `sets` cannot have.
OF_ONE = ("path", "hub", "packed", "revision", "subset", "split", "sample")


def one_source(recipe: Recipe) -> Iterator[Problem]:
    for home, data in recipe.data_sections:
        if data.get("sets"):
            beside = [setting for setting in OF_ONE if data.get(setting)]
        else:
            beside = []
        for setting in beside:
            if len(beside) == 1:
                them = "it"
            else:
                them = "these lines"
            said = (
                f"`{setting}` describes one data set, but `{name_of(home)}` lists several under `sets`.",
                f"Move it into its data set, or delete {them}.",
            )
            yield recipe.problem((*home, setting), *said)
    for home, data in recipe.data_sets():
        given = [source for source in ("path", "hub", "packed") if data.get(source)]
        if len(given) > 1:
            if len(given) == 2:
                both = "both "
                lines = "one of the two lines"
            else:
                both = ""
                lines = "all but one of the lines"
            said = (
                f"`{name_of(home)}` has {both}{listed(given)}, but it can have only one.",
                f"Delete {lines}.",
            )
            yield recipe.problem((*home, given[0]), *said)
        if not given:
            yield recipe.problem(
                home,
                f"`{name_of(home)}` names no data.",
                "Write `path` (a local file) or `hub` (a data set on the hub).",
                key=True,
            )


def once(recipe: Recipe) -> Iterator[Problem]:
    """No data set may be in a list twice: its rows would be duplicates, or count double."""
    for home, data in recipe.data_sections:
        seen: dict[tuple[str | None, ...], Path_] = {}
        for path, one in sets_of(home, data):
            name = one.get("path")
            if not name or remote(name):
                file = name
            else:
                file = os.path.realpath(recipe.folder / name)
            same = (
                file,
                *(one.get(setting) for setting in ("hub", "subset", "split", "revision", "files")),
            )
            first = seen.setdefault(same, path)
            if first != path:
                place = (*path, "path" if file else "hub")
                yield recipe.problem(
                    place,
                    f"`{name_of(path)}` is the same data as `{name_of(first)}`. Each row is trained on once.",
                    "Delete one of them. A larger `share` of the other uses more of its rows.",
                )


def shares_of_rows(recipe: Recipe) -> Iterator[Problem]:
    """Shares that add up to 1 look like parts of a mix, but each is a part of its own data set's
    rows."""
    for home, data in recipe.data_sections:
        shares = [own["share"] for own in data.get("sets") or () if own.get("share")]
        if len(shares) > 1 and abs(sum(shares) - 1) < 0.005:
            sets = f"`{name_of(home)}.sets`"
            yield recipe.note(
                (*home, "sets", 0, "share"),
                f"The shares of {sets} add up to 1, but each is a share of its own data set's rows.",
                "If that leaves out rows that you need, write `share: 1`. `recipe prepare` shows the share of each data set in the result.",
            )


QUESTION_ANSWER = ("question", "answer")


def one_form(recipe: Recipe) -> Iterator[Problem]:
    """Rows in columns need templates for question and answer; rows in other forms cannot have
    them."""
    for home, data in recipe.data_sets():
        if not data.knows("question"):
            continue
        form = data["form"]
        there = [setting for setting in QUESTION_ANSWER if data.get(setting)]
        missing = [setting for setting in QUESTION_ANSWER if setting not in there]
        if there and form not in ("auto", "columns"):
            said = (
                f"`{there[0]}` is for rows in columns, but `{name_of(home)}.form` is {form}, which has its own columns.",
                f"Delete {listed(there)}, or write `form: columns`.",
            )
            yield of_set(home, recipe.problem((*home, there[0]), *said, key=True))
        elif missing and (there or form == "columns"):
            lacks = listed(missing)
            first = missing[0]
            said = (
                f"Rows in columns need `question` and `answer`. `{name_of(home)}` lacks {lacks}.",
                f'Write `{first}: "[column]"`, with the name of a column in brackets.',
            )
            yield of_set(
                home, recipe.problem((*home, there[0] if there else "form"), *said, key=True)
            )
        elif form == "auto" and missing and data.get("hub") and not data.get("path"):
            yield of_set(
                home,
                recipe.note(
                    (*home, "hub"),
                    f"The form of the rows of `{data['hub']}` is found from their columns when they are prepared.",
                    "`recipe prepare` shows it. `form`, or `question` and `answer`, sets it here.",
                ),
            )


def of_set(home: Path_, problem: Problem) -> Problem:
    """The problem with a data set, which it names if there are several."""
    name = f"`{name_of(home)}`"
    clear = isinstance(home[-1], str) or name in problem.message
    if clear:
        return problem
    return replace(problem, message=f"{name}: {problem.message}")


def data_files(recipe: Recipe) -> Iterator[Problem]:
    """Local data files exist and have the columns that the templates name."""
    for home, data in recipe.data_sections:
        for path, one in sets_of(home, data):
            yield from (
                of_set(path, problem)
                for problem in _data_files(recipe, path, one, ("path", "sample"))
            )
        yield from _data_files(recipe, home, data, ("validation_path",))


def templates_name_columns(recipe: Recipe) -> Iterator[Problem]:
    stated = [
        ((*path, setting), one.get(setting))
        for home, data in recipe.data_sections
        for path, one in [
            (home, data),
            *(((*home, "sets", at), own) for at, own in enumerate(data.get("sets") or ())),
        ]
        for setting in templates.SETTINGS
    ]
    for path, template in stated:
        if template and templates.unclosed(template) is not None:
            yield recipe.problem(
                path,
                f"`{path[-1]}` opens a bracket and does not close it.",
                "Write `[column]`, or `[[` for a bracket in the text.",
            )
        elif template and not templates.columns(template):
            column = template.strip() or path[-1]
            said = (
                f"`{path[-1]}` names no column, so it is the same in every row.",
                f'Write the column in brackets and quotes, for example `{path[-1]}: "[{column}]"`.',
            )
            yield recipe.problem(path, *said)


def _data_files(
    recipe: Recipe, home: Path_, data: Settings, files: tuple[str, ...]
) -> Iterator[Problem]:
    for setting in files:
        name = data.get(setting)
        if not name:
            continue
        place = (*home, setting)
        file = recipe.folder / name
        if remote(name):
            yield recipe.note(
                place,
                f"`{name}` is read when the data is prepared, so its columns cannot be checked here.",
                "`sample` names a local file with the same columns, for `recipe rehearse` and `recipe plan`.",
            )
            continue
        if os.path.isdir(file) and (
            data.get("image_column") or (data.get("text") and text_files(file))
        ):
            continue
        if setting == "sample" and file.suffix == ".parquet" and os.path.isfile(file):
            # The rehearsal reads it; opening Parquet here would slow down every check.
            continue
        if not os.path.exists(file) and recipe.on_claim(name):
            yield recipe.note(
                place,
                f"`{name}` is on a claim, so its columns cannot be checked here.",
                "Put the file on the claim before the job starts.",
            )
        elif not os.path.exists(file) and not name.isprintable():
            message = "This path contains a line break or a tab. In double quotes, `\\n`, `\\r` and `\\t` mean those."
            yield recipe.problem(
                place, message, "Put single quotes around a Windows path, or write it with `/`."
            )
        elif not os.path.exists(file):
            yield recipe.problem(
                place,
                f"The file `{file}` does not exist.",
                "Check the path; it is relative to the recipe's folder.",
            )
        elif data.get("image_column") and file.suffix != ".parquet":
            yield recipe.problem(
                place,
                f"`{file}` is not a file of images.",
                "Name a Parquet file or a folder. A folder has CIFAR-10's binary files, Parquet files, or one folder of images for each class.",
            )
        elif file.suffix != ".txt":
            try:
                columns = rows.columns(file, data.get("split"))
            except row_files.Unreadable as reason:
                yield recipe.problem(
                    place,
                    f"`{file}` cannot be read: {reason}",
                    reason.hint,
                    severity=reason.severity,
                )
                continue
            # The sample of a copied starter does not describe the user's own file.
            copied = setting == "sample" and data.get("path")
            if copied:
                other = " Or delete the line `sample`, if it belongs to other data."
            else:
                other = ""
            yield from fits(recipe, home, data, setting, str(file), columns, other)


# By a setting of preferences: the columns of preferences in the other form, and the hint.
OTHER_FORMS = {
    "chosen": (
        ("completion", "label"),
        "Its answers have labels, from which `train.objective: kto` learns.",
    ),
    "completion": (
        ("chosen", "rejected"),
        "Its rows have two answers, from which `train.objective: dpo` learns.",
    ),
}


def fits(
    recipe: Recipe,
    home: Path_,
    data: Settings,
    setting: str,
    source: str,
    columns: list[str],
    other: str = "",
) -> Iterator[Problem]:
    """The columns must match a form, and include those that the recipe names. setting: the setting
    that names the data; source: the data's name in messages; other: one more remedy."""
    if data.knows("question"):  # the recipe's form, else the one that the columns indicate
        stated = conversation_formats.stated(data["form"], data.get("question"), data.get("answer"))
        shown = conversation_formats.told(columns)
        form = stated or shown
        if form:
            needed = conversation_formats.COLUMNS.get(form, ())
        else:
            needed = ()
        missing = [column for column in needed if column not in columns]
        if form is None or missing:
            lacks = f"lacks {listed(missing)}, which the form {form} needs"
            if form:
                wrong = lacks
            else:
                wrong = "has columns that match no form"
            message = f"`{source}` {wrong}. Its columns are {listed(columns)}."
            if shown:
                hint = f"Write `form: {shown}`, or delete the line."
            else:
                hint = conversation_formats.NO_FORM
            yield recipe.problem((*home, setting), message, hint)
        elif stated is None:
            yield recipe.note(
                (*home, setting),
                f"The rows of `{source}` are read in the form {form}, because of their columns.",
                "If that is wrong, set `form`.",
            )
    for column, user in templates.needed(data).items():
        place = (*home, *user.split("."))
        count = columns.count(column)
        if count > 1:
            yield recipe.problem(
                place,
                f"`{source}` has {count} columns called `{column}`.",
                "Give each column its own name.",
            )
        elif not count:
            near = nearest(column, columns)
            meant: str | None
            if user in templates.SETTINGS:
                meant = f"[{near}]"
            else:
                meant = near
            hint = (
                f"Did you mean `{meant}`? " if near else ""
            ) + f"Its columns are {listed(columns)}.{other}"
            other_form = OTHER_FORMS.get(user)
            if other_form and data.get("form") == "preferences" and {*other_form[0]} <= {*columns}:
                hint = other_form[1]
            message = f"`{place[-1]}` names the column `{column}`, which `{source}` does not have."
            yield recipe.problem(place, message, hint)


ASK_HUB = "`recipe check --online` asks the hub"


def hub_names(recipe: Recipe) -> Iterator[Problem]:
    for home, section in recipe.data_sets():
        hub = section.get("hub")
        if hub:
            near = catalog.near_dataset(hub)
        else:
            near = None
        if hub and near:
            yield recipe.note(
                (*home, "hub"),
                f"`{hub}` is not in the catalog, but `{near}` is.",
                f"Write `{near}`, if you mean that one; {ASK_HUB}.",
            )


def unasked(recipe: Recipe) -> Iterator[Problem]:
    """Notes on missing columns of data sets in the catalog, because only the hub is certain; and
    one note on all data sets outside the catalog. `hub_names` reports names that are probably
    misspelt."""
    unknown: dict[str, Path_] = {}
    for home, section in recipe.data_sets():
        hub = section.get("hub")
        if hub and (there := catalog.dataset_of(section).get("columns")):
            for problem in errors_of(fits(recipe, home, section, "hub", hub, there)):
                yield replace(problem, severity="note", hint=f"{problem.hint} {ASK_HUB}.")
        if hub and not catalog.dataset_of(section) and not catalog.near_dataset(hub):
            unknown.setdefault(hub, home)
    if unknown:
        said = (
            f"Not in the catalog, so their columns, subsets and splits cannot be checked: {listed(unknown)}.",
            f"`recipe check {recipe.document.file} --online` asks the hub. `recipe submit` does too.",
        )
        yield recipe.note((*next(iter(unknown.values())), "hub"), *said)


def commits(recipe: Recipe) -> Iterator[Problem]:
    data = [home for home, _ in (*recipe.data_sections, *recipe.data_sets())]
    for home in dict.fromkeys([("model",), ("tokenizer",), *data]):
        revision = recipe.document.lookup((*home, "revision"))
        if isinstance(revision, str) and re.fullmatch(r"[0-9a-f]{7,39}", revision):
            yield recipe.problem(
                (*home, "revision"),
                f"`{revision}` is the beginning of a commit, but the hub accepts only whole ones.",
                "Write all 40 digits, or a branch or tag such as `main`.",
            )


def splits(recipe: Recipe) -> Iterator[Problem]:
    """Compares split names with those in the catalog. `train[:10%]` is a part of one, `train+test`
    are two."""
    for home, section in recipe.data_sets():
        hub = section.get("hub")
        if hub:
            there = catalog.dataset_of(section).get("splits")
        else:
            there = None
        for setting in ("split", "validation_split", "test_split"):
            if section.knows(setting):
                named = re.findall(r"(?:^|\+)\s*([\w.-]+)", section.get(setting) or "")
            else:
                named = []
            if there and (gone := [name for name in named if name not in there]):
                hint = f"{did_you_mean(gone[0], there)}It has {listed(there)}; {ASK_HUB}."
                yield recipe.problem((*home, setting), f"`{hub}` has no split `{gone[0]}`.", hint)


# Settings of a data set on the hub; a folder saved by `datasets` also has splits.
_OF_HUB = ("revision", "subset", "files", "split", "test_split")


def left_over(recipe: Recipe) -> Iterator[Problem]:
    """Lines about the hub beside a file have no effect."""
    for home, section in recipe.data_sets():
        path = section.get("path")
        if not path or section.get("hub"):
            continue
        written = recipe.document.lookup(home) or {}
        names = [name for name in _OF_HUB if written.get(name)]
        if saved_by_datasets(recipe.folder / path) or recipe.elsewhere(path):
            names = [name for name in names if name in ("revision", "subset", "files")]
        if names:
            if len(names) == 1:
                are = "is"
                lines = "line"
                have = "has"
            else:
                are = "are"
                lines = "lines"
                have = "have"
            said = (
                f"{listed(names)} {are} about a data set on the hub, but the rows come from `{path}`.",
                f"Delete the {lines}, which {have} no effect.",
            )
            yield recipe.note((*home, names[0]), *said)


LATER = "The job that prepares the data asks again, before a GPU is reserved."


def datasets(recipe: Recipe) -> Iterator[Problem]:
    """Asks the hub, with the library that reads rows later, whether its data sets exist and have
    the named columns."""
    named = [(home, data) for home, data in recipe.data_sets() if data.get("hub")]
    if not named:
        return
    if find_spec("datasets"):
        why = why_no_hub()
    else:
        why = "the library `datasets` is not installed"
    if why:
        names = listed(dict.fromkeys(data["hub"] for _, data in named))
        yield recipe.note(
            (*named[0][0], "hub"),
            f"The hub could not be asked about the columns of {names}: {why}.",
            LATER,
        )
        return
    for home, data in named:
        asked = {
            setting: data.get(setting)
            for setting in ("hub", "revision", "subset", "split", "files")
        }
        source = DataSource(**asked, path=None)
        found: list[Problem]
        try:
            found = list(
                fits(recipe, home, data, "hub", data["hub"], data_sets.hub_columns(source))
            )
            found += renamed(recipe, home, source)
        except Stop as reason:
            message, _, remedy = reason.text.partition("\n")
            found = [recipe.problem((*home, "hub"), message, remedy)]
            if isinstance(reason, Unreachable):
                found = [recipe.note((*home, "hub"), message, f"{remedy} {LATER}")]
        yield from (of_set(home, problem) for problem in found)


def renamed(recipe: Recipe, home: Path_, source: DataSource) -> Iterator[Problem]:
    """A data set that has another name on the hub than in the recipe. Raises Stop as `name_on_hub`
    does."""
    name = data_sets.name_on_hub(source)
    if name != source.hub:
        message = f"The data set `{source.hub}` is now called `{name}` on the hub."
        yield recipe.note(
            (*home, "hub"),
            message,
            f"Write `{name}`. The old name works until somebody else takes it.",
        )


RULES = (
    one_source,
    once,
    shares_of_rows,
    one_form,
    templates_name_columns,
    splits,
    left_over,
    hub_names,
    commits,
)
FILE_RULES = (data_files,)
