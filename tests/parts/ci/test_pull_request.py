"""What changes in a pull request: which recipes, their problems beside the lines, and one comment
that every push brings up to date. The forges are small servers of this machine that answer as their
APIs do."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from email.message import Message
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import pytest
import yaml

from runner import catalog
from runner.check import by_schema
from runner.parts.ci import needed_files, pull_request
from runner.parts.ci.pull_request import MARK, changed
from runner.recipe import lock
from runner.tools import packaged
from runner.tools.problem import Stop
from tests.conftest import ROOT

TEXT = (ROOT / "recipes" / "minimal" / "lora.yaml").read_text("utf-8")


class Forge:
    """The comments of one pull request, and what was asked. refuses: the status that every change
    is answered with."""

    def __init__(self) -> None:
        self.comments = [{"id": n, "body": f"> {MARK}\nquoted"} for n in range(1, 104)]
        self.asked: list[tuple[str, str]] = []
        self.headers: Message = Message()
        self.refuses = 0

    @property
    def own(self) -> list[str]:
        return [one["body"] for one in self.comments if one["body"].startswith(MARK)]


@contextmanager
def forge() -> Iterator[tuple[Forge, str]]:
    state = Forge()

    class Answers(BaseHTTPRequestHandler):
        def log_message(self, *_: object) -> None:
            pass

        def answer(self, value: object, status: int = 200) -> None:
            self.send_response(status)
            self.end_headers()
            self.wfile.write(json.dumps(value).encode())

        def do_GET(self) -> None:
            state.headers = self.headers
            page = int(parse_qs(urlsplit(self.path).query)["page"][0])
            self.answer(state.comments[(page - 1) * 100 : page * 100])

        def change(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))["body"]
            state.asked.append((self.command, self.path))
            if state.refuses:
                self.answer({"message": "Resource not accessible by integration"}, state.refuses)
                return
            last = self.path.rpartition("/")[2]
            if self.command == "POST":
                state.comments.append({"id": 1000, "body": body})
            else:
                (known,) = (one for one in state.comments if one["id"] == int(last))
                known["body"] = body
            self.answer({})

        do_POST = do_PATCH = do_PUT = change

    server = ThreadingHTTPServer(("127.0.0.1", 0), Answers)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
    thread.start()
    try:
        yield state, f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def git(folder: Path, *arguments: str) -> str:
    who = ("-c", "user.name=x", "-c", "user.email=x@example.org", "-c", "commit.gpgsign=false")
    return subprocess.run(
        ["git", *who, *arguments], cwd=folder, capture_output=True, text=True, check=True
    ).stdout


@pytest.fixture
def repository(tmp_path, monkeypatch):
    """A repository whose first commit has recipes, and the commit."""
    home = tmp_path / "repository"
    shutil.copytree(ROOT / "recipes" / "data", home / "data")
    recipe(home, "kept.yaml")
    recipe(home, "demos/other.yaml", "name: ", "name: other-")
    (home / "compose.yaml").write_text("services: {}\n")
    git(tmp_path, "init", "-q", "repository")
    commit(home)
    monkeypatch.chdir(home)
    return home, git(home, "rev-parse", "HEAD").strip()


def recipe(home: Path, file: str, *change: str) -> None:
    (home / file).parent.mkdir(exist_ok=True)
    up = "../" * file.count("/")
    text = TEXT.replace("../data", f"{up}data")
    assert not change or change[0] in text
    (home / file).write_text(text.replace(*change) if change else text, encoding="utf-8")


def commit(home: Path) -> None:
    git(home, "add", "-A")
    git(home, "commit", "-qm", "as it is")


def on_github(tmp_path: Path, base: str, address: str, **more: str) -> dict[str, str]:
    event = tmp_path / "event.json"
    event.write_text(json.dumps({"pull_request": {"number": 7, "base": {"sha": base}}}))
    known = {
        "GITHUB_EVENT_PATH": str(event),
        "GITHUB_API_URL": address,
        "GITHUB_REPOSITORY": "me/demos",
    }
    return known | {"RECIPE_TOKEN": "secret"} | more


def test_recipes_that_a_request_changes_are_found_and_nothing_else(repository):
    home, base = repository
    recipe(home, "new one.yml", "name: ", "name: new-")
    (home / "compose.yaml").write_text("services: {x: {}}\n")
    git(home, "mv", "demos/other.yaml", "demos/moved.yaml")
    commit(home)
    assert changed(base, ["."]) == {"new one.yml": None, "demos/moved.yaml": "demos/other.yaml"}
    assert list(changed(base, ["demos"])) == ["demos/moved.yaml"]
    with pytest.raises(Stop, match="Check the repository out with its history"):
        changed("0" * 40, ["."])


def checked_by_a_request(tmp_path: Path, base: str, *paths: str, **more: str) -> int:
    """The exit code of a request's check, without a comment."""
    environment = on_github(tmp_path, base, "", RECIPE_COMMENT="false", **more)
    return pull_request.main(["github", *paths], environment)


