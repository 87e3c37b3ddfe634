"""The TrainJob: the same plan as the PyTorchJob, in the two forms that OpenShift AI has known."""

from __future__ import annotations

import json
from collections.abc import Iterable
from functools import lru_cache

import pytest
import yaml

from runner.check.validate import load
from runner.parts.jobs import kubernetes, podspec
from runner.recipe.overrides import from_options
from runner.scenarios import translate
from runner.tools.problem import Stop
from tests.conftest import RENDERED, ROOT, setting_of
from tests.parts.openshift.judging import full_schemas, refusals
from tests.rendering import render

SURVIVAL = ROOT / "recipes" / "survival.yaml"
VERSIONS = ("3.2", "3.5", "3.6", "3.10")
EVERYTHING = (
    "openshift.hub_token_secret=hub-token",
    "openshift.tracking_secret=tracking",
    "openshift.queue=default",
    "openshift.service_account=recipe-runner",
    "openshift.network.kind=rdma",
    "openshift.data_dir=/shared/workspace/survival",
)


@lru_cache(50)
def plan_of(path, *options):
    if "openshift" not in load(path)[0].settings:
        return None
    recipe, _, _ = load(path, from_options(options))
    return translate(recipe, kubernetes.place(recipe))


def jobs(target, *options, path=SURVIVAL) -> list[dict]:
    plan = plan_of(path, *options)
    if plan is None:
        return []
    files = render(plan, (target,))
    return [yaml.safe_load(file.text) for file in files if file.path.endswith(f"{target}.yaml")]


def form(version: str) -> str:
    return f'openshift.version="{version}"'


def of_pytorchjob(job: dict) -> dict:
    """What a PyTorchJob gives each machine."""
    replicas = job["spec"]["pytorchReplicaSpecs"]
    pod = replicas["Master"]["template"]["spec"]
    (container,) = pod["containers"]
    return {
        "image": container["image"],
        "command": container["command"],
        "env": {
            entry["name"]: entry.get("value", entry.get("valueFrom")) for entry in container["env"]
        },
        "resources": container["resources"],
        "mounts": {mount["mountPath"]: mount["name"] for mount in container["volumeMounts"]},
        "volumes": {volume["name"]: volume for volume in pod["volumes"]},
        "node": (pod.get("nodeSelector"), pod.get("tolerations"), pod.get("serviceAccountName")),
        "metadata": replicas["Master"]["template"]["metadata"],
        "machines": sum(replica["replicas"] for replica in replicas.values()),
        "processes": int(job["spec"]["nprocPerNode"]),
        "labels": job["metadata"]["labels"],
    }


def of_trainjob(job: dict) -> dict:
    """What a TrainJob gives each machine, in either form."""
    spec = job["spec"]
    if "runtimePatches" in spec:
        (patch,) = spec["runtimePatches"]
        (node,) = patch["trainingRuntimeSpec"]["template"]["spec"]["replicatedJobs"]
        over = node["template"]["spec"]["template"]
        assert node["name"] == "node"
    else:
        (over,) = spec["podTemplateOverrides"]
        assert over["targetJobs"] == [{"name": "node"}]
    pod = over["spec"]
    (container,) = pod["containers"]
    assert container["name"] == "node"
    trainer = spec["trainer"]
    return {
        "image": trainer["image"],
        "command": trainer["command"],
        "env": {
            entry["name"]: entry.get("value", entry.get("valueFrom")) for entry in trainer["env"]
        },
        "resources": trainer["resourcesPerNode"],
        "mounts": {mount["mountPath"]: mount["name"] for mount in container["volumeMounts"]},
        "volumes": {volume["name"]: volume for volume in pod["volumes"]},
        "node": (pod.get("nodeSelector"), pod.get("tolerations"), pod.get("serviceAccountName")),
        "metadata": over["metadata"],
        "machines": trainer["numNodes"],
        "processes": trainer["numProcPerNode"],
        "labels": job["metadata"]["labels"],
    }


