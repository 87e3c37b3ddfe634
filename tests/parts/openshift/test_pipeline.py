"""A recipe on a cluster: each stage, the gate after it, and nothing before its time."""

from __future__ import annotations

import json
import re
import threading
import time
from functools import lru_cache
from pathlib import Path

import pytest

from runner.check.validate import load
from runner.commands import cli
from runner.parts.evaluate import seal
from runner.parts.evaluate.commands import compared
from runner.parts.jobs import batch, kubernetes
from runner.parts.openshift import pipeline
from runner.parts.openshift.jobs import KIND, POD_LABEL, pods_of, render_job
from runner.parts.openshift.status import ended
from runner.plan import PLAN_FILE, Plan
from runner.recipe.overrides import from_options
from runner.run import inference, run_folder
from runner.scenarios import planned
from runner.tools.run_files import SEAL_KEY
from tests.conftest import ROOT
from tests.parts.jobs.test_stage import PASSING, Claim
from tests.parts.openshift.api import stamp
from tests.parts.openshift.conftest import VERSION, in_process, job_status, pod_status
from tests.parts.report import pages
from tests.rendering import render

SEVEN_B = "recipes/seven-b.yaml"
TABLE = """\
metric      required  measured  verdict
perplexity  < 15      99.2      MISSED: it misses the threshold
The gate after `sft` is closed."""
ALL = ("data", "init", "pretrain-512", "pretrain-1024", "pretrain-2048", "sft", "dpo", "lora")


def recipe(site, verb: str, *arguments: str) -> int:
    return site.recipe(verb, *arguments, path=SEVEN_B)


def plan_of(site, *options: str) -> Plan:
    return plan_with((*site.changes, *options))


@lru_cache(8)
def plan_with(options: tuple[str, ...]) -> Plan:
    found, _, _ = load(ROOT / SEVEN_B, from_options(options))
    return planned(found, "pytorchjob")


def end(site, name: str, well: bool = True, kind: str = "PyTorchJob", message: str = "") -> None:
    """The job has ended, as its operator would write it; message: the last words of its pod."""
    now = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
    words = {
        "PyTorchJob": ("Succeeded", "Failed"),
        "TrainJob": ("Complete", "Failed"),
        "Job": ("Complete", "Failed"),
    }[kind]
    last = {"type": words[not well], "status": "True", "reason": "Tests", "message": "as played"}
    if kind == "Job":
        pod_of_job_ends(site, name, well, message)
    if kind == "Job" and site.api is None and not site.runs_jobs:
        site.set_status(kind, name, job_status(well))
    elif kind != "Job" or site.api:
        site.set_status(kind, name, {"conditions": [last | {"lastTransitionTime": now}]})
    for _ in range(300):
        if ended(site.job(kind, name)):
            return
        time.sleep(0.1)
    raise AssertionError(f"{kind} {name} does not end")


def pod_of_job_ends(site, job: str, well: bool, message: str) -> None:
    """The pod of a plain Job ends with these last words; a cluster's own controller then ends the
    Job by itself."""
    if not site.runs_jobs:
        there = site.job("Job", job)
        template = there["spec"]["template"]
        owner = {
            "apiVersion": "batch/v1",
            "kind": "Job",
            "name": job,
            "uid": there["metadata"]["uid"],
        }
        meta = {"name": f"{job}-x1y2z", "namespace": site.namespace, "ownerReferences": [owner]}
        meta["labels"] = template["metadata"]["labels"] | {POD_LABEL["Job"]: job}
        site.cluster.apply(
            {"apiVersion": "v1", "kind": "Pod", "metadata": meta, "spec": template["spec"]}
        )
    for _ in range(300):
        if pods := pods_of(site.cluster, site.job("Job", job)):
            break
        time.sleep(0.1)
    status = pod_status(pods[0]["spec"]["containers"][0]["name"], well, message)
    site.set_status("Pod", pods[0]["metadata"]["name"], status)


