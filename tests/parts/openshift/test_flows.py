"""The way of a job on a cluster: admitted, submitted twice, watched, explained, stopped."""

from __future__ import annotations

import json
import re

import pytest
import yaml

from runner.check.validate import load
from runner.parts.evaluate import seal
from runner.parts.jobs import kubernetes
from runner.parts.openshift import submit
from runner.parts.openshift.client import address
from runner.parts.openshift.errors import Refused
from runner.parts.openshift.jobs import KIND, POD_LABEL
from runner.recipe import overrides as changing
from runner.scenarios import translate
from runner.tools.run_files import SEAL_KEY
from tests.conftest import RECIPES, ROOT
from tests.parts.openshift.api import ROLES, storage_class
from tests.parts.openshift.conftest import VERSION, in_process
from tests.rendering import render

SURVIVAL, SEVEN_B = ROOT / "recipes" / "survival.yaml", ROOT / "recipes" / "seven-b.yaml"


def manifests(path, target, *sets):
    if "openshift" not in load(path)[0].settings:
        return []
    recipe, _, _ = load(path, changing.from_options(sets))
    plan = translate(recipe, kubernetes.place(recipe))
    texts = [file.text for file in render(plan, (target,)) if file.path.endswith(".yaml")]
    documents = [document for text in texts for document in yaml.safe_load_all(text)]
    return [
        one
        for one in documents
        if isinstance(one, dict) and "kind" in one and one["kind"] != "Kustomization"
    ]


@pytest.mark.parametrize("path", RECIPES, ids=lambda path: path.stem)
@pytest.mark.parametrize("target", ["pytorchjob", "trainjob"])
def test_the_cluster_admits_every_recipes_every_manifest(site, path, target):
    found = manifests(
        path, target, f"openshift.namespace={site.namespace}", f'openshift.version="{VERSION}"'
    )
    if not found:
        pytest.skip(f"{path.stem} has no place on a cluster")
    site.require(KIND[target])
    for manifest in found:
        site.cluster.apply(manifest, dry_run=True)


@pytest.mark.parametrize(
    "spoil, words, judge",
    [
        (lambda job: job["spec"].update(nprocPerNode=1), "nprocPerNode", "schema"),
        (lambda job: job["spec"].update(replicas=1), "replicas", "strict schema"),
        (
            lambda job: job["spec"]["pytorchReplicaSpecs"]["Master"].update(replicas=2),
            "Master|master",
            "webhook",
        ),
        (lambda job: _container(job).update(name="trainer"), "pytorch", "webhook"),
        (
            lambda job: _container(job)["env"].append({"name": "A", "value": 1}),
            "env|value",
            "schema",
        ),
    ],
    ids=[
        "number for text",
        "unknown field",
        "two masters",
        "container's name",
        "env that is no text",
    ],
)
def test_the_cluster_refuses_what_operators_refuse(site, spoil, words, judge):
    if site.api is None and judge not in judges(site):
        pytest.skip(f"this cluster lacks a {judge} that could refuse it")
    (job,) = [
        one
        for one in manifests(RECIPES[0].parent / "survival.yaml", "pytorchjob")
        if one["kind"] == "PyTorchJob"
    ]
    job["metadata"]["namespace"] = site.namespace
    spoil(job)
    with pytest.raises(Exception, match=words):
        site.cluster.apply(job, dry_run=True)


def judges(site) -> set[str]:
    """Who refuses things in a real cluster: fields that no schema knows are refused from Kubernetes
    1.25 on, and the operator's own rules are a webhook's, which an operator outside the cluster
    lacks."""
    version = json.loads(site.cluster.request("GET", "/version").data)
    hooks = "/apis/admissionregistration.k8s.io/v1/validatingwebhookconfigurations"
    found = {"schema"}
    if (int(version["major"]), int(version["minor"].rstrip("+"))) >= (1, 25):
        found.add("strict schema")
    if b"pytorchjobs" in site.cluster.request("GET", hooks).data:
        found.add("webhook")
    return found


