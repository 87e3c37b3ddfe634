"""The PyTorchJob: what the operator and OpenShift's restricted-v2 ask of it, and nothing that the
operator sets itself."""

from __future__ import annotations

import pytest
import yaml

from runner.check.validate import load
from runner.parts.jobs import kubernetes
from runner.recipe.overrides import from_options
from runner.scenarios import planned, translate
from tests.conftest import ROOT
from tests.parts.openshift.judging import refusals
from tests.rendering import render

SURVIVAL = ROOT / "recipes" / "survival.yaml"
OPERATORS = {"MASTER_ADDR", "MASTER_PORT", "WORLD_SIZE", "RANK", "PYTHONUNBUFFERED"}


def rendered(*options) -> dict[str, str]:
    recipe, _, _ = load(SURVIVAL, from_options(options))
    return {file.path: file.text for file in render(translate(recipe, kubernetes.place(recipe)))}


def job(*options) -> dict:
    return yaml.safe_load(rendered(*options)["pytorchjob.yaml"])


def replicas(*options) -> dict:
    return job(*options)["spec"]["pytorchReplicaSpecs"]


def pod(*options) -> dict:
    return replicas(*options)["Master"]["template"]["spec"]


def test_one_master_and_the_other_machines_are_workers():
    assert {name: part["replicas"] for name, part in replicas().items()} == {
        "Master": 1,
        "Worker": 3,
    }


def test_one_machine_has_no_workers():
    assert list(replicas("machines.nodes=1", "train.effective_batch_size=16")) == ["Master"]


def test_master_and_workers_have_the_same_pod():
    both = replicas()
    assert both["Master"]["template"] == both["Worker"]["template"]
    assert both["Master"]["restartPolicy"] == both["Worker"]["restartPolicy"]


def test_the_container_is_called_pytorch_and_trains_through_torchrun():
    (container,) = pod()["containers"]
    assert container["name"] == "pytorch"
    guard, _, engine = (
        container["command"][start:end] for start, end in ((0, 5), (5, 6), (6, None))
    )
    assert guard == [
        "python",
        "-m",
        "runner.parts.jobs.stage",
        "run",
        "/etc/recipe-runner/plan.json",
    ]
    assert engine == [
        "axolotl",
        "train",
        "/etc/recipe-runner/axolotl.yaml",
        "--launcher",
        "torchrun",
    ]
    assert container["ports"][0] == {"name": "pytorchjob-port", "containerPort": 23456}


def test_nothing_is_set_that_the_operator_sets():
    names = {entry["name"] for entry in pod()["containers"][0]["env"]}
    assert not names & OPERATORS
    assert not [name for name in names if name.startswith("PET_")]


def test_values_have_the_types_that_the_operator_takes():
    assert (
        job("machines.gpus_per_node=2", "train.effective_batch_size=128")["spec"]["nprocPerNode"]
        == "2"
    )
    assert all(isinstance(entry["value"], str) for entry in pod()["containers"][0]["env"])


def test_restarts_are_those_of_the_whole_job():
    """The operator adds up what all pods have restarted, and one that fails takes the others with
    it."""
    for nodes, limit, counted in ((4, 3, 13), (1, 3, 4), (4, 0, 1)):
        machines = (f"machines.nodes={nodes}", "train.effective_batch_size=")
        policy = job(*machines, f"openshift.backoff_limit={limit}")["spec"]["runPolicy"]
        assert policy["backoffLimit"] == counted


def test_the_run_ends_some_day():
    policy = job("openshift.deadline_hours=1.5")["spec"]["runPolicy"]
    assert policy == {"cleanPodPolicy": "None", "backoffLimit": 13, "activeDeadlineSeconds": 5400}


def test_requests_equal_limits_and_are_the_recipes():
    resources = pod()["containers"][0]["resources"]
    assert (
        resources["requests"]
        == resources["limits"]
        == {"cpu": "7", "memory": "22Gi", "nvidia.com/gpu": 1}
    )


def test_the_pod_is_safe_under_restricted_v2():
    spec = pod()
    assert spec["securityContext"] == {
        "runAsNonRoot": True,
        "seccompProfile": {"type": "RuntimeDefault"},
    }
    (container,) = spec["containers"]
    assert container["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "capabilities": {"drop": ["ALL"]},
        "readOnlyRootFilesystem": True,
    }
    assert not [volume for volume in spec["volumes"] if "hostPath" in volume]
    text = rendered()["pytorchjob.yaml"]
    assert "runAsUser" not in text and "fsGroup" not in text


def test_everything_that_writes_to_a_home_has_a_writable_folder():
    env = {entry["name"]: entry["value"] for entry in pod()["containers"][0]["env"]}
    writable = [
        mount["mountPath"]
        for mount in pod()["containers"][0]["volumeMounts"]
        if not mount.get("readOnly")
    ]
    for name in (
        "HOME",
        "HF_HOME",
        "TRITON_CACHE_DIR",
        "TORCHINDUCTOR_CACHE_DIR",
        "XDG_CACHE_HOME",
        "TMPDIR",
    ):
        assert any(env[name] == mount or env[name].startswith(f"{mount}/") for mount in writable), (
            name
        )
    assert env["USER"] and env["LOGNAME"]


def test_shared_memory_is_mounted_and_within_the_pods_memory():
    volumes = {volume["name"]: volume for volume in pod()["volumes"]}
    assert volumes["shm"]["emptyDir"] == {"medium": "Memory", "sizeLimit": "5Gi"}
    assert {"name": "shm", "mountPath": "/dev/shm"} in pod()["containers"][0]["volumeMounts"]


