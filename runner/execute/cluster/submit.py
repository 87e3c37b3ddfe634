"""Submit: the cluster judges everything first, then gets what it lacks; what is there already stays untouched."""

from __future__ import annotations

import copy
import time
from collections.abc import Callable
from typing import Any

from runner.execute.cluster.errors import Lost
from runner.execute.cluster.follow import line
from runner.execute.cluster.jobs import Sent, key, machines, prepares
from runner.execute.cluster.state import FAILED, FINISHED, ended, look
from runner.execute.cluster.why import log_reader, reasons
from runner.problem import Stop
from runner.targets.kubernetes import SHARED

Tell = Callable[[str], None]
# Asks the person a question; True for yes. Raises Stop where nobody can be asked.
Confirm = Callable[[str], bool]
POLL_SECONDS = 5.0


def submit(cluster: Any, sent: Sent, tell: Tell, confirm: Confirm, dry_run: bool = False) -> None:
    """Sends a stage. Submitting what is there already changes nothing; what was changed replaces it, after asking.

    Raises Stop where the cluster refuses anything; then nothing has been sent.
    """
    _queue_is_there(cluster, sent)
    there = _existing(cluster, sent)
    same = [job for job in there if _same(job, sent)]
    if not same:
        _claims_are_for_all(cluster, sent)
    judge(cluster, sent, replacing=bool(there))
    if same:
        tell(f"{sent.kind} `{sent.name}` is there already, made from this very recipe; nothing changes.")
        if (end := ended(same[0])) == FINISHED and key(sent.job):
            tell("It has finished; its stage runs again when what it is made from changes.")
        elif end:
            tell(f"It has {end}. To run it again: `recipe stop`, then `recipe submit`.")
        return
    if dry_run:
        tell(f"The cluster would accept {sent.kind} `{sent.name}` and {len(sent.support)} objects that it needs.")
        return
    for job in (*there, *_outdated(cluster, sent)):
        _make_room(cluster, job, tell, confirm)
    empty = False
    for manifest in sent.support:
        if not _claim_is_there(cluster, manifest):
            cluster.apply(manifest)
            empty |= manifest["kind"] == "PersistentVolumeClaim"
            tell(f"{manifest['kind']} `{manifest['metadata']['name']}`")
    if sent.prepare:
        prepare(cluster, sent.prepare, tell, anew=empty)
    elif sent.stage.data:
        tell(
            f"The data comes with the image, in {sent.plan.place.data_dir}: it must be built with EMBED={sent.plan.name}."
        )
    cluster.apply(sent.job)
    tell(f"{sent.kind} `{sent.name}` in `{sent.namespace}`")


def judge(cluster: Any, sent: Sent, replacing: bool) -> None:
    """The server's own dry run of everything."""
    for manifest in (*sent.support, *((sent.prepare,) if sent.prepare else ()), sent.job):
        if _claim_is_there(cluster, manifest) or (manifest is sent.prepare and _prepared(cluster, manifest)):
            continue
        if manifest is sent.job and replacing:
            # Under another name, because what is there may not be changed, only replaced.
            manifest = copy.deepcopy(manifest)
            manifest["metadata"]["name"] = f"{sent.name[:44].rstrip('-')}-dry-run"
        cluster.apply(manifest, dry_run=True)


def _claim_is_there(cluster: Any, manifest: dict[str, Any]) -> bool:
    """A claim that exists keeps its size and mode: nobody may change them, and somebody's results lie on it."""
    meta = manifest["metadata"]
    kind = manifest["kind"]
    return (
        kind == "PersistentVolumeClaim"
        and cluster.get("PersistentVolumeClaim", meta["namespace"], meta["name"]) is not None
    )


def _claims_are_for_all(cluster: Any, sent: Sent) -> None:
    """Raises Stop where a claim of a job of several machines is there and was made for one: a cluster would attach it to
    the first machine, and leave the others' pods waiting for ever."""
    if (count := machines(sent.job)) < 2:
        return
    for manifest in sent.support:
        if manifest["kind"] != "PersistentVolumeClaim":
            continue
        name = manifest["metadata"]["name"]
        there = cluster.get("PersistentVolumeClaim", sent.namespace, name)
        modes = there["spec"].get("accessModes") or ["no mode"] if there else [SHARED]
        if SHARED not in modes:
            raise Stop(
                f"The claim `{name}` in `{sent.namespace}` is there already, for one machine at a time ({', '.join(modes)}), "
                f"and `{sent.name}` has {count}.",
                f"A claim keeps its mode. Write a new `openshift.claims[].name` for it, which is then made {SHARED}, and "
                "copy to it what lies on the old one; or stay on one machine with `machines.nodes: 1`.",
            )


def _prepared(cluster: Any, manifest: dict[str, Any]) -> bool:
    """A prepare Job that exists is this very one, because its name says what it does."""
    meta = manifest["metadata"]
    return cluster.get("Job", meta["namespace"], meta["name"]) is not None


