"""Everything that is for a cluster: accepted by the schemas, traceable, without secrets, with what
each network needs."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest
import yaml

from runner import __version__
from runner.catalog import hardware
from runner.catalog.hardware import GIB
from runner.check.validate import examine, load
from runner.parts.jobs import kubernetes, podspec
from runner.parts.openshift import controller, diagnose, helper_pod, pipeline, site
from runner.plan import rows_key
from runner.recipe import units
from runner.recipe.overrides import from_options
from runner.scenarios import planned, translate
from runner.scenarios.render import emit
from runner.tools.files import Artifact, write_all
from runner.tools.problem import Stop
from runner.tools.text import yaml_text
from tests.conftest import ON_CLUSTER, RENDERED, ROOT
from tests.parts.jobs.test_trainjob import EVERYTHING, SURVIVAL, jobs, plan_of
from tests.parts.openshift.judging import core_refusals, full_schemas, reduced, refusals, schema_of
from tests.rendering import render

PREPARED = "openshift.data_dir=/shared/models/data/survival"


def manifests(files) -> list[dict]:
    found = []
    for file in files:
        if file.path.endswith(".yaml"):
            documents = [
                one
                for one in yaml.safe_load_all(file.text)
                if isinstance(one, dict) and "kind" in one
            ]
            found += [one for one in documents if one["kind"] != "Kustomization"]
    return found


def environment(container: dict) -> dict:
    return {entry["name"]: entry.get("value", entry.get("valueFrom")) for entry in container["env"]}


def pod(*options) -> dict:
    (job,) = jobs("pytorchjob", *options)
    return job["spec"]["pytorchReplicaSpecs"]["Master"]["template"]["spec"]


@pytest.mark.parametrize("path", RENDERED, ids=lambda path: path.stem)
@pytest.mark.parametrize("target", ["pytorchjob", "trainjob"])
@pytest.mark.parametrize("version", ["3.5", "3.6"])
def test_a_cluster_would_take_every_recipes_every_manifest(path, target, version):
    plan = plan_of(path, f'openshift.version="{version}"')
    if plan is None:
        pytest.skip(f"{path.stem} has no place on a cluster")
    for manifest in manifests(render(plan, (target,))):
        assert refusals(manifest, version) == [], manifest["kind"]


def test_a_cluster_would_take_the_job_with_every_setting_of_the_site():
    for manifest in manifests(render(plan_of(SURVIVAL, *EVERYTHING), ("pytorchjob",))):
        assert refusals(manifest) == [], manifest["kind"]


@pytest.mark.parametrize("name", sorted(reduced()))
def test_our_reduced_schemas_say_nothing_else_than_the_whole_ones(name):
    folder = full_schemas()
    if folder is None:
        pytest.skip("the whole schemas are not here; RECIPE_TEST_CRDS names their folder")
    entry = reduced()[name]
    if not (file := folder / entry["full"]).is_file():
        pytest.skip(f"the whole schemas are without {file.name}")
    whole = json.loads(file.read_text("utf-8"))
    assert list(differences(entry["schema"], whole)) == []


def differences(ours, theirs, where=""):
    """Where a reduced schema is not a part of the whole one. Descriptions and defaults refuse
    nothing."""
    for key, value in ours.items():
        if key == "properties":
            for field, below in value.items():
                if field not in theirs.get("properties", {}):
                    yield f"{where}.{field} is not in the whole schema"
                else:
                    yield from differences(below, theirs["properties"][field], f"{where}.{field}")
        elif key in ("items", "additionalProperties") and isinstance(value, dict):
            yield from differences(value, theirs.get(key, {}), f"{where}[]")
        elif theirs.get(key) != value:
            yield f"{where}: {key} is {value}, and {theirs.get(key)} in the whole schema"
    for key in (
        "required",
        "enum",
        "pattern",
        "minimum",
        "maximum",
        "maxLength",
        "x-kubernetes-list-map-keys",
    ):
        if key in theirs and key not in ours:
            yield f"{where}: the whole schema has {key} {theirs[key]}"


def test_labels_and_annotations_lead_back_to_recipe_stage_and_content():
    one, other = (
        jobs("pytorchjob", *options)[0]["metadata"]
        for options in ((), ("openshift.backoff_limit=1",))
    )
    for key, value in (("app.kubernetes.io/name", "survival"), ("recipe-runner/stage", "train")):
        assert one["labels"][key] == value
    assert one["annotations"]["recipe-runner/recipe"] == "survival"
    assert (
        one["labels"]["recipe-runner/fingerprint"] == other["labels"]["recipe-runner/fingerprint"]
    )
    assert (
        one["annotations"]["recipe-runner/content"] != other["annotations"]["recipe-runner/content"]
    )
    again = jobs("pytorchjob")[0]["metadata"]
    assert again == one


def test_more_memory_goes_on_from_the_checkpoints_of_before():
    def checkpoints(*options: str) -> str:
        return plan_of(SURVIVAL, *options).place.checkpoints_dir

    more = (
        "machines.memory=64 GB",
        "machines.cpus=16",
        "openshift.requests.cpus=2",
        "train.keep_checkpoints=1",
        "train.report_to=none",
    )
    assert checkpoints(*more) == checkpoints()
    assert checkpoints("train.learning_rate=1e-6") != checkpoints()


@pytest.mark.parametrize("path", ON_CLUSTER, ids=lambda path: path.stem)
def test_every_pod_of_a_starter_leaves_room_on_its_machine(path):
    recipe = load(path)[0]
    memory, threads = units.size(recipe.machines.memory), recipe.machines.cpus
    asked = [
        container["resources"]["requests"]
        for file in emit(recipe)
        if file.path.endswith(".yaml")
        for document in yaml.safe_load_all(file.text)
        for container in containers(document)
        if "resources" in container
    ]
    assert asked
    for requests in asked:
        gib = float(requests["memory"].removesuffix("Gi"))
        assert gib <= hardware.pod_memory_gib(memory) < memory / GIB
        assert int(requests["cpu"]) <= hardware.pod_cpus(threads) < threads


@pytest.mark.parametrize(
    ("options", "requests", "limits"),
    [
        ((), ("22Gi", "7"), ("22Gi", "7")),
        (("machines.memory=32 GiB", "machines.cpus=16"), ("24Gi", "15"), ("24Gi", "15")),
        (
            ("openshift.requests.memory=10 GB", "openshift.requests.cpus=2"),
            ("9536Mi", "2"),
            ("9536Mi", "2"),
        ),
        (
            ("openshift.limits.memory=25 GiB", "openshift.limits.cpus=8"),
            ("22Gi", "7"),
            ("25Gi", "8"),
        ),
        (
            ("openshift.limits.memory=12 GiB", "openshift.limits.cpus=3"),
            ("12Gi", "3"),
            ("12Gi", "3"),
        ),
    ],
)
def test_what_is_not_written_of_requests_and_limits_is_computed(options, requests, limits):
    resources = podspec.resources(plan := plan_of(SURVIVAL, *options), plan.stages[-1])
    assert (resources["requests"]["memory"], resources["requests"]["cpu"]) == requests
    assert (resources["limits"]["memory"], resources["limits"]["cpu"]) == limits


def test_the_mount_of_a_claim_itself_may_hold_the_data():
    plan = plan_of(SURVIVAL, "openshift.data_dir=/shared/models")
    assert [
        file.path for file in render(plan) if file.path == "data/job.yaml"
    ] and plan.place.prepared
    assert not plan_of(SURVIVAL, "openshift.data_dir=/shared/modelsx").place.prepared


def containers(value) -> list[dict]:
    """Every container in a manifest, whatever kind it is of: what names an image and has a
    command."""
    below = (
        list(value.values())
        if isinstance(value, dict)
        else value
        if isinstance(value, list)
        else []
    )
    own = [value] if isinstance(value, dict) and {"name", "image", "command"} <= set(value) else []
    return own + [one for part in below for one in containers(part)]


DIGEST = f"registry.example/team/trainer@sha256:{'3f2a' * 16}"


@pytest.mark.parametrize("path", ON_CLUSTER, ids=lambda path: path.stem)
@pytest.mark.parametrize(
    ("options", "policy", "label"),
    [
        (("openshift.image=",), "Always", f"recipe-runner-{__version__}"),
        (("openshift.image=registry.example:5000/team/trainer",), "Always", "trainer"),
        ((f"openshift.image={DIGEST}",), None, "trainer-sha256-3f2a3f2a3f2a"),
    ],
    ids=["tag", "no tag", "digest"],
)
def test_every_container_starts_from_the_image_that_its_name_means_now(
    path, options, policy, label
):
    cloned = (
        "image.code_from_git.url=https://github.com/a/b.git",
        f'image.code_from_git.commit="{"0" * 40}"',
    )
    for more in ((), cloned):
        plan = plan_of(path, *options, *more)
        pods = [helper_pod.pod(plan.only(stage), stage, "word", "/folder") for stage in plan.stages]
        pods += [
            controller.promotion_pod(plan.only(stage), stage, "ann", "why") for stage in plan.stages
        ]
        there = [
            one
            for one in manifests(render(plan, ("pytorchjob",)))
            if "spec" in one and containers(one)
        ] + pods
        assert len(there) > len(pods)
        for manifest in there:
            policies = {one.get("imagePullPolicy") for one in containers(manifest)}
            assert policies == {policy}, manifest["kind"]
            assert manifest["metadata"]["labels"]["recipe-runner/image"] == label
        for manifest in there[: -len(pods)]:
            assert manifest["metadata"]["annotations"]["recipe-runner/image"] == kubernetes.image(
                plan
            )


def test_a_trainjob_says_that_its_runtime_decides_when_an_image_is_fetched():
    """Neither form of it has a place for the policy."""
    for version in ("3.5", "3.6"):
        for image, said in (("", True), (DIGEST, False)):
            options = (f'openshift.version="{version}"', f"openshift.image={image}")
            (file,) = [
                one
                for one in render(plan_of(SURVIVAL, *options), ("trainjob",))
                if one.path == "trainjob.yaml"
            ]
            assert ("by its digest" in file.text.partition("apiVersion")[0]) is said


@pytest.mark.parametrize(
    ("data_from", "folder"),
    [("claim", "/shared/models/seven-b/files/data"), ("image", "/opt/recipe-runner/recipes/data")],
)
def test_pods_look_for_data_files_where_pods_have_them(tmp_path, monkeypatch, data_from, folder):
    shutil.copytree(ROOT / "recipes", tmp_path / "recipes")
    none = [
        f"{home}.{name}="
        for home in ("stages.0.data", "stages.1.data")
        for name in ("hub", "revision", "subset")
    ]
    files = (
        f"openshift.data_from={data_from}",
        "stages.0.data.path=data/seven-b-text.jsonl",
        "stages.1.data.path=data/seven-b-questions.jsonl",
    )
    monkeypatch.chdir(tmp_path)
    here = plan_of(Path("recipes/seven-b.yaml"), *none, *files)
    work = here.stages[0].config
    assert work["text"]["sets"][0]["path"] == f"{folder}/seven-b-text.jsonl"
    assert work[rows_key("sft")]["sets"][0]["path"] == f"{folder}/seven-b-questions.jsonl"
    monkeypatch.chdir(tmp_path / "recipes")
    assert [file.text for file in render(plan_of(Path("seven-b.yaml"), *none, *files))] == [
        file.text for file in render(here)
    ]


def test_files_of_other_sections_come_from_the_clone_or_a_claim(golden_message):
    commit = "1" * 40
    code = f'image={{"code_from_git": {{"url": "https://example.org/code.git", "commit": "{commit}"}}}}'
    site = 'openshift={"namespace": "a", "data_from": "git", "data_dir": "/m/data", "claims": [{"name": "c", "mount": "/m"}]}'
    plain = (
        "nodes.machines.1.gpus=[2,3]",
        "data.validation_split=",
        *(f"data.{name}=" for name in ("hub", "revision", "subset")),
    )
    files = ("data.path=/m/corpus.txt", "data.validation_path=data/gemma-sample.txt")
    recipe, _, notes = load(
        ROOT / "recipes" / "gemma.yaml", from_options((site, code, *plain, *files))
    )
    stage = translate(recipe, kubernetes.place(recipe)).stage("data")
    assert (notes[0].severity, notes[0].file) == ("note", "--set data.path=/m/corpus.txt")
    golden_message(notes[0])
    paths = [
        one["path"] for name in ("sets", "validation_sets") for one in stage.config["data"][name]
    ]
    assert paths == ["/m/corpus.txt", "/opt/recipe-code/repository/recipes/data/gemma-sample.txt"]


def test_prometheus_is_told_where_training_shows_its_metrics():
    (job,) = jobs("pytorchjob", "openshift.metrics_port=9500")
    template = job["spec"]["pytorchReplicaSpecs"]["Worker"]["template"]
    assert template["metadata"]["annotations"] == {
        "prometheus.io/scrape": "true",
        "prometheus.io/path": "/metrics",
        "prometheus.io/port": "9500",
    }
    (container,) = template["spec"]["containers"]
    assert environment(container)["RECIPE_METRICS_PORT"] == "9500"
    assert {"name": "metrics", "containerPort": 9500} in container["ports"]


def test_plain_ethernet_turns_infiniband_off():
    env = environment(pod()["containers"][0])
    assert (env["NCCL_IB_DISABLE"], env["NCCL_SOCKET_IFNAME"]) == ("1", "eth0")
    assert "NCCL_IB_HCA" not in env


def test_rdma_asks_for_a_device_and_names_it():
    options = (
        "openshift.network.kind=rdma",
        "openshift.network.rdma_resource=rdma/roce",
        "openshift.network.interface=net1",
    )
    (container,) = pod(*options)["containers"]
    env = environment(container)
    assert (env["NCCL_IB_DISABLE"], env["NCCL_IB_HCA"], env["NCCL_SOCKET_IFNAME"]) == (
        "0",
        "mlx5",
        "net1",
    )
    assert (
        container["resources"]["requests"]["rdma/roce"]
        == container["resources"]["limits"]["rdma/roce"]
        == 1
    )
    (container,) = pod(*options, "openshift.network.links=4")["containers"]
    assert (
        container["resources"]["requests"]["rdma/roce"]
        == container["resources"]["limits"]["rdma/roce"]
        == 4
    )


def test_a_secondary_network_is_joined_by_pods_of_several_machines_alone():
    chosen = ("openshift.network.attachment=fast/net", "openshift.network.interface=net1")
    for targets in ("pytorchjob", "trainjob"):
        for more, joined in (
            ((), True),
            (("machines.nodes=1", "train.effective_batch_size="), False),
        ):
            text = "".join(
                file.text for file in render(plan_of(SURVIVAL, *chosen, *more), (targets,))
            )
            assert ("k8s.v1.cni.cncf.io/networks: fast/net" in text) is joined


def test_machines_are_placed_together_where_a_topology_is_named():
    chosen = ("openshift.queue=mine", "openshift.topology=cloud.provider.com/topology-rack")
    for target, group in (("pytorchjob", 2), ("trainjob", 0)):
        assert [refusals(job, "3.5") for job in jobs(target, "openshift.version=3.5", *chosen)] == [
            []
        ]
        for more, several in (
            ((), True),
            (("machines.nodes=1", "train.effective_batch_size="), False),
        ):
            text = "".join(
                file.text for file in render(plan_of(SURVIVAL, *chosen, *more), (target,))
            )
            pods = (2 if group else 1) if several else 0
            assert (
                text.count(
                    "kueue.x-k8s.io/podset-preferred-topology: cloud.provider.com/topology-rack"
                )
                == pods
            )
            # Kueue refuses a group of one set of pods.
            assert text.count("kueue.x-k8s.io/podset-group-name: machines") == (
                group if several else 0
            )


def test_a_topology_without_a_queue_is_refused(golden_message):
    with pytest.raises(Stop) as found:
        load(SURVIVAL, from_options(["openshift.queue=", "openshift.topology=rack"]))
    golden_message(found.value)


def test_one_machine_needs_no_network():
    env = environment(pod("machines.nodes=1", "train.effective_batch_size=")["containers"][0])
    assert not [name for name in env if name.startswith("NCCL_") and name != "NCCL_DEBUG"]


def commands_for_secrets(text: str) -> str:
    """What the comments of a manifest tell people to type first."""
    return "\n".join(
        line for line in text.splitlines() if line.startswith("#") and "create secret" in line
    )


def test_pods_that_share_the_cleaning_are_one_indexed_job_each_tried_again_by_itself(
    golden_message,
):
    plan = plan_of(
        ROOT / "recipes/seven-b.yaml",
        "stages.0.data.cleaning.executor=pods",
        "stages.0.data.cleaning.pods=16",
    )
    files = {file.path: file.text for file in render(plan)}
    golden_message(re.sub(r"\b[0-9a-f]{10}\b", "<hash>", files["data/job.yaml"]))
    job = yaml.safe_load(files["data/job.yaml"])
    assert core_refusals(job) == [] and (
        job["spec"]["completions"],
        job["spec"]["parallelism"],
    ) == (16, 16)
    assert job["spec"]["template"]["spec"]["restartPolicy"] == "Never", (
        "a limit for each index needs it"
    )
    assert "nvidia.com/gpu" not in str(job["spec"])
    modes = [one["spec"]["accessModes"] for one in yaml.safe_load_all(files["data/claims.yaml"])]
    assert modes and all(mode == ["ReadWriteMany"] for mode in modes)
    assert yaml.safe_load(files["init/job.yaml"])["spec"]["backoffLimit"] == 3


def test_the_hubs_token_comes_by_reference_and_the_command_for_it_is_shown(golden_message):
    options = ("openshift.hub_token_secret=hub-token", PREPARED)
    files = {file.path: file.text for file in render(plan_of(SURVIVAL, *options))}
    for path, kind in (
        ("pytorchjob.yaml", "pytorchReplicaSpecs"),
        ("data/job.yaml", "backoffLimit"),
    ):
        assert kind in files[path]
        assert "generic hub-token" in files[path] and "--from-file=token=FILE" in files[path]
        golden_message(commands_for_secrets(files[path]), path)
    job = yaml.safe_load(files["data/job.yaml"])
    env = environment(job["spec"]["template"]["spec"]["containers"][0])
    assert env["HF_TOKEN"] == {"secretKeyRef": {"name": "hub-token", "key": "token"}}
    # Training reads what that Job has brought.
    env = environment(pod(*options)["containers"][0])
    assert "HF_TOKEN" not in env and env["HF_HUB_OFFLINE"] == "1"


def test_a_tracking_servers_key_comes_by_reference_too(golden_message):
    options = ("openshift.tracking_secret=tracking",)
    env = environment(pod(*options)["containers"][0])
    for name in ("WANDB_API_KEY", "MLFLOW_TRACKING_URI", "MLFLOW_TRACKING_TOKEN"):
        assert env[name] == {"secretKeyRef": {"name": "tracking", "key": name, "optional": True}}
    mlflow = (
        ("train.report_to=mlflow", "openshift.image=quay.io/me/with-mlflow:1"),
        ["MLFLOW_TRACKING_URI", "MLFLOW_TRACKING_TOKEN"],
    )
    for more, names in (((), ["WANDB_API_KEY"]), mlflow):
        files = {file.path: file.text for file in render(plan_of(SURVIVAL, *options, *more))}
        command = commands_for_secrets(files["pytorchjob.yaml"])
        assert re.findall("--from-file=(.*?)=FILE", command) == names
        golden_message(command, names[0])


MLFLOW = "train.report_to=mlflow"


@pytest.mark.parametrize(
    ("target", "version"), [("pytorchjob", "3.4"), ("trainjob", "3.5"), ("trainjob", "3.6")]
)
def test_the_platforms_mlflow_takes_a_token_of_the_training_pods_alone(
    target, version, golden_message
):
    options = (MLFLOW, PREPARED, f'openshift.version="{version}"')
    files = render(plan_of(SURVIVAL, *options), (target,))
    for manifest in manifests(files):
        assert refusals(manifest, version) == [], manifest["kind"]
        # The Job that prepares the rows gets nothing of it.
        assert ("mlflow" in yaml_text(manifest)) == (
            manifest["kind"].lower() == target or manifest["kind"] == "ConfigMap"
        )
    (job,) = jobs(target, *options)
    plain = jobs(target, *options[1:])[0]
    golden_message(
        "\n".join(
            line
            for line in yaml_text(job).splitlines()
            if line not in yaml_text(plain).splitlines()
        )
    )


def test_where_the_platforms_mlflow_is_not_meant_nothing_changes():
    elsewhere = (MLFLOW, "openshift.tracking_secret=keys")
    for options in (elsewhere, (*elsewhere, 'openshift.version="3.3"'), ()):
        assert podspec.mlflow_account(plan_of(SURVIVAL, *options)) is None
        text = yaml_text(pod(*options))
        assert (
            podspec.VARIABLES["mlflow"]["MLFLOW_TRACKING_URI"] not in text
            and "serviceAccountToken" not in text
        )
    named = plan_of(SURVIVAL, MLFLOW, "openshift.service_account=mine")
    assert podspec.mlflow_account(named) == "mine"
    resnet = plan_of(ROOT / "recipes" / "resnet.yaml", MLFLOW)
    assert podspec.mlflow_account(resnet) == podspec.MLFLOW_ACCOUNT


def test_a_gate_sends_its_numbers_with_the_same_token():
    files = {
        file.path: file.text
        for file in render(
            plan_of(
                ROOT / "recipes" / "seven-b.yaml",
                *(f"stages.{index}.train.report_to=mlflow" for index in range(4)),
            )
        )
    }
    gate = yaml.safe_load(files["sft/gate.yaml"])
    spec = gate["spec"]["template"]["spec"]
    assert spec["serviceAccountName"] == podspec.MLFLOW_ACCOUNT
    assert environment(spec["containers"][0])["MLFLOW_WORKSPACE"] == gate["metadata"]["namespace"]


def test_nothing_of_this_machines_user_and_no_token_gets_into_a_file_or_onto_the_screen(
    recipe_command, tmp_path
):
    planted = {
        name: f"planted-{name.lower()}-7f3a"
        for name in (
            "HF_TOKEN",
            "HUGGING_FACE_HUB_TOKEN",
            "WANDB_API_KEY",
            "USER",
            "LOGNAME",
            "HOSTNAME",
            "KUBECONFIG",
        )
    }
    shutil.copytree(ROOT / "recipes", tmp_path / "recipes")
    said = ""
    options = [word for option in (*EVERYTHING, PREPARED) for word in ("--set", option)]
    for verb in (
        ["check", "recipes/survival.yaml"],
        ["render", "recipes/survival.yaml", *options],
        ["submit", "recipes/survival.yaml"],
    ):
        done = recipe_command(*verb, cwd=tmp_path, env=planted)
        said += done.stdout + done.stderr
    written = [path for path in (tmp_path / "build").rglob("*") if path.is_file()]
    assert len(written) > 8
    # The file that KUBECONFIG names is said, because it is not there.
    assert not [value for name, value in planted.items() if value in said and name != "KUBECONFIG"]
    for path in written:
        text = path.read_text("utf-8")
        assert not [value for value in planted.values() if value in text], path


def test_data_on_a_claim_gets_a_job_without_gpu_and_training_goes_offline():
    files = {file.path: file.text for file in render(plan_of(SURVIVAL, PREPARED))}
    job = yaml.safe_load(files["data/job.yaml"])
    spec = job["spec"]["template"]["spec"]
    (container,) = spec["containers"]
    assert "nvidia.com/gpu" not in container["resources"]["limits"] and "nodeSelector" not in spec
    first_line = files["data/job.yaml"].splitlines()[0]
    assert "no GPU" in first_line and "GPUs" not in first_line
    guard, _, command = (
        container["command"][start:end] for start, end in ((0, 5), (5, 6), (6, None))
    )
    assert guard == [
        "python",
        "-m",
        "runner.parts.jobs.stage",
        "run",
        "/etc/recipe-runner/data/plan.json",
    ]
    assert command == [
        "python",
        "-m",
        "runner.entrypoints.prepare",
        "/etc/recipe-runner/data/work.json",
    ]
    assert "HF_HUB_OFFLINE" not in environment(container)
    read = yaml.safe_load(files["data/configmap.yaml"])["data"]
    work, config = json.loads(read["work.json"]), yaml.safe_load(files["axolotl.yaml"])
    assert work["model"]["base"] == "HuggingFaceTB/SmolLM3-3B"
    assert config["base_model"] == work["model"]["folder"]
    assert config["base_model"].startswith("/shared/models/base-models/")
    assert config["dataset_prepared_path"].startswith(work["out"])
    for setting in (
        "base_model",
        "datasets",
        "dataset_prepared_path",
        "sequence_len",
        "sample_packing",
    ):
        assert yaml.safe_load(read["axolotl.yaml"]).get(setting) == config.get(setting), (
            "tokenised as it is trained"
        )
    assert config["recipe_runner"]["demo"]["base_model"] == config["base_model"]
    assert environment(pod(PREPARED)["containers"][0])["HF_HUB_OFFLINE"] == "1"


def test_rows_are_prepared_again_with_whatever_decides_how_they_are_tokenised():
    """A Job that is done, and by its key is still this recipe's, would leave the tokenising to
    machines with GPUs."""

    def key(*options) -> str:
        return plan_of(SURVIVAL, PREPARED, *options).stage("data").keys[""]

    changes = (
        (),
        ("model.sequence_len=512",),
        ("model.revision=v1",),
        ("data.seed=7",),
        ("train.packing=pack",),
        ('advanced.axolotl={"train_on_inputs": true}',),
    )
    assert len({key(*change) for change in changes}) == len(changes)
    for change in (
        "openshift.backoff_limit=1",
        "train.logging_steps=7",
        "openshift.output_dir=/shared/models/other",
    ):
        assert key(change) == key(), change


def test_a_folder_is_one_folder_however_it_is_written():
    """Text by text these differ; every manifest and config names the folder as it is called."""
    plain = (
        PREPARED,
        "openshift.output_dir=/shared/models/mine",
        "openshift.claims.1.mount=/shared/workspace",
    )
    odd = (
        "openshift.data_dir=/shared/models/x/../data//survival/",
        "openshift.output_dir=/shared/./models/mine/",
        "openshift.claims.1.mount=//shared/workspace/.",
    )
    assert [(file.path, file.text) for file in render(plan_of(SURVIVAL, *odd))] == [
        (file.path, file.text) for file in render(plan_of(SURVIVAL, *plain))
    ]
    plan = plan_of(SURVIVAL, *odd)
    assert (
        plan.on_claim("/shared/models/mine/../.hidden/x").uri
        == "pvc://trained-models-pvc/.hidden/x"
    )
    assert plan.on_claim("/shared/models").uri == "pvc://trained-models-pvc"
    assert (
        plan.on_claim("/shared/models/../etc") is None
        and plan.on_claim("/shared/models-of-others") is None
    )


def test_a_file_that_leaves_its_claim_is_one_of_this_machine(tmp_path):
    """Pods would read another folder than the claim's, and `submit` would send nothing."""
    text = SURVIVAL.read_text("utf-8")
    for folder, on_claim in (
        ("/shared/models/../models/rows.jsonl", True),
        ("/shared/models/../rows.jsonl", False),
    ):
        path = tmp_path / "mine.yaml"
        path.write_text(
            re.sub(
                r"(?m)^  hub: .*$", f"  path: {folder}", re.sub(r"(?m)^  split: .*\n", "", text)
            ),
            "utf-8",
        )
        missing = [
            one for one in examine(path) if one.severity == "error" and "rows.jsonl" in one.message
        ]
        assert len(missing) == (0 if on_claim else 1), folder