def test_every_mount_has_its_volume():
    spec = pod()
    assert {mount["name"] for mount in spec["containers"][0]["volumeMounts"]} == {
        volume["name"] for volume in spec["volumes"]
    }


def test_the_gpu_is_chosen_by_its_label():
    spec = pod()
    assert spec["nodeSelector"] == {"nvidia.com/gpu.product": "NVIDIA-L40S"}
    assert spec["tolerations"] == [
        {"key": "nvidia.com/gpu", "operator": "Exists", "effect": "NoSchedule"}
    ]


def test_several_machines_write_one_volume_only_with_readwritemany():
    for options, mode in (
        ((), "ReadWriteMany"),
        (("machines.nodes=1", "train.effective_batch_size=16"), "ReadWriteOnce"),
    ):
        claims = list(yaml.safe_load_all(rendered(*options)["claims.yaml"]))
        assert [claim["metadata"]["name"] for claim in claims] == [
            "trained-models-pvc",
            "workspace-pvc",
        ]
        assert [claim["spec"]["accessModes"] for claim in claims] == [[mode], [mode]]


@pytest.mark.parametrize("name", ["tmp", "shm", "config", "code"])
def test_a_claim_may_be_called_as_a_pod_calls_another_volume(name):
    made = job(f"openshift.claims.0.name={name}")
    assert refusals(made) == []
    volumes = made["spec"]["pytorchReplicaSpecs"]["Master"]["template"]["spec"]["volumes"]
    assert [
        one["name"] for one in volumes if one.get("persistentVolumeClaim") == {"claimName": name}
    ] == [f"{name}-claim"]


def test_the_config_map_is_named_by_its_content_and_mounted():
    files, others = rendered(), rendered("train.epochs=5")
    maps = [yaml.safe_load(each["configmap.yaml"]) for each in (files, others)]
    assert maps[0]["metadata"]["name"] != maps[1]["metadata"]["name"]
    assert maps[0]["data"]["axolotl.yaml"] == files["axolotl.yaml"]
    mounted = {volume["name"]: volume for volume in pod()["volumes"]}["config"]["configMap"]["name"]
    assert mounted == maps[0]["metadata"]["name"]


def test_a_deepspeed_file_travels_in_the_config_map():
    files = rendered("distribution=zero2")
    assert "deepspeed.json" in yaml.safe_load(files["configmap.yaml"])["data"]
    assert yaml.safe_load(files["axolotl.yaml"])["deepspeed"] == "/etc/recipe-runner/deepspeed.json"


def test_all_paths_in_the_config_are_absolute_and_mounted():
    config = yaml.safe_load(rendered()["axolotl.yaml"])
    mounts = [mount["mountPath"] for mount in pod()["containers"][0]["volumeMounts"]]
    for key in ("output_dir", "dataset_prepared_path"):
        assert any(config[key].startswith(f"{mount}/") for mount in mounts), key


def test_the_kustomization_names_what_is_for_the_cluster_and_only_that():
    files = rendered()
    named = yaml.safe_load(files["kustomization.yaml"])["resources"]
    kinds = [yaml.safe_load(files[name].split("---\n")[0])["kind"] for name in named]
    assert kinds == ["ConfigMap", "NetworkPolicy", "PyTorchJob"]
    comments = [line for line in files["kustomization.yaml"].splitlines() if line.startswith("#")]
    assert [line for line in comments if "once: oc create -f claims.yaml" in line]


def test_a_queue_is_a_label_of_the_job():
    labels = job("openshift.queue=gpu-queue")["metadata"]["labels"]
    assert labels["kueue.x-k8s.io/queue-name"] == "gpu-queue"
    assert "kueue.x-k8s.io/queue-name" not in job("openshift.queue=")["metadata"]["labels"]


def test_the_image_defaults_to_the_namespaces_own():
    image = pod("openshift.image=", "openshift.namespace=my-project")["containers"][0]["image"]
    assert (
        image == "image-registry.openshift-image-registry.svc:5000/my-project/recipe-runner:0.1.0"
    )


@pytest.mark.parametrize("name", ["a" * 53, "x", "a-1"])
def test_names_that_fit_pass_and_others_do_not(name):
    from runner.tools.text import JOB_NAME

    assert JOB_NAME.match(name)
    assert (
        not JOB_NAME.match(f"{name}-")
        and not JOB_NAME.match(f"1{name}")
        and not JOB_NAME.match(name.upper() + "Ä")
    )


def test_a_pipelines_first_stage_makes_claims_for_the_machines_of_all():
    recipe, _, _ = load(ROOT / "recipes" / "seven-b.yaml", from_options(["machines.nodes=2"]))
    files = {file.path: file.text for file in render(translate(recipe, kubernetes.place(recipe)))}
    first = yaml.safe_load_all(files["data/claims.yaml"])
    assert {tuple(claim["spec"]["accessModes"]) for claim in first} == {("ReadWriteMany",)}


def test_a_pods_grace_follows_its_checkpoint_and_the_speed_of_its_claim():
    """seven-b's pretraining: 16 bytes a parameter take a quarter of an hour at 100 MB a second, and
    a tenth of that at 1,000."""

    def graces(*options: str) -> dict[str, int | None]:
        recipe, _, _ = load(ROOT / "recipes" / "seven-b.yaml", from_options(options))
        return {stage.name: stage.grace_seconds for stage in planned(recipe, "pytorchjob").stages}

    slow, fast = graces(), graces("openshift.claims.0.write_mb_s=1000")
    assert slow["data"] is None and slow["lora"] < 120, "what writes little leaves soon"
    assert 900 < slow["pretrain-512"] < 1500 and slow["pretrain-512"] - fast["pretrain-512"] > 700
