"""`python -m runner.parts.evaluate.evaluate FILE`: evaluates the model of a stage and its original
model, in a process of its own. A metric that cannot be measured is left out, with the reason under
`missing`. Of a language model it has the loss on rows and on general text, the share of correct
short answers, and lm-eval's scores."""

from __future__ import annotations

import importlib
import itertools
import math
import random
import sys
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, cast

from runner import parts
from runner.data import general_documents
from runner.parts.contract import Measurer
from runner.parts.evaluate.gates import Found, Task
from runner.parts.evaluate.metrics import (
    ACCURACY,
    GENERATED,
    GRADED,
    PREFERRED,
    REWARD,
    SCORE,
    bounds,
    rise_window,
)
from runner.tools import child_process
from runner.tools.files import read_json, write_json
from runner.tools.problem import Stop, first_line, listed
from runner.tools.process import hush
from runner.tools.run_files import HISTORY, MEASURED
from runner.tools.text import TextTokenizer, same, yaml_text
from runner.trainer import generation, records
from runner.trainer.grading import SHORT_WORDS

if TYPE_CHECKING:
    from transformers import PreTrainedModel

# The metrics that training itself records, by the kind of rows.
BY_TRAINING = {
    **dict.fromkeys(("preferences", "labels"), ("validation_loss", *PREFERRED)),
    "prompts": (REWARD,),
}
SAMPLE_TASK = Path(__file__).with_name("sample-task.yaml")
TEXT_BLOCKS = 64
NEW_TOKENS = int(bounds(GENERATED)[1])
GENERAL_TOKENS = 1024
MOST_ANSWERS = 200

# Token numbers and labels of a row; the label of a token that does not count is -100.
Row = tuple[Sequence[int], Sequence[int]]


class Cannot(Exception):
    """A metric cannot be measured; the message says why."""


@dataclass
class Measures:
    """The results so far, with the fields of `Found`."""

    metrics: dict[str, float] = field(default_factory=dict)
    before: dict[str, float] = field(default_factory=dict)
    missing: dict[str, str] = field(default_factory=dict)
    counts: dict[str, int] = field(default_factory=dict)
    confusion: dict[str, dict[str, int]] = field(default_factory=dict)
    higher: dict[str, Any] = field(default_factory=dict)  # whether more is better, for lm-eval's

    @contextmanager
    def taking(self, names: Iterable[str], before: bool = False) -> Iterator[dict[str, float]]:
        """Adds what the block puts into the given results; or why all `names` are missing if it
        fails. before: of the original model."""
        results: dict[str, float] = {}
        try:
            yield results
            if before:
                self.before |= results
            else:
                self.metrics |= results
        except Exception as error:
            # Loading and scoring can fail in many ways, and none of them may end in a number.
            self.lack(names, first_line(error)[:300], before)

    def lack(self, names: Iterable[str], reason: str, before: bool = False) -> None:
        prefix = "before: " if before else ""
        self.missing |= {f"{prefix}{name}": reason for name in names}

    def both(self, name: str) -> tuple[float, float]:
        """A metric before and after training. Raises Cannot if it is not a finite number in
        both."""
        old = self.before.get(name)
        new = self.metrics.get(name)
        if new is None:
            raise Cannot(self.missing.get(name, f"`{name}` was not measured"))
        if old is None:
            reason = self.missing.get(f"before: {name}", "it was not measured")
            raise Cannot(f"of the model before training: {reason}")
        if not (math.isfinite(old) and math.isfinite(new)):
            raise Cannot(f"`{name}` is not a finite number before and after")
        return old, new

    def found(self, names: Iterable[str]) -> Found:
        """All results. names: the metrics of the gates; each is measured or has a reason."""
        missing = {
            name: reason for name, reason in self.missing.items() if name not in self.metrics
        }
        for name in names:
            # The accuracy of a kind of question cannot be measured without the accuracy itself.
            if name.startswith(f"{ACCURACY}.") and ACCURACY in missing:
                missing[name] = missing[ACCURACY]
            elif name not in self.metrics and name not in missing:
                missing[name] = "it was not measured"
        return Found(self.metrics, self.before, missing, self.counts, self.confusion)


