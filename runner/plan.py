"""Plan: what runs on which machines, as a list of stages. It is independent of Kubernetes, which
the targets add."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import PurePosixPath
from typing import TYPE_CHECKING, Any, Literal

from runner.tools import packaged
from runner.tools.files import Artifact, Record, content_hash, normal
from runner.tools.problem import Stop, did_you_mean, listed
from runner.tools.run_files import BEST_MODEL, CHECKPOINTS
from runner.tools.settings import Section, Settings

if TYPE_CHECKING:
    from runner.recipe.sections import ImageCodeFromGit, Nodes, Openshift, OpenshiftClaims
else:  # for pydantic, which reads a plan's JSON
    ImageCodeFromGit = Nodes = Openshift = Section

RECIPE_FILE = "recipe.json"  # the recipe with every default, beside the emitted configs
# The plan up to a stage, beside the stage's config, for the pod that runs or measures it.
PLAN_FILE = "plan.json"
# The engine of stages that train nothing: the runner's own work, on a machine that needs no GPU.
RUNNER = "runner"
RUNS = "runs"  # the folder of runs on this machine, below the current folder
USUAL_CLAIM_GIB = 50  # the size of a claim if neither the recipe nor an estimate gives one

# In the config of the stage that prepares rows for several trainings, the keys of each one's rows
# begin so: a training may have the name of any other key.
ROWS_KEY = "rows_of_"


def rows_key(stage_name: str) -> str:
    return f"{ROWS_KEY}{stage_name}"


EngineConfig = dict[str, Any]  # an engine's settings, under the engine's own names
RowsRequest = Mapping[str, Any]  # the rows to prepare: one of the dataclasses for it, as JSON


@dataclass(frozen=True)
class Place:
    """Folders as the training process sees them, all absolute."""

    config_dir: str
    data_dir: str
    run_dir: str  # results, shared by all machines
    scratch_dir: str  # this machine's own folder; it may be lost
    # Whether there are GPUs; without them, processes communicate over gloo, and DDP replaces
    # sharding.
    accelerator: bool = True
    on_cluster: bool = (
        False  # whether stages run in pods, so that no process manages the run folder between them
    )
    # whether data and base model are ready before training starts, so that it needs no network
    prepared: bool = False
    # The base model's folder once it has been downloaded; None if training downloads it from the
    # hub itself.
    model_dir: str | None = None
    # The folder of the recipe's data files in pods; None if they are read from the recipe's folder.
    files_dir: str | None = None
    # On a cluster, the subfolder of each stage's checkpoints, by the stage's folder, so that a
    # changed recipe does not resume from old checkpoints. None if the plan is only judged: for
    # keys, all stages would be built twice.
    checkpoint_keys: Mapping[str, str] | None = field(default_factory=dict)

    def below(self, folder: str) -> Place:
        """This place for one stage: configs, results and scratch in folders of its own, data
        shared."""
        key = (self.checkpoint_keys or {}).get(folder)
        end = f"/{folder}" if folder else ""
        return replace(
            self,
            config_dir=f"{self.config_dir}{end}",
            run_dir=f"{self.run_dir}{end}",
            scratch_dir=f"{self.scratch_dir}{end}",
            checkpoint_keys={"": key} if key else {},
        )

    @property
    def checkpoints_dir(self) -> str:
        key = (self.checkpoint_keys or {}).get("")
        return f"{self.run_dir}/{CHECKPOINTS}" + (f"/{key}" if key else "")

    @property
    def best_model_dir(self) -> str:
        return f"{self.run_dir}/{BEST_MODEL}"


@dataclass(frozen=True)
class Prediction(Record):
    """The estimates for a stage: bytes on each GPU, seconds, counts; None if there is no estimate.
    In nine of ten cases the true value is between `least` and `most`."""

    stage: str = ""
    gpu: str = ""  # the GPU's name in messages
    gpus: int = 0
    steps: int | None = None
    seconds: float | None = None
    seconds_least: float | None = None
    seconds_most: float | None = None
    memory: int | None = None  # memory that the run needs
    memory_least: int | None = None
    memory_most: int | None = None
    tensors: int | None = None  # the part of `memory` that PyTorch calls allocated
    usable: int | None = None  # memory that the card has
    label: str = ""  # the GPU's name in recipes
    download: int | None = None  # bytes of the base model on the hub
    step_seconds: float | None = (
        None  # the time of one step by the formulas alone, without measurements on this card
    )
    waiting_seconds: float | None = None  # the part of `step_seconds` spent waiting for other GPUs

    @property
    def too_large(self) -> bool:
        """Whether even the lower bound of its memory exceeds the card's; False if either is
        unknown."""
        return bool(self.usable and (self.memory_least or 0) > self.usable)


@dataclass(frozen=True)
class Machines:
    """Machines, each with `gpus_per_node` GPUs."""

    nodes: int
    gpus_per_node: int
    gpu: str
    # The part of each machine that the run may use; in pods these are the limits.
    memory_gib: float
    cpus: int
    # What pods request; None if it equals the limits.
    requested_memory_gib: float | None = None
    requested_cpus: int | None = None
    uneven: tuple[int, ...] = ()  # the GPUs of each machine if the machines differ, else empty

    @property
    def world_size(self) -> int:
        return sum(self.uneven) or self.nodes * self.gpus_per_node

    @property
    def one_gpu(self) -> Machines:
        """One GPU, if there are any, with its share of the machine: the needs of one process."""
        shares = max(1, self.gpus_per_node)
        promised = self.requested_memory_gib
        cpus = self.requested_cpus
        return replace(
            self,
            nodes=1,
            gpus_per_node=min(1, self.gpus_per_node),
            uneven=(),
            memory_gib=max(1, self.memory_gib // shares),
            cpus=max(1, self.cpus // shares),
            requested_memory_gib=max(1, promised // shares) if promised else None,
            requested_cpus=max(1, cpus // shares) if cpus else None,
        )


@dataclass(frozen=True)
class Gate:
    """A condition that a stage's evaluation must meet: `metric comparison threshold`, for example
    `perplexity < 15`."""

    metric: str
    comparison: str
    threshold: float

    def __str__(self) -> str:
        return f"{self.metric} {self.comparison} {self.threshold:g}"


# The kind of data that a stage learns from.
Kind = Literal["text", "chat", "preferences", "labels", "prompts", "images"]


@dataclass(frozen=True)
class Evaluation:
    """How a stage is measured."""

    kind: Kind
    metrics: tuple[str, ...] = ()  # the metrics that its gates need
    seed: int = 0  # the seed of the draw, if there are more rows than are measured
    tasks: tuple[str, ...] = ()  # tasks of lm-eval
    sample_task: str | None = None  # a file that replaces `tasks`
    limit: int | None = None  # rows of each task; None for all
    batch_size: int = 1  # rows that are evaluated together
    prompt: str = ""  # the text that the model continues
    text_blocks: str = ""  # held-out blocks of tokens, a `.npy` file
    # Kinds of questions with separate results, each recognised by words in it.
    asked: Mapping[str, str] = field(default_factory=dict)
    rows: str = ""  # the folder of the held-out rows, if it is not that of the training rows
    before: str | None = None  # the stage whose metrics a `regression` is compared with


def tracker(config: EngineConfig) -> str:
    """The tracking server's tool in an engine's config, by Axolotl's setting or that of images;
    empty for none."""
    images = config.get("trainer", {}).get("report_to")
    for tool in ("mlflow", "wandb"):
        if config.get(f"use_{tool}") or images == tool:
            return tool
    return ""


def precision_of(config: EngineConfig) -> str:
    """The precision of an Axolotl config: bf16, fp16 or fp32."""
    if config.get("bf16"):
        return "bf16"
    if config.get("fp16"):
        return "fp16"
    return "fp32"


@dataclass(frozen=True)
class Stage:
    """One piece of work of one engine: a training run, or the preparation of one."""

    name: str
    engine: str  # the program that does the work, a key of `runner.run.launch.ENGINES`
    # The engine's settings, and the name of the file that they are written to.
    config: EngineConfig
    config_file: str
    # What a training stage learns from: the JSON form of the dataclass that a preparer takes;
    # `kind` chooses it.
    data: RowsRequest
    files: tuple[
        Artifact, ...
    ]  # what is in `config_dir` when the stage starts, `config_file` included
    # For a machine of a cluster; the launcher fills in rank and address from the environment.
    command: tuple[str, ...]
    env: Mapping[str, str]
    machines: Machines
    shm_gib: int  # shared memory that the data loader and NCCL may use, GiB
    # the subfolder of its files and results in the plan's folders; empty for these folders
    # themselves
    folder: str = ""
    # The stages whose results it reads, each with the prefixes of the files' names; () means all
    # files.
    reads: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    # If its results are read in parts: each part by its folder, with the names of the settings that
    # it depends on.
    parts: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    # A hash of everything that its results depend on, under "", and one for each part (see `keys`).
    keys: Mapping[str, str] = field(default_factory=dict)
    gates: tuple[Gate, ...] = ()
    evaluation: Evaluation | None = None
    # The model to download into `place.model_dir` first (`base`, `revision`); None for no download.
    model: Mapping[str, Any] | None = None
    # By estimate: bytes of `gpu_memory` on each GPU and of `memory` on each machine,
    # `tokens_per_second` or, for images, `samples_per_second` over all GPUs; and the recipe's
    # `price_per_gpu_hour`. Empty without an estimate.
    needs: Mapping[str, float] = field(default_factory=dict)
    # The estimated time that a machine needs to save its state when it is preempted, or None.
    grace_seconds: int | None = None

    @property
    def trains(self) -> bool:
        return self.engine != RUNNER


@dataclass(frozen=True)
class OnClaim:
    """A folder on a claim. claim: its name; path: from the claim's root, without `/` at either
    end."""

    claim: str
    path: str

    @property
    def uri(self) -> str:
        return f"pvc://{self.claim}/{self.path}".rstrip("/")

    def below(self, name: str) -> OnClaim:
        return OnClaim(self.claim, f"{self.path}/{name}".lstrip("/"))

    def path_from(self, folder: OnClaim) -> str:
        """Its path from a folder of the same claim that contains it; empty for that folder
        itself."""
        return self.path.removeprefix(folder.path).strip("/")


def claim_of(folder: str, claims: Iterable[OpenshiftClaims]) -> OpenshiftClaims | None:
    """The claim, of a recipe's `openshift.claims`, that a folder is on; None for the pod's own disk
    or the image."""
    # As texts: `check` asks this for every file of a recipe, and pathlib takes ten times as long.
    path = f"{normal(folder)}/"
    parent = (claim for claim in claims if path.startswith(f"{normal(claim.mount).rstrip('/')}/"))
    return max(parent, key=lambda claim: len(normal(claim.mount)), default=None)


def on_claim(folder: str, claims: Iterable[OpenshiftClaims]) -> OnClaim | None:
    """The folder's place on a claim, or None."""
    claim = claim_of(folder, claims)
    if claim is None:
        return None
    return OnClaim(
        claim.name,
        "/".join(PurePosixPath(normal(folder)).relative_to(normal(claim.mount)).parts),
    )