NAMED = (
    'openshift.environment={NCCL_P2P_DISABLE: 1, HTTPS_PROXY: "http://proxy:3128"}',
    "openshift.node_selector={node.kubernetes.io/instance-type: g6e.12xlarge}",
    "openshift.tolerations=[{key: node.kubernetes.io/instance-type, value: g6e.12xlarge, effect: NoSchedule}, {key: team}]",
)
TAINTS = [
    {
        "key": "node.kubernetes.io/instance-type",
        "operator": "Equal",
        "value": "g6e.12xlarge",
        "effect": "NoSchedule",
    },
    {"key": "team", "operator": "Exists"},
]


def pods_in(found) -> list[dict]:
    """Every spec of a pod, or what a TrainJob and an InferenceService have in its place, at
    whatever depth."""
    if isinstance(found, dict):
        own = [found] if "containers" in found or "model" in found else []
        return own + [pod for value in found.values() for pod in pods_in(value)]
    return [pod for item in found for pod in pods_in(item)] if isinstance(found, list) else []


@pytest.mark.parametrize("path", ON_CLUSTER, ids=lambda path: path.stem)
@pytest.mark.parametrize("version", ["3.5", "3.6"])
def test_pods_of_every_kind_go_to_the_machines_and_have_the_variables_that_the_recipe_names(
    path, version
):
    plan = plan_of(path, f'openshift.version="{version}"', *NAMED)
    stages = plan.stages
    made = manifests(render(plan, ("pytorchjob",))) + manifests(render(plan, ("trainjob",)))
    if "serve" in load(path)[0].settings:
        made += manifests(emit(load(path, from_options(NAMED))[0], ("kserve",)))
    made += [helper_pod.pod(plan.only(stages[0]), stages[0], "word", "/x", writes=True)]
    seen = set()
    for manifest in (one for one in made if pods_in(one)):
        assert refusals(manifest, version) == [], manifest["kind"]
        seen.add(manifest["kind"])
        for pod in pods_in(manifest):
            if manifest["kind"] == "ServingRuntime":
                continue
            for_gpu = "nodeSelector" in pod
            assert pod["tolerations"][for_gpu:] == TAINTS
            assert (
                not for_gpu
                or pod["nodeSelector"]["node.kubernetes.io/instance-type"] == "g6e.12xlarge"
            )
            starts = (
                [pod["model"]]
                if "model" in pod
                else pod.get("initContainers", []) + pod["containers"]
            )
            if manifest["kind"] == "TrainJob":
                starts = [manifest["spec"]["trainer"]]
            # What opens a claim computes nothing, and talks to nobody.
            for container in starts if manifest["kind"] != "Pod" else pod.get("initContainers", []):
                names = [entry["name"] for entry in container["env"]]
                assert len(names) == len(set(names))
                assert {entry["name"]: entry.get("value") for entry in container["env"]}[
                    "NCCL_P2P_DISABLE"
                ] == "1"
    assert {"PyTorchJob", "TrainJob", "Job"} <= seen


