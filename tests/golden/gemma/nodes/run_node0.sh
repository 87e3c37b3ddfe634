#!/usr/bin/env bash
# Machine 0 of 2, the main one, at <MAIN_NODE_IP>: recipe `gemma` (c2dd4b643a).
# Copy this whole folder to every machine. Start this script on machine 0, and the other scripts on their machines, in any order.
# After an interruption, start them again: they continue from the latest checkpoint.
# Made by recipe-runner. Change the recipe and render again; changes made here are lost.

# Stop at the first error, at an unset variable, and at a failure inside a pipe.
set -euo pipefail
# The folder of this script and of recipe.json.
HERE="$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)"
# The number of this machine; the main one has 0.
NODE_RANK=0
# The address of the main machine for the others; the environment variable MAIN_NODE_IP overrides this.
MAIN_NODE_IP="${MAIN_NODE_IP:-<MAIN_NODE_IP>}"
# The port of the main machine, to which all connect.
MAIN_NODE_PORT=29500
# The GPUs to use, numbered as nvidia-smi does; the environment variable GPUS overrides this.
GPUS="${GPUS:-2,3}"
# The GPUs of all machines together; if GPUS changes their number, set TOTAL_GPUS on every machine.
TOTAL_GPUS="${TOTAL_GPUS:-4}"
# The results folder, on storage that all machines share.
OUTPUT_DIR=/shared/models/gemma
# The Python that has recipe-runner and its training packages.
PYTHON=python3

# Print what is wrong, and stop.
refuse() { echo "run_node$NODE_RANK.sh: $1" >&2; exit 2; }
# Stop if the address is still a placeholder.
[[ "$MAIN_NODE_IP" != *[\<\>]* ]] || refuse "the main machine's address is still $MAIN_NODE_IP; fill it in in the recipe (nodes.machines), or set MAIN_NODE_IP."
# Stop unless these are GPU numbers with commas between them.
[[ "$GPUS" =~ ^[0-9]+(,[0-9]+)*$ ]] || refuse "GPUS is $GPUS; write GPU numbers with commas between them, like 2,3."
# Stop unless this is a number of GPUs.
[[ "$TOTAL_GPUS" =~ ^[1-9][0-9]*$ ]] || refuse "TOTAL_GPUS is $TOTAL_GPUS; write how many GPUs all machines use together."
# Stop if this Python does not exist.
command -v "$PYTHON" >/dev/null || refuse "there is no $PYTHON on this machine; install recipe-runner, or change nodes.python in the recipe."
# Stop if this Python lacks the packages for training.
"$PYTHON" -c 'import sys; from importlib.util import find_spec as has; sys.exit(not (has("runner") and has("axolotl")))' || refuse "$PYTHON on this machine does not have recipe-runner with its extra 'train'; install it there, or change nodes.python in the recipe."
# Stop if the results folder cannot be created or written to.
mkdir -p "$OUTPUT_DIR" && [[ -w "$OUTPUT_DIR" ]] || refuse "the results folder $OUTPUT_DIR cannot be written to; is the shared storage there?"

# Show only these GPUs to the programs below, which count them from 0.
export CUDA_VISIBLE_DEVICES="$GPUS"
# Number GPUs as nvidia-smi does, instead of the fastest first.
export CUDA_DEVICE_ORDER=PCI_BUS_ID
# Find the programs that were installed with this Python.
PATH="$(cd "$(dirname "$(command -v "$PYTHON")")" && pwd):$PATH"
# How much NVIDIA's communication library writes to the log.
export NCCL_DEBUG=WARN
# The folder of the curves.
export TENSORBOARD_LOGGING_DIR=/shared/models/gemma/tensorboard
# No progress bars in the log.
export TQDM_DISABLE=1
# Do not send usage statistics to Axolotl's developers.
export AXOLOTL_DO_NOT_TRACK=1
# The number of processes that tokenise the rows.
export AXOLOTL_DATASET_NUM_PROC=16
# Stop the tokenizer from starting its own threads in every process.
export TOKENIZERS_PARALLELISM=false
# torchrun reads the next five: the number of machines,
export PET_NNODES=2
# the number of this machine,
export PET_NODE_RANK="$NODE_RANK"
# the number of processes here, one for each GPU (the commas plus one),
COMMAS="${GPUS//[^,]/}"; export PET_NPROC_PER_NODE="$((${#COMMAS} + 1))"
# the address of the main machine,
export PET_MASTER_ADDR="$MAIN_NODE_IP"
# and its port.
export PET_MASTER_PORT="$MAIN_NODE_PORT"

# Wait for the other machines, stop if the recipe or packages of one differ, and prepare the data and the config.
"$PYTHON" -m runner.parts.nodes.node meet --recipe "$HERE/recipe.json" --rank "$NODE_RANK" --main "$MAIN_NODE_IP" --port "$MAIN_NODE_PORT" --gpus "$GPUS" --total "$TOTAL_GPUS"
# Training ends when this script ends.
export RECIPE_RUNNER_PARENT=$$
# Train, together with the other machines; the log is shown here and kept in the results folder.
axolotl train /shared/models/gemma/config/axolotl.yaml --launcher torchrun 2>&1 | tee -a "$OUTPUT_DIR/train-node$NODE_RANK.log"
# Check that all results exist, and report what was learned.
"$PYTHON" -m runner.parts.nodes.node finish --results "$OUTPUT_DIR"