def main(file: str) -> int:
    child_process.watch_parent()
    hush()
    from pydantic import TypeAdapter

    task: Task = TypeAdapter(Task).validate_json(Path(file).read_bytes())
    measures = Measures()
    modules = parts.table("measures")  # of parts that measure their own kinds of models
    if task.kind in modules:
        module: Any = importlib.import_module(modules[task.kind])
        cast(Measurer, module).measure(task, measures)
    else:
        read(task, measures)
    write_json(Path(task.stage_dir) / MEASURED, asdict(measures.found(task.metrics)))
    return 0


def read(task: Task, measures: Measures) -> None:
    """Measures a language model, and the one that training started from."""
    from accelerate.utils.memory import clear_device_cache

    recorded = BY_TRAINING.get(task.kind)
    if recorded:
        with measures.taking(recorded) as results:
            for name, value in _evaluations(task)[-1].items():
                if value is not None and (name in recorded or name.startswith(f"{REWARD}.")):
                    results[name] = value
    if task.kind == "chat":
        with measures.taking(GRADED) as results:
            results |= graded_answers(task)
    for name in task.metrics:
        window = rise_window(name)
        if window:
            with measures.taking([name]) as results:
                results[name] = loss_rise(task, window)
    of_one_model(task, measures, task.model, before=False)
    clear_device_cache(garbage_collection=True)
    if task.base:
        of_one_model(task, measures, task.base, before=True)
    with measures.taking(["improvement.perplexity"]) as results:
        # The share by which the perplexity on the held-out rows fell; below 0 if it rose.
        old, new = measures.both("perplexity")
        results["improvement.perplexity"] = 1 - new / old
    with measures.taking(["forgetting"]) as results:
        # The rise of the loss on the general text, in nats per token; below 0 if it fell.
        old, new = measures.both("general_loss")
        results["forgetting"] = new - old
    for name in task.metrics:
        if name.startswith("regression."):
            with measures.taking([name]) as results:
                results[name] = regression(
                    task.metrics_before, measures, name.removeprefix("regression.")
                )


def of_one_model(task: Task, measures: Measures, folder: str, before: bool) -> None:
    """Measures what needs a loaded model. before: of the original model, only the metrics that are
    compared."""
    scores = _scores_to_measure(task, before)
    try:
        model, tokenizer = load(
            folder, task.model, task.base, task.revision, task.trust_remote_code
        )
    except Exception as error:
        names = ["validation_loss", "perplexity", "general_loss", ACCURACY, *scores]
        if not before:
            names.append(GENERATED)
        if not before and task.text_blocks:
            names += ["text_loss", "text_perplexity"]
        return measures.lack(names, first_line(_cause_of(error))[:300], before)
    if task.kind not in BY_TRAINING:
        _measure_held_out(task, measures, model, tokenizer, before)
    with measures.taking(["general_loss"], before) as results:
        nats, tokens = loss(model, general_rows(tokenizer))
        results["general_loss"] = nats
        measures.counts["general_tokens"] = tokens
    if _scored(task, before):
        with measures.taking(scores, before) as results:
            results |= lm_eval_scores(model, tokenizer, task, measures)
    if before:
        return
    with measures.taking([GENERATED]) as results:
        results[GENERATED] = generated(model, tokenizer, task.prompt)
    if task.text_blocks:
        _measure_text_blocks(task.text_blocks, measures, model)


def _scored(task: Task, before: bool) -> bool:
    """Whether lm-eval runs. After another gated stage, the scores of the original model are on
    record."""
    on_record = before and task.metrics_before is not None
    return bool(task.tasks) and not on_record


def _scores_to_measure(task: Task, before: bool) -> list[str]:
    if not _scored(task, before):
        return []
    return [name for name in task.metrics if "lm_eval." in name]


def _cause_of(error: Exception) -> BaseException:
    """The cause alone: a message of our own begins with a folder, perhaps of a pod."""
    if isinstance(error, Stop) and error.__cause__:
        return error.__cause__
    return error


def _measure_held_out(
    task: Task, measures: Measures, model: PreTrainedModel, tokenizer: TextTokenizer, before: bool
) -> None:
    held_out = records.read_held_out(Path(task.rows))
    rows = held_out.rows if held_out else ()
    with measures.taking(["validation_loss", "perplexity"], before) as results:
        if held_out is None:
            raise Cannot("training saved no held-out rows")
        nats, tokens = loss(model, rows)
        measures.counts["held_out_rows"] = len(rows)
        measures.counts["held_out_rows_in_all"] = held_out.in_all
        measures.counts["held_out_tokens"] = tokens
        results["validation_loss"] = nats
        results["perplexity"] = exponential(nats)
    if task.kind == "chat":
        with measures.taking([ACCURACY], before) as results:
            chosen = questions(rows, tokenizer, task.asked, task.seed)
            measures.counts["short_answers"] = len(chosen)
            for question_kind in task.asked:
                measures.counts[f"short_answers.{question_kind}"] = sum(
                    question_kind in answer.asked for answer in chosen
                )
            results |= accuracy(model, tokenizer, chosen, task.batch_size, task.turn_end)


