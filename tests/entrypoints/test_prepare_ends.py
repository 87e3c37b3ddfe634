"""How a stage without training ends: with its reason where others look for it, and a status that
says whether to try again."""

from __future__ import annotations

import json

import pytest

from runner.entrypoints import prepare
from runner.scenarios import preparing
from runner.tools import child_process
from runner.tools.problem import Stop, Unreachable
from runner.tools.run_files import STOPPED
from tests.hub import COMMIT

MODEL = {"base": "acme/model", "revision": COMMIT}


def work_file(tmp_path, **work):
    config = {
        "work": "rows",
        "out": str(tmp_path / "data"),
        "run_dir": str(tmp_path),
        "on_claim": False,
        "model": None,
    }
    file = tmp_path / "prepare.json"
    file.write_text(json.dumps(config | work))
    return str(file)


def test_a_missing_file_of_rows_is_final_and_its_reason_is_marked(tmp_path, capsys):
    file = work_file(tmp_path, data={"path": "gone.jsonl", "hub": None})
    assert prepare.main(file) == child_process.DECIDED
    reason = json.loads((tmp_path / STOPPED).read_text())["message"]
    assert "gone.jsonl" in reason
    assert capsys.readouterr().err == f"{child_process.STOP_MARK}{reason}\n"


@pytest.mark.parametrize(
    ("stop", "status"), [(Stop("no"), child_process.DECIDED), (Unreachable("later"), 1)]
)
def test_what_does_not_answer_may_answer_later(tmp_path, monkeypatch, stop, status):
    def fail(work, tell):
        raise stop

    monkeypatch.setattr(prepare, "carry_out", fail)
    assert prepare.main(work_file(tmp_path)) == status


def test_a_hub_that_does_not_answer_is_no_final_reason(tmp_path, monkeypatch):
    monkeypatch.setattr(
        "huggingface_hub.HfApi.model_info",
        lambda *_, **__: (_ for _ in ()).throw(OSError("broken pipe")),
    )
    with pytest.raises(Unreachable, match="broken pipe"):
        preparing.fetch_model(MODEL | {"folder": str(tmp_path / "model")}, print)
