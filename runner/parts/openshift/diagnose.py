"""Why a job or a server does not start, or ended: sentences from events, pod status and logs."""

import re
from collections.abc import Callable, Iterator
from datetime import datetime
from functools import cache

from runner.catalog import hardware, troubles
from runner.catalog.tables import table
from runner.parts.jobs import kubernetes, podspec
from runner.parts.jobs.kubernetes import Manifest
from runner.parts.openshift import jobs
from runner.parts.openshift.client import Cluster, Manifests
from runner.parts.openshift.errors import TryAgain
from runner.parts.openshift.status import (
    FAILED,
    FINISHED,
    QUEUED,
    SUSPENDED,
    TAKEN,
    JobState,
    seconds,
    time_of_event,
)
from runner.recipe import units

# The end of a pod's log; after a restart, that of the container that failed.
LogOf = Callable[[Manifest], str]

# An event of a claim whose storage is being created, or waits for the machine of its first pod.
PROVISIONING = (
    "Provisioning",
    "ExternalProvisioning",
    "ProvisioningSucceeded",
    "WaitForFirstConsumer",
    "WaitForPodScheduled",
)
PROVISIONING_SECONDS = 180  # slow storage takes a minute or two
NAME_SECONDS = 120  # until every machine of a cluster resolves a new name
UNBOUND = "unbound immediate PersistentVolumeClaim"
NO_IMAGE = ("ImagePullBackOff", "ErrImagePull", "InvalidImageName")
# The last lines of a log that are searched for a reason: each of eight processes may leave a
# traceback.
TAIL = 2000
LESS = "`machines`"
BUILD = f"Build the image with `{kubernetes.build_command()}`, or correct `openshift.image`. {hardware.IMAGE_NEEDS}"
MORE_MEMORY = str(table("troubles")["main memory"]["remedy"])
_BACK_OFF = re.compile(r'Back-off pulling image "[^"]*"')
_PULLING = re.compile(
    r'\A(?:Back-off pulling image "[^"]*": )?(?:ErrImagePull: )?(?:Failed to pull image "[^"]*": )?'
)
_OF_MACHINE = re.compile(r"\AMachine (\d+) \(`[^`]*`\)(: .*)", re.DOTALL)
GONE = "Its pods are gone, with their logs. `recipe fetch RECIPE` downloads what it wrote to its claim."


def log_reader(cluster: Cluster, space: str, container: str) -> LogOf:
    """Reads the log of a container of that name; after a restart, the log of the run that
    failed."""

    @cache
    def end(pod: str, previous: bool) -> str:
        try:
            return cluster.log(space, pod, container, previous=previous, tailLines=TAIL) or ""
        except TryAgain:
            return ""  # of a machine that does not answer

    def read(pod: Manifest) -> str:
        before = any(
            _restarted(entry) for entry in jobs.containers_of(pod) if entry["name"] == container
        )
        return end(pod["metadata"]["name"], before)

    return read


def _restarted(entry: Manifest) -> bool:
    """Whether a container failed, and was then started again."""
    return bool(failures_of(entry)) and not jobs.termination_of(entry).get("exitCode")


def _meaning(message: str, place: str, otherwise: str, **details: str) -> str:
    """The meaning of a cluster's message by the table of troubles, else `otherwise`."""
    return str(troubles.find(message, place, said=message, **details) or otherwise)


def pod_creation_problem(events: Manifests, less: str, otherwise: str) -> str:
    """Why a pod was not created, by the latest such event; empty without one. less: the settings to
    reduce; otherwise: the remedy if the reason is unknown."""
    # In events of operators and ReplicaSets.
    refusals = ("FailedCreatePod", "FailedCreate")
    messages = (event["message"] for event in reversed(events) if event.get("reason") in refusals)
    message = next(messages, "")
    return message and _meaning(message, troubles.UNMADE, f"{message}. {otherwise}", less=less)


def queue_reasons(queue: str, workload: Manifest | None) -> Iterator[str]:
    """Why an entry of Kueue waits."""
    for condition in jobs.conditions_of(workload or {}):
        if condition["type"] == "QuotaReserved" and condition["status"] == "False":
            message = condition.get("message", "")
            yield _meaning(
                message, troubles.QUEUE, f"It waits in the queue `{queue}`: {message}", queue=queue
            )