def test_a_request_that_breaks_the_data_of_a_recipe_that_stays_the_same_is_red(
    repository, tmp_path, capsys
):
    home, base = repository
    data = home / "data" / "survival-sample.jsonl"
    data.write_text(data.read_text("utf-8").replace('"answer"', '"reply"'), encoding="utf-8")
    commit(home)
    assert checked_by_a_request(tmp_path, base) == 1
    said = capsys.readouterr().out
    assert "Recipes checked: 2, errors: 2." in said
    assert "`kept.yaml` is checked too, because it needs `data/survival-sample.jsonl`." in said
    assert "::error file=kept.yaml,line=" in said and "names the column `answer`" in said
    # Only the recipes below the given paths.
    assert checked_by_a_request(tmp_path, base, "demos") == 1
    assert "Recipes checked: 1, errors: 1." in capsys.readouterr().out


def test_a_request_that_deletes_or_moves_the_data_of_a_recipe_is_red(repository, tmp_path, capsys):
    home, base = repository
    git(home, "mv", "data/survival-sample.jsonl", "data/moved.jsonl")
    commit(home)
    assert checked_by_a_request(tmp_path, base) == 1
    assert "survival-sample.jsonl` does not exist" in capsys.readouterr().out
    git(home, "rm", "-q", "data/moved.jsonl")
    commit(home)
    assert checked_by_a_request(tmp_path, base) == 1
    assert "Recipes checked: 2, errors: 2." in capsys.readouterr().out


def test_a_request_that_changes_a_file_that_no_recipe_needs_checks_none(
    repository, tmp_path, capsys
):
    home, base = repository
    (home / "data" / "museum.csv").write_text("gone\n")
    commit(home)
    assert checked_by_a_request(tmp_path, base) == 0
    assert "Recipes checked: 0, errors: 0." in capsys.readouterr().out


def test_a_request_that_takes_a_model_out_of_the_lock_file_is_red(repository, tmp_path, capsys):
    home, _ = repository
    entry = lock.entry_of(catalog.model("Qwen/Qwen3-0.6B"), "main")
    fields = {"source": "hub", "branch": "main", "revision": "0" * 40}
    lock.add(home / lock.LOCK, "our/own-model", {**entry, **fields})
    text = (home / "kept.yaml").read_text("utf-8")
    base_model = yaml.safe_load(text)["model"]["base"]
    (home / "kept.yaml").write_text(text.replace(base_model, "our/own-model"), encoding="utf-8")
    commit(home)
    base = git(home, "rev-parse", "HEAD").strip()
    assert pull_request.main(["github"], {"GITHUB_EVENT_PATH": str(push(tmp_path))}) == 0
    (home / lock.LOCK).unlink()
    commit(home)
    capsys.readouterr()
    assert checked_by_a_request(tmp_path, base) == 1
    said = capsys.readouterr().out
    assert (
        "Recipes checked: 1, errors: 1." in said and "`our/own-model` is not in the catalog" in said
    )


