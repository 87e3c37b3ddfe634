"""Scenario pipeline: a model from nothing to a domain adapter, in stages with gates between them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict
from typing import Any

from runner.parts.pretrain import stages as data
from runner.parts.pretrain import training
from runner.parts.pretrain.architecture import AFTER, KINDS, TRAINED, curriculum, parameters
from runner.parts.pretrain.training import FP8_STAGES, precision_of
from runner.plan import EngineConfig, Evaluation, Gate, Place, Plan, Stage
from runner.recipe.recipe import Recipe
from runner.scenarios.shared import axolotl, common, gates, sharding


def translate(recipe: Recipe, place: Place) -> Plan:
    batch = common.effective_batch_size(recipe, recipe.pretrain)
    tokens = {length.name: length.tokens(batch) for length in curriculum(recipe)}
    facts = {
        "world_size": common.world_size(recipe),
        "parameters": parameters(recipe.model),
        "tokens": tokens,
        "tokens_in_all": sum(tokens.values()),
        "precision": {kind: precision_of(recipe, kind) for kind in TRAINED},
        "fp8_stages": list(FP8_STAGES),
    }
    return common.plan(recipe, place, lambda place: _Builder(recipe, place).stages(), facts)


class _Builder:
    """Stages one after the other, each reading what the ones before leave."""

    def __init__(self, recipe: Recipe, place: Place) -> None:
        self.recipe, self.place = recipe, place
        self.gated: Stage | None = None
        self.asked = gates.local_task(recipe)

    def stages(self) -> Iterator[Stage]:
        recipe = self.recipe
        lengths = curriculum(recipe)
        # Only the proportions count, so the data does not change with the number of GPUs.
        tokens = tuple((length.sequence_len, length.tokens(1)) for length in lengths)
        everything = asdict(data.everything(recipe, self.place, tokens))
        share = common.machines(recipe, self.place)
        weights = asdict(data.first_weights(recipe, self.place))
        pods = recipe.data.cleaning.pods if self.place.on_cluster and not recipe.data.packed else None
        prepares = common.work(self.place, common.DATA, everything, share, parts=data.PARTS, pods=pods or 1)
        pretrained = list(self._pretrained())
        after = list(self._after(pretrained[-1].name))
        # A rehearsal holds no GPU, and each of its stages proves its rows when it starts.
        yield self._proving(prepares, after) if self.place.accelerator else prepares
        yield common.work(self.place, "init", weights, share, reads={common.DATA: ("tokenizer/",)})
        yield from pretrained
        yield from after

    def _proving(self, prepares: Stage, trained: list[Stage]) -> Stage:
        """Weeks may lie between the data and these stages, and their model is not there yet; its tokenizer is."""
        tokenizer = f"{self.place.data_dir}/tokenizer"
        return common.proving(self.recipe, self.place, prepares, trained, self.recipe.facts, tokenizer)

    def _pretrained(self) -> Iterator[Stage]:
        lengths, before = curriculum(self.recipe), "init"
        for length in lengths:
            config = training.pretraining(self.recipe, self.place, length, before)
            last = length is lengths[-1]
            yield self._trained("pretrain", length.name, before, config, self.recipe.pretrain, gated=last)
            before = length.name

    def _after(self, before: str) -> Iterator[Stage]:
        """The stages after pretraining. before: the last one of that."""
        for kind in AFTER:
            section = self.recipe.settings.get(kind)
            if section:
                config = training.after_pretraining(self.recipe, self.place, kind, before)
                yield self._trained(kind, kind, before, config, section, gated=True)
                before = kind

    def _trained(
        self, kind: str, name: str, before: str, config: EngineConfig, section: Mapping[str, Any], gated: bool
    ) -> Stage:
        """A stage that Axolotl trains, with the settings that every such stage has."""
        recipe, here, machines = self.recipe, self.place.below(name), common.machines(self.recipe, self.place)
        precision = precision_of(recipe, kind)
        split, split_files = sharding.settings(recipe, here, machines, precision, section["max_grad_norm"])
        whole = config | split
        if kind != "pretrain":
            proof = {"questions": self.asked} if self.asked else {}
            proof |= {"prepared": f"{common.proof_dir(self.place)}/{name}"} if self.place.accelerator else {}
            whole["recipe_runner"] = {**whole["recipe_runner"], **({"proof": proof} if proof else {})}
        whole = axolotl.with_advanced(recipe, whole, kind, ("model", "speed", kind))
        conditions = gates.of(section.get("gates")) if gated else ()
        stage = Stage(
            name=name,
            engine="axolotl",
            config=whole,
            config_file=axolotl.CONFIG_FILE,
            data={},
            files=split_files,
            command=("axolotl", "train", f"{here.config_dir}/{axolotl.CONFIG_FILE}", "--launcher", "torchrun"),
            env=axolotl.environment(recipe, here),
            machines=machines,
            shm_gib=common.shared_memory_gib(machines, most=64),
            folder=name,
            reads={common.DATA: _files_of(kind, config), before: ()},
            gates=conditions,
            evaluation=self._evaluation(kind, conditions),
        )
        if conditions:
            self.gated = stage
        return stage

    def _evaluation(self, kind: str, conditions: tuple[Gate, ...]) -> Evaluation:
        blocks = f"validation-{curriculum(self.recipe)[-1].sequence_len}.npy"
        return gates.evaluation(
            self.recipe,
            KINDS[kind],
            conditions,
            text_blocks=f"{self.place.data_dir}/blocks/{blocks}",
            before=self.gated.name if self.gated else None,
        )


def _files_of(kind: str, config: Mapping[str, Any]) -> tuple[str, ...]:
    """What of the data stage's results a stage reads, so that others may change without it."""
    if kind == "pretrain":
        return tuple(f"blocks/{split}-{config['sequence_len']}.npy" for split in ("train", "validation"))
    return (f"{kind}/",)
