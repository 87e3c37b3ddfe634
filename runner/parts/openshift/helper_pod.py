"""Helpers: short-lived pods that open a claim for `fetch` and `submit`, or examine an image for
`submit`."""

import json
import secrets
import signal
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import quote

from runner.data.prepared import ROOM, PreparedRows, asked, require_room
from runner.parts.jobs import batch, kubernetes, podspec
from runner.parts.openshift import jobs
from runner.parts.openshift.client import JSON, MANAGER, Cluster, address
from runner.parts.openshift.diagnose import reasons
from runner.parts.openshift.errors import Refused, TryAgain, is_temporary, patiently, pause
from runner.parts.openshift.file_server import (
    ALIVE,
    ALIVE_SECONDS,
    FULL,
    MISPLACED,
    PORT,
    WORD,
    WRITES,
)
from runner.parts.openshift.status import WAITING, JobState, events_about, seconds
from runner.plan import Plan, Stage
from runner.tools.problem import Stop, Tell

if TYPE_CHECKING:
    from urllib3 import BaseHTTPResponse

SHARE_PORT = 8080
PATIENCE_SECONDS = 600  # for a helper to start
LEFT_SECONDS = 1800  # the age of an ended or unstarted one that a killed command left behind


class Share(NamedTuple):
    """The files behind a helper."""

    cluster: Cluster
    base: str  # their address
    writes: bool = False  # files are sent, and not fetched

    def ask(
        self,
        path: str,
        body: object = None,
        content: str = JSON,
        headers: Mapping[str, str] | None = None,
        stream: bool = False,
    ) -> "BaseHTTPResponse":
        """One request, a POST if it has a body; the rest is as in `client.ApiRequest`. Raises
        TryAgain if the next one may be answered, else Stop."""
        method = "GET" if body is None else "POST"
        try:
            return self.cluster.request(
                method,
                f"{self.base}/{quote(path)}",
                body=body,
                content=content,
                headers=headers,
                stream=stream,
            )
        except Refused as refused:
            problem = self._problem(refused.message)
            if self.writes:
                verb = "create"
                again = "Submit again"
            else:
                verb = "get"
                again = "Fetch again"
            may_succeed = is_temporary(refused.status) or refused.status == MISPLACED
            if may_succeed and refused.status != FULL:
                raise TryAgain(problem, f"{again} in a moment.") from None
            remedy = f"{again}."
            if refused.status == 403:
                remedy = f"You need the right to `{verb}` `pods/proxy`. The role `recipe-user` of `recipe site` has it."
            raise Stop(problem, remedy) from None

    def _problem(self, reason: str) -> str:
        if self.writes:
            failure = "The data files cannot be sent"
        else:
            failure = "The files on the claim cannot be read"
        return f"{failure}: {reason}"

    def get(self, path: str, body: object = None) -> bytes:
        # The server behind the pod's port may need a moment more than the pod.
        return patiently(lambda: self.ask(path, body)).data

    def signed(self, path: str, body: object = None) -> dict[str, Any]:
        """The answer after blanks that keep the connection open. Raises Stop if the helper's disk
        refused."""
        answer: dict[str, Any] = json.loads(self.get(path, body))
        if "error" in answer:
            raise Stop(self._problem(answer["error"]))
        return answer


@contextmanager
def open_claim(
    cluster: Cluster, plan: Plan, stage: Stage, tell: Tell, folder: str, writes: bool = False
) -> Iterator[Share]:
    """The files in a folder of a claim, through a pod that is deleted in any case. plan: of the
    stage alone."""
    word = secrets.token_hex(16)
    with _create_pod(cluster, pod(plan, stage, word, folder, writes), tell) as created:
        started_pod = created.waited(
            "could open the claim", "Run the command again.", until_ready=True
        )
        if not jobs.has_condition(started_pod, "Ready"):
            container = jobs.SEND if writes else jobs.FETCH
            log = cluster.log(created.space, created.name, container, tailLines=5) or ""
            reason = log.strip()
            if not reason:
                reason = " ".join(created.why(started_pod)) or "the helper pod ended at once"
            raise Stop(f"The claim cannot be read: {reason}")
        share = Share(
            cluster.once(),
            f"{address('Pod', created.space, created.name)}:{SHARE_PORT}/proxy/{word}",
            writes,
        )
        with _kept_alive(share):
            yield share


