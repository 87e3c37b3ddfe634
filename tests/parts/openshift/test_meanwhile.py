"""Two terminals send one recipe: a `submit` that waits never continues with its older version over
a newer one."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial

import pytest

from runner.parts.openshift import controller, errors, jobs, submit, watch
from runner.parts.openshift.client import Cluster, connect
from runner.parts.openshift.jobs import Owner
from runner.plan import Plan
from runner.tools.problem import Stop
from tests.parts.openshift.conftest import in_process
from tests.parts.openshift.test_faults import ended, opened, sending

pytestmark = in_process
OTHER_ROWS, OTHER_RATE = "stages.0.data.min_words=60", "stages.0.train.learning_rate=1e-4"
DATA, INIT, FIRST = (
    ("Job", "seven-b-data"),
    ("Job", "seven-b-init"),
    ("PyTorchJob", "seven-b-pretrain-512"),
)
DRIVER = ("Job", "seven-b-driver")
BEN = Owner("ben", "bens-desk", "/home/ben/seven-b.yaml")
Terminal = Callable[[], object]


def plan_of(site, *sets: str) -> Plan:
    return opened(site, "seven-b", *sets)[1]


def finish(site, name: str, *sets: str) -> None:
    plan = plan_of(site, *sets)
    ended(site, jobs.render_job(plan, plan.stage(name)))


def sent_by_ben(site, *sets: str, every: bool = False) -> None:
    """What the other terminal sends: the next part, or with `every` the driver as well."""
    how = replace(sending(), owner=BEN)
    if every:
        controller.submit_all(connect(), plan_of(site, *sets), how)
    else:
        submit.send_next_part(connect(), plan_of(site, *sets), None, how)


def submit_with(site, *moments: Terminal) -> jobs.Sent | None:
    """Submits the recipe. The other terminal makes its moves when this one begins to wait, one move
    for each wait."""
    moves = iter(moments)

    def tell(text: str) -> None:
        if text.startswith("Waiting for it."):
            next(moves)()

    return submit.submit(connect(), plan_of(site), None, submit.Sending(tell, lambda *_: True))


def is_from(site, kind: str, name: str, *sets: str) -> bool:
    """Whether the job on the cluster is of this version of the recipe."""
    plan, there = plan_of(site, *sets), site.job(kind, name)
    stage = plan.stage(name.removeprefix("seven-b-"))
    return there is not None and jobs.is_made_from(there, jobs.render_job(plan, stage))


@pytest.mark.parametrize("over", [False, True], ids=["at work", "finished"])
def test_a_newer_job_of_the_part_that_is_waited_for_stays(site, over, golden_message):
    def other() -> None:
        sent_by_ben(site, OTHER_ROWS)
        if over:
            finish(site, "data", OTHER_ROWS)

    with pytest.raises(Stop) as stop:
        submit_with(site, other)
    golden_message(stop.value)
    assert is_from(site, *DATA, OTHER_ROWS) and site.job(*INIT) is None


def test_a_newer_training_job_stays(site, golden_message):
    """Both terminals wait for the same data."""

    def other() -> None:
        finish(site, "init")
        sent_by_ben(site, OTHER_RATE)

    with pytest.raises(Stop) as stop:
        submit_with(site, partial(finish, site, "data"), other)
    golden_message(stop.value)
    assert is_from(site, *FIRST, OTHER_RATE)


def test_a_newer_driver_stays(site, golden_message):
    def other() -> None:
        sent_by_ben(site, OTHER_RATE, every=True)
        finish(site, "data")

    with pytest.raises(Stop) as stop:
        submit_with(site, other)
    golden_message(stop.value)
    assert site.job(*DRIVER) and site.job(*INIT) is None


def test_what_comes_between_the_end_of_a_part_and_the_next_step_stays(site, monkeypatch):
    def waited(*_: object) -> None:
        finish(site, "data")
        sent_by_ben(site, OTHER_ROWS)

    monkeypatch.setattr(submit, "wait", waited)
    with pytest.raises(
        Stop, match="Another Job `seven-b-data`, made from another version of this recipe"
    ):
        submit_with(site, lambda: None)
    assert is_from(site, *DATA, OTHER_ROWS)


@pytest.mark.parametrize("over", [False, True], ids=["at work", "finished"])
def test_a_deleted_part_is_not_sent_again(site, monkeypatch, over):
    def waited(*_: object) -> None:
        finish(site, "data")
        site.cluster.delete("Job", site.namespace, "seven-b-data")

    if over:
        monkeypatch.setattr(submit, "wait", waited)
    with pytest.raises(watch.Gone, match="Job `seven-b-data` no longer exists; someone deleted it"):
        submit_with(
            site, lambda: over or site.cluster.delete("Job", site.namespace, "seven-b-data")
        )
    assert site.job(*DATA) is None


def test_the_same_version_from_another_terminal_is_waited_for(site):
    def other() -> None:
        before = site.job(*DATA)["metadata"]["uid"]
        site.cluster.delete("Job", site.namespace, "seven-b-data")
        sent_by_ben(site)
        assert site.job(*DATA)["metadata"]["uid"] != before
        finish(site, "data")

    what = submit_with(site, other, partial(finish, site, "init"))
    assert jobs.title_of(what.job) == "PyTorchJob `seven-b-pretrain-512`" and is_from(site, *FIRST)


def test_older_jobs_that_were_there_before_are_replaced(site):
    finish(site, "pretrain-512", OTHER_RATE)
    assert is_from(site, *FIRST, OTHER_RATE)
    submit_with(site, partial(finish, site, "data"), partial(finish, site, "init"))
    assert is_from(site, *FIRST)


def test_following_a_job_does_not_follow_a_newer_one(site):
    for name in ("data", "init"):
        finish(site, name)
    what = submit_with(site)
    moves = iter([partial(sent_by_ben, site, OTHER_RATE)])
    with pytest.raises(
        Stop, match=r"Another PyTorchJob `seven-b-pretrain-512`.* ben sent it from bens-desk"
    ):
        watch.follow(connect(), what, lambda *_: next(moves, lambda: None)())
    assert is_from(site, *FIRST, OTHER_RATE)


def test_a_config_map_that_is_sent_after_a_job_stays(site, monkeypatch):
    """Somebody is about to replace the job, and the pods of the new one will read it."""
    plan = plan_of(site, OTHER_ROWS)
    what = jobs.render_job(plan, plan.stage("data"))
    create = Cluster.create

    def created(cluster: Cluster, manifest: dict, dry_run: bool = False) -> bool:
        done = create(cluster, manifest, dry_run)
        if done and manifest["kind"] == "Job" and not dry_run:
            for one in what.support:
                cluster.apply(one)
        return done

    monkeypatch.setattr(Cluster, "create", created)
    submit.send_next_part(connect(), plan_of(site), None, sending())
    assert is_from(site, *DATA) and site.job("ConfigMap", jobs.config_of(what.job))


def test_a_wait_for_an_old_job_says_what_it_waits_for(site, monkeypatch, golden_message):
    """Its pods save a last checkpoint, which may take minutes."""

    def in_time(done: Callable[[], bool]) -> bool:
        return any(done() for _ in range(3))

    monkeypatch.setattr(errors, "SILENT_SECONDS", -1.0)
    monkeypatch.setattr(jobs, "in_time", in_time)
    finish(site, "data")
    there = {"kind": "Job", **site.job(*DATA)}
    monkeypatch.setattr(Cluster, "delete", lambda *_: True)
    lines: list[str] = []
    with pytest.raises(Stop) as stop:
        jobs.delete(connect(), there, [], lines.append)
    golden_message("\n".join([*lines, stop.value.text]))