def _measure_text_blocks(file: str, measures: Measures, model: PreTrainedModel) -> None:
    import numpy as np

    with measures.taking(["text_loss", "text_perplexity"]) as results:
        # The first held-out blocks, the same for every stage of a pipeline.
        blocks = np.load(file, mmap_mode="r")[:TEXT_BLOCKS]
        nats, _ = loss(model, [(block.tolist(), block.tolist()) for block in blocks])
        results["text_loss"] = nats
        results["text_perplexity"] = exponential(nats)


def _evaluations(task: Task) -> list[dict[str, Any]]:
    """The evaluations in training up to the step of the weights; the last one is at that step."""
    folder = Path(task.stage_dir)
    history = read_json(folder / HISTORY)
    summary = records.Summary.read(folder)
    if not isinstance(history, dict):
        raise Cannot("the stage saved no history of its training")
    checkpoint = Path(task.model).name
    if not checkpoint.removeprefix("checkpoint-").isdigit():  # the stage's result
        if not summary:
            raise Cannot("the stage saved no summary of its training")
        checkpoint = summary.best_checkpoint or str(summary.steps)
    step = int(checkpoint.rsplit("-", 1)[-1])
    upto = [entry for entry in history["epochs"] if entry["step"] <= step]
    if not upto or upto[-1]["step"] != step:
        raise Cannot(f"the weights of step {step:,} were not evaluated in training")
    return upto


def graded_answers(task: Task) -> dict[str, float]:
    """The shares of right answers that the end of training has counted. Raises Cannot if it has
    counted none of a kind that a gate names."""
    if Path(task.model).name.startswith("checkpoint-"):
        raise Cannot(
            "training graded the answers of its final model alone, and this is a checkpoint"
        )
    summary = records.Summary.read(Path(task.stage_dir))
    if summary.answers:
        shares = summary.answers.shares
    else:
        shares = {}
    missing = [name for name in GRADED if name in task.metrics and name not in shares]
    if missing:
        raise Cannot("training graded no answers to such questions (`demo.graded_questions`)")
    return shares


def loss_rise(task: Task, window: int) -> float:
    """The largest rise of the validation loss between two of the last evaluations, in nats;
    negative if all fell."""
    losses: list[Any] = [entry["validation_loss"] for entry in _evaluations(task)][-window:]
    if len(losses) < window:
        raise Cannot(f"there were {len(losses)} evaluations, but {window} are needed")
    if any(loss is None or not math.isfinite(loss) for loss in losses):
        raise Cannot("one of these evaluations has no finite loss")
    rises = [after - before for before, after in itertools.pairwise(losses)]
    return float(max(rises))


def lm_eval_scores(
    model: PreTrainedModel, tokenizer: TextTokenizer, task: Task, measures: Measures
) -> dict[str, float]:
    """lm-eval's scores as `lm_eval.TASK.METRIC`. A sample file replaces the hub if the task names
    one."""
    from lm_eval import simple_evaluate
    from lm_eval.models.huggingface import HFLM
    from lm_eval.tasks import TaskManager

    with tempfile.TemporaryDirectory() as folder:
        if task.sample_task:
            settings = {
                "task": task.tasks[0],
                "dataset_kwargs": {"data_files": {"test": task.sample_task}},
            }
            text = SAMPLE_TASK.read_text(encoding="utf-8") + yaml_text(settings)
            (Path(folder) / "sample.yaml").write_text(text, encoding="utf-8")
            # Without lm-eval's own tasks, which take seconds to read.
            task_manager = TaskManager(include_path=folder, include_defaults=False)
        else:
            task_manager = None
        results = simple_evaluate(
            model=HFLM(pretrained=model, tokenizer=tokenizer, batch_size=task.batch_size),
            tasks=list(task.tasks),
            task_manager=task_manager,
            limit=task.limit,
            bootstrap_iters=0,
            log_samples=False,
        )
    return scores(results, measures)