def placing_problems(
    pod: Manifest, events: Manifests, where: str, less: str, now: datetime
) -> Iterator[str]:
    """Why no machine accepts a pod, or one has removed it. less: the settings to reduce; now: by
    the cluster's clock."""
    for condition in jobs.conditions_of(pod):
        message = condition.get("message", "")
        if condition["type"] == "PodScheduled" and condition["status"] == "False" and message:
            gpu = pod["spec"].get("nodeSelector", {}).get("nvidia.com/gpu.product", "")
            if "Insufficient nvidia.com/gpu" in message:
                busy = " All machines that have it are in use."
            else:
                busy = ""
            of_claims = []
            for event in events:
                if event["involvedObject"].get("kind") == "PersistentVolumeClaim":
                    of_claims.append(event)
            if UNBOUND in message and _is_provisioned(of_claims, pod, now):
                yield f"{where}: its claims are being created. This usually takes less than a minute."
                continue
            claims = f"They have no storage yet: {message}"
            if of_claims:
                latest = of_claims[-1]
                claims = f"Claim `{latest['involvedObject']['name']}`: {latest['message']}"
            details = {"gpu": gpu, "less": less, "busy": busy, "claims": claims.rstrip(".")}
            otherwise = f"no machine can take it: {message}"
            meaning = _meaning(message, troubles.PLACING, otherwise, **details)
            yield f"{where}: {meaning}"
    status = pod.get("status", {})
    reason = status.get("reason")
    if reason in ("Evicted", "Preempting", "NodeLost"):
        yield removal_message(where, reason, status.get("message", reason))


def _is_provisioned(of_claims: Manifests, pod: Manifest, now: datetime) -> bool:
    """Whether the storage of a pod's claims is being created, without any sign of a problem.
    of_claims: their events."""
    is_new = seconds(pod["metadata"].get("creationTimestamp"), now) < PROVISIONING_SECONDS
    return is_new and all(event.get("reason") in PROVISIONING for event in of_claims)


def removal_message(where: str, reason: str, message: str, removal_time: str = "") -> str:
    """Why a pod was removed from its machine. removal_time: if it is known."""
    explanation = troubles.find(f"{reason}: {message}", troubles.TAKEN, said=message)
    return f"{where} was removed from its machine{removal_time}: {explanation or message}"


def container_problems(
    pod: Manifest, entry: Manifest, events: Manifests, where: str, of_image: str, remedy: str
) -> Iterator[str]:
    """Why a container is not created: its image, a Secret, or a volume. of_image: the remedy for an
    image; remedy: for anything else that is missing."""
    waiting = entry.get("state", {}).get("waiting") or {}
    reason = waiting.get("reason", "")
    message = waiting.get("message") or waiting.get("reason", "")
    if reason in NO_IMAGE:
        # Every container of ours has the same image.
        image = entry.get("image") or pod["spec"]["containers"][0]["image"]
        message = _pull_error(message, pod, events)
        otherwise = f"the image `{image}` cannot be pulled: {message}. {of_image}"
        meaning = _meaning(message, troubles.IMAGE, otherwise, image=image, advice=of_image)
        yield f"{where}: {meaning}"
    elif reason == "CreateContainerConfigError":
        otherwise = f"something that it needs is missing: {message}. {remedy}"
        yield f"{where}: {_meaning(message, troubles.MISSING, otherwise)}"
    elif reason == "ContainerCreating":
        pod_events = [
            event
            for event in events
            if event["involvedObject"].get("uid") == pod["metadata"]["uid"]
        ]
        for event in [
            event
            for event in pod_events
            if event.get("reason") in ("FailedMount", "FailedAttachVolume")
        ][-1:]:
            message = event["message"]
            yield f"{where}: {_meaning(message, troubles.MOUNT, f'a volume cannot be attached: {message}')}"


def _pull_error(message: str, pod: Manifest, events: Manifests) -> str:
    """Why an image cannot be pulled, in the same words while the kubelet tries and while it waits
    to try again. Before Kubernetes 1.31, a kubelet that waits names no reason; the last event of
    the pod does."""
    pod_events = []
    for event in events:
        if event["involvedObject"].get("uid") == pod["metadata"].get("uid"):
            pod_events.append(event)
    failed = []
    for event in pod_events:
        if event.get("message", "").startswith("Failed to pull image"):
            failed.append(event["message"])
    if _BACK_OFF.fullmatch(message) and failed:
        message = failed[-1]
    return _PULLING.sub("", message).rstrip(".")