def no_section() -> Any:
    """What replaces a section that a recipe lacks: it has no settings, and reading one raises
    AttributeError."""
    return Settings({}, {})


@dataclass(frozen=True)
class Plan:
    """A recipe translated into everything that runs."""

    name: str
    scenario: str
    fingerprint: str  # hash of every setting that can change the result
    place: Place  # the folders that the stages' configs name
    stages: tuple[Stage, ...]
    # The recipe's section `openshift`, which only targets read; empty if the recipe lacks it.
    site: Openshift = field(default_factory=no_section)
    # The code that pods clone before they start; None if it is in their image.
    code_from_git: ImageCodeFromGit | None = None
    # The recipe's section `nodes`, for plain machines, in the same form.
    nodes: Nodes = field(default_factory=no_section)
    # Computed figures that people look up (effective batch, scaled learning rate, …).
    facts: Mapping[str, Any] = field(default_factory=dict)
    # The size to request for a claim without one, by the claim's name; empty without an estimate.
    claims_gib: Mapping[str, int] = field(default_factory=dict)
    most_nodes: int = (
        1  # machines of the largest stage, if this plan is one of several that share the claims
    )
    model_image: str = (
        ""  # the image with the base model, which pods mount at `place.model_dir`; empty for none
    )
    has_gates: bool = (
        False  # whether a stage of the whole plan has gates, so that measurements must be sealed
    )

    def claim_gib(self, name: str) -> int:
        """The size to request for a claim: the recipe's, else the estimate's, else a usual one."""
        claim = next(claim for claim in self.claims if claim.name == name)
        return claim.size_gib or self.claims_gib.get(name, USUAL_CLAIM_GIB)

    @property
    def claims(self) -> tuple[OpenshiftClaims, ...]:
        """The recipe's claims; none if it names no cluster."""
        if self.site:
            return self.site.claims
        return ()

    def claim_of(self, folder: str) -> OpenshiftClaims | None:
        return claim_of(folder, self.claims)

    def on_claim(self, folder: str) -> OnClaim | None:
        return on_claim(folder, self.claims)

    def place_of(self, stage: Stage) -> Place:
        return self.place.below(stage.folder)

    def stage(self, name: str) -> Stage:
        """The stage of that name. Raises Stop (exit 2) if there is none."""
        stages = {stage.name: stage for stage in self.stages}
        if name in stages:
            return stages[name]
        hint = f"{did_you_mean(name, stages)}Its stages are {listed(stages)}."
        raise Stop(f"`{self.name}` has no stage `{name}`.", hint, code=2)

    def guards(self, stage: Stage) -> list[Stage]:
        """All gated stages upstream of this one, in order; re-checked because thresholds may have
        changed."""
        behind = set()
        names = list(stage.reads)
        while names:
            name = names.pop()
            if name not in behind:
                behind.add(name)
                names += self.stage(name).reads
        guarding_stages = []
        for candidate in self.stages:
            if candidate.name in behind and candidate.gates:
                guarding_stages.append(candidate)
        return guarding_stages

    def upto(self, stage: Stage) -> Plan:
        """The plan for the pod of a stage: this stage and those before it, without the texts of
        their files."""
        position = [planned.name for planned in self.stages].index(stage.name)
        up_to_this = self.stages[: position + 1]
        return replace(self, stages=tuple(replace(planned, files=()) for planned in up_to_this))

    def plain(self) -> dict[str, Any]:
        """The plan as plain dicts and lists, which `runner.scenarios.saved_plan` reads."""
        return asdict(self) | {
            "site": self.site.plain(),
            "code_from_git": self.code_from_git and self.code_from_git.plain(),
            "nodes": self.nodes.plain(),
        }

    def as_json(self) -> str:
        return json.dumps(self.plain(), indent=1, ensure_ascii=False) + "\n"

    def only(self, stage: Stage) -> Plan:
        """One stage of several as a plan of its own, named after both."""
        if not stage.folder:
            return replace(self, stages=(stage,))
        site = self.site
        if site and site.job_name:
            site = site.changed(job_name=f"{site.job_name}-{stage.name}")
        most = max(planned.machines.nodes for planned in self.stages)
        place = self.place_of(stage)
        name = f"{self.name}-{stage.name}"
        return replace(self, name=name, place=place, stages=(stage,), site=site, most_nodes=most)


