"""Files appear whole or not at all, whatever ends the writing."""

from __future__ import annotations

import os

import pytest

from runner.files import Artifact, replacing, replacing_folder, write_all


class Ended(BaseException):
    """What no `except Exception` catches, like ^C."""


def names(folder) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*"))


def test_a_file_is_as_it_was_until_the_new_one_is_on_disk(tmp_path, monkeypatch):
    file, synced = tmp_path / "below" / "a.json", []
    monkeypatch.setattr(os, "fsync", lambda number: synced.append(os.readlink(f"/proc/self/fd/{number}")))
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
    assert write_all(tmp_path, [Artifact("a", "new"), Artifact("b/d", "new")]) == [tmp_path / "a", tmp_path / "b" / "d"]
    assert names(tmp_path) == ["a", "b", "b/d", "c"]