@pytest.mark.parametrize("path", RENDERED, ids=lambda path: path.stem)
def test_no_variable_that_a_pod_has_already_can_be_named(path):
    """Whatever the runner sets, in whatever pod, `check` refuses; with what the operators set, as
    their sources have it."""
    if (whole := plan_of(path, *NETWORKED)) is None:
        pytest.skip("no place on a cluster")
    made = manifests(render(whole, ("pytorchjob",))) + manifests(render(whole, ("trainjob",)))
    names = set(re.findall(r'"name": "([A-Z][A-Z0-9_]+)", "value', json.dumps(made)))
    names |= {
        "MASTER_ADDR",
        "MASTER_PORT",
        "WORLD_SIZE",
        "RANK",
        "PYTHONUNBUFFERED",
        "PET_NNODES",
        "JOB_COMPLETION_INDEX",
    }
    assert {"HOME", "NCCL_SOCKET_IFNAME", "HF_TOKEN", "WANDB_API_KEY"} <= names
    told = json.dumps(dict.fromkeys(names, "x"))
    found = examine(path, from_options(("openshift.environment=" + told,)))
    refused = {
        re.search(r"sets `(\w+)`", one.message)[1] for one in found if "two values" in one.message
    }
    assert refused == names


def containers_of(manifest: dict) -> list[tuple[dict, dict]]:
    """Every container of a manifest, each with its pod."""
    return [
        (pod, one)
        for pod in pods_in(manifest)
        for one in pod.get("initContainers", []) + pod.get("containers", [])
    ]


