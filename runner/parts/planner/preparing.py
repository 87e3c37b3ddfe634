"""Preparing: how long the stages of a pipeline take that train nothing: its data, and its first weights. Seconds."""

from dataclasses import dataclass

from runner import catalog
from runner.parts.planner import storage
from runner.parts.planner.workload import ASSUMED, OWN_DISK_MB_S, START_SECONDS
from runner.plan import Plan, Stage
from runner.recipe.recipe import Recipe


@dataclass(frozen=True)
class Preparation:
    """A stage that trains nothing. total_seconds: 0 if unknown. source: of that figure, or why it is unknown."""

    stage: str
    total_seconds: float
    source: str

    @property
    def range_seconds(self) -> tuple[float, float]:
        return ASSUMED[0] * self.total_seconds, ASSUMED[1] * self.total_seconds


def of(recipe: Recipe, plan: Plan) -> list[Preparation]:
    """The stages of a pipeline that train nothing. The recipe's own files are not opened, only measured."""
    stages = (stage for stage in plan.stages if stage.config.keys() & {"lengths", "dtype"})
    return [_preparation(recipe, plan, stage) for stage in stages]


def _preparation(recipe: Recipe, plan: Plan, stage: Stage) -> Preparation:
    config, claim = stage.config, plan.claim_of(plan.place_of(stage).run_dir)
    speed = float(claim["write_mb_s"]) if claim else OWN_DISK_MB_S
    size = sum(entry.size for entry in storage.before_training(plan) if entry.folder == config["out"]) / 1e6
    seconds, writes = START_SECONDS + size / speed, f"{size / 1e3:,.0f} GB written at {speed:,.0f} MB/s"
    if "dtype" in config:
        count, pace = config["parameters"], catalog.table("processors")["drawing"]["parameters_s"]
        source = f"{count:,} weights, {pace / 1e6:,.0f} million a second, and {writes}"
        return Preparation(stage.name, seconds + count / pace, source)
    if config["text"]["packed"]:
        return Preparation(stage.name, seconds, f"blocks as they are, {writes}")
    text, processors = _text(recipe), _processors(stage)
    if not text or not processors:
        why = "the catalog does not have the size of its text" if processors else "`data.cleaning` names no `workers`"
        return Preparation(stage.name, 0.0, why)
    cleaning = _pace("filtering") + (_pace("near_duplicates") if config["text"]["deduplicate"] == "near" else 0)
    # For each length twice, for training and validation, one process reads all text; all processors tokenise.
    seconds += text * (cleaning / processors + 2 * len(config["lengths"]) * _pace("reading"))
    seconds += text * _pace("tokenising") / stage.machines.cpus
    source = f"{text / 1000.0:,.1f} GB of text, cleaned at {1 / cleaning:.2g} MB a second on each of {processors:,} CPU cores, and {writes}; without the download"
    return Preparation(stage.name, seconds, source)


def _pace(work: str) -> float:
    """Processor seconds for 10^6 bytes of text."""
    return 1 / float(catalog.table("processors")[work]["mb_s"])


def _text(recipe: Recipe) -> float:
    """10^6 bytes of all documents that are read; 0 if those of one data set are unknown."""
    sizes = []
    for one in (one for home, one in recipe.data_sets() if home[0] == "data"):
        file, facts = recipe.folder / (one.get("path") or ""), catalog.dataset_of(one)
        rows = facts.get("rows", 0) * (one.get("share") or 1)
        size = min(rows, one.get("limit") or rows) * facts.get("characters", 0)
        sizes.append(file.stat().st_size if file.is_file() else size)
    return sum(sizes) / 1e6 if all(sizes) else 0.0


def _processors(stage: Stage) -> int:
    """That clean at once, if a queue gives as many as the recipe names; 0 if it names none."""
    cleaning, own = stage.config["cleaning"], stage.machines.cpus
    workers, tasks = max(0, cleaning["workers"]), cleaning["tasks"] or 0
    if cleaning["executor"] in ("slurm", "ray"):
        return int((workers or tasks) * cleaning["cpus_per_task"])
    at_once = min(workers or own, own) * (cleaning["pods"] or 1)
    return int(min(at_once, tasks or at_once))
