"""Rules about where rows come from: one source in each section, files with the named columns, and
the hub."""

import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path, PurePosixPath

from runner import catalog
from runner.catalog.models import why_no_hub
from runner.data import chat_logs, conversation_formats, data_sets, row_files, rows
from runner.data.chat_exports import CHAT_COLUMN
from runner.data.data_sets import DataSource
from runner.recipe import templates
from runner.recipe.document import Path_
from runner.recipe.reading import written
from runner.recipe.recipe import Recipe, sets_of
from runner.tools.files import is_text_file, remote, saved_by_datasets, text_files
from runner.tools.problem import (
    Problem,
    Stop,
    Unreachable,
    did_you_mean,
    errors_of,
    listed,
    nearest,
    plural,
)
from runner.tools.problem import setting as name_of
from runner.tools.settings import Settings

# Settings of a single data set, which a section with `sets` cannot have.
OF_ONE = ("path", "hub", "packed", "revision", "subset", "split", "sheet", "sample")


def one_source(recipe: Recipe) -> Iterator[Problem]:
    for home, data in recipe.data_sections:
        if data.get("sets"):
            single_settings = [setting for setting in OF_ONE if data.get(setting)]
        else:
            single_settings = []
        for setting in single_settings:
            if len(single_settings) == 1:
                pronoun = "it"
            else:
                pronoun = "these lines"
            message = (
                f"`{setting}` describes one data set, but `{name_of(home)}` lists several under `sets`.",
                f"Move it into its data set, or delete {pronoun}.",
            )
            yield recipe.problem((*home, setting), *message)
    for home, data in recipe.data_sets():
        sources = [source for source in ("path", "hub", "packed") if data.get(source)]
        if len(sources) > 1:
            if len(sources) == 2:
                both_or_empty = "both "
                lines = "one of the two lines"
            else:
                both_or_empty = ""
                lines = "all but one of the lines"
            message = (
                f"`{name_of(home)}` has {both_or_empty}{listed(sources)}, but it can have only one.",
                f"Delete {lines}.",
            )
            yield recipe.problem((*home, sources[0]), *message)
        if not sources:
            yield recipe.problem(
                home,
                f"`{name_of(home)}` names no data.",
                "Write `path` (a local file) or `hub` (a data set on the hub).",
                key=True,
            )


def once(recipe: Recipe) -> Iterator[Problem]:
    """No data set may be in a list twice: its rows would be duplicates, or count double."""
    for home, data in recipe.data_sections:
        first_paths: dict[tuple[str | None, ...], Path_] = {}
        for path, data_set in sets_of(home, data):
            name = data_set.get("path")
            if not name or remote(name):
                file = name
            else:
                file = os.path.realpath(recipe.folder / name)
            same = (
                file,
                *(
                    data_set.get(setting)
                    for setting in ("hub", "subset", "split", "sheet", "revision", "files")
                ),
            )
            first_path = first_paths.setdefault(same, path)
            if first_path != path:
                place = (*path, "path" if file else "hub")
                yield recipe.problem(
                    place,
                    f"`{name_of(path)}` is the same data as `{name_of(first_path)}`. Each row is trained on once.",
                    "Delete one of them. A larger `share` of the other uses more of its rows.",
                )


def shares_of_rows(recipe: Recipe) -> Iterator[Problem]:
    """Shares that add up to 1 look like parts of a mix, but each is a part of its own data set's
    rows."""
    for home, data in recipe.data_sections:
        shares = [data_set.get("share") for data_set in data.get("sets") or ()]
        shares = list(filter(None, shares))
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
        present = [setting for setting in QUESTION_ANSWER if data.get(setting)]
        missing = [setting for setting in QUESTION_ANSWER if setting not in present]
        if present and form not in ("auto", "columns"):
            message = (
                f"`{present[0]}` is for rows in columns, but `{name_of(home)}.form` is {form}, which has its own columns.",
                f"Delete {listed(present)}, or write `form: columns`.",
            )
            problem = recipe.problem((*home, present[0]), *message, key=True)
            yield of_set(home, problem)
        elif missing and (present or form == "columns"):
            message = (
                f"Rows in columns need `question` and `answer`. `{name_of(home)}` lacks {listed(missing)}.",
                f'Write `{missing[0]}: "[column]"`, with the name of a column in brackets.',
            )
            setting = present[0] if present else "form"
            yield of_set(home, recipe.problem((*home, setting), *message, key=True))
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
    if isinstance(home[-1], str):
        return problem
    name = f"`{name_of(home)}`"
    if name in problem.message:
        return problem
    return replace(problem, message=f"{name}: {problem.message}")