@pytest.mark.parametrize("path", RENDERED, ids=lambda path: path.stem)
def test_no_container_can_write_to_its_root_and_each_has_scratch_for_home_and_caches(path):
    if (whole := plan_of(path, 'openshift.version="3.6"')) is None:
        pytest.skip("no place on a cluster")
    made = manifests(render(whole, ("pytorchjob",))) + manifests(render(whole, ("trainjob",)))
    made += manifests(site.render([whole]))
    for stage in whole.stages:
        alone = whole.only(stage)
        made += [helper_pod.pod(alone, stage, "word", "/x", writes) for writes in (True, False)]
        made += [helper_pod.image_check_pod(alone, stage, ""), site.opening_pod(whole, stage)]
        made.append(controller.promotion_pod(alone, stage, "me", "why"))
    made.append(pipeline.render_driver(whole, None, "").job)
    found = [(manifest, *pair) for manifest in made for pair in containers_of(manifest)]
    assert {manifest["kind"] for manifest, _, _ in found} >= {
        "PyTorchJob",
        "TrainJob",
        "Job",
        "Pod",
        "Deployment",
    }
    for manifest, pod, container in found:
        assert container["securityContext"]["readOnlyRootFilesystem"] is True, (
            manifest["kind"],
            container["name"],
        )
        volumes = {volume["name"]: volume for volume in pod["volumes"]}
        mounts = {
            mount["mountPath"]: mount["name"]
            for mount in container["volumeMounts"]
            if not mount.get("readOnly")
        }
        assert volumes[mounts["/tmp"]] == {"name": "tmp", "emptyDir": {}}
        assert len(volumes) == len(pod["volumes"])
        named = manifest["spec"]["trainer"] if manifest["kind"] == "TrainJob" else container
        env = {entry["name"]: entry.get("value") for entry in named["env"]}
        for name in (
            "HOME",
            "TMPDIR",
            "XDG_CACHE_HOME",
            "TRITON_CACHE_DIR",
            "TORCHINDUCTOR_CACHE_DIR",
            "HF_HOME",
        ):
            assert name not in env or any(
                f"{env[name]}/".startswith(f"{mount}/") for mount in mounts
            ), name
        assert env["HOME"].startswith("/tmp")


