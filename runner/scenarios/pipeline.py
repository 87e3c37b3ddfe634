"""Scenario pipeline: a model from nothing to a domain adapter, in stages with gates between them."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from runner import inputs, plan_file
from runner.plan import Artifact, Gate, Machines, Place, Plan, Stage
from runner.recipe import gates
from runner.recipe.architecture import parameters
from runner.recipe.curriculum import AFTER
from runner.recipe.pipeline import TRAINED
from runner.recipe.recipe import Recipe
from runner.scenarios import axolotl, pipeline_data, sharding, shared
from runner.scenarios import pipeline_numbers as numbers
from runner.scenarios import pipeline_training as training
from runner.scenarios.curriculum import curriculum
from runner.text import yaml_text

WORK_FILE = "work.json"


def translate(recipe: Recipe, place: Place) -> Plan:
    place, stages = _stages(recipe, place)
    batch = shared.machines(recipe).world_size * recipe.pretrain.micro_batch_size
    batch *= recipe.pretrain.gradient_accumulation_steps
    tokens = {length.name: length.tokens(batch) for length in curriculum(recipe)}
    return Plan(
        name=recipe.name,
        scenario=recipe.scenario,
        fingerprint=recipe.fingerprint,
        place=place,
        site=recipe.settings.get("openshift") or {},
        code_from_git=recipe.code_from_git,
        stages=stages,
        facts={
            "world_size": shared.machines(recipe).world_size,
            "parameters": parameters(recipe.model),
            "tokens": tokens,
            "tokens_in_all": sum(tokens.values()),
            "precision": {kind: numbers.precision(recipe, kind) for kind in TRAINED},
        },
    )


def _stages(recipe: Recipe, place: Place) -> tuple[Place, tuple[Stage, ...]]:
    """The stages with their keys, and the place with them. On a cluster each has its checkpoints under its own, and its
    pods look for themselves whether the stages before it are finished and their gates open, because nobody else is sure to."""
    bare = list(_Builder(recipe, replace(place, run_key=""), written=False).stages())
    keys = inputs.keys(bare, place)
    if place.run_key:
        place = replace(place, run_keys={stage.folder: keys[stage.name][""] for stage in bare})
    stages = [replace(stage, keys=keys[stage.name]) for stage in _Builder(recipe, place).stages()]
    if not place.run_key:
        return place, tuple(stages)
    return place, tuple(_guarded(recipe, place, stages[:number]) for number, _ in enumerate(stages, 1))


def _guarded(recipe: Recipe, place: Place, stages: list[Stage]) -> Stage:
    """The last of these stages, its command behind the check of the others."""
    stage = stages[-1]
    file = f"{place.below(stage.folder).config_dir}/{plan_file.FILE}"
    return replace(
        stage,
        command=("python", "-m", "runner.execute.step", "run", file, "--", *stage.command),
        files=(*stage.files, Artifact(plan_file.FILE, plan_file.text(recipe.name, recipe.scenario, place, stages))),
    )


class _Builder:
    """Stages one after the other, each reading what the ones before leave. written: with the texts of their files."""

    def __init__(self, recipe: Recipe, place: Place, written: bool = True) -> None:
        self.recipe, self.place, self.written = recipe, place, written
        self.gated: Stage | None = None

    def stages(self) -> Iterator[Stage]:
        recipe = self.recipe
        lengths = curriculum(recipe)
        # Only the proportions count, so the data does not change with the number of GPUs.
        tokens = [(length.sequence_len, length.tokens(1)) for length in lengths]
        everything = pipeline_data.everything(recipe, self.place, tokens)
        yield replace(self._work("data", {}, everything), parts=pipeline_data.PARTS)
        yield self._work("init", {"data": ("tokenizer/",)}, pipeline_data.first_weights(recipe, self.place))
        before = "init"
        for length in lengths:
            last = length is lengths[-1]
            config = training.pretraining(recipe, self.place, length, before)
            yield self._trained("pretrain", length.name, before, config, recipe.pretrain, gated=last)
            before = length.name
        for kind in AFTER:
            section = recipe.settings.get(kind)
            if section:
                config = training.CONFIGS[kind](recipe, self.place, before)
                yield self._trained(kind, kind, before, config, section, gated=True)
                before = kind

    def _work(self, name: str, reads: Mapping[str, tuple[str, ...]], work: Mapping[str, Any]) -> Stage:
        """Work of the runner's own, on one machine without a GPU."""
        here, machines = self.place.below(name), shared.machines(self.recipe)
        work = {**work, "run_dir": here.run_dir}
        text = json.dumps(work, indent=2, ensure_ascii=False) + "\n"
        return Stage(
            name=name,
            engine="runner",
            config=work,
            config_file=WORK_FILE,
            data={},
            files=(Artifact(WORK_FILE, text),),
            command=("python", "-m", "runner.execute.work", f"{here.config_dir}/{WORK_FILE}"),
            env={"TOKENIZERS_PARALLELISM": "true"} if name == "data" else {},
            machines=Machines(1, 0, "GPUs", machines.memory_gib, machines.cpus),
            shm_gib=1,
            folder=name,
            reads=reads,
        )

    def _trained(
        self, kind: str, name: str, before: str, config: dict[str, Any], section: Mapping[str, Any], gated: bool
    ) -> Stage:
        """A stage that Axolotl trains, with the settings that every such stage has."""
        recipe, here, machines = self.recipe, self.place.below(name), shared.machines(self.recipe)
        precision = numbers.precision(recipe, kind)
        split, split_files = sharding.settings(recipe, here, machines, precision, section["max_grad_norm"])
        whole = config | split
        whole = axolotl.with_advanced(recipe, whole, kind, ("model", "speed", kind))
        wanted = tuple(gates.parse(text) for text in section.get("gates") or ()) if gated else ()
        stage = Stage(
            name=name,
            engine="axolotl",
            config=whole,
            config_file=axolotl.CONFIG_FILE,
            data={},
            files=self._files(whole, split_files) if self.written else (),
            command=("axolotl", "train", f"{here.config_dir}/{axolotl.CONFIG_FILE}", "--launcher", "torchrun"),
            env=axolotl.environment(recipe, here),
            machines=machines,
            shm_gib=shared.shared_memory_gib(machines, most=64),
            folder=name,
            reads={"data": _files_of(kind, config), before: ()},
            gates=wanted,
            evaluation=self._evaluation(kind, before, wanted) if wanted else {},
        )
        if wanted:
            self.gated = stage
        return stage

    def _files(self, config: dict[str, Any], split_files: tuple[Artifact, ...]) -> tuple[Artifact, ...]:
        own = Artifact(axolotl.CONFIG_FILE, axolotl.header(self.recipe) + yaml_text(config))
        return own, shared.recipe_file(self.recipe), *split_files

    def _evaluation(self, kind: str, before: str, wanted: tuple[Gate, ...]) -> dict[str, Any]:
        """How a gated stage is measured. `before` is the stage to compare with; `base` what an adapter sits on."""
        chosen = self.recipe.evaluation
        task = chosen.sample_task
        return {
            "kind": kind,
            "tasks": list(chosen.tasks or ()),
            "sample_task": str(self.recipe.folder / task) if task and _is_local(self.recipe) else None,
            "limit": chosen.limit,
            "batch_size": chosen.batch_size,
            "prompt": chosen.prompt,
            "text_blocks": f"{self.place.data_dir}/blocks/validation-{curriculum(self.recipe)[-1].sequence_len}.npy",
            "before": self.gated.name if self.gated else None,
            "base": self.place.below(before).best_model_dir if kind == "lora" else None,
            "metrics": [gate.metric for gate in wanted],
        }


def _files_of(kind: str, config: Mapping[str, Any]) -> tuple[str, ...]:
    """What of the data stage's results a stage reads, so that others may change without it."""
    if kind == "pretrain":
        return tuple(f"blocks/{side}-{config['sequence_len']}.npy" for side in ("train", "validation"))
    return (f"{kind}/",)


def _is_local(recipe: Recipe) -> bool:
    """Whether the task that is measured is the sample itself, as in a rehearsal."""
    return list(recipe.evaluation.tasks or ()) == [SAMPLE_TASK]


SAMPLE_TASK = "sample"