def data_files(recipe: Recipe) -> Iterator[Problem]:
    """Local data files exist and have the columns that the templates name."""
    for home, data in recipe.data_sections:
        for path, data_set in sets_of(home, data):
            for problem in _data_files(recipe, path, data_set, ("path", "sample")):
                yield of_set(path, problem)
        yield from _data_files(recipe, home, data, ("validation_path",))


def templates_name_columns(recipe: Recipe) -> Iterator[Problem]:
    for path, template in _written_templates(recipe):
        setting = path[-1]
        if template and templates.unclosed(template) is not None:
            yield recipe.problem(
                path,
                f"`{setting}` opens a bracket and does not close it.",
                "Write `[column]`, or `[[` for a bracket in the text.",
            )
        elif template and not templates.columns(template):
            column = template.strip() or setting
            message = (
                f"`{setting}` names no column, so it is the same in every row.",
                f'Write the column in brackets and quotes, for example `{setting}: "[{column}]"`.',
            )
            yield recipe.problem(path, *message)


def _written_templates(recipe: Recipe) -> list[tuple[Path_, str | None]]:
    """The settings of data sections and their `sets` that may be templates, each with its text."""
    sections = list[tuple[Path_, Settings]]()
    for home, data in recipe.data_sections:
        sections.append((home, data))
        for index, data_set in enumerate(data.get("sets") or ()):
            sections.append(((*home, "sets", index), data_set))
    written_templates = []
    for path, section in sections:
        for setting in templates.SETTINGS:
            written_templates.append(((*path, setting), section.get(setting)))
    return written_templates


def _data_files(
    recipe: Recipe, home: Path_, data: Settings, files: tuple[str, ...]
) -> Iterator[Problem]:
    for setting in files:
        name = data.get(setting)
        if name:
            yield from _data_file(recipe, home, data, setting, name)


def _data_file(
    recipe: Recipe, home: Path_, data: Settings, setting: str, name: str
) -> Iterator[Problem]:
    place = (*home, setting)
    file = recipe.folder / name
    is_images = data.get("image_column")
    is_plain_text = bool(data.get("text")) and is_text_file(file)
    if not is_images and not is_plain_text:
        unfit = _unfit_ending(name, file)
        if unfit:
            yield recipe.problem(place, *unfit)
            return
    if remote(name):
        yield recipe.note(
            place,
            f"`{name}` is read when the data is prepared, so its columns cannot be checked here.",
            "`sample` names a local file with the same columns, for `recipe rehearse` and `recipe plan`.",
            check="file-elsewhere",
        )
        return
    if os.path.isdir(file):
        has_texts = data.get("text") and text_files(file)
        if is_images or has_texts:
            return
    elif data.get("text") and rows.is_archive_of_texts(file):
        return
    if setting == "sample" and file.suffix == ".parquet" and os.path.isfile(file):
        # The rehearsal reads it; opening Parquet here would slow down every check.
        return
    if not os.path.exists(file):
        yield _missing_file(recipe, place, name)
    elif is_images and file.suffix != ".parquet":
        yield recipe.problem(
            place,
            f"`{file}` is not a file of images.",
            "Name a Parquet file or a folder. A folder has CIFAR-10's binary files, Parquet files, or one folder of images for each class.",
            check="not-images",
        )
    elif not (is_text_file(file) and data.get("text")):
        yield from _columns_of_file(recipe, home, data, setting, file)
    elif data.knows("form") and chat_logs.is_text_chat(file):
        yield from _chat_as_text(recipe, home, setting, file)