def finish(site, *stages: str, gated: bool = True) -> None:
    """These stages are sent and done, and the gates after them are open; not `gated`: they are not
    sent yet."""
    plan = plan_of(site)
    for stage in plan.stages:
        if stage.name not in stages:
            continue
        for of_gate in (False, True) if stage.gates and gated else (False,):
            what = render_job(plan, stage, of_gate=of_gate)
            for manifest in (*what.support, what.job):
                if (
                    site.cluster.get(manifest["kind"], site.namespace, manifest["metadata"]["name"])
                    is None
                ):
                    site.cluster.apply(manifest)
            end(site, what.name, kind=what.kind)


def uid(site, stage: str) -> str:
    """Tells whether the job of a stage is another one than before."""
    name = f"seven-b-{stage}"
    return (site.job("Job", name) or site.job(name=name))["metadata"]["uid"]


def test_submit_goes_from_stage_to_gate_to_the_next_stage(site, capsys):
    finish(site, *ALL[:4])
    assert recipe(site, "submit") == 0
    assert site.job("Job", "seven-b-pretrain-2048-gate") is None
    end(site, "seven-b-pretrain-2048")
    assert recipe(site, "submit") == 0
    end(site, "seven-b-pretrain-2048-gate", kind="Job")
    assert (
        site.job("Job", "seven-b-pretrain-2048-gate")["metadata"]["labels"]["recipe-runner/part"]
        == "gate"
    )
    assert site.job(name="seven-b-sft") is None
    assert recipe(site, "submit") == 0
    assert site.job(name="seven-b-sft") is not None
    capsys.readouterr()
    assert recipe(site, "submit") == 0
    said = capsys.readouterr().out
    assert "PyTorchJob `seven-b-sft`" in said and "Nothing changes" in said
    assert site.job(name="seven-b-dpo") is None


def test_when_all_is_done_nothing_is_sent(site, capsys):
    finish(site, *ALL)
    assert recipe(site, "submit", "--stage", "sft") == 0
    said = capsys.readouterr().out
    assert "`seven-b-sft`" in said and "It has finished. Its stage runs again when" in said
    assert recipe(site, "submit") == 0
    assert "Every stage of `seven-b` is finished." in capsys.readouterr().out


@pytest.mark.parametrize(
    ("done", "stage", "first"),
    [((), "sft", "data"), (ALL[:2], "dpo", "pretrain-512")],
    ids=["nothing yet", "two stages before"],
)
def test_no_stage_is_sent_before_its_time(site, capsys, done, stage, first, golden_message):
    finish(site, *done)
    assert recipe(site, "submit", "--stage", stage) == 1
    error = capsys.readouterr().err
    assert f"`{stage}` does not start" in error and f"`{first}` comes first" in error
    golden_message(error)
    assert site.job(name=f"seven-b-{stage}") is None


def test_no_stage_is_sent_while_the_gate_before_it_has_not_been_measured(site, capsys):
    def refused_because_it_is(state: str) -> None:
        assert recipe(site, "submit", "--stage", "sft") == 1
        error = capsys.readouterr().err
        assert "the gate after `pretrain-2048` comes first" in error and f"is {state}." in error

    finish(site, *ALL[:5], gated=False)
    refused_because_it_is("not sent yet")
    assert recipe(site, "submit") == 0
    refused_because_it_is("under way")
    assert site.job(name="seven-b-sft") is None


