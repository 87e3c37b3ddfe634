"""The mirror of a run: what comes back is whole, and what is not whole does not come back."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path

import kubernetes_validate
import pytest
import yaml
from s3fs import S3FileSystem

from runner import catalog
from runner.check.validate import load
from runner.parts.jobs import kubernetes, mirror, podspec
from runner.recipe import lock
from runner.recipe.overrides import from_options
from runner.run.pipeline import decision_on
from runner.scenarios import translate
from runner.scenarios.render import emit
from runner.tools.problem import Stop
from runner.tools.run_files import COMPLETE
from tests import s3
from tests.conftest import ROOT
from tests.parts.jobs.test_stage import Claim

MIRROR = ("openshift.connection=my-s3", "openshift.mirror=s3://team/runs")


@pytest.fixture
def claim(tmp_path, s3_server) -> Claim:
    """A claim with finished data, and a stage that has trained up to step 20."""
    made = Claim(tmp_path)
    made.site += MIRROR
    made.finish("data", "init")
    begun(made, 10, 20)
    return made


def begun(claim: Claim, *steps: int) -> None:
    folder = claim.stage("pretrain-512")
    folder.mark("begun", keys=dict(folder.stage.keys))
    for step in steps:
        checkpoint = Path(folder.place.checkpoints_dir) / f"checkpoint-{step}"
        claim._write(checkpoint / "model.safetensors", f"weights {step}" * 40_000)
        claim._write(checkpoint / COMPLETE, json.dumps({"step": step}))


def lost(claim: Claim) -> None:
    shutil.rmtree(claim.folder / "seven-b")


def steps(claim: Claim) -> set[str]:
    place = claim.stage("pretrain-512").place
    return {file.parent.name for file in Path(place.checkpoints_dir).glob(f"*/{COMPLETE}")}


def test_a_lost_claim_comes_back_with_finished_stages_and_the_last_checkpoints(claim):
    before = {file: file.read_bytes() for file in claim.folder.rglob("*") if file.is_file()}
    for name in ("data", "init", "pretrain-512"):
        mirror.send(claim.stage(name))
    lost(claim)
    told: list[str] = []
    mirror.begin(claim.stage("pretrain-512"), told.append)
    assert {file: file.read_bytes() for file in claim.folder.rglob("*") if file.is_file()} == before
    assert [decision_on(claim.stage(name)).action for name in ("data", "init")] == ["keep", "keep"]
    assert any("its checkpoint at step 20" in line for line in told)
    mirror.begin(claim.stage("pretrain-512"), told.append)
    assert len(told) == 3, "nothing is copied twice"


def test_records_that_change_while_they_are_sent_arrive_as_they_were(claim, monkeypatch):
    history = claim.stage("pretrain-512").path / "training_history.json"
    claim._write(history, "[1]")
    put = S3FileSystem._put_file

    async def while_training_goes_on(store, *given, **named):
        history.write_text("[1, 2]")
        return await put(store, *given, **named)

    monkeypatch.setattr(S3FileSystem, "_put_file", while_training_goes_on)
    mirror.send(claim.stage("pretrain-512"))
    assert history.read_text() == "[1, 2]"
    lost(claim)
    mirror.begin(claim.stage("pretrain-512"), print)
    assert history.read_text() == "[1]" and steps(claim) == {"checkpoint-10", "checkpoint-20"}


def test_an_older_claim_gets_the_newer_checkpoint_and_a_newer_one_keeps_its_own(claim):
    mirror.send(claim.stage("pretrain-512"))
    shutil.rmtree(Path(claim.stage("pretrain-512").place.checkpoints_dir) / "checkpoint-20")
    mirror.begin(claim.stage("pretrain-512"), print)
    assert steps(claim) == {"checkpoint-10", "checkpoint-20"}
    begun(claim, 30)
    told: list[str] = []
    mirror.begin(claim.stage("pretrain-512"), told.append)
    assert not told and "checkpoint-30" in steps(claim)


@pytest.mark.parametrize("after", [100_000, 500_000])
def test_half_a_transfer_does_not_count(claim, s3_server, monkeypatch, after):
    """The line is cut while checkpoint 30 is sent, and 40, which takes 800 KB: what comes back is
    whole, and older."""
    mirror.send(claim.stage("pretrain-512"))
    begun(claim, 30, 40)
    shutil.rmtree(Path(claim.stage("pretrain-512").place.checkpoints_dir) / "checkpoint-10")
    monkeypatch.setenv("AWS_ENDPOINT_URL_S3", s3_server.line)
    s3_server.cut = after
    told: list[str] = []
    mirror.attempt(claim.stage("pretrain-512"), told.append)
    assert "The mirror lacks the latest files" in told[0]
    monkeypatch.setenv("AWS_ENDPOINT_URL_S3", s3_server.url)
    lost(claim)
    mirror.begin(claim.stage("pretrain-512"), told.append)
    assert steps(claim) == {"checkpoint-10", "checkpoint-20"}


def test_what_is_not_as_it_was_sent_is_not_taken(claim, s3_server, golden_message):
    mirror.send(claim.stage("pretrain-512"))
    path = next(
        path
        for path in s3_server.store().find("team/runs")
        if path.endswith("checkpoint-20/model.safetensors")
    )
    s3_server.put(path, "weights 20" * 39_999)
    lost(claim)
    told: list[str] = []
    mirror.begin(claim.stage("pretrain-512"), told.append)
    assert steps(claim) == set()
    golden_message(told[-1])


def test_results_replace_checkpoints_only_when_they_are_whole(claim, s3_server):
    mirror.send(claim.stage("pretrain-512"))
    claim.finish("pretrain-512")
    mirror.send(claim.stage("pretrain-512"))
    names = [
        path.removeprefix("team/runs/seven-b/pretrain-512/")
        for path in s3_server.store().find("team/runs")
    ]
    assert "best_model/model.safetensors" in names and "manifest.json" in names
    assert not any(name.startswith(("step-", "manifest-")) for name in names)


def test_another_recipes_checkpoints_are_not_taken(claim):
    mirror.send(claim.stage("pretrain-512"))
    lost(claim)
    mirror.begin(claim.stage("pretrain-512", "stages.0.train.learning_rate=0.5"), print)
    assert not (claim.folder / "seven-b" / "pretrain-512").exists()


def test_a_training_sends_its_checkpoints_and_goes_on_without_the_server(
    claim, s3_server, monkeypatch
):
    monkeypatch.setattr(mirror, "SECONDS", 0.1)
    monkeypatch.setenv("AWS_ENDPOINT_URL_S3", "http://127.0.0.1:9")
    told: list[str] = []
    folder = claim.stage("pretrain-512")
    with mirror.following(folder, told.append):
        begun(claim, 30)
        waited(lambda: told)
        monkeypatch.setenv("AWS_ENDPOINT_URL_S3", s3_server.url)
        begun(claim, 40)
        waited(lambda: s3_server.store().exists("team/runs/seven-b/pretrain-512/manifest-40.json"))
    assert len(told) == 1 and "does not answer" in told[0]


def waited(until) -> None:
    import time

    end = time.monotonic() + 60
    while not until():
        assert time.monotonic() < end
        time.sleep(0.1)


def test_a_pod_without_a_gpu_refuses_a_mirror_that_it_cannot_use(
    claim, s3_server, monkeypatch, golden_message
):
    """Before a GPU is reserved; a training goes on with what its claim has."""
    s3_server.guard(True)
    try:
        with pytest.raises(Stop) as stop:
            claim.start("data")
        golden_message(stop.value.text.replace(s3_server.url, "http://server"))
        started, said = claim.start("pretrain-512")
        assert started and "refuses the keys" in said[0]
    finally:
        s3_server.guard(False)


def rendered(*sets: str, target: str = "pytorchjob") -> dict[str, dict]:
    recipe, _plan, _ = load(ROOT / "recipes" / "sft-dpo.yaml", from_options(sets))
    files = {file.path: file.text for file in emit(recipe, [target])}
    return {
        path: yaml.safe_load(text)
        for path, text in files.items()
        if path.endswith(("job.yaml", "gate.yaml"))
    }


def secrets(job: dict) -> list[dict]:
    spec = job["spec"]
    if job["kind"] == "TrainJob":
        env = spec["trainer"]["env"]
    else:
        template = spec.get("template") or spec["pytorchReplicaSpecs"]["Master"]["template"]
        env = template["spec"]["containers"][0]["env"]
    return [
        one
        for one in env
        if one.get("valueFrom", {}).get("secretKeyRef", {}).get("name") == "my-s3"
    ]


def test_only_pods_that_need_the_keys_get_them():
    with_mirror, without = rendered(*MIRROR), rendered(MIRROR[0])
    newer = rendered(*MIRROR, 'openshift.version="3.6"', target="trainjob")
    assert (
        all(len(secrets(job)) == 4 for job in (*with_mirror.values(), *newer.values()))
        and len(with_mirror) > 3
    )
    assert with_mirror.keys() & newer.keys() and {job["kind"] for job in newer.values()} == {
        "Job",
        "TrainJob",
    }
    assert {path for path, job in without.items() if secrets(job)} == {"data/job.yaml"}
    assert secrets(without["data/job.yaml"])[2] == {
        "name": "AWS_ENDPOINT_URL_S3",
        "valueFrom": {
            "secretKeyRef": {"name": "my-s3", "key": "AWS_S3_ENDPOINT", "optional": True}
        },
    }
    for job in with_mirror.values():
        if job["kind"] == "Job":
            kubernetes_validate.validate(job, "1.31", strict=True)
    assert not any(secrets(job) for job in rendered().values())
    assert set(podspec.CONNECTION) == set(s3.KEYS) | {"AWS_S3_ENDPOINT"}


def test_access_is_tried_by_listing_writing_and_deleting(s3_server, golden_message):
    mirror.require_access("s3://team/runs")
    assert s3_server.store().find("team") == ["team/readme"]
    with pytest.raises(Stop) as stop:
        mirror.require_access("s3://taem/runs")
    golden_message(stop.value.text.replace(s3_server.url, "http://server"))


def test_a_base_model_in_an_image_is_mounted_by_every_pod(monkeypatch):
    """As Kubernetes 1.33 and newer accept it; nothing is downloaded."""
    base = "oci://quay.io/team/model:1"
    model = replace(
        catalog.model("HuggingFaceTB/SmolLM3-3B"), id=base, source=f"{base}/config.json"
    )
    monkeypatch.setattr(
        lock, "find", lambda folder, name, revision: (model if name == base else None, [])
    )
    jobs = rendered(f"model.base={base}")
    for job in jobs.values():
        spec = (
            job["spec"].get("template") or job["spec"]["pytorchReplicaSpecs"]["Master"]["template"]
        )["spec"]
        volume = next(one for one in spec["volumes"] if one["name"] == "base-model")
        assert volume["image"] == {"reference": "quay.io/team/model:1"}
        mount = next(
            one for one in spec["containers"][0]["volumeMounts"] if one["name"] == "base-model"
        )
        assert mount == {
            "name": "base-model",
            "mountPath": "/opt/base-model",
            "readOnly": True,
            "subPath": "models",
        }
        if job["kind"] == "Job":
            kubernetes_validate.validate(job, "1.33", strict=True)


def test_stages_of_their_own_image_are_refused(monkeypatch, golden_message):
    """Each stage after the first starts from the model of the one before, which is on the claim."""
    base = "oci://quay.io/team/model:1"
    model = replace(
        catalog.model("Qwen/Qwen2.5-7B-Instruct"), id=base, source=f"{base}/config.json"
    )
    monkeypatch.setattr(
        lock, "find", lambda folder, name, revision: (model if name == base else None, [])
    )
    recipe, _, _ = load(ROOT / "recipes" / "sft-dpo.yaml", from_options([f"model.base={base}"]))
    plan = translate(recipe, kubernetes.place(recipe))
    models = [stage.config.get("base_model") for stage in plan.stages]
    assert models == [None, "/opt/base-model", f"{plan.place.run_dir}/sft/best_model"]
    assert not any(plan.stages[0].config["models"].values())
    with pytest.raises(Stop) as stop:
        load(ROOT / "recipes" / "sft-dpo.yaml", from_options([f"stages.1.model.base={base}"]))
    golden_message(stop.value)
