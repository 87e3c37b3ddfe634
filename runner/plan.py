"""Plan: what is to run, on what, as a list of stages. It knows nothing of Kubernetes; the targets dress it."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Literal

from runner.tools.files import Artifact, Record
from runner.tools.names import content_hash, listed, nearest
from runner.tools.problem import Stop
from runner.tools.run_files import BEST_MODEL, CHECKPOINTS

# The recipe with every default, beside the emitted configs.
RECIPE_FILE = "recipe.json"
# The plan up to a stage, beside the stage's config, for the pod that runs or measures it.
PLAN_FILE = "plan.json"
# The engine of stages that train nothing: the runner's own work, on a machine that needs no GPU.
RUNNER = "runner"
# Where runs on this machine lie, below the current folder.
RUNS = "runs"
# What a claim is asked for with where neither the recipe nor an estimate says how much it must hold.
USUAL_CLAIM_GIB = 50


@dataclass(frozen=True)
class Place:
    """Folders as the training process sees them, all absolute.

    config_dir: the emitted configs; data_dir: prepared data; run_dir: results, shared by all machines;
    scratch_dir: this machine's own, may be lost.
    accelerator: whether there are GPUs; without, processes talk over gloo and DDP stands in for sharding.
    on_cluster: whether stages run in pods, where nobody looks after the run folder between them.
    prepared: whether data, and the model where there is one, lie ready before training starts, which then needs no network.
    model_dir: where the base model lies once it has been fetched; None where training fetches it from the hub itself.
    files_dir: where pods have the recipe's data files; None where they are read from beside the recipe.
    checkpoint_keys: on a cluster, what names the checkpoints of a stage, by the stage's folder. Training goes on from those
    that it finds there, and must not go on from those of the recipe as it was before it changed. None names none, for whoever only
    judges a plan, whose stages then have no keys: a name is known when all stages are, which then are made once more.
    """

    config_dir: str
    data_dir: str
    run_dir: str
    scratch_dir: str
    accelerator: bool = True
    on_cluster: bool = False
    prepared: bool = False
    model_dir: str | None = None
    files_dir: str | None = None
    checkpoint_keys: Mapping[str, str] | None = field(default_factory=dict)

    def below(self, folder: str) -> Place:
        """This place for one stage: configs, results and scratch in folders of its own, data shared."""
        key = (self.checkpoint_keys or {}).get(folder)
        keys = {"": key} if key else {}
        if not folder:
            return replace(self, checkpoint_keys=keys)
        return replace(
            self,
            config_dir=f"{self.config_dir}/{folder}",
            run_dir=f"{self.run_dir}/{folder}",
            scratch_dir=f"{self.scratch_dir}/{folder}",
            checkpoint_keys=keys,
        )

    @property
    def tokenised_dir(self) -> str:
        """Tokenised rows: beside the data where everything is prepared ahead, else each machine's own."""
        return f"{self.data_dir if self.prepared else self.scratch_dir}/tokenised"

    @property
    def checkpoints_dir(self) -> str:
        key = (self.checkpoint_keys or {}).get("")
        return f"{self.run_dir}/{CHECKPOINTS}" + (f"/{key}" if key else "")

    @property
    def best_model_dir(self) -> str:
        return f"{self.run_dir}/{BEST_MODEL}"


@dataclass(frozen=True)
class Prediction(Record):
    """What was planned for a stage: bytes of each GPU, seconds, counts; None for what could not be told.

    gpu: as people call it. memory: what the run needs; tensors: of that what PyTorch calls allocated; usable: what the card
    has; least and most: between which a figure lies in nine of ten cases. label: the card as recipes name it. step_seconds: of a
    step, waiting_seconds: of it spent waiting for other GPUs, both by the formulas alone, whatever is known of this card.
    """

    stage: str = ""
    gpu: str = ""
    gpus: int = 0
    steps: int | None = None
    seconds: float | None = None
    seconds_least: float | None = None
    seconds_most: float | None = None
    memory: int | None = None
    memory_least: int | None = None
    memory_most: int | None = None
    tensors: int | None = None
    usable: int | None = None
    label: str = ""
    step_seconds: float | None = None
    waiting_seconds: float | None = None


