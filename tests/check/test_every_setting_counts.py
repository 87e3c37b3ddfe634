"""Every setting counts: of each there are two recipes that `check` lets through and that differ in
it alone, and they become other files or another plan; of its choices any two do. Copies of the
recipe and hashes of contents, which follow every change, are no such difference."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Iterator
from contextlib import redirect_stdout
from dataclasses import dataclass, replace
from functools import cached_property
from hashlib import sha256
from io import StringIO
from itertools import combinations
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import runner.tools.text
from runner import catalog
from runner.catalog import UnknownArchitecture
from runner.check.by_schema import part as part_of
from runner.check.by_schema import schema
from runner.check.validate import judge, override
from runner.parts.openshift import site
from runner.parts.planner.planned import Planned
from runner.parts.planner.view import views
from runner.parts.start.commands.explain import COPIES
from runner.plan import no_section
from runner.recipe import lock, reading
from runner.recipe.document import Document
from runner.recipe.recipe import Override, Recipe
from runner.scenarios import names, place, planned, translate
from runner.scenarios.render import emit, named
from runner.tools.files import Artifact
from runner.tools.problem import Stop
from tests.check.test_every_leaf import LONG, leaves, with_section
from tests.conftest import ROOT, STARTERS
from tests.drawing import CLUSTER, MACHINES, POOLS, ROWS, places, scenario_of

pytestmark = pytest.mark.heavy

ONLY_REHEARSALS = "only rehearsals read it"
# What neither files nor a plan follow, in each scenario or in the one that is named, and who reads
# it then.
EBFT_SETTINGS = (
    "feature_layers",
    "embed_method",
    "use_whitening",
    "alignment_coef",
    "diversity_coef",
)
ELSEWHERE = {
    "description": "`recipe list` shows it",
    "serve.recipes": "it names other recipes, and tests/parts/serve/test_kserve.py has some",
    "train.effective_batch_size": "it is computed, and another one is refused",
    # Of other samples a plan reads the longest row; images and blocks of text are of one length.
    "image-classification data.sample": ONLY_REHEARSALS,
    "pretrain data.sample": ONLY_REHEARSALS,
    "pretrain data.sets[].sample": ONLY_REHEARSALS,
    "evaluation.sample_task": ONLY_REHEARSALS,
    "rewards.python.sha256": "it is that of the file, and another one is refused",
    **dict.fromkeys(
        (
            f"search.{name}"
            for name in ("over", "between", "trials", "seed", "gpu_hours", "stop_poor")
        ),
        "`recipe search` reads it, and its trials are recipes without it",
    ),
    "nodes.wait_minutes": "plain machines read it in `recipe.json` when they meet",
    **dict.fromkeys(
        (f"last-layers ebft.{name}" for name in EBFT_SETTINGS),
        "last layers alone learn nothing by `objective: ebft`, so `check` refuses it",
    ),
}
# Choices that a scenario's recipes cannot have, whatever stands beside them; `check` says why.
NEVER = {"last-layers train.objective": {"ebft"}}
H100 = "NVIDIA-H100-80GB-HBM3"
NO_SOURCE = {
    f"data.{name}": None
    for name in ("hub", "sets", "subset", "revision", "split", "path", "sample")
}
NOT_HELD_OUT = {f"data.validation_{name}": None for name in ("split", "path", "share")}
ZERO3 = {"machines.gpus_per_node": 2, "distribution": "zero3"}
ON_DISK = {
    "sharding": {
        "offload_optimizer": "nvme",
        "offload_weights": "nvme",
        "nvme_path": "/tmp/offload",
    }
}
SLURM = {"executor": "slurm", "tasks": 4, "partition": "cpu", "time": "24:00:00"}
CODE = {"code_from_git": {"url": "https://example.org/me/code", "commit": "0" * 40}}
# The sample that a context learns from.
OWN_ROWS = "rows"
EXPERTS = {
    "model.base": "LiquidAI/LFM2-8B-A1B",
    "train.lora_rank": 4,
    "train.lora_alpha": 8,
    "train.lora_dropout": 0,
}
RDMA = {"openshift.network": {"kind": "rdma", "rdma_resource": "rdma/rdma_shared_device_a"}}
OWN_CODE = "def reward(question, answer, reference):\n    return 1.0\n\n\ndef other(*texts):\n    return 0.0\n"
ALL_WEIGHTS = {
    "name": "sft",
    "technique": "full",
    "data": {"hub": "me/rows", "question": "[question]", "answer": "[answer]"},
}
FEATURES = {
    "train.objective": "ebft",
    **dict.fromkeys(
        ("rewards", "gates", "speed", "train.packing", "train.cross_entropy", "train.neftune_noise")
    ),
}
# What a setting needs beside it so that it can matter, by how its name begins.
NEEDS: dict[str, dict[str, Any]] = {
    "data.path": {**NO_SOURCE, "data.validation_split": None},
    "data.sets": {
        **NO_SOURCE,
        "data.validation_split": None,
        "data.sets": [{"hub": "me/rows"}, {"hub": "me/more"}],
    },
    "data.packed": {**NO_SOURCE, "tokenizer.base": "openai-community/gpt2"},
    "data.column": {"data.hub": "me/rows", "data.sample": None},
    "data.cleaning": {"data.cleaning": SLURM},
    "data.cleaning.executor": {"data.cleaning": {"executor": "ray", "tasks": 4}},
    "data.cleaning.address": {"data.cleaning": {"executor": "ray", "tasks": 4}},
    "data.cleaning.pods": {"data.cleaning": {"executor": "pods", "pods": 4}},
    "data.question": {"data.sample": None, "data.hub": "me/rows"},
    "data.answer": {"data.sample": None, "data.hub": "me/rows"},
    "data.sets.0.question": {"data.sets.0.answer": "[answer]"},
    "data.sets.0.answer": {"data.sets.0.question": "[question]"},
    "data.files": {**NO_SOURCE, "data.hub": "me/rows"},
    "data.sets.0.files": {"data.sets": [{"hub": "me/rows"}]},
    "data.sets.0.path": {"data.sets.0.hub": None},
    "data.sets.0.answered_by": {"data.sets": [{"hub": "me/rows", "form": "chat_log"}]},
    "data.songs": {"data.sample": None},
    "data.sample": {"data.hub": "me/rows", "data.subset": None},
    "data.sets.0.sample": {"data.sets": [{"hub": "me/rows"}]},
    "data.validation_split": NOT_HELD_OUT,
    "data.validation_path": {**NO_SOURCE, **NOT_HELD_OUT, "data.path": OWN_ROWS},
    "data.validation_share": NOT_HELD_OUT,
    "communication.ddp": {"machines.gpus_per_node": 2, "distribution": "ddp"},
    "data.chat_template": {"model.base": "HuggingFaceTB/SmolLM3-3B"},
    "data.form": {
        **NO_SOURCE,
        "data.hub": "me/rows",
        "data.songs": None,
        "data.question": None,
        "data.answer": None,
    },
    "image.code_from_git": {"image": CODE},
    "model.classes": {"data.hub": "me/images", "data.sample": None},
    "train.curriculum": {
        "train.curriculum": [
            {"sequence_len": 512, "until": 0.5},
            {"sequence_len": 1024, "until": 1},
        ]
    },
    "openshift.data_from": {
        "image": CODE,
        **{f"stages.0.data.{name}": None for name in ("hub", "sample")},
        "stages.0.data.path": OWN_ROWS,
        **NO_SOURCE,
        "data.validation_split": None,
        "data.path": OWN_ROWS,
    },
    "openshift.mirror": {"openshift.connection": "my-s3"},
    "openshift.kueue": {"openshift.queue": "default"},
    "model.trust_remote_code": {"model.revision": "0" * 40},
    "openshift.hardware_profile": {"openshift.hardware_profile": {"name": "gpu"}},
    "openshift.network": {"machines.nodes": 2},
    "openshift.topology": {"machines.nodes": 2, "openshift.queue": "default"},
    "openshift.network.rdma": RDMA,
    "openshift.network.links": RDMA,
    "distribution": {"machines.gpus_per_node": 2},
    "sharding": ZERO3,
    "speed.fp8": {"machines.gpu": H100, "stages": [ALL_WEIGHTS]},
    "speed.persistent_workers": {"speed.data_workers": 2},
    "serve.kind": {"stages": [ALL_WEIGHTS]},
    "sharding.nvme": ON_DISK,
    "sharding.context": {**ZERO3, "model.attention": "flash_attention_2", "train.packing": "none"},
    "sharding.tensor": {
        "machines.gpus_per_node": 2,
        "distribution": "fsdp",
        "model.base": "Qwen/Qwen3-8B",
    },
    "train.simpo_margin": {"train.objective": "simpo"},
    "train.lora_experts": EXPERTS,
    "train.quantize_experts": {**EXPERTS, "train.adapter": "qlora"},
    "train.vllm_memory": {"train.generator": "vllm"},
    "train.vllm_server": {"train.generator": "vllm-server"},
    "ebft": FEATURES,
    "rewards.pattern": {"rewards.pattern": {"matches": "[0-9]"}},
    "rewards.length": {"rewards.length": {"words": 10}},
    "rewards.python": {
        "rewards.python": {"path": "data/own.py", "sha256": sha256(OWN_CODE.encode()).hexdigest()}
    },
    "train.learning_rate_scaling": {"machines.gpus_per_node": 2},
}
# A model outside the catalog: Axolotl has no fused loss for its type, and its chat template is in
# its own tokenizer.
OTHER_MODEL = "me/other"
# Lines beside which choices differ, or one of them is refused, that are alike without them; by how
# the setting ends.
BESIDE: dict[str, list[dict[str, Any]]] = {
    "chat_template": [
        {"model.base": OTHER_MODEL},
        {"model.base": "mistralai/Mistral-7B-Instruct-v0.3"},
    ],
    "cleaning.executor": [
        {"data.cleaning": SLURM},
        {"data.cleaning": {"executor": "pods", "pods": 4}},
    ],
    ".cross_entropy": [{"model.base": OTHER_MODEL}],
    "model.attention": [{"model.base": "openai/gpt-oss-20b", "machines.gpu": H100}],
    # The cluster prepares rows of an image on a claim.
    "data_from": [{"openshift.data_dir": f"{CLUSTER['claims'][0]['mount']}/data"}],
    "compile": [{"machines.gpu": H100, "model.precision": "bf16"}],
    "distribution": [{"machines.gpus_per_node": 1}],
    # A reward model answers nothing.
    "train.objective": [
        {"demo": None, "serve": None, "evaluation": None},
        {name: None for name in FEATURES if name != "train.objective"},
    ],
    "data.form": [{"data.question": "[question]", "data.answer": "[answer]"}],
    "sets.0.form": [{"data.sets.0.question": "[question]", "data.sets.0.answer": "[answer]"}],
    "offload_optimizer": [ON_DISK, {"sharding": {"nvme_path": "/tmp/offload"}}],
    "offload_weights": [ON_DISK],
    "packing": [{"speed.compile": "off"}, {"train.micro_batch_size": 1}],
    "precision": [
        {"model.attention": "sdpa"},
        {"model.attention": "sdpa", "machines.gpu": "Tesla-T4"},
        {"machines.gpu": "NVIDIA-H999"},
        {"machines.gpu": H100},
    ],
}
OF_HUB = "kernels-community/vllm-flash-attn3"
FORMS = (
    "auto",
    "messages",
    "sharegpt",
    "alpaca",
    "prompt_completion",
    "chatgpt",
    "claude",
    "chat_log",
    "text",
    "preferences",
    "prompts",
)
PREFERRING = ("dpo", "ipo", "hinge", "orpo", "simpo", "kto", "reward")
# Choices that no two recipes tell apart, and that `check` does: it lets one of them through beside
# lines where the other is refused.
BY_CHECK = {
    # No model knows ChatML's tokens and has mistral-common's tokenizer.
    "chat_template": [("chatml", "mistral_common")],
    # `auto` is the other wherever that can be, and where it cannot, the other is refused.
    ".cross_entropy": [("auto", "fused")],
    "distribution": [("auto", "fsdp")],
    # Columns ask for templates, which the others refuse, and which `auto` takes for columns; and
    # prompts for rewards.
    "form": [("columns", other) for other in FORMS] + [(other, "prompts") for other in FORMS[:-1]],
    # It is for gpt-oss alone, which has only plain attention beside it.
    "model.attention": [
        (OF_HUB, other) for other in ("flash_attention_2", "flex_attention", "sdpa")
    ],
    # They are for prompts, one with rewards and one without, and the others are for preferences.
    "train.objective": [(other, "grpo") for other in PREFERRING]
    + [(other, "ebft") for other in (*PREFERRING, "grpo")],
    # Each asks for lines of its own, which the others refuse.
    "executor": [
        pair
        for pair in combinations(("local", "pods", "slurm", "ray"), 2)
        if pair != ("local", "ray")
    ],
}
# Starters of another scenario, and the lines that make them one of this, which has only a minimal
# starter.
BORROWED = {
    ("full", "survival"): {"scenario": "full", "train.last_layers": None, "train.lm_head": None}
}
SIZES = ["1 MB", "900 GB"]
# Values where those of the schema and of the draws are too few, by how the setting ends.
VALUES: dict[str, list[Any]] = {
    "code_from_git.commit": ["0" * 40, "1" * 40],
    "data.mean": [[0.5, 0.5, 0.5], [0.4, 0.4, 0.4]],
    "data.std": [[0.5, 0.5, 0.5], [0.4, 0.4, 0.4]],
    "model.hidden_size": [768, 1536],
    "gates": [["validation_loss < 2.5"], ["validation_loss < 3"]],
    "categories.0.questions": [["How?"], ["Why?"]],
    "data.column": ["text", "body"],
    "data.language": ["en", "de"],
    "data.cleaning.time": ["24:00:00", "12:00:00"],
    "data.packed": [f"{up}{name}" for name in ("packed", "other") for up in ("", "../")],
    "lora_layers": [["q_proj"], ["qkv_proj"], ["o_proj"]],
    "lora_pattern": [rf".*\.{name}" for name in ("q_proj", "qkv_proj", "o_proj")],
    "data.sets": [[{"hub": "me/rows"}], [{"hub": "me/rows"}, {"hub": "me/more"}]],
    "data.validation_path": ["data/other-gemma-sample.txt"],
    "network.links": [1, 2, 4],
    "limits.samples_per_second": [1, 10**9],
    "nodes.machines": [MACHINES, MACHINES[:1]],
    "rewards.python.path": ["data/own.py", "data/other-own.py"],
    "rewards.python.function": ["reward", "other"],
    "sharding.file": [
        f"{up}data/{name}.json" for name in ("plain", "sparse") for up in ("", "../")
    ],
    **{
        f"gpu_memory_parts.{name}": SIZES
        for name in (
            "weights",
            "adapter",
            "gradients",
            "optimizer",
            "activations",
            "temporary",
            "reserve",
        )
    },
}
Pairs = set[frozenset[Any]]
# YAML puts those in quotes that could be numbers.
HASH = re.compile(r"'?\b[0-9a-f]{10}\b'?")


def texts(files: list[Artifact]) -> dict[str, str]:
    return {
        file.path: HASH.sub("", file.text)
        for file in files
        if file.path.rpartition("/")[2] not in COPIES
    }


@dataclass(frozen=True)
class Made:
    """What a recipe becomes, each when it is asked for."""

    recipe: Recipe

    @cached_property
    def stages(self) -> str:
        plan = translate(self.recipe, replace(place(self.recipe), checkpoint_keys=None))
        bare = tuple(replace(stage, files=()) for stage in plan.stages)
        return HASH.sub("", repr(replace(plan, stages=bare, site=no_section(), nodes=no_section())))

    @cached_property
    def files(self) -> dict[str, str]:
        """Without the Kubeflow pipeline, which holds copies of the recipe."""
        return texts(emit(self.recipe)) if named(self.recipe) else {}

    @cached_property
    def site(self) -> dict[str, str]:
        there = "openshift" in self.recipe.settings
        return texts(site.render([planned(self.recipe, "pytorchjob")])) if there else {}

    @cached_property
    def report(self) -> str:
        try:
            return views.as_json(Planned.of(self.recipe, 2.5), [], [1], {})
        except UnknownArchitecture:
            return ""

    def differs(self, other: Made) -> bool:
        return any(
            getattr(self, name) != getattr(other, name)
            for name in ("stages", "files", "site", "report")
        )


@dataclass(frozen=True)
class Context:
    """A recipe that settings are tried in; made: what it became with changes, by its text."""

    name: str
    document: Document
    made: dict[str, Made | None]

    def with_changes(self, changes: list[Override]) -> Made | None:
        """What the recipe becomes; None where `check` refuses it."""
        try:
            document = override(self.document, changes)[0]
        except Stop:
            return None
        key = json.dumps(document.data, sort_keys=True, default=str)
        if key not in self.made:
            self.made[key] = accepted(document)
        return self.made[key]


def accepted(document: Document) -> Made | None:
    try:
        recipe, problems = judge(document)
        if recipe is None or any(problem.severity == "error" for problem in problems):
            return None
        made = Made(recipe)
        assert made.stages
        return made
    except Stop:
        return None


def beside(rows: Path) -> Path:
    return rows.with_name(f"other-{rows.name}")


def others(scenario: str, path: tuple[str, ...], part: dict[str, Any]) -> list[Any]:
    """Values to try, those first that are likely to be let through."""
    setting, name = ".".join(path), path[-1]
    if own := next((values for ends, values in VALUES.items() if setting.endswith(ends)), None):
        return own
    if name in ("path", "sample", "validation_path"):
        rows = Path(ROWS[scenario])
        return [f"{before}{file}" for file in (rows, beside(rows)) for before in ("", "../")]
    found = [*part.get("examples", ()), *POOLS.get(name, ()), *part.get("enum", ())]
    match part.get("type"):
        case "boolean":
            found += [True, False]
        case "integer" | "number":
            below, above = part.get("exclusiveMinimum", -1), part.get("exclusiveMaximum", 10**9)
            least, most = part.get("minimum", below), part.get("maximum", above)
            usual = [1, 2, 8, 64, 1024, *([0.1, 0.5] if part["type"] == "number" else [])]
            found += [
                value
                for value in [*usual, least, most]
                if least <= value <= most and below < value < above
            ]
        case "array":
            items = part["items"]
            one = [*items.get("examples", ()), *items.get("enum", ())]
            found += [[value] for value in one] + ([one[:2]] if len(one) > 1 else [])
        case "string":
            found += [f"{value}2" for value in part.get("examples", ())]
    return found


# What `data` says of rows of each kind.
OF_ROWS = {
    "conversations": {
        "sample": ROWS["last-layers"],
        "question": "[question]",
        "answer": "[answer]",
    },
    "songs": {
        "sample": ROWS["lora"],
        "songs": {"count": 100, "instruction": "Instruction", "lyrics": "Label"},
    },
    "text": {"sample": ROWS["causal-lm"], "form": "text", "validation_share": 0.1},
    "preferences": {
        "sample": "data/seven-b-preferences.jsonl",
        "form": "preferences",
        "prompt": "[question]",
    },
    "labels": {"sample": "data/labels.jsonl", "form": "preferences"},
    "prompts": {"sample": "data/arithmetic.jsonl", "form": "prompts", "prompt": "[problem]"},
}


def contexts(scenario: str, recipes: Path) -> list[Context]:
    """Each starter at each place; lines that only double-check the others are left out."""
    found = []
    for starter in (
        path
        for path in STARTERS
        if scenario_of(path) == scenario or (scenario, path.stem) in BORROWED
    ):
        lines = [
            Override(name, None, value, "")
            for name, value in BORROWED.get((scenario, starter.stem), {}).items()
        ]
        document = override(reading.read(recipes / starter.relative_to(ROOT / "recipes")), lines)[0]
        for where, changes in places(scenario).items():
            checks = [
                name for name in ("train.effective_batch_size", "limits") if part_of(scenario, name)
            ]
            without = [Override(name, None, None, "") for name in checks]
            try:
                found.append(
                    Context(
                        f"{starter.stem} {where}", override(document, [*without, *changes])[0], {}
                    )
                )
            except Stop:
                continue
    # And the first one that learns from answers of people, with rows of each other kind.
    if "x-by-rows" in part_of(scenario, "data.form"):
        document = next(
            context.document for context in found if "rewards" not in context.document.data
        )
        up = "../" * (len(Path(document.file).relative_to(recipes).parts) - 1)
        for rows, data in OF_ROWS.items():
            named = {"hub": "me/rows", "sample": f"{up}{data['sample']}"}
            without = {"train.cross_entropy": None, "train.packing": None, "data": data | named}
            without |= {"train.objective": "kto"} if rows == "labels" else {}
            without |= {"rewards": {"number": {}} if rows == "prompts" else None, "gates": None}
            changes = [Override(name, None, value, "") for name, value in without.items()]
            found.append(Context(f"{rows} here", override(document, changes)[0], {}))
    return found


def choices(part: dict[str, Any]) -> tuple[Any, ...]:
    """All that a setting can be; empty where that is no list of choices."""
    return tuple(part.get("enum", (True, False) if part.get("type") == "boolean" else ()))


def tried(contexts: list[Context], scenario: str, path: tuple[str, ...], part: dict[str, Any], beside: dict[str, Any]) -> Iterator[tuple[Context, list[tuple[Any, Made]]]]:  # fmt: skip
    """In each context, the values that are let through, and what the recipe becomes; None is the
    setting left out. beside: lines that each recipe has besides."""
    setting, whole = ".".join(path), schema(scenario)
    needed = [
        (name, value)
        for begins, lines in [*NEEDS.items(), ("", beside)]
        if setting.startswith(begins)
        for name, value in lines.items()
    ]
    for context in contexts:
        homes: list[tuple[str | int, ...]] = [(), ("stages", 0)]
        own = next(
            filter(None, (context.document.lookup((*one, "data", "sample")) for one in homes)), None
        )
        needs = [
            Override(name, None, own if value is OWN_ROWS else value, "needed")
            for name, value in needed
            if part_of(scenario, name)
        ]
        try:
            document = override(context.document, needs)[0]
        except Stop:
            continue
        values = others(scenario, path, part)
        there = [[with_section(document, whole, path, value)] for value in values]
        left_out = [*there[0], Override(setting, None, None, "left out")] if there else []
        found = []
        for value, changes in zip([None, *values], [left_out, *there], strict=False):
            with redirect_stdout(StringIO()):
                made = context.with_changes([*needs, *changes])
            if made:
                found.append((value, made))
                yield context, found


def counts(
    contexts: list[Context], scenario: str, path: tuple[str, ...], part: dict[str, Any]
) -> bool:
    each = tried(contexts, scenario, path, part, {})
    return any(found[-1][1].differs(other) for _, found in each for _, other in found[:-1])


def alike(
    contexts: list[Context], scenario: str, path: tuple[str, ...], part: dict[str, Any]
) -> tuple[Pairs, Pairs]:
    """The pairs of a setting's choices that become the same wherever both are let through: those
    that nothing tells apart, and those that `check` does."""
    left = {frozenset(pair) for pair in combinations(choices(part), 2)}
    taken: list[list[tuple[Any, Made]]] = []
    for beside in ({}, *by_end(BESIDE, path)):
        for _, found in tried(contexts, scenario, path, part, beside):
            taken += [] if taken and taken[-1] is found else [found]
            value, made = found[-1]
            pairs = {frozenset((value, other)): was for other, was in found[:-1]}
            left -= {pair for pair in left & pairs.keys() if made.differs(pairs[pair])}
            if not left:
                return left, left
    values = [{value for value, _ in found} for found in taken]
    by_check = {
        pair
        for pair in left
        if pair <= set().union(*values) and any(len(pair & here) == 1 for here in values)
    }
    return left - by_check, by_check


def by_end(table: dict[str, list[Any]], path: tuple[str, ...]) -> list[Any]:
    return next((lines for ends, lines in table.items() if ".".join(path).endswith(ends)), [])


def muddled(
    contexts: list[Context], scenario: str, path: tuple[str, ...], part: dict[str, Any]
) -> str:
    """What is wrong with a setting's choices; empty where any two are told apart as they should
    be."""
    same, by_check = alike(contexts, scenario, path, part)
    never = NEVER.get(f"{scenario} {'.'.join(path)}", set())
    known = {frozenset(pair) for pair in by_end(BY_CHECK, path)}
    wrong = {pair for pair in same if not pair & never} | by_check ^ {
        pair for pair in known if pair <= set(choices(part)) - never
    }
    return f"{scenario}: {'.'.join(path)}: {sorted(map(sorted, wrong))}" if wrong else ""


def shown(path: tuple[str, ...]) -> str:
    return ".".join(path).replace(".0", "[]")


def elsewhere(scenario: str, path: tuple[str, ...]) -> set[str]:
    """The names by which `ELSEWHERE` has a setting."""
    return ELSEWHERE.keys() & {shown(path), f"{scenario} {'.'.join(path)}".replace(".0", "[]")}


def settings(scenario: str) -> Iterator[tuple[tuple[str, ...], dict[str, Any]]]:
    """Each that can be more than one thing."""
    for path, part in leaves(schema(scenario)):
        if "const" not in part and len(part.get("enum", (0, 1))) > 1:
            yield path, part


def distinct() -> Iterator[tuple[str, tuple[str, ...], dict[str, Any]]]:
    """Each setting once of those that several scenarios say alike; all of those that take long
    stand in the long test."""
    seen = set()
    for scenario in (name for name in names() if name not in LONG):
        for path, part in settings(scenario):
            key = (path, json.dumps(part, sort_keys=True))
            if key not in seen:
                yield scenario, path, part
            seen.add(key)


@pytest.fixture(scope="module")
def recipes(tmp_path_factory):
    """The starters, and beside their data as much of another name."""
    folder = tmp_path_factory.mktemp("recipes") / "recipes"
    shutil.copytree(ROOT / "recipes", folder)
    judged = ("prompt", "chosen", "rejected", "completion", "label")
    (folder / "data" / "labels.jsonl").write_text(json.dumps(dict.fromkeys(judged, "true")) + "\n")
    for name in {*ROWS.values()}:
        shutil.copy(folder / name, folder / beside(Path(name)))
    for length in (512, 1024, 2048):
        for file in (
            f"{name}/{side}-{length}.npy"
            for name in ("packed", "other")
            for side in ("train", "validation")
        ):
            (folder / file).parent.mkdir(exist_ok=True)
            np.save(folder / file, np.zeros((4, length), np.uint16))
    other = replace(catalog.model("google/gemma-3-270m"), model_type="gpt_neox", chat_template="")
    lock.add(folder / lock.LOCK, OTHER_MODEL, lock.entry_of(other, "main"))
    (folder / "minimal" / "data").mkdir()
    for name in (
        "data/own.py",
        "data/other-own.py",
        "minimal/data/own.py",
        "minimal/data/other-own.py",
    ):
        (folder / name).write_text(OWN_CODE)
    (folder / "data" / "plain.json").write_text('{"gradient_clipping": 1.0}')
    (folder / "data" / "sparse.json").write_text('{"steps_per_print": 7}')
    return folder


@pytest.fixture(scope="module", autouse=True)
def written_as_json():
    """Files are only compared here, and YAML takes twenty times as long to write."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(
            runner.tools.text, "yaml", SimpleNamespace(dump=lambda value, **_: json.dumps(value))
        )
        yield


