"""One request of a command goes wrong, each in turn: the command goes on as kubectl does, or says
what it leaves behind."""

from __future__ import annotations

import copy
import shutil
import threading
import time
from collections.abc import Callable
from collections.abc import Sequence as Sequence_
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from functools import cache, partial
from pathlib import Path

import pytest

from runner.check.validate import load
from runner.commands import cli
from runner.parts.openshift import (
    commands,
    controller,
    errors,
    file_server,
    jobs,
    pipeline,
    submit,
    transfer,
)
from runner.parts.openshift.client import Cluster, connect
from runner.parts.openshift.commands import _stop_jobs
from runner.parts.openshift.errors import accounted
from runner.parts.openshift.jobs import Owner
from runner.parts.openshift.pipeline import WORKFLOW
from runner.parts.serve import cluster as serving
from runner.parts.serve.kserve import CONTENT, served
from runner.plan import Plan
from runner.recipe.overrides import from_options
from runner.recipe.recipe import Recipe
from runner.scenarios import planned
from runner.tools.problem import Stop
from tests.conftest import ROOT
from tests.parts.openshift import api, kserve, test_kfp
from tests.parts.openshift.api import Fault, stamp
from tests.parts.openshift.conftest import Site, in_process
from tests.parts.openshift.test_kfp import run_of
from tests.parts.openshift.test_watching import record_of, train_to

pytestmark = in_process
# What passes, and what a server says of a login, a right and a kind that are gone.
PASSING = (429, 500, 502, 503, 504, "reset", "cut")
DONE = (500, 503, 504, "reset", "cut")
REFUSING = (401, 403, 404)


def opened(site: Site, name: str, *sets: str) -> tuple[Recipe, Plan]:
    return _opened(site.namespace, name, *sets)


@cache
def _opened(namespace: str, name: str, *sets: str) -> tuple[Recipe, Plan]:
    recipe, _, _ = load(
        ROOT / f"recipes/{name}.yaml", from_options((f"openshift.namespace={namespace}", *sets))
    )
    return recipe, planned(recipe, "pytorchjob")


# What the command has printed.
TOLD: list[str] = []


def sending() -> submit.Sending:
    return submit.Sending(TOLD.append, lambda *_: True)


def uid(site: Site, name: str, kind: str = "PyTorchJob") -> str:
    there = site.job(kind, name)
    return there["metadata"]["uid"] if there else ""


@dataclass(frozen=True)
class Sequence:
    """What a command asks of a cluster. before: what is there; run: the command; well: whether it
    has done all; kept: the objects, by kind and name, that it deletes or replaces; but_runs:
    whether it has done all but to end runs of Kubeflow Pipelines, after which it goes on."""

    before: Callable[[Site], None]
    run: Callable[[Site, Cluster], object]
    well: Callable[[Site], bool]
    kept: tuple[tuple[str, str], ...] = ()
    but_runs: Callable[[Site], bool] = lambda _site: False


HELPERS = (jobs.FETCH, jobs.SEND, jobs.PROMOTE, jobs.LOOK)
NEW, OLD = "train.epochs=2", "train.epochs=1"
DRIVER = ("Job", "seven-b-driver")
STAGE, FIRST = ("PyTorchJob", "seven-b-pretrain-2048"), ("PyTorchJob", "seven-b-pretrain-512")
CHANGED = "stages.0.train.learning_rate=1e-4"


def made_from(site: Site, kind: str, name: str, *sets: str) -> bool:
    """Whether the job on the cluster is what this recipe makes."""
    plan = opened(site, "survival" if name == "survival" else "seven-b", *sets)[1]
    there = site.job(kind, name)
    stage = next(
        (stage for stage in plan.stages if name.endswith(f"-{stage.name}")), plan.stages[-1]
    )
    wanted = (
        submit.pipeline.render_driver(plan, None, "")
        if (kind, name) == DRIVER
        else jobs.render_job(plan, stage)
    )
    content = jobs.CONTENT
    return there is not None and jobs.annotation(there, content) == jobs.annotation(
        wanted.job, content
    )


