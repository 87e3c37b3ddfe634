"""What all scenarios share: batch, learning rate, machines, intervals, data, and how stages become
a Plan."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import MISSING, fields, replace
from functools import partial
from pathlib import PurePosixPath
from types import MappingProxyType
from typing import (
    Any,
    Literal,
    TypedDict,
    TypeVar,
    Unpack,
    cast,
    get_args,
    get_type_hints,
)

from runner import catalog, parts
from runner import plan as plans
from runner.catalog import hardware
from runner.data import packaged_models, tokenizers
from runner.data.conversation_formats import ChatSet, stated
from runner.data.tokenizers import Pretrained
from runner.plan import EngineConfig, Evaluation, Gate, Kind, Machines, Place, Plan, Stage
from runner.recipe import units
from runner.recipe.recipe import CONVERSATIONS, SONGS, TEXT, Recipe, sets_of
from runner.tools import packaged
from runner.tools.files import LazyArtifact, content_hash, in_image, normal, remote
from runner.tools.problem import Problem
from runner.tools.run_files import TENSORBOARD
from runner.tools.settings import Settings
from runner.tools.text import json_text, longest_job_name, yaml_text
from runner.trainer.settings import (
    EarlyStopping,
    ProofSettings,
    RunOptions,
    RunSettings,
    StageOptions,
)

Made = TypeVar("Made")

# The stage that prepares the rows; and the stage, with its work, that only downloads the base
# model.
DATA = "data"
FETCHING = "model"


def measured_as(rows: str) -> Kind:
    """How a stage is measured, by the rows that it learns from."""
    if rows in (CONVERSATIONS, SONGS):
        return "chat"
    return cast(Kind, rows)


def learning_rate(recipe: Recipe) -> float:
    """The optimizer's learning rate; linear scaling multiplies it by the replicas (arXiv
    1706.02677, section 2.1)."""
    section = recipe.train
    if section.get("learning_rate_scaling") == "linear":
        scale = replicas(recipe)
    else:
        scale = 1
    # Twelve digits, so that 4 × 5e-5 is written as 2e-4 and not as the next binary number.
    return float(f"{section.learning_rate * scale:.12g}")


def effective_batch_size(recipe: Recipe) -> int:
    """Rows of one optimizer step: micro batch × accumulation × replicas."""
    rows: int = recipe.train.micro_batch_size * recipe.train.gradient_accumulation_steps
    return rows * replicas(recipe)


def world_size(recipe: Recipe) -> int:
    """The number of GPUs of all machines together, which is that of the processes."""
    return sum(recipe.gpu_counts)


def shared_by(recipe: Recipe) -> tuple[int, int]:
    """How many GPUs share each row, and how many each matrix."""
    split = recipe.settings.get("sharding") or {}
    return split.get("context_parallel_size") or 1, split.get("tensor_parallel_size") or 1


def replicas(recipe: Recipe) -> int:
    """How many micro batches are computed at the same time: one on each GPU, or on each group that
    shares rows."""
    context, tensor = shared_by(recipe)
    return max(1, world_size(recipe) // (context * tensor))


def by_fsdp(recipe: Recipe) -> bool:
    """Whether FSDP splits the model; a single GPU has nothing to split."""
    return recipe.distribution in ("auto", "fsdp") and world_size(recipe) > 1


def by_zero(recipe: Recipe) -> bool:
    """Whether DeepSpeed splits the model's state, or moves some of it off a single GPU."""
    return by_zero_alone(recipe) or (
        world_size(recipe) > 1 and recipe.distribution.startswith("zero")
    )


def by_zero_alone(recipe: Recipe) -> bool:
    """Whether DeepSpeed is also useful on a single GPU: it moves optimizer or weights off it."""
    if not recipe.distribution.startswith("zero"):
        return False
    section = recipe.settings.get("sharding") or {}
    return any(
        section.get(f"offload_{name}") not in (None, "none") for name in ("optimizer", "weights")
    )


def machines(recipe: Recipe, place: Place) -> Machines:
    """The machines of the stages at a place; pods get a part of them. Limits follow from requests
    or the reverse; without either, pods get what the machines can give."""
    section = recipe.machines
    counts = recipe.gpu_counts
    uneven = counts if len(set(counts)) > 1 else ()
    size = units.size(section.memory) / hardware.GIB
    machine = Machines(
        section.nodes, section.gpus_per_node, section.gpu, size, section.cpus, uneven=uneven
    )
    if not place.on_cluster:
        return machine
    site = recipe.openshift
    assert site is not None  # a place on a cluster follows from it
    requests = site.requests
    most = site.limits
    available = float(hardware.pod_memory_gib(machine.memory_gib * hardware.GIB))
    memory = gib(requests.memory) or min(available, gib(most.memory) or available)
    cpus = requests.cpus or min(hardware.pod_cpus(machine.cpus), most.cpus or machine.cpus)
    limited = replace(machine, memory_gib=gib(most.memory) or memory, cpus=most.cpus or cpus)
    return replace(limited, requested_memory_gib=memory, requested_cpus=cpus)


