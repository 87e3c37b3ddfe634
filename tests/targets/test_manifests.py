"""Everything that is for a cluster: accepted by the schemas, traceable, without secrets, with what each network needs."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from functools import cache
from pathlib import Path

import pytest
import yaml

from runner import __version__
from runner.catalog import allocatable
from runner.catalog.allocatable import GIB
from runner.check.validate import load
from runner.cluster import helper_pod, promote
from runner.emit import emit
from runner.recipe import units
from runner.recipe.overrides import from_options
from runner.scenarios import translate
from runner.targets import kubernetes, podspec, render
from runner.text import yaml_text
from tests.cluster.judging import core_refusals, full_schemas, reduced, refusals
from tests.conftest import ON_CLUSTER, RECIPES, ROOT
from tests.targets.test_trainjob import EVERYTHING, SURVIVAL, jobs, plan_of

SITE = ROOT / "openshift"
PREPARED = "openshift.data_dir=/shared/models/data/survival"


def manifests(files) -> list[dict]:
    found = []
    for file in files:
        if file.path.endswith(".yaml"):
            documents = [one for one in yaml.safe_load_all(file.text) if isinstance(one, dict) and "kind" in one]
            found += [one for one in documents if one["kind"] != "Kustomization"]
    return found


def environment(container: dict) -> dict:
    return {entry["name"]: entry.get("value", entry.get("valueFrom")) for entry in container["env"]}


def pod(*options) -> dict:
    (job,) = jobs("pytorchjob", *options)
    return job["spec"]["pytorchReplicaSpecs"]["Master"]["template"]["spec"]


@pytest.mark.parametrize("path", RECIPES, ids=lambda path: path.stem)
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
    whole = json.loads((folder / entry["full"]).read_text("utf-8"))
    assert list(differences(entry["schema"], whole)) == []


def differences(ours, theirs, where=""):
    """Where a reduced schema is not a part of the whole one. Descriptions and defaults refuse nothing."""
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
    for key in ("required", "enum", "pattern", "minimum", "maximum", "maxLength", "x-kubernetes-list-map-keys"):
        if key in theirs and key not in ours:
            yield f"{where}: the whole schema has {key} {theirs[key]}"


def test_labels_and_annotations_lead_back_to_recipe_stage_and_content():
    one, other = (jobs("pytorchjob", *options)[0]["metadata"] for options in ((), ("openshift.backoff_limit=1",)))
    for key, value in (("app.kubernetes.io/name", "survival"), ("recipe-runner/stage", "train")):
        assert one["labels"][key] == value
    assert one["annotations"]["recipe-runner/recipe"] == "survival"
    assert one["labels"]["recipe-runner/fingerprint"] == other["labels"]["recipe-runner/fingerprint"]
    assert one["annotations"]["recipe-runner/content"] != other["annotations"]["recipe-runner/content"]
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
        assert gib <= allocatable.pod_memory_gib(memory) < memory / GIB
        assert int(requests["cpu"]) <= allocatable.pod_cpus(threads) < threads


@pytest.mark.parametrize(
    ("options", "requests", "limits"),
    [
        ((), ("22Gi", "7"), ("22Gi", "7")),
        (("machines.memory=32 GiB", "machines.cpus=16"), ("24Gi", "15"), ("24Gi", "15")),
        (("openshift.requests.memory=10 GB", "openshift.requests.cpus=2"), ("9536Mi", "2"), ("9536Mi", "2")),
        (("openshift.limits.memory=25 GiB", "openshift.limits.cpus=8"), ("22Gi", "7"), ("25Gi", "8")),
        (("openshift.limits.memory=12 GiB", "openshift.limits.cpus=3"), ("12Gi", "3"), ("12Gi", "3")),
    ],
)
def test_what_is_not_written_of_requests_and_limits_is_computed(options, requests, limits):
    resources = podspec.resources(plan := plan_of(SURVIVAL, *options), plan.stages[-1])
    assert (resources["requests"]["memory"], resources["requests"]["cpu"]) == requests
    assert (resources["limits"]["memory"], resources["limits"]["cpu"]) == limits


def test_the_mount_of_a_claim_itself_may_hold_the_data():
    plan = plan_of(SURVIVAL, "openshift.data_dir=/shared/models")
    assert [file.path for file in render(plan) if file.path == "data/job.yaml"] and plan.place.prepared
    assert not plan_of(SURVIVAL, "openshift.data_dir=/shared/modelsx").place.prepared


def containers(value) -> list[dict]:
    """Every container in a manifest, whatever kind it is of: what names an image and has a command."""
    below = list(value.values()) if isinstance(value, dict) else value if isinstance(value, list) else []
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
def test_every_container_starts_from_the_image_that_its_name_means_now(path, options, policy, label):
    cloned = ("image.code_from_git.url=https://github.com/a/b.git", f'image.code_from_git.commit="{"0" * 40}"')
    for more in ((), cloned):
        plan = plan_of(path, *options, *more)
        pods = [helper_pod.pod(plan.only(stage), stage, "word", "/folder") for stage in plan.stages]
        pods += [promote.pod(plan.only(stage), stage, "ann", "why") for stage in plan.stages]
        there = [one for one in manifests(render(plan, ("pytorchjob",))) if "spec" in one and containers(one)] + pods
        assert len(there) > len(pods)
        for manifest in there:
            policies = {one.get("imagePullPolicy") for one in containers(manifest)}
            assert policies == {policy}, manifest["kind"]
            assert manifest["metadata"]["labels"]["recipe-runner/image"] == label
        for manifest in there[: -len(pods)]:
            assert manifest["metadata"]["annotations"]["recipe-runner/image"] == kubernetes.image(plan)


def test_a_trainjob_says_that_its_runtime_decides_when_an_image_is_fetched():
    """Neither form of it has a place for the policy."""
    for version in ("3.5", "3.6"):
        for image, said in (("", True), (DIGEST, False)):
            options = (f'openshift.version="{version}"', f"openshift.image={image}")
            (file,) = [one for one in render(plan_of(SURVIVAL, *options), ("trainjob",)) if one.path == "trainjob.yaml"]
            assert ("by its digest" in file.text.partition("apiVersion")[0]) is said


@pytest.mark.parametrize(
    ("data_from", "folder"),
    [("claim", "/shared/models/seven-b/files/data"), ("image", "/opt/recipe-runner/recipes/data")],
)
def test_pods_look_for_data_files_where_pods_have_them(tmp_path, monkeypatch, data_from, folder):
    shutil.copytree(ROOT / "recipes", tmp_path / "recipes")
    none = [f"{home}.{name}=" for home in ("data", "sft.data") for name in ("hub", "revision", "subset")]
    files = (
        f"openshift.data_from={data_from}",
        "data.path=data/seven-b-text.jsonl",
        "sft.data.path=data/seven-b-questions.jsonl",
    )
    monkeypatch.chdir(tmp_path)
    here = plan_of(Path("recipes/seven-b.yaml"), *none, *files)
    work = here.stages[0].config
    assert work["text"]["path"] == f"{folder}/seven-b-text.jsonl"
    assert work["sft"]["path"] == f"{folder}/seven-b-questions.jsonl"
    monkeypatch.chdir(tmp_path / "recipes")
    assert [file.text for file in render(plan_of(Path("seven-b.yaml"), *none, *files))] == [
        file.text for file in render(here)
    ]


def test_files_of_other_sections_come_from_the_clone_or_a_claim():
    commit = "1" * 40
    code = f'image={{"code_from_git": {{"url": "https://example.org/code.git", "commit": "{commit}"}}}}'
    site = 'openshift={"namespace": "a", "data_from": "git", "data_dir": "/m/data", "claims": [{"name": "c", "mount": "/m"}]}'
    plain = (
        "nodes.machines.1.gpus=[2,3]",
        "data.validation_split=",
        *(f"data.{name}=" for name in ("hub", "revision", "subset")),
    )
    files = ("data.path=/m/corpus.txt", "data.validation_path=data/gemma-sample.txt")
    recipe, _, notes = load(ROOT / "recipes" / "gemma.yaml", from_options((site, code, *plain, *files)))
    stage = translate(recipe, kubernetes.place(recipe)).stage("data")
    assert "`/m/corpus.txt` lies on a claim, so its columns are not checked here." in str(notes[0])
    assert stage.config["data"]["path"] == "/m/corpus.txt"
    assert stage.config["data"]["validation_path"] == "/opt/recipe-code/repository/recipes/data/gemma-sample.txt"


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
    assert (env["NCCL_IB_DISABLE"], env["NCCL_IB_HCA"], env["NCCL_SOCKET_IFNAME"]) == ("0", "mlx5", "net1")
    assert container["resources"]["requests"]["rdma/roce"] == container["resources"]["limits"]["rdma/roce"] == 1


def test_one_machine_needs_no_network():
    env = environment(pod("machines.nodes=1", "train.effective_batch_size=")["containers"][0])
    assert not [name for name in env if name.startswith("NCCL_") and name != "NCCL_DEBUG"]


def test_the_hubs_token_comes_by_reference_and_the_command_for_it_is_shown():
    options = ("openshift.hub_token_secret=hub-token", PREPARED)
    files = {file.path: file.text for file in render(plan_of(SURVIVAL, *options))}
    for path, kind in (("pytorchjob.yaml", "pytorchReplicaSpecs"), ("data/job.yaml", "backoffLimit")):
        assert kind in files[path]
        assert (
            "#   oc create secret generic hub-token --namespace lyric-professor --from-file=token=FILE" in files[path]
        )
    env = environment(pod(*options)["containers"][0])
    assert env["HF_TOKEN"] == {"secretKeyRef": {"name": "hub-token", "key": "token"}}
    assert "HF_TOKEN" not in environment(pod()["containers"][0])


def test_a_tracking_servers_key_comes_by_reference_too():
    options = ("openshift.tracking_secret=tracking",)
    env = environment(pod(*options)["containers"][0])
    for name in ("WANDB_API_KEY", "MLFLOW_TRACKING_URI", "MLFLOW_TRACKING_TOKEN"):
        assert env[name] == {"secretKeyRef": {"name": "tracking", "key": name, "optional": True}}
    job = next(file.text for file in render(plan_of(SURVIVAL, *options)) if file.path == "pytorchjob.yaml")
    assert "#   oc create secret generic tracking --namespace lyric-professor --from-file=WANDB_API_KEY=FILE\n" in job
    job = next(
        file.text
        for file in render(plan_of(SURVIVAL, *options, "train.report_to=mlflow"))
        if file.path == "pytorchjob.yaml"
    )
    assert (
        "tracking --namespace lyric-professor --from-file=MLFLOW_TRACKING_URI=FILE --from-file=MLFLOW_TRACKING_TOKEN=FILE\n"
        in job
    )


def test_nothing_of_this_machines_user_and_no_token_gets_into_a_file_or_onto_the_screen(recipe_command, tmp_path):
    planted = {
        name: f"planted-{name.lower()}-7f3a"
        for name in ("HF_TOKEN", "HUGGING_FACE_HUB_TOKEN", "WANDB_API_KEY", "USER", "LOGNAME", "HOSTNAME", "KUBECONFIG")
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
    guard, _, command = (container["command"][start:end] for start, end in ((0, 5), (5, 6), (6, None)))
    assert guard == ["python", "-m", "runner.entrypoints.stage", "run", "/etc/recipe-runner/data/plan.json"]
    assert command == ["python", "-m", "runner.entrypoints.prepare", "/etc/recipe-runner/data/work.json"]
    assert "HF_HUB_OFFLINE" not in environment(container)
    read = yaml.safe_load(files["data/configmap.yaml"])["data"]
    work, config = json.loads(read["work.json"]), yaml.safe_load(files["axolotl.yaml"])
    assert work["model"]["base"] == "HuggingFaceTB/SmolLM3-3B"
    assert config["base_model"] == work["model"]["folder"]
    assert config["base_model"].startswith("/shared/models/base-models/")
    assert config["dataset_prepared_path"].startswith(work["out"])
    for setting in ("base_model", "datasets", "dataset_prepared_path", "sequence_len", "sample_packing"):
        assert yaml.safe_load(read["axolotl.yaml"]).get(setting) == config.get(setting), "tokenised as it is trained"
    assert config["recipe_runner"]["demo"]["base_model"] == config["base_model"]
    assert environment(pod(PREPARED)["containers"][0])["HF_HUB_OFFLINE"] == "1"


def test_rows_are_prepared_again_with_whatever_decides_how_they_are_tokenised():
    """A Job that is done, and by its key is still this recipe's, would leave the tokenising to machines with GPUs."""

    def key(*options) -> str:
        return plan_of(SURVIVAL, PREPARED, *options).stage("data").keys[""]

    changes = (
        (),
        ("model.sequence_len=512",),
        ("model.revision=v1",),
        ("data.seed=7",),
        ('advanced.axolotl={"sample_packing": false}',),
        ('advanced.axolotl={"train_on_inputs": true}',),
    )
    assert len({key(*change) for change in changes}) == len(changes)
    for change in ("openshift.backoff_limit=1", "train.logging_steps=7", "openshift.output_dir=/shared/models/other"):
        assert key(change) == key(), change