@pytest.mark.parametrize(
    ("schema", "reason"),
    [
        (None, "does not exist"),
        ("{", "cannot be read"),
        ('{"properties": {"scenario": {"const": "other"}}}', "refuses `scenario`"),
        ('{"type": "objekt"}', "is not a whole JSON Schema"),
    ],
)
def test_a_request_that_breaks_the_schema_of_a_recipe_is_red(
    repository, tmp_path, capsys, schema, reason
):
    home, _ = repository
    recipe(home, "kept.yaml", "../../schemas/lora.schema.json", "schemas/own.json")
    file = home / "schemas" / "own.json"
    file.parent.mkdir()
    file.write_text(by_schema.schema_text("lora"), encoding="utf-8")
    commit(home)
    base = git(home, "rev-parse", "HEAD").strip()
    file.write_text(file.read_text("utf-8") + "\n", encoding="utf-8")
    assert checked_by_a_request(tmp_path, base) == 0, "the schema still takes the recipe"
    if schema is None:
        file.unlink()
    else:
        file.write_text(schema)
    capsys.readouterr()
    assert checked_by_a_request(tmp_path, base) == 1
    (line,) = [line for line in capsys.readouterr().out.splitlines() if line.startswith("::error")]
    assert line.startswith("::error file=kept.yaml,line=") and reason in line


def test_a_request_that_breaks_what_a_schema_refers_to_is_red(repository, tmp_path, capsys):
    home, _ = repository
    recipe(home, "kept.yaml", "../../schemas/lora.schema.json", "schemas/lora.schema.json")
    (home / "schemas").mkdir()
    for name in ("lora.schema.json", packaged.DEFINITIONS):
        shutil.copy(ROOT / "schemas" / name, home / "schemas")
    commit(home)
    base = git(home, "rev-parse", "HEAD").strip()
    definitions = home / "schemas" / packaged.DEFINITIONS
    definitions.write_text(definitions.read_text("utf-8") + "\n", encoding="utf-8")
    assert checked_by_a_request(tmp_path, base) == 0, "the schema still takes the recipe"
    definitions.write_text('{"$defs": {}}', encoding="utf-8")
    capsys.readouterr()
    assert checked_by_a_request(tmp_path, base) == 1
    assert "is not a whole JSON Schema" in capsys.readouterr().out


@pytest.mark.parametrize(
    "lines",
    [
        "path: rows/mine.csv",
        "sets:\n  - {path: rows/mine.csv}",
        "hub: a/b\n  sample: rows/mine.csv",
        "path: rows",
        "chat_template: ./rows/../rows/mine.csv",
        "path: link.csv",
    ],
)
def test_whatever_a_recipe_names_by_path_is_needed(tmp_path, lines):
    (tmp_path / "rows").mkdir()
    (tmp_path / "link.csv").symlink_to("rows/mine.csv")
    file = tmp_path / "x.yaml"
    file.write_text(f"scenario: lora\ndata:\n  {lines}\n")
    changed_file = str(tmp_path / "rows" / "mine.csv")
    assert needed_files.recipes_with([changed_file], [str(file)]) == {str(file): changed_file}
    assert needed_files.recipes_with([str(tmp_path / "rows2")], [str(file)]) == {}


def test_a_request_may_fail_on_notes(repository, tmp_path, capsys):
    home, base = repository
    recipe(home, "kept.yaml", "machines:", "train: {lora_alpha: 1, lora_rank: 64}\nmachines:")
    commit(home)
    assert checked_by_a_request(tmp_path, base) == 0
    assert "::notice file=kept.yaml" in capsys.readouterr().out
    assert checked_by_a_request(tmp_path, base, RECIPE_FAIL_ON="note") == 1
    with pytest.raises(Stop, match="`never` is not a severity") as stop:
        checked_by_a_request(tmp_path, base, RECIPE_FAIL_ON="never")
    assert stop.value.code == 2


def push(tmp_path: Path) -> Path:
    """The event of a push, without a request."""
    event = tmp_path / "push.json"
    event.write_text("{}")
    return event


