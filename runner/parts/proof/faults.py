"""Faults: what may be wrong with rows that train without an error, each with the sentence that names it and what to do."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

# Where the sentence of each kind begins; what was seen follows.
SENTENCES = {
    "end_not_trained": "The end of an answer is not trained, so the model would never learn to stop",
    "nothing_trained": "Rows have no trained token, and nothing is learned from them",
    "nothing_masked": "Rows are trained from their first token to their last, though the question is not to be learned",
    "padding_trained": "Padding is trained: the model would learn to write it",
    "labels_changed": "A batch has other labels than its rows",
    "text_not_whole": "Plain text is not trained whole",
    "prompt_differs": "The text before an answer is not what the model gets when it is asked",
    "template_fails": "The chat template cannot write some rows",
    "row_differs": "The engine's rows are not what the chat template writes",
    "rows_mixed": "Rows of one batch see each other: a change of one row changes what the model says about the next",
    "accumulation": "The loss depends on accumulation: the same eight rows give another loss in one batch than in eight",
    "image_leak": "Images that are measured stand in training too, so what is measured says nothing",
    "leak": "Validation rows stand in the training rows, so the validation loss says nothing",
}
REMEDIES = {
    "end_not_trained": "Name the token that ends a turn (`eot_tokens` under `advanced.axolotl`), take another `data.chat_template`, or "
    "take back what changes the engine's collator.",
    "nothing_trained": "Look at `data.train_on`, and at rows that are too long for `model.sequence_len`.",
    "nothing_masked": "Look at `data.train_on`, and at what stands under `advanced.axolotl`.",
    "padding_trained": "Give the tokenizer a padding token of its own, and take back what changes the engine's collator.",
    "labels_changed": "Take back what changes the engine's collator: plugins, and what stands under `advanced.axolotl`.",
    "text_not_whole": "Take back what masks tokens: plugins, and what stands under `advanced.axolotl`.",
    "prompt_differs": "The chat template must write the beginning of an answer where it is asked for one "
    "(`add_generation_prompt`), and the same text before it as in training; take another `data.chat_template`.",
    "template_fails": "Take another `data.chat_template`, or leave such rows out.",
    "row_differs": "Take another `data.chat_template`, or take back what stands under `advanced.axolotl`.",
    "rows_mixed": "Switch packing off, or take an attention that keeps rows apart.",
    "accumulation": "Take back what computes the loss (plugins, `cross_entropy`), or train with one batch a step.",
    "image_leak": "Delete the prepared images and prepare them anew, which takes those out of training.",
    "leak": "Delete them from one of the two sides.",
}
MOST_EXAMPLES = 3


@dataclass
class Faults:
    """Collects what is wrong, of each kind how often, and of the first few what was seen."""

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
            yield {"kind": kind, "message": f"{SENTENCES[kind]}{times}.{seen}\n{REMEDIES[kind]}"}