def _container(job):
    return job["spec"]["pytorchReplicaSpecs"]["Master"]["template"]["spec"]["containers"][0]


def test_a_dry_run_sends_nothing(site, capsys):
    assert site.recipe("submit", "--dry-run") == 0
    assert "would accept PyTorchJob `survival`" in capsys.readouterr().out
    assert site.job() is None
    assert site.cluster.list("PersistentVolumeClaim", site.namespace) == []


def test_the_placeholder_commit_of_a_starter_is_refused_before_a_cluster_is_asked(
    site, capsys, golden_message
):
    asked = len(site.api.requests) if site.api else 0
    assert site.recipe("submit", "--dry-run", path="recipes/resnet.yaml") == 1
    capsys.readouterr()
    assert site.recipe("submit", path="recipes/resnet.yaml") == 1
    golden_message(capsys.readouterr().err)
    assert site.api is None or len(site.api.requests) == asked
    assert site.job(name="resnet") is None


def test_submitting_twice_changes_nothing(site, capsys):
    assert site.recipe("submit") == 0
    first = site.job()
    assert first["metadata"]["labels"]["recipe-runner/stage"] == "train"
    maps = site.cluster.list(
        "ConfigMap", site.namespace, {"app.kubernetes.io/managed-by": "recipe-runner"}
    )
    capsys.readouterr()
    assert site.recipe("submit") == 0
    assert "Nothing changes" in capsys.readouterr().out
    assert site.job()["metadata"]["uid"] == first["metadata"]["uid"]
    assert site.job()["metadata"]["generation"] == first["metadata"]["generation"]
    again = site.cluster.list(
        "ConfigMap", site.namespace, {"app.kubernetes.io/managed-by": "recipe-runner"}
    )
    assert [one["metadata"]["resourceVersion"] for one in again] == [
        one["metadata"]["resourceVersion"] for one in maps
    ]


def test_submit_closes_the_pods_of_a_job_to_the_rest_of_the_cluster(site, capsys):
    assert site.recipe("submit") == 0
    assert "NetworkPolicy `survival`\n" in capsys.readouterr().out
    policy = site.cluster.get("NetworkPolicy", site.namespace, "survival")
    chosen = policy["spec"]["podSelector"]["matchLabels"]
    assert chosen == {POD_LABEL["PyTorchJob"]: site.job()["metadata"]["name"]}


@in_process
def test_a_site_of_an_earlier_release_still_takes_jobs_and_says_that_their_ports_are_open(
    site, capsys, monkeypatch, golden_message
):
    """Its roles have no right to network policies; a driver of it may have today's code, when its
    pod starts again."""
    older = [rule for rule in ROLES["recipe-user"] if "networkpolicies" not in rule["resources"]]
    monkeypatch.setitem(ROLES, "recipe-user", older)
    assert site.recipe("submit", "--dry-run") == 0
    capsys.readouterr()
    assert site.recipe("submit") == 0
    golden_message(
        next(line for line in capsys.readouterr().out.splitlines() if "NetworkPolicy" in line)
    )
    assert site.job() and ("networkpolicies", site.namespace, "survival") not in site.api.objects


def test_a_namespace_gets_one_key_made_from_the_persons_own_and_keeps_it(site, monkeypatch):
    if site.api is None:
        pytest.skip("this cluster lacks a right to read a Secret")
    assert submit.require_seal_key(site.cluster, site.namespace)
    kept = site.api.objects["secrets", site.namespace, "recipe-runner"]["stringData"]["seal-key"]
    assert (
        kept == seal.key(make=False, namespace=site.namespace) and seal.key(make=False) not in kept
    )
    # A colleague who sends later makes no other one.
    monkeypatch.setenv(SEAL_KEY, "ab" * 32)
    assert not submit.require_seal_key(site.cluster, site.namespace)
    assert (
        site.api.objects["secrets", site.namespace, "recipe-runner"]["stringData"]["seal-key"]
        == kept
    )


