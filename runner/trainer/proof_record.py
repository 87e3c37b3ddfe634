"""What the proof has seen, as a file beside the results."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Literal

from runner.tools.files import Record
from runner.tools.run_files import PROOF

Kind = Literal["conversations", "text", "preferences", "images"]


@dataclass(frozen=True)
class Proof(Record):
    """What was judged of a stage's rows, and how it came out. Counts of tokens are of all training rows.

    kind: of the rows. rows: that the engine trains on; judged: of them, beside what the template writes, or of images those that are
    measured; batches: that its
    collator has made of them; padding: tokens that it has put in.
    trained, seen: tokens with and without a label; cut: tokens of the judged rows that the engine leaves out, and rows_cut of how
    many. joined: how rows stand in a batch: `padded`, `flattened` or `packed`; attention: the one that was judged, empty where no
    model was asked. logits_moved: the largest change of a row's logits when the row before it changes. loss_at_once,
    loss_accumulated: the first loss of eight rows in one batch, and in eight.
    asked: questions of the demo or of the evaluation that stand in the training rows. notes: what was not judged wholly, and why.
    faults: each with `kind` and `message`; none where all is well. shown: rows as `row`, `tokens` and `spans`, each the name
    `trained`, `seen` or `cut` and its tokens. seconds: that it took.
    """

    FILE = PROOF
    kind: str = ""
    rows: int = 0
    judged: int = 0
    batches: int = 0
    padding: int = 0
    trained: int = 0
    seen: int = 0
    cut: int = 0
    rows_cut: int = 0
    joined: str = ""
    attention: str = ""
    logits_moved: float | None = None
    loss_at_once: float | None = None
    loss_accumulated: float | None = None
    asked: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    faults: tuple[Mapping[str, str], ...] = ()
    shown: tuple[Mapping[str, Any], ...] = ()
    seconds: float = 0.0

    @property
    def summed(self) -> dict[str, Any]:
        """The proof for a run's summary, without the rows themselves."""
        return {name: value for name, value in asdict(self).items() if name != "shown"}

    @property
    def complaint(self) -> str:
        """What is wrong, for a person; empty where nothing is."""
        return "\n".join(fault["message"] for fault in self.faults)
