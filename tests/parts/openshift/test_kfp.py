"""A pipeline as Kubeflow Pipelines has it: read by its own SDK, and run whole in its local runner
with the tiny twin.

`RECIPE_TEST_KFP` names a Python that has `kfp` 2.17.0, which wants an older Kubernetes client than
ours.
"""

from __future__ import annotations

import json
import os
import shlex
import shutil
import subprocess
import sys
import threading
import time
from dataclasses import replace
from pathlib import Path

import pytest
import yaml

from runner.check.validate import changed, load
from runner.parts.jobs import kubernetes
from runner.parts.openshift import pipeline, submit
from runner.parts.openshift.jobs import Owner
from runner.parts.openshift.kfp import target
from runner.parts.openshift.kfp import task as kfp_task
from runner.parts.openshift.pipeline import OF_RUN, WORKFLOW
from runner.recipe.overrides import from_options
from runner.scenarios import rehearsal, translate
from runner.scenarios.render import emit
from runner.scenarios.shared.common import data_file
from tests.conftest import ON_CLUSTER, ROOT
from tests.parts.openshift.api import KEY_OF, ROLES
from tests.parts.openshift.conftest import in_process
from tests.parts.openshift.machines import Machines
from tests.parts.openshift.test_pipeline import ALL, end, finish, plan_of, recipe, uid
from tests.parts.openshift.test_walking import when

SEVEN_B, SMALL = (
    ROOT / "recipes" / "seven-b.yaml",
    ROOT / "recipes" / "minimal" / "from-scratch.yaml",
)
SURVIVAL = ROOT / "recipes" / "survival.yaml"
PYTHON = os.environ.get("RECIPE_TEST_KFP")
with_kfp = pytest.mark.skipif(
    not PYTHON, reason="no kfp here; RECIPE_TEST_KFP names a Python that has it"
)
# Its runner of processes takes functions alone, because what a container needs may be missing; here
# nothing is.
RUN = """
import sys
from kfp import components, local
from kfp.local.subprocess_task_handler import SubprocessTaskHandler
SubprocessTaskHandler.validate_not_container_component = lambda *_: None
local.init(runner=local.SubprocessRunner(use_venv=False), pipeline_root=sys.argv[2])
components.load_component_from_file(sys.argv[1])()
"""


def emitted(path: Path, *options: str) -> tuple[dict, dict, str]:
    """The pipeline, what it asks of the platform, and its config map."""
    files = {
        file.path: file.text for file in emit(load(path, from_options(options))[0], (target.NAME,))
    }
    assert set(files) == {"kfp/configmap.yaml", "kfp/pipeline.yaml"}
    return (*yaml.safe_load_all(files["kfp/pipeline.yaml"]), files["kfp/configmap.yaml"])


def tasks_of(pipeline: dict) -> dict[str, dict]:
    """Every task, whatever condition it stands in."""
    found, dags = {}, [pipeline["root"]["dag"]]
    while dags:
        for name, task in dags.pop()["tasks"].items():
            found[name] = task
            if inner := pipeline["components"][task["componentRef"]["name"]].get("dag"):
                dags.append(inner)
    return found


def test_there_is_a_task_a_stage_and_a_task_a_gate_and_what_follows_a_gate_stands_in_its_condition():
    pipeline, platform, config = emitted(SEVEN_B)
    plan = json.loads(yaml.safe_load(config)["data"]["plan.json"])
    tasks = tasks_of(pipeline)
    stages = [stage["name"] for stage in plan["stages"]]
    gated = [stage["name"] for stage in plan["stages"] if stage["gates"]]
    assert len(gated) == 4
    wanted = {*stages, *(f"gate-{name}" for name in gated)}
    wanted |= {f"{kind}-{name}" for name in gated for kind in ("closed", "if-closed")}
    wanted |= {f"if-open-{name}" for name in gated[:-1]}
    assert set(tasks) == wanted
    assert [name for name in pipeline["root"]["dag"]["tasks"] if name in stages] == stages[:5]
    assert next(iter(pipeline["components"]["comp-if-open-sft"]["dag"]["tasks"])) == "dpo"
    verdict = "inputs.parameter_values['pipelinechannel--gate-sft--verdict']"
    assert tasks["if-open-sft"]["triggerPolicy"]["condition"] == f"{verdict} == 'open'"
    assert tasks["if-closed-sft"]["triggerPolicy"]["condition"] == f"{verdict} != 'open'"
    cached = {
        name
        for name, task in tasks.items()
        if (task.get("cachingOptions") or {}).get("enableCache")
    }
    assert cached == set(stages) - {"data", "init"}
    keys = {
        name: tasks[name]["inputs"]["parameters"]["key"]["runtimeValue"]["constant"]
        for name in stages
    }
    assert keys == {stage["name"]: stage["keys"][""] for stage in plan["stages"]}
    mounted = platform["platforms"]["kubernetes"]["deploymentSpec"]["executors"]["exec-train"][
        "configMapAsVolume"
    ][0]
    assert mounted["configMapName"] == yaml.safe_load(config)["metadata"]["name"]