@pytest.mark.parametrize("path", RENDERED, ids=lambda path: path.stem)
@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize(
    "options", [(), EVERYTHING[:-1]], ids=["as it is", "with all of the site's settings"]
)
def test_both_jobs_give_every_machine_the_same(path, version, options):
    plan = plan_of(path)
    if plan is None:
        pytest.skip(f"{path.stem} has no place on a cluster")
    old = jobs("pytorchjob", form(version), *options, path=path)
    new = jobs("trainjob", form(version), *options, path=path)
    assert len(old) == len(new) == sum(stage.trains for stage in plan.stages) > 0
    for one, other in zip(old, new, strict=True):
        before = of_pytorchjob(one)
        # What an init container does in the one, the trainer's own command does first in the other.
        assert before | {"command": podspec.clone_first(plan, before["command"])} == of_trainjob(
            other
        )


# What each form of a TrainJob can set of a pod and of its container, beside what its trainer sets;
# by the schema that it came with.
CAN_SET = {
    "3.5": {
        "pod": "affinity containers imagePullSecrets initContainers nodeSelector schedulingGates serviceAccountName tolerations volumes",
        "container": "env name volumeMounts",
    },
    "3.6": {
        "pod": "affinity containers imagePullSecrets initContainers nodeSelector schedulingGates securityContext serviceAccountName "
        "terminationGracePeriodSeconds tolerations volumes",
        "container": "env name securityContext volumeMounts",
    },
}
# What neither can set, and where it has no effect: a declaration of ports only informs (Kubernetes,
# core/v1 Container).
WITHOUT_EFFECT = {("container", "ports")}
# How the comment of a TrainJob calls a field that it cannot set.
CALLED = {
    ("pod", "automountServiceAccountToken"): "automountServiceAccountToken",
    ("pod", "securityContext"): "The cluster adds the rest of the security context",
    ("pod", "terminationGracePeriodSeconds"): "terminationGracePeriodSeconds",
    ("container", "securityContext"): "read-only root file system",
    ("container", "imagePullPolicy"): "when the image is pulled",
}


def override_of(job: dict) -> dict:
    """The template of a pod that a TrainJob lays over that of its runtime."""
    if "podTemplateOverrides" in job["spec"]:
        return job["spec"]["podTemplateOverrides"][0]
    (node,) = job["spec"]["runtimePatches"][0]["trainingRuntimeSpec"]["template"]["spec"][
        "replicatedJobs"
    ]
    return node["template"]["spec"]["template"]


def fields_of(pod: dict, more: Iterable[str] = ()) -> set[tuple[str, str]]:
    """The names of what is set: of a pod, and of its one container with `more`."""
    (container,) = pod["containers"]
    return {("pod", name) for name in pod} | {("container", name) for name in (*container, *more)}


@pytest.mark.parametrize("path", RENDERED, ids=lambda path: path.stem)
@pytest.mark.parametrize("version", ["3.5", "3.6"])
@pytest.mark.parametrize(
    "options", [(), EVERYTHING[:-1]], ids=["as it is", "with all of the site's settings"]
)
def test_a_trainjob_sets_every_field_of_the_pod_that_its_form_can_and_names_the_others(
    path, version, options
):
    """A field that somebody adds to the pod of a PyTorchJob also belongs into the templates of both
    TrainJobs, or into the comment on top of them."""
    plan = plan_of(path, form(version), *options)
    if plan is None:
        pytest.skip(f"{path.stem} has no place on a cluster")
    files = render(plan, ("pytorchjob", "trainjob"))
    texts = {file.path: file.text for file in files}
    trainjobs = [name for name in texts if name.endswith("trainjob.yaml")]
    assert trainjobs
    for name in trainjobs:
        job = yaml.safe_load(texts[name])
        usual = yaml.safe_load(texts[name.replace("trainjob", "pytorchjob")])
        template = usual["spec"]["pytorchReplicaSpecs"]["Master"]["template"]
        trainer = {
            "image",
            "command",
            "env",
            "resources",
        }  # of `spec.trainer`, there as `resourcesPerNode`
        lacking = (
            fields_of(template["spec"])
            - fields_of(override_of(job)["spec"], trainer)
            - WITHOUT_EFFECT
        )
        if podspec.CLONER in texts[name]:
            lacking -= {("pod", "initContainers")}  # the trainer's command clones the code first
        comment = " ".join(
            line.removeprefix("# ") for line in texts[name].partition("apiVersion")[0].splitlines()
        )
        for owner, field in lacking:
            assert field not in CAN_SET[version][owner].split(), (
                f"write `{field}` into the template of {version}"
            )
            assert CALLED.get((owner, field), f"`{field}`") in comment, (
                f"say in trainjob.txt.jinja that {version} lacks it"
            )