def test_a_changed_recipe_asks_before_it_ends_its_running_job(site, capsys, golden_message):
    assert site.recipe("submit") == 0
    uid = site.job()["metadata"]["uid"]
    changed = ("--set", "train.epochs=2")
    capsys.readouterr()
    assert site.recipe("submit", *changed) == 1
    said = capsys.readouterr().err
    assert "`survival` is running" in said and "`--yes`" in said
    golden_message(said)
    assert site.job()["metadata"]["uid"] == uid
    assert site.recipe("submit", *changed, "--yes") == 0
    assert site.job()["metadata"]["uid"] != uid


def test_status_names_phase_and_machines(site, capsys):
    assert site.recipe("submit") == 0
    site.pods()
    capsys.readouterr()
    assert site.recipe("status") == 0
    assert "train: waiting for machines, 0 of 4" in capsys.readouterr().out


def test_status_without_a_recipe_lists_all_jobs(site, capsys):
    from runner.commands import cli

    assert cli._code(["status", "-n", site.namespace]) == 0
    assert f"No job of recipe-runner in `{site.namespace}`." in capsys.readouterr().out
    assert site.recipe("submit") == 0
    capsys.readouterr()
    assert cli._code(["status", "-n", site.namespace]) == 0
    assert re.search(r"survival +waiting for machines, 0 of 4 machines", capsys.readouterr().out)


@pytest.mark.parametrize(
    ("words", "remedy"),
    [
        (("status", SURVIVAL, "-n", "elsewhere"), "--set openshift.namespace=elsewhere"),
        (("status", "--stage", "sft"), "Name one."),
        (("status", SURVIVAL, "--watch"), "`recipe submit RECIPE --follow` for one recipe."),
        (("status", "--set", "train.epochs=2"), "Name one."),
        (("submit", SURVIVAL, "--dry-run", "--follow"), "Leave out one of the two."),
        (
            ("promote", SEVEN_B, "sft", "--by", "A", "--reason", "R", "--cluster", "--run", "r"),
            "Leave out one of the two.",
        ),
    ],
)
def test_an_option_that_would_say_nothing_is_refused(site, capsys, words, remedy):
    from runner.commands import cli

    assert cli._code([*map(str, words)]) == 2
    assert remedy in capsys.readouterr().err


@in_process
def test_submit_asks_for_each_claim_once(site):
    data = "openshift.data_dir=/shared/models/data/survival"
    assert site.recipe("submit", "--set", data, "--stage", "data") == 0
    site.set_status(
        "Job", "survival-data", {"conditions": [{"type": "Complete", "status": "True"}]}
    )
    for options in (("--set", data), ("--set", data, "--set", "train.epochs=2", "--yes")):
        before = len(site.api.requests)
        assert site.recipe("submit", *options) == 0
        asked = [
            line
            for line in site.api.requests[before:]
            if line.startswith("GET") and "claims/" in line
        ]
        assert len(asked) == len(set(asked)) == 2, asked


def test_a_job_without_pods_says_why(site, capsys):
    """Admitted and then stuck: the job itself shows nothing, only an event does."""
    (job,) = [
        one
        for one in manifests(ROOT / "recipes" / "survival.yaml", "pytorchjob")
        if one["kind"] == "PyTorchJob"
    ]
    job["metadata"]["namespace"] = site.namespace
    for replica in job["spec"]["pytorchReplicaSpecs"].values():
        replica["template"]["spec"]["volumes"] = []
    site.cluster.apply(job)
    for _ in range(300):
        capsys.readouterr()
        assert site.recipe("status") == 0
        said = capsys.readouterr().out
        if "No pods exist" in said:
            break
    assert "No pods exist: " in said and "volumeMounts" in said