@in_process
def test_a_data_stage_of_several_pods_is_one_stage_and_the_one_that_fails_is_named(
    site, capsys, golden_message
):
    pods = (
        "--set",
        "stages.0.data.cleaning.executor=pods",
        "--set",
        "stages.0.data.cleaning.pods=4",
    )
    plan = plan_of(site, *pods[1::2])
    what = render_job(plan, plan.stages[0])
    modes = [
        one["spec"]["accessModes"] for one in what.support if one["kind"] == "PersistentVolumeClaim"
    ]
    assert modes and all(mode == ["ReadWriteMany"] for mode in modes)
    for manifest in (*what.support, what.job):
        site.cluster.apply(manifest)
    owner = {"apiVersion": "batch/v1", "kind": "Job"} | site.job("Job", "seven-b-data")

    def pod(index: int, word: str, **status) -> str:
        labels = {
            POD_LABEL["Job"]: "seven-b-data",
            "batch.kubernetes.io/job-completion-index": str(index),
        }
        site.pod(name := f"seven-b-data-{index}-{word}", owner, labels, **status)
        return name

    def ends(code: int) -> list[dict]:
        state = {
            "terminated": {
                "exitCode": code,
                "message": "There is no data file `x`." if code else "",
            }
        }
        return [
            {
                "name": "prepare",
                "image": "x",
                "imageID": "",
                "ready": False,
                "restartCount": 0,
                "state": state,
            }
        ]

    for index in range(3):
        name = pod(index, "aaaaa", phase="Running")
    assert recipe(site, "status", *pods) == 0
    assert "3 of 4 machines run" in capsys.readouterr().out
    pod(3, "aaaaa", phase="Running")
    assert recipe(site, "status", *pods) == 0
    assert "preparing model and data, 4 of 4 machines run" in capsys.readouterr().out
    site.api.logs[(name, "now")] = [(stamp(), "the words of index 2")]
    assert recipe(site, "logs", "--node", "2", *pods) == 0
    assert "the words of index 2" in capsys.readouterr().out
    assert recipe(site, "logs", "--node", "4", *pods) == 1
    assert "Its machines are 0 to 3." in capsys.readouterr().err
    site.set_status("Pod", name, {"phase": "Failed", "containerStatuses": ends(1)})
    assert recipe(site, "status", *pods) == 0
    said = capsys.readouterr().out
    assert (
        "restarting after a failure" in said and "Machine 2 (`seven-b-data-2-aaaaa`) ended" in said
    )
    failed = {"type": "Failed", "status": "True", "reason": "MaxFailedIndexesExceeded"}
    failed["message"] = "Job has exceeded the specified maximal number of failed indexes"
    site.set_status("Job", "seven-b-data", {"conditions": [failed], "failedIndexes": "2"})
    assert recipe(site, "status", *pods) in (0, 1)
    said = capsys.readouterr().out
    assert "Machine 2 has failed 4 times" in said
    golden_message(re.sub(r"\b\d+ (seconds?|s)\b", "<seconds>", said))
    assert recipe(site, "stop", *pods) == 0
    assert site.job("Job", "seven-b-data") is None


def closed_sft(site) -> None:
    finish(site, *ALL[:5])
    finish(site, "sft", gated=False)
    plan = plan_of(site)
    site.cluster.apply(render_job(plan, plan.stages[5], of_gate=True).job)
    end(site, "seven-b-sft-gate", well=False, kind="Job", message=TABLE)


@pytest.mark.parametrize("options", [(), ("--stage", "sft"), ("--stage", "dpo")], ids=str)
def test_a_closed_gate_lets_nothing_through_and_shows_its_table(
    site, capsys, options, golden_message
):
    closed_sft(site)
    assert recipe(site, "submit", *options) == 1
    error = capsys.readouterr().err
    assert "gate after `sft` is closed" in error and f"  {TABLE.splitlines()[1]}\n" in error
    assert "recipe promote RECIPE sft" in error
    golden_message(error)
    assert site.job(name="seven-b-dpo") is None


def test_a_closed_gate_that_is_stopped_is_measured_again(site, capsys):
    closed_sft(site)
    assert recipe(site, "stop") == 0
    assert "Stopped Job `seven-b-sft-gate`." in capsys.readouterr().out
    assert site.job(name="seven-b-sft") is not None, "what is done stays"
    assert recipe(site, "submit") == 0
    assert "Job `seven-b-sft-gate`" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("change", "first"),
    [
        ("stages.0.train.learning_rate=1e-4", "`pretrain-512`"),
        ("stages.0.gates.0=perplexity < 14", "the gate after `pretrain-2048`"),
        ("evaluation.limit=50", "the gate after `pretrain-2048`"),
    ],
)
def test_a_verdict_on_the_recipe_as_it_was_opens_nothing(site, capsys, change, first):
    finish(site, *ALL[:5])
    assert recipe(site, "submit", "--stage", "sft", "--set", change) == 1
    error = capsys.readouterr().err
    assert (
        f"{first} comes first" in error
        and "made from another version of the recipe or its data" in error
    )
    assert site.job(name="seven-b-sft") is None