_TABLE = packaged.toml(__file__, "plan.toml")
_NEUTRAL, _NEUTRAL_SECTIONS = frozenset(_TABLE["neutral"]), tuple(_TABLE["neutral-sections"])


def learned_from(config: EngineConfig) -> Iterator[tuple[str, Any]]:
    """An engine's settings that can change the result, by dotted names."""
    for name, value in flat(config):
        neutral = name in _NEUTRAL or name.startswith(_NEUTRAL_SECTIONS)
        if not neutral and not (
            name.startswith(("datasets.", "test_datasets.")) and name.endswith(".path")
        ):
            yield name, value


def flat(value: object, name: str = "") -> Iterator[tuple[str, Any]]:
    """Nested settings on one level, by dotted names."""
    if isinstance(value, Mapping):
        for key, item in value.items():
            yield from flat(item, f"{name}.{key}" if name else str(key))
    elif isinstance(value, list | tuple) and any(isinstance(item, Mapping) for item in value):
        # The names of a single data set are those of its section, as in most recipes.
        alone = name.endswith(".sets") and len(value) == 1
        for index, item in enumerate(value):
            yield from flat(item, name.removesuffix(".sets") if alone else f"{name}.{index}")
    else:
        yield name, value


def without_place(value: object, place: Place) -> Any:
    """A text with labels instead of the run's folders, so that a moved run folder has the same
    keys."""
    if not isinstance(value, str):
        return value
    for label, folder in (
        ("DATA", place.data_dir),
        ("CONFIG", place.config_dir),
        ("RUN", place.run_dir),
    ):
        value = value.replace(folder, label)
    return value


def keys(stages: Iterable[Stage], place: Place) -> dict[str, dict[str, str]]:
    """For each stage by name, a hash of everything that its results depend on, earlier stages
    included: under "" for all results, and under each name of `Stage.parts` for that part."""
    by_stage: dict[str, dict[str, str]] = {}
    for stage in stages:
        stage_key = {}
        for name, value in learned_from(stage.config):
            stage_key[name] = without_place(value, place)
        before = {}
        for name, beginnings in stage.reads.items():
            before[name] = read_keys(by_stage[name], beginnings)
        by_stage[stage.name] = {"": content_hash([stage.name, stage_key, before])}
        for part, settings in stage.parts.items():
            chosen = {}
            for name, value in stage_key.items():
                if name.split(".")[0] in settings:
                    chosen[name] = value
            by_stage[stage.name][part] = content_hash([stage.name, part, chosen, before])
    return by_stage


def read_keys(keys_of_stage: Mapping[str, str], beginnings: Iterable[str]) -> dict[str, str | None]:
    """The keys, of a stage's keys, of the parts that another stage reads. beginnings: prefixes of
    files' names."""
    parts = sorted({beginning.split("/")[0] for beginning in beginnings}) or [""]
    return {part: keys_of_stage.get(part) for part in parts}
