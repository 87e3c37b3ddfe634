"""Disk and main memory: the bytes that a run writes to its claims and holds beside its GPUs; the
seconds of the stages that do not train, which prepare data and first weights, and those that a pod
gets to end."""

import json
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import count
from typing import NamedTuple

from runner import catalog
from runner.catalog.hardware import GIB, pod_memory_gib
from runner.data.data_sets import BYTES_A_TOKEN
from runner.data.prepared import ROOM
from runner.parts.planner import row_counts, state
from runner.parts.planner.forecast import Forecast, largest, said
from runner.parts.planner.memory import usable
from runner.parts.planner.workload import (
    ASSUMED,
    MULTIPLE,
    OWN_DISK_MB_S,
    START_SECONDS,
    TABLES,
    Workload,
)
from runner.plan import Plan, Stage
from runner.recipe import units
from runner.recipe.document import Document
from runner.recipe.recipe import Recipe
from runner.scenarios.shared.common import DATA
from runner.tools.problem import Problem

STEP_GIB = 10  # claims come in whole tens
SPARE: Mapping[str, float] = TABLES["spare"]


@dataclass(frozen=True)
class Disk:
    """One kind of file that is written: its name, bytes, and the folder as the pods see it."""

    what: str
    size: int
    folder: str


def disk(forecast: Forecast, plan: Plan) -> list[Disk]:
    """The files of a stage: the download, prepared data, checkpoints, the best model, a merged
    model."""
    place = plan.place_of(forecast.stage)
    sizes = forecast.written()
    keep = forecast.workload.keep
    checkpoint = sizes.pop("checkpoint")
    # The hub's files, in a pod as `runner.parts.jobs.podspec.writable` places them.
    hub = "~/.cache/huggingface of each machine"
    if plan.site:
        if plan.claims:
            hub = f"{plan.claims[0].mount}/huggingface"
        else:
            hub = "/tmp/home"
    model_folder = hub
    if forecast.stage.model and place.model_dir:
        model_folder = place.model_dir
    folders = {
        "model download": model_folder,
        "prepared data": f"{place.data_dir}/{forecast.stage.folder}".rstrip("/"),
        state.ON_DISK: forecast.workload.offload.path,
    }
    if plan.claim_of(folders[state.ON_DISK]):
        # Each machine has its own, and a claim holds those of all.
        sizes[state.ON_DISK] = sizes.get(state.ON_DISK, 0) * forecast.stage.machines.nodes
    entries = []
    for content, folder in folders.items():
        if sizes.get(content):
            entries.append(Disk(content, sizes.pop(content), folder))
    # While the newest is written there is one more than are kept, and the best is kept beside the
    # latest.
    checkpoints = f"checkpoints ({keep} kept, 1 being written)"
    entries.append(Disk(checkpoints, (keep + 1) * checkpoint, place.run_dir))
    for content, size in sizes.items():
        if size:
            entries.append(Disk(content, size, place.run_dir))
    return entries


def before_training(plan: Plan) -> Iterator[Disk]:
    """The files of the stages that do not train: text and its blocks, and first weights."""
    for stage in plan.stages:
        if stage.trains:
            continue
        config = stage.config
        tokens = plan.facts.get("tokens_in_all")
        if "lengths" in config and tokens:
            if not config["text"].get("packed"):
                text = round(SPARE["copies_of_text"] * tokens * BYTES_A_TOKEN)
                yield Disk("text, and its copies while it is cleaned", text, config["out"])
            width = 4
            if config["tokenizer"]["most"] <= 2**16:
                width = 2
            yield Disk("blocks of tokens", width * tokens, config["out"])
        elif "dtype" in config:
            width = 2
            if config["dtype"] == "float32":
                width = 4
            yield Disk("first weights", width * config["parameters"], config["out"])


def everything(plan: Plan, forecasts: list[Forecast]) -> list[Disk]:
    """The files of the whole recipe; files of several stages count once."""
    of_stages = (entry for forecast in forecasts for entry in disk(forecast, plan))
    return list(dict.fromkeys([*before_training(plan), *of_stages]))