def gib(amount: str | None) -> float | None:
    if amount:
        return units.size(amount) / hardware.GIB
    return None


def shared_memory_gib(runs_on: Machines) -> int:
    """`/dev/shm` of a machine, GiB: a quarter of its memory, at most 8 for each GPU, for NCCL and
    data loaders."""
    return min(8 * max(1, runs_on.gpus_per_node), max(1, int(runs_on.memory_gib // 4)))


class BatchFacts(TypedDict):
    """World size, rows (or tokens, if packed) of a step, and the learning rate before and after
    scaling."""

    world_size: int
    effective_batch_size: int
    effective_batch_tokens: int | None
    base_learning_rate: float
    learning_rate: float


def batch_facts(recipe: Recipe) -> BatchFacts:
    section = recipe.train
    rows = effective_batch_size(recipe)
    tokens = None
    if section.get("packing") == "pack":
        # The data decides how many rows become one packed row.
        tokens = rows * recipe.model.sequence_len
    return BatchFacts(
        world_size=world_size(recipe),
        effective_batch_size=rows,
        effective_batch_tokens=tokens,
        base_learning_rate=section.learning_rate,
        learning_rate=learning_rate(recipe),
    )


def ddp_bucket_mb(recipe: Recipe) -> int:
    """MB of gradients that DDP sends together: PyTorch's own 25 by default."""
    return recipe.communication.ddp_bucket_mb or 25


def run_settings(
    recipe: Recipe, place: Place, name: str = "", **options: Unpack[RunOptions]
) -> dict[str, Any]:
    """The settings of the training process beyond the engine's own, under `recipe_runner` in its
    config: the one maker of RunSettings. name: by default the recipe's."""
    stopping = recipe.train.get("early_stopping")
    return RunSettings(
        name=name or recipe.name,
        fingerprint=recipe.fingerprint,
        run_dir=place.run_dir,
        recipe_file=f"{place.config_dir}/{plans.RECIPE_FILE}",
        backend="nccl" if place.accelerator else "gloo",
        **batch_facts(recipe),
        time_limit_seconds=time_limit(recipe),
        save_steps=recipe.train.get("save_steps"),
        early_stopping=EarlyStopping(**stopping.plain()) if stopping else None,
        **options,
    ).plain()


def as_stage_of_several(stage: Stage, **options: Unpack[StageOptions]) -> Stage:
    """A training with other settings of the training process, because it has become one of the
    stages of a recipe."""
    settings = dict(stage.config["recipe_runner"])
    for name, value in options.items():
        settings[name] = value.plain() if isinstance(value, ProofSettings) else value
    return replace(stage, config={**stage.config, "recipe_runner": settings})


def long_job_name(recipe: Recipe, trained: Iterable[str]) -> Iterator[Problem]:
    """The problem that the job of a stage would have a name that is too long for the cluster.
    trained: the names of the stages that train."""
    site = recipe.settings.get("openshift")
    if site is None:
        return
    name = site.job_name or recipe.name
    longest = max((f"{name}-{stage}" for stage in (DATA, *trained)), key=len)
    most = longest_job_name(recipe.machines.nodes)
    if len(longest) > most:
        yield recipe.problem(
            "openshift.job_name" if site.job_name else "name",
            f"The job `{longest}` of a stage would have a name of {len(longest)} characters, but the cluster allows {most}.",
            f"Shorten `{name}`.",
        )


def time_limit(recipe: Recipe) -> float | None:
    """The recipe's time limit in seconds; None if there is none."""
    limit = (recipe.settings.get("limits") or {}).get("time")
    if limit:
        return units.seconds(limit)
    return None


def evaluated(section: Settings, validates: bool = True) -> EngineConfig:
    """Evaluation and saving, by steps or after each epoch: the Trainer keeps the best evaluated
    checkpoint. The runner saves those in between (see `run_settings`). validates: whether there is
    an evaluation."""
    interval = section.get("eval_steps" if validates else "save_steps")
    if interval:
        unit = "steps"
        steps = {"save_steps": interval}
    else:
        unit = "epoch"
        steps = {}
    saved = {"save_strategy": unit, **steps}
    if not validates:
        return {"eval_strategy": "no", **saved}
    return {"eval_strategy": unit, **({"eval_steps": interval} if interval else {}), **saved}


# Settings of plain text that give validation data.
GivesValidation = Literal["validation_split", "validation_path", "validation_share"]
GIVES_VALIDATION: tuple[GivesValidation, ...] = get_args(GivesValidation)


def validates(recipe: Recipe) -> bool:
    """Whether the recipe holds out rows; without them, there is no evaluation, and the last weights
    are kept."""
    if "data" not in recipe.settings:
        return True
    if recipe.rows == CONVERSATIONS:
        return bool(recipe.data.validation_share)
    if recipe.rows != TEXT:
        return True
    return any(recipe.data.get(name) for name in GIVES_VALIDATION)


def common_environment(recipe: Recipe, place: Place) -> dict[str, str]:
    return {
        "NCCL_DEBUG": recipe.communication.nccl_debug,
        "TENSORBOARD_LOGGING_DIR": f"{place.run_dir}/{TENSORBOARD}",
        "TQDM_DISABLE": "1",
    }


def made(record_type: type[Made], section: Settings, **fields_given: object) -> Made:
    """A record with fields from `fields_given`, else from the section's settings of the same names,
    else defaults."""
    from_section = {}
    for field in fields(cast(Any, record_type)):
        value = section.get(field.name)
        if field.name not in fields_given and (value is not None or field.default is MISSING):
            from_section[field.name] = value
    return record_type(**fields_given, **from_section)


def rows(
    rows_type: type[Made], recipe: Recipe, place: Place, data: Settings, **fields_given: object
) -> Made:
    """The rows of a section that names data, as a kind of DataSets. fields_given: those
    that no setting gives."""
    of_set = get_args(get_type_hints(rows_type)["sets"])[0]
    sets = []
    for _, data_set in sets_of((), data):
        of_file = {"path": data_file(recipe, place, data_set.get("path"))}
        if of_set is ChatSet:
            form = {
                "form": stated(data_set["form"], data_set.get("question"), data_set.get("answer"))
            }
        else:
            form = {}
        sets.append(made(of_set, data_set, **of_file, **form))
    return made(rows_type, data, **{"sets": tuple(sets), **fields_given})


def base_model(recipe: Recipe, place: Place, fetched: bool = True) -> str:
    """The base model at a place: the folder of its download (if `fetched`), its own folder, that of
    a packaged model on this machine, or its name on the hub."""
    if place.model_dir and (fetched or mounted(recipe, place)):
        return place.model_dir
    packaged_model = catalog.packaged_model(recipe.model.base)
    if packaged_model:
        return str(packaged_models.folder_of(packaged_model))
    return (data_file(recipe, place, recipe.model.base) if recipe.base_folder else None) or str(
        recipe.model.base
    )


def tokenizer(recipe: Recipe, place: Place) -> Pretrained:
    base = base_model(recipe, place, fetched=False)
    return Pretrained(base, recipe.model_revision, bool(recipe.model.get("trust_remote_code")))


def data_file(recipe: Recipe, place: Place, name: str | None) -> str | None:
    """The path of a recipe's file for preparation: beside the recipe, in the pods' folder, on a
    claim, or an address."""
    if name is None:
        return None
    if remote(name):
        return name
    if place.files_dir is None or recipe.on_claim(name):
        return str(recipe.folder / name)
    # Absolute paths and `..` also stay below that folder.
    below = []
    for part in PurePosixPath(normal(name)).parts:
        if part == "..":
            below.append("up")
        elif part != "/":
            below.append(part)
    return "/".join((place.files_dir, *below))


# The config of a stage of the runner's own work; see `runner.entrypoints.prepare`.
WORK_FILE = "work.json"
WORK = "runner.entrypoints.prepare"
GUARD = (
    "runner.parts.jobs.stage"  # the check of the records on a claim before a stage starts in a pod
)


def work(
    place: Place,
    name: str,
    config: EngineConfig,
    machines: Machines,
    reads: Mapping[str, tuple[str, ...]] | None = None,
    parts: Mapping[str, tuple[str, ...]] | None = None,
    pods: int = 1,
) -> Stage:
    """A stage of the runner's own work, which needs no GPU. config: `work` names it; pods: how many
    share it."""
    stage_place = place.below(name)
    return Stage(
        name=name,
        engine=plans.RUNNER,
        config={**config, "run_dir": stage_place.run_dir},
        config_file=WORK_FILE,
        data={},
        files=(),
        command=("python", "-m", WORK, f"{stage_place.config_dir}/{WORK_FILE}"),
        env={"TOKENIZERS_PARALLELISM": "true"},
        machines=replace(machines, nodes=pods, gpus_per_node=0, gpu="GPUs", uneven=()),
        shm_gib=1,
        folder=name,
        reads=reads or {},
        parts=parts or {},
    )


# Tokenising is over in minutes, so a modest machine is enough: the request fits one with 16 GB and
# 4 threads.
PREPARING = Machines(
    1, 0, "GPUs", memory_gib=16.0, cpus=4, requested_memory_gib=8.0, requested_cpus=3
)


def rows_and_training(recipe: Recipe, place: Place, training: Stage) -> Iterator[Stage]:
    """The stages `data` and `train`. If everything is prepared in advance, `data` also downloads
    the base model, and proves what Axolotl will train. Pods with data in their image have no stage
    `data`, but one that downloads the model, if there is one."""
    if place.on_cluster and not place.prepared:
        if training.model:
            model = {**training.model, "folder": place.model_dir}
            yield work(
                place,
                FETCHING,
                {"work": FETCHING, "out": place.model_dir, "model": model},
                PREPARING,
            )
            training = replace(training, reads={FETCHING: ()})
        yield training
        return
    config = {
        "work": "rows",
        "out": place.data_dir,
        "data": dict(training.data),
        "on_claim": place.prepared,
        "model": fetched_ahead(recipe, place),
    }
    # A song does not tell what may be asked about it.
    if training.data.get("kind") == "chat" and recipe.demo_questions:
        config["questions"] = [question for _, question in recipe.demo_questions]
    yield proving(
        recipe, place, work(place, DATA, config, PREPARING), [training] if place.prepared else []
    )
    yield replace(training, reads={DATA: ()})


def table(name: str) -> Mapping[str, Any]:
    """A table of `axolotl.toml`, which has the constant settings of engines."""
    return MappingProxyType(packaged.toml(__file__, "axolotl.toml")[name])


def proving(
    recipe: Recipe,
    place: Place,
    data: Stage,
    trained: Iterable[Stage],
    models: Mapping[str, Mapping[str, object]] = MappingProxyType({}),
) -> Stage:
    """The data stage, which also proves what Axolotl trains before a GPU is reserved. models: by
    stage, the facts (`model`) and the `tokenizer` of its base model, if that does not exist yet."""
    axolotl = [stage for stage in trained if stage.engine == "axolotl"]
    if not axolotl:
        return replace(data, config={**data.config, "proofs": None, "proven_for": {}})
    proofs = {}
    proven_for = {}
    texts = []
    for stage in axolotl:
        file = stage.config_file
        out = proof_dir(place)
        if stage.folder:
            file = f"{stage.name}.yaml"
            out = f"{out}/{stage.folder}"
        texts.append(LazyArtifact(file, partial(_text, recipe, stage)))
        config = f"{place.below(data.folder).config_dir}/{file}"
        proofs[stage.name] = {**models.get(stage.name, {}), "config": config, "out": out}
        proven_for[stage.name] = _hash_of_rows(stage, place)
    return replace(
        data,
        config={**data.config, "proofs": proofs, "proven_for": proven_for},
        # Axolotl would start a process for each core of the whole machine.
        env={**data.env, tokenizers.TOKENISING_PROCESSES: str(data.machines.cpus)},
        files=tuple(texts),
    )


def _hash_of_rows(stage: Stage, place: Place) -> str:
    """A hash of the settings that may affect how rows are trained; only then are they proven
    again."""
    of_steps = tuple(table("of-steps")["names"])
    settings = {}
    for name, value in plans.learned_from(stage.config):
        if not name.startswith(of_steps):
            settings[name] = plans.without_place(value, place)
    return content_hash(settings)


def proof_dir(place: Place) -> str:
    return f"{place.data_dir}/proof"


def mounted(recipe: Recipe, place: Place) -> str:
    """The image with the base model that pods of a cluster mount; empty for none."""
    base = (recipe.settings.get("model") or {}).get("base")
    if place.on_cluster and in_image(base):
        return str(base).removeprefix("oci://")
    return ""


def fetched_model(recipe: Recipe) -> Mapping[str, object]:
    """The base model to download from the hub, or from its address."""
    model_settings = {}
    for name in ("base", "revision", "trust_remote_code"):
        model_settings[name] = recipe.model[name]
    return model_settings | {"revision": recipe.model_revision}


def fetched_ahead(recipe: Recipe, place: Place) -> Mapping[str, object] | None:
    """The base model that the data stage downloads, and its folder; None if training does that, or
    nothing must."""
    ahead = (
        place.model_dir
        and (place.prepared or remote(recipe.model.base))
        and not mounted(recipe, place)
    )
    if ahead:
        return {**fetched_model(recipe), "folder": place.model_dir}
    return None


def measured(
    recipe: Recipe, evaluation: Evaluation, has_gates: bool = True
) -> tuple[tuple[Gate, ...], Evaluation]:
    """A stage's gates and how it is measured. has_gates: whether the recipe's gates are this
    stage's."""
    if not parts.has("evaluate"):
        return (), evaluation
    from runner.parts.evaluate import metrics

    return metrics.measured(recipe, evaluation, has_gates)


def plan(
    recipe: Recipe,
    place: Place,
    stages: Callable[[Place], Iterable[Stage]],
    facts: Mapping[str, object] | None = None,
) -> Plan:
    """The Plan of the stages that `stages` makes at a place, with their keys and config texts. On a
    cluster each stage's checkpoints are under its own key, and its pods check earlier stages and
    their gates."""
    base = (recipe.settings.get("model") or {}).get("base")
    if place.model_dir is None and remote(base):
        # No trainer reads such an address.
        place = replace(place, model_dir=f"{place.run_dir}/fetched_model")
    bare = list(stages(place))
    by_stage = dict[str, dict[str, str]]()
    judged_only = place.checkpoint_keys is None
    if not judged_only:
        by_stage = plans.keys(bare, place)
    if place.on_cluster and not judged_only:
        folder_keys = {stage.folder: by_stage[stage.name][""] for stage in bare}
        place = replace(place, checkpoint_keys=folder_keys)
        bare = list(stages(place))
    stages_with_texts = []
    for stage in bare:
        stages_with_texts.append(written(recipe, stage, keys=by_stage.get(stage.name, {})))
    complete_plan = Plan(
        name=recipe.name,
        scenario=recipe.scenario,
        fingerprint=recipe.fingerprint,
        place=place,
        code_from_git=recipe.code_from_git,
        site=_section(recipe, "openshift"),
        nodes=_section(recipe, "nodes"),
        facts=_known_facts(facts or {}),
        model_image=mounted(recipe, place),
        has_gates=any(stage.gates for stage in bare),
        stages=tuple(stages_with_texts),
    )
    if not place.on_cluster:
        return complete_plan
    guarded = [_guarded(complete_plan, stage) for stage in complete_plan.stages]
    return replace(complete_plan, stages=tuple(guarded))


def _known_facts(facts: Mapping[str, object]) -> dict[str, object]:
    return {name: value for name, value in facts.items() if value is not None}


def _guarded(plan: Plan, stage: Stage) -> Stage:
    """The stage, with a command that checks earlier stages and their gates first, by the plan
    up to it."""
    file = f"{plan.place_of(stage).config_dir}/{plans.PLAN_FILE}"
    command = ("python", "-m", GUARD, "run", file, "--", *stage.command)
    plan_text = LazyArtifact(plans.PLAN_FILE, plan.upto(stage).as_json)
    return replace(stage, command=command, files=(*stage.files, plan_text))


def _section(recipe: Recipe, name: str) -> Any:
    """A section of the recipe; an empty one if the recipe lacks it. Raises BrokenSetting if the
    schema has refused one of its settings, because a plan has no broken ones."""
    section = recipe.settings.get(name)
    if section is None:
        return plans.no_section()
    section.plain()
    return section


def written(recipe: Recipe, stage: Stage, **changes: Any) -> Stage:
    """The stage with changes, and with the texts of its files."""
    files = [LazyArtifact(stage.config_file, partial(_text, recipe, stage))]
    if stage.trains:
        files.append(
            LazyArtifact(plans.RECIPE_FILE, lambda: json_text(recipe.settings.plain()) + "\n")
        )
    return replace(stage, files=(*files, *stage.files), **changes)


def _text(recipe: Recipe, stage: Stage) -> str:
    if not stage.trains:
        return json_text(stage.config) + "\n"
    if stage.engine == "axolotl":
        reader = f"Axolotl {catalog.AXOLOTL_VERSION}"
    else:
        reader = f"its own engine `{stage.engine}`"
    return (
        f"# Made by recipe-runner from the recipe `{recipe.name}` ({recipe.fingerprint}), for {reader}.\n"
        "# Change the recipe and render again; changes made here are lost.\n"
    ) + yaml_text(stage.config)
