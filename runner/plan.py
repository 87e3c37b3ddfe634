"""Plan: what is to run, on what. It knows nothing of Kubernetes; the targets dress it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

# The recipe with every default, beside the emitted configs.
RECIPE_FILE = "recipe.json"
# What a claim is asked for with where neither the recipe nor an estimate says how much it must hold.
USUAL_CLAIM_GIB = 50


@dataclass(frozen=True)
class Artifact:
    """A file to write: a path relative to the output folder, and its whole text."""

    path: str
    text: str


@dataclass(frozen=True)
class Place:
    """Folders as the training process sees them, all absolute.

    config_dir: the emitted configs; data_dir: prepared data; run_dir: results, shared by all machines;
    scratch_dir: this machine's own, may be lost.
    accelerator: whether there are GPUs; without, processes talk over gloo and DDP stands in for sharding.
    prepared: whether data, and the model where there is one, lie ready before training starts, which then needs no network.
    model_dir: where the base model lies once it has been fetched; None where training fetches it from the hub itself.
    files_dir: where pods have the recipe's data files; None where they are read from beside the recipe.
    run_key: names the checkpoints of one recipe, where nobody looks after the run folder: training goes on from what it
    finds there, and must not go on from those of the recipe as it was before it changed. run_keys: of several stages
    each one's own, by its folder, so that a change begins only those stages anew that it concerns.
    """

    config_dir: str
    data_dir: str
    run_dir: str
    scratch_dir: str
    accelerator: bool = True
    prepared: bool = False
    model_dir: str | None = None
    files_dir: str | None = None
    run_key: str = ""
    run_keys: Mapping[str, str] = field(default_factory=dict)

    def below(self, folder: str) -> Place:
        """This place for one stage of several: configs, results and scratch in folders of its own, data shared."""
        if not folder:
            return self
        return replace(
            self,
            config_dir=f"{self.config_dir}/{folder}",
            run_dir=f"{self.run_dir}/{folder}",
            scratch_dir=f"{self.scratch_dir}/{folder}",
            run_key=self.run_keys.get(folder, self.run_key),
        )

    @property
    def tokenised_dir(self) -> str:
        """Tokenised rows: beside the data where everything is prepared ahead, else each machine's own."""
        return f"{self.data_dir if self.prepared else self.scratch_dir}/tokenised"

    @property
    def checkpoints_dir(self) -> str:
        return f"{self.run_dir}/checkpoints" + (f"/{self.run_key}" if self.run_key else "")

    @property
    def best_model_dir(self) -> str:
        return f"{self.run_dir}/best_model"


@dataclass(frozen=True)
class Machines:
    """Machines, each with `gpus_per_node` GPUs; memory in GiB, per machine.

    uneven: the GPUs of each machine where they have not equally many, else empty.
    memory_limit_gib, cpus_limit: the most that a machine may take; None where it is what it is promised.
    """

    nodes: int
    gpus_per_node: int
    gpu: str
    memory_gib: int
    cpus: int
    memory_limit_gib: int | None = None
    cpus_limit: int | None = None
    uneven: tuple[int, ...] = ()

    @property
    def world_size(self) -> int:
        return sum(self.uneven) or self.nodes * self.gpus_per_node


@dataclass(frozen=True)
class Gate:
    """A condition that a stage's evaluation must meet: `metric comparison threshold`, for example `perplexity < 15`."""

    metric: str
    comparison: str
    threshold: float

    def __str__(self) -> str:
        return f"{self.metric} {self.comparison} {self.threshold:g}"


@dataclass(frozen=True)
class Stage:
    """One piece of work of one engine: a training run, or what must lie ready before one.

    engine: who trains, a key of `runner.execute.engines.ENGINES`.
    config: the engine's settings; config_file: the name they are written under.
    data: what must be prepared first, read by `runner.execute.data`: `kind` picks the preparer.
    files: what lies in `config_dir` when the stage starts, `config_file` among them.
    command: for a machine of a cluster; the launcher fills in rank and address from the environment.
    env: environment of every process. shm_gib: shared memory that the data loader and NCCL may use, GiB.
    folder: where its files and results lie, below the plan's; empty where the plan has one stage.
    reads: the stages whose results it reads, each with the beginnings of the files' names; () means all of them.
    parts: of a stage whose results are read apart, each part by its folder, with the names of the settings that it is made from.
    keys: a hash of all that its results depend on, under "", and one for each part (see `runner.inputs.keys`).
    gates, evaluation: what it must prove, and how that is measured, read by `runner.execute.evaluate`.
    model: what must be fetched into `place.model_dir` first (`base`, `revision`); None where there is nothing to fetch.
    needs: bytes of `gpu_memory` on each GPU and of `memory` on each machine by estimate; empty where none was made.
    """

    name: str
    engine: str
    config: Mapping[str, Any]
    config_file: str
    data: Mapping[str, Any]
    files: tuple[Artifact, ...]
    command: tuple[str, ...]
    env: Mapping[str, str]
    machines: Machines
    shm_gib: int
    folder: str = ""
    reads: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    parts: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    keys: Mapping[str, str] = field(default_factory=dict)
    gates: tuple[Gate, ...] = ()
    evaluation: Mapping[str, Any] = field(default_factory=dict)
    model: Mapping[str, Any] | None = None
    needs: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True)
class Plan:
    """What a recipe means, in full.

    fingerprint: hash of every setting that can change the result.
    place: the folders that the stages' configs name.
    site: the recipe's settings for the cluster, nodes: those for plain machines; only targets read them.
    code_from_git: `url` and `commit` of the code that pods clone before they start; None where it is in their image.
    facts: computed figures that people ask about (effective batch, scaled learning rate, …).
    claims_gib: what to ask for where a claim states no size, by the claim's name; empty where no estimate was made.
    most_nodes: machines of the largest stage, where this is one of several that share the claims.
    """

    name: str
    scenario: str
    fingerprint: str
    place: Place
    stages: tuple[Stage, ...]
    site: Mapping[str, Any] = field(default_factory=dict)
    code_from_git: Mapping[str, Any] | None = None
    nodes: Mapping[str, Any] = field(default_factory=dict)
    facts: Mapping[str, Any] = field(default_factory=dict)
    claims_gib: Mapping[str, int] = field(default_factory=dict)
    most_nodes: int = 1

    def claim_gib(self, name: str) -> int:
        """What a claim is asked for with: what the recipe says, else what the estimate says, else a usual size."""
        stated = next(claim for claim in self.site["claims"] if claim["name"] == name).get("size_gib")
        return stated or self.claims_gib.get(name, USUAL_CLAIM_GIB)

    def place_of(self, stage: Stage) -> Place:
        return self.place.below(stage.folder)

    def only(self, stage: Stage) -> Plan:
        """One stage of several as a plan of its own, named after both."""
        if not stage.folder:
            return self
        job = self.site.get("job_name")
        site = dict(self.site) | ({"job_name": f"{job}-{stage.name}"} if job else {})
        return replace(
            self,
            name=f"{self.name}-{stage.name}",
            place=self.place_of(stage),
            stages=(stage,),
            site=site,
            most_nodes=max(other.machines.nodes for other in self.stages),
        )