@pytest.mark.parametrize("path", ON_CLUSTER, ids=lambda path: path.stem)
def test_only_the_jobs_own_pods_and_monitoring_reach_the_pods_of_a_pytorchjob(path):
    whole = plan_of(path)
    files = manifests(render(whole, ("pytorchjob",)))
    policies = {one["metadata"]["name"]: one for one in files if one["kind"] == "NetworkPolicy"}
    jobs = {one["metadata"]["name"]: one for one in files if one["kind"] == "PyTorchJob"}
    assert policies.keys() == jobs.keys() and jobs
    for name, policy in policies.items():
        assert refusals(policy) == []
        own = {"matchLabels": {"training.kubeflow.org/job-name": name}}
        assert policy["metadata"]["namespace"] == jobs[name]["metadata"]["namespace"]
        assert policy["spec"]["podSelector"] == own and policy["spec"]["policyTypes"] == ["Ingress"]
        machines, monitoring = policy["spec"]["ingress"]
        # All ports: NCCL takes any.
        assert machines == {"from": [{"podSelector": own}]}
        assert monitoring["ports"] == [{"protocol": "TCP", "port": whole.site.metrics_port}]
        (source,) = monitoring["from"]
        assert list(source["namespaceSelector"]["matchLabels"].values()) == [
            "openshift-user-workload-monitoring"
        ]


def test_a_policy_has_names_as_text_whatever_yaml_reads_them_as():
    made = manifests(
        render(plan_of(SURVIVAL, 'name="null"', 'openshift.namespace="1"'), ("pytorchjob",))
    )
    (policy,) = (one for one in made if one["kind"] == "NetworkPolicy")
    assert (policy["metadata"]["name"], policy["metadata"]["namespace"]) == ("null", "1")


CODE = "image.code_from_git={url: 'https://github.com/someone/fork.git', commit: '%s'}" % (
    "ab" * 20
)


@pytest.mark.parametrize(
    "names", [("hub_token_secret",), ("hub_token_secret", "tracking_secret")], ids=" and ".join
)
@pytest.mark.parametrize(
    "by",
    [CODE, "openshift.environment={HF_ENDPOINT: 'https://hub.example.com'}"],
    ids=["git", "hub"],
)
def test_what_could_take_a_secret_elsewhere_is_noted_at_its_line(names, by, golden_message):
    """A recipe may come from somebody else; its code would run beside the token, or its server
    would get it."""
    secrets = [f"openshift.{name}=my-{name.partition('_')[0]}" for name in names]
    found = [
        one
        for one in examine(SURVIVAL, from_options((by, *secrets)))
        if " can read the Secret" in one.message
    ]
    assert [one.severity for one in found] == ["note"]
    golden_message(found[0])
    for alone in ((by,), secrets):
        assert not [
            one
            for one in examine(SURVIVAL, from_options(alone))
            if " can read the Secret" in one.message
        ]


NETWORKED = ("machines.nodes=2", "openshift.hub_token_secret=hub", "openshift.tracking_secret=keys")
MISTAKES = {
    "of the operator": "openshift.environment={RANK: 1}",
    "of another line": "openshift.environment={NCCL_DEBUG: INFO}",
    "of a Secret": "openshift.environment={HF_TOKEN: hf_x}",
    "like a secret": "openshift.environment={MY_API_TOKEN: x}",
    "no name": 'openshift.environment={"a b": x}',
    "yes or no": "openshift.environment={NCCL_P2P_DISABLE: true}",
    "the GPU's own label": "openshift.node_selector={nvidia.com/gpu.product: NVIDIA-A40}",
    "no label": 'openshift.node_selector={"my label": x}',
    "no value of a label": 'openshift.node_selector={zone: "a b"}',
    "a comparison": "openshift.tolerations=[{key: team, operator: Exists}]",
    "no effect": "openshift.tolerations=[{key: team, effect: Never}]",
}


@pytest.mark.parametrize("case", MISTAKES)
def test_what_a_pod_cannot_be_given_is_said_at_its_line(case, golden_message):
    problems = [
        one for one in examine(SURVIVAL, from_options((MISTAKES[case],))) if "openshift" in one.file
    ]
    assert [one.severity for one in problems] == ["note" if case == "like a secret" else "error"]
    golden_message(problems[0])


def test_data_inside_the_image_needs_a_job_for_the_base_model_alone():
    files = {file.path: file.text for file in render(plan_of(SURVIVAL))}
    assert not [path for path in files if path.startswith("data/")]
    assert (
        yaml.safe_load(files["axolotl.yaml"])["base_model"]
        == json.loads(files["model/work.json"])["out"]
    )
    assert environment(pod()["containers"][0])["HF_HUB_OFFLINE"] == "1"


def test_another_revision_of_the_model_lies_in_another_folder():
    folders = {
        plan_of(SURVIVAL, PREPARED, f"model.revision={revision}").place.model_dir
        for revision in ("main", "v1")
    }
    assert len(folders) == 2


def test_a_changed_recipe_does_not_go_on_from_the_checkpoints_of_before():
    folders = {
        plan_of(SURVIVAL, *options).place.checkpoints_dir
        for options in ((), ("train.epochs=9",), ("openshift.backoff_limit=1",))
    }
    assert len(folders) == 2
    assert all(folder.startswith("/shared/models/survival/checkpoints/") for folder in folders)


def test_several_stages_are_rendered_apart(monkeypatch):
    recipe, _, _ = load(SURVIVAL, from_options((PREPARED,)))
    plan = translate(recipe, kubernetes.place(recipe))
    stage = plan.stage("train")
    plan = replace(
        plan, stages=tuple(replace(stage, name=name, folder=name) for name in ("pretrain", "sft"))
    )
    files = {file.path: file.text for file in render(plan)}
    for name in ("pretrain", "sft"):
        assert {
            f"{name}/{part}" for part in ("axolotl.yaml", "pytorchjob.yaml", "kustomization.yaml")
        } <= set(files)
        job = yaml.safe_load(files[f"{name}/pytorchjob.yaml"])
        assert job["metadata"]["name"] == f"survival-{name}"
        assert (
            job["metadata"]["annotations"]["recipe-runner/run-dir"]
            == f"/shared/models/survival/{name}"
        )
        assert job["metadata"]["labels"]["recipe-runner/stage"] == name
        assert yaml.safe_load(files[f"{name}/kustomization.yaml"])["resources"] == [
            "configmap.yaml",
            "networkpolicy.yaml",
            "pytorchjob.yaml",
        ]
    assert not [path for path in files if "/" not in path]


# The site.


OWN = f"{kubernetes.IMAGE_REGISTRY}/lyric-professor/recipe-runner:{__version__}"
ELSEWHERE = "openshift.namespace=team-a"
# Each a way to write a site: the recipes, and what is set in them.
SITES = {
    "starters": (ON_CLUSTER, ()),
    "another namespace with an image of its own": ([SURVIVAL], (ELSEWHERE, "openshift.image=")),
    "another namespace with the image of ours": ([SURVIVAL], (ELSEWHERE, f"openshift.image={OWN}")),
    "another namespace with a stock image": (
        [SURVIVAL],
        (ELSEWHERE, "openshift.image=quay.io/opendatahub/odh-th-torch-cuda-py312:1"),
    ),
    "a queue, an account and a kind of storage": (
        [SURVIVAL],
        (
            ELSEWHERE,
            "openshift.queue=gpu-queue",
            "openshift.service_account=trainer",
            "openshift.claims.0.storage_class=cephfs",
        ),
    ),
    "MLflow": ([SURVIVAL], (ELSEWHERE, MLFLOW)),
    "a namespace that reads as a number": ([SURVIVAL], ('openshift.namespace="123"',)),
}


@cache
def site_of(case: str) -> tuple[Artifact, ...]:
    paths, options = SITES[case]
    return tuple(
        site.render([planned(load(path, from_options(options))[0], "pytorchjob") for path in paths])
    )


def documents(files) -> list[dict]:
    """Every object in the files of a site, its claims too."""
    return [
        one
        for file in files
        if not file.path.endswith("kustomization.yaml")
        for one in yaml.safe_load_all(file.text)
    ]


def called(files, kind: str) -> dict[tuple[str, str], dict]:
    """The objects of a kind, by namespace and name."""
    found = [one for one in documents(files) if one["kind"] == kind]
    return {(one["metadata"]["namespace"], one["metadata"]["name"]): one for one in found}