def test_a_pull_request_gets_its_lines_and_one_comment_that_is_brought_up_to_date(
    repository, tmp_path, capsys
):
    home, base = repository
    recipe(home, "kept.yaml", "machines:", "train: {epochs: 7}\nmachines:")
    recipe(home, "new.yaml", "name: ", "name: new-")
    recipe(home, "wrong.yaml", "scenario: lora", "scenario: lora\nepocs: 3")
    commit(home)
    with forge() as (state, address):
        summary = tmp_path / "summary.md"
        environment = on_github(tmp_path, base, address, GITHUB_STEP_SUMMARY=str(summary))
        assert pull_request.main(["github", "."], environment) == 1
        said = capsys.readouterr().out
        assert "::error file=wrong.yaml,line=" in said and "`epocs` is not a setting" in said
        (comment,) = state.own
        assert summary.read_text() == comment
        assert state.headers["Authorization"] == "Bearer secret"
        assert (
            "### `kept.yaml`\n\n| setting |" in comment
            and "| train.epochs |" in comment
            and "| 7 |" in comment
        )
        assert "| train: GPU memory |" in comment and "axolotl.yaml: num\\_epochs" in comment
        assert "### `new.yaml`\n\nA new recipe.\n\n| plan |" in comment
        assert "### `wrong.yaml`\n\nIt has errors" in comment
        assert "other" not in comment
        # The next push.
        git(home, "rm", "-q", "wrong.yaml")
        commit(home)
        assert pull_request.main(["github", "."], environment) == 0
        (comment,) = state.own
        assert "wrong.yaml" not in comment
        # And one that takes everything back.
        assert pull_request.main(["github", "demos"], environment) == 0
        assert state.own == [f"{MARK}\nNo recipe changes any more."]
        issues = "/repos/me/demos/issues"
        assert state.asked == [
            ("POST", f"{issues}/7/comments"),
            *[("PATCH", f"{issues}/comments/1000")] * 2,
        ]


def test_a_request_that_changes_no_recipe_gets_no_comment(repository, tmp_path, capsys):
    home, base = repository
    (home / "compose.yaml").write_text("services: {x: {}}\n")
    commit(home)
    with forge() as (state, address):
        assert pull_request.main(["github"], on_github(tmp_path, base, address)) == 0
        assert state.asked == []
    assert "Recipes checked: 0, errors: 0." in capsys.readouterr().out


def test_a_comment_that_is_refused_is_said_and_the_recipes_are_judged(repository, tmp_path, capsys):
    home, base = repository
    recipe(home, "new.yaml", "name: ", "name: new-")
    commit(home)
    with forge() as (state, address):
        state.refuses = 403
        environment = on_github(tmp_path, base, address)
        assert pull_request.main(["github"], environment) == 0
        assert "a token from a fork never may" in capsys.readouterr().out
        assert pull_request.main(["github"], environment | {"RECIPE_COMMENT": "false"}) == 0
        assert len(state.asked) == 1
    # The server is gone.
    assert pull_request.main(["github"], environment) == 0
    assert "The comment could not be written" in capsys.readouterr().out


def test_a_push_judges_all_recipes(repository, tmp_path, capsys):
    home, _ = repository
    recipe(home, "wrong.yaml", "scenario: lora", "scenario: lora\nepocs: 3")
    assert pull_request.main(["github"], {"GITHUB_EVENT_PATH": str(push(tmp_path))}) == 1
    assert "Recipes checked: 3, errors: 1." in capsys.readouterr().out


def test_a_merge_request_gets_a_report_and_a_note(repository, capsys):
    home, base = repository
    recipe(home, "wrong.yaml", "scenario: lora", "scenario: lora\nepocs: 3")
    commit(home)
    with forge() as (state, address):
        environment = {
            "CI_API_V4_URL": address,
            "CI_PROJECT_ID": "12",
            "CI_MERGE_REQUEST_IID": "3",
            "CI_MERGE_REQUEST_DIFF_BASE_SHA": base,
            "RECIPE_TOKEN": "secret",
        }
        assert [pull_request.main(["gitlab"], environment) for _ in range(2)] == [1, 1]
        notes = "/projects/12/merge_requests/3/notes"
        assert state.asked == [("POST", notes), ("PUT", f"{notes}/1000")]
        assert len(state.own) == 1 and state.headers["PRIVATE-TOKEN"] == "secret"
    (found,) = json.loads((home / pull_request.REPORT).read_text())
    assert found["location"]["path"] == "wrong.yaml" and found["severity"] == "major"
    assert len(found["fingerprint"]) == 32


