"""`recipe evaluate --evalhub`: against a small server that follows EvalHub's published interface,
and against EvalHub itself, whose jobs run lm-eval on a server of OpenAI's API.

`RECIPE_TEST_EVALHUB` names the environment of the packages `eval-hub-server` and `tenacity`, which
lm-eval needs there."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from runner.check.validate import load
from runner.commands.cli import _code as command
from runner.parts.openshift import client
from runner.parts.serve import evalhub
from runner.plan import OnClaim
from runner.tools.process import free_port
from runner.tools.text import yaml_text
from tests.conftest import ROOT
from tests.parts.serve.test_serving import SURVIVAL, speaking

LYRICS = ROOT / "recipes" / "lyrics.yaml"
TASKS = ["--set", "evaluation.tasks=[hellaswag, gsm8k]", "--set", "evaluation.limit=20"]


class Hub:
    """EvalHub. ends: by model, the job's end: `status` and `results`; begins: how often a job is at
    work before."""

    def __init__(self, ends: Any, begins: int = 1) -> None:
        self.ends, self.begins, self.jobs, self.heard = (
            ends,
            begins,
            list[dict[str, Any]](),
            list[Any](),
        )

    def __call__(self, method: str, path: str, body: Any, headers: Any) -> tuple[int, Any]:
        self.heard.append((method, path, headers["X-Tenant"], headers["Authorization"]))
        known = [{"id": task} for task in ("hellaswag", "gsm8k", "arc_easy")]
        if path == "/api/v1/evaluations/providers/lm_evaluation_harness":
            return 200, {"resource": {"id": "lm_evaluation_harness"}, "benchmarks": known}
        if method == "POST":
            self.jobs.append(body)
            return 202, {
                "resource": {"id": str(len(self.jobs))},
                "status": {"state": "pending"},
                **body,
            }
        job = self.jobs[int(path.rpartition("/")[2]) - 1]
        looks = sum(each[:2] == (method, path) for each in self.heard)
        if looks <= self.begins:
            return 200, {
                "status": {"state": "running", "benchmarks": [{"status": "completed"}]},
                **job,
            }
        return 200, {**self.ends[job["model"]["name"]], **job}


def done(**scores: dict[str, Any]) -> dict[str, Any]:
    results = [{"id": task, "metrics": found} for task, found in scores.items()]
    return {
        "status": {"state": "completed", "message": {"message": "done"}},
        "results": {"benchmarks": results},
    }


SURVIVED = {"survival": done(hellaswag={"acc": 0.5, "acc_norm": 0.625, "acc_norm_stderr": 0.1, "alias": "x"}, gsm8k={"exact_match": 0.25})}  # fmt: skip


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    monkeypatch.setattr(evalhub, "SECONDS", 0.0)
    monkeypatch.setattr(evalhub, "_shots", lambda tasks: {"gsm8k": 5})


def test_the_tasks_are_measured_by_evalhub_and_stand_beside_the_gates(capsys):
    hub = Hub(SURVIVED)
    gates = [
        "--set",
        "gates=[lm_eval.hellaswag.acc_norm >= 0.6, forgetting <= 0.1, lm_eval.gsm8k.exact_match >= 0.5]",
    ]
    with speaking(hub) as url:
        code = command(
            [
                "evaluate",
                str(SURVIVAL),
                *TASKS,
                *gates,
                "--url",
                "http://model.demo:8080",
                "--evalhub",
                url,
            ]
        )
    said = capsys.readouterr()
    assert code == 1, "a gate is missed"
    assert hub.jobs == [
        {
            "name": "survival",
            "model": {"url": "http://model.demo:8080/v1", "name": "survival"},
            "benchmarks": [
                {
                    "id": task,
                    "provider_id": "lm_evaluation_harness",
                    "parameters": {
                        "tokenizer": "HuggingFaceTB/SmolLM3-3B",
                        "num_few_shot": shots,
                        "num_examples": 20,
                    },
                }
                for task, shots in (("hellaswag", 0), ("gsm8k", 5))
            ],
        }
    ]
    assert "`survival`: running, 1 of 2 tasks done" in said.err
    lines = [" ".join(line.split()) for line in said.out.splitlines()]
    assert "lm_eval.hellaswag.acc_norm 0.625" in lines and not any(
        "stderr" in line for line in lines
    )
    assert "lm_eval.hellaswag.acc_norm >= 0.6 0.625 holds" in lines
    assert "lm_eval.gsm8k.exact_match >= 0.5 0.25 MISSED: it misses the threshold" in lines
    assert not any(line.startswith("forgetting") for line in lines), "EvalHub cannot measure it"


def test_an_adapter_is_compared_with_its_base_model_and_a_failed_task_has_its_reason(capsys):
    failed = {
        "status": {
            "state": "partially_failed",
            "message": {"message": "one failed"},
            "benchmarks": [
                {"id": "hellaswag", "status": "completed"},
                {
                    "id": "gsm8k",
                    "status": "failed",
                    "error_message": {"message": "Model endpoint returned\nHTTP 401"},
                },
            ],
        },
        "results": {"benchmarks": [{"id": "hellaswag", "metrics": {"acc": 0.4}}]},
    }
    hub = Hub(
        {"lyrics": failed, "lyrics-base": done(hellaswag={"acc": 0.5}, gsm8k={"exact_match": 0.1})}
    )
    with speaking(hub) as url:
        asked = [
            "evaluate",
            str(LYRICS),
            *TASKS,
            "--url",
            "model",
            "--evalhub",
            url,
            "--format",
            "json",
        ]
        assert command(asked) == 0
    found = json.loads(capsys.readouterr().out)
    assert [job["model"]["name"] for job in hub.jobs] == ["lyrics", "lyrics-base"]
    assert found["metrics"] == {"lm_eval.hellaswag.acc": 0.4}
    assert found["before"] == {"lm_eval.hellaswag.acc": 0.5, "lm_eval.gsm8k.exact_match": 0.1}
    assert found["missing"] == {"lm_eval.gsm8k": "EvalHub says: Model endpoint returned HTTP 401"}
    assert "gates" not in found and "open" not in found


def test_the_kubeconfigs_token_goes_only_to_a_safe_address(monkeypatch):
    class Known:
        def auth_settings(self) -> Any:
            return {"BearerToken": {"value": "Bearer sesame"}}

    monkeypatch.setattr(client, "connect", lambda: client.Cluster(None, Known(), "demo"))
    at = evalhub._Hub
    assert at("http://hub.example", "demo").headers == {"X-Tenant": "demo"}
    for url in ("https://hub.example/api/v1", "hub.example/"):
        safe = at(url, "demo")
        assert (safe.url, safe.headers["Authorization"]) == ("https://hub.example", "Bearer sesame")
    monkeypatch.setenv(evalhub.TOKEN, "own")
    assert at("http://localhost:8080", None).headers == {"Authorization": "Bearer own"}


def test_the_recipes_own_server_on_the_cluster_is_measured_in_its_namespace(monkeypatch, capsys):
    alone: dict[str, Any] = {}
    there: dict[str, Any] = {
        "status": {"address": {"url": "https://lyrics-predictor.demo.svc.cluster.local:8443"}}
    }

    class Cluster:
        def get(self, kind: str, namespace: str, name: str, forgiving: bool = False) -> Any:
            assert (namespace, name) == ("demo", "llm-music-finetuning")
            return {"InferenceService": there, "LLMInferenceService": alone}[kind]

    monkeypatch.setattr(client, "connect", Cluster)
    scores = done(hellaswag={"acc": 0.4}, gsm8k={"exact_match": 0.1})
    hub = Hub({"lyrics": scores, "lyrics-base": scores})
    with speaking(hub) as url:
        asked = [
            "evaluate",
            str(LYRICS),
            *TASKS,
            "--set",
            "serve={}",
            "--set",
            "openshift.namespace=demo",
        ]
        assert command([*asked, "--evalhub", url]) == 0
        there.clear()
        assert command([*asked, "--evalhub", url]) == 1
        alone["status"] = {"url": "https://gateway.example/demo/llm-music-finetuning"}
        assert command([*asked, "--evalhub", url]) == 0
    assert hub.jobs[-1]["model"]["url"] == "https://gateway.example/demo/llm-music-finetuning/v1"
    assert hub.jobs[0]["model"]["url"] == "https://lyrics-predictor.demo.svc.cluster.local:8443/v1"
    assert (
        hub.jobs[0]["benchmarks"][0]["parameters"]["tokenizer"] == "microsoft/Phi-4-mini-instruct"
    )
    assert {each[2] for each in hub.heard} == {"demo"}
    assert "`demo` has no server `llm-music-finetuning` that answers." in capsys.readouterr().err


def test_the_server_on_the_cluster_has_the_last_stage_alone():
    recipe = load(ROOT / "recipes" / "seven-b.yaml", look=False)[0]
    plan = evalhub.kserve.planned(recipe, "kserve")
    with pytest.raises(evalhub.Stop) as refusal:
        evalhub._on_cluster(plan, plan.stage("sft"))
    assert refusal.value.text == (
        "The server on the cluster has the model of the stage `lora`, and not that of `sft`.\n"
        "Leave the stage out, or name a server that has it: `--url`."
    )


def test_a_tokenizer_of_ones_own_is_read_from_the_claim():
    recipe = load(ROOT / "recipes" / "seven-b.yaml", look=False)[0]
    plan = evalhub.kserve.planned(recipe, "kserve")
    claim = OnClaim("results", "runs/seven-b/lora")
    found = evalhub._tokenizer(plan, plan.stages[-1], claim)
    with pytest.raises(evalhub.Stop, match="has one of its own"):
        evalhub._tokenizer(plan, plan.stages[-1], None)
    task = evalhub.fill_template(evalhub.TASK, id="hellaswag", shots=0, limit=None, **found)
    assert task["parameters"]["tokenizer"] == "/test_data"
    assert task["test_data_ref"] == {
        "pvc": {"claim_name": "results", "sub_path": "runs/seven-b/lora/best_model"}
    }


@pytest.mark.parametrize(
    ("asked", "says", "told"),
    [
        (
            [],
            None,
            "The stage `train` names no tasks of lm-eval, so EvalHub has nothing to measure.",
        ),
        (["--set", "evaluation.tasks=[winogrande]"], None, "does not have `winogrande`."),
        (TASKS, (401, "Unauthorized"), "does not let you in: Unauthorized"),
        (TASKS, (403, {"message": "no access to demo"}), "does not let you in: no access to demo"),
        (TASKS, (404, {"message": "no provider"}), "answered 404: no provider"),
        (TASKS, (200, "<html>"), "is not an EvalHub."),
    ],
)
def test_what_keeps_evalhub_from_measuring_is_said(asked, says, told, capsys):
    with speaking((lambda *_: says) if says else Hub({})) as url:
        assert command(["evaluate", str(SURVIVAL), *asked, "--url", "model", "--evalhub", url]) == 1
    assert told in capsys.readouterr().err


def test_a_checkpoint_is_nothing_that_evalhub_can_reach(capsys):
    assert command(["evaluate", str(SURVIVAL), "--checkpoint", "x", "--evalhub", "hub"]) == 2
    assert "`--evalhub` measures a server's model" in capsys.readouterr().err


def test_a_hub_that_falls_silent_for_a_while_is_asked_again_and_one_that_stays_silent_has_its_jobs_cancelled(
    capsys,
):
    hub, silent, cancelled = Hub(SURVIVED), [2], list[str]()

    def says(method: str, path: str, *more: Any) -> tuple[int, Any]:
        if method == "GET" and "/jobs/" in path and silent[0]:
            silent[0] -= 1
            return 503, "no upstream"
        if method == "DELETE":
            cancelled.append(path)
            return 204, ""
        return hub(method, path, *more)

    asked = ["evaluate", str(SURVIVAL), *TASKS, "--url", "model"]
    with speaking(says) as url:
        assert command([*asked, "--evalhub", url]) == 0 and not cancelled
        silent[0] = 10**6
        hub.heard.clear()
        assert command([*asked, "--evalhub", url]) == 1
    assert "answered 503: no upstream" in capsys.readouterr().err
    assert cancelled == ["/api/v1/evaluations/jobs/2"]


# A provider of EvalHub: what its adapter of lm-eval does with a job, with scores that are given
# instead of measured.
ADAPTER = """
import json, os, sys, urllib.request
job = json.load(open(os.environ["EVALHUB_JOB_SPEC_PATH"]))
scores = json.loads(os.environ["SCORES"]).get(job["model"]["name"], {}).get(job["benchmark_id"])
told = {key: job[key] for key in ("provider_id", "benchmark_index")} | {"id": job["benchmark_id"]}
told |= {"status": "completed", "metrics": scores} if scores else {"status": "failed", "error_message": {"message": "no such model", "message_code": "x"}}
url = f"{job['callback_url']}/api/v1/evaluations/jobs/{job['id']}/events"
body = json.dumps({"benchmark_status_event": told}).encode()
urllib.request.urlopen(urllib.request.Request(url, body, {"Content-Type": "application/json"}))
"""


@contextmanager
def evalhub_itself(home: Path, adapter: str, tasks: tuple[str, ...], **env: str) -> Iterator[str]:
    """EvalHub's own server at an address, whose provider of lm-eval is a Python program on this
    machine."""
    port = free_port()
    (home / "adapter.py").write_text(adapter, encoding="utf-8")
    (home / "providers").mkdir()
    settings = {
        "service": {"port": port, "host": "127.0.0.1", "termination_file": str(home / "ended")},
        "database": {"driver": "sqlite", "url": "file::eval_hub:?mode=memory&cache=shared"},
        "prometheus": {"enabled": False},
    }
    command = f"{sys.executable} {home / 'adapter.py'}"
    benchmarks = [
        {"id": task, "name": task, "description": task, "category": "x", "metrics": ["acc"]}
        for task in tasks
    ]
    provider = {
        "id": evalhub.PROVIDER,
        "name": "lm-eval",
        "title": "lm-eval",
        "benchmarks": benchmarks,
    }
    (home / "config.yaml").write_text(yaml_text(settings), encoding="utf-8")
    (home / "providers" / "lm.yaml").write_text(
        yaml_text(provider | {"runtime": {"local": {"command": command}}}), encoding="utf-8"
    )
    own = Path(os.environ["RECIPE_TEST_EVALHUB"])
    env["PYTHONPATH"] = ":".join(map(str, own.glob("lib/python*/site-packages")))
    with (
        (home / "log.txt").open("w") as log,
        subprocess.Popen(
            [own / "bin" / "eval-hub", "--local", "--configdir", home],
            stdout=log,
            stderr=log,
            env=os.environ | env,
        ) as server,
    ):
        try:
            url = f"http://127.0.0.1:{port}"
            for _ in range(200):
                time.sleep(0.1)
                try:
                    evalhub._Hub(url, None).ask(f"evaluations/providers/{evalhub.PROVIDER}")
                    break
                except evalhub.TryAgain:
                    assert server.poll() is None, (home / "log.txt").read_text()
            yield url
        finally:
            server.kill()


itself = pytest.mark.skipif(
    not os.environ.get("RECIPE_TEST_EVALHUB"),
    reason="no EvalHub here; RECIPE_TEST_EVALHUB names an environment that has it",
)


@itself
@pytest.mark.long
def test_evalhub_itself_takes_the_jobs_and_its_results_are_read(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(evalhub, "SECONDS", 0.5)
    scores = {
        "lyrics": {"hellaswag": {"acc": 0.4}, "gsm8k": {"exact_match": 0.5}},
        "lyrics-base": {"hellaswag": {"acc": 0.3}},
    }
    with evalhub_itself(
        tmp_path, ADAPTER, ("hellaswag", "gsm8k"), SCORES=json.dumps(scores)
    ) as url:
        asked = [
            "evaluate",
            str(LYRICS),
            *TASKS,
            "--url",
            "model",
            "--evalhub",
            url,
            "--format",
            "json",
        ]
        assert command(asked) == 0, (tmp_path / "log.txt").read_text()
    found = json.loads(capsys.readouterr().out)
    assert found["metrics"] == {"lm_eval.hellaswag.acc": 0.4, "lm_eval.gsm8k.exact_match": 0.5}
    assert found["before"] == {"lm_eval.hellaswag.acc": 0.3}
    assert found["missing"] == {"before: lm_eval.gsm8k": "EvalHub says: no such model"}
