"""`recipe doctor`: the hardware and software of this machine, and what stops a recipe on it, each
with a remedy."""

import os
import re
import shutil
import subprocess
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import NamedTuple

from runner import catalog
from runner.catalog.hardware import GIB, NO_GPU
from runner.catalog.models import why_no_hub
from runner.commands.options import command, end, open_recipe, say
from runner.commands.run import at_work
from runner.data.hub_failures import HubFailure, hub_failure
from runner.parts.planner import forecast, storage
from runner.parts.start import measure
from runner.plan import Plan
from runner.recipe import units
from runner.recipe.document import applies
from runner.recipe.recipe import Recipe
from runner.run import this_machine
from runner.run.launch import gpus_of, particular
from runner.run.run_folder import folder
from runner.scenarios import place, translate
from runner.tools import packaged
from runner.tools.problem import Stop, first_line, plural
from runner.tools.process import cores, free_port, memory_gib
from runner.trainer import records

FOR_SOME_RECIPES = (
    "bitsandbytes",
    "flash-attn",
    "kernels",
    "liger-kernel",
    "torchao",
    "lm_eval",
    "ray",
)
PACKAGES = (*records.PACKAGES, *FOR_SOME_RECIPES, "datatrove", "spacy")
PORTS = (
    29500,
    23456,
)  # the rendezvous ports of torchrun on one machine and of the training operator
# The kernel that transformers uses without the package, from the hub, or from a folder in
# LOCAL_KERNELS.
FLASH_KERNEL = "kernels-community/flash-attn2"


class Card(NamedTuple):
    """A GPU of this machine. name: the driver's; capability: of CUDA, such as `9.0`."""

    name: str
    memory_gib: float
    capability: str

    @property
    def label(self) -> str:
        return catalog.label_of(self.name)

    @property
    def fp8(self) -> bool:
        return tuple(map(int, self.capability.split("."))) >= (9, 0)


@dataclass(frozen=True)
class Machine:
    """disk_gib: free at `folder`. links: the driver's table of connections between GPUs. cuda: the
    version that PyTorch was built for, empty without one. cards: the visible ones; visible:
    CUDA_VISIBLE_DEVICES, None if not set. flash_kernel: the folder of FlashAttention's kernel, None
    if it comes from the hub. ports: the tested ones; ports_taken: those in use. hub: None if it
    answers, else the reason. gated: models, each with the failure if it cannot be read, or None."""

    packages: dict[str, str | None]
    cards: tuple[Card, ...] = ()
    visible: str | None = None
    driver: str = ""
    cuda: str = ""
    links: str = ""
    memory_gib: float = 0.0
    shm_gib: float = 0.0
    disk_gib: float = 0.0
    folder: str = "."
    cores: int = 1
    flash_kernel: str | None = None
    ports: tuple[int, ...] = PORTS
    ports_taken: tuple[int, ...] = ()
    hub: str | None = None
    token: bool = False
    gated: dict[str, HubFailure | None] = field(default_factory=dict)


def probe(folder: Path, models: tuple[str, ...] = (), ports: tuple[int, ...] = PORTS) -> Machine:
    """Examines this machine. folder: for results; models: names on the hub to try; ports: those
    that must be free."""
    hub = why_no_hub()
    cards, cuda = _cards()
    driver = _output_of("nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader")
    gated = {}
    if not hub:
        gated = {name: _refused(name) for name in models}
    token = os.environ.get("HF_TOKEN")
    with suppress(ImportError):
        from huggingface_hub import get_token

        token = get_token()
    taken = []
    for port in ports:
        try:
            free_port(port)
        except Stop:
            taken.append(port)
    return Machine(
        packages={**records.versions(PACKAGES)},
        cards=cards,
        visible=os.environ.get("CUDA_VISIBLE_DEVICES"),
        driver=driver.partition("\n")[0],
        cuda=cuda,
        links=_output_of("nvidia-smi", "topo", "-m"),
        memory_gib=memory_gib(),
        shm_gib=_free_gib(Path("/dev/shm")),
        disk_gib=_free_gib(folder),
        folder=str(folder),
        cores=cores(),
        flash_kernel=_flash_kernel(),
        ports=ports,
        ports_taken=tuple(taken),
        hub=hub,
        token=bool(token),
        gated=gated,
    )


