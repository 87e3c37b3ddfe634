"""Checks the recipes that a pull request of GitHub or a merge request of GitLab changes, and those
that need a file that it changes or deletes. Problems are beside their lines; one comment, which
every push updates, has the changes in settings and plans.

`python -m runner.parts.ci.pull_request github [PATH…]` where GitHub Actions runs, `… gitlab
[PATH…]` in a job of GitLab.
"""

import json
import os
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, Self

from runner.check.batch import ENDINGS, FAIL_ON, CheckReport, find, is_meant, judged
from runner.check.validate import valid
from runner.parts.ci import formats, needed_files
from runner.parts.start.commands import diff
from runner.recipe import lock, reading
from runner.tools import packaged
from runner.tools.files import write_text
from runner.tools.problem import Stop, found_by, listed
from runner.tools.text import printable

# The invisible beginning of our own comment.
MARK = "<!-- recipe-runner -->"
# GitHub accepts 65,536 characters, GitLab more.
MOST_LETTERS = 60_000
SECONDS = 30
REPORT = "gl-code-quality-report.json"


class Request:
    """A pull or merge request. forge: its entry in `forges.toml`, with the words filled in; base:
    the commit to compare with."""

    def __init__(
        self, forge: str, number: int | str, base: str, environment: Mapping[str, str]
    ) -> None:
        self.base = base
        placeholders = {"RECIPE_TOKEN": ""} | dict(environment) | {"number": number}
        settings = packaged.toml(__file__, "forges.toml")[forge]
        self.comments = settings["comments"].format_map(placeholders)
        self.each = settings["each"].format_map(placeholders)
        self.updating: str = settings["updating"]
        self.headers = {
            name: value.format_map(placeholders) for name, value in settings["headers"].items()
        }

    @classmethod
    def of(cls, forge: str, environment: Mapping[str, str]) -> Self | None:
        """None in a run without a request."""
        if forge == "gitlab":
            number = environment.get("CI_MERGE_REQUEST_IID")
            if number:
                return cls(
                    forge, number, environment["CI_MERGE_REQUEST_DIFF_BASE_SHA"], environment
                )
            return None
        event = json.loads(Path(environment["GITHUB_EVENT_PATH"]).read_text(encoding="utf-8"))
        pull = event.get("pull_request")
        if pull:
            return cls(forge, pull["number"], pull["base"]["sha"], environment)
        return None

    def comment(self, text: str) -> None:
        """Updates our comment, or creates it unless the text is empty. Raises OSError."""
        comment_id = None
        page = 1
        while comment_id is None and (
            comments := self._ask("GET", f"{self.comments}?per_page=100&page={page}")
        ):
            comment_id = next(
                (entry["id"] for entry in comments if (entry.get("body") or "").startswith(MARK)),
                None,
            )
            page += 1
        if comment_id is not None:
            self._ask(
                self.updating,
                f"{self.each}/{comment_id}",
                {"body": text or f"{MARK}\nNo recipe changes any more."},
            )
        elif text:
            self._ask("POST", self.comments, {"body": text})

    def _ask(self, method: str, address: str, body: object = None) -> Any:
        if body is None:
            data = None
        else:
            data = json.dumps(body).encode()
        headers = {
            **self.headers,
            "Content-Type": "application/json",
            "User-Agent": "recipe-runner",
        }
        request = urllib.request.Request(address, data, headers, method=method)
        with urllib.request.urlopen(request, timeout=SECONDS) as answer:
            return json.load(answer)


def changed(base: str, paths: Iterable[str]) -> dict[str, str | None]:
    """The recipes below these paths that changed since a commit, which is fetched if missing, each
    with the name of its file at that commit; None for a new recipe. Raises Stop if git fails."""
    _fetch(base)
    status_lines = _git(
        "diff", "--relative", "--name-status", "-z", "-M", "--diff-filter=AMR", base, "--", *paths
    )
    fields = iter(status_lines.split("\0")[:-1])
    changed_recipes: dict[str, str | None] = {}
    for status in fields:
        before = next(fields)
        if status.startswith("R"):
            file = next(fields)
        else:
            file = before
        if file.endswith(ENDINGS) and Path(file).name != lock.LOCK and is_meant(Path(file)):
            changed_recipes[file] = None if status == "A" else before
    return changed_recipes


def changed_files(base: str) -> list[str]:
    """Every file of the repository that was changed, added, moved or deleted since a commit, which
    is fetched if missing: absolute, the old name of a moved one too. Raises Stop if git fails."""
    _fetch(base)
    top = _git("rev-parse", "--show-toplevel").removesuffix("\n")
    names = _git("diff", "--name-only", "--no-renames", "-z", base, "--", f"{top}/")
    return [os.path.join(top, name) for name in names.split("\0")[:-1]]


def in_need(
    files: Collection[str], paths: Sequence[str], recipes: Collection[str]
) -> dict[str, str]:
    """The recipes below these paths that need one of the changed files, each with the first such
    file, without the changed recipes."""
    try:
        candidates = find(paths)[0]
    except Stop:
        return {}  # no recipe remains
    unchanged = []
    for file in map(os.path.relpath, candidates):
        if file not in recipes and os.path.isfile(file):
            unchanged.append(file)
    return needed_files.recipes_with(files, unchanged)