def ended(site: Site, what: jobs.Sent, well: bool = True) -> None:
    for manifest in (*what.support, what.job):
        if site.job(manifest["kind"], manifest["metadata"]["name"]) is None:
            site.cluster.apply(manifest)
    kind = ("Succeeded" if what.kind == "PyTorchJob" else "Complete") if well else "Failed"
    site.set_status(
        what.kind,
        what.name,
        {"conditions": [{"type": kind, "status": "True", "message": "as played"}]},
    )


def done(site: Site, count: int) -> None:
    """So many stages of the pipeline are done, and the gates after them open."""
    plan = opened(site, "seven-b")[1]
    for stage in plan.stages[:count]:
        for of_gate in (False, True) if stage.gates else (False,):
            ended(site, jobs.render_job(plan, stage, of_gate=of_gate))


def walking(site: Site) -> None:
    done(site, 4)
    controller.submit_all(site.cluster, opened(site, "seven-b")[1], sending())


def gate_closed(site: Site) -> None:
    plan = opened(site, "seven-b")[1]
    done(site, 5)
    ended(site, jobs.render_job(plan, plan.stage("sft")))
    ended(site, jobs.render_job(plan, plan.stage("sft"), of_gate=True), well=False)


def stop(site: Site, cluster: Cluster, *recipe: str) -> None:
    gone: list[str] = []
    with accounted(lambda _: f"Ended before that: {gone}"):
        _stop_jobs(cluster, opened(site, *(recipe or ("seven-b",)))[1], None, str, gone)


def at_work_with_a_run(site: Site) -> None:
    submit.submit(site.cluster, opened(site, "survival", OLD)[1], None, sending())
    run_of(site, OLD)


def runs(site: Site, ended: bool) -> list[str]:
    """The runs of Kubeflow Pipelines that were ended, or those that were not."""
    there = site.cluster.list("Workflow", site.namespace)
    return [
        run["metadata"]["name"]
        for run in there
        if (run["spec"].get("activeDeadlineSeconds") == 0) == ended
    ]


def helpers(site: Site) -> list:
    """The pods that commands have created."""
    parts = [site.cluster.list("Pod", site.namespace, {jobs.PART: part}) for part in HELPERS]
    return [pod for pods in parts for pod in pods]


def fetched(site: Site) -> bool:
    return (Path("home") / "training_summary.json").is_file()


def fetch(site: Site, cluster: Cluster) -> None:
    plan = opened(site, "survival")[1]
    transfer.fetch(cluster, plan, plan.stages[-1], Path("home"), TOLD.append)


SAMPLE = ROOT / "recipes/data/survival-sample.jsonl"


def with_rows(site: Site) -> tuple[Recipe, Plan]:
    """A recipe whose rows are a file of this machine, which pods read from a claim."""
    Path("rows.jsonl").write_bytes(SAMPLE.read_bytes())
    rows = Path("rows.jsonl").resolve()
    return opened(site, "survival", "data.hub=", f"data.path={rows}", "openshift.data_from=claim")


def other_rows(site: Site) -> None:
    """The job that prepares the rows is at work on others."""
    shutil.rmtree("claim", ignore_errors=True)
    Path("claim").mkdir()
    site.api.mounts["/shared/models"] = Path("claim").resolve()
    plan = with_rows(site)[1]
    sent = jobs.render_job(plan, plan.stages[0], None, False, "f" * 32)
    for manifest in (*sent.support, sent.job):
        site.cluster.apply(manifest)


def send_rows(site: Site, cluster: Cluster) -> None:
    recipe, plan = with_rows(site)
    submit.send_next_part(
        cluster, plan, None, replace(sending(), files=transfer.files(recipe, plan.place))
    )


def rows_are_there(site: Site) -> bool:
    recipe, plan = with_rows(site)
    job, key = site.job("Job", "survival-data"), transfer.files(recipe, plan.place).key
    came = [file.read_bytes() for file in Path("claim").rglob("*") if file.is_file()]
    return (
        job is not None
        and jobs.annotation(job, jobs.FILES) == key
        and came == [SAMPLE.read_bytes()]
    )


def results(site: Site) -> None:
    run = Path("claim/survival")
    run.mkdir(parents=True, exist_ok=True)
    (run / "training_summary.json").write_text("{}")
    (run / "stage.json").write_bytes(record_of(ROOT / "recipes/survival.yaml"))
    site.api.mounts["/shared/models"] = Path("claim").resolve()
    for file in Path().glob("home/*"):
        file.unlink()
    for name in ("trained-models-pvc", "workspace-pvc"):
        site.claim(name)