def test_a_pod_that_failed_is_explained(site, capsys, golden_message):
    """Under OnFailure its machine starts the container again in place. A pod that itself has failed
    would be gone by now: an operator replaces it at once."""
    assert site.recipe("submit") == 0
    pod = site.pods()[0]["metadata"]["name"]
    site.set_status(
        "Pod",
        pod,
        {
            "phase": "Running",
            "containerStatuses": [
                {
                    "name": "pytorch",
                    "image": "x",
                    "imageID": "",
                    "ready": True,
                    "restartCount": 1,
                    "state": {"running": {}},
                    "lastState": {"terminated": {"exitCode": 137, "reason": "OOMKilled"}},
                }
            ],
        },
    )
    capsys.readouterr()
    assert site.recipe("status") == 0
    said = capsys.readouterr().out.splitlines()[-1].strip()
    assert (
        "(`survival-master-0`)" in said
        and "limit was 22Gi" in said
        and "`openshift.limits.memory`" in said
    )
    golden_message(said)


def test_a_log_that_is_not_there_yet_is_said_so(site, capsys, golden_message):
    def refused(*options: str) -> str:
        capsys.readouterr()
        assert site.recipe("logs", *options) == 1
        return capsys.readouterr().err

    said = refused()
    assert "no job `survival-model`" in said, "the first that there would be"
    golden_message(said, "no job")
    assert site.recipe("submit") == 0
    site.pods()
    said = refused("--node", "1")
    assert "`survival-worker-0`" in said
    golden_message(said, "not started")
    said = refused("--node", "7")
    assert "no machine 7" in said
    golden_message(said, "no such machine")


def test_stop_ends_the_job_and_leaves_the_claims(site, capsys):
    assert site.recipe("submit") == 0
    site.pods()
    assert site.recipe("stop") == 0
    assert "Stopped PyTorchJob `survival`." in capsys.readouterr().out
    assert site.job() is None
    assert len(site.cluster.list("PersistentVolumeClaim", site.namespace)) == 2
    assert site.recipe("stop") == 0
    assert (
        "No job of `survival` is running or waiting, so none was stopped."
        in capsys.readouterr().err
    )


def test_a_finished_job_is_not_stopped_because_it_shows_that_the_recipe_is_done(site, capsys):
    assert site.recipe("submit") == 0
    site.set_status(
        "PyTorchJob",
        "survival",
        {"conditions": [{"type": "Succeeded", "status": "True", "message": "done"}]},
    )
    capsys.readouterr()
    assert site.recipe("stop") == 0
    assert (
        "No job of `survival` is running or waiting, so none was stopped."
        in capsys.readouterr().err
    )
    assert site.job() is not None
    assert site.recipe("stop", "--stage", "train") == 0
    assert site.job() is None


@in_process
def test_stop_waits_until_the_pods_have_ended(site):
    """They still write on the claim."""
    assert site.recipe("submit") == 0
    site.pods()
    site.api.ending_seconds = 1.0
    assert site.recipe("stop") == 0
    assert site.job() is None and site.cluster.list("Pod", site.namespace) == []


@in_process
def test_a_job_that_is_being_deleted_is_waited_for_and_sent_anew(site, capsys):
    assert site.recipe("submit") == 0
    first = site.job()["metadata"]["uid"]
    site.api.ending_seconds = 1.0
    site.cluster.delete("PyTorchJob", site.namespace, "survival")
    capsys.readouterr()
    assert site.recipe("status") == 0
    assert "  Being deleted." in capsys.readouterr().out
    assert site.recipe("submit") == 0
    assert "Nothing changes" not in capsys.readouterr().out
    assert site.job()["metadata"]["uid"] != first
    assert {pod["metadata"]["ownerReferences"][0]["uid"] for pod in site.pods()} == {
        site.job()["metadata"]["uid"]
    }


@in_process
def test_a_claim_that_is_being_deleted_takes_no_job(site, capsys, golden_message):
    assert site.recipe("submit") == 0
    assert site.recipe("stop") == 0
    site.api.ending_seconds = 60.0
    site.cluster.delete("PersistentVolumeClaim", site.namespace, "workspace-pvc")
    capsys.readouterr()
    assert site.recipe("submit") == 1
    said = capsys.readouterr().err
    assert f"The claim `workspace-pvc` in `{site.namespace}` is being deleted" in said
    golden_message(said)
    assert site.job() is None