def scores(results: Mapping[str, Any], measures: Measures) -> dict[str, float]:
    """lm-eval's scores by `METRIC`, or only by `METRIC,FILTER` if the task has several filters,
    because a lenient one must not pass for the strict one. Adds to `measures` whether more is
    better."""
    values: dict[str, float] = {}
    for name, metrics in results["results"].items():
        counted = {
            key: value
            for key, value in metrics.items()
            if isinstance(value, float) and "stderr" not in key
        }
        better = results.get("higher_is_better", {}).get(name, {})
        for key, value in counted.items():
            metric = key.partition(",")[0]
            keys_of_metric = [key for key in counted if key.partition(",")[0] == metric]
            names = [f"lm_eval.{name}.{key}"]
            if len(keys_of_metric) == 1:
                names.append(f"lm_eval.{name}.{metric}")
            else:
                reason = f"lm-eval has several values for it; name one: {listed(keys_of_metric)}"
                measures.missing[f"lm_eval.{name}.{metric}"] = reason
            values |= dict.fromkeys(names, value)
            measures.higher |= dict.fromkeys(names, better.get(metric))
    return values


def regression(before: Mapping[str, Any] | None, measures: Measures, name: str) -> float:
    """The share by which a metric is worse than after the stage before; below 0 if it is better."""
    if before is None:
        raise Cannot("the stage before has no valid record")
    old = before.get(name)
    new = measures.metrics.get(name)
    if not all(isinstance(value, int | float) and math.isfinite(value) for value in (old, new)):
        raise Cannot(f"`{name}` is not a number before and after")
    if not old:
        raise Cannot(f"`{name}` was 0 before, so no share of it can be computed")
    if name.startswith(SCORE):
        higher = measures.higher.get(name)
    else:
        higher = False
    if higher is None:
        raise Cannot(f"lm-eval does not say whether higher values of `{name}` are better")
    if higher:
        return float((old - new) / abs(old))
    return float((new - old) / abs(old))


class ShortAnswer(NamedTuple):
    """A row with a short answer."""

    prompt: tuple[int, ...]
    answer: str
    asked: tuple[str, ...]  # the kinds of its question


def load(
    folder: str, tokenizer: str, base: str, revision: str | None, trust: bool
) -> tuple[Any, Any]:
    """Model and tokenizer, freshly loaded; an adapter on its base, whose revision is `revision`."""
    # The checkpoint of an adapter is the adapter alone; `best_model` is merged.
    adapter = bool(base) and (Path(folder) / "adapter_config.json").is_file()
    model = base if adapter else folder
    if Path(model).is_dir():
        revision = None
    loaded = generation.load(
        generation.Chat(model, revision, tokenizer, None, NEW_TOKENS, trust_remote_code=trust)
    )
    if not adapter:
        return loaded.model, loaded.tokenizer
    from peft import PeftModel

    return PeftModel.from_pretrained(loaded.model, folder).eval(), loaded.tokenizer


def loss(model: PreTrainedModel, rows: Sequence[Row]) -> tuple[float, int]:
    """Cross-entropy in nats per token, over the trained tokens of all rows, and their number.
    Raises Cannot at 0."""
    import torch

    total = 0.0
    count = 0
    for numbers, labels in rows:
        # The first token has no prediction.
        counted = sum(label != -100 for label in labels[1:])
        if not counted:
            continue
        tokens = torch.tensor([list(numbers)], device=model.device)
        targets = torch.tensor([list(labels)], device=model.device)
        with torch.no_grad():
            total += float(model(input_ids=tokens, labels=targets).loss) * counted
        count += counted
    if not count:
        raise Cannot("no token of these rows is trained")
    return total / count, count


def exponential(nats: float) -> float:
    """The perplexity of a loss."""
    if nats > math.log(sys.float_info.max):
        return math.inf
    return math.exp(nats)


def general_rows(tokenizer: TextTokenizer) -> list[Row]:
    """The documents of the general text, each from its beginning."""
    rows = [tokenizer(document)["input_ids"][:GENERAL_TOKENS] for document in general_documents()]
    return [(row, row) for row in rows]


def generated(model: PreTrainedModel, tokenizer: TextTokenizer, prompt: str) -> int:
    """The number of tokens with which the model continues the prompt, at most 16, without
    sampling."""
    numbers = tokenizer(prompt, add_special_tokens=False)["input_ids"]
    (new,) = _greedy(model, tokenizer, [numbers], NEW_TOKENS, None)
    return len([token for token in new if token not in tokenizer.all_special_ids])