def needs(plan: Plan, forecasts: list[Forecast]) -> dict[str, int]:
    """Bytes that each claim must hold, by its name."""
    sizes = {claim.name: 0 for claim in plan.claims}
    for entry in everything(plan, forecasts):
        claim = plan.claim_of(entry.folder)
        if claim:
            sizes[claim.name] += entry.size
    return sizes


def sized(plan: Plan, forecasts: list[Forecast]) -> Plan:
    """The plan with its needs: the size of each claim; the memory of each stage's machines with its
    speed and price, for targets and messages of the cluster; the time its pods get to end; and the
    longest rows that fit its GPUs."""
    claims_gib = {}
    # For an unknown model, claims get the usual size.
    if forecasts:
        claims_gib = {name: rounded(size) for name, size in needs(plan, forecasts).items()}
    stages = tuple(_with_needs(plan, stage, forecasts) for stage in plan.stages)
    return replace(plan, claims_gib=claims_gib, stages=stages)


def _with_needs(plan: Plan, stage: Stage, forecasts: list[Forecast]) -> Stage:
    stage_forecasts = [forecast for forecast in forecasts if forecast.stage.name == stage.name]
    if plan.place.on_cluster:
        readers = stage_forecasts[:1]
        # The stage that prepares rows also checks their length, for every stage that reads them.
        if stage.name == DATA:
            readers = [forecast for forecast in forecasts if DATA in forecast.stage.reads]
        rooms = [_room(plan, forecast) for forecast in readers]
        rooms = list(filter(None, rooms))
        if rooms:
            stage = replace(stage, env={**stage.env, ROOM: json.dumps(rooms, ensure_ascii=False)})
    if not stage_forecasts:
        return stage
    forecast = stage_forecasts[0]
    needs: dict[str, float] = {
        "gpu_memory": forecast.full.memory.total,
        "memory": _host_bytes(forecast),
    }
    if forecast.time:
        tokens = round(forecast.time.tokens_a_second)
        if tokens:
            needs["tokens_per_second"] = tokens
        else:  # images have no tokens
            needs["samples_per_second"] = round(forecast.time.samples_a_second)
    if forecast.price is not None:
        needs["price_per_gpu_hour"] = forecast.price
    return replace(stage, needs=needs, grace_seconds=seconds(plan, forecast))


def _room(plan: Plan, forecast: Forecast) -> list[object]:
    """The arguments of `data.prepared.require_room`; empty if all rows have room or `--allow`
    permits what never fits."""
    work = forecast.workload
    stage = forecast.stage
    gpu = forecast.gpu
    if gpu is None or not isinstance(work, Workload) or work.packing:
        return []
    filled = forecast.changed(longest=0)
    if not filled.never_fits or (forecast.rows.longest and forecast.never_fits):
        return []
    # Tokens of the longest row that the card may have room for.
    most = MULTIPLE * largest(
        lambda count: not forecast.changed(longest=count * MULTIPLE).never_fits
    )
    source, _ = row_counts.source_of(plan, stage)
    folders = [""]
    if source:
        folders = [stage.name]
        earlier_rows = source.get("earlier_rows", {}).get(stage.name)
        if earlier_rows:
            folders.append(earlier_rows["of"])
    need = units.both(filled.memory.total)
    card_memory = units.both(usable(gpu))
    return [
        folders,
        most,
        f"Stage `{stage.name}` takes {work.micro_batch_size} rows at once: rows of full length need {need} on each GPU, and {gpu.title} has {card_memory} to use.",
        f"Lower `micro_batch_size`, or write `sequence_len: {most}`, which leaves out longer rows.",
    ]