def test_a_changed_sft_begins_sft_anew_and_leaves_pretraining_alone(site, capsys):
    finish(site, *ALL[:6])
    uids = {name: uid(site, name) for name in ALL[:6]}
    assert recipe(site, "submit", "--set", "stages.1.train.learning_rate=1e-5") == 0
    now = {name: uid(site, name) for name in ALL[:6]}
    assert [name for name in ALL[:6] if now[name] != uids[name]] == ["sft"]
    end(site, "seven-b-sft")
    capsys.readouterr()
    assert recipe(site, "submit", "--set", "stages.1.train.learning_rate=1e-5") == 0
    assert "the old Job `seven-b-sft-gate`: deleted" in capsys.readouterr().out


def test_a_changed_later_stage_lets_the_running_one_go_on(site, capsys, golden_message):
    finish(site, *ALL[:2])
    assert recipe(site, "submit") == 0
    before = uid(site, "pretrain-512")
    assert recipe(site, "submit", "--set", "stages.3.train.lora_rank=32") == 0
    assert "Nothing changes" in capsys.readouterr().out
    assert uid(site, "pretrain-512") == before
    # New rows for LoRA are made by the data stage, which must not work below the feet of a running
    # one unasked.
    assert recipe(site, "submit", "--set", "stages.3.data.seed=7") == 1
    error = capsys.readouterr().err
    assert "`data`" in error and "`pretrain-512` is still running" in error
    golden_message(error)
    assert recipe(site, "submit", "--set", "stages.3.data.seed=7", "--stage", "data") == 0


def test_a_failed_stage_is_sent_again_with_other_machines(site, capsys):
    finish(site, *ALL[:2])
    assert recipe(site, "submit") == 0
    before = uid(site, "pretrain-512")
    end(site, "seven-b-pretrain-512", well=False)
    capsys.readouterr()
    assert recipe(site, "submit") == 1
    said = capsys.readouterr()
    assert (
        "`seven-b-pretrain-512`, made from this recipe as it is now, has failed." in said.err
        and "`recipe stop" in said.err
    )
    assert "Watch it" not in said.out
    assert uid(site, "pretrain-512") == before
    assert recipe(site, "submit", "--set", "openshift.requests.memory=640 GiB") == 0
    assert uid(site, "pretrain-512") != before


def test_what_needs_no_gpu_is_tried_again_as_it_is(site, capsys):
    assert recipe(site, "submit", "--stage", "data") == 0
    before = uid(site, "data")
    end(site, "seven-b-data", well=False, kind="Job")
    assert recipe(site, "submit", "--stage", "data") == 0
    assert uid(site, "data") != before


def test_submit_waits_for_what_needs_no_gpu_and_goes_on_to_the_first_stage_that_trains(
    site, capsys
):
    def play() -> None:
        for name in ("seven-b-data", "seven-b-init"):
            while site.job("Job", name) is None:
                time.sleep(0.05)
            time.sleep(0.3)
            assert site.job(name="seven-b-pretrain-512") is None
            end(site, name, kind="Job")

    player = threading.Thread(target=play)
    player.start()
    assert recipe(site, "submit") == 0
    player.join()
    said = capsys.readouterr().out
    order = [
        "Job `seven-b-data` to",
        "Job `seven-b-init` to",
        "PyTorchJob `seven-b-pretrain-512` to",
    ]
    assert [said.index(part) for part in order] == sorted(said.index(part) for part in order)
    assert site.job(name="seven-b-pretrain-1024") is None


def test_what_trains_first_is_judged_before_anything_is_sent(site, capsys):
    site.claim("seven-b-pvc", "ReadWriteOnce")
    assert recipe(site, "submit", "--set", "machines.nodes=2") == 1
    assert "The claim `seven-b-pvc`" in capsys.readouterr().err
    assert site.job("Job", "seven-b-data") is None
    assert recipe(site, "submit", "--dry-run") == 0
    said = capsys.readouterr().out
    accepted = [
        f"The cluster would accept {what}"
        for what in ("Job `seven-b-data`", "Job `seven-b-init`", "PyTorchJob `sev")
    ]
    assert all(text in said for text in accepted)
    assert site.job("Job", "seven-b-data") is None


