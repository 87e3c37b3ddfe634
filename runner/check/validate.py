"""Turns a document into a Recipe, or into every Problem that can be found before it runs."""

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from runner import catalog, parts, scenarios
from runner.check import by_schema, data_file, rules, sources
from runner.plan import Plan
from runner.recipe import lock, reading
from runner.recipe import overrides as changing
from runner.recipe import stages as of_stages
from runner.recipe.document import Document, path_of
from runner.recipe.recipe import Override, Recipe
from runner.scenarios import forecasting, place, translate
from runner.scenarios.shared import common
from runner.tools.problem import Problem, Stop, errors_of, found_by, listed
from runner.tools.settings import BrokenSetting, Settings


def load(
    file: Path | str,
    changes: Iterable[Override] = (),
    environment: Mapping[str, str] | None = None,
    look: bool = True,
) -> tuple[Recipe, list[Override], list[Problem]]:
    """The recipe in a file after the environment's changes and then `changes`, the changes that had
    an effect, and notes. look: whether to read the files that it names. Raises Stop with every
    Problem at once if it is invalid."""
    document, aside = opened(reading.read(file))
    scenario = document.data.get("scenario")
    requested, idle = changing.from_environment(
        environment or {}, lambda setting: by_schema.has(scenario, setting)
    )
    all_changes = [*requested, *changes]
    changed_document, effective = override(document, all_changes)
    recipe, problems = judge(changed_document, look)
    errors = errors_of(problems)
    if recipe is None or errors:

        def errors_after(fewer: Sequence[Override]) -> list[Problem]:
            return errors_of(judge(override(document, fewer)[0], look)[1])

        raise Stop(_with_causes(errors, all_changes, errors_after))
    idle_notes = (
        Problem(
            document.file,
            0,
            0,
            f"The environment sets {variable}, but this recipe has no such setting. It has no effect.",
            _for_a_stage(document, variable),
            severity="note",
        )
        for variable in idle
    )
    return recipe, effective, [*aside, *problems, *idle_notes]


def _with_causes(
    errors: Sequence[Problem],
    changes: Sequence[Override],
    errors_after: Callable[[Sequence[Override]], list[Problem]],
) -> list[Problem]:
    """The errors. Those at a line of the file that a change from outside causes name it.
    errors_after: gives the errors after fewer changes."""
    origins = list(dict.fromkeys(change.by for change in changes))
    if all(error.file in origins for error in errors):
        return list(errors)

    def without(removed: Collection[str]) -> list[Problem]:
        with suppress(Stop):
            return errors_after([change for change in changes if change.by not in removed])
        return []

    before = without(origins)
    after_others = {origin: without([origin]) for origin in origins}
    with_causes = []
    for error in errors:
        if error.file in origins or error in before:
            with_causes.append(error)
            continue
        # Without one that is alone the cause, all of them are.
        causes = []
        for origin in origins:
            if error not in after_others[origin]:
                causes.append(origin)
        if not causes:
            causes = origins
        cause = f"The cause is `{causes[0]}`."
        if len(causes) > 1:
            cause = f"The causes are {listed(causes)}."
        with_causes.append(replace(error, hint=f"{error.hint} {cause}".strip()))
    return with_causes


def _for_a_stage(document: Document, variable: str) -> str:
    """How to change, in the first stage that has it, the setting that a variable of the
    environment means; empty if no stage has it."""
    name, _, value = variable.partition("=")
    for _, index, stage_document in of_stages.documents(document):
        for setting in changing.ENVIRONMENT[name]:
            if by_schema.has(stage_document.data["scenario"], setting):
                return f"For one stage, write `--set stages.{index}.{setting}={value}`."
    return ""


def opened(document: Document) -> tuple[Document, list[Problem]]:
    """The document itself, or the recipe that another tool's file would become, with notes on the
    conversion."""
    if "scenario" not in document.data and parts.has("axolotl_files"):
        from runner.parts.axolotl_files import conversion

        converted = conversion.as_recipe(document)
        if converted:
            return converted
    return document, []


