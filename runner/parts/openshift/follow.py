"""Follow: watches a job until it ends. A cluster that does not answer for a while is said and survived."""

from collections.abc import Callable

from runner.parts.openshift.client import Cluster
from runner.parts.openshift.diagnose import logs_of, reasons
from runner.parts.openshift.errors import TryAgain, pause
from runner.parts.openshift.jobs import Sent, machines
from runner.parts.openshift.status import FAILED, TRAINING, State, look
from runner.tools.problem import Stop

# Gets the state (None while the cluster cannot be reached) and what to say about it.
Show = Callable[[State | None, list[str]], None]


class Failed(Stop):
    """A job that was watched has failed. of_gate: whether it is a gate's, which then is closed."""

    def __init__(self, sent: Sent, why: list[str], hint: str) -> None:
        super().__init__(f"{sent.kind} `{sent.name}` failed. {' '.join(why)}", hint)
        self.of_gate = sent.of_gate


class Gone(Stop):
    """A job that was watched has been taken away by somebody."""


def follow(cluster: Cluster, sent: Sent, show: Show) -> State:
    """Shows a job's state until it ends; returns the last one.

    Raises Gone where the job is taken away, and Failed where it fails.
    """
    missing = 0
    while True:
        try:
            job = cluster.get(sent.kind, sent.namespace, sent.name)
            missing = missing + 1 if job is None else 0
            if missing > 2:
                raise Gone(f"{sent.kind} `{sent.name}` is not there any more; someone deleted it.", "Submit again.")
            if job is not None:
                state = look(cluster, job)
                why = reasons(state, logs_of(cluster, state))
                show(state, why)
                if state.phase == FAILED:
                    log = "recipe logs RECIPE" + ("" if sent.of_gate else f" --stage {sent.stage.name}")
                    again = " Submitting again tries again." if not (sent.of_gate or sent.stage.trains) else ""
                    hint = f"The log: `{log}`.{again}" if state.pods else again.strip()
                    raise Failed(sent, why, hint)
                if state.ended:
                    return state
        except TryAgain as silence:
            show(None, [f"{silence.text.splitlines()[0]} The job goes on; trying again."])
        pause()


def line(state: State) -> str:
    """A state in one line."""
    running = sum(pod.get("status", {}).get("phase") == "Running" for pod in state.pods)
    said = f"{running} of {machines(state.job)} machines run" if state.pods else "no machine yet"
    latest = state.progress.latest
    if state.phase != TRAINING or latest is None:
        return state.phase if state.ended else f"{state.phase}, {said}"
    loss = f", loss {latest['loss']:.3f}" if "loss" in latest else ""
    left = state.progress.seconds_left
    return f"step {latest['step']} of {latest['steps']}{loss}{'' if left is None else f', about {rest(left)} left'}"


def rest(seconds: float) -> str:
    """How much longer, in hours and minutes."""
    hours, minutes = divmod(round(seconds / 60), 60)
    return f"{hours} h {minutes} min" if hours else f"{max(1, minutes)} min"
