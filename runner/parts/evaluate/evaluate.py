"""`python -m runner.parts.evaluate.evaluate FILE`: evaluates the model of a stage and its original model, in a process
of its own. A metric that cannot be measured is left out, with the reason under `missing`."""

import importlib
import itertools
import math
import sys
import tempfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from runner import parts
from runner.parts.evaluate import language
from runner.parts.evaluate.gates import Found, Task
from runner.parts.evaluate.language import Cannot
from runner.parts.evaluate.metrics import ACCURACY, GENERATED, PREFERRED, REWARD, SCORE, rise_window
from runner.tools import child_process
from runner.tools.files import read_json, write_json
from runner.tools.names import listed
from runner.tools.problem import first_line
from runner.tools.process import hush
from runner.tools.run_files import HISTORY
from runner.tools.text import yaml_text
from runner.trainer import records
from runner.trainer.records import Summary

# The metrics that training itself records, by the kind of rows.
BY_TRAINING = {**dict.fromkeys(("preferences", "labels"), ("validation_loss", *PREFERRED)), "prompts": (REWARD,)}
SAMPLE_TASK = Path(__file__).with_name("sample-task.yaml")


@dataclass
class Measures:
    """The results so far, and why others are missing (see `Found`). higher: whether more is better, for lm-eval's."""

    metrics: dict[str, float] = field(default_factory=dict)
    before: dict[str, float] = field(default_factory=dict)
    missing: dict[str, str] = field(default_factory=dict)
    counts: dict[str, int] = field(default_factory=dict)
    confusion: dict[str, dict[str, int]] = field(default_factory=dict)
    higher: dict[str, Any] = field(default_factory=dict)

    def take(
        self, names: Sequence[str], measure: Callable[[], Mapping[str, Any] | float], before: bool = False
    ) -> None:
        """Adds the results of `measure` by name, or the one number as the first of `names`; or why all `names` are
        missing if it fails. before: of the original model."""
        try:
            found = measure()
            (self.before if before else self.metrics).update(found if isinstance(found, Mapping) else {names[0]: found})
        except Exception as error:
            # Loading and scoring can fail in many ways, and none of them may end in a number.
            self.lack(names, first_line(error)[:300], before)

    def lack(self, names: Iterable[str], why: str, before: bool = False) -> None:
        self.missing |= {f"before: {name}" if before else name: why for name in names}

    def found(self, names: Iterable[str]) -> Found:
        """All results. names: the metrics of the gates; each is measured or has a reason."""
        missing = {name: reason for name, reason in self.missing.items() if name not in self.metrics}
        kinds = {name: missing[ACCURACY] for name in names if name.startswith(f"{ACCURACY}.") and ACCURACY in missing}
        missing |= {name: "it was not measured" for name in names if name not in {*self.metrics, *missing}} | kinds
        return Found(self.metrics, self.before, missing, self.counts, self.confusion)


def main(file: str) -> int:
    child_process.watch_parent()
    hush()
    from pydantic import TypeAdapter

    task: Task = TypeAdapter(Task).validate_json(Path(file).read_bytes())
    measures = Measures()
    if task.kind in (brought := parts.table("measures")):
        importlib.import_module(brought[task.kind]).measure(task, measures)
    else:
        read(task, measures)
    write_json(Path(task.out), asdict(measures.found(task.metrics)))
    return 0


def read(task: Task, measures: Measures) -> None:
    """Measures a language model, and the one that training started from."""
    from accelerate.utils.memory import clear_device_cache

    if task.kind in BY_TRAINING:
        measures.take(BY_TRAINING[task.kind], lambda: by_training(task))
    for name in task.metrics:
        if window := rise_window(name):
            measures.take([name], partial(loss_rise, task, window))
    of_one_model(task, measures, task.model, before=False)
    clear_device_cache(garbage_collection=True)
    if task.base:
        of_one_model(task, measures, task.base, before=True)
    for name, (of, change) in CHANGES.items():
        measures.take([name], partial(changed, measures, of, change))
    for name in task.metrics:
        if name.startswith("regression."):
            measures.take([name], partial(regression, task.metrics_before, measures, name.removeprefix("regression.")))