ANN = Owner("ann", "anns-desk", "survival.yaml")


def unasked(*question: str) -> bool:
    """The server is the same person's, so there is nothing to ask."""
    pytest.fail(f"asked: {question}")


def serve(site: Site, cluster: Cluster, *sets: str) -> None:
    plan, server = served(opened(site, "survival", *(sets or ("serve.concurrency=2",)))[0])
    serving.send(
        cluster, serving.objects(cluster, [plan], server, TOLD.append), TOLD.append, ANN, unasked
    )


def serves(site: Site, *sets: str) -> bool:
    plan, server = served(opened(site, "survival", *sets)[0])
    wanted, there = (
        serving.objects(site.cluster, [plan], server, TOLD.append)[-1],
        site.job(serving.SERVICE, "survival"),
    )
    return there is not None and jobs.annotation(there, CONTENT) == jobs.annotation(wanted, CONTENT)


def serving_before(site: Site) -> None:
    site.cluster.create(
        kserve.PLATFORM | {"metadata": kserve.PLATFORM["metadata"] | {"namespace": site.namespace}}
    )
    plan = opened(site, "survival")[1]
    ended(site, jobs.render_job(plan, plan.stages[-1]))
    serve(site, site.cluster, "serve.concurrency=4")


SEQUENCES = {
    "submit": Sequence(
        lambda site: None,
        lambda site, cluster: submit.submit(
            cluster, opened(site, "survival", NEW)[1], None, sending()
        ),
        lambda site: made_from(site, "PyTorchJob", "survival", NEW),
    ),
    "submit --yes": Sequence(
        lambda site: submit.submit(site.cluster, opened(site, "survival", OLD)[1], None, sending()),
        lambda site, cluster: submit.submit(
            cluster, opened(site, "survival", NEW)[1], None, sending()
        ),
        lambda site: made_from(site, "PyTorchJob", "survival", NEW),
        (("PyTorchJob", "survival"),),
    ),
    "submit --all --yes": Sequence(
        walking,
        lambda site, cluster: controller.submit_all(
            cluster, opened(site, "seven-b", CHANGED)[1], sending()
        ),
        lambda site: (
            made_from(site, *DRIVER, CHANGED)
            and made_from(site, *FIRST, CHANGED)
            and not site.job(*STAGE)
        ),
        (DRIVER, STAGE),
    ),
    "submit --yes of data files": Sequence(
        other_rows, send_rows, rows_are_there, (("Job", "survival-data"),)
    ),
    "submit --yes over a run": Sequence(
        at_work_with_a_run,
        lambda site, cluster: submit.submit(
            cluster, opened(site, "survival", NEW)[1], None, sending()
        ),
        lambda site: made_from(site, "PyTorchJob", "survival", NEW) and not runs(site, ended=False),
        (("PyTorchJob", "survival"),),
    ),
    "stop of a run": Sequence(
        at_work_with_a_run,
        lambda site, cluster: stop(site, cluster, "survival", OLD),
        lambda site: not (site.job() or runs(site, ended=False)),
        (("PyTorchJob", "survival"),),
        lambda site: site.job() is None,
    ),
    "stop": Sequence(
        walking, stop, lambda site: not (site.job(*DRIVER) or site.job(*STAGE)), (DRIVER, STAGE)
    ),
    "serve": Sequence(serving_before, serve, lambda site: serves(site, "serve.concurrency=2")),
    "serve --stop": Sequence(
        serving_before,
        lambda site, cluster: serving.stop(
            cluster, opened(site, "survival")[1], TOLD.append, ANN, unasked
        ),
        lambda site: site.job(serving.SERVICE, "survival") is None,
    ),
    "fetch": Sequence(results, fetch, fetched),
    "promote": Sequence(
        gate_closed,
        lambda site, cluster: (
            lambda plan: controller.promote(
                cluster, plan, plan.stage("sft"), "Ada", "the demo", TOLD.append
            )
        )(opened(site, "seven-b")[1]),
        lambda site: (
            jobs.annotation(site.job("Job", "seven-b-sft-gate"), submit.pipeline.PROMOTION)
            == "PROMOTED"
        ),
    ),
}


