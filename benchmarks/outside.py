"""How far the plan is from GPU runs that others have published: every row of a table is planned as
it ran, and compared.

    python benchmarks/outside.py                   the project's own rows
    (benchmarks/outside/public.csv), a table by kind
    python benchmarks/outside.py --rows FILE       other rows of that form; models lie in `models/`
    beside them, or here
    python benchmarks/outside.py --format json     summary, groups and every row, for tools
    python benchmarks/outside.py --write           keeps the table in benchmarks/results/, and their
    range by kind in the
                                                   catalog, from where `recipe plan` prints them
                                                   beside its figures

An error is planned over measured, less 1: below zero the plan says too little (of memory), or
promises too much (of time). The summary of memory leaves out rows that ran what Axolotl never does
(`Row.foreign`, by OURS and FOREIGN); that of time leaves out rows of several machines whose source
does not say what lies between them (NETWORKS). In the groups they stand too, and are counted.
Nothing is fetched, and no GPU is needed.
"""

from __future__ import annotations

import argparse
import csv
import json
import re
import statistics
import sys
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from operator import attrgetter
from pathlib import Path
from typing import Any

sys.path.insert(
    0, str(Path(__file__).resolve().parent.parent)
)  # this clone's package, not an installed one

from runner import catalog
from runner.catalog import Gpu, Model, UnknownArchitecture
from runner.parts.planner import constants, duration, memory
from runner.parts.planner.constants import Spread
from runner.parts.planner.row_counts import RowLengths
from runner.parts.planner.workload import Adapter, Workload
from runner.parts.planner.workload import network as network_of
from runner.plan import Machines

HERE = Path(__file__).parent
ROWS, MODELS = HERE / "outside" / "public.csv", HERE / "outside" / "models"
TABLE = HERE / "results" / "outside.txt"
GIB = 2**30
GPUS_A_MACHINE = 8
TOO_LOW = 0.03

# What `differs` may name although Axolotl does it too as the recipes start it, and what only says
# how a row was read. All else ran in other code than Axolotl's, or in other settings than the
# recipes': its memory is not what is planned.
OURS = re.compile(
    r"\b(torch[ .]?)?compiled?\b|\bpack(ed|ing)\b|\bpadding[- ]?free\b|\bpadding mask\b|\bremote code\b"
    r"|\bfsdp[ -]?v?2\b|\bzero[- ]?(stage|[123])|\bflash[- ]?attention\b|\bnon[- ]?reentrant\b"
    r"|\b(assum|guess)(ed|ing|ption)|\btaken (as|for)\b|^(nothing|none|no difference|n/?a|-+)$"
)
# Beside them in one phrase ("torchtune's own compiled model"), these still say that it was other
# code.
FOREIGN = re.compile(
    r"\bown\b|\bselective\b|\bfsdp[ -]?v?1\b|(?<!non-)(?<!non )\breentrant\b|\bk-?bit\b|\bfoak\b|\bin-?place\b"
)
# Between phrases; not inside brackets, nor in a figure as 25,000.
BETWEEN = re.compile(r"\s*(?:[;|\n]|,(?!\d{3}\b)|\s[+&]\s)\s*")
# Gbit/s of all links of a machine together, where the source says it: (source, part of the card's
# name).
NETWORKS = {
    ("mosaicml/llm-foundry", "A100"): 1600.0
}  # "with 1600 Gbps node-node interconnect (RoCE)"
# MPT ran FlashAttention 1, over which the second is at least 1.7 times as fast (arXiv 2307.08691,
# section 4.1); and its norms and its feed-forward's activation are one kernel each, as fused ones
# are.
OLDER_ATTENTION = 1.7

# Qwen's own code of 2023 computes norms and rotation in one kernel each and q, k and v in one
# product, so Python launches fewer operations than for a model of transformers: 4.72 ms a layer of
# the 7B model, with LoRA and checkpointing, at 256 tokens.
OLDER_LAYER = 4.72e-3

LOSSES = {"plain": "none", "inplace": "none", "fused": "fused", "cut": "cut", "chunked": "chunked"}