def test_data_inside_the_image_needs_no_such_job():
    files = {file.path: file.text for file in render(plan_of(SURVIVAL))}
    assert not [path for path in files if path.startswith("data/")]
    assert yaml.safe_load(files["axolotl.yaml"])["base_model"] == "HuggingFaceTB/SmolLM3-3B"
    assert "HF_HUB_OFFLINE" not in environment(pod()["containers"][0])


def test_another_revision_of_the_model_lies_in_another_folder():
    folders = {plan_of(SURVIVAL, PREPARED, f"model.revision={revision}").place.model_dir for revision in ("main", "v1")}
    assert len(folders) == 2


def test_a_changed_recipe_does_not_go_on_from_the_checkpoints_of_before():
    folders = {
        plan_of(SURVIVAL, *options).place.checkpoints_dir
        for options in ((), ("train.epochs=9",), ("openshift.backoff_limit=1",))
    }
    assert len(folders) == 2
    assert all(folder.startswith("/shared/models/survival/checkpoints/") for folder in folders)


def test_several_stages_are_rendered_apart(monkeypatch):
    from dataclasses import replace

    recipe, _, _ = load(SURVIVAL, from_options((PREPARED,)))
    plan = translate(recipe, kubernetes.place(recipe))
    stage = plan.stage("train")
    plan = replace(plan, stages=tuple(replace(stage, name=name, folder=name) for name in ("pretrain", "sft")))
    files = {file.path: file.text for file in render(plan)}
    for name in ("pretrain", "sft"):
        assert {f"{name}/{part}" for part in ("axolotl.yaml", "pytorchjob.yaml", "kustomization.yaml")} <= set(files)
        job = yaml.safe_load(files[f"{name}/pytorchjob.yaml"])
        assert job["metadata"]["name"] == f"survival-{name}"
        assert job["metadata"]["annotations"]["recipe-runner/run-dir"] == f"/shared/models/survival/{name}"
        assert job["metadata"]["labels"]["recipe-runner/stage"] == name
        assert yaml.safe_load(files[f"{name}/kustomization.yaml"])["resources"] == [
            "configmap.yaml",
            "pytorchjob.yaml",
        ]
    assert not [path for path in files if "/" not in path]


