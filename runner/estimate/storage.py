"""Disk and main memory: what a run writes to its claims and holds beside its GPUs. Bytes throughout."""

from __future__ import annotations

from dataclasses import dataclass

from runner.estimate import parameters
from runner.estimate.activations import widths
from runner.estimate.memory import GIB, held
from runner.estimate.workload import Workload
from runner.plan import Plan, Stage
from runner.problem import Problem

# Python with torch, transformers and Axolotl loaded, one process a GPU; assumed.
PROCESS = int(4.5 * GIB)


@dataclass(frozen=True)
class Disk:
    """One kind of thing that is written: what, bytes, and the folder as the pods see it."""

    what: str
    size: int
    folder: str


def disk(workload: Workload, plan: Plan) -> list[Disk]:
    """What a stage writes: the download, prepared data, checkpoints, the best model, a merged model."""
    model, wide = workload.model, widths(workload).linear
    whole, place = wide * parameters.total(model), plan.place
    state = held(workload)
    shards = workload.machines.world_size if workload.sharding in ("zero3", "fsdp") else 1
    optimizer = state.optimizer * (shards if workload.sharding != "none" else 1)
    weights = 4 * parameters.adapter(workload) or whole
    claims = plan.site.get("claims") or ()
    hub = f"{claims[0]['mount'].rstrip('/')}/huggingface" if claims else "/tmp/home"
    rows = (workload.rows or 0) + (workload.evaluation_rows or 0)
    found = [
        Disk("model download", whole, hub),
        Disk("prepared data", round(rows * (workload.row_tokens or workload.sequence_len) * 5), place.data_dir),
        # One more than are kept lies there while the newest is written, and the best is kept beside the latest.
        Disk(
            f"checkpoints ({workload.keep} kept, 1 being written)",
            (workload.keep + 1) * (weights + optimizer),
            place.run_dir,
        ),
        Disk("best model", weights, place.run_dir),
    ]
    if workload.adapter:
        found.append(Disk("merged model", whole, place.run_dir))
    return found


def claim_of(folder: str, plan: Plan) -> dict | None:
    """The claim that a folder lies on; None for the pod's own disk or the image."""
    claims = [
        claim for claim in plan.site.get("claims") or () if (folder + "/").startswith(claim["mount"].rstrip("/") + "/")
    ]
    return max(claims, key=lambda claim: len(claim["mount"]), default=None)


def host(workload: Workload, stage: Stage) -> dict[str, int]:
    """Main memory of one pod by part: processes, shared memory, offloaded state, and the whole weights that the first
    process gathers when a sharded run saves."""
    parts = {
        "processes": PROCESS * stage.machines.gpus_per_node,
        "shared memory": stage.shm_gib * GIB,
    }
    if workload.offload:
        parts["offloaded optimizer"] = 12 * parameters.trainable(workload) // stage.machines.nodes
    if workload.sharding in ("fsdp", "zero3"):
        parts["weights gathered for saving"] = widths(workload).linear * parameters.total(workload.model)
    return parts


def problems(workload: Workload, plan: Plan, stage: Stage, document) -> list[Problem]:
    """Claims and pods that are too small for what they must hold."""
    found = []
    for index, claim in enumerate(plan.site.get("claims") or ()):
        on_it = [entry for entry in disk(workload, plan) if claim_of(entry.folder, plan) == claim]
        need = sum(entry.size for entry in on_it)
        if need > claim["size_gib"] * GIB:
            parts = ", ".join(f"{entry.what} {entry.size / GIB:.1f}" for entry in on_it)
            found.append(
                document.problem(
                    ("openshift", "claims", index, "size_gib"),
                    f"The claim `{claim['name']}` has {claim['size_gib']} GiB, and the run writes {need / GIB:.1f} GiB to it ({parts}).",
                    f"Write `size_gib: {-(-need * 6 // 5 // GIB)}`, or lower `train.keep_checkpoints`.",
                )
            )
    need = sum(host(workload, stage).values())
    if need > stage.machines.memory_gib * GIB:
        found.append(
            document.problem(
                ("machines", "memory_gib"),
                f"Each pod has {stage.machines.memory_gib} GiB of main memory, and needs about {need / GIB:.1f} GiB.",
                f"Write `memory_gib: {-(-need // GIB)}`.",
            )
        )
    return found
