"""`recipe show`, `render` and `list`: a recipe with its defaults, the files made from it, and all
recipes and runs."""

import os
import time
from collections.abc import Iterable
from pathlib import Path

from runner import parts, scenarios
from runner.check import batch, by_schema, origins, validate
from runner.check.computed import computed_values
from runner.commands.options import command, end, open_recipe, print_notes, say, short, table
from runner.recipe import overrides as changing
from runner.recipe.recipe import Recipe
from runner.run import progress
from runner.run.run_folder import RunFolder, all_here
from runner.scenarios.render import emit
from runner.tools import packaged
from runner.tools.files import write_all
from runner.tools.problem import Stop
from runner.tools.run_files import RUN
from runner.tools.text import json_text


@command
def show(path: str, sets: tuple[str, ...], style: str) -> None:
    """Print a recipe with all its defaults, and where each setting comes from, as `recipe run`
    would use it.

    The output is a complete recipe that does the same. RECIPE can also be the name of a starter.
    """
    file = packaged.recipe_file(path)
    recipe, _, notes = validate.load(file, changing.from_options(sets), os.environ)
    print_notes(notes)
    computed = dict(computed_values(recipe))
    if style == "json":
        figures = {}
        for where, value in computed.items():
            figures[".".join(map(str, where))] = {"value": value.value, "how": value.how}
        values = recipe.settings.plain()
        say(
            json_text(
                {
                    "recipe": values,
                    "from": origins.origins(recipe.document, values),
                    "computed": figures,
                }
            )
        )
        return
    say(f"# {path} with all its settings.")
    say(
        "# The comments show where each value comes from: a line of that file, a change, or the default."
    )
    say("# Lines that begin with # are computed from other settings.")
    say(origins.as_yaml(recipe, by_schema.schema(recipe.scenario), computed).rstrip("\n"))
    then: tuple[str, ...]
    if file == Path(path):
        then = ("check", path)
    else:
        then = ("new", "my-demo", "--from", path)
    end(f"All settings of {path} are printed. The output is itself a recipe.", *then)


@command
def render(
    path: str,
    sets: tuple[str, ...],
    out: str | None,
    targets: tuple[str, ...],
    allowed: tuple[str, ...],
) -> None:
    """Generate the training settings and the manifests of a recipe. This needs no GPU, no cluster
    and no network."""
    recipe, _ = open_recipe(path, sets)
    print_notes(
        validate.require_fits(recipe, scenarios.translate(recipe, scenarios.place(recipe)), allowed)
    )
    if out:
        folder = Path(out)
    else:
        folder = Path("build") / recipe.name
    written = write_all(folder, emit(recipe, targets))
    for file in written:
        if file.suffix == ".sh":
            file.chmod(0o755)
        say(str(file))
    for module in parts.modules("rules"):
        for rule in getattr(module, "RENDER_NOTES", ()):
            print_notes(rule(recipe))
    outcome = f"{len(written)} {'file is' if len(written) == 1 else 'files are'} in {folder}/."
    if "openshift" in recipe.settings:
        then = {"kserve": ("serve", path, "--cluster"), "kfp": ("status", path)}
        if targets == ("kfp",):
            remark = " The first lines of `kfp/pipeline.yaml` show how to start it."
        else:
            remark = ""
        end(
            f"{outcome}{remark}",
            *then.get(targets[0] if len(targets) == 1 else "", ("submit", path)),
        )
    else:
        end(
            f"{outcome} Copy them to every machine, check each machine, and start its script there.",
            "doctor",
            path,
        )


def read_recipe(path: Path) -> Recipe | None:
    """The recipe in a file; None if it is invalid."""
    try:
        return validate.load(path, look=False)[0]
    except Stop:
        return None


def facts(path: Path, name: str = "") -> dict[str, str]:
    """A recipe's row in the list, under `name` or its own; an invalid one refers to `recipe
    check`."""
    return _row(path, read_recipe(path), name)


def _row(path: Path, recipe: Recipe | None, name: str) -> dict[str, str]:
    if recipe is None:
        description = f"`recipe check {path}` shows its problems"
        return {
            "name": name or str(path),
            "scenario": "-",
            "model": "-",
            "machines": "-",
            "description": description,
        }
    machines = recipe.machines
    model = recipe.settings.get("model") or {}
    return {
        "name": name or recipe.name,
        "scenario": recipe.scenario,
        "model": model.get("base") or model.get("architecture") or "-",
        "machines": f"{machines.nodes} × {machines.gpus_per_node} {short(machines.gpu)}",
        "description": recipe.description or "",
    }


def made_from(run: RunFolder, recipes: Iterable[Recipe]) -> str:
    """The file of the recipe that a run is of, and whether the run is of the recipe as it is now;
    empty if no recipe here is its."""
    outdated = ""
    for recipe in recipes:
        has_name = run.state.recipe == recipe.name
        if not has_name and not progress.has_settings_of(run, recipe):
            continue
        difference = progress.difference(run, recipe)
        if not difference:
            return str(recipe.file)
        if has_name and not outdated:
            outdated = f"{recipe.file}; {difference}"
    return outdated


def run_row(run: RunFolder) -> dict[str, str]:
    """A run folder's row in the list."""
    state = run.state
    if state.status == "running" and not run.at_work:
        status = "interrupted"
    elif state.status == "finished":
        status = progress.status_of(run)
    else:
        status = state.status
    changed = time.strftime("%Y-%m-%d %H:%M", time.localtime((run.path / RUN).stat().st_mtime))
    return {
        "folder": str(run.shown),
        "recipe": state.recipe,
        "kind": run.kind,
        "status": status,
        "changed": changed,
    }


@command
def list_(style: str) -> None:
    """List the starter recipes that `recipe new` copies, and the recipes and runs of this
    folder."""
    starters = [facts(path) for path in packaged.starters()]
    minimal = []
    for name, path in packaged.named().items():
        if path in packaged.minimal():
            minimal.append(facts(path, name))
    recipes = []
    recipes_here = []
    for path in batch.within(Path()):
        recipe = read_recipe(path)
        recipes_here.append(_row(path, recipe, str(path)))
        if recipe:
            recipes.append(recipe)
    runs = []
    for run in all_here():
        runs.append({**run_row(run), "made from": made_from(run, recipes)})
    if style == "json":
        say(
            json_text(
                {"starters": starters, "minimal": minimal, "recipes": recipes_here, "runs": runs}
            )
        )
        return
    _table(starters)
    if minimal:
        say("\nShort recipes, with defaults for everything else:")
        table([(row["name"], row["description"]) for row in minimal])
    for title, rows in (("Your recipes here", recipes_here), ("Your runs here", runs)):
        if rows:
            say(f"\n{title}:")
            _table(rows)
    end(
        f"{len(starters) + len(minimal)} starter recipes are available.",
        "new",
        "my-demo",
        "--from",
        "survival",
    )


def _table(rows: list[dict[str, str]]) -> None:
    cells = []
    for row in rows:
        cells.append([value or "-" for value in row.values()])
    table([[key.upper() for key in rows[0]], *cells])