def _queue_is_there(cluster: Any, sent: Sent) -> None:
    queue = sent.plan.site.get("queue")
    if queue and cluster.get("LocalQueue", sent.namespace, queue) is None:
        known = [entry["metadata"]["name"] for entry in cluster.list("LocalQueue", sent.namespace)]
        raise Stop(
            f"There is no queue `{queue}` in the namespace `{sent.namespace}`.",
            f"Its queues: {', '.join(known)}. Change `openshift.queue`."
            if known
            else "Make one with `oc apply -k openshift/`, or delete `openshift.queue`.",
        )


def _existing(cluster: Any, sent: Sent) -> list[dict[str, Any]]:
    """Jobs of this name, under any target. Raises Stop where one is not of this recipe."""
    found = []
    name = sent.name
    for kind in sent.kinds:
        if (job := cluster.get(kind, sent.namespace, name)) is None:
            continue
        meta = job["metadata"]
        owner = (meta.get("annotations") or {}).get("recipe-runner/recipe")
        if owner != sent.plan.name:
            whose = f"the recipe `{owner}`" if owner else "someone who did not use recipe-runner"
            raise Stop(
                f"The name `{name}` is in use: {whose} has a {kind} of that name in `{sent.namespace}`.",
                "Give this one another with `openshift.job_name`.",
            )
        found.append(job)
    return found


def _outdated(cluster: Any, sent: Sent) -> list[dict[str, Any]]:
    """Prepare Jobs of the recipe as it was: one at work would write into the same folder, and one that is done would be
    taken for the state of the claim once the recipe is changed back."""
    wanted = sent.prepare and sent.prepare["metadata"]["name"]
    found = prepares(cluster, sent.plan) if wanted else []
    return [job for job in found if job["metadata"]["name"] != wanted]


def _same(job: dict[str, Any], sent: Sent) -> bool:
    def content(one: dict[str, Any]) -> Any:
        return (one["metadata"].get("annotations") or {}).get("recipe-runner/content")

    # Of one stage of several only what concerns its result counts, unless it has failed and may need another machine.
    keyed = key(job) is not None and key(job) == key(sent.job) and ended(job) != FAILED
    return job["kind"] == sent.kind and (keyed or content(job) == content(sent.job))


def _make_room(cluster: Any, job: dict[str, Any], tell: Tell, confirm: Confirm) -> None:
    """Takes an older job of this recipe away; one that is under way only after a yes."""
    kind, meta = job["kind"], job["metadata"]
    if not ended(job) and not confirm(
        f"{kind} `{meta['name']}` is under way, made from this recipe as it was before it changed. End it and start anew?"
    ):
        raise Stop(f"{kind} `{meta['name']}` goes on; nothing was sent.")
    delete(cluster, kind, meta["namespace"], meta["name"])
    tell(f"{kind} `{meta['name']}` of before: deleted")


def delete(cluster: Any, kind: str, namespace: str, name: str) -> None:
    """Deletes an object and waits until it is gone. Raises Stop where it stays."""
    cluster.delete(kind, namespace, name)
    for _ in range(60):
        if cluster.get(kind, namespace, name) is None:
            return
        time.sleep(min(1.0, POLL_SECONDS))
    raise Stop(f"{kind} `{name}` does not go away.", "Look at it with `oc describe`, then submit again.")


def prepare(cluster: Any, manifest: dict[str, Any], tell: Tell, anew: bool = False) -> None:
    """Sends the prepare Job and waits until it is done; one that is done already is not sent again, unless `anew`: what
    it has left went with a claim that is made anew."""
    meta = manifest["metadata"]
    there = cluster.get("Job", meta["namespace"], meta["name"])
    if there and (ended(there) == FAILED or (anew and ended(there))):
        delete(cluster, "Job", meta["namespace"], meta["name"])
        there = None
    if there is None:
        cluster.apply(manifest)
        tell(
            f"Job `{meta['name']}` fetches the model and prepares the data; ^C leaves it at work, submit again to go on."
        )
    said: list[str] = []
    while True:
        try:
            job = cluster.get("Job", meta["namespace"], meta["name"])
            if job is None:
                raise Stop(f"Job `{meta['name']}` was deleted.", "Submit again.")
            state = look(cluster, job)
            why = [line(state), *reasons(state, log_reader(cluster, state))]
        except Lost as lost:
            why, state = [lost.text.splitlines()[0] + " Trying again."], None
        if state and state.phase == FINISHED:
            return
        if state and state.phase == FAILED:
            raise Stop(
                f"Preparing failed. {' '.join(why[1:])}", f"Its log: oc logs job/{meta['name']} -n {meta['namespace']}"
            )
        for text in why:
            if text not in said:
                tell(f"  {text}")
        said = why
        time.sleep(POLL_SECONDS)
