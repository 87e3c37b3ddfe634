"""The documentation is true: every command parses and names files that are there, every link holds,
what follows from the code does."""

from __future__ import annotations

import re
from importlib import metadata
from itertools import pairwise
from pathlib import Path
from textwrap import indent

import click
import pytest

from runner.catalog import hardware, troubles
from runner.check.validate import load
from runner.commands import cli
from runner.plan import RUNS, Place
from runner.recipe import overrides
from runner.scenarios import translate
from runner.tools import packaged
from tests.conftest import ROOT, WRITE_GOLDEN
from tests.docs import pages
from tests.docs.pages import DOCS, HOUSE, PAGES, README, Command
from tests.parts.report import browser


def test_the_readme_is_short():
    assert len(README.read_text("utf-8").splitlines()) <= 120


@pytest.mark.golden
def test_what_follows_from_the_code_is_that_of_today(monkeypatch):
    monkeypatch.syspath_prepend(str(DOCS / "making"))
    import pages as making

    made = making.pages()
    assert len(made) > 15
    if WRITE_GOLDEN:
        for file, text in made.items():
            file.write_text(text, encoding="utf-8")
    old = [
        file.name
        for file, text in made.items()
        if not file.is_file() or file.read_text("utf-8") != text
    ]
    assert not old, "`make golden` writes them anew; read the difference"
    pictures = list((DOCS / "pictures").iterdir())
    assert all(file.stat().st_size < 60_000 for file in pictures)


def test_every_starter_has_its_page_and_its_row():
    readme, index = README.read_text("utf-8"), (DOCS / "starters/index.md").read_text("utf-8")
    for name, path in packaged.named().items():
        assert (DOCS / "starters" / f"{name.replace('/', '-')}.md").is_file()
        assert f"[`{name}`](" in index
        assert (f"[`{name}`](" in readme) == (path in packaged.starters())


def test_every_trouble_has_its_heading_and_says_so():
    headings = pages.anchors(DOCS / "troubles.md")
    for trouble in troubles.known():
        assert trouble.code in headings
        assert str(troubles.FoundTrouble(trouble, "")).endswith(f"({trouble.code})")


@pytest.mark.parametrize("page", [*PAGES, *HOUSE], ids=pages.name)
def test_every_link_holds(page):
    for target in pages.links(page):
        path, _, anchor = target.partition("#")
        file = (page.parent / path).resolve() if path else page
        assert file.exists(), target
        assert not anchor or anchor in pages.anchors(file), target


def test_the_page_on_clusters_has_the_figures_of_the_code():
    page = (DOCS / "cluster.md").read_text("utf-8")
    containerfile = (ROOT / "container/Containerfile").read_text("utf-8")
    newest, older = str(hardware.DRIVER), str(hardware.DRIVERS["12"])
    assert re.findall(r"driver (\d+) or newer", page) == [newest]
    assert re.findall(
        r"^\| NVIDIA driver .* \| (\d+) or newer, because of CUDA 13", page, re.M
    ) == [newest]
    assert re.findall(r"older driver \((\d+) or newer\)", page) == [older]
    assert re.findall(r"drivers older than (\d+)", containerfile) == [newest]
    assert re.findall(r"^\| temporary storage of a build \| (\d+) GiB", page, re.M) == [
        str(hardware.BUILD_GIB)
    ]
    assert re.findall(r"^\| image \| about (\d+) GB unpacked", page, re.M) == [
        str(hardware.IMAGE_GB)
    ]
    assert 2 * hardware.IMAGE_GB <= hardware.BUILD_GIB, "a build holds the image twice"


def parse(words: tuple[str, ...]) -> None:
    """Has click read a command, as it would before it runs it. Raises UsageError."""
    context, rest = click.Context(cli.cli), list(words)
    command: click.Command = cli.cli
    while isinstance(command, click.Group) and rest:
        name, command, rest = command.resolve_command(context, rest)
        # A group keeps what it does not know for the command below it.
        context = command.make_context(name, rest, parent=context)
        if isinstance(command, click.Group):
            rest = [*getattr(context, "_protected_args", ()), *context.args]


def test_what_click_would_refuse_is_refused_here():
    for wrong in (
        "chekc a.yaml",
        "check --formt json a.yaml",
        "plan a.yaml --price many",
        "models ad x",
        "plan",
    ):
        with pytest.raises(click.ClickException):
            parse(tuple(wrong.split()))
    parse(("models", "add", "a/b", "--recipe", "c.yaml"))


def is_copy(command: Command) -> bool:
    return command.words[0] == "new" and len(command.words) > 1


@pytest.mark.parametrize("page", PAGES, ids=pages.name)
def test_every_command_parses_and_names_what_is_there(page):
    made = {
        f"{command.words[1]}.yaml"
        for command in pages.commands(page)
        if command.spoken and is_copy(command)
    }
    for command in pages.commands(page):
        words = command.words
        if command.spoken and len(words) == 1:
            assert words[0] in cli.commands(), command
            continue
        try:
            parse(words)
        except click.ClickException as error:
            pytest.fail(f"{command}: {error.format_message()}")
        if is_copy(command):
            made.add(f"{words[1]}.yaml")
            starter = words[words.index("--from") + 1] if "--from" in words else "NAME"
            assert starter in packaged.named() or starter.isupper(), command
        sets = [value for option, value in pairwise(words) if option == "--set"]
        assert len(overrides.from_options(sets)) == len(sets)
        for word in words:
            if re.fullmatch(r"[\w./-]+\.ya?ml", word) and not word.startswith("/"):
                assert word in made or (ROOT / word).is_file(), (
                    f"{command}: `{word}` is not there by then"
                )