@contextmanager
def _kept_alive(share: Share) -> Iterator[None]:
    """Tells the helper that this command still runs, also while it hashes a large file. A killed
    command tells nothing, and its helper ends soon."""
    is_over = threading.Event()

    def tell() -> None:
        while not is_over.wait(ALIVE_SECONDS):
            # The command itself reports a cluster that does not answer.
            with suppress(Stop):
                share.ask(ALIVE)

    threading.Thread(target=tell, daemon=True).start()
    try:
        yield
    finally:
        is_over.set()


def run_to_end(
    cluster: Cluster, manifest: kubernetes.Manifest, container: str, tell: Tell
) -> list[str]:
    """Runs a pod to its end, deletes it in any case, and returns its log. Raises Stop if it fails
    or does not start."""
    with _create_pod(cluster, manifest, tell) as created:
        ended_pod = created.waited("was done", "Try again.")
        log = (cluster.log(created.space, created.name, container) or "").strip()
        if jobs.phase_of(ended_pod) == "Failed":
            raise Stop(
                log
                or " ".join(created.why(ended_pod))
                or f"Pod `{created.name}` failed without a message."
            )
        return log.splitlines()


# What ends a command from outside: `kill`, and a terminal that is closed, which Windows tells with
# a signal of its own.
if sys.platform == "win32":
    ENDING = (signal.SIGTERM, signal.SIGBREAK)
else:
    ENDING = (signal.SIGTERM, signal.SIGHUP)


@contextmanager
def _create_pod(cluster: Cluster, manifest: kubernetes.Manifest, tell: Tell) -> Iterator["_Helper"]:
    """A pod of this command alone, which is deleted at the end of the block, also after a
    signal."""
    meta = dict(manifest["metadata"])
    meta["name"] += f"-{secrets.token_hex(4)}"
    created = _Helper(cluster, meta["namespace"], meta["name"], tell)
    volumes = manifest["spec"]["volumes"]
    claims = []
    for volume in volumes:
        if "persistentVolumeClaim" in volume:
            claims.append(volume["persistentVolumeClaim"]["claimName"])
    for claim in claims:
        if cluster.get("PersistentVolumeClaim", created.space, claim) is None:
            cluster.require_namespace(created.space)
            raise Stop(
                f"The namespace `{created.space}` has no claim `{claim}`.",
                "Send the recipe with `recipe submit`. Or correct `openshift.namespace` or `openshift.claims`.",
            )
    with _interrupted_by(*ENDING):
        try:
            cluster.create({**manifest, "metadata": meta})
            if claims:
                tell(f"Pod `{created.name}` mounts the claim")
            else:
                tell(f"Pod `{created.name}` examines the image")
            created.clear(meta["labels"][jobs.PART])
            yield created
        finally:
            try:
                cluster.delete("Pod", created.space, created.name, grace_seconds=0)
            except Stop as refusal:
                tell(
                    f"Pod `{created.name}` could not be deleted; it ends by itself. {refusal.text.splitlines()[0]}"
                )


@contextmanager
def _interrupted_by(*numbers: signal.Signals) -> Iterator[None]:
    """These signals act like ^C, except those with another handler, for example under `nohup`."""
    ours = []
    if threading.current_thread() is threading.main_thread():
        ours = [number for number in numbers if signal.getsignal(number) is signal.SIG_DFL]
    for number in ours:
        signal.signal(number, signal.default_int_handler)
    try:
        yield
    finally:
        for number in ours:
            signal.signal(number, signal.SIG_DFL)


class _Helper(NamedTuple):
    """A helper on the cluster."""

    cluster: Cluster
    space: str  # its namespace
    name: str
    tell: Tell  # prints what it waits for

    def clear(self, part: str) -> None:
        """Deletes pods of this kind that killed commands left: ended or unstarted long ago, by the
        cluster's clock."""
        labels = {"app.kubernetes.io/managed-by": MANAGER, jobs.PART: part}
        for pod in self.cluster.list("Pod", self.space, labels):
            if jobs.phase_of(pod) == "Running":
                continue
            meta = pod["metadata"]
            since = meta["creationTimestamp"]
            for entry in jobs.containers_of(pod):
                since = max(since, jobs.termination_of(entry).get("finishedAt") or "")
            if seconds(since, self.cluster.now()) > LEFT_SECONDS:
                self.cluster.delete("Pod", self.space, meta["name"], meta["uid"], grace_seconds=0)

    def waited(self, before: str, remedy: str, until_ready: bool = False) -> kubernetes.Manifest:
        """The pod, once it has ended or, if asked, is ready; reports what it waits for. Raises Stop
        if deleted, or late."""
        deadline = time.monotonic() + PATIENCE_SECONDS
        reported: set[str] = set()
        while True:
            pod = self.cluster.get("Pod", self.space, self.name)
            if pod is None:
                raise Stop(f"Pod `{self.name}` was deleted before it {before}.", remedy)
            if jobs.phase_of(pod) in ("Failed", "Succeeded") or (
                until_ready and jobs.has_condition(pod, "Ready")
            ):
                return pod
            if jobs.phase_of(pod) == "Pending":
                for reason in (current_reasons := self.why(pod)):
                    if reason not in reported:
                        self.tell(f"  {reason}")
                reported.update(current_reasons)
                if time.monotonic() > deadline:
                    raise Stop(
                        f"Pod `{self.name}` does not start. {' '.join(current_reasons)}",
                        "Try again later. A claim for one machine is free when the job has ended.",
                    )
            pause()

    def why(self, pod: kubernetes.Manifest) -> list[str]:
        """Why the helper does not start, or ended, by its pod and its events."""
        job = {"kind": "Pod", "metadata": {"name": self.name, "namespace": self.space}, "spec": {}}
        events = events_about(self.cluster, [pod], lambda _: False)
        return reasons(JobState(WAITING, job, [pod], events), lambda _pod: "")