def test_a_name_in_use_is_not_taken_over(site, capsys, golden_message):
    (job,) = [
        one
        for one in manifests(ROOT / "recipes" / "survival.yaml", "pytorchjob")
        if one["kind"] == "PyTorchJob"
    ]
    job["metadata"] = {"name": "survival", "namespace": site.namespace}
    site.cluster.apply(job)
    assert site.recipe("submit") == 1
    said = capsys.readouterr().err
    assert "`survival` is in use" in said
    golden_message(said)
    assert site.recipe("stop", "--stage", "train") == 1
    assert site.job() is not None


def test_a_claim_that_exists_keeps_its_size(site):
    assert site.recipe("submit", "--set", "openshift.claims.0.size_gib=70") == 0
    assert site.recipe("submit", "--yes") == 0
    claims = {
        one["metadata"]["name"]: one
        for one in site.cluster.list("PersistentVolumeClaim", site.namespace)
    }
    assert claims["trained-models-pvc"]["spec"]["resources"]["requests"]["storage"] == "70Gi"


def test_a_claim_for_one_machine_takes_no_job_of_several(site, capsys, golden_message):
    site.claim("trained-models-pvc")
    site.claim("workspace-pvc", "ReadWriteOnce")
    for options in ((), ("--dry-run",)):
        assert site.recipe("submit", *options) == 1
        said = capsys.readouterr().err
        assert (
            f"The claim `workspace-pvc` in `{site.namespace}`" in said
            and "`openshift.claims[].name`" in said
        )
        golden_message(said, options[0] if options else "submit")
    assert site.job() is None
    assert (
        site.cluster.list(
            "ConfigMap", site.namespace, {"app.kubernetes.io/managed-by": "recipe-runner"}
        )
        == []
    )
    assert (
        site.recipe("submit", "--set", "openshift.claims.1.name=workspace-all-pvc", "--dry-run")
        == 0
    )
    assert (
        site.recipe("submit", "--set", "machines.nodes=1", "--set", "train.effective_batch_size=16")
        == 0
    )


@pytest.mark.parametrize("options", [(), ("--dry-run",)], ids=["submit", "dry run"])
def test_a_claim_that_is_too_small_for_what_the_recipe_writes_takes_no_job(
    site, capsys, golden_message, options
):
    site.claim("trained-models-pvc", size="5Gi")
    site.claim("workspace-pvc")
    assert site.recipe("submit", *options) == 1
    golden_message(capsys.readouterr().err)
    assert site.job() is None
    assert (
        site.cluster.list(
            "ConfigMap", site.namespace, {"app.kubernetes.io/managed-by": "recipe-runner"}
        )
        == []
    )
    assert site.recipe("submit", *options, "--allow", "too-large") == 0, "for those who know better"


@pytest.mark.parametrize(
    "size, fits", [("41Gi", False), ("42Gi", True), ("44G", False), ("45G", True), ("5Pi", True)]
)
@pytest.mark.parametrize("bytes_alone", [False, True])
def test_a_claim_needs_what_the_recipe_writes_and_no_room_beside_it(site, size, fits, bytes_alone):
    if bytes_alone and size.endswith("Gi"):
        size = str(int(size[:-2]) * 2**30)
    site.claim("trained-models-pvc", size=size)
    assert site.recipe("submit", "--dry-run") == (0 if fits else 1)


@in_process
def test_a_claim_that_is_being_enlarged_counts_with_its_new_size(site):
    site.claim("trained-models-pvc", size="50Gi")
    site.set_status("PersistentVolumeClaim", "trained-models-pvc", {"capacity": {"storage": "5Gi"}})
    assert site.recipe("submit", "--dry-run") == 0