# The site.


def site_files() -> list:
    files = sorted(path for path in SITE.rglob("*.yaml") if path.name != "kustomization.yaml")
    assert files
    return files


@pytest.mark.parametrize("file", site_files(), ids=lambda file: str(file.relative_to(SITE)))
def test_a_cluster_would_take_the_sites_files(file):
    known = 0
    for manifest in yaml.safe_load_all(file.read_text("utf-8")):
        group = manifest["apiVersion"].partition("/")[0]
        if group.endswith("openshift.io") or manifest["kind"] in ("ClusterQueue", "ResourceFlavor"):
            continue  # no schema of these kinds is to be had here
        known += 1
        assert (refusals(manifest) if manifest["kind"] == "LocalQueue" else core_refusals(manifest)) == []
    assert known or file.name in ("build.yaml", "cluster-queue.yaml")


def built(listing: dict, texts: dict[str, str]) -> list[dict]:
    """What a kustomization takes, as far as can be said without kustomize: the documents of the files that it names, all of
    them there, none named twice, and no object of one kind and name in two of them. texts: the files beside it, by name."""
    names = listing["resources"]
    assert len(names) == len(set(names)) and set(names) <= set(texts), names
    documents = [one for name in names for one in yaml.safe_load_all(texts[name]) if one]
    called = [(one["kind"], one["metadata"]["name"]) for one in documents]
    assert len(called) == len(set(called)), called
    return documents