def rounded(need: float) -> int:
    """GiB to ask for, with room to spare."""
    steps = -(-round(need * SPARE["headroom"]) // (STEP_GIB * GIB))
    return max(1, steps) * STEP_GIB


def host(forecast: Forecast) -> dict[str, int]:
    """Main memory of one machine by part: processes, shared memory, and what else the forecast
    names."""
    stage = forecast.stage
    parts = {
        "processes": state.PROCESS * stage.machines.gpus_per_node,
        "shared memory": stage.shm_gib * GIB,
    }
    return parts | forecast.beside()


def _host_bytes(forecast: Forecast) -> int:
    return sum(host(forecast).values())


def problems(document: Document, plan: Plan, forecasts: list[Forecast]) -> list[Problem]:
    """Notes on claims that are too small, by estimate, and on main memory, for the stage that needs
    most."""
    notes = []
    if any(claim.size_gib for claim in plan.claims):
        written = [(entry, plan.claim_of(entry.folder)) for entry in everything(plan, forecasts)]
    else:
        written = []
    for index, claim in enumerate(plan.claims):
        if not claim.size_gib:
            continue
        on_it = [entry for entry, home in written if home == claim]
        wanted = sum(entry.size for entry in on_it)
        if wanted > claim.size_gib * GIB:
            where = ("openshift", "claims", index, "size_gib")
            enough = rounded(wanted)
            sentences = said("small_claim", claim=claim, written=on_it, enough=enough)
            notes.append(
                document.problem(
                    where, *sentences, severity="note", mending=enough, check="claim-too-small"
                )
            )
    needs = [(_host_bytes(forecast), forecast.stage.machines) for forecast in forecasts]
    need, machines = max(
        needs, key=lambda machine_need: machine_need[0], default=(0, plan.stages[0].machines)
    )
    if need > machines.memory_gib * GIB:
        gib = -(-need // GIB)
        with_pod = 0
        stated_sections = []
        if plan.place.on_cluster:
            with_pod = machine_gib(gib)
            for pod_section in ("limits", "requests"):
                if plan.site[pod_section].get("memory"):
                    stated_sections.append(pod_section)
        line: tuple[str, ...] = ("machines", "memory")
        if stated_sections:
            line = ("openshift", stated_sections[0], "memory")
        sentences = said(
            "small_machine",
            machine=machine(plan),
            have=machines.memory_gib,
            need=need / GIB,
            gib=gib,
            with_pod=with_pod,
            stated=next(iter(stated_sections), None),
        )
        notes.append(document.problem(line, *sentences, severity="note", check="main-memory"))
    return notes


def machine(plan: Plan) -> str:
    """What a machine of the plan is called: on a cluster it is a pod."""
    if plan.place.on_cluster:
        return "pod"
    return "machine"


def machine_gib(pod_gib: int) -> int:
    """The smallest machine, in whole GiB, that has this many GiB for a pod."""
    return next(size for size in count(pod_gib) if pod_memory_gib(size * GIB) >= pod_gib)


def wanted_memory(plan: Plan, forecasts: list[Forecast]) -> int:
    """GiB of main memory that each machine must have; on a cluster with the part that no pod
    gets."""
    gib = int(-(-max(map(_host_bytes, forecasts)) // GIB))
    if plan.place.on_cluster:
        return machine_gib(gib)
    return gib


def seconds(plan: Plan, forecast: Forecast) -> int | None:
    """Seconds that a pod gets to end: the current step, an evaluation after it, and the checkpoint
    at the speed of its claim, in whole minutes; None if the run writes to no claim."""
    if plan.claim_of(plan.place_of(forecast.stage).run_dir) is None:
        return None
    current = SPARE["unknown"]
    time = forecast.time
    if time:
        evaluation = time.evaluation_seconds / max(1, time.evaluations)
        current = SPARE["times"] * (time.step_seconds + evaluation)
    saving: float = forecast.written()["checkpoint"] / (forecast.workload.disk_mb_s * 1e6)
    minutes = math.ceil((SPARE["leaving"] + current + saving) / 60)
    return 60 * minutes


class Preparation(NamedTuple):
    """A stage that does not train. total_seconds: 0 if unknown. source: of that figure, or why it
    is unknown."""

    stage: str
    total_seconds: float
    source: str

    @property
    def range_seconds(self) -> tuple[float, float]:
        return ASSUMED[0] * self.total_seconds, ASSUMED[1] * self.total_seconds


def preparations(recipe: Recipe, plan: Plan) -> list[Preparation]:
    """The stages of a pretraining that do not train. The recipe's own files are not opened, only
    their size is read."""
    preparations = []
    for stage in plan.stages:
        if stage.config.keys() & {"lengths", "dtype"}:
            preparations.append(_preparation(recipe, plan, stage))
    return preparations


def _preparation(recipe: Recipe, plan: Plan, stage: Stage) -> Preparation:
    config = stage.config
    claim = plan.claim_of(plan.place_of(stage).run_dir)
    if claim:
        speed = float(claim.write_mb_s)
    else:
        speed = OWN_DISK_MB_S
    entries = [entry for entry in before_training(plan) if entry.folder == config["out"]]
    size = sum(entry.size for entry in entries) / 1e6
    seconds = START_SECONDS + size / speed
    writes = f"{size / 1e3:,.0f} GB written at {speed:,.0f} MB/s"
    if "dtype" in config:
        count = config["parameters"]
        pace = catalog.table("processors")["drawing"]["parameters_s"]
        source = f"{count:,} weights, {pace / 1e6:,.0f} million a second, and {writes}"
        return Preparation(stage.name, seconds + count / pace, source)
    if config["text"]["packed"]:
        return Preparation(stage.name, seconds, f"blocks as they are, {writes}")
    text = _text(recipe.pretraining or recipe)
    processors = _processors(stage)
    if not text or not processors:
        if processors:
            reason = "the catalog does not have the size of its text"
        else:
            reason = "`data.cleaning` names no `workers`"
        return Preparation(stage.name, 0.0, reason)
    # Processor seconds for 10^6 bytes of text.
    pace = {}
    for work, facts in catalog.table("processors").items():
        if "mb_s" in facts:
            pace[work] = 1 / facts["mb_s"]
    cleaning = pace["filtering"]
    if config["text"]["deduplicate"] == "near":
        cleaning += pace["near_duplicates"]
    # One process reads all text twice for each length, for training and for validation; all
    # processors tokenise.
    reading = 2 * len(config["lengths"]) * pace["reading"]
    seconds += text * (cleaning / processors + reading)
    seconds += text * pace["tokenising"] / stage.machines.cpus
    gigabytes = f"{text / 1000.0:,.1f} GB of text"
    speed_a_core = f"{1 / cleaning:.2g} MB a second on each of {processors:,} CPU cores"
    source = f"{gigabytes}, cleaned at {speed_a_core}, and {writes}; without the download"
    return Preparation(stage.name, seconds, source)


def _text(recipe: Recipe) -> float:
    """10^6 bytes of all documents that are read; 0 if those of one data set are unknown."""
    sizes = []
    for _, data_set in recipe.data_sets():
        file = recipe.folder / (data_set.get("path") or "")
        if file.is_file():
            sizes.append(file.stat().st_size)
        else:
            facts = catalog.dataset_of(data_set)
            rows = facts.get("rows", 0) * (data_set.get("share") or 1)
            most_rows = min(rows, data_set.get("limit") or rows)
            sizes.append(most_rows * facts.get("characters", 0))
    if all(sizes):
        return sum(sizes) / 1e6
    return 0.0


def _processors(stage: Stage) -> int:
    """How many processors clean at once, if a queue provides as many as the recipe names; 0 if it
    names none."""
    cleaning = stage.config["cleaning"]
    cores = stage.machines.cpus
    workers = max(0, cleaning["workers"])
    tasks = cleaning["tasks"] or 0
    if cleaning["executor"] in ("slurm", "ray"):
        return int((workers or tasks) * cleaning["cpus_per_task"])
    at_once = min(workers or cores, cores) * (cleaning["pods"] or 1)
    return int(min(at_once, tasks or at_once))