def remembered(make: Callable[..., jobs.Sent]) -> Callable[..., jobs.Sent]:
    known: dict[str, tuple[Plan, jobs.Sent]] = {}

    def made(plan: Plan, *arguments: object, **named: object) -> jobs.Sent:
        # The plan is kept, so that its number stays its own.
        key = f"{id(plan)} {[getattr(one, 'name', one) for one in arguments]} {named}"
        if key not in known:
            known[key] = (plan, make(plan, *arguments, **named))
        return known[key][1]

    return made


@pytest.fixture
def quick(site, monkeypatch):
    """Pods that are ready, or done, as soon as they are created; and runs that are over as soon as
    their time is."""
    servers = []

    def share(of: api.Api, space: str, pod: dict) -> None:
        (container,) = pod["spec"]["containers"]
        word = next(
            entry["value"] for entry in container["env"] if entry["name"] == file_server.WORD
        )
        root, writes = (
            Path(api.mapped(of, container["command"][3])),
            file_server.WRITES in container["command"],
        )
        if writes:
            root.mkdir(parents=True, exist_ok=True)
        made = file_server.FileServer(("127.0.0.1", 0), root, word, writes)
        threading.Thread(
            target=made.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True
        ).start()
        servers.append(made)
        of.ports[(pod["metadata"]["name"], container["ports"][0]["containerPort"])] = (
            made.server_address[1]
        )
        ready = [{"type": "Ready", "status": "True"}]
        of.objects[("pods", space, pod["metadata"]["name"])]["status"] = {
            "phase": "Running",
            "conditions": ready,
        }

    def run(of: api.Api, space: str, pod: dict) -> None:
        of.logs[(pod["metadata"]["name"], "now")] = [(stamp(), "PROMOTED")]
        of.objects[("pods", space, pod["metadata"]["name"])]["status"] = {"phase": "Succeeded"}

    merge = api.merge

    def change(target: dict, patch: dict) -> None:
        merge(target, patch)
        if target.get("kind") == "Workflow" and target["spec"].get("activeDeadlineSeconds") == 0:
            for pod in list(site.api.objects.values()):
                if (pod["metadata"].get("labels") or {}).get(WORKFLOW) == target["metadata"][
                    "name"
                ]:
                    pod["status"] = {"phase": "Failed"}

    # What takes longest, and is the same each time.
    monkeypatch.setattr(test_kfp, "emitted", cache(test_kfp.emitted))
    for module, name in ((jobs, "render_job"), (submit.pipeline, "render_driver")):
        monkeypatch.setattr(module, name, remembered(getattr(module, name)))
    monkeypatch.setattr(api, "start_share", share)
    monkeypatch.setattr(api, "run_to_its_end", run)
    monkeypatch.setattr(api, "merge", change)
    monkeypatch.setattr(commands, "say", TOLD.append)
    monkeypatch.setattr(errors, "PAUSE_SECONDS", 0.01)
    monkeypatch.setattr(errors, "PATIENCE_SECONDS", 1.0)
    monkeypatch.setattr(errors, "PROMPT_SECONDS", 1.0)
    yield site
    for made in servers:
        made.shutdown()
        made.server_close()


def each_in_turn(site: Site, sequence: Sequence, faults: Sequence_[Fault]):
    """Runs it with a fault at its first request, then at its second, and so on to its last; gives
    what it ended with."""
    for at in range(200):
        site.api.objects.clear()
        site.api.fault = None
        sequence.before(site)
        before = copy.deepcopy(site.api.objects)
        fault = site.api.fault = replace(faults[at % len(faults)], at=at)
        TOLD.clear()
        try:
            sequence.run(site, connect())
            over = None
        except Stop as stopped:
            over = stopped
        site.api.fault = None
        if fault.seen <= at:
            assert at > 3, "it has asked for nearly nothing"
            return
        yield fault, over, before
    raise AssertionError("it asks without an end")


FAULTS = [Fault(0, kind, done) for done in (False, True) for kind in (DONE if done else PASSING)]
REFUSALS = [Fault(0, kind, lasts=lasts) for lasts in (True, False) for kind in REFUSING]