def test_a_running_stage_of_the_recipe_as_it_was_is_ended_after_a_yes(site, capsys):
    finish(site, *ALL[:2])
    assert recipe(site, "submit") == 0
    changed = ("--set", "stages.0.data.min_words=60")
    capsys.readouterr()
    assert recipe(site, "status", *changed, "--stage", "pretrain-512") == 0
    shown = capsys.readouterr().out
    assert (
        "pretrain-512: waiting for machines" in shown
        and "  Made from another version of the recipe or its data." in shown
    )
    assert recipe(site, "submit", *changed) == 1
    assert "`seven-b-pretrain-512` is running" in capsys.readouterr().err
    assert site.job(name="seven-b-pretrain-512") is not None
    old = site.job("Job", "seven-b-data")["metadata"]["uid"]

    def play() -> None:
        while (job := site.job("Job", "seven-b-data")) is None or job["metadata"]["uid"] == old:
            time.sleep(0.05)
        end(site, "seven-b-data", well=False, kind="Job")

    player = threading.Thread(target=play)
    player.start()
    assert recipe(site, "submit", *changed, "--yes") == 1
    player.join()
    assert site.job(name="seven-b-pretrain-512") is None


def test_what_lay_on_a_claim_that_is_gone_is_made_again(site, capsys):
    finish(site, *ALL[:3])
    site.cluster.delete("PersistentVolumeClaim", site.namespace, "seven-b-pvc")
    capsys.readouterr()
    for there in (False, True):
        if there:
            time.sleep(1.1)
            site.claim("seven-b-pvc")
        assert [each.state for each in pipeline.milestones(site.cluster, plan_of(site))][:4] == [
            pipeline.LOST
        ] * 3 + [pipeline.MISSING]
    before = uid(site, "data")
    assert recipe(site, "submit", "--stage", "data") == 0
    assert uid(site, "data") != before
    assert recipe(site, "status", "--stage", "init") == 0
    (line,) = [line for line in capsys.readouterr().out.splitlines() if line.startswith("init: ")]
    assert "done once" in line and "claim" in line and "has been replaced" in line


def test_status_shows_each_stage_and_its_gate(site, capsys):
    closed_sft(site)
    capsys.readouterr()
    assert recipe(site, "status") == 0
    lines = capsys.readouterr().out.splitlines()
    shown = lines[lines.index("data: finished") :]
    assert shown == [
        "data: finished",
        "init: finished",
        "pretrain-512: finished",
        "pretrain-1024: finished",
        "pretrain-2048: finished",
        "pretrain-2048 gate: open",
        "sft: finished",
        "sft gate: closed",
        *(f"  {line}" for line in TABLE.splitlines()),
        "dpo: not sent yet",
        "dpo gate: not sent yet",
        "lora: not sent yet",
        "lora gate: not sent yet",
    ]
    assert recipe(site, "status", "--stage", "dpo") == 0
    assert capsys.readouterr().out.splitlines()[-2:] == [
        "dpo: not sent yet",
        "dpo gate: not sent yet",
    ]


def test_the_logs_are_those_of_what_is_not_done(site, capsys):
    closed_sft(site)
    if site.api:
        site.api.logs[("seven-b-sft-gate-x1y2z", "now")] = [
            ("2026-01-01T00:00:00Z", "sft: measuring")
        ]
        assert recipe(site, "logs") == 0
        assert capsys.readouterr().out.splitlines()[-1] == "sft: measuring"


def test_a_gate_is_judged_before_it_is_sent(site, capsys):
    finish(site, *ALL[:4])
    assert recipe(site, "submit") == 0
    end(site, "seven-b-pretrain-2048")
    assert recipe(site, "submit", "--dry-run") == 0
    assert "would accept Job `seven-b-pretrain-2048-gate`" in capsys.readouterr().out
    assert site.job("Job", "seven-b-pretrain-2048-gate") is None


