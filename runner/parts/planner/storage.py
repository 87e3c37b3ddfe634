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
    entries = {
        "model download": (place.model_dir if forecast.stage.model else None) or hub,
        "prepared data": f"{place.data_dir}/{forecast.stage.folder}".rstrip("/"),
        state.ON_DISK: forecast.workload.offload.path,
    }
    if plan.claim_of(entries[state.ON_DISK]):
        # Each machine has its own, and a claim holds those of all.
        sizes[state.ON_DISK] = sizes.get(state.ON_DISK, 0) * forecast.stage.machines.nodes
    listed = []
    for content, folder in entries.items():
        if sizes.get(content):
            listed.append(Disk(content, sizes.pop(content), folder))
    # While the newest is written there is one more than are kept, and the best is kept beside the
    # latest.
    listed.append(
        Disk(f"checkpoints ({keep} kept, 1 being written)", (keep + 1) * checkpoint, place.run_dir)
    )
    return listed + [Disk(content, size, place.run_dir) for content, size in sizes.items() if size]


def before_training(plan: Plan) -> Iterator[Disk]:
    """The files of the stages that do not train: text and its blocks, and first weights."""
    for stage in plan.stages:
        if stage.trains:
            continue
        if "lengths" in stage.config and (tokens := plan.facts.get("tokens_in_all")):
            if not stage.config["text"].get("packed"):
                text = round(SPARE["copies_of_text"] * tokens * BYTES_A_TOKEN)
                yield Disk("text, and its copies while it is cleaned", text, stage.config["out"])
            if stage.config["tokenizer"]["most"] <= 2**16:
                wide = 2
            else:
                wide = 4
            yield Disk("blocks of tokens", wide * tokens, stage.config["out"])
        elif "dtype" in stage.config:
            size = (4 if stage.config["dtype"] == "float32" else 2) * stage.config["parameters"]
            yield Disk("first weights", size, stage.config["out"])


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
    return replace(
        plan,
        # For an unknown model, claims get the usual size.
        claims_gib={name: rounded(n) for name, n in needs(plan, forecasts).items()}
        if forecasts
        else {},
        stages=tuple(_with_needs(plan, stage, forecasts) for stage in plan.stages),
    )


