"""Target nodes: a start script for each of a few plain machines, without Kubernetes.

The scripts need bash and the runner's own Python on every machine, and storage that all of them share.
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterator
from typing import Any

from runner.plan import RECIPE_FILE, Artifact, Place, Plan, Stage
from runner.problem import Stop

FOLDER = "nodes"


def place(recipe: Any) -> Place:
    """The folders of a recipe's plain machines: all on the shared storage, but each machine's own scratch.

    Raises Stop where the recipe names no plain machines.
    """
    if "nodes" not in recipe.settings:
        raise Stop(
            f"The recipe `{recipe.name}` has no section `nodes`, so there are no scripts for plain machines.",
            "Add the section; `recipes/gemma.yaml` has one to copy.",
        )
    results = recipe.nodes.output_dir.rstrip("/")
    return Place(
        config_dir=f"{results}/config",
        data_dir=f"{results}/data",
        run_dir=results,
        scratch_dir=f"/tmp/recipe-runner-{recipe.name}",
    )


def render(plan: Plan) -> list[Artifact]:
    """The engine's own configs, as they will lie in the results folder, and a script for each machine."""
    (stage,) = plan.stages
    scripts = [
        Artifact(f"{FOLDER}/run_node{rank}.sh", script(plan, stage, rank)) for rank in range(stage.machines.nodes)
    ]
    return [*(Artifact(f"{FOLDER}/{file.path}", file.text) for file in stage.files), *scripts]


def script(plan: Plan, stage: Stage, rank: int) -> str:
    """The start script of one machine, every line of it explained."""
    sections = (
        _title(plan, stage, rank),
        _where(plan, stage, rank),
        _refusals(),
        _environment(stage),
        _start(stage, rank),
    )
    return "\n".join("\n".join(section) + "\n" for section in sections)


def _title(plan: Plan, stage: Stage, rank: int) -> Iterator[str]:
    machines, address = stage.machines, plan.nodes["machines"][rank]["address"]
    main = ", the main one" if rank == 0 else ""
    yield "#!/usr/bin/env bash"
    yield f"# Machine {rank} of {machines.nodes}{main}, at {address}: recipe `{plan.name}` ({plan.fingerprint})."
    yield f"# Copy this whole folder to every machine. Start this script on machine {rank}, and on the others theirs, in any order."
    yield "# Started again after an interruption, they go on from the latest checkpoint."
    for path in _data_files(stage):
        yield f"# The text of the recipe must lie beside recipe.json, under the same name as beside the recipe: {path}"
    yield "# Made by recipe-runner. Change the recipe and render again; changes made here are lost."


def _data_files(stage: Stage) -> list[str]:
    """Relative data files as the recipe names them; the stage's own paths start from where the recipe was rendered."""
    text = next((file.text for file in stage.files if file.path == RECIPE_FILE), "{}")
    data = json.loads(text).get("data", {})
    named = [data.get(setting) for setting in ("path", "validation_path")]
    return [path for path in named if path and not path.startswith("/")]


def _where(plan: Plan, stage: Stage, rank: int) -> Iterator[str]:
    machine = plan.nodes["machines"][rank]
    yield "# Stop at the first line that fails, at a name that has no value, and at a failure inside a pipe."
    yield "set -euo pipefail"
    yield "# The folder that this script and recipe.json lie in."
    yield 'HERE="$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)"'
    yield "# The number of this machine; the main one has 0."
    yield f"NODE_RANK={rank}"
    yield "# The address of the main machine, as the others reach it; MAIN_NODE_IP in the environment wins."
    yield _default("MAIN_NODE_IP", plan.nodes["machines"][0]["address"])
    yield "# The port on the main machine where all of them meet."
    yield f"MAIN_NODE_PORT={plan.nodes['port']}"
    yield "# The GPUs of this machine that are used, as nvidia-smi counts them; GPUS in the environment wins."
    yield _default("GPUS", ",".join(map(str, machine["gpus"])))
    yield "# The GPUs of all machines together; where GPUS changes a count, give TOTAL_GPUS on every machine."
    yield _default("TOTAL_GPUS", str(stage.machines.world_size))
    yield "# The results folder, on storage that all machines share."
    yield f"OUTPUT_DIR={shlex.quote(plan.place.run_dir)}"
    yield "# The Python that has recipe-runner and its training packages."
    yield f"PYTHON={shlex.quote(plan.nodes['python'])}"


def _default(name: str, value: str) -> str:
    """`${NAME:-value}` inside quotes; the schema keeps out what bash would read there."""
    return f'{name}="${{{name}:-{value}}}"'


# Looked up without importing, which takes a while.
_HAS_ALL = 'import sys; from importlib.util import find_spec as has; sys.exit(not (has("runner") and has("axolotl")))'