@dataclass(frozen=True)
class Machines:
    """Machines, each with `gpus_per_node` GPUs.

    memory_gib, cpus: what the run may use of each; in pods these are their limits.
    requested_memory_gib, requested_cpus: what pods are promised; None where that is as much.
    uneven: the GPUs of each machine where they have not equally many, else empty.
    """

    nodes: int
    gpus_per_node: int
    gpu: str
    memory_gib: float
    cpus: int
    requested_memory_gib: float | None = None
    requested_cpus: int | None = None
    uneven: tuple[int, ...] = ()

    @property
    def world_size(self) -> int:
        return sum(self.uneven) or self.nodes * self.gpus_per_node

    @property
    def one_gpu(self) -> Machines:
        """One GPU, where there are any, and the share of its machine that goes with it: what one process needs."""
        shares = max(1, self.gpus_per_node)
        promised, cpus = self.requested_memory_gib, self.requested_cpus
        return Machines(
            nodes=1,
            gpus_per_node=min(1, self.gpus_per_node),
            gpu=self.gpu,
            memory_gib=max(1, self.memory_gib // shares),
            cpus=max(1, self.cpus // shares),
            requested_memory_gib=max(1, promised // shares) if promised else None,
            requested_cpus=max(1, cpus // shares) if cpus else None,
        )


@dataclass(frozen=True)
class Gate:
    """A condition that a stage's evaluation must meet: `metric comparison threshold`, for example `perplexity < 15`."""

    metric: str
    comparison: str
    threshold: float

    def __str__(self) -> str:
        return f"{self.metric} {self.comparison} {self.threshold:g}"


# What a stage learns from.
Kind = Literal["text", "chat", "preferences", "images"]


@dataclass(frozen=True)
class Evaluation:
    """How a stage is measured.

    metrics: the names of what its gates ask for. seed: of draws where there are more rows than are measured.
    tasks: of lm-eval; sample_task: a file that stands in for them; limit: rows of each task, all of them where None;
    batch_size: rows at a time. prompt: what the model goes on with. text_blocks: held-out blocks of tokens, a `.npy` file.
    asked: kinds of questions whose answers are counted apart, each by words that are in it.
    rows: the folder of the held-out rows where training does not leave them in its own.
    before: the stage whose metrics a `regression` is against.
    """

    kind: Kind
    metrics: tuple[str, ...] = ()
    seed: int = 0
    tasks: tuple[str, ...] = ()
    sample_task: str | None = None
    limit: int | None = None
    batch_size: int = 1
    prompt: str = ""
    text_blocks: str = ""
    asked: Mapping[str, str] = field(default_factory=dict)
    rows: str = ""
    before: str | None = None


@dataclass(frozen=True)
class Stage:
    """One piece of work of one engine: a training run, or what must lie ready before one.

    engine: who does it, a key of `runner.run.engines.ENGINES`.
    config: the engine's settings; config_file: the name they are written under.
    data: what a training stage learns from, the JSON form of the dataclass that a preparer takes; `kind` picks it.
    files: what lies in `config_dir` when the stage starts, `config_file` among them.
    command: for a machine of a cluster; the launcher fills in rank and address from the environment.
    env: environment of every process. shm_gib: shared memory that the data loader and NCCL may use, GiB.
    folder: where its files and results lie, below the plan's; empty for the plan's own folders.
    reads: the stages whose results it reads, each with the beginnings of the files' names; () means all of them.
    parts: of a stage whose results are read apart, each part by its folder, with the names of the settings that it is made from.
    keys: a hash of all that its results depend on, under "", and one for each part (see `keys`).
    gates, evaluation: what it must prove, and how it is measured; None where nothing is.
    model: what must be fetched into `place.model_dir` first (`base`, `revision`); None where there is nothing to fetch.
    needs: bytes of `gpu_memory` on each GPU and of `memory` on each machine by estimate, `tokens_per_second` or, of images,
    `samples_per_second` over all GPUs, and the `price_per_gpu_hour` that the recipe names; empty where no estimate was made.
    grace_seconds: what a machine that is taken back needs to save where it is, by estimate; None where none was made.
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
    evaluation: Evaluation | None = None
    model: Mapping[str, Any] | None = None
    needs: Mapping[str, float] = field(default_factory=dict)
    grace_seconds: int | None = None

    @property
    def trains(self) -> bool:
        return self.engine != RUNNER


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
    has_gates: whether a stage of the whole plan has some, so that what is measured must be sealed.
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
    has_gates: bool = False

    def claim_gib(self, name: str) -> int:
        """What a claim is asked for with: what the recipe says, else what the estimate says, else a usual size."""
        stated = next(claim for claim in self.site["claims"] if claim["name"] == name).get("size_gib")
        return stated or self.claims_gib.get(name, USUAL_CLAIM_GIB)

    def claim_of(self, folder: str) -> Mapping[str, Any] | None:
        """The claim that a folder lies on; None for the pod's own disk or the image."""
        claims: list[Mapping[str, Any]] = [
            claim
            for claim in self.site.get("claims") or ()
            if f"{folder}/".startswith(claim["mount"].rstrip("/") + "/")
        ]
        return max(claims, key=lambda claim: len(claim["mount"]), default=None)

    def place_of(self, stage: Stage) -> Place:
        return self.place.below(stage.folder)

    def stage(self, name: str) -> Stage:
        """The stage of that name. Raises Stop (exit 2) where there is none."""
        stages = {stage.name: stage for stage in self.stages}
        if name in stages:
            return stages[name]
        near = nearest(name, stages)
        raise Stop(
            f"`{self.name}` has no stage `{name}`.",
            (f"Did you mean `{near}`? " if near else "") + f"Its stages are {listed(stages)}.",
            code=2,
        )

    def guards(self, stage: Stage) -> list[Stage]:
        """The stages with a gate that this one goes back to, in their order: each may have been tightened since."""
        behind, names = set(), list(stage.reads)
        while names:
            if (name := names.pop()) not in behind:
                behind.add(name)
                names += self.stage(name).reads
        return [other for other in self.stages if other.name in behind and other.gates]

    def upto(self, stage: Stage) -> Plan:
        """What the pod of a stage has to know: this stage and those before it, without the texts of their files."""
        names = [other.name for other in self.stages]
        known = self.stages[: names.index(stage.name) + 1]
        return replace(self, stages=tuple(replace(other, files=()) for other in known))

    def as_json(self) -> str:
        return json.dumps(asdict(self), indent=1, ensure_ascii=False) + "\n"

    @staticmethod
    def read(text: str) -> Plan:
        """The plan that `as_json` wrote. Raises ValueError where the text is none."""
        from pydantic import TypeAdapter

        plan: Plan = TypeAdapter(Plan).validate_json(text)
        return plan

    def only(self, stage: Stage) -> Plan:
        """One stage of several as a plan of its own, named after both."""
        if not stage.folder:
            return replace(self, stages=(stage,))
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


# Settings of an engine that change what is shown, kept or how fast, and not what is learned.
_NEUTRAL = {
    "logging_steps",
    "save_total_limit",
    "dataset_prepared_path",
    "dataloader_num_workers",
    "use_tensorboard",
    "use_wandb",
    "use_mlflow",
    "wandb_project",
    "mlflow_experiment_name",
    "recipe_runner.fingerprint",
    "recipe_runner.name",
    "recipe_runner.persistent_workers",
    "recipe_runner.time_limit_seconds",
    "recipe_runner.time_limit_earlier",
    # Checkpoints beside those that are evaluated.
    "recipe_runner.save_steps",
    "run_dir",
    "out",
    "proofs",
    "on_claim",
    # What is asked after training, and how long its answers may be, teaches nothing.
    "recipe_runner.demo.questions",
    "recipe_runner.demo.of_rows",
    "recipe_runner.demo.max_new_tokens",
    # Where checkpoints lie; which ones are gone on from is said by the steps and the stages before.
    "output_dir",
    "recipe_runner.blocks.continue_from",
    # What preparing says of the steps that its rows make.
    "data.effective_batch_size",
    "data.epochs",
    "data.warmup_steps",
    "data.eval_steps",
}
# Where text is cleaned changes no document, and what is proven of rows none of them; for which settings that was, `proven_for` says.
_NEUTRAL_PARTS = ("cleaning.", "recipe_runner.demo.categories.", "recipe_runner.proof.", "proofs.")


def learned_from(config: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """An engine's settings that decide what comes out, flat, by a name that a person understands."""
    for name, value in flat(config):
        neutral = name in _NEUTRAL or name.startswith(_NEUTRAL_PARTS)
        if not neutral and not (name.startswith(("datasets.", "test_datasets.")) and name.endswith(".path")):
            yield name, value


def flat(value: Any, name: str = "") -> Iterator[tuple[str, Any]]:
    """Settings within settings as one level, by dotted names."""
    if isinstance(value, str | int | float):
        yield name, value
    elif isinstance(value, Mapping):
        for key, item in value.items():
            yield from flat(item, f"{name}.{key}" if name else str(key))
    elif isinstance(value, list | tuple) and any(isinstance(item, Mapping) for item in value):
        if name.endswith(".sets") and len(value) == 1:
            # A data set that is the only one stands in its section itself, as in most recipes.
            yield from flat(value[0], name.removesuffix(".sets"))
            return
        for index, item in enumerate(value):
            yield from flat(item, f"{name}.{index}")
    else:
        yield name, value


def without_place(value: Any, place: Place) -> Any:
    """Folders of a run are named relative to it, so that a moved run folder is the same run."""
    if not isinstance(value, str):
        return value
    for label, folder in (("DATA", place.data_dir), ("CONFIG", place.config_dir), ("RUN", place.run_dir)):
        value = value.replace(folder, label)
    return value


def keys(stages: Iterable[Stage], place: Place) -> dict[str, dict[str, str]]:
    """For each stage by name: a hash of all that its results depend on, the stages before it included, under "" for all
    of them and under each name of `Stage.parts` for that part. Equal settings, equal keys, whatever the rest says."""
    by_stage: dict[str, dict[str, str]] = {}
    for stage in stages:
        own = {name: without_place(value, place) for name, value in learned_from(stage.config)}
        before = {name: read_keys(by_stage[name], beginnings) for name, beginnings in stage.reads.items()}
        by_stage[stage.name] = {"": content_hash([stage.name, own, before])}
        for part, settings in stage.parts.items():
            chosen = {name: value for name, value in own.items() if name.split(".")[0] in settings}
            by_stage[stage.name][part] = content_hash([stage.name, part, chosen, before])
    return by_stage


def read_keys(keys_of_stage: Mapping[str, str], beginnings: Iterable[str]) -> dict[str, str | None]:
    """Of a stage's keys those of the parts that another stage reads, named by the beginnings of files' names."""
    parts = sorted({beginning.split("/")[0] for beginning in beginnings}) or [""]
    return {part: keys_of_stage.get(part) for part in parts}