def _free_gib(folder: Path) -> float:
    return shutil.disk_usage(_existing(folder)).free / GIB


def _flash_kernel() -> str | None:
    """The folder of FlashAttention's kernel (NAME=FOLDER, separated by `:`)."""
    for entry in os.environ.get("LOCAL_KERNELS", "").split(":"):
        name, _, folder = entry.partition("=")
        if name == FLASH_KERNEL and Path(folder).is_dir():
            return folder
    return None


def labels() -> list[str]:
    cards = _output_of("nvidia-smi", "--query-gpu=name", "--format=csv,noheader")
    return [catalog.label_of(line.strip()) for line in cards.splitlines() if line.strip()]


def _cards() -> tuple[tuple[Card, ...], str]:
    """The GPUs, and the CUDA version that PyTorch was built for; empty if there is none."""
    try:
        import torch
    except ImportError:
        return (), ""
    cards = []
    cuda = torch.version.cuda or ""
    for index in range(torch.cuda.device_count()):
        try:
            facts = torch.cuda.get_device_properties(index)
        except RuntimeError:  # The driver is too old for this PyTorch, which `gpus` reports.
            return (), cuda
        memory = round(facts.total_memory / GIB, 1)
        cards.append(Card(facts.name, memory, f"{facts.major}.{facts.minor}"))
    return tuple(cards), cuda