@pytest.fixture(scope="module")
def among(recipes):
    return {scenario: contexts(scenario, recipes) for scenario in names()}


def test_every_setting_changes_a_file_or_the_plan(among):
    found = [one for one in distinct() if not elsewhere(*one[:2])]
    silent = [f"{scenario}: {shown(path)}" for scenario, path, part in found if not counts(among[scenario], scenario, path, part)]  # fmt: skip
    assert len(found) > 200
    assert not silent, silent


def test_what_counts_elsewhere_alone_still_does(among):
    left = {name for name in ELSEWHERE if name.partition(" ")[0] not in LONG}
    for scenario, path, part in distinct():
        if found := elsewhere(scenario, path) & left:
            assert not counts(among[scenario][:1], scenario, path, part), (
                f"`{shown(path)}` changes something by now"
            )
            left -= found
    assert not left, f"no schema has {left}"


@pytest.mark.long
@pytest.mark.parametrize("scenario", names())
def test_every_setting_of_every_scenario_changes_a_file_or_the_plan(among, scenario):
    wrong = [
        shown(path)
        for path, part in settings(scenario)
        if counts(among[scenario], scenario, path, part) == bool(elsewhere(scenario, path))
    ]
    assert not wrong, f"these change nothing, or are in `ELSEWHERE` and do: {wrong}"


@pytest.mark.long
@pytest.mark.parametrize("scenario", names())
def test_any_two_choices_of_every_scenario_are_told_apart(among, scenario):
    wrong = [
        muddled(among[scenario], scenario, path, part)
        for path, part in settings(scenario)
        if choices(part) and not elsewhere(scenario, path)
    ]
    assert not any(wrong), list(filter(None, wrong))
