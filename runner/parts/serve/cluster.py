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
from runner.tools.problem import Stop, Tell, listed
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
    owner: Owner,
    confirm: Confirm,
    port: int,
    dry_run: bool,
) -> None:
    """Sends the server of the first plan, which has the adapters of the others too, waits until it
    answers, and forwards `port` of this machine to an InferenceService until ^C, or tells the
    address of an LLMInferenceService; the server continues. An identical server is not sent again.
    `confirm` is asked before another person's server is replaced. port: 0 for any; owner:
    of what is sent. Raises Stop if a model is not trained yet, the cluster refuses anything, or the
    server cannot start."""
    server.kind = kind_of(cluster, plans[0], server, tell)
    manifests = objects(cluster, plans, server, tell)
    if dry_run:
        for manifest in manifests:
            cluster.apply(manifest, dry_run=True)
            tell(f"The cluster would accept {manifest['kind']} `{manifest['metadata']['name']}`.")
        return
    model_names = listed(server.models, "or")
    alone = server.kind == LLM
    if not alone:
        free_port(port)
    send(cluster, manifests, tell, owner, confirm)
    state = wait(cluster, manifests[-1], tell)
    if alone:
        tell(
            f"The server answers at {state.address}/v1, with the model name {model_names} and a token: `oc whoami -t`."
        )
        return tell(REMOVING)

    def connected(local: int) -> None:
        tell(
            f"The server answers at http://{HOST}:{local}/v1, with the model name {model_names}. ^C ends the connection; the server continues."
        )
        tell(REMOVING)

    def answering() -> str:
        return _ready(_pods(cluster, manifests[-1])) or str(
            state.ready
        )  # another pod may have replaced it

    client.forward(cluster, plans[0].site.namespace, answering, kserve.PORT, port, connected)


def kind_of(cluster: Cluster, plan: Plan, server: Serving, tell: Tell) -> str:
    """The kind of a server: the recipe's, or that of the server which is there, or for several
    adapters the one that the cluster offers. Raises Stop if it is there in another kind."""
    existing = [manifest for manifest in _ours(cluster, plan) if manifest["kind"] != RUNTIME]
    existing_kind = existing[0]["kind"] if existing else None
    server_kind = server.kind
    if server_kind is None:
        if existing_kind:
            offered = existing_kind == LLM
        else:
            several = len(server.source.adapters) > 1
            offered = several and cluster.knows(LLM, plan.site.namespace, usable=True)
        if offered and server.declarable:
            server_kind = LLM
        else:
            server_kind = SERVICE
        if offered and server_kind == SERVICE:
            tell(
                "The server is an InferenceService, because two of its models are on one claim. An LLMInferenceService needs one for each."
            )
    if existing_kind and existing_kind != server_kind:
        message = (
            f"The server of this recipe is the {title_of(existing[0])}, and it would become an {server_kind}.",
            f"`recipe serve RECIPE --stop` removes it; then start it again. Or write `kind: {existing_kind}` under `serve`.",
        )
        raise Stop(*message)
    return server_kind


def stop(cluster: Cluster, plan: Plan, tell: Tell, owner: Owner, confirm: Confirm) -> None:
    """Removes the server of a plan, and its own runtime. `confirm` is asked before another person's
    is removed."""
    manifests = _ours(cluster, plan)
    if not manifests:
        cluster.require_namespace(plan.site.namespace)
        return tell(f"`{plan.site.namespace}` has no server of `{plan.name}`.")
    require_consent(
        manifests[0], owner, confirm
    )  # one question is enough for a server and its runtime
    for manifest in manifests:
        jobs.delete(cluster, manifest, [], tell)
        tell(f"{title_of(manifest)} removed.")


def objects(cluster: Cluster, plans: Plans, server: Serving, tell: Tell) -> list[Manifest]:
    """The objects of `recipe render`, the server last, annotated with the training jobs of its
    models. Raises Stop if a model is not trained yet, or its gate is closed."""
    jobs_of_models: list[str] = []
    if server.source.results:
        for plan in plans:
            uid = _trained_by(cluster, plan, tell)
            if uid:
                jobs_of_models.append(uid)
    runtime = kserve.runtime(plans[0], server)
    service = kserve.service(plans[0], server, ",".join(jobs_of_models))
    if runtime:
        return [runtime, service]
    return [service]