def test_a_claim_of_a_stated_size_that_is_too_small_is_not_made(site, capsys, golden_message):
    assert site.recipe("submit", "--set", "openshift.claims.0.size_gib=5") == 1
    golden_message(capsys.readouterr().err)
    assert (
        site.job() is None
        and site.cluster.get("PersistentVolumeClaim", site.namespace, "trained-models-pvc") is None
    )


def test_a_queue_that_is_not_there_is_named(site, capsys):
    site.require("LocalQueue")
    assert site.recipe("submit", "--set", "openshift.queue=fast") == 1
    assert f"The namespace `{site.namespace}` has no queue `fast`." in capsys.readouterr().err
    assert site.job() is None


@in_process
@pytest.mark.parametrize("form", ["v1beta1", "v1beta2"])
def test_a_queue_is_found_in_whichever_form_the_cluster_has_it(site, capsys, form):
    site.api.kueue = form
    site.api.queues = ["fast"]
    assert site.recipe("submit", "--set", "openshift.queue=slow") == 1
    assert "Its queues: fast." in capsys.readouterr().err
    assert site.recipe("submit", "--set", "openshift.queue=fast", "--dry-run") == 0


@in_process
def test_submit_says_when_a_trainjob_would_be_admitted_and_never_start(
    site, capsys, golden_message
):
    site.api.queues = ["fast"]
    known = ("--set", "openshift.queue=fast", "--set", 'openshift.kueue="0.17"', "--dry-run")
    assert site.recipe("submit", *known) == 0 and "kueue#11931" not in capsys.readouterr().out, (
        "a PyTorchJob starts"
    )
    assert site.recipe("submit", *known, "--target", "trainjob") == 0
    golden_message(capsys.readouterr().out)


CEPHFS, RBD, NEW = (
    "openshift-storage.cephfs.csi.ceph.com",
    "openshift-storage.rbd.csi.ceph.com",
    "storage.example.org",
)
# The classes of a cluster by name, the first its default; what the recipe names; whether it is
# sent, and what is said.
STORAGE = {
    "the default can": ([("fs", CEPHFS), ("block", RBD)], "", True, ""),
    "the default cannot": ([("block", RBD), ("fs", CEPHFS)], "", False, "for one at a time"),
    "a named one can": ([("block", RBD), ("fs", CEPHFS)], "fs", True, ""),
    "a named one is not there": (
        [("block", RBD), ("fs", CEPHFS)],
        "nfs",
        False,
        "no storage class `nfs`",
    ),
    "nobody knows": ([("new", NEW)], "", True, "It is unknown whether"),
    "none can": ([("block", RBD)], "", False, "Ask the cluster's admin for one"),
}


@in_process
@pytest.mark.parametrize("case", STORAGE)
def test_storage_that_several_machines_cannot_write_to_is_said_before_anything_is_sent(
    site, capsys, golden_message, case
):
    classes, named, sent, words = STORAGE[case]
    site.api.storage = [
        storage_class(name, of, default=not at) for at, (name, of) in enumerate(classes)
    ]
    chosen = (
        [f"openshift.claims.{number}.storage_class={named}" for number in (0, 1)] if named else []
    )
    sets = [word for one in chosen for word in ("--set", one)]
    assert site.recipe("submit", *sets) == (0 if sent else 1)
    said = capsys.readouterr()
    assert (site.job() is not None) is sent
    heard = said.err.partition("\nThe job of `")[0] + "".join(
        line for line in said.out.splitlines(True) if line.startswith("Several")
    )
    assert words in heard and (words or not heard)
    if heard:
        golden_message(heard)
    if not sent:
        assert (
            site.recipe(
                "submit",
                *sets,
                "--set",
                "machines.nodes=1",
                "--set",
                "train.effective_batch_size=16",
            )
            == 0
        )


@in_process
def test_a_cluster_without_a_default_kind_of_storage_is_told_what_to_name(
    site, capsys, golden_message
):
    site.api.storage = [storage_class("fs", CEPHFS)]
    assert site.recipe("submit") == 1 and site.job() is None
    golden_message(capsys.readouterr().err)