def _with_needs(plan: Plan, stage: Stage, forecasts: list[Forecast]) -> Stage:
    own_forecast = next(
        (forecast for forecast in forecasts if forecast.stage.name == stage.name), None
    )
    # The stage that prepares rows also checks their length, for every stage that reads them.
    rows_of = []
    for stage_forecast in forecasts:
        if stage_forecast is own_forecast or (
            stage.name == DATA and DATA in stage_forecast.stage.reads
        ):
            rows_of.append(stage_forecast)
    if plan.place.on_cluster and (
        rooms := [room for stage_forecast in rows_of if (room := _room(plan, stage_forecast))]
    ):
        stage = replace(stage, env={**stage.env, ROOM: json.dumps(rooms, ensure_ascii=False)})
    if own_forecast is None:
        return stage
    needs: dict[str, float] = {
        "gpu_memory": own_forecast.full.memory.total,
        "memory": sum(host(own_forecast).values()),
    }
    if own_forecast.time and (tokens := round(own_forecast.time.tokens_a_second)):
        needs["tokens_per_second"] = tokens
    elif own_forecast.time:  # images have no tokens
        needs["samples_per_second"] = round(own_forecast.time.samples_a_second)
    if own_forecast.price is not None:
        needs["price_per_gpu_hour"] = own_forecast.price
    return replace(stage, needs=needs, grace_seconds=seconds(plan, own_forecast))


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
    source = row_counts.source_of(plan, stage)[0]
    drawn = (source or {}).get("earlier_rows", {}).get(stage.name)
    if source:
        folders = [stage.name, *([drawn["of"]] if drawn else [])]
    else:
        folders = [""]
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
    return max(1, -(-round(need * SPARE["headroom"]) // (STEP_GIB * GIB))) * STEP_GIB


def host(forecast: Forecast) -> dict[str, int]:
    """Main memory of one machine by part: processes, shared memory, and what else the forecast
    names."""
    stage = forecast.stage
    parts = {
        "processes": state.PROCESS * stage.machines.gpus_per_node,
        "shared memory": stage.shm_gib * GIB,
    }
    return parts | forecast.beside()


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
            notes.append(document.problem(where, *sentences, severity="note", mending=enough))
    needs = [(sum(host(forecast).values()), forecast.stage.machines) for forecast in forecasts]
    need, machines = max(
        needs, key=lambda machine_need: machine_need[0], default=(0, plan.stages[0].machines)
    )
    if need > machines.memory_gib * GIB:
        gib = -(-need // GIB)
        pods = plan.place.on_cluster
        stated_section = pods and next(
            (
                pod_section
                for pod_section in ("limits", "requests")
                if plan.site[pod_section].get("memory")
            ),
            None,
        )
        line: tuple[str, ...]
        if stated_section:
            line = ("openshift", stated_section, "memory")
        else:
            line = ("machines", "memory")
        placeholders = {
            "machine": machine(plan),
            "have": machines.memory_gib,
            "need": need / GIB,
            "gib": gib,
        }
        sentences = said(
            "small_machine",
            with_pod=machine_gib(gib) if pods else 0,
            stated=stated_section,
            **placeholders,
        )
        notes.append(document.problem(line, *sentences, severity="note"))
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
    gib = int(-(-max(sum(host(forecast).values()) for forecast in forecasts) // GIB))
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
        current = SPARE["times"] * (
            time.step_seconds + time.evaluation_seconds / max(1, time.evaluations)
        )
    saving: float = forecast.written()["checkpoint"] / (forecast.workload.disk_mb_s * 1e6)
    return 60 * math.ceil((SPARE["leaving"] + current + saving) / 60)


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
    """The stages of a pipeline that do not train. The recipe's own files are not opened, only their
    size is read."""
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
    size = sum(entry.size for entry in before_training(plan) if entry.folder == config["out"]) / 1e6
    seconds = START_SECONDS + size / speed
    writes = f"{size / 1e3:,.0f} GB written at {speed:,.0f} MB/s"
    if "dtype" in config:
        count = config["parameters"]
        pace = catalog.table("processors")["drawing"]["parameters_s"]
        source = f"{count:,} weights, {pace / 1e6:,.0f} million a second, and {writes}"
        return Preparation(stage.name, seconds + count / pace, source)
    if config["text"]["packed"]:
        return Preparation(stage.name, seconds, f"blocks as they are, {writes}")
    text = _text(recipe)
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
    cleaning = pace["filtering"] + (
        pace["near_duplicates"] if config["text"]["deduplicate"] == "near" else 0
    )
    # One process reads all text twice for each length, for training and for validation; all
    # processors tokenise.
    seconds += text * (cleaning / processors + 2 * len(config["lengths"]) * pace["reading"])
    seconds += text * pace["tokenising"] / stage.machines.cpus
    source = f"{text / 1000.0:,.1f} GB of text, cleaned at {1 / cleaning:.2g} MB a second on each of {processors:,} CPU cores, and {writes}; without the download"
    return Preparation(stage.name, seconds, source)


def _text(recipe: Recipe) -> float:
    """10^6 bytes of all documents that are read; 0 if those of one data set are unknown."""
    sizes = []
    for data_set in (data_set for home, data_set in recipe.data_sets() if home[0] == "data"):
        file = recipe.folder / (data_set.get("path") or "")
        facts = catalog.dataset_of(data_set)
        rows = facts.get("rows", 0) * (data_set.get("share") or 1)
        size = min(rows, data_set.get("limit") or rows) * facts.get("characters", 0)
        sizes.append(file.stat().st_size if file.is_file() else size)
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