def container(job: dict) -> dict:
    """What does a job's work, whatever kind it is of."""
    spec = job["spec"]
    if job["kind"] == "TrainJob":
        return spec["trainer"]
    template = (
        spec["pytorchReplicaSpecs"]["Master"]["template"]
        if job["kind"] == "PyTorchJob"
        else spec["template"]
    )
    return template["spec"]["containers"][0]


def test_both_targets_stand_before_the_same_gates(site):
    plan = plan_of(site, f'openshift.version="{VERSION}"')
    found = {
        target: {
            file.path: file.text
            for file in render(plan, (target,))
            if file.path.endswith(batch.GATE_FILE)
        }
        for target in ("pytorchjob", "trainjob")
    }
    assert found["trainjob"] == found["pytorchjob"]
    assert sorted(found["trainjob"]) == [
        f"{name}/gate.yaml" for name in ("dpo", "lora", "pretrain-2048", "sft")
    ]
    for stage in plan.stages:
        for target in KIND:
            assert container(render_job(plan, stage, target).job)["command"][:4] == [
                "python", "-m", "runner.parts.jobs.stage", "run",
            ]  # fmt: skip


def test_trainjobs_are_sent_one_after_the_other_too(site, capsys):
    site.require("TrainJob")
    version = ("--target", "trainjob", "--set", f'openshift.version="{VERSION}"')
    finish(site, *ALL[:2])
    assert recipe(site, "submit", *version) == 0
    end(site, "seven-b-pretrain-512", kind="TrainJob")
    assert recipe(site, "submit", *version) == 0
    assert site.job("TrainJob", "seven-b-pretrain-1024") is not None
    assert recipe(site, "submit", *version, "--stage", "sft") == 1
    error = capsys.readouterr().err
    assert "`pretrain-1024` comes first" in error and "is under way" in error


def test_a_gate_asks_for_one_gpu_and_its_share_of_the_machine(site):
    measuring = container(render_job(plan_of(site), plan_of(site).stage("sft"), of_gate=True).job)
    assert measuring["resources"]["limits"] == {"cpu": "8", "memory": "64Gi", "nvidia.com/gpu": "1"}
    # Tasks of lm-eval come from the hub, where they are not on the claim yet.
    assert "HF_HUB_OFFLINE" not in {entry["name"] for entry in measuring["env"]}


def test_the_first_stage_makes_the_claim_for_the_machines_of_all(site):
    for count, mode in ((1, "ReadWriteOnce"), (2, "ReadWriteMany")):
        plan = plan_of(site, f"machines.nodes={count}")
        assert plan.stages[0].machines.nodes == 1
        (claim,) = [
            one
            for one in render_job(plan, plan.stages[0]).support
            if one["kind"] == "PersistentVolumeClaim"
        ]
        assert claim["spec"]["accessModes"] == [mode]


def test_what_prepares_the_data_may_reach_the_hub(site):
    def offline(stage) -> bool:
        return "HF_HUB_OFFLINE" in {
            entry["name"] for entry in container(render_job(plan_of(site), stage).job)["env"]
        }

    assert [stage.name for stage in plan_of(site).stages if not offline(stage)] == ["data", "init"]


# Promotion: a pod writes on the claim, which is a folder of this machine here.


@pytest.fixture
def claim(site, tmp_path, monkeypatch):
    made = Claim(tmp_path / "claim")
    made.finish(*ALL[:6])
    with monkeypatch.context() as pods:
        # What pods measure is sealed with the key of their namespace.
        pods.setenv(SEAL_KEY, seal.key(make=True, namespace=site.namespace))
        made.measure("pretrain-2048")
        made.measure("sft", metrics=PASSING | {"perplexity": 99.2})
    site.api.mounts["/shared/models"] = tmp_path / "claim"
    site.claim("seven-b-pvc")
    return made


WHO = ("--cluster", "--by", "Ada Lovelace", "--reason", "the demo is tomorrow")