def _fetch(commit: str) -> None:
    """Fetches a commit, unless it is here."""
    try:
        _git("cat-file", "-e", f"{commit}^{{commit}}")
    except Stop:
        _git("fetch", "--quiet", "--depth=1", "origin", commit)


def _git(*arguments: str) -> str:
    """The output of git. Raises Stop with its error."""
    done = subprocess.run(
        ["git", *arguments], capture_output=True, encoding="utf-8", errors="surrogateescape"
    )
    if done.returncode != 0:
        raise Stop(
            f"`git {arguments[0]}` says: {done.stderr.strip()}",
            "Check the repository out with its history.",
        )
    return done.stdout


def comment_text(recipes: Mapping[str, str | None], base: str) -> str:
    """The comment about what `changed` found; empty if no recipe has changed."""
    text = f"{MARK}\n\n## What changes in recipes"
    for file, former in recipes.items():
        text += f"\n\n### `{' '.join(file.replace('`', '').split())}`\n\n{recipe_changes(file, former, base)}"
    if len(text) > MOST_LETTERS:
        text = f"{text[:MOST_LETTERS].rpartition(chr(10))[0]}\n\nThe rest is too long for a comment: `recipe diff --plan` shows it."
    if recipes:
        return text
    return ""


def recipe_changes(file: str, former: str | None, base: str) -> str:
    """The changes of a recipe. former: its file at the base, None for a new recipe."""
    try:
        after = reading.read(file)
        before = None
        if former is not None:
            with suppress(Stop):  # it had errors
                valid(
                    former_recipe := reading.parse(file, _git("show", f"{base}:./{former}")),
                    look=False,
                )
                before = former_recipe
        if before:
            settings = diff.in_settings(before, after)
        else:
            settings = []
        tables = diff.markdown(settings, diff.in_plans(before, after))
    except Stop:
        return "It has errors, so it has no plan; the errors are beside its lines."
    if former is None:
        heading = "A new recipe."
    elif before is None:
        heading = "Before, it had errors."
    else:
        heading = ""
    return "\n\n".join(
        filter(None, (heading or ("" if settings else "No setting differs."), tables))
    )


def main(arguments: Sequence[str], environment: Mapping[str, str]) -> int:
    """Exit code 1 if a recipe has errors, or, with RECIPE_FAIL_ON=note, notes. A failed comment is
    reported, but is not an error. Raises Stop for an impossible RECIPE_FAIL_ON, or if git fails."""
    forge, *given_paths = arguments
    paths = given_paths or ["."]
    fail_on = environment.get("RECIPE_FAIL_ON") or "error"
    if fail_on not in FAIL_ON:
        raise Stop(
            f"`{fail_on}` is not a severity that a check can fail on.",
            f"Use {listed(FAIL_ON, 'or')}.",
            code=2,
        )
    request = Request.of(forge, environment)
    recipes = dict[str, str | None]()
    needing = dict[str, str]()
    other_files = list[str]()
    if request:
        recipes = changed(request.base, paths)
        other_files = changed_files(request.base)
        needing = in_need(other_files, paths, recipes)
        files = [*recipes, *needing]
    else:
        files = find(paths)[0]
    for recipe, needed in needing.items():
        print(
            printable(f"`{recipe}` is checked too, because it needs `{os.path.relpath(needed)}`.")
        )
    if files:
        verdict = judged(files, jobs=os.cpu_count() or 1)
    else:
        verdict = CheckReport(0, ())
    broken_schemas = found_by("schema", needed_files.schema_problems(files, other_files))
    verdict = replace(verdict, problems=(*verdict.problems, *broken_schemas))
    for problem in verdict.problems:
        print(printable(f"{problem}\n"))
    print(f"Recipes checked: {len(files)}, errors: {len(verdict.errors)}.")
    if forge == "github":
        print(printable(formats.written(formats.GITHUB, files, verdict)))
    else:
        write_text(Path(REPORT), formats.written(formats.GITLAB, files, verdict))
    if request and environment.get("RECIPE_COMMENT", "true") == "true":
        text = comment_text(recipes, request.base)
        summary = environment.get("GITHUB_STEP_SUMMARY")
        if summary:
            with open(summary, "a", encoding="utf-8") as out:
                out.write(text)
        try:
            request.comment(text)
        except OSError as error:
            remedy = "The recipes were checked anyway."
            if isinstance(error, urllib.error.HTTPError) and error.code in (401, 403, 404):
                remedy = "The token may not write comments here; a token from a fork never may. docs/ci.md names the permission that it needs."
            print(f"The comment could not be written: {error}. {remedy}")
    if verdict.bugs:
        return 3
    if verdict.failing(fail_on):
        return 1
    return 0


if __name__ == "__main__":
    try:
        sys.exit(main(sys.argv[1:], os.environ))
    except Stop as stop:
        print(stop.text, file=sys.stderr)
        sys.exit(stop.code)