# What a cluster takes: `oc apply` without --server-side keeps what it sends in an annotation, and a
# config map has a limit of its own (Kubernetes, pkg/apis/core/validation:
# TotalAnnotationSizeLimitB, MaxSecretSize).
ANNOTATION, CONFIG_MAP = 256 * 1024, 1024 * 1024


@pytest.mark.parametrize("path", ON_CLUSTER, ids=lambda path: path.stem)
@pytest.mark.parametrize("name", ["pytorchjob", "trainjob", target.NAME])
def test_every_config_map_is_small_enough_to_send(path, name):
    files = [file for file in emit(load(path)[0], (name,)) if file.path.endswith("configmap.yaml")]
    assert files
    for file in files:
        manifest = yaml.safe_load(file.text)
        assert len(json.dumps(manifest).encode()) < ANNOTATION, file.path
        assert sum(len(text.encode()) for text in manifest["data"].values()) < CONFIG_MAP / 2, (
            file.path
        )


def test_the_first_lines_of_the_pipeline_name_steps_that_work(golden_message):
    files = {file.path: file.text for file in emit(load(SEVEN_B)[0], (target.NAME,))}
    golden_message(
        "".join(
            line for line in files["kfp/pipeline.yaml"].splitlines(True) if line.startswith("#")
        )
    )


@pytest.mark.skipif(not shutil.which("kubectl"), reason="no kubectl here")
def test_the_command_that_sends_the_plan_records_who_sent_it(tmp_path):
    files = {file.path: file.text for file in emit(load(SURVIVAL)[0], (target.NAME,))}
    (tmp_path / kubernetes.CONFIG_FILE).write_text(files["kfp/configmap.yaml"], "utf-8")
    (tmp_path / "oc").write_text(
        '#!/bin/sh\ncase $1 in whoami) echo ann;; create) cat;; *) exec kubectl "$@";; esac\n'
    )
    (tmp_path / "oc").chmod(0o755)
    (command,) = [
        line.strip("# ")
        for line in files["kfp/pipeline.yaml"].splitlines()
        if "oc annotate" in line
    ]
    path = f"{tmp_path}:{os.environ['PATH']}"
    done = subprocess.run(
        ["sh", "-c", command.replace("RECIPE", shlex.quote(str(SURVIVAL)))],
        cwd=tmp_path, env=os.environ | {"PATH": path}, capture_output=True, text=True, check=True,
    )  # fmt: skip
    sent = yaml.safe_load(done.stdout)
    assert Owner.of(sent) == Owner.here(str(SURVIVAL), "ann")
    assert sent["data"] == yaml.safe_load(files["kfp/configmap.yaml"])["data"]


def test_a_changed_stage_changes_its_key_and_no_other_before_it():
    def keys(*options: str) -> dict[str, str]:
        tasks = tasks_of(emitted(SEVEN_B, *options)[0])
        given = {name: task["inputs"].get("parameters", {}) for name, task in tasks.items()}
        return {
            name: one["key"]["runtimeValue"]["constant"]
            for name, one in given.items()
            if "key" in one
        }

    before, after = keys(), keys("stages.1.train.learning_rate=1e-5")
    assert {name for name in before if before[name] != after[name]} == {"sft", "dpo", "lora"}