def _output_of(*command: str) -> str:
    """The output of a command; empty if it is missing or fails."""
    try:
        done = subprocess.run(
            command,
            capture_output=True,
            encoding="utf-8",
            errors="replace",
            timeout=20,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return ""
    if done.returncode == 0:
        return done.stdout.strip()
    return ""


def _existing(folder: Path) -> Path:
    """The folder, which may not exist yet, or the nearest one above it that does."""
    for nearest in (folder, *folder.parents):
        if nearest.exists():
            return nearest
    return folder


def _refused(name: str) -> HubFailure | None:
    """Why this account cannot read a repository of the hub; None if it can."""
    try:
        from httpx import HTTPError
        from huggingface_hub import HfApi
        from huggingface_hub.errors import HFValidationError
    except ImportError:
        return HubFailure("huggingface_hub is not installed", packaged.install("train"))
    try:
        HfApi().auth_check(name)
    except (HTTPError, HFValidationError, OSError) as error:
        return hub_failure(error) or HubFailure(first_line(error).rstrip("."), "Check its name.")
    return None


OK, WARNING, PROBLEM = "ok", "warning", "problem"
FINDINGS = packaged.toml(str(Path(__file__).parent), "findings.toml")
NEEDED = ("axolotl", "torch", "transformers", "peft", "trl", "accelerate", "datasets")
NEEDED_FOR_IMAGES = ("torch", "transformers", "accelerate", "datasets")


class Finding(NamedTuple):
    """state: ok, warning or problem. `mend`: the remedy."""

    state: str
    subject: str
    text: str
    mend: str = ""

    def __str__(self) -> str:
        line = f"{self.state:<8} {self.subject:<12} {self.text}"
        if self.mend:
            return f"{line}\n{'':<22}→ {self.mend}"
        return line


def found(name: str, /, **words: object) -> Finding:
    """A finding of `findings.toml`, with words filled in."""
    row = FINDINGS[name]
    return Finding(*(row.get(key, "").format(**words) for key in Finding._fields))


def findings(
    machine: Machine, recipe: Recipe | None = None, plan: Plan | None = None
) -> list[Finding]:
    """The findings of all checks; with a recipe, also about its needs, on the GPUs that it uses."""
    if recipe and machine.cards:
        taken = particular(machine.visible, gpus_of(recipe), len(machine.cards))
        cards = tuple(machine.cards[index] for index in taken)
        machine = replace(machine, cards=cards, links=_between([*taken.values()], machine.links))
    all_findings: list[Finding] = []
    for check in (packages, gpus, resources):
        all_findings.extend(check(machine, recipe, plan))
    return all_findings


def packages(machine: Machine, recipe: Recipe | None, plan: Plan | None) -> Iterator[Finding]:
    images = plan is not None and all(
        stage.engine == "images" for stage in plan.stages if stage.trains
    )
    needed: tuple[str, ...]
    if images:
        needed = NEEDED_FOR_IMAGES
    else:
        needed = NEEDED
    missing = [name for name in needed if not machine.packages.get(name)]
    if missing:
        kind = "packages-missing"
        shown = ", ".join(missing)
    else:
        kind = "packages"
        shown = ", ".join(f"{name} {machine.packages[name]}" for name in needed)
    yield found(kind, machine=machine, shown=shown, train=packaged.install("train"))
    axolotl = machine.packages.get("axolotl")
    written_for = catalog.AXOLOTL_VERSION
    if axolotl and axolotl != written_for and not images:
        yield found("axolotl", version=axolotl, written_for=written_for)
    if not recipe:
        return
    site = recipe.settings.get("openshift")
    if site and not site.get("image"):
        yield found("image", needs=catalog.hardware.IMAGE_NEEDS)
    if recipe.model.get("attention") == "flash_attention_2":
        yield _flash_attention(machine)
    for name, why, install in _wanted_packages(recipe):
        version = machine.packages.get(name)
        finding = "wanted-missing"
        if version:
            finding = "wanted"
        yield found(finding, name=name, version=version, why=why, install=install)


def _flash_attention(machine: Machine) -> Finding:
    kernels = machine.packages.get("kernels")
    version = machine.packages.get("flash-attn")
    if version:
        finding = "flash-attn"
    elif kernels and machine.flash_kernel:
        finding = "flash-kernel"
    elif kernels and machine.hub is None:
        finding = "flash-later"
    else:
        finding = "flash-missing"
    install = packaged.install("flash")
    return found(finding, version=version, machine=machine, kernel=FLASH_KERNEL, install=install)


def _wanted_packages(recipe: Recipe) -> Iterator[tuple[str, str, str]]:
    """Further packages that a recipe needs: the name, the purpose, and the command that installs
    it."""
    train = packaged.install("train")
    # Recipes for images have no such setting.
    if recipe.settings.get("distribution", "").startswith("zero"):
        yield "deepspeed", f"`distribution: {recipe.distribution}`", train
    stage_recipes = recipe.stage_recipes.values() or (recipe,)
    optimizers = {stage_recipe.train.optimizer for stage_recipe in stage_recipes}
    for name in sorted(optimizers):
        package = catalog.optimizers()[name].package
        if package:
            yield package, f"`optimizer: {name}`", train
    if recipe.pretraining is None:
        return
    for row in FINDINGS["of-pretraining"]:
        if applies(recipe.pretraining.settings, row["when"], row["unless"]):
            install = row.get("install") or packaged.install(row["extra"])
            yield row["package"], row["why"], install


def gpus(machine: Machine, recipe: Recipe | None, plan: Plan | None) -> Iterator[Finding]:
    needed = catalog.hardware.DRIVERS.get(machine.cuda.split(".")[0], 0)
    major = re.match(r"\d+", machine.driver)
    if major and int(major[0]) < needed:
        yield found("old-driver", machine=machine, needed=needed)
        return
    if recipe and (recipe.machines.gpu == NO_GPU or not machine.cards):
        yield _on_processor(machine, recipe)
        return
    if not machine.cards:
        yield found("no-gpu")
        return
    driver = ""
    if machine.driver:
        driver = f", driver {machine.driver}"
    for card in sorted(set(machine.cards), key=lambda card: card.name):
        fp8 = "FP8" if card.fp8 else "no FP8"
        yield found("gpu", count=machine.cards.count(card), card=card, fp8=fp8, driver=driver)
    if len(machine.cards) > 1:
        # The legend below the table has `NV#` and NVLinks on every machine.
        if re.search(r"\bNV\d+\b", machine.links):
            yield found("nvlink")
        elif not machine.links:
            yield found("unknown-links")
        elif recipe and not recipe.settings.knows("distribution"):
            yield found("pcie-for-images")
        else:
            yield found("only-pcie")
    if recipe:
        yield from _beside_recipe(machine, recipe, plan)


def _beside_recipe(machine: Machine, recipe: Recipe, plan: Plan | None) -> Iterator[Finding]:
    """This machine's GPUs beside those of the recipe, and their number formats beside those of the
    plan."""
    planned = recipe.machines
    here = machine.cards[0]
    count = len(machine.cards)
    card = catalog.gpu(planned.gpu)
    if here.label != planned.gpu:
        yield found("other-gpu", planned=card.title if card else planned.gpu, here=here)
    if card and here.memory_gib < 0.9 * card.memory_gib:
        yield found("smaller-gpu", here=here, known=card)
    if count != planned.gpus_per_node:
        yield found("other-gpu-count", count=count, planned=planned)
    if plan is None or here.fp8:
        return
    for kind, precision in plan.facts.get("precision", {}).items():
        if precision == "fp8":
            yield found("no-fp8", kind=kind, here=here)


def _on_processor(machine: Machine, recipe: Recipe) -> Finding:
    """What `recipe run` needs here without a GPU, by the figures that it prints itself."""
    local = this_machine.processor_run(recipe, folder(recipe.name, "run"))
    usable = round(machine.memory_gib * 2**30)
    stages = [replace(prediction, usable=usable) for prediction in local.predictions.values()]
    for stage in stages:
        if stage.too_large:
            return found(
                "no-gpu-no-memory", need=units.gib(stage.memory or 0), have=units.gib(usable)
            )
    sentences = [*map(this_machine.needs, stages), this_machine.download(local)]
    if len(stages) > 1:
        # Their lines would fill the screen; `recipe run` prints them.
        seconds = sum(stage.seconds or 0 for stage in stages)
        memory = max(stage.memory or 0 for stage in stages)
        on_cpu = f"All stages together take about {units.duration(seconds)} on the {stages[0].gpu}"
        sentences[:-1] = [f"{on_cpu}, and need at most about {units.gib(memory)} of main memory."]
    needs = " ".join(sentence for sentence in sentences if sentence)
    if recipe.machines.gpu == NO_GPU:
        return found("no-gpu-wanted", needs=needs)
    if needs:
        return found("no-gpu-trains", needs=needs)
    return found("no-gpu", needs=needs)


def _between(names: list[str], table: str) -> str:
    """The part of the driver's table of links that is about these GPUs; the whole table if it does
    not name them."""
    rows = [line.split() for line in table.splitlines()]
    rows = [row for row in rows if row and row[0].startswith("GPU")]
    if not rows:
        return table
    header = rows.pop(0)
    labels = [f"GPU{name}" for name in names]
    if not set(labels) <= set(header):
        return table
    columns = [header.index(label) + 1 for label in labels]
    lines = []
    for row in rows:
        if row[0] in labels:
            lines.append(" ".join(row[column] for column in columns))
    return "\n".join(lines)


def resources(machine: Machine, recipe: Recipe | None, plan: Plan | None) -> Iterator[Finding]:
    """Main memory, disk, ports and the hub."""
    # Without a GPU, the main memory is judged by what training on the processor needs.
    uses_gpu = recipe and recipe.machines.gpu != NO_GPU and machine.cards
    least_memory = 0.0
    if recipe and uses_gpu:
        least_memory = units.size(recipe.machines.memory) * 0.9
    if machine.memory_gib * GIB < least_memory:
        yield found("less-memory", machine=machine, recipe=recipe)
    else:
        yield found("memory", machine=machine, recipe=recipe)
    if machine.shm_gib < 1:
        yield found("little-shared-memory", machine=machine)
    needed = needed_gib(recipe, plan)
    needs = ""
    little = "small-disk"
    if needed:
        needs = f"; models and checkpoints need about {needed:.0f} GiB"
        little = "full-disk"
    if machine.disk_gib >= (needed or 20):
        yield found("disk", machine=machine, needs=needs)
    else:
        yield found(little, machine=machine, needs=needs)
    folder = _existing(Path(machine.folder))
    if not os.access(folder, os.W_OK):
        yield found("closed-disk", folder=folder)
    yield from _ports(machine, recipe)
    yield from _hub(machine, recipe)


def _ports(machine: Machine, recipe: Recipe | None) -> Iterator[Finding]:
    for port in machine.ports_taken:
        if recipe and "nodes" in recipe.settings:
            other = "choose another `nodes.port`"
        else:
            other = f"set MASTER_PORT to a free one (not {port})"
        yield found("taken-port", port=port, other=other)
    if not machine.ports_taken:
        ports = " and ".join(map(str, machine.ports))
        are = "is" if len(machine.ports) == 1 else "are"
        yield found("free-ports", shown=f"{ports} {are}")


def _hub(machine: Machine, recipe: Recipe | None) -> Iterator[Finding]:
    if machine.hub is not None:
        if recipe and _reads_hub(recipe):
            yield found("needed-hub", machine=machine)
        else:
            yield found("silent-hub", machine=machine)
        return
    if machine.token:
        account = "logged in"
    else:
        account = "not logged in, so gated models are not available"
    yield found("hub", account=account)
    for name, failure in machine.gated.items():
        if failure:
            yield found("no-access", name=name, failure=failure)
        else:
            yield found("readable", name=name, failure=failure)


def _reads_hub(recipe: Recipe) -> bool:
    if models_of(recipe):
        return True
    return any(data_set.get("hub") for _, data_set in recipe.data_sets())


def needed_gib(recipe: Recipe | None, plan: Plan | None) -> float:
    """The disk space of the whole run in GiB, as in `recipe plan`; 0 if the model is unknown."""
    if recipe and plan:
        with suppress(catalog.UnknownArchitecture):
            forecasts = forecast.of(recipe, plan)
            if forecasts:
                entries = storage.everything(plan, forecasts)
                return sum(entry.size for entry in entries) / GIB
    return 0.0


def ports_of(recipe: Recipe) -> tuple[int, ...]:
    """The ports that must be free on a machine of the recipe."""
    nodes = recipe.settings.get("nodes")
    if nodes:
        return (nodes.port,)
    return PORTS


def models_of(recipe: Recipe) -> tuple[str, ...]:
    """The models and tokenizers on the hub that the recipe needs."""
    stage_recipes = recipe.stage_recipes.values() or (recipe,)
    names = [stage.model.get("base") for stage in stage_recipes if not stage.pretrained]
    if recipe.pretraining:
        names.append(recipe.pretraining.tokenizer.base)
    on_hub = []
    for name in filter(None, names):
        if not (recipe.folder / name).is_dir() and not Path(name).is_dir():
            on_hub.append(name)
    return tuple(on_hub)


@command
def doctor(
    path: str | None, sets: tuple[str, ...], out: str | None, measured: bool, stage: str | None
) -> int:
    """Check GPUs, packages, disk, memory, ports and the hub. Print each problem, and how to fix
    it."""
    if measured:
        if path is None:
            raise Stop(
                "`--gpu` measures the training of a recipe.",
                "Name it: `recipe doctor RECIPE --gpu`.",
            )
        with at_work("measurement", path, sets, out, True) as (trained, made, run):
            measure.measure(trained, run, made, stage)
        end("Measured: `recipe plan` now uses the pace of this machine.", "plan", path)
        return 0
    recipe = plan = None
    if path:
        recipe, _ = open_recipe(path, sets)
        plan = translate(recipe, place(recipe))
    folder = Path(out or ".").absolute()
    if recipe:
        machine = probe(folder, models_of(recipe), ports_of(recipe))
    else:
        machine = probe(folder)
    counts = Counter[str]()
    for finding in findings(machine, recipe, plan):
        say(str(finding))
        counts[finding.state] += 1
    problems = counts[PROBLEM]
    warnings = counts[WARNING]
    problem_count = f"{problems} {plural('problem', problems)}"
    say(f"\n{problem_count}, {warnings} {plural('warning', warnings)}")
    if problems:
        recipe_path = [path] if path else []
        end("This machine is not ready. Fix the problems above.", "doctor", *recipe_path)
        return 1
    end("This machine is ready.", "rehearse", path or "RECIPE")
    return 0