def pod(
    plan: Plan, stage: Stage, word: str, folder: str, writes: bool = False
) -> kubernetes.Manifest:
    """The helper: the claims, read-only unless it writes, our file server on a folder, and an end
    after four hours. plan: of the stage alone, which names the pod."""
    part = jobs.SEND if writes else jobs.FETCH
    command = ["python", "-m", "runner.parts.openshift.file_server", folder]
    if writes:
        command.append(WRITES)
    folders = podspec.claims(plan, read_only=not writes)
    env = {WORD: word, PORT: str(SHARE_PORT)}
    return batch.alone(
        plan,
        stage,
        part,
        command,
        folders,
        seconds=4 * 3600,
        env=env,
        ports=[{"containerPort": SHARE_PORT}],
        readinessProbe={"tcpSocket": {"port": SHARE_PORT}, "periodSeconds": 2},
    )


def require_rows(cluster: Cluster, plan: Plan, stage: Stage, contents: str, tell: Tell) -> None:
    """Raises Stop if the stage's image has no rows for it, or rows for another recipe or other
    files. contents: the hash of the files on this machine; empty if they are not here, and then
    they are not compared."""
    for line in run_to_end(cluster, image_check_pod(plan, stage, contents), jobs.LOOK, tell):
        tell(line)


def image_check_pod(plan: Plan, stage: Stage, files_hash: str) -> kubernetes.Manifest:
    """The pod that checks whether the image of training contains this stage's prepared rows: of the
    same settings and files, and short enough for the GPUs. It runs `examine_image`. It needs no
    GPU, and no claim, because the rows are in the image; it has an hour, because the image may have
    to be pulled. files_hash: of the data files on this machine; empty: not compared."""
    rows_folder = plan.place.data_dir
    arguments = [rows_folder, asked(stage.data), files_hash, plan.name]
    room = {}
    if ROOM in stage.env:  # `require_room` reads it in the pod
        room = {ROOM: stage.env[ROOM]}
    command = ["python", "-m", "runner.parts.openshift.helper_pod", *arguments]
    return batch.alone(
        plan,
        stage,
        jobs.LOOK,
        command,
        [],
        seconds=3600,
        env=room,
        terminationMessagePolicy=kubernetes.LAST_WORDS,
    )


def examine_image(folder: str, expected: str, contents: str, name: str) -> int:
    """Checks whether the image of this process has a recipe's rows, and the GPUs have room for them
    (`python -m runner.parts.openshift.helper_pod`); 1 if not. folder: of the rows; expected,
    contents: their settings and files (`runner.data.prepared`; empty contents: unknown); name: the
    recipe's."""
    rows = PreparedRows.read(Path(folder))
    as_asked = rows is not None and rows.asked == expected
    if rows is not None and as_asked and contents in ("", rows.contents):
        print(
            f"The image contains {rows.train_rows:,} rows for training and {rows.validation_rows:,} for validation."
        )
        try:
            require_room(Path(folder))
        except Stop as stop:
            print(stop.text)
            return 1
        return 0
    if as_asked:
        origin = "from the data file before it changed"
    else:
        origin = "for other settings of `data`"
    if rows is None:
        description = "no rows of this recipe"
    else:
        description = f"rows that were made {origin}"
    print(
        f"The image contains {description} in `{folder}`.",
        f"Write `openshift.data_from: claim` to prepare them on the cluster; or build the image with EMBED={name}.",
        sep="\n",
    )
    return 1


if __name__ == "__main__":
    sys.exit(examine_image(*sys.argv[1:]))
