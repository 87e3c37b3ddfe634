"""Embedded data: a short-lived pod looks whether an image holds a recipe's rows, before a GPU is held for them."""

from collections.abc import Callable

from runner.data.report import asked
from runner.parts.openshift.client import Cluster, Manifest
from runner.parts.openshift.helper_pod import finished
from runner.parts.openshift.jobs import LOOK
from runner.plan import Plan, Stage
from runner.render import batch, code

Tell = Callable[[str], None]


def require(cluster: Cluster, plan: Plan, stage: Stage, contents: str, tell: Tell) -> None:
    """Raises Stop where the stage's image has no rows for it, or others than the recipe asks for now.

    contents: of its files as they are on this machine; empty where they are not here, and then they are not compared.
    """
    for line in finished(cluster, pod(plan, stage, contents), LOOK, tell):
        tell(line)


def pod(plan: Plan, stage: Stage, contents: str) -> Manifest:
    """The pod: the image of training, no GPU, no claim, and an hour, because the image may have to be fetched."""
    what = [plan.place.data_dir, asked(stage.data), contents, plan.name]
    command = ["python", "-m", "runner.entrypoints.embedded", *what]
    container = batch.small(plan, LOOK, command, [{"name": "tmp", "mountPath": "/tmp"}, *code.mounts(plan)])
    volumes = [{"name": "tmp", "emptyDir": {}}, *code.volumes(plan)]
    said = {"terminationMessagePolicy": "FallbackToLogsOnError"}
    return batch.alone(plan, stage, LOOK, container | said, volumes, seconds=3600)