@pytest.mark.golden
def test_the_pipeline_is_its_golden_file():
    files = {file.path: file.text for file in emit(load(SEVEN_B)[0], (target.NAME,))}
    golden = ROOT / "tests" / "golden" / "seven-b-kfp.yaml"
    if os.environ.get("RECIPE_GOLDEN") == "write":
        golden.write_text(files["kfp/pipeline.yaml"], encoding="utf-8")
    assert golden.read_text("utf-8") == files["kfp/pipeline.yaml"]


def test_code_by_git_comes_with_the_command_of_each_task():
    pipeline, platform, _ = emitted(ROOT / "recipes" / "resnet.yaml")
    around = platform["platforms"]["kubernetes"]["deploymentSpec"]["executors"]
    assert set(around) == set(pipeline["deploymentSpec"]["executors"])
    assert around["exec-train"]["emptyDirMounts"] == [
        {"volumeName": "code", "mountPath": "/opt/recipe-code"}
    ]
    container = pipeline["deploymentSpec"]["executors"]["exec-train"]["container"]
    assert (
        container["command"][0] == "/bin/sh"
        and "runner.parts.openshift.kfp.task" in container["command"]
    )


def test_what_a_task_leaves_is_where_the_launcher_looks(tmp_path):
    place = {
        "name": "metrics",
        "uri": "minio://a/metrics",
        "type": {"schemaTitle": "system.Metrics"},
    }
    given = {
        "outputs": {
            "outputFile": str(tmp_path / "out" / "record.json"),
            "artifacts": {"metrics": {"artifacts": [place]}},
        }
    }
    kfp_task.leave(json.dumps(given), {"verdict": "open"}, {"metrics": {"perplexity": 3.0}}, None)
    left = json.loads((tmp_path / "out" / "record.json").read_text())
    assert left["parameterValues"] == {"verdict": "open"}
    assert left["artifacts"]["metrics"]["artifacts"] == [place | {"metadata": {"perplexity": 3.0}}]


@pytest.mark.long
@in_process
def test_a_task_whose_job_is_taken_away_waits_and_sends_nothing_by_itself(site, monkeypatch):
    """A pipeline server tries again what has failed; the job that somebody has deleted must not
    come back by that."""
    finish(site, *ALL[:5])
    plan = plan_of(site)
    told: list[str] = []
    monkeypatch.setattr(kfp_task, "say", told.append)
    left: dict[str, object] = {}

    def task() -> None:
        left["sft"] = kfp_task.stage(site.cluster, plan, plan.stage("sft"))

    thread = threading.Thread(target=task, daemon=True)
    thread.start()
    when(lambda: site.job(name="seven-b-sft"), "its job")
    site.cluster.delete("PyTorchJob", site.namespace, "seven-b-sft")
    when(lambda: any("the run waits" in line for line in told), "its waiting")
    assert site.job(name="seven-b-sft") is None and thread.is_alive()
    assert recipe(site, "submit") == 0
    end(site, "seven-b-sft")
    thread.join(60)
    parameters, artifacts = left["sft"]
    assert parameters == {"made": uid(site, "sft")}
    assert artifacts["model"]["model_uri"] == "pvc://seven-b-pvc/seven-b/sft/best_model"


def run_of(site, *options: str, owner: Owner | None = None) -> str:
    """A run at work as a pipeline server makes it: its Workflow, and the pod of a task, which
    mounts what the emitted pipeline names and `owner` has sent."""
    pipeline, platform, config = emitted(
        SURVIVAL, f"openshift.namespace={site.namespace}", *options
    )
    site.cluster.create(signed(config, owner or Owner.here(str(SURVIVAL), "ann")))
    around = platform["platforms"]["kubernetes"]["deploymentSpec"]["executors"]["exec-train"]
    name = f"{pipeline['pipelineInfo']['name']}-{next(site.api.uids)}"
    space, kinds = site.namespace, {"kind": "Workflow", "apiVersion": "argoproj.io/v1alpha1"}
    workflow = kinds | {
        "metadata": {"name": name, "namespace": space},
        "spec": {"entrypoint": "entrypoint"},
    }
    site.cluster.create(workflow)
    labels = OF_RUN | {WORKFLOW: name}
    site.pod(f"{name}-task", site.job("Workflow", name), labels, phase="Running")
    volumes = [
        {"name": one["configMapName"], "configMap": {"name": one["configMapName"]}}
        for one in around["configMapAsVolume"]
    ]
    site.api.objects[("pods", space, f"{name}-task")]["spec"]["volumes"] = volumes
    return name


