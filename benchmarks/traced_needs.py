"""Traces what GPU memory each way to train needs with the catalog's models that have no formulas,
for `recipe models` and `recipe new`, which cannot wait for traces.

    python benchmarks/traced_needs.py             every model that the table lacks; minutes for each
    python benchmarks/traced_needs.py NAME …      these models again

The table is runner/catalog/traced-needs.toml. Nothing is downloaded, and no GPU is needed.
"""

from __future__ import annotations

import sys
import tomllib
from collections.abc import Iterable, Mapping
from pathlib import Path

# This clone's package, not an installed one.
sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from runner import catalog
from runner.parts.planner import memory, parameters
from runner.parts.planner.trace.tracing import any_architecture
from runner.parts.planner.workload import Workload
from runner.parts.start.commands.models import WAYS, forecasts_of
from runner.tools.problem import Stop

TABLE = Path(catalog.__file__).with_name("traced-needs.toml")
HEADER = """\
# GPU memory in bytes that each way to train needs with models without formulas, as `recipe plan --exact` traces it: with the defaults of
# the way's starter, bf16 and one row at a time. A way that cannot be traced is left out. `python benchmarks/traced_needs.py` writes it.
"""


def without_formulas() -> list[str]:
    """The catalog's models without formulas, each shape once."""
    names = []
    for name, facts in catalog.table("models").items():
        model = catalog.model(name)
        if model and "like" not in facts and not parameters.has_formulas(model.model_type):
            names.append(name)
    return names


def traced_need(model: catalog.Model, way: str) -> int:
    """The GPU memory of a way to train. Raises Stop if the model cannot be traced."""
    needs = []
    for forecast in forecasts_of(model, way, "bf16"):
        run = forecast.full.workload
        assert isinstance(run, Workload)
        traced = any_architecture(run, None)
        needs.append(memory.whole(run, max(traced.peak, traced.evaluation_peak)))
    return max(needs)


def traced_needs(model: catalog.Model) -> dict[str, int]:
    """The same for each way that can be traced."""
    needs = {}
    for way in WAYS:
        try:
            needs[way] = traced_need(model, way)
        except Stop as stop:
            print(f"{model.id}, {way}: {stop}", file=sys.stderr)
    return needs


def as_text(table: Mapping[str, Mapping[str, int]]) -> str:
    lines = [HEADER]
    for name in without_formulas():
        if name not in table:
            continue
        lines.append(f'["{name}"]')
        for way, need in table[name].items():
            lines.append(f'"{way}" = {need:_}')
        lines.append("")
    return "\n".join(lines)


def main(names: Iterable[str]) -> None:
    table = {}
    if TABLE.is_file():
        table = tomllib.loads(TABLE.read_text("utf-8"))
    missing = [name for name in without_formulas() if name not in table]
    for name in names or missing:
        model = catalog.model(name)
        assert model, name
        table[name] = traced_needs(model)
        TABLE.write_text(as_text(table), "utf-8")
        print(name, table[name], flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
