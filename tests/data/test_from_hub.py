"""Every name on the hub that a starter or the catalog has is loaded by the project's own code,
through the pinned client."""

from __future__ import annotations

import io
import json
import os
import re
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest
import yaml

from runner import catalog
from runner.catalog.tables import Facts
from runner.recipe import lock
from runner.recipe.reading import read
from tests.conftest import ROOT, STARTERS
from tests.hub import COMMIT, Files, Hub

ROWS = 300
SONGS = "rajtripathi/5M-Songs-Lyrics"
WORDS = [
    "the",
    "river",
    "runs",
    "past",
    "a",
    "quiet",
    "mill",
    "and",
    "under",
    "an",
    "old",
    "bridge",
    "where",
    "two",
    "children",
    "count",
    "boats",
    "until",
    "evening",
]

# Of billions of tokens it validates on a share that is less than a block of the text here.
OPTIONS = {"seven-b": ("--set", "stages.0.data.validation_share=0.02")}


def splits(facts: Facts) -> list[str]:
    return list(facts.get("splits", ["train"]))


CATALOG: Mapping[str, Facts] = catalog.table("datasets")
SPLITS = [(name, split) for name, facts in CATALOG.items() for split in splits(facts)]
MODELS = catalog.model_ids()
SHAPE = catalog.table("lock-file")["shape"]["fields"]
RECIPES_BY_NAME = {
    path.relative_to(ROOT / "recipes").with_suffix("").as_posix(): path for path in STARTERS
}


def sentence(column: str, number: int) -> str:
    """Words in an order of their own, so that no row is a duplicate of another."""
    turned = WORDS[number % len(WORDS) :] + WORDS[: number % len(WORDS)]
    return f"Of {column} {number}: {' '.join(turned)} {number * number}."


