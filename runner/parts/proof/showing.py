"""Showing: a proof as a person reads it, in colour where there is a terminal and with plain marks where there is none."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from runner.trainer.proof_record import Proof

Styled = tuple[str, str]  # what it is, and its text
# What is shown of a long stretch: its first and its last tokens.
FIRST, LAST = 14, 8
EXPLAINED = (
    "tokens with · between them; the model learns what is trained, only sees what is seen, and never has what is cut"
)


def lines(proof: Proof, whole: bool = False) -> Iterator[list[Styled]]:
    """Lines of parts, each with what it is: `trained`, `seen`, `cut`, or nothing. whole: every token, however many."""
    all_tokens = proof.trained + proof.seen + proof.cut
    if proof.shown:
        yield [("", EXPLAINED)]
    for row in proof.shown:
        yield [("", f"row {row['row']:,}, {row['tokens']:,} tokens")]
        for kind, tokens in row["spans"]:
            yield [("", f"  {kind:<8} "), (kind, _joined(tokens, whole))]
    if all_tokens:
        shares = ", ".join(
            f"{kind} {count / all_tokens:.1%}"
            for kind, count in (("trained", proof.trained), ("seen", proof.seen), ("cut", proof.cut))
        )
        cut = f", in {proof.rows_cut:,} rows" if proof.rows_cut else ""
        yield [("", f"of {all_tokens:,} tokens: {shares}{cut}")]
    if not proof.faults:
        yield [("", f"proven in {proof.seconds:.0f} s:")]
        yield from ([("", f"  {what}")] for what in _held(proof))
    for question in proof.asked:
        yield [("", f"  note: the question «{question}» is asked later and stands in the training rows")]
    for note in proof.notes:
        yield [("", f"  note: {note}")]


def _joined(tokens: Sequence[str], whole: bool) -> str:
    if not whole and len(tokens) > FIRST + LAST + 1:
        left = len(tokens) - FIRST - LAST
        tokens = [*tokens[:FIRST], f"… {left:,} more …", *tokens[-LAST:]]
    return "·".join(token.replace("\n", "⏎") for token in tokens)


def _held(proof: Proof) -> Iterator[str]:
    if proof.kind == "images":
        yield f"of {proof.judged:,} images that are measured none is one of the {proof.rows:,} training images"
        return
    of = f"{proof.judged:,} of {proof.rows:,} rows" if proof.judged < proof.rows else f"{proof.rows:,} rows"
    if proof.kind == "text":
        yield f"{of} are trained whole"
    else:
        yield f"in {of} every answer begins as the model is asked and is trained to its end"
    yield (
        f"in {proof.batches} batches no padding is trained"
        if proof.padding
        else f"{proof.batches} batches train what their rows say"
    )
    if proof.logits_moved is not None:
        yield f"{proof.joined} rows do not see each other ({proof.attention})"
    if proof.loss_at_once is not None and proof.loss_accumulated is not None:
        yield f"the first loss is {proof.loss_at_once:.4f} in one batch and in eight"
    yield "no validation row is a training row"


def plain(proof: Proof, whole: bool = False) -> Iterator[str]:
    return ("".join(text for _, text in line) for line in lines(proof, whole))


def row(number: int, tokens: Sequence[str], labels: Sequence[bool], cut: Sequence[str]) -> Mapping[str, Any]:
    """A row for `Proof.shown`. labels: of each token, whether it is trained; cut: tokens that the engine leaves out."""
    spans: list[tuple[str, list[str]]] = []
    for token, trained in zip(tokens, labels, strict=True):
        kind = "trained" if trained else "seen"
        if not spans or spans[-1][0] != kind:
            spans.append((kind, []))
        spans[-1][1].append(token)
    if cut:
        spans.append(("cut", list(cut)))
    return {"row": number, "tokens": len(tokens) + len(cut), "spans": spans}