def of_one_model(task: Task, measures: Measures, folder: str, before: bool) -> None:
    """Measures what needs a loaded model. before: of the original model, only the metrics that are compared."""
    names = ["validation_loss", "perplexity", "general_loss", ACCURACY]
    # After another gated stage, the scores of the original model are on record.
    scored = bool(task.tasks) and not (before and task.metrics_before is not None)
    of_tasks = [name for name in task.metrics if "lm_eval." in name] if scored else []
    names += of_tasks
    names += [] if before else [GENERATED, *(["text_loss", "text_perplexity"] if task.text_blocks else [])]
    try:
        model, tokenizer = language.load(folder, task.model, task.base, task.revision, task.trust_remote_code)
    except Exception as error:
        return measures.lack(names, first_line(error)[:300], before)
    if task.kind not in BY_TRAINING:
        rows = records.read_held_out(Path(task.rows))
        measures.take(names[:2], lambda: on_rows(model, rows, measures), before)
        if task.kind == "chat":
            measures.take([ACCURACY], lambda: on_answers(task, model, tokenizer, rows, measures), before)
    measures.take(["general_loss"], lambda: on_general_text(model, tokenizer, measures), before)
    if scored:
        measures.take(of_tasks, lambda: lm_eval_scores(model, tokenizer, task, measures), before)
    if before:
        return
    measures.take([GENERATED], lambda: language.generated(model, tokenizer, task.prompt))
    if task.text_blocks:
        measures.take(["text_loss", "text_perplexity"], lambda: on_blocks(model, task.text_blocks))


def on_rows(model: Any, rows: records.HeldOut | None, measures: Measures) -> dict[str, float]:
    """Loss and perplexity on the held-out rows."""
    if rows is None:
        raise Cannot("training saved no held-out rows")
    nats, count = language.loss(model, rows.rows)
    measures.counts |= {"held_out_rows": len(rows.rows), "held_out_rows_in_all": rows.in_all, "held_out_tokens": count}
    return {"validation_loss": nats, "perplexity": language.exponential(nats)}


def on_answers(
    task: Task, model: Any, tokenizer: Any, rows: records.HeldOut | None, measures: Measures
) -> dict[str, float]:
    """The share of correct answers among the held-out rows with short answers."""
    chosen = language.questions(rows.rows if rows else (), tokenizer, task.asked, task.seed)
    measures.counts["short_answers"] = len(chosen)
    measures.counts |= {f"short_answers.{kind}": sum(kind in each.asked for each in chosen) for kind in task.asked}
    return language.accuracy(model, tokenizer, chosen, task.batch_size, task.turn_end)


def on_general_text(model: Any, tokenizer: Any, measures: Measures) -> float:
    nats, measures.counts["general_tokens"] = language.loss(model, language.general_rows(tokenizer))
    return nats


def on_blocks(model: Any, file: str) -> dict[str, float]:
    """Loss and perplexity on the same held-out text for every stage."""
    nats, _ = language.loss(model, language.blocks(file))
    return {"text_loss": nats, "text_perplexity": language.exponential(nats)}


# Metrics of a change in training: the metric that changes, and how it is compared.
CHANGES: dict[str, tuple[str, Callable[[float, float], float]]] = {
    # The share by which the perplexity on the held-out rows fell; below 0 if it rose.
    "improvement.perplexity": ("perplexity", lambda old, new: 1 - new / old),
    # The rise of the loss on the general text, in nats per token; below 0 if it fell.
    "forgetting": ("general_loss", lambda old, new: new - old),
}


def changed(measures: Measures, name: str, change: Callable[[float, float], float]) -> float:
    """The change of a metric in training. Raises Cannot if it is not a finite number before and after."""
    old, new = measures.before.get(name), measures.metrics.get(name)
    if new is None:
        raise Cannot(measures.missing.get(name, f"`{name}` was not measured"))
    if old is None:
        why = measures.missing.get(f"before: {name}", "it was not measured")
        raise Cannot(f"of the model before training: {why}")
    if not (math.isfinite(old) and math.isfinite(new)):
        raise Cannot(f"`{name}` is not a finite number before and after")
    return change(old, new)