@in_process
def test_kinds_of_storage_that_nobody_may_see_stop_nothing(site, capsys, golden_message):
    site.api.missing.add("storageclasses")
    assert site.recipe("submit") == 0
    golden_message(
        next(line for line in capsys.readouterr().out.splitlines() if line.startswith("Several"))
    )


@in_process
def test_storage_of_claims_that_are_there_is_no_question(site, capsys):
    site.api.storage = [storage_class("block", RBD, default=True)]
    site.claim("trained-models-pvc")
    site.claim("workspace-pvc")
    assert site.recipe("submit") == 0


def test_a_missing_namespace_is_named(site, capsys):
    from runner.commands import cli

    gone = ["--set", "openshift.namespace=recipe-test-gone"]
    assert cli._code(["submit", str(ROOT / "recipes" / "survival.yaml"), *gone]) == 1
    assert "There is no namespace `recipe-test-gone`" in capsys.readouterr().err


@in_process
@pytest.mark.parametrize(
    "arrange, words",
    [
        (
            lambda api: setattr(
                api, "forbidden", 'pytorchjobs is forbidden: User "ann" cannot patch'
            ),
            "You may not do this",
        ),
        (
            lambda api: setattr(
                api,
                "quota",
                "exceeded quota: gpus, requested: requests.nvidia.com/gpu=4, used: requests.nvidia.com/gpu=2, limited: requests.nvidia.com/gpu=4",
            ),
            "quota `gpus` allows requests.nvidia.com/gpu=4",
        ),
        (lambda api: api.missing.add("pytorchjobs"), "This cluster does not know PyTorchJob"),
        (lambda api: setattr(api, "faults", 10_000), "cannot be reached: it does not answer."),
    ],
    ids=["forbidden", "quota", "missing kind", "no answer"],
)
def test_the_api_saying_no_becomes_plain_words_and_nothing_is_sent(
    site, capsys, arrange, words, golden_message
):
    arrange(site.api)
    assert site.recipe("submit") == 1
    said = capsys.readouterr().err
    assert words in said
    golden_message(said)
    assert "Traceback" not in said and "HTTP" not in said
    assert not [key for key in site.api.objects if key[0] != "events"]


@in_process
def test_a_trainjob_of_another_version_names_the_setting(site, capsys):
    assert site.recipe("submit", "--set", 'openshift.version="3.6"') == 1
    said = capsys.readouterr().err
    assert "This cluster has another form of TrainJob" in said and "`openshift.version`" in said


@in_process
def test_a_plain_kubeconfig_without_rights_reads_as_a_login(site, capsys, monkeypatch, tmp_path):
    value = yaml.safe_load((tmp_path / "kubeconfig").read_text())
    value["users"][0]["user"] = {}
    (tmp_path / "bare").write_text(yaml.safe_dump(value))
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "bare"))
    assert site.recipe("submit") == 1
    assert "or you have not logged in." in capsys.readouterr().err


def test_no_kubeconfig_at_all_is_said_so(site, capsys, monkeypatch, tmp_path):
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "nothing-here"))
    assert site.recipe("submit") == 1
    assert "This machine is not logged in to a cluster" in capsys.readouterr().err


def test_the_test_api_is_no_rubber_stamp(site):
    """An object of a kind in the wrong place is refused by any server."""
    with pytest.raises(Refused):
        site.cluster.request(
            "POST",
            address("Pod", site.namespace),
            body=json.loads('{"kind": "ConfigMap", "apiVersion": "v1", "metadata": {"name": "x"}}'),
        )


@in_process
def test_nothing_is_sent_that_reports_to_mlflow_without_its_account(site, capsys, golden_message):
    assert site.recipe("submit", "--set", "train.report_to=mlflow", "--dry-run") == 1
    golden_message(capsys.readouterr().err)
    site.api.accounts.append("recipe-mlflow")
    assert site.recipe("submit", "--set", "train.report_to=mlflow", "--dry-run") == 0