@in_process
def test_a_person_may_overrule_a_gate_on_the_cluster_and_is_on_record(site, capsys, claim):
    closed_sft(site)
    assert recipe(site, "promote", "sft", *WHO) == 0
    said = capsys.readouterr().out
    assert "PROMOTED against its gate by Ada Lovelace" in said and ": the demo is tomorrow" in said
    assert "perplexity 99.2 (required < 15)" in said
    assert site.cluster.list("Pod", site.namespace, {"recipe-runner/part": "promote"}) == [], (
        "the pod is gone again"
    )
    assert (claim.folder / "seven-b" / "sft" / "promotion.json").is_file()
    capsys.readouterr()
    assert recipe(site, "status", "--stage", "sft") == 0
    shown = capsys.readouterr().out
    assert "sft gate: promoted" in shown and "  PROMOTED against its gate by Ada Lovelace" in shown
    assert recipe(site, "submit") == 0
    assert site.job(name="seven-b-dpo") is not None
    started, told = claim.start("dpo")
    assert started and "PROMOTED against its gate by Ada Lovelace" in told[0], (
        "its pod reads it on the claim itself"
    )


@in_process
def test_nobody_overrules_an_open_gate_or_one_that_is_at_work(site, capsys, claim):
    finish(site, *ALL[:5])
    assert recipe(site, "promote", "pretrain-2048", *WHO) == 1
    assert "is open, so there is nothing to overrule." in capsys.readouterr().err
    assert recipe(site, "promote", "init", *WHO) == 1
    assert "The stage `init` has no gate to overrule." in capsys.readouterr().err
    assert recipe(site, "promote", "dpo", *WHO) == 1
    assert "The stage `dpo` is not finished" in capsys.readouterr().err
    assert recipe(site, "submit") == 0
    end(site, "seven-b-sft")
    assert recipe(site, "submit") == 0
    assert recipe(site, "promote", "sft", *WHO) == 1
    assert "The gate after `sft` is being measured." in capsys.readouterr().err


@in_process
def test_a_promotion_holds_for_the_recipe_that_it_was_given_for(site, capsys, claim):
    closed_sft(site)
    assert recipe(site, "promote", "sft", *WHO) == 0
    capsys.readouterr()
    assert (
        recipe(site, "submit", "--stage", "dpo", "--set", "stages.1.gates.0=perplexity < 14") == 1
    )
    error = capsys.readouterr().err
    assert (
        "the gate after `sft` comes first" in error
        and "from another version of the recipe or its data" in error
    )


def test_each_stages_file_is_in_its_config_map(site):
    for stage in plan_of(site).stages:
        found = kubernetes.config_map(plan_of(site).only(stage), stage)
        assert PLAN_FILE in found.text and stage.command[4].endswith(f"/{stage.name}/{PLAN_FILE}")


def asked(site, monkeypatch, *arguments: str):
    """The model that `recipe ask` would ask."""
    found = []
    monkeypatch.setattr(
        inference, "answers_of", lambda chat, _questions: found.append(Path(chat.model)) or [""]
    )
    assert cli._code(["ask", str(ROOT / SEVEN_B), "Why?", *arguments]) == 0
    return found[0]


@in_process
@pytest.mark.parametrize("to", [(), ("--to", "elsewhere")], ids=["in its place", "elsewhere"])
def test_a_fetched_stage_can_be_asked(site, capsys, claim, tmp_path, monkeypatch, to):
    claim.finish("dpo", "lora")
    for stage in ("dpo", "lora"):
        assert recipe(site, "fetch", "--stage", stage, *to) == 0
    run = tmp_path / ("elsewhere" if to else "runs/seven-b")
    mine = {"config", "planned.json", "report.html"}
    assert {path.name for path in run.iterdir()} == {"run.json", "dpo", "lora", *mine}
    shown_stages = pages.read(run / "report.html").said
    assert (
        "Gate after lora" in shown_stages
        and "pretrain-2048" not in shown_stages.partition("The recipe")[0]
    )
    record = json.loads((run / "run.json").read_text())
    assert (record["status"], record["origin"], record["kind"]) == ("finished", "cluster", "run")
    said = capsys.readouterr().out
    shown = "elsewhere/lora" if to else run / "lora"
    assert (
        f"3 files fetched to {shown}\nThe result page is " in said
        and "an older version of the recipe" not in said
    )
    where = ("--run", str(run)) if to else ()
    assert asked(site, monkeypatch, *where) == run / "lora" / "best_model"
    assert asked(site, monkeypatch, "--stage", "dpo", *where) == run / "dpo" / "best_model"
    assert (
        asked(site, monkeypatch, "--stage", "lora", "--base", *where) == run / "dpo" / "best_model"
    )


