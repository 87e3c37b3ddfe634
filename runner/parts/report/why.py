"""Why: what has ended a run, or what a piece of a log tells, each in one sentence with its remedy."""

from collections.abc import Iterator
from pathlib import Path

from runner.catalog import troubles
from runner.parts.report import facts, sentences
from runner.run.run_folder import RunFolder
from runner.tools.problem import Stop

# Bytes of a log's end in which a reason is looked for: what eight processes leave of their traces, and more.
MOST = 1_000_000
NOTHING = "Nothing in it is known to stand in the way."


def of_text(text: str) -> Iterator[str]:
    """What a log, events or the description of a pod tell: what is wrong, and the line that says so."""
    found = troubles.find(text)
    if found:
        sentence = str(found)
        yield sentence[0].upper() + sentence[1:]
    else:
        yield NOTHING
    if line := found.line if found else troubles.last_error(text):
        yield f"It said: {line}"


def of_folder(folder: Path) -> Iterator[str]:
    """The same of all logs of a folder together, because one machine's may tell what another's waited for.

    Raises Stop where there is none.
    """
    logs = sorted(folder.rglob("*.log"))
    if not logs:
        raise Stop(
            f"`{folder}` is no run folder, and no log lies in it.",
            "Name a recipe, a run folder, or a file with a log.",
        )
    yield from of_text("\n".join(facts.end_of(log, MOST) for log in logs))


def of_run(run: RunFolder) -> Iterator[str]:
    """What has ended a run of this machine, or of plain ones; how far it came where nothing has."""
    try:
        told = facts.of(run)
    except Stop:
        yield from of_folder(run.path)  # made by an older version
        return
    yield from sentences.first(told)[:1]
    failed = told.failed
    if failed and (failed.stopped or failed.meaning):
        yield failed.stopped or failed.meaning
    elif told.state.fault:
        yield from told.state.fault.splitlines()
    elif failed:
        yield "Nobody has left a reason: it is still at work, or it was ended without a word (its machine, or a signal)."
    if failed and failed.said and not failed.stopped and failed.said not in told.state.fault:
        yield f"It said: {failed.said}"
