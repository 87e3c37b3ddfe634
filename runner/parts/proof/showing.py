"""Showing: a proof as a person reads it, with colours in a terminal and plain marks elsewhere."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from runner.trainer.records import Proof

# By kind of fault, the beginning of its sentence, before the examples, and the remedy.
KINDS = {
    "end_not_trained": (
        "The end of an answer is not trained, so the model would never learn to stop",
        "Name the token that ends a turn (`eot_tokens` under `advanced.axolotl`), take another `data.chat_template`, or "
        "take back what changes the engine's collator.",
    ),
    "nothing_trained": (
        "Rows have no trained token, and nothing is learned from them",
        "Look at `data.train_on`, and at rows that are too long for `model.sequence_len`.",
    ),
    "nothing_masked": (
        "Rows are trained from their first token to their last, though the question is not to be learned",
        "Look at `data.train_on`, and at what stands under `advanced.axolotl`.",
    ),
    "padding_trained": (
        "Padding is trained: the model would learn to write it",
        "Give the tokenizer a padding token of its own, and take back what changes the engine's collator.",
    ),
    "labels_changed": (
        "A batch has other labels than its rows",
        "Take back what changes the engine's collator: plugins, and what stands under `advanced.axolotl`.",
    ),
    "text_not_whole": (
        "Plain text is not trained whole",
        "Take back what masks tokens: plugins, and what stands under `advanced.axolotl`.",
    ),
    "prompt_differs": (
        "The text before an answer is not what the model gets when it is asked",
        "The chat template must write the beginning of an answer where it is asked for one (`add_generation_prompt`), "
        "and the same text before it as in training; take another `data.chat_template`.",
    ),
    "template_fails": (
        "The chat template cannot write some rows",
        "Take another `data.chat_template`, or leave such rows out.",
    ),
    "row_differs": (
        "The engine's rows are not what the chat template writes",
        "Take another `data.chat_template`, or take back what stands under `advanced.axolotl`.",
    ),
    "rows_mixed": (
        "Rows of one batch see each other: a change of one row changes what the model says about the next",
        "Switch packing off, or take an attention that keeps rows apart.",
    ),
    "accumulation": (
        "The loss depends on accumulation: the same eight rows give another loss in one batch than in eight",
        "Take back what computes the loss (plugins, `cross_entropy`), or train with one batch a step.",
    ),
    "image_leak": (
        "Images that are measured stand in training too, so what is measured says nothing",
        "Delete the prepared images and prepare them anew, which takes those out of training.",
    ),
    "leak": (
        "Validation rows stand in the training rows, so the validation loss says nothing",
        "Delete them from one of the two sides.",
    ),
}
MOST_EXAMPLES = 3


@dataclass
class Faults:
    """Counts faults by kind, with a few examples of each."""

    counts: dict[str, int] = field(default_factory=dict)
    examples: dict[str, list[str]] = field(default_factory=dict)

    def add(self, kind: str, example: str = "", times: int = 1) -> None:
        self.counts[kind] = self.counts.get(kind, 0) + times
        seen = self.examples.setdefault(kind, [])
        if example and len(seen) < MOST_EXAMPLES and example not in seen:
            seen.append(example)

    def __iter__(self) -> Iterator[dict[str, str]]:
        for kind, count in self.counts.items():
            times = f" ({count:,} times)" if count > 1 else ""
            seen = "".join(f"\n  {example}" for example in self.examples[kind])
            sentence, remedy = KINDS[kind]
            yield {"kind": kind, "message": f"{sentence}{times}.{seen}\n{remedy}"}


Styled = tuple[str, str]  # what it is, and its text
# Tokens to show of a long stretch: the first and the last.
FIRST, LAST = 14, 8
EXPLAINED = (
    "tokens with · between them; the model learns what is trained, only sees what is seen, and never has what is cut"
)


def lines(proof: Proof, whole: bool = False) -> Iterator[list[Styled]]:
    """Lines of parts, each with its kind: `trained`, `seen`, `cut`, or nothing. whole: show every token."""
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
    """A row for `Proof.shown`. labels: whether each token is trained; cut: tokens that the engine leaves out."""
    spans: list[tuple[str, list[str]]] = []
    for token, trained in zip(tokens, labels, strict=True):
        kind = "trained" if trained else "seen"
        if not spans or spans[-1][0] != kind:
            spans.append((kind, []))
        spans[-1][1].append(token)
    if cut:
        spans.append(("cut", list(cut)))
    return {"row": number, "tokens": len(tokens) + len(cut), "spans": spans}
