"""Files appear whole or not at all, whatever ends the writing, and records are read whoever wrote
them."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Mapping
from dataclasses import dataclass, field

import pytest

from runner.tools.files import Artifact, Record, replacing, replacing_folder, write_all


class Ended(BaseException):
    """What no `except Exception` catches, like ^C."""


def names(folder) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*"))


def test_a_file_is_as_it_was_until_the_new_one_is_on_disk(tmp_path, monkeypatch):
    file, synced = tmp_path / "below" / "a.json", []
    monkeypatch.setattr(
        os, "fsync", lambda number: synced.append(os.readlink(f"/proc/self/fd/{number}"))
    )
    with replacing(file) as partial:
        partial.write_text("old")
    with replacing(file) as partial:
        partial.write_text("new")
        assert (file.read_text(), partial.parent, partial.name[0]) == ("old", file.parent, ".")
    assert file.read_text() == "new"
    assert synced == [str(partial)] * 2
    assert names(file.parent) == ["a.json"]


@pytest.mark.parametrize("error", [OSError, Ended])
def test_a_file_that_could_not_be_written_leaves_the_old_one_and_nothing_beside_it(error, tmp_path):
    (tmp_path / "a.json").write_text("old")
    with pytest.raises(error), replacing(tmp_path / "a.json") as partial:
        partial.write_text("ha")
        raise error
    assert names(tmp_path) == ["a.json"]
    assert (tmp_path / "a.json").read_text() == "old"


@pytest.mark.parametrize("error", [OSError, Ended])
def test_a_folder_is_replaced_whole_or_not_at_all(error, tmp_path):
    with pytest.raises(error), replacing_folder(tmp_path / "made" / "for" / "it"):
        raise error
    assert names(tmp_path) == []
    folder = tmp_path / "model"
    with replacing_folder(folder) as partial:
        (partial / "old").touch()
    with pytest.raises(error), replacing_folder(folder) as partial:
        (partial / "half").touch()
        raise error
    assert names(tmp_path) == ["model", "model/old"]
    with replacing_folder(folder) as partial:
        (partial / "new").touch()
        assert names(folder) == ["old"]
    assert names(tmp_path) == ["model", "model/new"]


def test_what_a_kill_left_of_a_folder_is_cleared_by_the_next(tmp_path):
    left = replacing_folder(tmp_path / "model")
    (left.__enter__() / "half").touch()
    with replacing_folder(tmp_path / "model") as partial:
        (partial / "new").touch()
    assert names(tmp_path) == ["model", "model/new"]


def test_of_several_files_all_are_written_or_none(tmp_path):
    (tmp_path / "a").write_text("old")
    (tmp_path / "c").mkdir()
    with pytest.raises(IsADirectoryError):
        write_all(tmp_path, [Artifact("a", "new"), Artifact("b", "new"), Artifact("c", "new")])
    assert names(tmp_path) == ["a", "c"]
    assert (tmp_path / "a").read_text() == "old"
    assert write_all(tmp_path, [Artifact("a", "new"), Artifact("b/d", "new")]) == [
        tmp_path / "a",
        tmp_path / "b" / "d",
    ]
    assert names(tmp_path) == ["a", "b", "b/d", "c"]


@dataclass(frozen=True)
class Note(Record):
    FILE = "note.json"
    name: str = ""
    steps: int = 0
    loss: float | None = None
    kinds: tuple[str, ...] = ()
    counts: Mapping[str, int] = field(default_factory=dict)


def test_a_record_comes_back_as_it_was_written(tmp_path):
    note = Note("a", 3, math.inf, ("x", "y"), {"z": 1})
    note.write(tmp_path)
    assert Note.read(tmp_path) == note
    assert list(json.loads((tmp_path / "note.json").read_text())) == [
        "name",
        "steps",
        "loss",
        "kinds",
        "counts",
    ]


@pytest.mark.parametrize(
    "text", [None, "", "{", "[" * 100_000, "null", "[]", "3", "{}", '{"of": "tomorrow"}']
)
def test_a_record_that_is_not_there_or_broken_says_nothing(tmp_path, text):
    if text is not None:
        (tmp_path / "note.json").write_text(text)
    assert not Note.read(tmp_path) and Note.read(tmp_path) == Note()


def test_of_a_record_by_another_version_or_another_hand_the_rest_counts():
    assert Note.of({"name": "a", "of": "tomorrow"}) == Note("a")
    for odd in (None, 3, "x", True):
        assert Note.of({"name": "a", "kinds": odd, "counts": odd}) == Note("a")
    assert Note.of({"name": "a", "kinds": {"x": 1}, "counts": ["x"]}) == Note("a")