def turns(faults: list[Fault]) -> list:
    """Each request meets another fault than the one before; and every request every fault, which
    takes longer."""
    names = [f"{one.kind}{' afterwards' * one.done}{' for good' * one.lasts}" for one in faults]
    every = [
        pytest.param([one], id=name, marks=pytest.mark.long)
        for one, name in zip(faults, names, strict=True)
    ]
    return [pytest.param(faults, id="in turn"), *every]


# What sends and what stops stand for the others, which take long together.
NAMES = [
    pytest.param(name, marks=() if name in ("submit --yes", "stop") else pytest.mark.long)
    for name in SEQUENCES
]


@pytest.mark.parametrize("faults", turns(FAULTS))
@pytest.mark.parametrize("name", NAMES)
def test_what_passes_ends_no_sequence(quick, name, faults):
    for fault, over, _ in each_in_turn(quick, SEQUENCES[name], faults):
        assert over is None, (fault, over.text)
        assert SEQUENCES[name].well(quick), fault
        assert helpers(quick) == [], fault


@pytest.mark.parametrize("faults", turns(REFUSALS))
@pytest.mark.parametrize("name", NAMES)
def test_a_login_a_right_or_a_kind_that_is_gone_between_two_requests_leaves_no_riddle(
    quick, name, faults
):
    """The command completes, or what it prints names each job that is not what it was, each run
    that it has ended or could not end, and each pod of its own that stays."""
    sequence = SEQUENCES[name]
    for fault, over, before in each_in_turn(quick, sequence, faults):
        if over is None and (left := runs(quick, ended=False)) and sequence.but_runs(quick):
            assert all(f"The run `{one}`" in "\n".join(TOLD) for one in left), (fault, TOLD)
            continue
        if over is None:
            # With a kind a cluster deletes its objects.
            assert sequence.well(quick) or (fault.kind == 404 and fault.lasts), fault
            continue
        lost = [
            f"{of} `{which}`"
            for of, which in sequence.kept
            if uid(quick, which, of)
            != before[(f"{of.lower()}s", quick.namespace, which)]["metadata"]["uid"]
        ]
        lost += [f"run `{one}`" for one in runs(quick, ended=True)]
        lost += [f"Pod `{pod['metadata']['name']}` could not be deleted" for pod in helpers(quick)]
        said = "\n".join([*TOLD, over.text])
        assert all(one in said for one in lost), (fault, lost, said)


@pytest.mark.parametrize("asked", ["DELETE", "POST", "before"])
def test_a_login_that_ends_while_a_job_is_replaced_leaves_a_word_about_both(
    quick, golden_message, asked
):
    before = opened(quick, "survival", OLD)[1]
    submit.submit(quick.cluster, before, None, sending())
    plan, began = opened(quick, "survival", NEW)[1], len(quick.api.requests)
    quick.api.fault = Fault(1000, 401)
    submit.submit(connect(), plan, None, sending())
    made = [line.partition(" ")[0] for line in quick.api.requests[began:]]
    last = {
        "DELETE": made.index("DELETE"),
        "before": made.index("DELETE") - 2,
        "POST": made.index("POST", made.index("DELETE")),
    }[asked]
    quick.api.objects.clear()
    submit.submit(quick.cluster, before, None, sending())
    old = uid(quick, "survival")
    quick.api.fault = Fault(last, 401, lasts=True)
    with pytest.raises(Stop) as stopped:
        submit.submit(connect(), plan, None, sending())
    golden_message(stopped.value.text, asked)
    assert uid(quick, "survival") == ("" if asked == "POST" else old)


def test_it_waits_as_long_as_the_cluster_asks_and_says_so(
    quick, monkeypatch, capsys, golden_message
):
    monkeypatch.setattr(errors, "SILENT_SECONDS", 0.5)
    monkeypatch.setattr(errors, "PROMPT_SECONDS", 30.0)
    quick.api.retry_after, quick.api.busy = "1", [429, 503]
    begun = time.monotonic()
    assert connect().list("Pod", quick.namespace) == []
    assert time.monotonic() - begun > 2
    said = capsys.readouterr()
    assert said.out == "" and quick.api.busy == []
    golden_message(said.err)