def _trained_by(cluster: Cluster, plan: Plan, tell: Tell) -> str:
    """The uid of the job that trained the model; empty if the job is gone. Raises Stop if it is
    running or has failed, or if its gate is not open: the model would be incomplete, or not good
    enough."""
    training, *gates = (
        milestone
        for milestone in pipeline.milestones(cluster, plan)
        if milestone.stage.name == plan.stages[-1].name
    )
    for milestone in (training, *gates):
        if milestone.at_work and not (milestone.job and is_being_deleted(milestone.job)):
            raise Stop(
                f"{milestone.title} is still running, so there is no finished model yet.",
                "`recipe status` shows its progress.",
            )
        if milestone.state == FAILED:
            if milestone.of_gate:
                raise Stop(
                    f"The model is not served. {pipeline.closed_gate_message(cluster, milestone)}"
                )
            raise Stop(
                f"{milestone.title} has failed, so there is no finished model.",
                "`recipe status` explains why.",
            )
    if training.state == pipeline.LOST:
        raise Stop(
            f"{training.title} is {training.state}; its model is gone.",
            "`recipe submit` trains it again.",
        )
    if gates and not gates[0].done:
        raise Stop(
            f"{gates[0].title} is {gates[0].state}, and the model is served once it is open.",
            "`recipe submit` sends what is missing.",
        )
    if not training.done:
        where = plan.place_of(training.stage).run_dir
        tell(f"{training.title} is {training.state}; the server uses the model in {where}.")
    if training.job and not is_being_deleted(training.job):
        return str(training.job["metadata"]["uid"])
    return ""


def _ours(cluster: Cluster, plan: Plan) -> list[Manifest]:
    """The server and the runtime of a plan on the cluster. Raises Stop if one of them is another
    recipe's."""
    space = plan.site.namespace
    name = kubernetes.job_name(plan)
    by_kind = {
        SERVICE: cluster.get(SERVICE, space, name),
        LLM: cluster.get(LLM, space, name, forgiving=True),
        RUNTIME: cluster.get(RUNTIME, space, kserve.own_runtime(plan)),
    }
    own_manifests = []
    for manifest_kind, manifest in by_kind.items():
        if manifest:
            own_manifests.append(jobs.require_own({"kind": manifest_kind, **manifest}, plan.name))
    return own_manifests


def send(
    cluster: Cluster, manifests: list[Manifest], tell: Tell, owner: Owner, confirm: Confirm
) -> None:
    """Sends what is missing or different, with its owner's marks. Raises Stop, with nothing sent,
    after a refusal."""
    service = manifests[-1]
    existing = _existing(cluster, service, tell)
    if existing and _same(existing, service):
        tell(
            f"{title_of(service)} already exists, made from this recipe as it is now. Nothing changes."
        )
        whose = Owner.of(existing)
        if whose not in (Owner(), owner):
            tell(str(whose))
        return
    for manifest in manifests:
        cluster.apply(manifest, dry_run=True)
    if existing and Owner.of(existing) != owner:
        require_consent(existing, owner, confirm, replaces=True)
    if existing and existing["kind"] == LLM:
        # Its Deployment would need a second machine beside the first, and wait for it.
        jobs.delete(cluster, existing, [], tell)
        existing = None
    remark = "; the old one continues." if existing else "."
    with accounted(lambda _: f"{title_of(service)} was not sent{remark}"):
        for manifest in map(owner.signed, manifests):
            # Another person may have sent one in the meantime.
            if existing or manifest["kind"] != service["kind"]:
                cluster.apply(manifest)
            elif not cluster.create(manifest):
                raise Stop(
                    f"Someone else sent {title_of(service)} a moment ago.", "Run the command again."
                )
            tell(f"Sent {title_of(manifest)} to `{service['metadata']['namespace']}`")


def _existing(cluster: Cluster, service: Manifest, tell: Tell) -> Manifest | None:
    """The object of that kind and name on the cluster; None if there is none, or once a deleted one
    is gone."""
    meta = service["metadata"]
    existing = cluster.get(service["kind"], meta["namespace"], meta["name"])
    if not existing:
        return None
    existing = {"kind": service["kind"], **existing}
    if not is_being_deleted(existing):
        return existing
    tell(f"The old {service['kind']} `{meta['name']}` is being deleted. Waiting until it is gone.")
    jobs.wait_until_gone(cluster, existing, tell)
    return None


def _same(existing: Manifest, wanted: Manifest) -> bool:
    return all(
        annotation(existing, name) == annotation(wanted, name)
        for name in (kserve.CONTENT, kserve.TRAINED_BY)
    )


