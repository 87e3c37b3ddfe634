"""The plan on one screen, in its parts, and as a picture."""

from __future__ import annotations

import json
import re
from xml.etree import ElementTree

import pytest

from runner.commands import cli
from runner.parts.planner.view.views import PARTS
from runner.recipe import units
from tests.conftest import RECIPES, ROOT, STARTERS

SVG = "{http://www.w3.org/2000/svg}"
SEVEN_B, SURVIVAL = (ROOT / "recipes" / f"{name}.yaml" for name in ("seven-b", "survival"))


@pytest.fixture
def planned(capsys):
    """`recipe plan ARGS…` in this process: its exit code, and what it said on standard output and
    standard error."""

    def run(*arguments: object) -> tuple[int, str, str]:
        code = cli._code(["plan", *map(str, arguments)])
        said = capsys.readouterr()
        return code, said.out, said.err

    return run


def words(text: str) -> str:
    return " ".join(text.split())


@pytest.mark.parametrize("path", STARTERS, ids=lambda path: path.stem)
def test_every_starter_is_planned_on_one_screen(path, planned):
    code, said, _ = planned(path)
    assert code == 0, said
    screen, _, notes = said.partition(f"\n\n{path}")
    lines = screen.splitlines()
    assert max(map(len, lines)) <= 80 and len(lines) <= 40
    assert [line.split()[0] for line in lines[1:3]] == ["It", "It"] and "fits: " in lines[0], (
        "four lines come first"
    )
    assert lines[4] == "", "then the table"
    rest = lines[5:]
    (sure,) = [at for at, line in enumerate(rest) if "published runs" in line]
    paragraph = "\n".join(rest[sure:]).split("\n\n")[0]
    assert rest[sure - 1] == "" and words(paragraph).endswith("More: `--details`.")
    assert not re.search(
        "^(Memory|Longest rows|Time|Disk|Checkpoints)[^:]*: ", screen, re.MULTILINE
    )
    found = json.loads(planned(path, "--format", "json")[1])
    for stage in found["stages"]:
        (row,) = [line for line in lines if line.startswith(f"{stage['stage']} ")]
        assert f"{stage['gpu_memory_bytes']['total'] / 2**30:.1f} (" in row
        assert units.duration(stage["time"]["total_seconds"]) in row
        assert units.between(*stage["time"]["range_seconds"], "–") in row
    for number, offer in enumerate(found["offers"], 1):
        assert words(f"{number}. {', '.join(offer['lines'])}") in words(screen)
    assert not notes or "note:" in notes


def test_details_have_what_the_screen_leaves_out(planned):
    shown = words(planned(SURVIVAL, "--details")[1].replace("│", " "))
    for figure in (
        "(−5 to +5 % on 13 published runs, none like this)",
        "the longest expected has 256 tokens (the 99th percentile in the catalog of data sets)",
        "−31 to +46 % on 215 published runs, none like this",
        "trained-models-pvc: 41.1 GiB will be written",
        "4, one every 2.2 min",
    ):
        assert figure in shown


def test_the_page_of_the_plan_quotes_survivals(planned):
    page = words((ROOT / "docs/plan.md").read_text("utf-8"))
    first, second, *_ = planned(SURVIVAL)[1].splitlines()
    over_links = planned(SURVIVAL, "--set", "openshift.network.gbit_s=100")[1].splitlines()[1:]
    needs = re.search("it needs .*(?=[.])", first)[0]
    slow, fast = (
        re.search("It takes ([^(]+) [(]", said)[1] for said in (second, " ".join(over_links))
    )
    assert f"`{needs}` means" in page
    assert (
        f"take {slow} over a pod network that reaches 6.6 Gbit/s, and {fast} over links of 100 Gbit/s"
        in page
    )


def test_the_screen_reads_as_it_should(planned, golden_message):
    golden_message(planned(SEVEN_B)[1], "a pipeline")
    golden_message(planned(SURVIVAL, "--price", "2")[1], "with a price")
    unknown = ("--set", "machines.gpu=NVIDIA-OWN", "--set", "limits.time=")
    golden_message(planned(SURVIVAL, *unknown)[1], "a card that nobody knows")
    uncounted = ("--set", "data.hub=someone/else", "--set", "limits.time=")
    golden_message(planned(SURVIVAL, *uncounted)[1], "rows that nobody has counted")


def test_a_picture_is_written_where_it_can_be(planned, tmp_path):
    code, _, _ = planned(SURVIVAL, "--chart", tmp_path / "no" / "folder" / "plan.svg")
    assert code == 0 and (tmp_path / "no" / "folder" / "plan.svg").is_file()
    (tmp_path / "file").write_text("")
    code, _, said = planned(SURVIVAL, "--chart", tmp_path / "file" / "plan.svg")
    assert code == 1 and "cannot be written" in said
    code, _, said = planned(SURVIVAL, "--chart", tmp_path / "recipe.yaml")
    assert code == 2 and "recipe.yaml" in said and not (tmp_path / "recipe.yaml").exists()


def drawn(planned, path, tmp_path, *options):
    """The picture's root, and the JSON beside which it was drawn."""
    file = tmp_path / "plan.svg"
    said = planned(path, "--chart", file, "--format", "json", *options)[1]
    return ElementTree.parse(file).getroot(), json.loads(said)


