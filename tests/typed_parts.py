"""The modules that our parts' tables name, as mypy sees them: each is what the contract asks for.

`mypy` reads this file with the package, and `tests/test_parts.py` finds a module that is not in it.
Nobody imports it.
"""

from typing import Any

from runner.check import first_rows
from runner.data import blocks, chat, song_rows, songs
from runner.parts.contract import (
    Callbacks,
    Classifier,
    FileTarget,
    Forecasting,
    Formulas,
    JobTarget,
    Measurer,
    PlacedTarget,
    Preparer,
    RuleModule,
)
from runner.parts.evaluate import metrics
from runner.parts.images import data, predict
from runner.parts.images import formulas as images_formulas
from runner.parts.jobs import pytorchjob, training_metrics, trainjob
from runner.parts.nodes import target as nodes_target
from runner.parts.openshift import rules as openshift_rules
from runner.parts.openshift.kfp import target as kfp_target
from runner.parts.planner import forecasting
from runner.parts.planner import formulas as language_formulas
from runner.parts.planner import rules as planner_rules
from runner.parts.pretrain import training as pretraining
from runner.parts.rewards import functions
from runner.parts.rewards import rules as rewards_rules
from runner.parts.search import pruning, trials
from runner.parts.serve import kserve
from runner.parts.serve import rules as serve_rules

TARGETS: dict[str, FileTarget | JobTarget] = {
    "kfp": kfp_target,
    "kserve": kserve,
    "nodes": nodes_target,
    "pytorchjob": pytorchjob,
    "trainjob": trainjob,
}
PLACED: dict[str, PlacedTarget] = {
    "kfp": kfp_target,
    "kserve": kserve,
    "nodes": nodes_target,
    "pytorchjob": pytorchjob,
    "trainjob": trainjob,
}
FORMULAS: dict[str, Formulas] = {"axolotl": language_formulas, "images": images_formulas}
PREPARERS: dict[str, Preparer[Any]] = {"images": data}
OF_THE_CORE: list[Preparer[Any]] = [blocks, chat, song_rows]
MEASURES: dict[str, Measurer] = {"images": predict}
ASKED: dict[str, Classifier] = {"images": predict}
RULES_OF: dict[str, RuleModule] = {
    "nodes": nodes_target,
    "search": trials,
    "serve": serve_rules,
}
# In the room `check`, and by part.
RULES_OF_THE_CORE: list[RuleModule] = [first_rows, songs]
RULES: dict[str, RuleModule] = {
    "evaluate": metrics,
    "openshift": openshift_rules,
    "planner": planner_rules,
    "rewards": rewards_rules,
}
FORECAST: dict[str, Forecasting] = {"planner": forecasting}
CALLBACKS: dict[str, Callbacks] = {
    "jobs": training_metrics.callbacks,
    "pretrain": pretraining.callbacks,
    "rewards": functions.callbacks,
    "search": pruning.callbacks,
}