def valid(
    document: Document, look: bool = True, earlier: tuple[Recipe, ...] = ()
) -> tuple[Recipe, list[Problem]]:
    """The document as a Recipe, and notes. earlier: as in Recipe. Raises Stop with every Problem at
    once."""
    recipe, problems = judge(document, look, earlier)
    if recipe is None or errors_of(problems):
        raise Stop(errors_of(problems))
    return recipe, problems


def override(document: Document, changes: Iterable[Override]) -> tuple[Document, list[Override]]:
    """A new Document with the changes and their derived changes applied, and those that had an
    effect."""
    requested = by_schema.as_text(document, changes)
    if requested:
        return changing.apply(document, with_followers(document, requested))
    return (document, [])


def changed(
    recipe: Recipe, changes: Iterable[Override], look: bool = True
) -> tuple[Recipe, list[Override]]:
    """The recipe with the changes, and those that had an effect. Raises Stop if it is then
    invalid."""
    document, effective = override(recipe.document, changes)
    return valid(document, look, recipe.earlier)[0], effective


def judge(
    document: Document, look: bool = True, earlier: tuple[Recipe, ...] = ()
) -> tuple[Recipe | None, list[Problem]]:
    """The document as a Recipe, or None if the schema refuses it, and all Problems with it.
    earlier: as in Recipe."""
    recipe, problems, valid = _judged(document, look, earlier)
    return recipe if valid else None, problems


def as_written(document: Document) -> Recipe:
    """The document as a Recipe, as far as its schema accepts it, without rules. Raises Stop for an
    unknown scenario."""
    recipe, problems, _ = _judged(document, look=None)
    if recipe is None:
        raise Stop(problems)
    return recipe


def _judged(
    document: Document,
    look: bool | None,
    earlier: tuple[Recipe, ...] = (),
    is_stage: bool = False,
) -> tuple[Recipe | None, list[Problem], bool]:
    """The Recipe as far as the schema accepts it, its Problems, and whether the schema accepts all
    of it. look: None for no rules; earlier, is_stage: as in Recipe."""
    unreadable = _unreadable(document)
    if unreadable:
        return None, unreadable, False
    settings, refusals = by_schema.read(document, is_stage)
    stages, in_stages = _judged_stages(document, settings, look)
    first_stage = list(stages.values())[:1]
    facts = _model_facts(document, settings, [*earlier, *first_stage])
    recipe = Recipe(document, settings, facts, stages, is_stage, earlier)
    found = [*_at_other_places(refusals, in_stages), *in_stages]
    if look is not None:
        found += rules.judge(recipe, look)
    problems = sorted(_each_once(found), key=_place_of)
    is_valid = not refusals and not errors_of(in_stages)
    return recipe, problems, is_valid


def _unreadable(document: Document) -> list[Problem]:
    """Why no schema can judge the document: an unknown scenario, or a part that is missing."""
    problem = by_schema.scenario_problem(document)
    if problem:
        return [replace(problem, setting="scenario", check="scenario-unknown")]
    return by_schema.missing_parts(document)


def _judged_stages(
    document: Document, settings: Settings, look: bool | None
) -> tuple[dict[str, Recipe], list[Problem]]:
    """The recipe of each stage by its name, as far as its schema accepts it, and the Problems of
    all stages. look: as in `_judged`."""
    # A section that the whole recipe must not have is its problem alone.
    shared = {name: value for name, value in document.data.items() if settings.knows(name)}
    recipes = list[tuple[str, Recipe]]()
    problems = list[Problem]()
    for name, index, stage_document in of_stages.documents(replace(document, data=shared)):
        stages_before = tuple(recipe for _, recipe in recipes)
        recipe, found, _ = _judged(stage_document, look, stages_before, is_stage=True)
        for problem in found:
            problems.append(of_stages.found_in(document, index, problem))
        if recipe:
            recipes.append((name, recipe))
    return dict(recipes), problems


