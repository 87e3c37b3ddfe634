"""`python -m runner.parts.openshift.controller PLAN …`: stage after stage and gate after gate without a person, in a pod of the cluster.

Each step is that of `recipe submit`, which finds on the cluster how far all is: so a pod that has died goes on where the
one before it stood, and what somebody else has sent meanwhile is found there.
"""

import sys

from runner.entrypoints import stage as entry
from runner.parts.openshift import driver_job, in_pod, pipeline, submit
from runner.parts.openshift.client import Cluster
from runner.parts.openshift.errors import TryAgain, pause
from runner.parts.openshift.follow import Failed
from runner.parts.openshift.pipeline import Milestone
from runner.parts.openshift.submit import Tell
from runner.parts.openshift.upload import Files
from runner.plan import Plan
from runner.tools.problem import Stop


def walk(
    cluster: Cluster,
    plan: Plan,
    target: str | None,
    files_key: str,
    tell: Tell,
    stage: str | None = None,
    of_gate: bool = False,
) -> Milestone | None:
    """Sends what comes next and waits for it, until all is done, or the stage of that name, or the gate after it; gives that
    milestone, None for all. files_key: of the data files that lie on the claim.

    Raises Stop with why it goes no further: a gate is closed, a stage has failed, the cluster refuses something.
    """
    alone = submit.Sending(tell, _nobody, target, files=Files("", {}, {}, sent=files_key), alone=True)
    while True:
        try:
            for milestone in pipeline.milestones(cluster, plan, files_key):
                if milestone.done and (milestone.stage.name, milestone.of_gate) == (stage, of_gate):
                    return milestone
            what = submit.step(cluster, plan, None, alone)
            if what is None:
                return None
            submit.wait(cluster, what, tell)
        except Failed as failed:
            # What a closed gate has to say comes with the next step, unless a person has overruled it since.
            if not failed.of_gate:
                raise
        except TryAgain as silence:
            tell(f"{silence.text.splitlines()[0]} Trying again.")
            pause()


def _nobody(question: str) -> bool:
    """The answer to what only a person may decide."""
    raise Stop(
        question.replace("End it and start anew?", "It was not ended."), "`recipe submit RECIPE --all` asks you."
    )


def main(arguments: list[str]) -> int:
    program = in_pod.Program("runner.parts.openshift.controller")
    program.parser.add_argument("--target")
    program.parser.add_argument("--files", default="")
    given = program.begin(arguments)
    try:
        cluster, plan = in_pod.opened(given)
        walk(cluster, plan, given.target, given.files, say)
    except Stop as stop:
        print(stop.text, file=sys.stderr, flush=True)
        entry.leave(stop.text)
        return driver_job.DECIDED
    entry.leave(f"All of `{plan.name}` is done.")
    return 0


def say(line: str) -> None:
    print(line, flush=True)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