def signed(config: str, owner: Owner) -> dict:
    """A plan as the pipeline's first lines send it."""
    meta = (manifest := yaml.safe_load(config))["metadata"]
    return owner.signed(manifest | {"metadata": meta | {"annotations": {}}})


def argo(site, *runs: str) -> None:
    """The controller of Workflows: what has a deadline that is over loses its pods; ends when all
    of these runs have."""
    left = set(runs)
    while left:
        for name in list(left):
            if site.job("Workflow", name)["spec"].get("activeDeadlineSeconds") == 0:
                site.set_status("Pod", f"{name}-task", {"phase": "Failed"})
                left.remove(name)
        time.sleep(0.05)


@in_process
def test_stop_ends_the_runs_of_the_recipe_and_nobody_elses(site, capsys):
    assert site.recipe("submit") == 0
    own, before, done = run_of(site), run_of(site, "train.learning_rate=1e-5"), run_of(site)
    other = run_of(site, "openshift.job_name=other")
    site.set_status("Pod", f"{done}-task", {"phase": "Succeeded"})
    controller = threading.Thread(target=argo, args=(site, own, before), daemon=True)
    controller.start()
    capsys.readouterr()
    assert site.recipe("status") == 0
    shown = capsys.readouterr().out
    assert all(
        f"run `{name}` of Kubeflow Pipelines: continues by itself" in shown
        for name in (own, before)
    )
    assert site.recipe("stop") == 0
    controller.join(30)
    said = capsys.readouterr().out
    assert f"the run `{own}` of Kubeflow Pipelines, " in said and "PyTorchJob `survival`." in said
    ends = {
        name: site.job("Workflow", name)["spec"].get("activeDeadlineSeconds")
        for name in (own, before, done, other)
    }
    assert ends == {own: 0, before: 0, done: None, other: None}
    assert site.job() is None


@in_process
def test_what_is_sent_of_a_changed_recipe_ends_a_run_that_would_undo_it(site, capsys):
    assert site.recipe("submit") == 0
    before, now = run_of(site), run_of(site, "train.learning_rate=1e-5")
    controller = threading.Thread(target=argo, args=(site, before), daemon=True)
    controller.start()
    capsys.readouterr()
    site.api.busy_at, site.api.busy = "/workflows", [503, 429]
    assert site.recipe("submit", "--set", "train.learning_rate=1e-5", "--yes") == 0
    assert not site.api.busy
    controller.join(30)
    said = capsys.readouterr().out
    assert (
        f"The run `{before}` of Kubeflow Pipelines, of the old recipe: stopped" in said
        and f"`{now}`" not in said
    )
    assert "activeDeadlineSeconds" not in site.job("Workflow", now)["spec"]


@in_process
def test_a_run_that_may_not_be_ended_is_named_and_its_job_ends(
    site, capsys, monkeypatch, golden_message
):
    assert site.recipe("submit") == 0
    run = run_of(site)
    rules = [rule for rule in ROLES["recipe-user"] if "workflows" not in rule["resources"]]
    monkeypatch.setitem(ROLES, "recipe-user", rules)
    capsys.readouterr()
    assert site.recipe("stop") == 0
    assert site.job() is None
    golden_message(capsys.readouterr().out.replace(run, "<run>"))


@with_kfp
@pytest.mark.long
@pytest.mark.parametrize("path", [SEVEN_B, SURVIVAL], ids=lambda path: path.stem)
def test_the_sdks_own_loader_reads_it(path, tmp_path):
    for file in emit(load(path)[0], (target.NAME,)):
        (tmp_path / Path(file.path).name).write_text(file.text, encoding="utf-8")
    code = "import sys; from kfp import components as c; p = c.load_component_from_file(sys.argv[1]); print(p.name)"
    done = subprocess.run(
        [PYTHON, "-c", code, tmp_path / target.FILE], capture_output=True, text=True
    )
    assert done.stdout.strip() == path.stem, done.stderr