def test_what_stays_busy_ends_a_command_in_the_clusters_words(quick, golden_message):
    quick.api.busy = [503] * 1000
    begun = time.monotonic()
    with pytest.raises(errors.TryAgain) as stopped:
        connect().list("Pod", quick.namespace)
    assert 0.5 < time.monotonic() - begun < 5
    golden_message(stopped.value.text)


def test_what_does_not_pass_is_not_tried_again(quick):
    quick.api.busy, quick.api.says = (
        [500] * 3,
        "failed to create typed patch object: .spec.x: expected string",
    )
    with pytest.raises(Stop, match="The cluster refuses"):
        connect().list("Pod", quick.namespace)
    assert len(quick.api.busy) == 2


def test_a_create_that_another_one_overtook_at_the_quota_is_tried_again(quick):
    """Two pods at the same moment count on the same quota; a server lets one of them try again."""
    quick.api.busy = [409]
    quick.api.says = 'Operation cannot be fulfilled on resourcequotas "q": please apply your changes to the latest version'
    meta = {"name": "a", "namespace": quick.namespace}
    assert connect().create({"apiVersion": "v1", "kind": "ConfigMap", "metadata": meta, "data": {}})
    assert quick.api.busy == []
    assert not connect().create(
        {"apiVersion": "v1", "kind": "ConfigMap", "metadata": meta, "data": {}}
    ), "it is there"


@pytest.mark.parametrize(
    "command", [("submit", "--follow"), ("logs", "-f"), ("status", "--watch")], ids=" ".join
)
def test_a_login_that_ends_while_somebody_watches_is_said_at_once(
    site, capsys, command, golden_message
):
    """The server is well, so waiting brings nothing; the job goes on."""
    assert site.recipe("submit") == 0
    site.pods()
    train_to(site, 5)
    asked = len(site.api.requests)
    capsys.readouterr()

    def end_of_the_login() -> None:
        while sum(line.endswith("/pods") for line in site.api.requests[asked:]) < 3:
            time.sleep(0.02)
        site.api.fault = Fault(0, 401, lasts=True)

    player = threading.Thread(target=end_of_the_login)
    player.start()
    without = (
        cli._code([*command, "-n", site.namespace])
        if command[0] == "status"
        else site.recipe(*command)
    )
    player.join()
    assert without == 1 and site.api.fault.seen <= 3, "it was asked again and again"
    golden_message(capsys.readouterr().err, command[0])
    assert site.job() is not None


def test_a_server_that_restarts_is_waited_for_where_it_refuses_a_login(site):
    cluster = connect()
    assert cluster.list("Pod", site.namespace) == []
    site.api.busy = [401, 401, 403, 404]
    assert cluster.list("Pod", site.namespace) == [] and site.api.busy == []


WATCHING = [
    *[
        ("status",),
        ("submit",),
        ("submit", "--dry-run"),
        ("logs",),
        ("fetch",),
        ("stop",),
        ("status", "-n"),
    ],
    *[("why",), ("open", "--no-browser"), ("serve", "--cluster"), ("serve", "--stop")],
    ("promote", "sft", "--cluster", "--by=Ada", "--reason=the demo"),
    ("evaluate", "--set=evaluation.tasks=[hellaswag]", "--evalhub=http://hub.example"),
]


@pytest.mark.parametrize("command", WATCHING, ids=lambda command: " ".join(command[:2]))
def test_a_namespace_that_is_not_there_is_said_by_every_command(
    site, capsys, golden_message, command
):
    verb, *rest = command
    recipe = str(ROOT / f"recipes/{'seven-b' if verb == 'promote' else 'survival'}.yaml")
    gone = (
        ["recipe-test-gone"]
        if rest == ["-n"]
        else ["--set", "openshift.namespace=recipe-test-gone"]
    )
    assert cli._code([verb, *([] if rest == ["-n"] else [recipe]), *rest, *gone]) == 1
    said = capsys.readouterr().err
    assert "There is no namespace `recipe-test-gone`" in said
    if command == ("status",):
        golden_message(said)


def test_a_cluster_without_kueue_is_said(site, capsys, golden_message):
    site.api.missing |= {"localqueues", "workloads"}
    assert site.recipe("submit") == 1
    golden_message(capsys.readouterr().err)
    assert site.job() is None
    assert site.recipe("submit", "--set", "openshift.queue=") == 0
    assert site.recipe("status", "--set", "openshift.queue=") == 0