def picture(number: int) -> bytes:
    from PIL import Image

    out = io.BytesIO()
    Image.new("RGB", (32, 32), (number % 256, number // 256, 7)).save(out, "PNG")
    return out.getvalue()


def sample(file: str) -> list[tuple[str, ...]]:
    """The rows of a starter's sample, without the names of their columns."""
    lines = (ROOT / "recipes" / "data" / file).read_text("utf-8").splitlines()
    return [tuple(json.loads(line).values()) for line in lines]


def documents() -> list[str]:
    """Enough text for blocks to train and to validate on: the sample's texts in pairs, each pair
    once."""
    texts = [row[0] for row in sample("seven-b-text.jsonl")]
    return [
        f"{texts[at]}\n\n{texts[at - distance]}"
        for distance in range(1, 9)
        for at in range(len(texts))
    ]


def table_of(name: str, facts: Facts, first: int) -> bytes:
    """Rows from the number `first` on with the columns that the catalog claims, as Parquet with the
    hub's description of images and classes."""
    import pyarrow as pa
    from pyarrow import parquet

    names = facts.get("columns", ["text"])
    numbers = range(first, first + ROWS)
    columns: dict[str, object] = {
        column: [sentence(column, number) for number in numbers] for column in names
    }
    # Songs are read only in one form, and text that repeats itself is cleaned away: their samples
    # are good ones.
    if name == SONGS:
        columns = dict(zip(names, zip(*sample("lyrics-sample.jsonl"), strict=True), strict=True))
    elif names == ["text"]:
        columns = {"text": documents()}
    described = {}
    if classes := facts.get("classes"):
        image, label = names
        columns[image] = [{"bytes": picture(number), "path": None} for number in numbers]
        columns[label] = [number % classes for number in numbers]
        described[image] = {"_type": "Image"}
        described[label] = {
            "_type": "ClassLabel",
            "names": [f"kind {number}" for number in range(classes)],
        }
    table = pa.table(columns)
    if described:
        table = table.replace_schema_metadata(
            {"huggingface": json.dumps({"info": {"features": described}})}
        )
    out = io.BytesIO()
    parquet.write_table(table, out)
    return out.getvalue()


def data_sets() -> dict[str, Files]:
    """A repository for each data set of the catalog, with its subsets and splits."""
    repositories: dict[str, dict[str, bytes]] = {}
    subsets: dict[str, list[dict[str, object]]] = {}
    for name, facts in CATALOG.items():
        hub, _, subset = name.partition(":")
        files = repositories.setdefault(hub, {})
        paths = {
            split: f"{subset or 'data'}/{split}-00000-of-00001.parquet" for split in splits(facts)
        }
        for position, path in enumerate(paths.values()):
            files[path] = table_of(name, facts, position * ROWS)
        if subset:
            parts = [{"split": split, "path": path} for split, path in paths.items()]
            subsets.setdefault(hub, []).append({"config_name": subset, "data_files": parts})
    for hub, configs in subsets.items():
        repositories[hub]["README.md"] = (
            f"---\n{yaml.safe_dump({'configs': configs})}---\n".encode()
        )
    return dict(repositories)


def model_files(name: str) -> Files:
    """The small files of a model of the catalog."""
    from tokenizers import Tokenizer, models, pre_tokenizers

    facts = catalog.model(name)
    assert facts
    vocabulary = {
        word: number for number, word in enumerate(["<unk>", "<end>", *sorted({*WORDS, "Of", ":"})])
    }
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    words = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "unk_token": "<unk>",
        "eos_token": "<end>",
    }
    config = {
        "model_type": facts.model_type,
        **facts.class_settings(facts.sizes),
        "max_position_embeddings": facts.max_position_embeddings,
    }
    return {
        "config.json": json.dumps(config).encode(),
        "tokenizer_config.json": json.dumps(words).encode(),
        "tokenizer.json": tokenizer.to_str().encode(),
        "model.safetensors": b"weights, which nobody is to fetch",
    }


def test_starters_and_catalog_name_something_to_load():
    assert SPLITS and MODELS and RECIPES_BY_NAME
    assert sum(bool(hubs_of(read(path).data)) for path in STARTERS) > 5


@pytest.fixture(scope="module")
def hub():
    return Hub(models={name: model_files(name) for name in MODELS}, datasets=data_sets())


@pytest.fixture(scope="module")
def environment(hub, tmp_path_factory):
    own = {
        "HF_ENDPOINT": hub.url,
        "HF_HOME": str(tmp_path_factory.mktemp("hf")),
        "HF_TOKEN": "",
        "HF_HUB_OFFLINE": "",
    }
    return os.environ | {"PYTHONPATH": str(ROOT), "COLUMNS": "120"} | own


@pytest.fixture(scope="module")
def loaded(environment, tmp_path_factory):
    """What one process loads for all tests here."""
    file = tmp_path_factory.mktemp("wanted") / "wanted.json"
    based = {read(path).lookup(("model", "base")) for path in STARTERS}
    file.write_text(
        json.dumps(
            {"data_sets": SPLITS, "models": MODELS, "tokenizers": sorted(based & {*MODELS})}
        ),
        "utf-8",
    )
    done = subprocess.run(
        [sys.executable, "-m", "tests.loading_from_hub", str(file)],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout.splitlines()[-1])


@pytest.fixture(scope="module")
def checked(recipe_command, environment):
    """What one `recipe check --online` says of all starters: the lines of problems about their
    data."""
    done = recipe_command("check", *map(str, STARTERS), "--online", env=environment)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.parametrize(("name", "split"), SPLITS, ids=lambda part: part)
def test_a_data_set_of_the_catalog_gives_rows_with_its_columns(name, split, loaded):
    assert loaded["data_sets"][f"{name} {split}"] == CATALOG[name].get("columns", ["text"])


@pytest.mark.parametrize("name", MODELS)
def test_a_model_of_the_catalog_is_described_by_its_files_on_the_hub(name, loaded):
    entry, facts = loaded["models"][name], catalog.model(name)
    assert (entry["source"], entry["revision"]) == ("hub", COMMIT)
    described = lock.model_of(name, entry)
    assert {field: getattr(described, field) for field in SHAPE} == {
        field: getattr(facts, field) for field in SHAPE
    }


def test_tokenizers_of_the_starters_models_are_loaded(loaded):
    assert len(loaded["tokenizers"]) > 5 and all(loaded["tokenizers"].values())


@pytest.mark.parametrize("name", RECIPES_BY_NAME)
def test_the_hub_has_what_a_starter_reads(name, checked, hub):
    said = [
        line
        for line in checked.splitlines()
        if f"{RECIPES_BY_NAME[name]}:" in line or f"{name}.yaml:" in line
    ]
    assert not [
        line
        for line in said
        if re.search("cannot be loaded|could not be asked|does not have", line)
    ]
    for one in hubs_of(read(RECIPES_BY_NAME[name]).data):
        assert any(f"/datasets/{one}/" in asked for asked in hub.asked)


def hubs_of(section: object) -> list[str]:
    """All values of `hub` in a recipe."""
    if isinstance(section, list):
        return [name for item in section for name in hubs_of(item)]
    if not isinstance(section, dict):
        return []
    own = [section["hub"]] if isinstance(section.get("hub"), str) else []
    return own + [name for item in section.values() for name in hubs_of(item)]


@pytest.mark.long
@pytest.mark.parametrize("name", RECIPES_BY_NAME)
def test_the_data_stage_of_a_starter_reads_the_hub(name, environment, tmp_path: Path, hub):
    names = hubs_of(read(RECIPES_BY_NAME[name]).data)
    if not names:
        pytest.skip("it names no data set on the hub")
    hub.downloaded.clear()
    done = subprocess.run(
        [
            sys.executable,
            "-m",
            "runner",
            "prepare",
            str(RECIPES_BY_NAME[name]),
            "--out",
            str(tmp_path / "rows"),
            *OPTIONS.get(name, ()),
        ],
        cwd=tmp_path,
        env=environment | {"HF_HOME": str(tmp_path / "hf")},
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    assert any(file.endswith(".parquet") for file in hub.downloaded)