def wait(cluster: Cluster, service: Manifest, tell: Tell) -> ServerState:
    """The state of the server once a pod answers. Raises Stop if the server is deleted or changed,
    or can never start."""
    tell(
        "Waiting until it is ready. ^C leaves the server running; the same command waits for it again."
    )
    cluster = cluster.once()
    service_kind = service["kind"]
    meta = service["metadata"]
    missing = 0
    printed_lines = list[str]()
    while True:
        lines: list[str] = []
        try:
            existing = cluster.get(service_kind, meta["namespace"], meta["name"])
            missing = missing + 1 if existing is None else 0
            if missing > 2:
                raise Stop(
                    f"{service_kind} `{meta['name']}` no longer exists; someone deleted it.",
                    "Start it again.",
                )
            if existing is not None:
                if is_being_deleted(existing):
                    raise Stop(
                        f"{service_kind} `{meta['name']}` is being deleted; someone has stopped it.",
                        "Start it again when it is gone.",
                    )
                if not _same(existing, service):
                    raise Stop(
                        f"{service_kind} `{meta['name']}` was changed meanwhile, and now serves another version of the recipe. {Owner.of(existing)}"
                    )
                state = look(cluster, existing)
                if state.ready:
                    return state
                lines = [state.phase, *reasons(state)]
                if state.hopeless:
                    reason = " ".join(lines[1:]) or f"It ended {state.restarts} times."
                    raise Stop(f"The server does not start. {reason}", REMOVING)
        except TryAgain as silence:
            lines = [f"{silence.text.splitlines()[0]} The server continues; trying again."]
        for line in lines:
            if line not in printed_lines:
                tell(f"  {line}")
        printed_lines = lines or printed_lines
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
        subject = event["involvedObject"]
        if subject.get("kind") not in ("Deployment", "ReplicaSet"):
            return False
        return bool(subject.get("name", "").startswith(f"{name}{form['deployment']}"))

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
    for pod in pods:
        if jobs.has_condition(pod, "Ready"):
            return str(pod["metadata"]["name"])
    return None


LESS = "`serve.gpus` or `serve.concurrency`"
TRIES = 3  # after this many exits, a slow disk or network is not the reason
# KServe's reasons if it does not find a runtime, or must not use it.
_UNMERGED = (
    ("PresetsCombined", "False"),
)  # an LLMInferenceService that does not go with the platform's template
_NO_RUNTIME = ("RuntimeNotRecognized", "NoSupportingRuntime", "RuntimeDisabled")


@dataclass
class ServerState:
    """A server on the cluster."""

    service: Manifest  # its object
    pods: Manifests  # its own
    events: Manifests = field(default_factory=list)  # warnings about them
    workloads: Manifests = field(default_factory=list)  # Kueue's of the namespace
    # The end of a pod's log, of its last failed try if it was restarted.
    log_of: diagnose.LogOf = lambda _pod: ""

    @property
    def alone(self) -> bool:
        """Whether it is an LLMInferenceService, which needs no runtime."""
        return bool(self.service["kind"] == LLM)

    @property
    def container(self) -> str:
        return str(FORMS[self.service["kind"]]["container"])

    @property
    def _status(self) -> Manifest:
        return self.service.get("status") or {}

    @property
    def _model_status(self) -> Manifest:
        return self._status.get("modelStatus") or {}

    @property
    def address(self) -> str:
        """That of an LLMInferenceService at the gateway; empty if it has none yet."""
        urls = (address["url"] for address in self._status.get("addresses") or ())
        return str(self._status.get("url") or next(urls, "")).rstrip("/")

    @property
    def failure(self) -> Manifest:
        """KServe's last reason for not serving the model."""
        failure: Manifest = self._model_status.get("lastFailureInfo") or {}
        if failure:
            return failure
        for condition in jobs.conditions_of(self.service):
            if (condition["type"], condition["status"]) in _UNMERGED:
                return condition
        return {}

    @property
    def _entries(self) -> Manifests:
        """The status of the server's container in each pod."""
        entries = []
        for pod in self.pods:
            for entry in jobs.containers_of(pod):
                if entry["name"] == self.container:
                    entries.append(entry)
        return entries

    @property
    def restarts(self) -> int:
        return max((entry.get("restartCount", 0) for entry in self._entries), default=0)

    @property
    def hopeless(self) -> bool:
        """Whether waiting changes nothing, because KServe refuses the object, or vLLM exits again
        and again."""
        return (
            self.failure.get("reason") in _NO_RUNTIME
            or self._model_status.get("transitionStatus") == "InvalidSpec"
            or self.restarts >= TRIES
        )

    @property
    def ready(self) -> str | None:
        """The first pod that answers, of an LLMInferenceService once the gateway leads to it."""
        if self.alone and not (jobs.has_condition(self.service, "Ready") and self.address):
            return None
        return _ready(self.pods)

    @property
    def phase(self) -> str:
        conditions = []
        for pod in self.pods:
            for condition in jobs.conditions_of(pod):
                conditions.append((condition["type"], condition["status"]))
        if not self.pods:
            return "no pod yet"
        if any(pod["spec"].get("schedulingGates") for pod in self.pods):
            return "queued"
        if ("PodScheduled", "False") in conditions:
            return "waiting for a machine"
        if self.alone and _ready(self.pods):
            return "waiting for the gateway"
        if any("running" in entry.get("state", {}) for entry in self._entries):
            return "loading the model"
        if self.restarts:
            return "restarted"
        return "pulling the image"


