"""Together: what all machines of a recipe have, for whoever orders them. What one run needs of it is told by stage."""

from collections.abc import Sequence
from dataclasses import dataclass

from runner.parts.planner.forecast import Forecast
from runner.recipe import units
from runner.recipe.recipe import Recipe


@dataclass(frozen=True)
class Hardware:
    """Sums over all machines of the largest stage. gpu_memory, main_memory: bytes; gpu_memory_gb_s: 10^9 bytes a second;
    network_gbit_s: what their links reach, 10^9 bits a second, 0 for one machine; tflops: 10^12 operations a second that
    data sheets promise, in the run's precision. gpu: None, and what follows from it 0, where the catalog does not know it."""

    machines: int
    gpus: int
    gpu: str | None
    precision: str
    gpu_memory: int
    gpu_memory_gb_s: float
    main_memory: int
    network_gbit_s: float
    tflops: float

    def __str__(self) -> str:
        have = f"All machines together, {self.machines} with {self.gpus} × {self.gpu or 'a GPU that is not in the catalog'}:"
        parts = [f"{units.gib(self.main_memory)} of main memory"]
        if self.gpu:
            parts.insert(0, f"{units.gib(self.gpu_memory)} of GPU memory at {self.gpu_memory_gb_s:,.0f} GB/s")
            parts.append(f"{self.tflops:,.0f} TFLOP/s at most in {self.precision}")
        if self.network_gbit_s:
            parts.append(f"{self.network_gbit_s:,.0f} Gbit/s between them")
        return f"{have} {', '.join(parts)}."


def hardware(recipe: Recipe, forecasts: Sequence[Forecast]) -> Hardware | None:
    """What the machines have that the largest stage trains on; None where nothing is planned."""
    if not forecasts:
        return None
    largest = max(forecasts, key=lambda forecast: forecast.stage.machines.world_size)
    machines, gpu, work = largest.stage.machines, largest.gpu, largest.workload
    gpus = machines.world_size
    return Hardware(
        machines=machines.nodes,
        gpus=gpus,
        gpu=gpu.title if gpu else None,
        precision=work.precision,
        gpu_memory=gpus * gpu.memory_gib * 2**30 if gpu else 0,
        gpu_memory_gb_s=gpus * gpu.memory_gb_s if gpu else 0,
        main_memory=round(machines.nodes * units.size(recipe.machines.memory)),
        network_gbit_s=machines.nodes * work.network.gbit_s if machines.nodes > 1 else 0,
        tflops=gpus * largest.formulas.rate(gpu) / 1e12 if gpu else 0,
    )