def together(*commands: Callable[[], object]) -> list[str]:
    """Runs these at the same moment; gives what went wrong in them."""
    wrong: list[str] = []
    start = threading.Barrier(len(commands))

    def run(command: Callable[[], object]) -> None:
        start.wait()
        try:
            command()
        except BaseException as error:
            wrong.append(getattr(error, "text", repr(error)))

    threads = [threading.Thread(target=run, args=(command,)) for command in commands]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return wrong


def test_two_fetches_at_the_same_moment_both_succeed(quick, tmp_path):
    results(quick)
    plan, homes = opened(quick, "survival")[1], [tmp_path / "a", tmp_path / "b"]
    stage = plan.stages[-1]
    fetches = [partial(transfer.fetch, connect(), plan, stage, home, str) for home in homes]
    assert together(*fetches) == [] and helpers(quick) == []
    assert all((home / "training_summary.json").read_text() == "{}" for home in homes)


def test_two_submits_at_the_same_moment_send_one_job_and_both_succeed(quick):
    plan = opened(quick, "survival", NEW)[1]
    for _ in range(5):
        quick.api.objects.clear()
        assert together(*[partial(submit.submit, connect(), plan, None, sending())] * 2) == []
        assert made_from(quick, "PyTorchJob", "survival", NEW) and len(quick.pods()) == 4


def test_two_submits_that_replace_a_job_at_the_same_moment_leave_the_new_one(quick):
    old, plan = opened(quick, "survival", OLD)[1], opened(quick, "survival", NEW)[1]
    for _ in range(5):
        quick.api.objects.clear()
        submit.submit(quick.cluster, old, None, sending())
        assert together(*[partial(submit.submit, connect(), plan, None, sending())] * 2) == []
        assert made_from(quick, "PyTorchJob", "survival", NEW) and len(quick.pods()) == 4


def test_two_submits_of_different_recipes_under_one_name_leave_one_and_say_so(quick):
    """Neither job is a mixture of both."""
    plans = [opened(quick, "survival", sets)[1] for sets in (OLD, NEW)]
    for _ in range(5):
        quick.api.objects.clear()
        wrong = together(
            *[partial(submit.submit, connect(), plan, None, sending()) for plan in plans]
        )
        assert made_from(quick, "PyTorchJob", "survival", OLD) or made_from(
            quick, "PyTorchJob", "survival", NEW
        )
        assert len(wrong) <= 1 and all(
            "was not sent" in one or "was sent meanwhile" in one for one in wrong
        )


def test_a_job_that_someone_sends_while_the_cluster_checks_the_same_stays_with_what_it_reads(
    quick, monkeypatch
):
    """The model is the same for both, but the jobs that fetch it have recipes of their own beside
    them."""
    theirs, mine = (opened(quick, "survival", sets)[1] for sets in (OLD, NEW))
    look = submit._Sender.existing

    def looked(sender, sent):
        found = look(sender, sent)
        monkeypatch.setattr(submit._Sender, "existing", look)
        submit.send_next_part(connect(), theirs, None, sending())
        return found

    monkeypatch.setattr(submit._Sender, "existing", looked)
    submit.submit(connect(), mine, None, sending())
    (fetching,) = [
        jobs.render_job(theirs, stage).job for stage in theirs.stages if stage.name == "model"
    ]
    assert jobs.config_of(quick.job("Job", "survival-model")) == jobs.config_of(fetching)
    assert quick.job("ConfigMap", jobs.config_of(fetching))
    assert made_from(quick, "PyTorchJob", "survival", NEW)


def test_a_job_that_someone_sends_just_after_the_milestones_were_read_is_the_one_wanted(
    quick, monkeypatch
):
    """Between two readings of the cluster: it was taken for a job of another version."""
    plan = opened(quick, "survival", NEW)[1]
    read = pipeline.milestones

    def milestones(*given, **named):
        way = read(*given, **named)
        if way[0].done and not way[-1].job:
            monkeypatch.setattr(pipeline, "milestones", read)
            submit.send_next_part(connect(), plan, None, sending())
        return way

    monkeypatch.setattr(pipeline, "milestones", milestones)
    submit.submit(connect(), plan, None, sending())
    sent = [
        asked
        for asked in quick.api.requests
        if asked.startswith("POST") and asked.endswith("/pytorchjobs")
    ]
    assert len(sent) == 1 and pipeline.milestones is read
    assert "PyTorchJob `survival` already exists, made from this recipe as it is now" in TOLD[-1]


