"""The server of a trained model on the cluster: sending it, waiting for it, connecting to it,
explaining its failures.

KServe creates a Deployment for an InferenceService or LLMInferenceService, whose pods have
annotations of the object. These distinguish them from pods of an earlier server of the same name,
which may still answer."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime

from runner.catalog import troubles
from runner.parts.jobs import kubernetes
from runner.parts.jobs.kubernetes import Manifest
from runner.parts.openshift import client, diagnose, jobs, pipeline
from runner.parts.openshift.client import Cluster, Manifests
from runner.parts.openshift.errors import TryAgain, accounted, pause
from runner.parts.openshift.jobs import Confirm, Owner, annotation, title_of
from runner.parts.openshift.status import FAILED, entry_of, events_about, is_being_deleted
from runner.parts.openshift.submit import require_consent
from runner.parts.serve import kserve
from runner.parts.serve.serving import LLM, SERVICE, Serving
from runner.plan import Plan
from runner.tools import packaged
from runner.tools.problem import Stop, Tell, listed, worded
from runner.tools.process import HOST, free_port

Plans = Sequence[Plan]
RUNTIME = "ServingRuntime"
REMOVING = "`recipe serve RECIPE --stop` removes it."
# What KServe makes of each kind of server.
FORMS: Mapping[str, Manifest] = packaged.toml(__file__, "forms.toml")


def start(
    cluster: Cluster,
    plans: Plans,
    server: Serving,
    tell: Tell,
    mine: Owner,
    confirm: Confirm,
    port: int,
    dry_run: bool,
) -> None:
    """Sends the server of the first plan, which has the adapters of the others too, waits until it
    answers, and forwards `port` of this machine to an InferenceService until ^C, or tells the
    address of an LLMInferenceService; the server continues. An identical server is not sent again.
    `confirm` is asked before another person's server is replaced. port: 0 for any; mine: the owner
    of what is sent. Raises Stop if a model is not trained yet, the cluster refuses anything, or the
    server cannot start."""
    server.kind = kind_of(cluster, plans[0], server, tell)
    manifests = objects(cluster, plans, server, tell)
    if dry_run:
        for manifest in manifests:
            cluster.apply(manifest, dry_run=True)
            tell(f"The cluster would accept {manifest['kind']} `{manifest['metadata']['name']}`.")
        return
    known = listed(server.models, "or")
    alone = server.kind == LLM
    if not alone:
        free_port(port)
    send(cluster, manifests, tell, mine, confirm)
    state = wait(cluster, manifests[-1], tell)
    if alone:
        tell(worded("serve.gateway-at", url=state.address, known=known)[0])
        return tell(REMOVING)

    def connected(local: int) -> None:
        tell(worded("serve.answers-at", host=HOST, local=local, known=known)[0])
        tell(REMOVING)

    def answering() -> str:
        return _ready(_pods(cluster, manifests[-1])) or str(
            state.ready
        )  # another pod may have replaced it

    client.forward(cluster, plans[0].site["namespace"], answering, kserve.PORT, port, connected)


def kind_of(cluster: Cluster, plan: Plan, server: Serving, tell: Tell) -> str:
    """The kind of a server: the recipe's, or that of the server which is there, or for several
    adapters the one that the cluster offers. Raises Stop if it is there in another kind."""
    space = plan.site["namespace"]
    there = next((one for one in _ours(cluster, plan) if one["kind"] != RUNTIME), None)
    kind = server.kind
    if kind is None:
        several = len(server.source.adapters) > 1
        if there:
            offered = there["kind"] == LLM
        else:
            offered = several and cluster.knows(LLM, space, usable=True)
        if offered and server.declarable:
            kind = LLM
        else:
            kind = SERVICE
        if offered and kind == SERVICE:
            tell(worded("serve.on-one-claim")[0])
    if there and there["kind"] != kind:
        raise Stop(
            *worded("serve.other-kind", there=title_of(there), wanted=kind, kind=there["kind"])
        )
    return kind


def stop(cluster: Cluster, plan: Plan, tell: Tell, mine: Owner, confirm: Confirm) -> None:
    """Removes the server of a plan, and its own runtime. `confirm` is asked before another person's
    is removed."""
    there = _ours(cluster, plan)
    if not there:
        cluster.require_namespace(plan.site["namespace"])
        return tell(f"`{plan.site['namespace']}` has no server of `{plan.name}`.")
    require_consent(there[0], mine, confirm)  # one question is enough for a server and its runtime
    for one in there:
        jobs.delete(cluster, one, [], tell)
        tell(f"{title_of(one)} removed.")


def objects(cluster: Cluster, plans: Plans, server: Serving, tell: Tell) -> list[Manifest]:
    """The objects of `recipe render`, the server last, annotated with the training jobs of its
    models. Raises Stop if a model is not trained yet, or its gate is closed."""
    plan = plans[0]
    if server.source.results:
        trained = plans
    else:
        trained = ()
    trained_by = ",".join(filter(None, (_trained_by(cluster, each, tell) for each in trained)))
    made = kserve.runtime(plan, server)
    service = kserve.service(plan, server, trained_by)
    return [*([made] if made else []), service]


def _trained_by(cluster: Cluster, plan: Plan, tell: Tell) -> str:
    """The uid of the job that trained the model; empty if the job is gone. Raises Stop if it is
    running or has failed, or if its gate is not open: the model would be incomplete, or not good
    enough."""
    training, *gates = (
        each
        for each in pipeline.milestones(cluster, plan)
        if each.stage.name == plan.stages[-1].name
    )
    for each in (training, *gates):
        if each.at_work and not (each.job and is_being_deleted(each.job)):
            raise Stop(*worded("serve.still-running", each=each))
        if each.state == FAILED:
            if each.of_gate:
                raise Stop(
                    f"The model is not served. {pipeline.closed_gate_message(cluster, each)}"
                )
            raise Stop(
                f"{each.title} has failed, so there is no finished model.",
                "`recipe status` explains why.",
            )
    if training.state == pipeline.LOST:
        raise Stop(
            f"{training.title} is {training.state}; its model is gone.",
            "`recipe submit` trains it again.",
        )
    if gates and not gates[0].done:
        raise Stop(*worded("serve.gate-closed", gates=gates))
    if not training.done:
        where = plan.place_of(training.stage).run_dir
        tell(f"{training.title} is {training.state}; the server uses the model in {where}.")
    if training.job and not is_being_deleted(training.job):
        return str(training.job["metadata"]["uid"])
    return ""


def _ours(cluster: Cluster, plan: Plan) -> list[Manifest]:
    """The server and the runtime of a plan on the cluster. Raises Stop if one of them is another
    recipe's."""
    space = plan.site["namespace"]
    name = kubernetes.job_name(plan)
    found = [
        (SERVICE, cluster.get(SERVICE, space, name)),
        (LLM, cluster.get(LLM, space, name, forgiving=True)),
        (RUNTIME, cluster.get(RUNTIME, space, kserve.own_runtime(plan))),
    ]
    return [jobs.require_own({"kind": kind, **there}, plan.name) for kind, there in found if there]