def failures_of(entry: Manifest) -> Manifests:
    """The failure of a container, at most one: the current one, else the last one."""
    terminations = [entry.get(part, {}).get("terminated") for part in ("state", "lastState")]
    return [end for end in terminations if end and end.get("exitCode")][:1]


def times(count: int) -> str:
    if count == 1:
        return "once"
    return f"{count} times"


def restarts_note(entry: Manifest) -> str:
    """How often a container was restarted, as the end of a sentence; empty if it was not."""
    if entry.get("restartCount"):
        return f", and was restarted ({times(entry['restartCount'])} so far)"
    return ""


def limit_of(pod: Manifest, containers: tuple[str, ...]) -> str:
    """The memory limit of the first container of these names, as the pod writes it."""
    worker = next(entry for entry in pod["spec"]["containers"] if entry["name"] in containers)
    return str(worker.get("resources", {}).get("limits", {}).get("memory", "?"))


def why(cluster: Cluster, state: JobState) -> list[str]:
    """A job's problems, by the logs of its pods too."""
    return reasons(
        state, log_reader(cluster, state.job["metadata"]["namespace"], jobs.container(state.job))
    )


def failed_machine(state: JobState, log_of: LogOf) -> int:
    """The machine whose log says most about a failure: the first that failed by itself, else
    machine 0."""
    failed = filter(_failed, state.pods)
    return min(
        ((_is_consequence(pod, log_of), jobs.node_number(pod)) for pod in failed),
        default=(False, 0),
    )[1]


def reasons(state: JobState, log_of: LogOf) -> list[str]:
    """A job's problems, the most important first."""
    if state.phase == FINISHED:
        return []
    problems = [*queue_reasons(jobs.queue_of(state.job), state.workload), *_missing_pods(state)]
    problems += _removed_pods(state)
    problems += _ended(state)
    for pod in sorted(_pods_to_explain(state), key=lambda pod: _is_consequence(pod, log_of)):
        problems += _pod(state, pod, log_of)
    if state.phase == FAILED and not state.pods:
        problems.append(GONE)
    if state.phase == SUSPENDED:
        problems.append(_suspension(state.job))
    if state.progress.hangs:
        ago = units.duration(state.progress.silent or 0.0)
        pace = units.speed(state.progress.pace or 0.0)
        problems.append(
            f"Its last step was {ago} ago, and a step takes {pace} s. It is hanging, or an evaluation is taking very long. `recipe logs RECIPE --node N` shows what each machine does. NCCL gives up after a while, and names the rank that was late. `recipe stop` and `recipe submit` continue from the last checkpoint."
        )
    if state.unread:
        problems.append(f"Its progress cannot be read now: {state.unread}")
    return _merged(problems)


def _removed_pods(state: JobState) -> Iterator[str]:
    """Why pods that no longer exist were removed from their machines by the cluster."""
    existing_uids = {pod["metadata"].get("uid") for pod in (*state.pods, *state.replaced)}
    for event in state.events:
        of = event["involvedObject"]
        if event.get("reason") in TAKEN and of.get("uid") not in existing_uids:
            removal_time = f" ({time_of_event(event)[:19]}Z)"
            yield removal_message(
                f"`{of['name']}`", event["reason"], event["message"], removal_time
            )


def _suspension(job: Manifest) -> str:
    """That a job is suspended, and the command that resumes it."""
    job_kind = job["kind"]
    if job_kind == "PyTorchJob":
        spec = '{"runPolicy": {"suspend": false}}'
    else:
        spec = '{"suspend": false}'
    meta = job["metadata"]
    return f"It is suspended, and no queue resumes it. To resume it: `oc patch {job_kind.lower()} {meta['name']} --namespace {meta['namespace']} --type merge --patch '{{\"spec\": {spec}}}'`."


def _merged(problems: list[str]) -> list[str]:
    """Each text once; one about several machines names their numbers, but not their pods."""
    numbers: dict[str, set[int]] = {}
    for match in filter(None, map(_OF_MACHINE.match, problems)):
        numbers.setdefault(match[2], set()).add(int(match[1]))

    def shared(match: re.Match[str]) -> str:
        machine_numbers = sorted(numbers[match[2]])
        if len(machine_numbers) > 1:
            return f"{troubles.numbered('Machine', machine_numbers)}{match[2]}"
        return match[0]

    return list(dict.fromkeys(_OF_MACHINE.sub(shared, text) for text in problems))