def questions(
    rows: Sequence[Row], tokenizer: TextTokenizer, question_kinds: Mapping[str, str], seed: int
) -> list[ShortAnswer]:
    """The rows with one short answer, or a seeded sample of many. question_kinds: each with its
    words."""
    short = []
    for numbers, labels in rows:
        trained = [index for index, label in enumerate(labels) if label != -100]
        if not trained:
            continue
        begin = trained[0]
        end = trained[-1] + 1
        if begin == 0 or len(trained) != end - begin:
            continue  # without a prompt, or with several answers
        answer = tokenizer.decode(numbers[begin:end], skip_special_tokens=True).strip()
        if answer and "\n" not in answer and len(answer.split()) <= SHORT_WORDS:
            prompt = numbers[:begin]
            prompt_text = tokenizer.decode(prompt)
            kinds = tuple(name for name, phrase in question_kinds.items() if phrase in prompt_text)
            short.append(ShortAnswer(tuple(prompt), answer, kinds))
    if len(short) <= MOST_ANSWERS:
        return short
    return random.Random(seed).sample(short, MOST_ANSWERS)


def accuracy(
    model: PreTrainedModel,
    tokenizer: TextTokenizer,
    chosen: Sequence[ShortAnswer],
    batch_size: int,
    turn_end: str | None,
) -> dict[str, float]:
    """The share of short answers that equal those in the rows, 0 to 1, in total and by kind of
    question, without sampling. Space, case and a final full stop do not count. Raises Cannot if no
    row has a short answer."""
    longest = answer_length(chosen, tokenizer)
    # Prompts of similar length need the least padding.
    ordered = sorted(chosen, key=lambda question: len(question.prompt))

    def answers() -> Iterator[str]:
        for start in range(0, len(ordered), batch_size):
            batch = ordered[start : start + batch_size]
            prompts = [list(question.prompt) for question in batch]
            for numbers in _greedy(model, tokenizer, prompts, longest, turn_end):
                yield tokenizer.decode(numbers, skip_special_tokens=True)

    return right(ordered, answers())


def answer_length(chosen: Sequence[ShortAnswer], tokenizer: TextTokenizer) -> int:
    """Enough tokens for the longest short answer. Raises Cannot if no row has a short answer."""
    if not chosen:
        raise Cannot(f"no held-out row has an answer of at most {SHORT_WORDS} words")
    answers = (tokenizer(question.answer)["input_ids"] for question in chosen)
    return max(map(len, answers)) + 4


def right(chosen: Sequence[ShortAnswer], answers: Iterable[str]) -> dict[str, float]:
    """The share of questions with the answer of the row, in total and by kind."""
    graded: dict[str, list[bool]] = {ACCURACY: []}
    for question, answer in zip(chosen, answers, strict=True):
        expected = same(question.answer).removesuffix(".")
        is_right = same(answer).removesuffix(".") == expected
        graded[ACCURACY].append(is_right)
        for question_kind in question.asked:
            graded.setdefault(f"{ACCURACY}.{question_kind}", []).append(is_right)
    return {name: sum(grades) / len(grades) for name, grades in graded.items()}


def _greedy(
    model: PreTrainedModel,
    tokenizer: TextTokenizer,
    prompts: Sequence[Sequence[int]],
    most: int,
    turn_end: str | None,
) -> Iterator[list[int]]:
    """The model's continuation of each prompt, in token numbers, up to the end of its turn."""
    import torch

    ends = generation.end_tokens(tokenizer, turn_end)
    if tokenizer.pad_token_id is not None:
        pad = tokenizer.pad_token_id
    else:
        pad = (ends or [0])[0]
    width = max(map(len, prompts))
    tokens = []
    mask = []
    for prompt in prompts:
        padding = width - len(prompt)
        tokens.append([pad] * padding + list(prompt))
        mask.append([0] * padding + [1] * len(prompt))
    with torch.no_grad():
        output = model.generate(
            input_ids=torch.tensor(tokens, device=model.device),
            attention_mask=torch.tensor(mask, device=model.device),
            max_new_tokens=most,
            do_sample=False,
            eos_token_id=ends or None,
            pad_token_id=pad,
        )
    for row in output[:, width:].tolist():
        places_of_ends = (index for index, token in enumerate(row) if token in ends)
        yield row[: next(places_of_ends, len(row))]


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