def admin_files() -> list[Artifact]:
    return [
        Artifact(path.name, path.read_text("utf-8"))
        for path in sorted((ROOT / "openshift" / "admin").glob("*.yaml"))
    ]


ALL_SITES = pytest.mark.parametrize("case", SITES)


@ALL_SITES
def test_a_cluster_would_take_every_file_of_a_site(case):
    known = 0
    for manifest in documents(site_of(case)):
        if manifest["apiVersion"].partition("/")[0].endswith("openshift.io"):
            continue  # no schema of these kinds is to be had here
        known += 1
        assert (refusals(manifest) if schema_of(manifest) else core_refusals(manifest)) == []
    assert known > 4


def built(listing: dict, texts: dict[str, str]) -> list[dict]:
    """What a kustomization takes, as far as can be said without kustomize: the documents of the
    files that it names, all of them there, none named twice, and no object of one kind and name in
    two of them. texts: the files beside it, by name."""
    names = listing["resources"]
    assert len(names) == len(set(names)) and set(names) <= set(texts), names
    documents = [one for name in names for one in yaml.safe_load_all(texts[name]) if one]
    called = [(one["kind"], one["metadata"]["name"]) for one in documents]
    assert len(called) == len(set(called)), called
    return documents


def taken(files) -> dict[str, list[dict]]:
    """Of rendered files what each kustomization among them takes, by its folder."""
    texts = {file.path: file.text for file in files}
    homes = [
        path.rpartition("/")[0] for path in texts if path.rpartition("/")[2] == "kustomization.yaml"
    ]
    return {
        home: built(
            yaml.safe_load(texts[f"{home}/kustomization.yaml".lstrip("/")]),
            {
                path.rpartition("/")[2]: text
                for path, text in texts.items()
                if path.rpartition("/")[0] == home
            },
        )
        for home in homes
    }


@pytest.mark.parametrize("path", ON_CLUSTER, ids=lambda path: path.stem)
@pytest.mark.parametrize(
    ("target", "kind"), [("pytorchjob", "PyTorchJob"), ("trainjob", "TrainJob")]
)
def test_a_kustomization_takes_one_job_and_what_it_reads_and_no_claims(path, target, kind):
    plan = plan_of(path)
    found = taken(render(plan, (target,)))
    jobs_of = {stage.folder: kind if stage.trains else "Job" for stage in plan.stages}
    assert set(jobs_of) == set(found)
    for home, documents in found.items():
        expected = jobs_of[home]
        closed = ["NetworkPolicy"] if expected == "PyTorchJob" else []
        assert sorted(one["kind"] for one in documents) == sorted(
            ["ConfigMap", *closed, expected]
        ), home
        assert {one["metadata"]["namespace"] for one in documents} == {plan.site.namespace}
        (config,), (job,) = (
            [one for one in documents if one["kind"] == kind] for kind in ("ConfigMap", expected)
        )
        assert f"name: {config['metadata']['name']}\n" in yaml_text(job["spec"]), (
            "its pods read another config map"
        )


@ALL_SITES
def test_a_sites_kustomizations_take_everything_but_claims(case):
    files = site_of(case)
    texts = {file.path: file.text for file in files}
    listings = {
        path: yaml.safe_load(text)
        for path, text in texts.items()
        if path.endswith("kustomization.yaml")
    }
    homes = [
        path.removesuffix("kustomization.yaml")
        for path in listings
        if "namespace.yaml" in listings[path]["resources"]
    ]
    for home in homes:
        beside = {
            path.removeprefix(home): text for path, text in texts.items() if path.startswith(home)
        }
        listing = yaml.safe_load(beside.pop("kustomization.yaml"))
        assert built(listing, beside)
        assert set(listing["resources"]) == set(beside) - {kubernetes.CLAIMS_FILE}
        # Else a namespace there would take the right to fetch an image away from where the image
        # is.
        assert "namespace" not in listing
    if homes != [""]:
        assert [f"{home}/" for home in listings["kustomization.yaml"]["resources"]] == homes


def test_the_admins_kustomization_takes_every_file_beside_it():
    texts = {file.path: file.text for file in admin_files()}
    listing = yaml.safe_load(texts.pop("kustomization.yaml"))
    assert built(listing, texts) and set(listing["resources"]) == set(texts)


def test_a_cluster_would_take_what_is_for_admins():
    texts = {file.path: file.text for file in admin_files()}
    found = built(yaml.safe_load(texts.pop("kustomization.yaml")), texts)
    assert {one["kind"] for one in found} == {"ClusterQueue", "ResourceFlavor"}
    assert [refusals(one) for one in found] == [[], []]
    queue = next(one for one in found if one["kind"] == "ClusterQueue")
    named = called(site_of("starters"), "LocalQueue").values()
    assert {one["spec"]["clusterQueue"] for one in named} == {queue["metadata"]["name"]}


def by_kind(documents: list[dict]) -> list[dict]:
    return sorted(documents, key=lambda one: one["kind"])


@cache
def kustomize() -> tuple[str, ...] | None:
    """The words that build a folder here; None where there is no kustomize, or one that is older
    than `replacements`."""
    for words, version in (
        (("kubectl", "kustomize"), ("version", "--client")),
        (("oc", "kustomize"), ("version", "--client")),
        (("kustomize", "build"), ("version",)),
    ):
        if shutil.which(words[0]) is None:
            continue
        said = subprocess.run(
            [words[0], *version], capture_output=True, text=True, timeout=60
        ).stdout
        known = re.search(r"(?:Kustomize Version: |^\{?)v(\d+)\.(\d+)", said, re.MULTILINE)
        if known and (int(known[1]), int(known[2])) >= (4, 2):
            return words
    return None


needs_kustomize = pytest.mark.skipif(
    kustomize() is None, reason="no kubectl, oc or kustomize with `replacements` is here"
)