def _pods_to_explain(state: JobState) -> Manifests:
    """The pods to explain. Of a machine whose current pod has not failed, the last one that it has
    replaced as well."""
    replaced = {jobs.node_number(pod): pod for pod in state.replaced}  # the latest comes last
    for pod in state.pods:
        if _failed(pod):
            replaced.pop(jobs.node_number(pod), None)
    return [*replaced.values(), *state.pods]


def _is_consequence(pod: Manifest, log_of: LogOf) -> bool:
    """Whether another pod usually causes such a failure; that pod's problem is then reported
    first."""
    if _failed(pod):
        trouble = troubles.diagnose(log_of(pod)).trouble
    else:
        trouble = None
    return trouble is not None and trouble.trouble.follows


def _failed(pod: Manifest) -> bool:
    return any(
        failures_of(entry) for entry in jobs.containers_of(pod) if entry["name"] in jobs.WORKING
    )


def _missing_pods(state: JobState) -> Iterator[str]:
    """Why the operator has not created all pods; the job itself does not show that."""
    pod_count = len(state.pods)
    wanted = jobs.machines(state.job)
    if pod_count >= wanted or state.ended or state.phase in (QUEUED, SUSPENDED):
        return
    minutes = seconds(state.job["metadata"].get("creationTimestamp"), state.now) // 60
    reason = pod_creation_problem(
        state.events, LESS, "Render the recipe again with this version, and submit it again."
    )
    if reason and pod_count:
        yield f"Only {pod_count} of {wanted} pods exist: {reason}"
    elif reason:
        yield f"No pods exist: {reason}"
    elif minutes and not pod_count and not state.job.get("status"):
        job_kind = state.job["kind"]
        if job_kind == "Job":
            role = "controller"
            component = "the cluster's own for Jobs"
        else:
            role = "operator"
            component = "the training operator"
        yield f"No {role} has picked up the {job_kind} for {minutes:.0f} min; {component} may be down. Ask the cluster's admin whether it runs."


def _ended(state: JobState) -> Iterator[str]:
    failed_indexes = state.job.get("status", {}).get("failedIndexes")
    if failed_indexes:
        tries = state.job["spec"].get("backoffLimitPerIndex", 0) + 1
        yield f"Machine {failed_indexes} has failed {times(tries)}, and the others wait for it. Finished work is kept: submit again to do the rest."
        return
    for condition in jobs.conditions_of(state.job):
        if condition["type"] != "Failed" or condition["status"] != "True":
            continue
        if condition.get("reason") == "PodFailurePolicy":
            continue  # the pod has left the reason
        message = condition.get("message", "")
        explanation = troubles.find(f"{condition.get('reason', '')} {message}", troubles.ENDED)
        if explanation:
            yield str(explanation)
        elif message:
            yield f"The cluster reports: {message.rstrip('.')}."


def _pod(state: JobState, pod: Manifest, log_of: LogOf) -> Iterator[str]:
    if pod in state.replaced:
        before = ", since replaced"
    else:
        before = ""
    where = f"Machine {jobs.node_number(pod)} (`{pod['metadata']['name']}`{before})"
    yield from placing_problems(pod, state.events, where, LESS, state.now)
    remedy = "Submit the recipe again."
    for entry in jobs.containers_of(pod, before=True):
        # One that ended well may have failed before.
        if jobs.termination_of(entry).get("exitCode") == 0:
            continue
        if entry["name"] != podspec.CLONER:
            yield from _wait_for_master(state, entry, where)
            continue
        yield from container_problems(pod, entry, state.events, where, BUILD, remedy)
        for ended in failures_of(entry):
            message = ended.get("message", "").strip()
            report = ""
            if message:
                last_line = message.splitlines()[-1].strip()
                report = f" It reported: {last_line[:300].rstrip('.')}."
            failure = f"{where} could not clone its code.{report}"
            yield f"{failure} Check the address and commit in `image.code_from_git`, and whether the cluster's machines reach that server."
    for entry in jobs.containers_of(pod):
        if entry["name"] in jobs.WORKING:
            yield from container_problems(pod, entry, state.events, where, BUILD, remedy)
            for ended in failures_of(entry):
                end = _end_of_container(state, pod, entry, ended, log_of)
                yield f"{where} {end}"