@pytest.mark.parametrize("name", [path.stem for path in RECIPES])
def test_the_picture_is_of_the_same_figures(name, planned, tmp_path):
    root, found = drawn(planned, ROOT / "recipes" / f"{name}.yaml", tmp_path)
    panels = {
        panel.get("data-stage"): panel for panel in root.iter(f"{SVG}g") if panel.get("data-stage")
    }
    assert list(panels) == [stage["stage"] for stage in found["stages"]]
    for stage in found["stages"]:
        panel, memory = panels[stage["stage"]], stage["gpu_memory_bytes"]
        said = [text.text for text in panel.iter(f"{SVG}text")]
        assert f"{stage['stage']}: {units.gib(memory['total'])} on each GPU, fits" in said
        assert any(f"has {units.gib(memory['usable'])}" in text for text in said)
        scale, base = float(panel.get("data-bytes-a-pixel")), float(panel.get("data-base"))
        limits = [line for line in panel.iter(f"{SVG}line") if line.get("class") == "limit"]
        assert (base - float(limits[0].get("y1"))) * scale == pytest.approx(
            memory["usable"], abs=scale
        )
        areas = {area.get("data-part"): area for area in panel.iter(f"{SVG}polygon")}
        low = [0] * len(memory["step"])
        for part in PARTS:
            sizes = [moment[part] for moment in memory["step"]]
            assert (part in areas) == any(sizes)
            high = [below + size for below, size in zip(low, sizes, strict=True)]
            if part in areas:
                heights = [float(y) for y in re.findall(r",([\d.]+)", areas[part].get("points"))][
                    : len(high)
                ]
                assert [(base - y) * scale for y in heights] == pytest.approx(high, abs=scale)
            low = high
        training = max(low)
        assert max(training, memory["in_evaluation"]) == pytest.approx(memory["total"], rel=1e-6)
        assert training == pytest.approx(sum(memory["parts"].values()), rel=1e-6)
        bars = [bar for bar in panel.iter(f"{SVG}rect") if bar.get("data-part")]
        whole = sum(float(bar.get("height")) for bar in bars) * scale
        assert whole == pytest.approx(memory["in_evaluation"], abs=scale)


def test_a_limit_of_the_recipe_s_own_is_a_line(planned, tmp_path):
    root, found = drawn(planned, SURVIVAL, tmp_path, "--set", "limits.gpu_memory=40 GB")
    (panel,) = [panel for panel in root.iter(f"{SVG}g") if panel.get("data-stage")]
    assert found["stages"][0]["gpu_memory_bytes"]["limit"] == 40 * 10**9
    (line,) = [line for line in panel.iter(f"{SVG}line") if line.get("class") == "own"]
    scale, base = float(panel.get("data-bytes-a-pixel")), float(panel.get("data-base"))
    assert (base - float(line.get("y1"))) * scale == pytest.approx(40 * 10**9, abs=scale)
    assert any("limit is 37.3 GiB" in (text.text or "") for text in panel.iter(f"{SVG}text"))
    root, found = drawn(planned, SURVIVAL, tmp_path, "--set", "limits.gpu_memory=")
    assert found["stages"][0]["gpu_memory_bytes"]["limit"] is None
    assert not [line for line in root.iter(f"{SVG}line") if line.get("class") == "own"]


def test_the_picture_s_bars_are_the_stages_times(planned, tmp_path):
    root, found = drawn(planned, SEVEN_B, tmp_path)
    (panel,) = [panel for panel in root.iter(f"{SVG}g") if panel.get("data-seconds-a-pixel")]
    scale = float(panel.get("data-seconds-a-pixel"))
    said = [text.text for text in panel.iter(f"{SVG}text")]
    for stage in found["stages"]:
        bars = [bar for bar in panel.iter(f"{SVG}rect") if bar.get("data-stage") == stage["stage"]]
        assert len(bars) == 3
        for bar in bars:
            seconds = stage["time"][bar.get("data-part")]
            assert float(bar.get("width")) * scale == pytest.approx(seconds, abs=scale / 50)
        total, likely = stage["time"]["total_seconds"], stage["time"]["range_seconds"]
        assert f"{units.duration(total)} ({units.between(*likely)})" in said


def test_a_picture_stands_alone_and_follows_light_and_dark(planned, tmp_path):
    root, _ = drawn(
        planned, SURVIVAL, tmp_path, "--set", "name=a-b", "--set", "machines.gpu=NVIDIA-OWN"
    )
    text = (tmp_path / "plan.svg").read_text("utf-8")
    assert "prefers-color-scheme: dark" in text
    assert (
        "http" not in text.replace('xmlns="http://www.w3.org/2000/svg"', "") and "url(" not in text
    )
    assert not list(root.iter(f"{SVG}script")) and not list(root.iter(f"{SVG}image"))
    assert [line for line in root.iter(f"{SVG}line") if line.get("class") == "limit"] == [], (
        "nobody knows this card"
    )
    width = float(root.get("width"))
    assert all(0 <= float(spot.get("x")) <= width for spot in root.iter(f"{SVG}text"))