@with_kfp
@in_process
@pytest.mark.long
def test_its_steps_run_whole_in_the_local_runner_and_end_at_a_closed_gate(
    site, tmp_path, monkeypatch
):
    """The first gate opens, the second one closes; the jobs that the tasks send are processes of
    this machine, and train."""
    claim = tmp_path / "claim"
    home = {
        "openshift.claims": f"[{{name: results, mount: {claim}}}]",
        "openshift.output_dir": f"{claim}/run",
        "openshift.data_dir": f"{claim}/run/data",
        "openshift.namespace": site.namespace,
        "openshift.image": "example.org/recipe-runner:0.1.0",
        "stages.0.train.curriculum": "[{sequence_len: 512, until: 1.0}]",
    }
    recipe, problems, _ = load(
        SMALL, from_options([f"{name}={value}" for name, value in home.items()])
    )
    assert recipe, problems
    small, _ = changed(recipe, rehearsal(recipe.scenario).before_data(recipe, None))
    quick = (
        "stages.0.train.steps=24",
        "stages.1.train.epochs=2",
        "stages.1.gates.0=perplexity < 1.0001",
        "stages.0.gates.0=perplexity < 1e9",
    )
    small, _ = changed(small, from_options(quick))
    place = replace(kubernetes.place(small), accelerator=False)
    for _, name in small.local_files():
        there = Path(data_file(small, place, name))
        there.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(small.folder / name, there)
    plan = translate(small, place)
    site.claim("results")
    submit.require_seal_key(site.cluster, site.namespace)
    files = {file.path: file.text for file in target.render(plan)}
    config = yaml.safe_load(files["kfp/configmap.yaml"])
    mounted = tmp_path / "mounted"
    mounted.mkdir()
    (mounted / "plan.json").write_text(config["data"]["plan.json"], encoding="utf-8")
    (mounted / "token").write_text(KEY_OF[pipeline.ACCOUNT], encoding="utf-8")
    text = files["kfp/pipeline.yaml"].replace(f"{kubernetes.CONFIG_DIR}/kfp", str(mounted))
    (tmp_path / target.FILE).write_text(
        text.replace(pipeline.SERVER, site.api.url).replace(pipeline.KEYS, str(mounted))
    )

    machines = Machines(site.api, lambda job: True)
    search = {
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        "PYTHONPATH": str(ROOT),
    }
    done = subprocess.run(
        [PYTHON, "-c", RUN, tmp_path / target.FILE, tmp_path / "root"],
        env=os.environ | search, cwd=tmp_path, capture_output=True, text=True,
    )  # fmt: skip
    machines.close()
    said = done.stdout + done.stderr
    (tmp_path / "said.txt").write_text(said)
    closed = "The gate after `sft` is closed, so later stages do not start."
    assert done.returncode != 0 and closed in said, said[-6000:]
    ends = {
        name.removeprefix("minimal-from-scratch-"): lives for name, lives in machines.lives.items()
    }
    assert ends == {
        "data": [0],
        "init": [0],
        "pretrain-512": [0],
        "pretrain-512-gate": [0],
        "sft": [0],
        "sft-gate": [1],
    }
    records = {
        file.parent.name: json.loads(file.read_text())
        for file in (tmp_path / "root").rglob("executor_output.json")
    }
    left = {name: record["parameterValues"] for name, record in records.items()}
    assert (
        left["gate-pretrain-512"]["verdict"] == "open" and left["gate-sft"]["verdict"] == "closed"
    )
    trained = records["sft"]["artifacts"]
    (model,), (metrics,) = trained["model"]["artifacts"], trained["metrics"]["artifacts"]
    assert model["metadata"]["model_uri"] == "pvc://results/run/sft/best_model"
    assert (claim / "run" / "sft" / "best_model").is_dir()
    assert (
        metrics["metadata"]["step"] == metrics["metadata"]["steps"] > 0
        and metrics["metadata"]["loss"] > 0
    )
    measured = records["gate-pretrain-512"]["artifacts"]["metrics"]["artifacts"][0]["metadata"]
    assert measured["perplexity"] > 1