def _place_of(problem: Problem) -> tuple[int, int]:
    return problem.line, problem.column


def _at_other_places(refusals: list[Problem], in_stages: list[Problem]) -> Iterator[Problem]:
    """The refusals of the whole recipe's schema at places where no stage has a problem. That of a
    stage's own schema is more precise."""
    # All that is set from outside the file is at line 0, and a note refuses nothing.
    places = set()
    for error in errors_of(in_stages):
        places.add((error.file, *_place_of(error)))
    for problem in refusals:
        if (problem.file, *_place_of(problem)) not in places:
            yield problem


def _each_once(problems: Iterable[Problem]) -> Iterator[Problem]:
    """The first of the problems that say the same of one place. Several stages may report a line
    that they share, each with what its own technique has instead."""
    reported = set()
    for problem in problems:
        said = (problem.file, problem.line, problem.column, problem.severity, problem.message)
        if said not in reported:
            reported.add(said)
            yield problem


def _model_facts(
    document: Document, settings: Settings, stages: Sequence[Recipe]
) -> catalog.Model | None:
    """The facts about the base model. stages: the earlier ones of a stage, or the first one of a
    whole recipe."""
    try:
        described = scenarios.model_facts(document.data["scenario"], settings)
        if described:
            return described
        # The `base` of a stage after pretraining is the pretraining stage; the whole recipe has no
        # `base`.
        name = settings["model"].get("base")
        pretraining = next(
            (stage for stage in stages if stage.makes_model and name in (stage.name, None)),
            None,
        )
        if pretraining:
            return pretraining.model_facts
        name = settings["model"]["base"]
        revision = settings["model"]["revision"]
        folder = Path(document.file).parent
        if name in catalog.model_ids():
            return catalog.model(name)
        locked, problems = lock.find(folder, name, revision)
        # A rule reports a broken lock file, and no other source replaces it.
        return locked or (
            None
            if problems
            else catalog.model(name, folder) or catalog.cached_model(name, revision)
        )
    except (BrokenSetting, KeyError, AttributeError):
        return None


# The values of `--allow`.
TOO_LARGE = "too-large"
ALLOWED = (TOO_LARGE,)


def examine(
    file: Path | str,
    changes: Iterable[Override] = (),
    online: bool = False,
    allowed: Collection[str] = (),
) -> list[Problem]:
    """Every Problem with the recipe in a file (`-` for standard input), notes and problems of
    translating it included. online: ask the hub too; allowed: the problems, of ALLOWED, that become
    notes."""
    try:
        if file == "-":
            document = reading.standard_input()
        elif data_file.is_data(Path(file)) or Path(file).is_dir():
            return [data_file.problem_of(Path(file))]
        else:
            document = reading.read(file)
        if "scenario" not in document.data and parts.has("axolotl_files"):
            from runner.parts.axolotl_files import checking

            problems = checking.problems(document)
            if problems is not None and (not changes or errors_of(problems)):
                return found_by("axolotl", problems)
        original = opened(document)[0]
        document, _ = override(original, changes)
        problems = examined(document, online, allowed)[1]
    except Stop as stop:
        return found_by("file", stop.problems or [Problem(str(file), 0, 0, stop.text)])
    except OSError as error:  # no permission for a folder on the way, or a name that is too long
        return [
            Problem(
                str(file),
                0,
                0,
                f"`{error.filename}`: {error.strerror}.",
                "Check the paths in the recipe.",
                check="file",
            )
        ]

    def errors_after(fewer: Sequence[Override]) -> list[Problem]:
        return errors_of(examined(override(original, fewer)[0], online, allowed)[1])

    errors = iter(_with_causes(errors_of(problems), list(changes), errors_after))
    all_problems = []
    for problem in problems:
        if problem.severity == "error":
            problem = next(errors)
        all_problems.append(problem)
    return all_problems