def send(
    cluster: Cluster, manifests: list[Manifest], tell: Tell, mine: Owner, confirm: Confirm
) -> None:
    """Sends what is missing or different, with its owner's marks. Raises Stop, with nothing sent,
    after a refusal."""
    service = manifests[-1]
    kind = service["kind"]
    meta = service["metadata"]
    there = cluster.get(kind, meta["namespace"], meta["name"])
    if there and is_being_deleted(there):
        tell(f"The old {kind} `{meta['name']}` is being deleted. Waiting until it is gone.")
        jobs.wait_until_gone(cluster, {"kind": kind, **there}, tell)
        there = None
    if there and _same(there, service):
        tell(
            f"{title_of(service)} already exists, made from this recipe as it is now. Nothing changes."
        )
        whose = Owner.of(there)
        if whose not in (Owner(), mine):
            tell(str(whose))
        return
    for manifest in manifests:
        cluster.apply(manifest, dry_run=True)
    if there and Owner.of(there) != mine:
        require_consent({"kind": kind, **there}, mine, confirm, replaces=True)
    if there and kind == LLM:
        # Its Deployment would need a second machine beside the first, and wait for it.
        jobs.delete(cluster, {"kind": kind, **there}, [], tell)
        there = None
    with accounted(
        lambda _: (
            f"{title_of(service)} was not sent" + ("; the old one continues." if there else ".")
        )
    ):
        for manifest in map(mine.signed, manifests):
            # Another person may have sent one in the meantime.
            if there or manifest["kind"] != kind:
                cluster.apply(manifest)
            elif not cluster.create(manifest):
                raise Stop(
                    f"Someone else sent {title_of(service)} a moment ago.", "Run the command again."
                )
            tell(f"Sent {title_of(manifest)} to `{meta['namespace']}`")


def _same(there: Manifest, wanted: Manifest) -> bool:
    return all(
        annotation(there, name) == annotation(wanted, name)
        for name in (kserve.CONTENT, kserve.TRAINED_BY)
    )