def _wait_for_master(state: JobState, entry: Manifest, where: str) -> Iterator[str]:
    """The problems of the operator's init container in each worker, which waits until the master's
    name resolves."""
    waiting = entry.get("state", {}).get("waiting") or {}
    if waiting.get("reason") in NO_IMAGE:
        image = entry.get("image") or "the training operator's own"
        reason = waiting.get("message") or waiting["reason"]
        yield f"{where}: the image `{image}`, which waits for the master, cannot be pulled: {reason}. Ask the cluster's admin."
    elif "running" in entry.get("state", {}):
        master = next((pod for pod in state.pods if jobs.node_number(pod) == 0), None)
        if master is None or jobs.phase_of(master) == "Pending":
            yield f"{where} is waiting for the master, whose pod has not started."
        elif seconds(entry["state"]["running"].get("startedAt"), state.now) > NAME_SECONDS:
            yield (
                f"{where} is waiting for the master, although its pod has started: the cluster's DNS does not answer with "
                "its name yet. If this continues, ask the admin."
            )
    elif failures_of(entry):
        yield f"{where} gave up waiting for the master. Look at machine 0 first."


def _message_may_be_log(pod: Manifest, name: str) -> bool:
    """Whether the cluster shows the end of a container's log as its last message if it has written
    none."""
    return any(
        container["name"] == name
        and container.get("terminationMessagePolicy") == kubernetes.LAST_WORDS
        for container in pod["spec"]["containers"]
    )


def _end_of_container(
    state: JobState, pod: Manifest, entry: Manifest, ended: Manifest, log_of: LogOf
) -> str:
    """How a container ended, as the end of a sentence about its machine. ended: its failure."""
    if ended.get("reason") == "OOMKilled":
        return _memory_end(state, pod, entry)
    message = "\n".join(troubles.spoken(ended.get("message", "")))
    if message and not _message_may_be_log(pod, entry["name"]):
        # The program has written it: a gate's table, or the reason of a stage.
        separator = "\n" if "\n" in message else " "
        return f"ended{restarts_note(entry)}. It reported:{separator}{message}"
    code = f"ended with exit code {ended['exitCode']}{restarts_note(entry)}."
    explanation = _log_end(state, pod, entry, message, log_of)
    if explanation:
        return f"{code} {explanation}"
    return code


def _memory_end(state: JobState, pod: Manifest, entry: Manifest) -> str:
    """That a container used up its main memory, with its limit and the plan's estimate."""
    limit = limit_of(pod, jobs.WORKING)
    folders = [volume.get("emptyDir", {}) for volume in pod["spec"].get("volumes") or ()]
    in_memory = [folder for folder in folders if folder.get("medium") == "Memory"]
    if in_memory and in_memory[0].get("sizeLimit"):
        limit += f", {in_memory[0]['sizeLimit']} of it as shared memory"
    need = jobs.planned_figure(state.job, "memory")
    estimated = ""
    if need:
        estimated = f" `recipe plan` had estimated {need}."
    return f"used up its main memory{restarts_note(entry)}. Its limit was {limit}.{estimated} {MORE_MEMORY}"


def _log_end(state: JobState, pod: Manifest, entry: Manifest, message: str, log_of: LogOf) -> str:
    """Why a container ended, by its log, or by its end that the cluster shows as its message; empty
    if unknown."""
    text = log_of(pod) or message
    planned_memory = jobs.planned_figure(state.job, "gpu-memory")
    diagnosis = troubles.diagnose(text, plan=troubles.planned(planned_memory))
    if diagnosis.stop:
        return f"It stopped itself: {diagnosis.stop}"
    finding = diagnosis.trouble
    if finding is None:
        last = diagnosis.error or troubles.last_line(text)
        if last:
            return f"The log says: {last}".rstrip()
        if _restarted(entry) and not text:
            return "Its log is gone."
        return ""
    if finding.trouble.reads == "ranks":
        # Which rank was late takes the logs of all pods.
        all_logs = "\n".join(map(log_of, state.pods))
        if len(state.pods) == jobs.machines(state.job):
            world = str(jobs.gpus(state.job))
        else:
            world = ""
        finding = finding.trouble.found_in(all_logs, {"world_size": world}) or finding
    return finding.told(f"The log says: {finding.line}.")