def taken(files) -> dict[str, list[dict]]:
    """Of rendered files what each kustomization among them takes, by its folder."""
    texts = {file.path: file.text for file in files}
    homes = [path.rpartition("/")[0] for path in texts if path.rpartition("/")[2] == "kustomization.yaml"]
    return {
        home: built(
            yaml.safe_load(texts[f"{home}/kustomization.yaml".lstrip("/")]),
            {path.rpartition("/")[2]: text for path, text in texts.items() if path.rpartition("/")[0] == home},
        )
        for home in homes
    }


@pytest.mark.parametrize("path", ON_CLUSTER, ids=lambda path: path.stem)
@pytest.mark.parametrize(("target", "kind"), [("pytorchjob", "PyTorchJob"), ("trainjob", "TrainJob")])
def test_a_kustomization_takes_one_job_and_what_it_reads_and_no_claims(path, target, kind):
    plan = plan_of(path)
    found = taken(render(plan, (target,)))
    jobs_of = {stage.folder: kind if stage.trains else "Job" for stage in plan.stages}
    assert set(jobs_of) == set(found)
    for home, documents in found.items():
        expected = jobs_of[home]
        assert sorted(one["kind"] for one in documents) == sorted(["ConfigMap", expected]), home
        assert {one["metadata"]["namespace"] for one in documents} == {plan.site["namespace"]}
        (config,), (job,) = ([one for one in documents if one["kind"] == kind] for kind in ("ConfigMap", expected))
        assert f"name: {config['metadata']['name']}\n" in yaml_text(job["spec"]), "its pods read another config map"