def _unfit_ending(name: str, file: Path) -> tuple[str, str] | None:
    """Why a name is not one of a file of rows, and what to do; None if it can be one."""
    suffix = PurePosixPath(name).suffix.lower()
    refusal = rows.refusal_of_address(name)
    if refusal:
        return refusal
    if name.startswith("~"):
        return (
            f"`{name}` begins with `~`, which only a shell understands.",
            f"Write `{os.path.expanduser(name)}`, or a path from the recipe's folder.",
        )
    if os.path.isdir(file) or name.endswith("/"):
        return None
    kind = rows.without_rows(file)
    if kind:
        return f"`{name}` cannot be learned from: {kind['holds']}.", kind["way_out"]
    # A folder's name may end with a version, as in `texts.2`.
    is_ending = suffix[1:2].isalpha()
    if is_ending and suffix not in (*rows.ENDINGS, *row_files.OTHER_ENDINGS, *rows.SELDOM):
        return f"`{name}` is not a readable data file.", rows.READABLE
    return None


def _missing_file(recipe: Recipe, place: Path_, name: str) -> Problem:
    if recipe.on_claim(name):
        return recipe.note(
            place,
            f"`{name}` is on a claim, so its columns cannot be checked here.",
            "Put the file on the claim before the job starts.",
            check="file-elsewhere",
        )
    if not name.isprintable():
        message = "This path contains a line break or a tab. In double quotes, `\\n`, `\\r` and `\\t` mean those."
        return recipe.problem(
            place,
            message,
            "Put single quotes around a Windows path, or write it with `/`.",
            check="file-missing",
        )
    return recipe.problem(
        place,
        f"The file `{recipe.folder / name}` does not exist.",
        f"{rows.hint_of_near_file(recipe.folder / name)}Check the path; it is relative to the recipe's folder.",
        check="file-missing",
    )


def _columns_of_file(
    recipe: Recipe, home: Path_, data: Settings, setting: str, file: Path
) -> Iterator[Problem]:
    """What is wrong with the columns of a file of rows."""
    try:
        columns = rows.columns(file, data.get("split"), data.get("sheet"))
    except row_files.Unreadable as reason:
        yield recipe.problem(
            (*home, setting),
            f"`{file}` cannot be read: {reason}",
            reason.hint,
            severity=reason.severity,
            check="file-unreadable",
        )
        return
    # The sample of a copied starter does not describe the user's own file.
    is_copied = setting == "sample" and data.get("path")
    if is_copied:
        other_remedy = " Or delete the line `sample`, if it belongs to other data."
    else:
        other_remedy = ""
    yield from fits(recipe, home, data, setting, str(file), columns, other_remedy)
    if data.knows("answered_by"):
        yield from _answerer(recipe, home, data, setting, file, columns)


MOST_NAMES = 8  # of people in a chat, in one message


def _answerer(
    recipe: Recipe, home: Path_, data: Settings, setting: str, file: Path, columns: list[str]
) -> Iterator[Problem]:
    """A chat between people needs one of them who answers; other files have none."""
    answerer = data.get("answered_by")
    if CHAT_COLUMN not in columns:
        if recipe.document.lookup((*home, "answered_by")):
            yield recipe.problem(
                (*home, "answered_by"),
                f"`answered_by` is for a chat between people, and `{file}` is none.",
                "Delete the line.",
                key=True,
            )
        return
    chat = chat_logs.chat_of(file)
    if chat is None:
        return
    if not chat.speakers:
        yield recipe.problem(
            (*home, setting),
            f"`{file}` is {chat.title}, but it contains no messages of people.",
            "Export it again, or name another file.",
        )
        return
    people = people_of(chat)
    if not answerer:
        yield recipe.problem(
            (*home, setting),
            f"`{file}` is {chat.title}, and the recipe does not say who answers. It has {people}.",
            f"Write `answered_by: {written(chat.likely_answerer)}`, or another of these names. The model learns to write like that person.",
        )
    elif answerer not in chat.speakers:
        yield recipe.problem(
            (*home, "answered_by"),
            f"Nobody in `{file}` is called `{answerer}`.",
            f"{did_you_mean(answerer, chat.speakers)}It has {people}.",
        )