@in_process
def test_a_base_that_was_not_fetched_is_named(site, capsys, claim):
    claim.finish("dpo", "lora")
    assert recipe(site, "fetch", "--stage", "lora") == 0
    capsys.readouterr()
    assert cli._code(["ask", str(ROOT / SEVEN_B), "Why?", "--base"]) == 1
    said = capsys.readouterr().err
    assert (
        "/runs/seven-b/dpo/best_model` is not here." in said
        and "`recipe fetch RECIPE --stage NAME`" in said
    )


def judged(stage: str, *arguments: str) -> int:
    return cli._code(["gate", str(ROOT / SEVEN_B), stage, *arguments])


@in_process
def test_the_gate_of_a_fetched_stage_is_judged_by_what_lies_here(site, capsys, claim, tmp_path):
    claim.finish("dpo")
    claim.measure("dpo")
    for stage in ("pretrain-2048", "sft", "dpo"):
        assert recipe(site, "fetch", "--stage", stage) == 0
    assert [judged(stage) for stage in ("pretrain-2048", "sft", "dpo")] == [0, 1, 0]
    said = capsys.readouterr().out
    assert "it misses the threshold" in said and "another" not in said
    assert judged("dpo", "--set", "stages.2.gates.0=preference_accuracy > 0.95") == 1
    capsys.readouterr()
    rows = compared(load(ROOT / SEVEN_B)[0], [run_folder.folder("seven-b", "run")])
    shown = {(stage, what): texts[0] for stage, what, texts in rows}
    assert shown["dpo", "gate preference_accuracy >= 0.6"] == "holds"
    assert not [text for text in shown.values() if "another" in text or "something else" in text]
    # What is exchanged here, or comes of another run, proves nothing.
    (tmp_path / "runs/seven-b/dpo/best_model/model.safetensors").write_text("others")
    assert judged("dpo") == 1
    said = capsys.readouterr()
    assert "measured on another model" in said.out and "Next: recipe evaluate" in said.err
    claim.run.mark("running", id="another")
    assert recipe(site, "fetch", "--stage", "sft") == 0
    assert judged("pretrain-2048") == 1
    assert "measured in another run" in capsys.readouterr().out


@in_process
def test_a_fetched_stage_that_was_made_before_the_recipe_changed_is_said_so(
    site, capsys, claim, tmp_path
):
    def fetched(change: str) -> tuple[str, str]:
        capsys.readouterr()
        assert recipe(site, "fetch", "--stage", "sft", "--set", change) == 0
        return json.loads((tmp_path / "runs/seven-b/run.json").read_text())[
            "status"
        ], capsys.readouterr().out

    status, said = fetched("stages.1.train.epochs=7")
    assert status == "running"
    assert "an older version of the recipe" in said
    # What comes after a stage is no concern of it.
    status, said = fetched("stages.3.train.epochs=7")
    assert status == "finished" and "an older version of the recipe" not in said


@in_process
def test_a_stage_does_not_come_into_a_run_of_this_machine(site, capsys, claim, tmp_path):
    home = tmp_path / "runs" / "seven-b"
    home.mkdir(parents=True)
    (home / "run.json").write_text('{"status": "running", "kind": "run"}')
    assert recipe(site, "fetch", "--stage", "sft") == 1
    assert f"`{home}` contains a run of this machine." in capsys.readouterr().err
    assert [path.name for path in home.iterdir()] == ["run.json"]