@pytest.mark.parametrize("folder", [SITE, SITE / "admin"], ids=["site", "admin"])
def test_the_sites_kustomizations_name_every_file_beside_them(folder):
    listing = yaml.safe_load((folder / "kustomization.yaml").read_text("utf-8"))
    texts = {path.name: path.read_text("utf-8") for path in folder.glob("*.yaml") if path.name != "kustomization.yaml"}
    documents = built(listing, texts)
    assert set(listing["resources"]) == set(texts) and documents
    for rule in listing.get("replacements", ()):
        (source,) = [one for one in documents if is_meant(one, rule["source"])]
        assert rule["source"]["fieldPath"] == "metadata.namespace" and source["kind"] == "ImageStream"
        (target,) = rule["targets"]
        (deployment,) = [one for one in documents if is_meant(one, target["select"])]
        (container,) = deployment["spec"]["template"]["spec"]["containers"]
        assert target["fieldPaths"] == [f"spec.template.spec.containers.[name={container['name']}].image"]
        assert container["imagePullPolicy"] == "Always", "the tag is built anew"
        parts = container["image"].split(target["options"]["delimiter"])
        assert parts[target["options"]["index"]] == listing["namespace"]


def by_kind(documents: list[dict]) -> list[dict]:
    return sorted(documents, key=lambda one: one["kind"])


