"""The score of each reward for a question, its answer and the reference answer; and what people see
of rewards."""

import hashlib
import importlib
import math
import re
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from itertools import groupby
from pathlib import Path
from typing import Any

from runner.parts.contract import StageHooks
from runner.plan import Plan
from runner.run.run_folder import StageFolder
from runner.tools.files import read_json
from runner.tools.problem import Tell, shortened
from runner.tools.run_files import SAMPLES
from runner.tools.text import macros, same

Score = Callable[[str, str, str], float]
Rule = Mapping[str, Any]

# Python's own parser of patterns; it has no public name and no types.
_parser: Any = importlib.import_module("re._parser")
NUMBER = re.compile(r"-?(?:\d+(?:,\d{3})+|\d+)(?:\.\d+)?(?:[eE][-+]?\d+)?|-?\.\d+")


class BadReward(Exception):
    """A person's function cannot be used, or gave no number; the message is for that person."""


def found(text: str, within: str | None) -> str | None:
    """The part of an answer to compare; None if it is not there."""
    if within is None:
        return text
    match = re.search(within, text, re.DOTALL)
    if match:
        return match[1]
    return None


def placed(answer: str, within: str | None) -> str:
    """An answer where `within` looks for it, with the literal characters around it."""
    if within is None:
        return answer
    text = ""
    for operation, node in _parser.parse(within):
        if str(operation) == "LITERAL":
            text += chr(node)
        elif str(operation) == "SUBPATTERN":
            text += answer
    return text


def number(text: str | None) -> float | None:
    """The last number of a text; None if it has none."""
    numbers = NUMBER.findall(text or "")
    if numbers:
        return float(numbers[-1].replace(",", ""))
    return None


def _plain(name: str, rule: Rule, question: str, answer: str, reference: str) -> float:
    """The score of a reward that is no person's own code."""
    match name:
        case "exact":
            part = found(answer, rule.get("within"))
            return float(part is not None and same(part) == same(reference))
        case "number":
            answered = number(found(answer, rule.get("within")))
            right = number(reference)
            if answered is None or right is None:
                return 0.0
            return float(abs(answered - right) <= rule["tolerance"])
        case "pattern":
            return float(bool(re.search(rule["matches"], answer.strip(), re.DOTALL)))
        case "length":
            length = len(answer.split())
            if not length:
                return 0.0
            excess = length / float(rule["words"])
            return max(0.0, min(1.0, 2 - excess))
        case "overlap":
            compared = question if rule["of"] == "question" else reference
            compared_words = set(re.findall(r"\w+", compared.lower()))
            answer_words = re.findall(r"\w+", answer.lower())
            if answer_words:
                return sum(word in compared_words for word in answer_words) / len(answer_words)
            return 0.0
    raise KeyError(name)


def _python(rule: Rule) -> Score:
    """The function in a person's code, which runs here."""
    if hashlib.sha256(rule["code"].encode()).hexdigest() != rule["sha256"]:
        raise BadReward(
            f"The code of `{rule['named']}` is not the code that the recipe pins by its hash."
        )
    namespace: dict[str, Any] = {"__name__": "own_reward", "__file__": rule["named"]}
    try:
        exec(compile(rule["code"], rule["named"], "exec"), namespace)
    except Exception as error:
        raise BadReward(
            f"`{rule['named']}` cannot be loaded: {type(error).__name__}: {error}"
        ) from error
    function = namespace[rule["function"]]

    def score(question: str, answer: str, reference: str) -> float:
        try:
            value = float(function(question, answer, reference))
        except Exception as error:
            description = f"{type(error).__name__}: {error}, for the answer «{answer[:80]}»"
            raise BadReward(
                f"`{rule['function']}` of `{rule['named']}` failed with {description}."
            ) from error
        if not math.isfinite(value):
            raise BadReward(
                f"`{rule['function']}` of `{rule['named']}` gave {value}, which is no score."
            )
        return value

    return score


def scores(rules: Mapping[str, Rule]) -> dict[str, Score]:
    """The function of each reward, by its name. Raises BadReward for code that cannot be loaded."""
    scores_by_rule = {}
    for name, rule in rules.items():
        scores_by_rule[name] = _python(rule) if name == "python" else partial(_plain, name, rule)
    return scores_by_rule


def total(rules: Mapping[str, Rule], scores_of_answer: Mapping[str, float]) -> float:
    """The reward of an answer from its scores."""
    return sum(float(rules[name]["weight"]) * score for name, score in scores_of_answer.items())


SHOWN = 3  # samples of an evaluation


class RewardHooks(StageHooks):
    """Shows what scores a model's own answers, and some answers with their rewards."""

    def before_stage(self, folder: StageFolder, tell: Tell, where: str) -> None:
        """Shows a person's code before the first stage in which it runs."""
        stages = folder.plan.stages
        running = [stage for stage in stages if stage.trains or stage.config.get("proofs")]
        configs = (stage.config for stage in running if stage.trains and "trl" in stage.config)
        config = next(configs, {})
        rule = (config.get("recipe_runner") or {}).get("rewards", {}).get("python")
        if rule and running[0].name == folder.stage.name:
            tell(
                f"`{rule['named']}` runs in training, to score answers. This is its code (sha256 {rule['sha256']}):"
            )
            for line in rule["code"].splitlines():
                tell(f"  | {line}")

    def report_lines(self, plan: Plan) -> Iterator[str]:
        """Answers to held-out prompts with their rewards, from the first evaluation and the
        last."""
        template = macros(Path(__file__).with_name("samples.jinja"), shortened=shortened)
        for stage in plan.stages:
            if stage.trains:
                rows = read_json(StageFolder(plan, stage).path / SAMPLES)
            else:
                rows = None
            by_step = [list(group) for _, group in groupby(rows or (), lambda row: row["step"])]
            for group in (by_step[0], by_step[-1]) if len(by_step) > 1 else by_step:
                yield from str(template.samples(group[:SHOWN])).splitlines()
