"""Embedded data: a short-lived pod looks whether an image holds a recipe's rows, before a GPU is held for them."""

from collections.abc import Callable
from pathlib import Path

from runner.data.report import PreparedRows, asked
from runner.parts.jobs import batch, code
from runner.parts.openshift.client import Cluster, Manifest
from runner.parts.openshift.helper_pod import finished
from runner.parts.openshift.jobs import LOOK
from runner.plan import Plan, Stage

Tell = Callable[[str], None]
REMEDY = "Write `openshift.data_from: claim`, and the cluster prepares them; or build the image with EMBED={name}."


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


def main(folder: str, expected: str, contents: str, name: str) -> int:
    """Whether the image that this process runs in holds a recipe's rows (`python -m runner.entrypoints.embedded`); 1 where not.

    folder: where they should lie; expected, contents: what they should have been made for, and from (`runner.data.report`;
    empty contents: that is not known); name: the recipe's.
    """
    rows = PreparedRows.read(Path(folder))
    as_asked = rows is not None and rows.asked == expected
    if rows is not None and as_asked and contents in ("", rows.contents):
        print(f"The image holds {rows.train_rows:,} rows for training and {rows.validation_rows:,} for validation.")
        return 0
    other = "from the data file as it was before it changed" if as_asked else "for other settings of `data`"
    what = "no rows of this recipe" if rows is None else f"rows that were made {other}"
    print(f"The image holds {what} in `{folder}`.", REMEDY.format(name=name), sep="\n")
    return 1