def is_meant(document: dict, words: dict) -> bool:
    return (document["kind"], document["metadata"]["name"]) == (words["kind"], words["name"])


@cache
def kustomize() -> tuple[str, ...] | None:
    """The words that build a folder here; None where there is no kustomize, or one that is older than `replacements`."""
    for words, version in (
        (("kubectl", "kustomize"), ("version", "--client")),
        (("oc", "kustomize"), ("version", "--client")),
        (("kustomize", "build"), ("version",)),
    ):
        if shutil.which(words[0]) is None:
            continue
        said = subprocess.run([words[0], *version], capture_output=True, text=True, timeout=60).stdout
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
@pytest.mark.parametrize("folder", [SITE, SITE / "admin"], ids=["site", "admin"])
def test_kustomize_builds_the_site(folder, tmp_path):
    # As somebody with a namespace of another name has it.
    shutil.copytree(folder, site := tmp_path / "site")
    listing = (site / "kustomization.yaml").read_text("utf-8")
    (site / "kustomization.yaml").write_text(listing.replace("namespace: lyric-professor", "namespace: other"), "utf-8")
    documents = kustomized(site)
    for one in documents:
        if one["kind"] == "Deployment":
            (container,) = one["spec"]["template"]["spec"]["containers"]
            assert container["image"].split("/")[1] == one["metadata"]["namespace"], "an image of another namespace"
    assert len(documents) == sum(len(list(yaml.safe_load_all(path.read_text()))) for path in folder.glob("*.yaml")) - 1


@needs_kustomize
def test_kustomize_takes_what_is_named(tmp_path):
    files = render(plan_of(SURVIVAL, PREPARED))
    for file in files:
        (tmp_path / file.path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / file.path).write_text(file.text, "utf-8")
    for home, documents in taken(files).items():
        assert by_kind(kustomized(tmp_path / home)) == by_kind(documents)


def test_the_sites_names_are_those_of_the_starter_recipes():
    documents = [one for file in site_files() for one in yaml.safe_load_all(file.read_text("utf-8"))]
    claims = {one["metadata"]["name"] for one in documents if one["kind"] == "PersistentVolumeClaim"}
    (namespace,) = [one["metadata"]["name"] for one in documents if one["kind"] == "Namespace"]
    (tag,) = [one["spec"]["output"]["to"]["name"] for one in documents if one["kind"] == "BuildConfig"]
    recipe, _, _ = load(SURVIVAL)
    assert claims == {claim.name for claim in recipe.openshift.claims}
    unnamed = plan_of(SURVIVAL, "openshift.image=")
    assert kubernetes.image(unnamed) == recipe.openshift.image, "without a name it is the image that is built there"
    assert namespace == recipe.openshift.namespace
    assert recipe.openshift.image.endswith(f"/{namespace}/{tag}")


def test_people_may_do_what_the_commands_do_and_never_delete_claims():
    rules = [
        rule
        for file in site_files()
        for one in yaml.safe_load_all(file.read_text("utf-8"))
        if one["kind"] == "Role"
        for rule in one["rules"]
    ]

    def verbs(resource: str) -> set[str]:
        return {verb for rule in rules if resource in rule["resources"] for verb in rule["verbs"]}

    from runner.cluster.client import KINDS

    # That the verbs are enough is asked by every test of a command: their API holds people to this role.
    for _, plural in KINDS.values():
        assert verbs(plural), plural
    assert "delete" not in verbs("persistentvolumeclaims")
    assert not [rule for rule in rules if "*" in rule["verbs"] + rule["resources"] + rule["apiGroups"]]
    assert "secrets" not in {resource for rule in rules for resource in rule["resources"]}