def test_a_recipe_that_had_errors_is_planned_anew(repository, tmp_path):
    home, _ = repository
    recipe(home, "kept.yaml", "scenario: lora", "scenario: lora\nepocs: 3")
    commit(home)
    base = git(home, "rev-parse", "HEAD").strip()
    recipe(home, "kept.yaml")
    commit(home)
    text = pull_request.comment_text(changed(base, ["."]), base)
    assert "### `kept.yaml`\n\nBefore, it had errors.\n\n| plan |" in text


def test_a_long_comment_is_cut_at_a_line(repository, monkeypatch):
    home, base = repository
    recipe(home, "new.yaml", "name: ", "name: new-")
    commit(home)
    monkeypatch.setattr(pull_request, "MOST_LETTERS", 200)
    text = pull_request.comment_text(changed(base, ["."]), base)
    assert len(text) < 300 and text.endswith(
        "|\n\nThe rest is too long for a comment: `recipe diff --plan` shows it."
    )


def scripts() -> dict[str, str]:
    action = yaml.safe_load((ROOT / "action.yml").read_text("utf-8"))
    template = yaml.safe_load((ROOT / "ci" / "gitlab.yml").read_text("utf-8"))
    steps = {step["name"]: step["run"] for step in action["runs"]["steps"]}
    return steps | {"gitlab": "\n".join(template["recipe-check"]["script"])}


def test_shellcheck_finds_nothing_wrong_in_the_action_and_the_template():
    checker = shutil.which("shellcheck", path=str(Path(sys.executable).parent)) or shutil.which(
        "shellcheck"
    )
    if not checker:
        pytest.skip("shellcheck is not installed; `make install` brings it")
    assert len(scripts()) == 3
    for name, text in scripts().items():
        assert "${{" not in text, f"{name}: what others write would be read as a command"
        done = subprocess.run(
            [checker, "--shell=bash", "-"], input=text, capture_output=True, text=True
        )
        assert done.returncode == 0, f"{name}\n{done.stdout}"


@pytest.mark.parametrize(
    ("schema", "file"), [("github-actions", "action.yml"), ("gitlab-ci", "ci/gitlab.yml")]
)
def test_the_forges_own_schemas_take_the_files(schema, file):
    done = subprocess.run(
        [
            sys.executable,
            "-m",
            "check_jsonschema",
            "--builtin-schema",
            f"vendor.{schema}",
            str(ROOT / file),
        ],
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.long
def test_pre_commit_runs_the_hook_in_a_repository(tmp_path, monkeypatch):
    """It installs this checkout as it is committed, so it needs a package index."""
    pytest.importorskip(
        "pre_commit", reason="pre-commit is not installed; the extra `dev` brings it"
    )
    home = tmp_path / "demos"
    shutil.copytree(ROOT / "recipes" / "data", home / "data")
    recipe(home, "recipes/good.yaml")
    (home / "compose.yaml").write_text("services: {}\n")
    git(tmp_path, "init", "-q", "demos")
    commit(home)
    monkeypatch.setenv("PRE_COMMIT_HOME", str(tmp_path / "cache"))
    hook = [
        sys.executable,
        "-m",
        "pre_commit",
        "try-repo",
        str(ROOT),
        "recipe-check",
        "--all-files",
    ]
    done = subprocess.run(hook, cwd=home, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "Passed" in done.stdout
    recipe(home, "recipes/wrong.yaml", "scenario: lora", "scenario: lora\nepocs: 3")
    git(home, "add", "-A")
    done = subprocess.run(hook, cwd=home, capture_output=True, text=True)
    assert (
        done.returncode == 1
        and "recipes/wrong.yaml" in done.stdout
        and "`epocs` is not a setting" in done.stdout
    ), done.stdout