@pytest.mark.parametrize("version", ["3.5", "3.6"])
def test_what_a_trainjob_can_set_is_what_its_schema_has(version):
    if (folder := full_schemas()) is None:
        pytest.skip("the whole schemas are not here: RECIPE_TEST_CRDS names their folder")
    schema = json.loads(
        (folder / f"trainjob-v1alpha1-rhoai-{version}.openapi.json").read_text("utf-8")
    )
    steps = {
        "3.5": "spec podTemplateOverrides spec",
        "3.6": "spec runtimePatches trainingRuntimeSpec template spec replicatedJobs template spec template spec",
    }
    for step in steps[version].split():
        schema = schema["properties"][step]
        schema = schema.get("items", schema)
    container = schema["properties"]["containers"]["items"]
    assert {
        "pod": " ".join(sorted(schema["properties"])),
        "container": " ".join(sorted(container["properties"])),
    } == CAN_SET[version]


@pytest.mark.parametrize("version", VERSIONS)
def test_each_version_gets_the_form_that_it_takes(version):
    patched = version in ("3.6", "3.10")
    (job,) = jobs("trainjob", form(version), *EVERYTHING)
    assert ("runtimePatches" in job["spec"], "podTemplateOverrides" in job["spec"]) == (
        patched,
        not patched,
    )
    assert refusals(job, "3.6" if patched else "3.5") == []
    assert refusals(job, "3.5" if patched else "3.6") != [], (
        "the other form's cluster would drop half of it"
    )


def test_from_3_6_on_trainjob_alone_is_the_default_and_before_it_pytorchjob():
    for version, kind in (
        ("3.2", "pytorchjob"),
        ("3.5", "pytorchjob"),
        ("3.6", "trainjob"),
        ("3.10", "trainjob"),
    ):
        names = {file.path for file in render(plan_of(SURVIVAL, form(version)))}
        assert {name for name in names if name.endswith("job.yaml")} == {
            "model/job.yaml",
            f"{kind}.yaml",
        }, version


def test_before_3_2_there_is_no_trainjob(recipe_command, tmp_path, golden_message):
    done = recipe_command(
        "render", SURVIVAL, "--target", "trainjob", "--set", form("2.25"), "--out", tmp_path / "out"
    )
    assert done.returncode == 1
    assert "2.25 has no TrainJob" in done.stderr
    golden_message(done.stderr)
    assert not (tmp_path / "out").exists()


def test_of_two_targets_only_the_first_is_sent_by_kustomize():
    files = {file.path: file.text for file in render(plan_of(SURVIVAL), ("trainjob", "pytorchjob"))}
    assert {"trainjob.yaml", "pytorchjob.yaml"} <= set(files)
    assert yaml.safe_load(files["kustomization.yaml"])["resources"] == [
        "configmap.yaml",
        "trainjob.yaml",
    ]


def test_a_trainjob_sets_nothing_that_the_trainer_injects():
    for version in VERSIONS:
        (job,) = jobs("trainjob", form(version))
        assert not [
            entry["name"]
            for entry in job["spec"]["trainer"]["env"]
            if entry["name"].startswith("PET_")
        ]


@pytest.mark.parametrize("version", VERSIONS)
def test_the_console_asks_a_trainjob_how_far_it_is(version):
    (job,) = jobs(
        "trainjob", form(version), "openshift.progress_port=30123", "openshift.progress_seconds=5"
    )
    annotations = job["metadata"]["annotations"]
    assert {
        name: value
        for name, value in annotations.items()
        if name.startswith("trainer.opendatahub.io/")
    } == {
        "trainer.opendatahub.io/progression-tracking": "true",
        "trainer.opendatahub.io/metrics-port": "30123",
        "trainer.opendatahub.io/metrics-poll-interval": "5s",
    }
    assert of_trainjob(job)["env"]["RECIPE_PROGRESS_PORT"] == "30123"
    (plain,) = jobs("pytorchjob", form(version))
    assert not [name for name in plain["metadata"]["annotations"] if "opendatahub" in name], (
        "nobody there would read them"
    )


