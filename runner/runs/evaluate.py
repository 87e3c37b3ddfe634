"""`python -m runner.runs.evaluate FILE`: measures a model as a stage's gates ask, in a process of its own.

A metric that cannot be measured is left out, with the reason under `missing`; nothing is ever filled in.
"""

from __future__ import annotations

import itertools
import math
import sys
import tempfile
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from runner.files import read_json, write_json
from runner.names import listed
from runner.quiet import hush
from runner.run_files import HISTORY
from runner.runs.gates import Task
from runner.scenarios.shared.gates import BY_TRAINING, GENERATED, SCORE, rise_window
from runner.text import yaml_text
from runner.training import parent_watch
from runner.training.summary import Summary

TEXT_BLOCKS = 64
NEW_TOKENS = 16


class Cannot(Exception):
    """A metric cannot be measured; the message says why."""


class Measures:
    """Metrics found so far, and for the others why they are missing."""

    def __init__(self) -> None:
        self.metrics: dict[str, float] = {}
        self.missing: dict[str, str] = {}
        # Of lm-eval's scores, whether more is better, as lm-eval says.
        self.higher: dict[str, Any] = {}

    def take(self, names: Iterable[str], measure: Callable[[], Mapping[str, Any]]) -> None:
        """Adds what `measure` gives; where it fails, every one of `names` is missing for that reason."""
        try:
            self.metrics |= measure()
        except Exception as error:
            # Loading and scoring can fail in many ways, and none of them may end in a number.
            first = (str(error).strip() or type(error).__name__).splitlines()[0][:300]
            self.missing |= dict.fromkeys(names, first)


def main(file: str) -> int:
    parent_watch.start()
    hush()
    from pydantic import TypeAdapter

    task: Task = TypeAdapter(Task).validate_json(Path(file).read_bytes())
    names, measures = task.metrics, Measures()
    own = [name for name in names if name in BY_TRAINING[task.kind]]
    measures.take(own, lambda: by_training(task))
    for name in names:
        if window := rise_window(name):
            measures.take([name], _named(name, loss_rise, task, window))
    loaded: list[Any] = []

    def opened() -> dict[str, float]:
        loaded.extend(load(task))
        return {}

    measures.take([*names, GENERATED], opened)
    if loaded:
        model, tokenizer = loaded
        measures.take([GENERATED], _named(GENERATED, generated, model, tokenizer, task.prompt))
        measures.take(["text_loss", "text_perplexity"], lambda: text_loss(model, task.text_blocks))
        scores = [name for name in names if "lm_eval." in name]
        if task.tasks:
            measures.take(scores, lambda: lm_eval_scores(model, tokenizer, task, measures))
    for name in names:
        if name.startswith("regression."):
            measured = name.removeprefix("regression.")
            measures.take([name], _named(name, regression, task.metrics_before, measures, measured))
    missing = {
        name: measures.missing.get(name, "it was not measured") for name in names if name not in measures.metrics
    }
    write_json(Path(task.out), {"metrics": measures.metrics, "missing": missing})
    return 0


def _named(name: str, measure: Callable[..., float], *given: Any) -> Callable[[], dict[str, float]]:
    """A measure that gives one number, for `Measures.take`."""
    return lambda: {name: measure(*given)}


def _evaluations(task: Task) -> list[dict[str, Any]]:
    """The evaluations in training up to the step of the weights that are measured, the last one at that step."""
    folder = Path(task.stage_dir)
    history, summary = read_json(folder / HISTORY), Summary.read(folder)
    if not isinstance(history, dict):
        raise Cannot("the stage has left no history of its training")
    step = task.checkpoint_step
    if step is None:
        if not summary:
            raise Cannot("the stage has left no summary of its training")
        best = summary.best_checkpoint
        step = int(best.rsplit("-", 1)[1]) if best else summary.steps
    upto = [entry for entry in history["epochs"] if entry["step"] <= step]
    if not upto or upto[-1]["step"] != step:
        raise Cannot(f"the weights of step {step:,} were not evaluated in training")
    return upto


def by_training(task: Task) -> dict[str, float]:
    """What the stage has measured itself on its held-out rows, at the step of these weights."""
    last = _evaluations(task)[-1]
    metrics = {"validation_loss": last["validation_loss"]}
    if task.kind == "dpo":
        metrics |= {name: last.get(name) for name in ("preference_accuracy", "preference_margin")}
    elif isinstance(last["validation_loss"], float):
        metrics["perplexity"] = _exp(last["validation_loss"])
    return {name: value for name, value in metrics.items() if value is not None}


def loss_rise(task: Task, window: int) -> float:
    """The largest rise of the validation loss from one of the last `window` evaluations to the next, in nats a token;
    below 0 where it fell every time."""
    losses: list[Any] = [entry["validation_loss"] for entry in _evaluations(task)][-window:]
    if len(losses) < window:
        raise Cannot(f"there were {len(losses)} evaluations, and {window} are looked at")
    if any(loss is None or not math.isfinite(loss) for loss in losses):
        raise Cannot("one of these evaluations has no finite loss")
    rise: float = max(after - before for before, after in itertools.pairwise(losses))
    return rise