def named_people(speakers: Mapping[str, int]) -> list[str]:
    """People of a chat, each with the number of their messages, in words."""
    names = []
    for name, count in speakers.items():
        names.append(f"{name} ({count:,} {plural('message', count)})")
    return names


def people_of(chat: chat_logs.ChatContent) -> str:
    """The people of a chat with their messages, in words."""
    names = named_people(chat.speakers)
    more = len(names) - MOST_NAMES
    if more > 0:
        return f"{', '.join(names[:MOST_NAMES])} and {more:,} more people"
    return " and ".join(filter(None, [", ".join(names[:-1]), names[-1]]))


def _chat_as_text(recipe: Recipe, home: Path_, setting: str, file: Path) -> Iterator[Problem]:
    """A note on a chat that is learned as plain text, unless the recipe says so."""
    if recipe.document.lookup((*home, "form")) or recipe.document.lookup((*home, "text")):
        return
    chat = chat_logs.chat_of(file)
    if chat and chat.speakers:
        yield recipe.note(
            (*home, setting),
            f"`{file}` is {chat.title}, and is learned as plain text. It has {people_of(chat)}.",
            f"For its conversations, write `answered_by: {written(chat.likely_answerer)}`, or another of these names. For plain text, write `form: text`.",
        )


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
    other_remedy: str = "",
) -> Iterator[Problem]:
    """The columns must match a form, and include those that the recipe names. setting: the setting
    that names the data; source: the data's name in messages; other_remedy: one more."""
    if data.knows("question"):
        problem = _unfit_form(recipe, (*home, setting), data, source, columns)
        if problem:
            yield problem
        yield from _left_out_media(recipe, (*home, setting), source, columns)
    for column, user in templates.needed(data).items():
        place = (*home, *user.split("."))
        count = columns.count(column)
        # The hub and Parquet name an object, but not its fields.
        if not count and column.split(".")[0] in columns:
            count = 1
        if count > 1:
            yield recipe.problem(
                place,
                f"`{source}` has {count} columns called `{column}`.",
                "Give each column its own name.",
                check="column-twice",
            )
        elif not count:
            message = f"`{place[-1]}` names the column `{column}`, which `{source}` does not have."
            hint = _missing_column_hint(user, column, columns) + other_remedy
            other_columns, other_hint = OTHER_FORMS.get(user, ((), ""))
            is_other_form = other_hint and data.get("form") == "preferences"
            if is_other_form and {*other_columns} <= {*columns}:
                hint = other_hint
            yield recipe.problem(place, message, hint, check="column-missing")


def _left_out_media(
    recipe: Recipe, place: Path_, source: str, columns: list[str]
) -> Iterator[Problem]:
    """A note on columns of images or sound, which no recipe reads."""
    media = [column for column in columns if column in conversation_formats.MEDIA_COLUMNS]
    if media:
        yield recipe.note(
            place,
            f"`{source}` has images or sound ({listed(media)}). Training on these is not possible yet, so the model learns the text alone.",
            "Remove rows whose answers need the image.",
            check="media-left-out",
        )


def _unfit_form(
    recipe: Recipe, place: Path_, data: Settings, source: str, columns: list[str]
) -> Problem | None:
    """The problem that columns do not match the recipe's form, or a note on the form that they
    indicate."""
    stated_form = conversation_formats.stated(
        data["form"], data.get("question"), data.get("answer")
    )
    likely_form = conversation_formats.told(columns)
    form = stated_form or likely_form
    if form:
        needed = conversation_formats.COLUMNS.get(form, ())
    else:
        needed = ()
    missing = [column for column in needed if column not in columns]
    if form is None or missing:
        if form:
            wrong = f"lacks {listed(missing)}, which the form {form} needs"
        else:
            wrong = "has columns that match no form"
        message = f"`{source}` {wrong}. Its columns are {listed(columns)}."
        if likely_form:
            hint = f"Write `form: {likely_form}`, or delete the line."
        else:
            hint = conversation_formats.NO_FORM
        return recipe.problem(place, message, hint, check="form-unfit")
    if stated_form is None:
        return recipe.note(
            place,
            f"The rows of `{source}` are read in the form {form}, because of their columns.",
            "If that is wrong, set `form`.",
            check="form-guessed",
        )
    return None