@pytest.mark.parametrize("target", ["pytorchjob", "trainjob"])
def test_the_dashboard_knows_a_jobs_profile_and_connections_where_the_recipe_names_them(target):
    named = (
        "openshift.hardware_profile.name=gpu-l40s",
        "openshift.connections=[models-bucket,wandb]",
    )
    for options, expected in (
        ((), {}),
        (
            named,
            {
                "opendatahub.io/hardware-profile-name": "gpu-l40s",
                "opendatahub.io/hardware-profile-namespace": "redhat-ods-applications",
                "opendatahub.io/connections": "lyric-professor/models-bucket,lyric-professor/wandb",
            },
        ),
    ):
        (job,) = jobs(target, *options)
        said = job["metadata"]["annotations"]
        assert {
            name: value for name, value in said.items() if name.startswith("opendatahub.io/")
        } == expected
        assert refusals(job) == []


@pytest.mark.parametrize(
    ("version", "kueue", "queue", "warned"),
    [
        ("3.5", "0.17", "default", "kueue#11931"),
        ("3.2", "0.20", "default", "kueue#11931"),
        ("3.5", "0.11", "default", "does not support TrainJobs"),
        ("3.6", "0.13", "default", "Red Hat build 1.2"),
        ("3.5", "0.14", "default", ""),
        ("3.5", "0.16", "default", ""),
        ("3.6", "0.17", "default", ""),
        ("3.5", "", "default", ""),
        ("3.5", "0.17", "", ""),
        ("3.5", "0.11", "", ""),
    ],
)
def test_a_trainjob_that_its_queue_would_not_hold_or_never_start_says_so(
    version, kueue, queue, warned
):
    options = (
        form(version),
        f"openshift.queue={queue}",
        f'openshift.kueue="{kueue}"' if kueue else "openshift.kueue=",
    )
    texts = {
        file.path: file.text
        for file in render(plan_of(SURVIVAL, *options), ("trainjob", "pytorchjob"))
    }
    header = texts["trainjob.yaml"].partition("apiVersion")[0]
    said = header.replace("\n# ", " ")
    assert warned in said if warned else "Kueue 0" not in said
    assert "Kueue 0" not in texts["pytorchjob.yaml"]


def test_3_6_has_a_deadline_and_the_security_context_and_3_5_says_what_it_lacks(golden_message):
    (job,) = jobs("trainjob", form("3.6"), "openshift.deadline_hours=2")
    assert job["spec"]["activeDeadlineSeconds"] == 7200
    node = job["spec"]["runtimePatches"][0]["trainingRuntimeSpec"]["template"]["spec"][
        "replicatedJobs"
    ][0]
    pod = node["template"]["spec"]["template"]["spec"]
    assert pod["securityContext"] == {
        "runAsNonRoot": True,
        "seccompProfile": {"type": "RuntimeDefault"},
    }
    assert pod["containers"][0]["securityContext"]["capabilities"] == {"drop": ["ALL"]}
    files = {file.path: file.text for file in render(plan_of(SURVIVAL, form("3.5")), ("trainjob",))}
    (line,) = [
        line
        for line in files["trainjob.yaml"].splitlines()
        if line.startswith("#") and "cannot set" in line
    ]
    assert "deadline_hours" in line and "`torch-distributed`" in line
    golden_message(line)


def test_an_unquoted_version_is_refused_with_the_remedy(edited, golden_message):
    path = edited(("  namespace: lyric-professor", "  version: 3.6\n  namespace: lyric-professor"))
    with pytest.raises(Stop) as stop:
        load(path)
    (problem,) = stop.value.problems
    assert setting_of(problem) == "version" and '"3.6"' in problem.hint
    golden_message(problem)