def _evaluations(task: Task) -> list[dict[str, Any]]:
    """The evaluations in training up to the step of the weights; the last one is at that step."""
    folder = Path(task.stage_dir)
    history, summary = read_json(folder / HISTORY), Summary.read(folder)
    if not isinstance(history, dict):
        raise Cannot("the stage saved no history of its training")
    step = task.checkpoint_step
    if step is None:
        if not summary:
            raise Cannot("the stage saved no summary of its training")
        best = summary.best_checkpoint
        step = int(best.rsplit("-", 1)[1]) if best else summary.steps
    upto = [entry for entry in history["epochs"] if entry["step"] <= step]
    if not upto or upto[-1]["step"] != step:
        raise Cannot(f"the weights of step {step:,} were not evaluated in training")
    return upto


def by_training(task: Task) -> dict[str, float]:
    """Training's own evaluation on held-out pairs or prompts, at the step of these weights."""
    last = _evaluations(task)[-1]
    named = BY_TRAINING[task.kind]
    found = {name: value for name, value in last.items() if name in named or name.startswith(f"{REWARD}.")}
    return {name: value for name, value in found.items() if value is not None}


def loss_rise(task: Task, window: int) -> float:
    """The largest rise of the validation loss between two of the last evaluations, in nats; negative if all fell."""
    losses: list[Any] = [entry["validation_loss"] for entry in _evaluations(task)][-window:]
    if len(losses) < window:
        raise Cannot(f"there were {len(losses)} evaluations, but {window} are needed")
    if any(loss is None or not math.isfinite(loss) for loss in losses):
        raise Cannot("one of these evaluations has no finite loss")
    return float(max(after - before for before, after in itertools.pairwise(losses)))


def lm_eval_scores(model: Any, tokenizer: Any, task: Task, measures: Measures) -> dict[str, float]:
    """lm-eval's scores as `lm_eval.TASK.METRIC`. A sample file replaces the hub if the task names one."""
    from lm_eval import simple_evaluate
    from lm_eval.models.huggingface import HFLM
    from lm_eval.tasks import TaskManager

    with tempfile.TemporaryDirectory() as folder:
        if task.sample_task:
            own = {"task": task.tasks[0], "dataset_kwargs": {"data_files": {"test": task.sample_task}}}
            text = SAMPLE_TASK.read_text(encoding="utf-8") + yaml_text(own)
            (Path(folder) / "sample.yaml").write_text(text, encoding="utf-8")
        results = simple_evaluate(
            model=HFLM(pretrained=model, tokenizer=tokenizer, batch_size=task.batch_size),
            tasks=list(task.tasks),
            # Without lm-eval's own tasks, which take seconds to read.
            task_manager=TaskManager(include_path=folder, include_defaults=False) if task.sample_task else None,
            limit=task.limit,
            bootstrap_iters=0,
            log_samples=False,
        )
    return scores(results, measures)


def scores(results: Mapping[str, Any], measures: Measures) -> dict[str, float]:
    """lm-eval's scores by `METRIC`, or only by `METRIC,FILTER` if the task has several filters, because a lenient one
    must not pass for the strict one. Adds to `measures` whether more is better."""
    values: dict[str, float] = {}
    for name, metrics in results["results"].items():
        counted = {key: value for key, value in metrics.items() if isinstance(value, float) and "stderr" not in key}
        better = results.get("higher_is_better", {}).get(name, {})
        for key, value in counted.items():
            metric = key.partition(",")[0]
            ways = [other for other in counted if other.partition(",")[0] == metric]
            names = [f"lm_eval.{name}.{key}"]
            if len(ways) == 1:
                names.append(f"lm_eval.{name}.{metric}")
            else:
                why = f"lm-eval has several values for it; name one: {listed(ways)}"
                measures.missing[f"lm_eval.{name}.{metric}"] = why
            values |= dict.fromkeys(names, value)
            measures.higher |= dict.fromkeys(names, better.get(metric))
    return values


def regression(before: Mapping[str, Any] | None, measures: Measures, name: str) -> float:
    """The share by which a metric is worse than after the stage before; below 0 if it is better."""
    if before is None:
        raise Cannot("the stage before has no valid record")
    old, new = before.get(name), measures.metrics.get(name)
    if not all(isinstance(value, int | float) and math.isfinite(value) for value in (old, new)):
        raise Cannot(f"`{name}` is not a number before and after")
    if not old:
        raise Cannot(f"`{name}` was 0 before, so no share of it can be computed")
    higher = measures.higher.get(name) if name.startswith(SCORE) else False
    if higher is None:
        raise Cannot(f"lm-eval does not say whether higher values of `{name}` are better")
    return float((old - new if higher else new - old) / abs(old))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