def load(task: Task) -> tuple[Any, Any]:
    """Model and tokenizer, freshly loaded from disk as any user would; an adapter on its base."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    # A checkpoint beside an adapter is the adapter alone; `best_model` is the two merged.
    adapter = bool(task.base) and (Path(task.model) / "adapter_config.json").is_file()
    cuda = torch.cuda.is_available()
    tokenizer = AutoTokenizer.from_pretrained(task.model)
    model = AutoModelForCausalLM.from_pretrained(
        task.base if adapter else task.model, dtype=torch.bfloat16 if cuda else torch.float32
    )
    if adapter:
        from peft import PeftModel

        model = PeftModel.from_pretrained(model, task.model)
    return model.to("cuda" if cuda else "cpu").eval(), tokenizer


def generated(model: Any, tokenizer: Any, prompt: str) -> int:
    """Tokens that the model goes on with after the prompt, at most 16, without sampling."""
    import torch

    tokens = tokenizer(prompt, add_special_tokens=False, return_tensors="pt").to(model.device)
    with torch.no_grad():
        out = model.generate(**tokens, max_new_tokens=NEW_TOKENS, do_sample=False, pad_token_id=tokenizer.pad_token_id)
    new = out[0, tokens["input_ids"].shape[1] :].tolist()
    return len([token for token in new if token not in tokenizer.all_special_ids])


def text_loss(model: Any, file: str) -> dict[str, float]:
    """Cross-entropy in nats a token, and its exponential, on the same held-out text for every stage."""
    import numpy as np
    import torch

    blocks = np.load(file, mmap_mode="r")[:TEXT_BLOCKS]
    total = 0.0
    for block in blocks:
        tokens = torch.tensor(block.astype("int64"))[None].to(model.device)
        with torch.no_grad():
            total += float(model(input_ids=tokens, labels=tokens).loss)
    loss = total / len(blocks)
    return {"text_loss": loss, "text_perplexity": _exp(loss)}


def lm_eval_scores(model: Any, tokenizer: Any, task: Task, measures: Measures) -> dict[str, float]:
    """lm-eval's scores as `lm_eval.TASK.METRIC`; a sample file stands in for the hub where the task names one."""
    from lm_eval import simple_evaluate
    from lm_eval.models.huggingface import HFLM
    from lm_eval.tasks import TaskManager

    with tempfile.TemporaryDirectory() as folder:
        if task.sample_task:
            (Path(folder) / "sample.yaml").write_text(_sample_task(task), encoding="utf-8")
        results = simple_evaluate(
            model=HFLM(pretrained=model, tokenizer=tokenizer, batch_size=task.batch_size),
            tasks=list(task.tasks),
            # Reading the thousands of tasks that lm-eval brings takes seconds, and the sample is none of them.
            task_manager=TaskManager(include_path=folder, include_defaults=False) if task.sample_task else None,
            limit=task.limit,
            bootstrap_iters=0,
            log_samples=False,
        )
    return scores(results, measures)


def scores(results: Mapping[str, Any], measures: Measures) -> dict[str, float]:
    """The scores in lm-eval's results, by `METRIC` or, where the task counts it in several ways, `METRIC,WAY` alone: the
    more lenient way must not stand for the strict one. Notes in `measures` which of them are better when they are more."""
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
                measures.missing[f"lm_eval.{name}.{metric}"] = (
                    f"lm-eval counts it in several ways; name one: {listed(ways)}"
                )
            values |= dict.fromkeys(names, value)
            measures.higher |= dict.fromkeys(names, better.get(metric))
    return values


def _sample_task(task: Task) -> str:
    """A task of lm-eval on a local file: which of the choices goes best with the question."""
    return yaml_text(
        {
            "task": task.tasks[0],
            "dataset_path": "json",
            "dataset_kwargs": {"data_files": {"test": task.sample_task}},
            "test_split": "test",
            "output_type": "multiple_choice",
            "doc_to_text": "{{question}}",
            "doc_to_choice": "{{choices}}",
            "doc_to_target": "{{answer}}",
            "metric_list": [
                {"metric": name, "aggregation": "mean", "higher_is_better": True} for name in ("acc", "acc_norm")
            ],
        }
    )


def regression(before: Mapping[str, Any] | None, measures: Measures, name: str) -> float:
    """How much worse a metric is than after the stage before, as a share of what it was; below 0 where it is better."""
    if before is None:
        raise Cannot("nothing that still holds is recorded for the stage before")
    old, new = before.get(name), measures.metrics.get(name)
    if not all(isinstance(value, int | float) and math.isfinite(value) for value in (old, new)):
        raise Cannot(f"`{name}` is not a number before and after")
    if not old:
        raise Cannot(f"`{name}` was 0 before, and nothing is a share of 0")
    higher = measures.higher.get(name) if name.startswith(SCORE) else False
    if higher is None:
        raise Cannot(f"lm-eval does not say whether more of `{name}` is better")
    worse: float = (old - new) / abs(old) if higher else (new - old) / abs(old)
    return worse


def _exp(loss: float) -> float:
    try:
        return math.exp(loss)
    except OverflowError:
        return math.inf


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