def test_there_are_commands_to_look_at():
    assert sum(len(list(pages.commands(page))) for page in PAGES) > 120


@pytest.fixture(scope="module")
def site(tmp_path_factory) -> Path:
    """The pages as `make docs` builds them; a warning is an error."""
    build = pytest.importorskip("sphinx.cmd.build", reason="needs the extra `docs`")
    folder = tmp_path_factory.mktemp("site")
    assert build.main(["-b", "html", "-W", "--keep-going", "-q", str(DOCS), str(folder)]) == 0
    return folder


def test_the_site_loads_nothing_from_elsewhere(site):
    looked_at = 0
    for file in site.rglob("*.html"):
        text = file.read_text("utf-8")
        for tag in re.findall(
            r"<(?:script|link|img|iframe|object|source|video|audio)\b[^>]*>", text
        ):
            looked_at += 1
            assert not re.search(r"(?:src|href|srcset|data)\s*=\s*[\"']?(?:https?:)?//", tag), (
                f"{file.name}: {tag}"
            )
    for file in site.rglob("*.css"):
        assert not re.search(
            r"(?:url\(|@import)\s*[\"']?(?:https?:)?//", file.read_text("utf-8")
        ), file.name
    for file in (site / "_images").glob("*.svg"):
        assert not re.search(
            r"(?:url\(|href=|src=)[\"']?(?:https?:)?//", file.read_text("utf-8")
        ), file.name
    assert looked_at > 200


@pytest.mark.skipif(browser.found() is None, reason="no Chromium here (apt-get install chromium)")
def test_no_page_of_the_site_scrolls_sideways(site, tmp_path):
    files = sorted(site.rglob("*.html"))
    assert len(files) > 25
    with browser.Browser(tmp_path / "profile") as tab:
        for file in files:
            tab.open(file)
            for width in (320, 1024, 1100, 1366):
                tab.resize(width)
                assert tab.value("document.documentElement.scrollWidth") <= width, (
                    f"{file.name} at {width} pixels"
                )


def test_no_page_is_lost(site):
    """Sphinx writes its own `search.html` and `genindex.html` over pages of that name."""
    for page in DOCS.rglob("*.md"):
        title = page.read_text("utf-8").partition("\n")[0].removeprefix("# ")
        file = (site / page.relative_to(DOCS)).with_suffix(".html")
        assert f"<h1>{title}" in file.read_text("utf-8"), page.name


def test_every_link_of_the_site_holds(site):
    files = {file: file.read_text("utf-8") for file in site.rglob("*.html")}
    assert len(files) > 25
    for file, text in files.items():
        for target in re.findall(r"<a\b[^>]*?\bhref=\"([^\"]*)\"", text):
            if re.match(r"[a-z]+:", target):
                continue
            path, _, anchor = target.partition("#")
            there = (file.parent / path).resolve() if path else file
            assert there.exists(), f"{file.name}: {target}"
            if anchor and there in files:
                assert f'id="{anchor}"' in files[there], f"{file.name}: {target}"


def test_the_mistake_on_the_pages_is_what_check_prints(recipe_command, tmp_path):
    assert recipe_command("new", "my-demo", "--from", "survival", cwd=tmp_path).returncode == 0
    recipe = tmp_path / "my-demo.yaml"
    recipe.write_text(
        recipe.read_text("utf-8").replace("  epochs: ", "  epocs: "), encoding="utf-8"
    )
    printed = recipe_command("check", recipe.name, cwd=tmp_path).stdout
    begin = printed.index("my-demo.yaml:")
    mistake = printed[begin : printed.index("\n", printed.index("Did you mean"))]
    assert indent(mistake, "    ") in (ROOT / "README.md").read_text("utf-8")
    assert mistake in (ROOT / "docs" / "checking.md").read_text("utf-8")


def test_curves_are_named_where_runs_write_them():
    """The page names the folders of a run with one stage and of one with several; Axolotl brings
    the program."""
    page = (ROOT / "docs" / "loss-curve.md").read_text("utf-8")
    commands = re.findall(r"tensorboard --logdir (\S+)", page)
    folders = set()
    for starter, stage in (("survival", "train"), ("sft-dpo", "dpo")):
        recipe = load(
            ROOT / "recipes" / f"{starter}.yaml", overrides.from_options(("openshift=",))
        )[0]
        run = Path(RUNS) / recipe.name
        place = Place(f"{run}/config", f"{run}/data", str(run), f"{run}/scratch")
        curves = translate(recipe, place).stage(stage).env["TENSORBOARD_LOGGING_DIR"]
        folders.add(curves.replace(recipe.name, "my-demo"))
    assert folders == {"runs/my-demo/tensorboard", "runs/my-demo/dpo/tensorboard"}
    assert {RUNS, "runs/my-demo/tensorboard"} <= set(
        commands
    ) and "runs/my-demo/dpo/tensorboard" in page
    assert "tensorboard" in metadata.requires("axolotl")