def _missing_column_hint(user: str, column: str, columns: list[str]) -> str:
    """The hint at a column of a similar name. user: the setting that names the column."""
    near = nearest(column, columns)
    if near and user in templates.SETTINGS:
        suggestion = f"Did you mean `[{near}]`? "
    elif near:
        suggestion = f"Did you mean `{near}`? "
    else:
        suggestion = ""
    return f"{suggestion}Its columns are {listed(columns)}."


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
        if not hub:
            continue
        facts = catalog.dataset_of(section)
        columns = facts.get("columns")
        if columns:
            for problem in errors_of(fits(recipe, home, section, "hub", hub, columns)):
                yield replace(problem, severity="note", hint=f"{problem.hint} {ASK_HUB}.")
        if not facts and not catalog.near_dataset(hub):
            unknown.setdefault(hub, home)
    if unknown:
        message = (
            f"Not in the catalog, so their columns, subsets and splits cannot be checked: {listed(unknown)}.",
            f"`recipe check {recipe.document.file} --online` asks the hub. `recipe submit` does too.",
        )
        yield recipe.note((*next(iter(unknown.values())), "hub"), *message)


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
        if not hub:
            continue
        known_splits = catalog.dataset_of(section).get("splits")
        if not known_splits:
            continue
        for setting in ("split", "validation_split", "test_split"):
            if not section.knows(setting):
                continue
            names = re.findall(r"(?:^|\+)\s*([\w.-]+)", section.get(setting) or "")
            unknown = [name for name in names if name not in known_splits]
            if unknown:
                suggestion = did_you_mean(unknown[0], known_splits)
                hint = f"{suggestion}It has {listed(known_splits)}; {ASK_HUB}."
                message = f"`{hub}` has no split `{unknown[0]}`."
                yield recipe.problem((*home, setting), message, hint)


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
            message = (
                f"{listed(names)} {are} about a data set on the hub, but the rows come from `{path}`.",
                f"Delete the {lines}, which {have} no effect.",
            )
            yield recipe.note((*home, names[0]), *message)


LATER = "The job that prepares the data asks again, before a GPU is reserved."


def datasets(recipe: Recipe) -> Iterator[Problem]:
    """Asks the hub, with the library that reads rows later, whether its data sets exist and have
    the named columns."""
    on_hub = [(home, data) for home, data in recipe.data_sets() if data.get("hub")]
    if not on_hub:
        return
    if find_spec("datasets"):
        reason = why_no_hub()
    else:
        reason = "the library `datasets` is not installed"
    if reason:
        names = listed(dict.fromkeys(data["hub"] for _, data in on_hub))
        yield recipe.note(
            (*on_hub[0][0], "hub"),
            f"The hub could not be asked about the columns of {names}: {reason}.",
            LATER,
        )
        return
    for home, data in on_hub:
        location = {
            setting: data.get(setting)
            for setting in ("hub", "revision", "subset", "split", "files")
        }
        source = DataSource(**location, path=None)
        problems: list[Problem]
        try:
            columns = data_sets.hub_columns(source)
            problems = list(fits(recipe, home, data, "hub", data["hub"], columns))
            problems += renamed(recipe, home, source)
        except Stop as stop:
            message, _, remedy = stop.text.partition("\n")
            problems = [recipe.problem((*home, "hub"), message, remedy)]
            if isinstance(stop, Unreachable):
                problems = [recipe.note((*home, "hub"), message, f"{remedy} {LATER}")]
        for problem in problems:
            yield of_set(home, problem)


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
