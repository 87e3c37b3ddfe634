"""Names on the hub that its pinned client refuses are refused by `recipe check`, at their line,
before anything runs."""

from __future__ import annotations

import pytest

from runner import catalog
from runner.check import by_schema
from runner.check.validate import examine
from tests.conftest import ROOT, STARTERS, setting_of

GEMMA = ROOT / "recipes" / "gemma.yaml"
DATA_SETS = sorted({name.partition(":")[0] for name in catalog.table("datasets")})
ACCEPTED = [*DATA_SETS, "me/rows", "me-and_you/rows.v2", "_me/rows_", f"me/{'x' * 96}"]
REFUSED = [
    "wikitext",
    "rows",
    "me/rows/more",
    "me/-rows",
    "me/rows.",
    "me/rows.git",
    "me/ro--ws",
    "me/ro..ws",
    f"me/{'x' * 97}",
    "me/ro ws",
    "",
]


def client_accepts(name: str, monkeypatch: pytest.MonkeyPatch) -> bool:
    """Whether huggingface_hub would ask the hub about the address by which `datasets` reads
    rows."""
    from huggingface_hub import HfFileSystem, constants
    from huggingface_hub.errors import HfUriError, HFValidationError, OfflineModeIsEnabled
    from huggingface_hub.utils import validate_repo_id

    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    address = f"datasets/{name}@{'0' * 40}/data/train.parquet"
    try:
        validate_repo_id(name)
        HfFileSystem(skip_instance_cache=True).resolve_path(address)
    except OfflineModeIsEnabled:
        return True
    except (HfUriError, HFValidationError, FileNotFoundError, ValueError):
        return False
    raise AssertionError(f"{name} was resolved without a hub")


@pytest.mark.parametrize("name", [*ACCEPTED, *REFUSED])
def test_the_schema_accepts_the_data_sets_that_the_pinned_client_accepts(name, monkeypatch):
    part = by_schema.part("causal-lm", "data.hub")
    assert by_schema.fits(part, name) == client_accepts(name, monkeypatch) == (name in ACCEPTED)


@pytest.mark.parametrize("name", ["wikitext", "rows", "fineweb-edu"])
def test_a_data_set_without_its_owner_is_a_problem_at_its_line_with_its_whole_name(
    name, tmp_path, golden_message
):
    text = GEMMA.read_text("utf-8")
    assert text.count("hub: Salesforce/wikitext") == 1
    (tmp_path / "mine.yaml").write_text(
        text.replace("hub: Salesforce/wikitext", f"hub: {name}"), "utf-8"
    )
    problems = [
        one
        for one in examine(tmp_path / "mine.yaml")
        if one.severity == "error" and "sample" not in one.source
    ]
    assert [setting_of(one) for one in problems] == ["hub"]
    golden_message(problems)


def test_every_model_of_the_catalog_has_its_owner():
    models = catalog.model_ids()
    assert models and all(name.count("/") == 1 for name in models)


@pytest.mark.parametrize(
    "path", STARTERS, ids=lambda path: path.relative_to(ROOT / "recipes").as_posix()
)
def test_no_starter_names_a_data_set_that_the_client_refuses(path):
    assert [one for one in examine(path) if one.severity == "error"] == []