def kustomized(folder: Path) -> list[dict]:
    done = subprocess.run([*kustomize(), str(folder)], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    return list(yaml.safe_load_all(done.stdout))


@needs_kustomize
@ALL_SITES
def test_kustomize_builds_a_site(case, tmp_path):
    write_all(tmp_path, site_of(case))
    expected = [one for one in documents(site_of(case)) if one["kind"] != "PersistentVolumeClaim"]
    for one in expected:
        one["metadata"].setdefault("labels", {})["app.kubernetes.io/part-of"] = "recipe-runner"
    found, wanted = (
        sorted(json.dumps(one, sort_keys=True) for one in some)
        for some in (kustomized(tmp_path), expected)
    )
    assert found == wanted


@needs_kustomize
def test_kustomize_builds_what_is_for_admins():
    assert len(kustomized(ROOT / "openshift" / "admin")) == 2


@needs_kustomize
def test_kustomize_takes_what_is_named(tmp_path):
    files = render(plan_of(SURVIVAL, PREPARED))
    for file in files:
        (tmp_path / file.path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / file.path).write_text(file.text, "utf-8")
    for home, documents in taken(files).items():
        assert by_kind(kustomized(tmp_path / home)) == by_kind(documents)


def modes_of(plan, name: str) -> list[list[str]]:
    """The access modes that a claim is rendered with, each once."""
    files = [file for file in render(plan) if file.path.endswith("claims.yaml")]
    made = [
        one
        for file in files
        for one in yaml.safe_load_all(file.text)
        if one["metadata"]["name"] == name
    ]
    return [
        list(modes) for modes in dict.fromkeys(tuple(one["spec"]["accessModes"]) for one in made)
    ]


def test_a_site_asks_for_claims_in_the_mode_that_the_machines_of_its_recipes_need():
    one = [f"{ELSEWHERE}", "machines.nodes=1", "train.effective_batch_size=16"]
    several = [*one[:1], "machines.nodes=4"]
    for recipes, mode, boards in (
        ([one], "ReadWriteOnce", 0),
        ([several], "ReadWriteMany", 1),
        ([one, several], "ReadWriteMany", 1),
    ):
        plans = [
            planned(load(SURVIVAL, from_options(options))[0], "pytorchjob") for options in recipes
        ]
        files = site.render(plans)
        made = called(files, "PersistentVolumeClaim").values()
        assert [claim["spec"]["accessModes"] for claim in made] == [[mode], [mode]]
        if len(plans) == 1:
            assert modes_of(plans[0], "trained-models-pvc") == [[mode]]
        # On another machine it would keep a claim for one machine from the job.
        (board,) = called(files, "Deployment").values()
        assert board["spec"]["replicas"] == boards


def test_claims_are_left_to_submit_but_where_recipes_share_one():
    plans = [planned(load(path)[0], "pytorchjob") for path in ON_CLUSTER]
    assert not [step for step in site.steps(plans, "site") if "claims.yaml" in step]
    other = planned(load(SURVIVAL, from_options(["openshift.job_name=other"]))[0], "pytorchjob")
    steps = [step for step in site.steps([*plans, other], "site") if "claims.yaml" in step]
    assert len(steps) == 1 and steps[0].startswith("oc create -f site/lyric-professor/claims.yaml ")


def test_every_job_of_the_starters_finds_what_it_names_in_their_site():
    files = site_of("starters")
    claims, accounts, builds = (
        called(files, kind) for kind in ("PersistentVolumeClaim", "ServiceAccount", "BuildConfig")
    )
    spaces = {one["metadata"]["name"] for one in documents(files) if one["kind"] == "Namespace"}
    assert spaces == {"lyric-professor", "lyrical-professor", "rhoai-learning"}
    named = set()
    for path in ON_CLUSTER:
        plan = planned(load(path)[0], "pytorchjob")
        space = plan.site.namespace
        named |= {(space, claim["name"]) for claim in plan.site.claims}
        for claim in plan.site.claims:
            spec = claims[space, claim["name"]]["spec"]
            assert [spec["accessModes"]] == modes_of(plan, claim["name"])
            size = int(spec["resources"]["requests"]["storage"].removesuffix("Gi"))
            assert size >= plan.claim_gib(claim["name"])
        assert (space, plan.site.service_account or "recipe-runner") in accounts
        image = kubernetes.image(plan)
        if image.startswith(kubernetes.IMAGE_REGISTRY):
            _, owner, tag = image.split("/")
            assert builds[owner, tag.partition(":")[0]]["spec"]["output"]["to"]["name"] == tag
    assert set(claims) == named
    sizes = {key: one["spec"]["resources"]["requests"]["storage"] for key, one in claims.items()}
    assert sizes["lyric-professor", "trained-models-pvc"] == "100Gi", (
        "what was made once is not to shrink"
    )
    arguments = {
        key: one["spec"]["strategy"]["dockerStrategy"]["buildArgs"] for key, one in builds.items()
    }
    assert arguments["lyric-professor", "recipe-runner"] == [{"name": "EMBED", "value": "survival"}]
    queues = called(files, "LocalQueue")
    for path in RENDERED:
        place = load(path)[0].settings.get("openshift")
        assert place is None or (place.namespace, place.queue) in queues, (
            "a namespace of Kueue's refuses a job without a queue"
        )
    managed = [one for one in documents(files) if one["kind"] == "Namespace"]
    assert {one["metadata"]["labels"]["kueue.openshift.io/managed"] for one in managed} == {"true"}


@pytest.mark.parametrize("case", [case for case in SITES if case != "starters"])
def test_everything_of_a_site_is_in_its_namespace_but_the_right_to_fetch_anothers_image(case):
    files = site_of(case)
    (space,) = [one["metadata"]["name"] for one in documents(files) if one["kind"] == "Namespace"]
    elsewhere = [
        one
        for one in documents(files)
        if one["kind"] != "Namespace" and one["metadata"]["namespace"] != space
    ]
    (deployment,) = called(files, "Deployment").values()
    (container,) = deployment["spec"]["template"]["spec"]["containers"]
    owner = container["image"].split("/")[1]
    assert container["imagePullPolicy"] == "Always", "the tag is built anew"
    if "stock" in case:
        assert owner == "opendatahub" and not elsewhere and not called(files, "BuildConfig")
    elif owner == space:
        assert not elsewhere and list(called(files, "BuildConfig")) == [(space, "recipe-runner")]
    else:
        (binding,) = elsewhere
        assert owner == binding["metadata"]["namespace"] == "lyric-professor" and not called(
            files, "BuildConfig"
        )
        assert (binding["roleRef"]["kind"], binding["roleRef"]["name"]) == (
            "ClusterRole",
            "system:image-puller",
        )
        assert [one["name"] for one in binding["subjects"]] == [f"system:serviceaccounts:{space}"]


def test_the_account_for_mlflow_can_write_experiments_and_nothing_else(golden_message):
    files = site_of("MLflow")
    accounts = called(files, "ServiceAccount")
    assert accounts["team-a", podspec.MLFLOW_ACCOUNT]["automountServiceAccountToken"] is False
    own = [
        called(files, kind)["team-a", f"{podspec.MLFLOW_ACCOUNT}-experiments"]
        for kind in ("Role", "RoleBinding")
    ]
    golden_message(yaml_text(own))
    assert not any(
        "recipe-mlflow" in file.text
        for file in site_of("a queue, an account and a kind of storage")
    )


def test_a_queue_an_account_and_a_kind_of_storage_are_those_of_the_recipe():
    files = site_of("a queue, an account and a kind of storage")
    assert list(called(files, "LocalQueue")) == [("team-a", "gpu-queue")]
    (namespace,) = [one for one in documents(files) if one["kind"] == "Namespace"]
    assert namespace["metadata"]["labels"]["kueue.openshift.io/managed"] == "true"
    accounts = {"recipe-runner", "trainer", "recipe-driver"}
    assert set(called(files, "ServiceAccount")) == {("team-a", account) for account in accounts}
    claims = called(files, "PersistentVolumeClaim")
    assert claims["team-a", "trained-models-pvc"]["spec"]["storageClassName"] == "cephfs"
    assert "storageClassName" not in claims["team-a", "workspace-pvc"]["spec"]


@pytest.mark.parametrize(
    ("options", "form"),
    [
        ((), "v1beta1"),
        (('openshift.kueue="0.14"',), "v1beta1"),
        (('openshift.kueue="0.16"',), "v1beta2"),
        (('openshift.version="3.6"',), "v1beta2"),
        (('openshift.version="3.6"', 'openshift.kueue="0.14"'), "v1beta1"),
    ],
)
def test_a_queue_is_written_in_the_form_that_its_cluster_has(options, form):
    named = (ELSEWHERE, "openshift.queue=gpu-queue", *options)
    queues = called(
        site.render([planned(load(SURVIVAL, from_options(named))[0], "pytorchjob")]), "LocalQueue"
    )
    queue = queues["team-a", "gpu-queue"]
    assert queue["apiVersion"] == f"kueue.x-k8s.io/{form}" and refusals(queue) == []


def targets_of(template: dict) -> list[dict[str, str]]:
    """What Prometheus' discovery makes of a pod: a target for each port of each container, or one
    for a container without."""
    meta = {
        f"__meta_kubernetes_pod_annotation_{re.sub('[^a-zA-Z0-9]', '_', key)}": value
        for key, value in template["metadata"]["annotations"].items()
    }
    found = []
    for init in ("initContainers", "containers"):
        for container in template["spec"].get(init, []):
            here = meta | {
                "__meta_kubernetes_pod_container_init": str(init == "initContainers").lower()
            }
            here |= {"__meta_kubernetes_pod_ip": "10.0.0.7", "container": container["name"]}
            ports = container.get("ports") or [{}]
            found += [
                here | {"__address__": f"10.0.0.7:{port.get('containerPort', '')}".rstrip(":")}
                for port in ports
            ]
    return found


def scraped(target: dict[str, str], rules: list[dict]) -> dict[str, str] | None:
    """The target after relabelling (Prometheus documentation, relabel_config); None where it is
    dropped."""
    for rule in rules:
        seen = re.fullmatch(
            rule["regex"], ";".join(target.get(label, "") for label in rule["sourceLabels"])
        )
        if rule["action"] != "replace" and (seen is None) is (rule["action"] == "keep"):
            return None
        if rule["action"] == "replace" and seen:
            said = re.sub(
                r"\$(\d)", lambda group, seen=seen: seen[int(group[1])], rule["replacement"]
            )
            target = target | {rule["targetLabel"]: said}
    return target


@pytest.mark.parametrize("target", ["pytorchjob", "trainjob"])
def test_the_sites_monitor_finds_each_pods_metrics_and_nothing_else(target):
    (monitor,) = called(
        site_of("another namespace with an image of its own"), "PodMonitor"
    ).values()
    (endpoint,) = monitor["spec"]["podMetricsEndpoints"]
    rules, git = (
        endpoint["relabelings"],
        f'{{"url": "https://github.com/a/b.git", "commit": "{"1" * 40}"}}',
    )
    (job,) = jobs(target, "openshift.metrics_port=9500", f"image.code_from_git={git}")
    if target == "pytorchjob":
        template = job["spec"]["pytorchReplicaSpecs"]["Worker"]["template"]
        assert len(targets_of(template)) == 3
    else:
        # Trainer's plug-in for torch names its own port.
        template = job["spec"]["podTemplateOverrides"][0]
        template["spec"]["containers"][0]["ports"] = [{"containerPort": 29500}]
    assert (
        monitor["spec"]["selector"]["matchLabels"].items() <= template["metadata"]["labels"].items()
    )
    found = [one for one in (scraped(target, rules) for target in targets_of(template)) if one]
    assert {(one["__address__"], one["container"]) for one in found} == {
        ("10.0.0.7:9500", "pytorch" if target == "pytorchjob" else "node")
    }
    other = {"__address__": "10.0.0.7:8080", "__meta_kubernetes_pod_container_init": "false"}
    assert scraped(other, rules) is None, "helper pods show nothing"
    six = {
        "__meta_kubernetes_pod_annotation_prometheus_io_scrape": "true",
        "__meta_kubernetes_pod_ip": "fd01::7",
    }
    six |= {"__meta_kubernetes_pod_annotation_prometheus_io_port": "9500"}
    assert scraped(six, rules)["__address__"] == "[fd01::7]:9500"


@pytest.mark.parametrize(
    ("version", "walled"), [("2.25", False), ("3.2", False), ("3.3", True), ("3.6", True)]
)
def test_monitoring_comes_through_openshift_ais_wall_and_no_wall_is_ours(version, walled):
    """A policy that names a pod closes it to all that no policy lets in; so only pods that are
    closed already are named."""
    options = (ELSEWHERE, f'openshift.version="{version}"', "openshift.metrics_port=9500")
    plans = [
        planned(load(SURVIVAL, from_options(more))[0], "pytorchjob")
        for more in (options, options[:2])
    ]
    policies = called(site.render(plans), "NetworkPolicy")
    assert (("team-a", "recipe-runner-metrics") in policies) is walled
    if walled:
        spec = policies["team-a", "recipe-runner-metrics"]["spec"]
        assert spec["podSelector"]["matchExpressions"] == [
            {"key": "jobset.sigs.k8s.io/jobset-name", "operator": "Exists"}
        ]
        (rule,) = spec["ingress"]
        assert [port["port"] for port in rule["ports"]] == [9400, 9500]


def test_recipes_that_share_a_claim_get_room_for_both_and_embed_in_one_image():
    plan = planned(load(SURVIVAL)[0], "pytorchjob")
    twin = replace(plan, name="twin", claims_gib={"trained-models-pvc": 500})
    files = site.render([plan, twin])
    claims = called(files, "PersistentVolumeClaim")
    assert (
        claims["lyric-professor", "trained-models-pvc"]["spec"]["resources"]["requests"]["storage"]
        == "550Gi"
    )
    assert (
        claims["lyric-professor", "workspace-pvc"]["spec"]["resources"]["requests"]["storage"]
        == "50Gi"
    )
    (build,) = called(files, "BuildConfig").values()
    assert build["spec"]["strategy"]["dockerStrategy"]["buildArgs"][0]["value"] == "survival twin"
    other = replace(plan, site=plan.site.changed(image=OWN.replace(__version__, "9")))
    with pytest.raises(Stop, match="two tags"):
        site.render([plan, other])


@pytest.mark.parametrize(
    ("image", "made"),
    [
        ("recipe-runner:2", ("recipe-runner", "recipe-runner:2")),
        (OWN.partition("/")[0] + "/team-a/trainer", ("trainer", "trainer:latest")),
        (
            OWN.partition("/")[0] + f"/team-a/trainer@sha256:{'3f2a' * 16}",
            ("trainer", "trainer:latest"),
        ),
        (DIGEST, None),
    ],
    ids=["a name alone", "no tag", "a digest", "another registry"],
)
def test_an_image_of_the_namespaces_own_is_built_there(image, made):
    recipe, _, _ = load(SURVIVAL, from_options((ELSEWHERE, f"openshift.image={image}")))
    builds = called(site.render([planned(recipe, "pytorchjob")]), "BuildConfig")
    found = [(name, build["spec"]["output"]["to"]["name"]) for (_, name), build in builds.items()]
    assert found == ([made] if made else [])


def test_a_recipe_without_a_cluster_has_no_site(recipe_command, tmp_path):
    done = recipe_command("site", str(ROOT / "recipes" / "gemma.yaml"), cwd=tmp_path)
    assert (
        done.returncode == 1
        and "has no section `openshift`" in done.stderr
        and not list(tmp_path.iterdir())
    )


def test_the_command_writes_a_site_and_says_what_to_do_with_it(recipe_command, tmp_path):
    recipe = str(ROOT / "recipes" / "lyrics.yaml")
    done = recipe_command("site", recipe, "--set", ELSEWHERE, "--out", "place", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    listing = yaml.safe_load((tmp_path / "place" / "kustomization.yaml").read_text("utf-8"))
    assert {path.name for path in (tmp_path / "place").iterdir()} == {
        "kustomization.yaml",
        kubernetes.CLAIMS_FILE,
        *listing["resources"],
    }
    for step in (
        "oc apply -k place ",
        "oc start-build recipe-runner --namespace team-a --from-dir=. ",
    ):
        assert f"\n{step}" in done.stdout


def test_a_build_gets_the_checkout_without_environments_and_results():
    """The folders that a build leaves out hold nothing that the image copies, and everything that
    is large."""
    unsent = re.compile(kubernetes.UNSENT)
    kept = subprocess.run(
        ["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout.splitlines()
    assert len(kept) > 500 and [path for path in kept if unsent.search(path)] == []
    for large in (
        ".venv/lib/python3.11/site-packages/torch/lib/libtorch.so",
        ".git/objects/00",
        "runs/a",
        "build/kfp/bin",
    ):
        assert unsent.search(large), large
    (command,) = re.findall(
        r"^oc start-build .*$", (ROOT / "docs" / "cluster.md").read_text("utf-8"), re.M
    )
    assert command == kubernetes.build_command("recipe-runner", "my-namespace")
    build = site_of("starters")  # every build asks for room on its machine's disk
    asked = [one["spec"]["resources"]["requests"] for one in called(build, "BuildConfig").values()]
    assert asked and all(one["ephemeral-storage"] == "40Gi" for one in asked)


def test_what_the_image_needs_is_said_where_it_is_built_and_where_it_is_missing():
    for name, built in (
        ("survival", True),
        ("resnet", False),
    ):  # resnet starts from an image of others
        plan = plan_of(ROOT / "recipes" / f"{name}.yaml")
        assert (f"# {hardware.IMAGE_NEEDS}" in site.steps([plan], "site")) == built
    assert diagnose.BUILD.endswith(hardware.IMAGE_NEEDS)
    for figure in ("10 GB", "40 GiB", "driver 580"):
        assert figure in hardware.IMAGE_NEEDS


def test_people_may_do_what_the_commands_do_and_never_delete_claims():
    roles = called(site_of("starters"), "Role")
    assert len(roles) == 6
    rules = {name: one["rules"] for (_, name), one in roles.items()}
    assert all(one["rules"] == rules[name] for (_, name), one in roles.items())

    def verbs(resource: str, role: str = "recipe-user") -> set[str]:
        return {
            verb for rule in rules[role] if resource in rule["resources"] for verb in rule["verbs"]
        }

    from runner.parts.openshift.client import KINDS

    # That the verbs are enough is asked by every test of a command: their API holds people to this
    # role. Kinds of storage are in no namespace, and OpenShift shows them to everybody (its role
    # `basic-user`). Whether a namespace exists is asked only after a refusal, and members may read
    # their own (OpenShift's role `view`).
    for kind, (_, plural) in KINDS.items():
        assert verbs(plural) or kind in ("StorageClass", "Namespace"), plural
    assert "delete" not in verbs("persistentvolumeclaims")
    # `oc apply` reads what it makes or changes.
    for plural in ("configmaps", "persistentvolumeclaims", "jobs", "pytorchjobs", "trainjobs"):
        assert verbs(plural) >= {"get", "create", "patch"}, plural
    every = [rule for own in rules.values() for rule in own]
    assert not [
        rule for rule in every if "*" in rule["verbs"] + rule["resources"] + rule["apiGroups"]
    ]
    assert verbs("secrets") == {"create"}, "nobody reads another one's key"
    # Whoever may send a job may let it run by any account, and must gain nothing by that.
    wanted = {resource for rule in rules["recipe-driver"] for resource in rule["resources"]}
    assert not [one for one in wanted if verbs(one, "recipe-driver") - verbs(one)]
    assert not verbs("secrets", "recipe-driver") and verbs(
        "persistentvolumeclaims", "recipe-driver"
    ) == {"get"}