def wait(cluster: Cluster, service: Manifest, tell: Tell) -> ServerState:
    """The state of the server once a pod answers. Raises Stop if the server is deleted or changed,
    or can never start."""
    tell(
        "Waiting until it is ready. ^C leaves the server running; the same command waits for it again."
    )
    cluster = cluster.once()
    kind = service["kind"]
    meta = service["metadata"]
    missing = 0
    said = list[str]()
    while True:
        lines: list[str] = []
        try:
            there = cluster.get(kind, meta["namespace"], meta["name"])
            missing = missing + 1 if there is None else 0
            if missing > 2:
                raise Stop(
                    f"{kind} `{meta['name']}` no longer exists; someone deleted it.",
                    "Start it again.",
                )
            if there is not None:
                if is_being_deleted(there):
                    raise Stop(*worded("serve.being-deleted", service=kind, meta=meta))
                if not _same(there, service):
                    raise Stop(
                        *worded(
                            "serve.changed-meanwhile",
                            service=kind,
                            meta=meta,
                            owner=Owner.of(there),
                        )
                    )
                state = look(cluster, there)
                if state.ready:
                    return state
                lines = [state.phase, *reasons(state)]
                if state.hopeless:
                    why = " ".join(lines[1:]) or f"It ended {state.restarts} times."
                    raise Stop(f"The server does not start. {why}", REMOVING)
        except TryAgain as silence:
            lines = [f"{silence.text.splitlines()[0]} The server continues; trying again."]
        for line in lines:
            if line not in said:
                tell(f"  {line}")
        said = lines or said
        pause()


def look(cluster: Cluster, service: Manifest) -> ServerState:
    """The state of a server: its own pods, and the messages about them."""
    space = service["metadata"]["namespace"]
    name = service["metadata"]["name"]
    form = FORMS[service["kind"]]
    pods = _pods(cluster, service)
    workloads = cluster.list("Workload", space, forgiving=True)

    def deployed(event: Manifest) -> bool:
        # Only the Deployment and its ReplicaSets explain a missing pod, and people may not be
        # allowed to read them.
        of = event["involvedObject"]
        begins = f"{name}{form['deployment']}"
        return of.get("kind") in ("Deployment", "ReplicaSet") and of.get("name", "").startswith(
            begins
        )

    events = events_about(cluster, [service, *pods], deployed)
    return ServerState(
        service, pods, events, workloads, diagnose.log_reader(cluster, space, form["container"])
    )


def _pods(cluster: Cluster, service: Manifest) -> Manifests:
    meta = service["metadata"]
    form = FORMS[service["kind"]]
    pods = cluster.list("Pod", meta["namespace"], {form["name"]: meta["name"], **form["labels"]})
    return [pod for pod in pods if not is_being_deleted(pod) and _same(pod, service)]


def _ready(pods: Manifests) -> str | None:
    return next(
        (str(pod["metadata"]["name"]) for pod in pods if jobs.has_condition(pod, "Ready")), None
    )


LESS = "`serve.gpus` or `serve.concurrency`"
TRIES = 3  # after this many exits, a slow disk or network is not the reason
# KServe's reasons if it does not find a runtime, or must not use it.
_UNMERGED = (
    ("PresetsCombined", "False"),
)  # an LLMInferenceService that does not go with the platform's template
_NO_RUNTIME = ("RuntimeNotRecognized", "NoSupportingRuntime", "RuntimeDisabled")


@dataclass
class ServerState:
    """A server on the cluster. service: its object; pods: its own; events: warnings about them;
    workloads: Kueue's of the namespace; log_of: the end of a pod's log, of its last failed try if
    it was restarted.

    alone: whether it is an LLMInferenceService, which needs no runtime; address: that one's at the
    gateway, empty if it has none yet; failure: KServe's last reason for not serving the model;
    hopeless: whether waiting changes nothing, because KServe refuses the object, or vLLM exits
    again and again; ready: the first pod that answers, of an LLMInferenceService once the gateway
    leads to it."""

    service: Manifest
    pods: Manifests
    events: Manifests = field(default_factory=list)
    workloads: Manifests = field(default_factory=list)
    log_of: diagnose.LogOf = lambda _pod: ""

    def __post_init__(self) -> None:
        status = self.service.get("status") or {}
        answers = _ready(self.pods)
        self.alone: bool = self.service["kind"] == LLM
        address = status.get("url") or next(
            (one["url"] for one in status.get("addresses") or ()), ""
        )
        self.address = str(address).rstrip("/")
        refused = (
            one
            for one in jobs.conditions_of(self.service)
            if (one["type"], one["status"]) in _UNMERGED
        )
        of_model = status.get("modelStatus") or {}
        self.failure: Manifest = of_model.get("lastFailureInfo") or next(refused, {})
        self.container = FORMS[self.service["kind"]]["container"]
        entries = [
            entry
            for pod in self.pods
            for entry in jobs.containers_of(pod)
            if entry["name"] == self.container
        ]
        self.restarts = max((entry.get("restartCount", 0) for entry in entries), default=0)
        invalid = of_model.get("transitionStatus") == "InvalidSpec"
        self.hopeless = (
            self.failure.get("reason") in _NO_RUNTIME or invalid or self.restarts >= TRIES
        )
        reached = not self.alone or (jobs.has_condition(self.service, "Ready") and self.address)
        self.ready = answers if reached else None
        conditions = [
            (each["type"], each["status"]) for pod in self.pods for each in jobs.conditions_of(pod)
        ]
        if not self.pods:
            self.phase = "no pod yet"
        elif any(pod["spec"].get("schedulingGates") for pod in self.pods):
            self.phase = "queued"
        elif ("PodScheduled", "False") in conditions:
            self.phase = "waiting for a machine"
        elif self.alone and answers:
            self.phase = "waiting for the gateway"
        elif any("running" in entry.get("state", {}) for entry in entries):
            self.phase = "loading the model"
        else:
            if self.restarts:
                self.phase = "restarted"
            else:
                self.phase = "pulling the image"