def examined(
    document: Document, online: bool = False, allowed: Collection[str] = ()
) -> tuple[Recipe | None, list[Problem]]:
    """The document as a Recipe, or None if it has no plan, and the Problems that `examine`
    finds."""
    recipe, problems = judge(document)
    if recipe is None or errors_of(problems):
        return None, problems
    try:
        plan = translate(recipe, replace(place(recipe), checkpoint_keys=None))
    except Stop as stop:
        reasons = stop.problems or [Problem(document.file, 0, 0, stop.text)]
        return None, problems + found_by("translation", reasons)
    problems += found_by("forecast", forecasting().problems(recipe, plan, allowed))
    if online:
        on_hub = sources.datasets(recipe)
    else:
        on_hub = sources.unasked(recipe)
    problems += found_by("on-hub", on_hub)
    return recipe, problems


def require_fits(recipe: Recipe, plan: Plan, allowed: Collection[str] = ()) -> list[Problem]:
    """Notes on stages that may not fit their GPU, before a recipe is sent or rendered; none if that
    is allowed. Raises Stop if a stage cannot fit, unless that is allowed."""
    problems = forecasting().problems(recipe, plan, allowed)
    gpu = recipe.document.problem(("machines", "gpu"), "")
    wrong = errors_of(problems)
    if wrong:
        raise Stop(wrong)
    if allowed:
        return []
    place = (gpu.file, gpu.source)
    return [note for note in problems if (note.file, note.source) == place]


# Derived settings: lines that only repeat others change with them. `train.effective_batch_size` is
# the product of other lines, and `machines` counts the entries of `nodes.machines`. A line that the
# user also changes stays. So does a line that was wrong before, and a rule reports it.
BATCH = "train.effective_batch_size"
OF_BATCH = (
    *("train.micro_batch_size", "train.gradient_accumulation_steps"),
    *("machines.nodes", "machines.gpus_per_node", "nodes.machines"),
)


def with_followers(document: Document, changes: list[Override]) -> list[Override]:
    """The changes and then their derived changes, if the changes can be applied."""
    all_changes = list(changes)
    with suppress(Stop, BrokenSetting):
        for causes, follow in _followers():
            causing = [change for change in changes if _concerns(change, causes)]
            if not causing:
                continue
            before = _as_recipe(document)
            if not before:
                continue
            changed, _ = changing.apply(document, all_changes)
            after = _as_recipe(changed)
            if not after:
                continue
            origin = ", ".join(dict.fromkeys(change.by for change in causing))
            for setting, value in follow(before, after):
                if not any(_concerns(change, [setting]) for change in changes):
                    all_changes.append(Override(setting, None, value, origin, follows(origin)))
    return all_changes


def follows(origin: str) -> str:
    """The reason of a change that follows from those of an option or a variable."""
    return f"follows {origin}"


# The values of settings that follow from others. Arguments: the recipe before and after a change.
Follow = Callable[[Recipe, Recipe], Iterable[tuple[str, Any]]]


def _followers() -> Iterator[tuple[Iterable[str], Follow]]:
    """The settings that others follow, and the function for those that follow."""
    if parts.has("nodes"):
        from runner.parts.nodes import target

        yield from target.followers()
    # The batch counts the GPUs of the machines that remain, so it comes last.
    yield OF_BATCH, _multiplied


def _multiplied(before: Recipe, after: Recipe) -> Iterator[tuple[str, Any]]:
    size_before = before.settings.get("train", {}).get("effective_batch_size")
    size_after = after.settings.get("train", {}).get("effective_batch_size")
    if size_before is None or size_after is None:
        return
    if size_before == common.effective_batch_size(before):
        yield BATCH, common.effective_batch_size(after)


def _concerns(change: Override, settings: Iterable[str]) -> bool:
    """Whether a change is of one of the settings, of a part of it, or of a section that contains
    it."""
    for setting in settings:
        path = path_of(setting)
        length = min(len(change.path), len(path))
        if change.path[:length] == path[:length]:
            return True
    return False


def _as_recipe(document: Document) -> Recipe | None:
    if by_schema.scenario_problem(document):
        return None
    return Recipe(document, by_schema.read(document)[0], None)