def _refusals() -> Iterator[str]:
    yield "# Say what is wrong, and stop."
    yield 'refuse() { echo "run_node$NODE_RANK.sh: $1" >&2; exit 2; }'
    yield "# Refuse to start while the address is still a word to be filled in."
    yield '[[ "$MAIN_NODE_IP" != *[\\<\\>]* ]] || refuse "the main machine\'s address is still $MAIN_NODE_IP; fill it in in the recipe (nodes.machines), or set MAIN_NODE_IP."'
    yield "# Refuse anything but GPU numbers with commas between them."
    yield '[[ "$GPUS" =~ ^[0-9]+(,[0-9]+)*$ ]] || refuse "GPUS is $GPUS; write GPU numbers with commas between them, like 2,3."'
    yield "# Refuse anything but a number of GPUs."
    yield '[[ "$TOTAL_GPUS" =~ ^[1-9][0-9]*$ ]] || refuse "TOTAL_GPUS is $TOTAL_GPUS; write how many GPUs all machines use together."'
    yield "# Refuse where the Python is not there."
    yield 'command -v "$PYTHON" >/dev/null || refuse "there is no $PYTHON on this machine; install recipe-runner, or change nodes.python in the recipe."'
    yield "# Refuse where that Python lacks what training takes."
    yield f'"$PYTHON" -c {shlex.quote(_HAS_ALL)} || refuse "$PYTHON on this machine does not have recipe-runner with its extra \'train\'; install it there, or change nodes.python in the recipe."'
    yield "# Refuse where the results folder cannot be made or written to."
    yield 'mkdir -p "$OUTPUT_DIR" && [[ -w "$OUTPUT_DIR" ]] || refuse "the results folder $OUTPUT_DIR cannot be written to; is the shared storage there?"'


def _environment(stage: Stage) -> Iterator[str]:
    yield "# Show the programs below these GPUs alone; they count them from 0."
    yield 'export CUDA_VISIBLE_DEVICES="$GPUS"'
    yield "# Find the programs that were installed beside that Python."
    yield 'PATH="$(cd "$(dirname "$(command -v "$PYTHON")")" && pwd):$PATH"'
    for name, value in stage.env.items():
        yield f"# {_MEANINGS.get(name, 'A setting of the training processes.')}"
        yield f"export {name}={shlex.quote(value)}"
    yield "# torchrun reads the next five: how many machines there are,"
    yield f"export PET_NNODES={stage.machines.nodes}"
    yield "# which of them this one is,"
    yield 'export PET_NODE_RANK="$NODE_RANK"'
    yield "# how many processes it starts here, one for each GPU (the commas and one more),"
    yield 'COMMAS="${GPUS//[^,]/}"; export PET_NPROC_PER_NODE="$((${#COMMAS} + 1))"'
    yield "# where the main machine is,"
    yield 'export PET_MASTER_ADDR="$MAIN_NODE_IP"'
    yield "# and on which port."
    yield 'export PET_MASTER_PORT="$MAIN_NODE_PORT"'


# What the environment of a training process is for; a stage's own names get a line here.
_MEANINGS = {
    "AXOLOTL_DATASET_NUM_PROC": "How many processes tokenise the rows.",
    "AXOLOTL_DO_NOT_TRACK": "Send no usage figures to Axolotl's makers.",
    "NCCL_DEBUG": "How much NVIDIA's communication library writes to the log.",
    "TENSORBOARD_LOGGING_DIR": "Where the curves go.",
    "TOKENIZERS_PARALLELISM": "Keep the tokenizer from starting threads of its own in every process.",
    "TQDM_DISABLE": "No progress bars in the log.",
}


def _start(stage: Stage, rank: int) -> Iterator[str]:
    if rank == 0:
        yield "# Wait for the other machines, refuse one whose recipe or packages differ, and prepare the data and the config."
    else:
        yield "# Wait for the main machine's port, refuse to go on where recipe or packages differ from its own, and wait for its data."
    yield (
        '"$PYTHON" -m runner.execute.node meet --recipe "$HERE/recipe.json" --rank "$NODE_RANK" --main "$MAIN_NODE_IP" '
        '--port "$MAIN_NODE_PORT" --gpus "$GPUS" --total "$TOTAL_GPUS"'
    )
    yield "# Train, together with the other machines; the log is shown here and kept in the results folder."
    yield f'{shlex.join(stage.command)} 2>&1 | tee -a "$OUTPUT_DIR/train-node$NODE_RANK.log"'
    if rank == 0:
        yield "# See that all results are there, and say what has been learned."
        yield '"$PYTHON" -m runner.execute.node finish --results "$OUTPUT_DIR"'