def reasons(server: ServerState) -> list[str]:
    """The reasons why a server does not answer, the most specific first; empty if nothing is
    wrong."""
    lines = list(_refused(server))
    for pod in server.pods:
        lines += _pod(server, pod)
    return list(dict.fromkeys(lines))


def _refused(server: ServerState) -> Iterator[str]:
    """Refusals by KServe, and why the Deployment could not create a pod, which only its
    ReplicaSet's events show."""
    if server.alone and _ready(server.pods):
        for condition in jobs.conditions_of(server.service):
            if condition["status"] == "False" and condition.get("message"):
                yield f"{condition['type']}: {condition['message']}"
    reason = server.failure.get("reason", "")
    message = str(server.failure.get("message", "")).rstrip(".") or reason
    if reason in _NO_RUNTIME:
        runtime = server.service["spec"]["predictor"]["model"]["runtime"]
        space_text = server.service["metadata"]["namespace"]
        yield f"The platform does not have the serving runtime `{runtime}`: {message}. To create it in `{space_text}`: `oc process -n redhat-ods-applications {runtime}-template | oc apply -n {space_text} -f -`. Or write another `serve.runtime`, or a `serve.image`."
    elif reason and not server.pods:
        yield f"KServe does not start it: {message}."
    if server.pods:
        return
    no_pod = diagnose.pod_creation_problem(
        server.events, LESS, "`recipe site RECIPE` generates what the namespace needs."
    )
    internal_errors = [event for event in server.events if event["reason"] == "InternalError"]
    if no_pod:
        yield f"No pod exists: {no_pod}"
    elif internal_errors:
        yield f"KServe does not start it: {internal_errors[-1]['message']}"


def _pod(server: ServerState, pod: Manifest) -> Iterator[str]:
    where = f"`{pod['metadata']['name']}`"
    if pod["spec"].get("schedulingGates"):
        queue = jobs.queue_of(server.service)
        lines = list(diagnose.queue_reasons(queue, entry_of(server.workloads, pod)))
        if lines:
            yield from lines
        else:
            queue_name = f"the queue `{queue}`" if queue else "a queue"
            yield f"It waits for {queue_name} to admit it."
        return
    yield from diagnose.placing_problems(pod, server.events, where, LESS, datetime.now(UTC))
    for entry in (*jobs.containers_of(pod, before=True), *jobs.containers_of(pod)):
        serves = entry["name"] == server.container
        if serves:
            of_image = "This image belongs to the serving runtime: correct `serve.image`, or ask the cluster's admin."
        else:
            of_image = (
                "If the model is there, correct `serve.model`; otherwise ask the cluster's admin."
            )
        remedy = "`recipe site RECIPE` generates what it needs."
        yield from diagnose.container_problems(pod, entry, server.events, where, of_image, remedy)
        again = diagnose.restarts_note(entry)
        for ended in diagnose.failures_of(entry):
            if serves and ended.get("reason") == "OOMKilled":
                limit = diagnose.limit_of(pod, (server.container,))
                yield f"{where} used up its main memory{again}. Its limit was {limit}, which follows from `machines.memory`. Use machines with more."
                continue
            if serves:
                subject = where
                reason = _meaning(server, pod)
            else:
                subject = f"{where}: `{entry['name']}`"
                reason = ended.get("message", "")
            yield f"{subject} ended with exit code {ended['exitCode']}{again}. {reason}".strip()


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
