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
    """What was judged of a stage's rows, and the result. Counts of tokens are of all training rows."""

    FILE = PROOF
    # Of the rows.
    kind: str = ""
    # The rows that the engine trains on.
    rows: int = 0
    # The rows that were compared with what the template writes; of images, those that were measured.
    judged: int = 0
    # The batches that the engine's collator made of the judged rows, and the tokens of padding in them.
    batches: int = 0
    padding: int = 0
    # Tokens with and without a label.
    trained: int = 0
    seen: int = 0
    # Tokens of the judged rows that the engine leaves out, and the number of rows that they are in.
    cut: int = 0
    rows_cut: int = 0
    # How rows share a batch: `padded`, `flattened` or `packed`.
    joined: str = ""
    # The attention that was judged; empty where no model was run.
    attention: str = ""
    # The largest change of a row's logits when the row before it changes.
    logits_moved: float | None = None
    # The first loss of eight rows in one batch, and in eight.
    loss_at_once: float | None = None
    loss_accumulated: float | None = None
    # Questions of the demo or of the evaluation that are in the training rows.
    asked: tuple[str, ...] = ()
    # What was not judged completely, and why.
    notes: tuple[str, ...] = ()
    # Each with `kind` and `message`; none where all is well.
    faults: tuple[Mapping[str, str], ...] = ()
    # Rows as `row`, `tokens` and `spans`; each span is the name `trained`, `seen` or `cut` and its tokens.
    shown: tuple[Mapping[str, Any], ...] = ()
    # The time that the proof took.
    seconds: float = 0.0

    @property
    def summed(self) -> dict[str, Any]:
        """The proof for a run's summary, without the rows themselves."""
        return {name: value for name, value in asdict(self).items() if name != "shown"}

    @property
    def complaint(self) -> str:
        """What is wrong, for a person; empty where nothing is."""
        return "\n".join(fault["message"] for fault in self.faults)
