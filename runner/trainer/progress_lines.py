"""Progress: the lines of a training process's output that say how far it is; written there, read by whoever watches."""

import json
from collections.abc import Iterator, Mapping
from typing import Any

MARK = "[recipe] "
# What a bar says beside it, each for as long as it takes.
TRAINING, MEASURING, SAVING, ASKING = "training", "measuring", "saving", "asking"
_DECODER = json.JSONDecoder()


def write(facts: Mapping[str, Any]) -> str:
    """One event as a line of output."""
    return MARK + json.dumps(facts)


def phase(name: str) -> str:
    """The line that says what goes on now."""
    return write({"event": "phase", "phase": name})


def read(text: str) -> Iterator[dict[str, Any]]:
    """Every whole event in a piece of a log.

    Processes share one output, so a line may go on with what another one wrote, or be cut: what is no event is passed over.
    """
    for part in text.split(MARK)[1:]:
        try:
            event, _ = _DECODER.raw_decode(part)
        except ValueError:
            continue
        if isinstance(event, dict):
            yield event