@dataclass(frozen=True)
class Row:
    """One published run. Columns as the file has them; `said` gives a number, None where the cell
    is empty."""

    columns: dict[str, str]

    def __getitem__(self, name: str) -> str:
        return self.columns.get(name) or ""

    def said(self, name: str) -> float | None:
        return float(self[name]) if self[name] else None

    def yes(self, name: str) -> bool:
        return bool(self.said(name))

    @property
    def foreign(self) -> list[str]:
        """What ran that Axolotl never does, as the row says it."""
        named = [
            part.strip(" .:") for part in BETWEEN.split(re.sub(r"\([^()]*\)", "", self["differs"]))
        ]
        return [
            part
            for part in named
            if part and (FOREIGN.search(part.lower()) or not OURS.search(part.lower()))
        ]

    @property
    def mpt(self) -> bool:
        """Whether it was an MPT, whose kernels and layers are others than those of the geometry
        beside it."""
        return bool(re.search(r"\bmpt\b", self["differs"].lower()))

    @property
    def fewer_launches(self) -> bool:
        """Whether its code launches other operations than models of transformers do."""
        return self["source"] == "QwenLM/Qwen"

    @property
    def machines(self) -> int:
        return -(-int(self["gpus"]) // GPUS_A_MACHINE)

    @property
    def gbit_s(self) -> float | None:
        """Of the network, where a source says it; 0 where there is none."""
        if self.machines == 1:
            return 0.0
        told = [
            rate
            for (source, card), rate in NETWORKS.items()
            if source == self["source"] and card in self["gpu"]
        ]
        return told[0] if told else None


def read(file: Path) -> list[Row]:
    with file.open(encoding="utf-8", newline="") as opened:
        return [Row(columns) for columns in csv.DictReader(opened)]


def model_of(row: Row, folders: Iterable[Path]) -> Model:
    """Raises KeyError if neither the catalog nor a folder has the model's geometry."""
    for folder in folders:
        file = folder / row["model"] / "config.json"
        if file.is_file():
            return catalog.from_config(row["model"], json.loads(file.read_text(encoding="utf-8")))
    if known := catalog.model(row["model"]):
        return known
    raise KeyError(f"no geometry of {row['model']}")


def workload(row: Row, model: Model) -> Workload:
    """A row as a run of ours. Selective checkpointing (0.5) keeps about as much as none."""
    gpus, rows, card = int(row["gpus"]), int(row["micro_batch"]), catalog.gpu(row["gpu"])
    # Where nobody says how fast the network is, it is taken to be no slower than NVLink.
    network = GPUS_A_MACHINE * 8 * card.link_gb_s if row.gbit_s is None and card else row.gbit_s
    method = row["method"].split()[0]
    adapter = None
    if method in ("lora", "qlora"):
        targets = tuple(row["lora_targets"].split("+")) if row["lora_targets"] else model.linear
        adapter = Adapter(
            int(row["lora_rank"]), targets, row.said("lora_dropout") or 0.0, row.yes("four_bit")
        )
    return Workload(
        model=model,
        machines=Machines(row.machines, gpus // row.machines, row["gpu"], 1024, 64),
        adapter=adapter,
        precision=row["precision"] or "bf16",
        fp32_weights=row.yes("fp32_weights") and adapter is None,
        fp8=row.yes("fp8"),
        attention=row["attention"] or "flash_attention_2",
        checkpointing=row.said("checkpointing") == 1,
        sequence_len=int(row["seq_len"]),
        micro_batch_size=rows,
        evaluation_batch_size=0,  # what is published is training alone
        accumulation=int(row["accumulation"] or 1),
        optimizer=row["optimizer"] or "adamw_torch_fused",
        sharding=row["sharding"] or "none",
        fused_loss=LOSSES[row["loss"] or "plain"],
        fused_kernels=row.yes("fused_kernels") or row.mpt,
        compile=row.yes("compile"),
        packing=row["packed"] != "0" or not row["mean_row_tokens"],
        # Whose rows have lengths of their own batches those of one length together.
        lengths=RowLengths(mean=row.said("mean_row_tokens") or 0.0),
        network=network_of("ethernet", network),
        expandable_segments=row["expandable_segments"] != "0",
    )


@dataclass(frozen=True)
class Kind:
    """What distinguishes runs, as `constants.kind` says it."""

    method: str
    sharding: str
    loss: str
    gpu: str

    def __str__(self) -> str:
        return f"{self.method}, {self.sharding}, {self.loss}, {self.gpu.removeprefix('NVIDIA-')}"


@dataclass(frozen=True)
class Replayed:
    """One row beside its plan: GiB, and tokens a second on one GPU, what was measured and what is
    planned. alike: whether all of it ran as Axolotl would. told: whether its network is known."""

    row: Row
    work: Workload
    planned: dict[str, float]
    measured: dict[str, float]

    @property
    def kind(self) -> Kind:
        return Kind(**constants.kind(self.work))

    @property
    def alike(self) -> bool:
        return not self.row.foreign

    @property
    def told(self) -> bool:
        return self.row.gbit_s is not None

    def answers(self, what: str) -> bool:
        """Whether the summary counts it."""
        return self.error(what) is not None and (self.told if what == "time" else self.alike)

    def error(self, what: str) -> float | None:
        """Of time as seconds: planned over measured, less 1."""
        if what not in self.planned or not self.measured.get(what):
            return None
        ratio = self.planned[what] / self.measured[what]
        return (1 / ratio if what == "time" else ratio) - 1


FIGURES = ("allocated", "reserved", "driver", "time")
ANSWERED = ("allocated", "time")  # what a plan prints a range of


def replay(row: Row, folders: Sequence[Path]) -> Replayed:
    work = workload(row, model_of(row, folders))
    known = memory.estimate(work)
    planned = {
        "allocated": known.tensors / GIB,
        "reserved": (known.tensors + known.slack) / GIB,
        "driver": known.shown / GIB,
    }
    card = catalog.gpu(row["gpu"])
    if card:
        tokens = work.row_tokens if work.packing else row.said("mean_row_tokens") or 0.0
        planned["time"] = (
            tokens * work.micro_batch_size * work.accumulation / seconds(row, work, card)
        )
    measured = {what: row.said(f"{what}_gib") for what in ("allocated", "reserved", "driver")}
    measured["time"] = row.said("tokens_per_s_per_gpu")
    return Replayed(
        row, work, planned, {what: figure for what, figure in measured.items() if figure}
    )


def seconds(row: Row, work: Workload, card: Gpu) -> float:
    """Of a step. Selective checkpointing (0.5) lies halfway between all and none."""
    step = duration.step_seconds(work, card)
    if row.fewer_launches and work.sharding == "none":
        launching = OLDER_LAYER * work.model.num_hidden_layers
        own = max(duration.card_seconds(work, card, work.micro_batch_size), launching)
        step = duration.step_seconds(work, card, own * work.accumulation)
    if row.said("checkpointing") == 0.5:
        step = (step + duration.step_seconds(replace(work, checkpointing=True), card)) / 2
    if row.mpt:
        counted = duration.operations(work, work.micro_batch_size).attention
        attention = counted / (duration.shares(card).attention * work.rate(card))
        step += (OLDER_ATTENTION - 1) * attention * work.accumulation
    return step


def errors(replayed: Iterable[Replayed], what: str) -> list[float]:
    return [error for each in replayed if (error := each.error(what)) is not None]


@dataclass(frozen=True)
class Summary:
    """rows: that the plan answers for. median_abs: of their errors; too_low: the share of memory
    said more than 3 % too low, of time promised more than 3 % too short; inside_range: the share
    that the printed range holds; kept_aside: the same where the range is made without the rows of
    that row's source and kind, as it is for runs that come after."""

    rows: int
    median_abs: float
    too_low: float
    inside_range: float
    kept_aside: float


def summary(replayed: Sequence[Replayed], what: str) -> Summary:
    rows = [each for each in replayed if each.answers(what)]
    found = errors(rows, what)
    if not found:
        return Summary(0, 0.0, 0.0, 0.0, 0.0)
    inside = sum(_inside(each, what) for each in rows)
    low = sum(error < -TOO_LOW for error in found)
    aside = sum(
        _inside(each, what, [other for other in rows if not _same(each, other)]) for each in rows
    )
    shares = (count / len(found) for count in (low, inside, aside))
    return Summary(len(found), statistics.median(map(abs, found)), *shares)


def _same(one: Replayed, other: Replayed) -> bool:
    return (one.row["source"], one.kind) == (other.row["source"], other.kind)


def _inside(replayed: Replayed, what: str, others: Sequence[Replayed] | None = None) -> bool:
    """Whether the range holds a row: that of a plan, or one made from others alone."""
    spread = constants.spread(replayed.work, what)
    if others is not None:
        known = [
            (other.kind, error) for other in others if (error := other.error(what)) is not None
        ]
        spread = spread_of(replayed.kind, known, what)
    error = replayed.error(what)
    return error is not None and spread.low - 1e-9 <= error <= spread.high + 1e-9


@dataclass(frozen=True)
class Group:
    """Errors of one kind of run in one figure. spread: the highest less the lowest; answered: rows
    that the summary counts."""

    kind: str
    figure: str
    rows: int
    answered: int
    median: float
    spread: float
    worst: float

    def __str__(self) -> str:
        mark = "" if self.answered == self.rows else f"  {self.answered} in the summary"
        return f"{self.rows:>5} {self.median:>+8.1%} {self.spread:>8.1%} {self.worst:>+8.1%}{mark}"


def groups(replayed: Sequence[Replayed]) -> list[Group]:
    kinds: dict[str, list[Replayed]] = defaultdict(list)
    for each in replayed:
        kinds[str(each.kind)].append(each)
    made = []
    for name in sorted(kinds):
        for what in FIGURES:
            if found := errors(kinds[name], what):
                answered = sum(each.answers(what) for each in kinds[name])
                worst = max(found, key=abs)
                spread = max(found) - min(found)
                made.append(
                    Group(name, what, len(found), answered, statistics.median(found), spread, worst)
                )
    return made


def table(replayed: Sequence[Replayed], unread: Sequence[str]) -> str:
    lines = [
        f"{len(replayed)} published runs, planned as they ran; the error is planned / measured - 1"
    ]
    for what in ANSWERED:
        of = summary(replayed, what)
        lines.append(
            f"{what:<10} {of.rows:>4} rows: median error {of.median_abs:.1%}, {of.too_low:.1%} of rows more than 3 % too low, "
            f"{of.inside_range:.1%} inside the printed range, {of.kept_aside:.1%} inside a range made without their source and kind"
        )
    untold = sum(not each.told for each in replayed)
    strange = sum(each.error("allocated") is not None and not each.alike for each in replayed)
    lines.append(
        f"Not in these lines, and below all the same: memory of {strange} rows that ran what Axolotl never does, and time of "
        f"{untold} rows\nof several machines whose source does not name the network (planned as if it were as fast as NVLink)."
    )
    lines += [f"Left out: {why}" for why in unread]
    lines += [
        "",
        f"{'method, sharding, loss, card':<46} {'figure':<10} {'rows':>5} {'median':>8} {'spread':>8} {'worst':>8}",
    ]
    lines += [f"{group.kind:<46} {group.figure:<10} {group}" for group in groups(replayed)]
    return "\n".join(lines) + "\n"


# What comparable runs share, the closest first, with its words; the first set that enough runs
# share counts. Time has one set: ranges from runs that share the card but not the sharding covered
# only 83 % of the runs whose source and kind were left out.
SHARED = {
    "allocated": {
        "like this": ("method", "sharding", "loss"),
        "with this method": ("method", "sharding"),
    },
    "time": {"like this": ("method", "sharding", "loss", "gpu")},
}
# The least range on each side if no published run is comparable. Formulas and fake-tensor runs
# differ by at most 5 % in nine of ten cells (benchmarks/results/estimate-accuracy.txt).
LEAST_ALONE = {"allocated": 0.05, "time": 0.0}
# Published figures are rounded, and versions differ.
LEAST = 0.01


def range_of(errors: Sequence[float]) -> tuple[float, float]:
    """A range for nine in ten further errors of any distribution: in n + 1 - 2r of n + 1 cases the
    next one is between the r-th lowest and highest of n. A little wider, as later runs have other
    sources, and at least LEAST a side."""
    ordered = sorted(errors)
    rank = max(1, int(0.03 * (len(ordered) + 1)))
    return min(ordered[rank - 1], -LEAST), max(ordered[-rank], LEAST)


def spread_of(this: Kind, known: Sequence[tuple[Kind, float]], what: str) -> Spread:
    """The range of these runs' errors that applies to a run of this kind."""
    everything, count, least = [error for _, error in known], len(known), LEAST_ALONE[what]
    nearest: tuple[list[float], str] | None = None
    for shared, fields in SHARED[what].items():
        same = attrgetter(*fields)
        alike = [error for other, error in known if same(this) == same(other)]
        if len(alike) >= constants.ENOUGH:
            return Spread(*range_of(alike), len(alike), f" {shared}")
        if alike and not nearest:
            nearest = alike, shared
    if not nearest:
        # The largest errors of all runs.
        return Spread(
            min([-least, *everything]), max([least, *everything]), count, ", none like this"
        )
    # Too few runs are like it to count alone.
    (low, high), (alike, shared) = range_of(everything), nearest
    return Spread(min(low, *alike), max(high, *alike), count, f", {len(alike)} {shared}")


def ranges(
    known: Sequence[tuple[Kind, float]], what: str, among: Mapping[str, str]
) -> Iterator[list[Any]]:
    """What a plan reads of these errors, the closest kinds first: what a kind has, and the figures
    of its Spread. among: what all have."""
    for fields in SHARED[what].values():
        for values in sorted({attrgetter(*fields)(kind) for kind, _ in known}):
            shared = dict(zip(fields, values, strict=True))
            if among.items() <= shared.items():
                this = Kind(**(dict.fromkeys(("method", "sharding", "loss", "gpu"), "") | shared))
                yield [shared, *spread_of(this, known, what)]
    yield [dict(among), *spread_of(Kind("", "", "", ""), known, what)]


def known(replayed: Sequence[Replayed]) -> dict[str, list[list[Any]]]:
    """The ranges that a plan reads: of the rows that the summary counts. For sharding that none of
    them has, runs over an unnamed network are better than none."""

    def counted(rows: Iterable[Replayed], what: str) -> list[tuple[Kind, float]]:
        return [
            (each.kind, round(error, 3)) for each in rows if (error := each.error(what)) is not None
        ]

    answered = {
        what: counted((each for each in replayed if each.answers(what)), what) for what in ANSWERED
    }
    unnamed = counted((each for each in replayed if not each.told), "time")
    found = {what: list(ranges(errors, what, {})) for what, errors in answered.items()}
    for sharding in sorted(
        {kind.sharding for kind, _ in unnamed} - {kind.sharding for kind, _ in answered["time"]}
    ):
        errors = answered["time"] + [each for each in unnamed if each[0].sharding == sharding]
        found["time"] = [*ranges(errors, "time", {"sharding": sharding}), *found["time"]]
    return found


def replay_all(rows: Iterable[Row], folders: Sequence[Path]) -> tuple[list[Replayed], list[str]]:
    """The rows that can be planned, and why others cannot."""
    replayed, unread = [], []
    for row in rows:
        try:
            replayed.append(replay(row, folders))
        except (KeyError, ValueError, UnknownArchitecture) as error:
            unread.append(f"row {row['id'] or '?'} of {row['source']}: {error}")
    return replayed, unread


def as_json(replayed: Sequence[Replayed], unread: Sequence[str]) -> dict[str, Any]:
    return {
        "summary": {what: asdict(summary(replayed, what)) for what in ANSWERED},
        "groups": [asdict(group) for group in groups(replayed)],
        "rows": [
            {
                "id": each.row["id"],
                "source": each.row["source"],
                "kind": str(each.kind),
                "planned": each.planned,
                "measured": each.measured,
                "errors": {what: each.error(what) for what in FIGURES},
                "answered": [what for what in FIGURES if each.answers(what)],
                "foreign": each.row.foreign,
            }
            for each in replayed
        ],
        "left_out": list(unread),
    }


def kept(replayed: Sequence[Replayed]) -> str:
    """What the catalog keeps, a range a line."""
    lines = {
        what: ",\n  ".join(map(json.dumps, entries)) for what, entries in known(replayed).items()
    }
    return "{\n" + ",\n".join(f'"{what}": [\n  {text}\n]' for what, text in lines.items()) + "\n}\n"


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rows", type=Path, default=ROWS)
    parser.add_argument("--format", choices=("text", "json"), default="text")
    parser.add_argument("--write", action="store_true")
    asked = parser.parse_args()
    if not asked.rows.is_file():
        print(f"{asked.rows}: there is no such file.", file=sys.stderr)
        return 2
    replayed, unread = replay_all(read(asked.rows), (asked.rows.parent / "models", MODELS))
    if asked.write:
        constants.FILE.write_text(kept(replayed), encoding="utf-8")
        # Ranges come from what has just been written.
        constants._ranges.cache_clear()
        TABLE.write_text(table(replayed, unread), encoding="utf-8")
    if asked.format == "json":
        print(json.dumps(as_json(replayed, unread), indent=2))
    else:
        print(table(replayed, unread), end="")
    return 0


if __name__ == "__main__":
    sys.exit(main())