def reasons(server: ServerState) -> list[str]:
    """The reasons why a server does not answer, the most specific first; empty if nothing is
    wrong."""
    return list(
        dict.fromkeys(
            [*_refused(server), *(line for pod in server.pods for line in _pod(server, pod))]
        )
    )


def _refused(server: ServerState) -> Iterator[str]:
    """Refusals by KServe, and why the Deployment could not create a pod, which only its
    ReplicaSet's events show."""
    if server.alone and _ready(server.pods):
        missing = (each for each in jobs.conditions_of(server.service) if each["status"] == "False")
        yield from (f"{each['type']}: {each['message']}" for each in missing if each.get("message"))
    reason = server.failure.get("reason", "")
    why = str(server.failure.get("message", "")).rstrip(".") or reason
    if reason in _NO_RUNTIME:
        runtime = server.service["spec"]["predictor"]["model"]["runtime"]
        yield worded(
            "serve.no-runtime",
            runtime=runtime,
            why=why,
            space=server.service["metadata"]["namespace"],
        )[0]
    elif reason and not server.pods:
        yield f"KServe does not start it: {why}."
    if server.pods:
        return
    why = diagnose.pod_creation_problem(
        server.events, LESS, "`recipe site RECIPE` generates what the namespace needs."
    )
    if why:
        yield f"No pod exists: {why}"
    elif unmade := [event for event in server.events if event["reason"] == "InternalError"]:
        yield f"KServe does not start it: {unmade[-1]['message']}"


def _pod(server: ServerState, pod: Manifest) -> Iterator[str]:
    where = f"`{pod['metadata']['name']}`"
    if pod["spec"].get("schedulingGates"):
        queue = jobs.queue_of(server.service)
        said = [*diagnose.queue_reasons(queue, entry_of(server.workloads, pod))]
        yield from said or [
            f"It waits for {f'the queue `{queue}`' if queue else 'a queue'} to admit it."
        ]
        return
    yield from diagnose.placing_problems(pod, server.events, where, LESS, datetime.now(UTC))
    for entry in (*jobs.containers_of(pod, before=True), *jobs.containers_of(pod)):
        serves = entry["name"] == server.container
        if serves:
            of_image = worded("serve.image-of-runtime")[0]
        else:
            of_image = worded("serve.image-of-model")[0]
        remedy = "`recipe site RECIPE` generates what it needs."
        yield from diagnose.container_problems(pod, entry, server.events, where, of_image, remedy)
        again = diagnose.restarts_note(entry)
        for ended in diagnose.failures_of(entry):
            if serves and ended.get("reason") == "OOMKilled":
                limit = diagnose.limit_of(pod, (server.container,))
                yield worded("serve.out-of-memory", where=where, again=again, limit=limit)[0]
            else:
                if serves:
                    who = where
                else:
                    who = f"{where}: `{entry['name']}`"
                if serves:
                    why = _meaning(server, pod)
                else:
                    why = ended.get("message", "")
                yield f"{who} ended with exit code {ended['exitCode']}{again}. {why}".strip()


def _meaning(server: ServerState, pod: Manifest) -> str:
    text = server.log_of(pod)
    spec = server.service["spec"]
    if server.alone:
        uri = spec["model"]["uri"]
    else:
        uri = spec["predictor"]["model"]["storageUri"]
    source = f"`{uri}`, with results of training in `{annotation(server.service, 'recipe-runner/run-dir')}`"
    diagnosis = troubles.diagnose(text, troubles.SERVER, source=source)
    if not diagnosis.trouble:
        diagnosis = troubles.diagnose(text, troubles.LOG)
    if diagnosis.meaning:
        return diagnosis.meaning
    last = diagnosis.error or troubles.last_line(text)
    if last:
        return f"The log says: {last}"
    return ""