def test_two_people_who_send_the_same_files_at_the_same_moment_both_succeed(
    quick, tmp_path, monkeypatch
):
    sets = (
        "data.hub=",
        f"data.path={ROOT}/recipes/data/survival-sample.jsonl",
        "openshift.data_from=claim",
    )
    recipe, plan = opened(quick, "survival", *sets)
    monkeypatch.setattr(transfer, "MOST", 2**12)
    for name in ("trained-models-pvc", "workspace-pvc"):
        quick.claim(name)
    for number in range(3):
        (tmp_path / f"claim{number}").mkdir()
        quick.api.mounts["/shared/models"] = tmp_path / f"claim{number}"
        stage, files = plan.stages[0], transfer.files(recipe, plan.place)
        send = partial(transfer.upload, connect(), plan.only(stage), stage, files, TOLD.append)
        assert together(send, send) == [] and helpers(quick) == []
        (came,) = [file for file in (tmp_path / f"claim{number}").rglob("*") if file.is_file()]
        assert came.read_bytes() == (ROOT / "recipes/data/survival-sample.jsonl").read_bytes()


def test_files_of_a_job_that_a_colleague_sends_meanwhile_are_not_replaced(
    quick, tmp_path, monkeypatch
):
    """The same recipe with other rows: the colleague's pods would train on them."""
    for name in ("trained-models-pvc", "workspace-pvc"):
        quick.claim(name)
    (tmp_path / "claim").mkdir()
    quick.api.mounts["/shared/models"] = tmp_path / "claim"
    rows = (ROOT / "recipes/data/survival-sample.jsonl").read_bytes()
    (tmp_path / "rows.jsonl").write_bytes(rows)
    recipe, plan = opened(
        quick,
        "survival",
        "data.hub=",
        f"data.path={tmp_path}/rows.jsonl",
        "openshift.data_from=claim",
    )
    theirs = replace(sending(), files=transfer.files(recipe, plan.place))
    (tmp_path / "rows.jsonl").write_bytes(rows[: rows.rindex(b"\n", 0, -1) + 1])
    mine = replace(sending(), files=transfer.files(recipe, plan.place))
    provide = submit._Sender.provide

    def provided(sender, sent):
        monkeypatch.setattr(submit._Sender, "provide", provide)
        (tmp_path / "rows.jsonl").write_bytes(rows)
        submit.send_next_part(connect(), plan, None, theirs)
        provide(sender, sent)

    monkeypatch.setattr(submit._Sender, "provide", provided)
    with pytest.raises(
        Stop, match="Another Job `survival-data`, made from another version of this recipe"
    ):
        submit.send_next_part(connect(), plan, None, mine)
    (there,) = [file for file in (tmp_path / "claim").rglob("*") if file.is_file()]
    assert there.read_bytes() == rows


def test_what_a_killed_command_has_left_behind_is_taken_away_and_nothing_else(quick):
    results(quick)
    hour, now = datetime.now(UTC) - timedelta(hours=1), datetime.now(UTC)
    for name, phase, born in (
        ("ended", "Succeeded", hour),
        ("waiting", "Pending", hour),
        ("at-work", "Running", hour),
        ("a-colleagues", "Pending", now),
    ):
        labels = {"app.kubernetes.io/managed-by": "recipe-runner", jobs.PART: jobs.FETCH}
        pod = {"kind": "Pod", "apiVersion": "v1", "status": {"phase": phase}, "spec": {}}
        meta = {"name": name, "namespace": quick.namespace, "labels": labels, "uid": name}
        meta["creationTimestamp"] = born.strftime("%Y-%m-%dT%H:%M:%SZ")
        quick.api.objects[("pods", quick.namespace, name)] = pod | {"metadata": meta}
    fetch(quick, connect())
    assert {pod["metadata"]["name"] for pod in helpers(quick)} == {"at-work", "a-colleagues"}
