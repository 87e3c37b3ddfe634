#!/usr/bin/env bash
# Machine 0 of 2, the main one, at <MAIN_NODE_IP>: recipe `gemma` (9802c9cf49).
# Copy this whole folder to every machine. Start this script on machine 0, and on the others theirs, in any order.
# Started again after an interruption, they go on from the latest checkpoint.
# Made by recipe-runner. Change the recipe and render again; changes made here are lost.

# Stop at the first line that fails, at a name that has no value, and at a failure inside a pipe.
set -euo pipefail
# The folder that this script and recipe.json lie in.
HERE="$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)"
# The number of this machine; the main one has 0.
NODE_RANK=0
# The address of the main machine, as the others reach it; MAIN_NODE_IP in the environment wins.
MAIN_NODE_IP="${MAIN_NODE_IP:-<MAIN_NODE_IP>}"
# The port on the main machine where all of them meet.
MAIN_NODE_PORT=29500
# The GPUs of this machine that are used, as nvidia-smi counts them; GPUS in the environment wins.
GPUS="${GPUS:-2,3}"
# The GPUs of all machines together; where GPUS changes a count, give TOTAL_GPUS on every machine.
TOTAL_GPUS="${TOTAL_GPUS:-4}"
# The results folder, on storage that all machines share.
OUTPUT_DIR=/shared/models/gemma
# The Python that has recipe-runner and its training packages.
PYTHON=python3

# Say what is wrong, and stop.
refuse() { echo "run_node$NODE_RANK.sh: $1" >&2; exit 2; }
# Refuse to start while the address is still a word to be filled in.
[[ "$MAIN_NODE_IP" != *[\<\>]* ]] || refuse "the main machine's address is still $MAIN_NODE_IP; fill it in in the recipe (nodes.machines), or set MAIN_NODE_IP."
# Refuse anything but GPU numbers with commas between them.
[[ "$GPUS" =~ ^[0-9]+(,[0-9]+)*$ ]] || refuse "GPUS is $GPUS; write GPU numbers with commas between them, like 2,3."
# Refuse anything but a number of GPUs.
[[ "$TOTAL_GPUS" =~ ^[1-9][0-9]*$ ]] || refuse "TOTAL_GPUS is $TOTAL_GPUS; write how many GPUs all machines use together."
# Refuse where the Python is not there.
command -v "$PYTHON" >/dev/null || refuse "there is no $PYTHON on this machine; install recipe-runner, or change nodes.python in the recipe."
# Refuse where that Python lacks what training takes.
"$PYTHON" -c 'import sys; from importlib.util import find_spec as has; sys.exit(not (has("runner") and has("axolotl")))' || refuse "$PYTHON on this machine does not have recipe-runner with its extra 'train'; install it there, or change nodes.python in the recipe."
# Refuse where the results folder cannot be made or written to.
mkdir -p "$OUTPUT_DIR" && [[ -w "$OUTPUT_DIR" ]] || refuse "the results folder $OUTPUT_DIR cannot be written to; is the shared storage there?"

# Show the programs below these GPUs alone; they count them from 0.
export CUDA_VISIBLE_DEVICES="$GPUS"
# Count GPUs as nvidia-smi does, and not the fastest first.
export CUDA_DEVICE_ORDER=PCI_BUS_ID
# Find the programs that were installed beside that Python.
PATH="$(cd "$(dirname "$(command -v "$PYTHON")")" && pwd):$PATH"
# How much NVIDIA's communication library logs.
export NCCL_DEBUG=WARN
# Where the curves go.
export TENSORBOARD_LOGGING_DIR=/shared/models/gemma/tensorboard
# No progress bars in the log.
export TQDM_DISABLE=1
# Do not send usage figures to Axolotl's makers.
export AXOLOTL_DO_NOT_TRACK=1
# How many processes tokenise the rows.
export AXOLOTL_DATASET_NUM_PROC=16
# Keep the tokenizer from starting threads of its own in every process.
export TOKENIZERS_PARALLELISM=false
# torchrun reads the next five: how many machines there are,
export PET_NNODES=2
# which of them this one is,
export PET_NODE_RANK="$NODE_RANK"
# how many processes it starts here, one for each GPU (the commas and one more),
COMMAS="${GPUS//[^,]/}"; export PET_NPROC_PER_NODE="$((${#COMMAS} + 1))"
# where the main machine is,
export PET_MASTER_ADDR="$MAIN_NODE_IP"
# and on which port.
export PET_MASTER_PORT="$MAIN_NODE_PORT"

# Wait for the other machines, refuse one whose recipe or packages differ, and prepare the data and the config.
"$PYTHON" -m runner.entrypoints.node meet --recipe "$HERE/recipe.json" --rank "$NODE_RANK" --main "$MAIN_NODE_IP" --port "$MAIN_NODE_PORT" --gpus "$GPUS" --total "$TOTAL_GPUS"
# What trains ends when this script is gone.
export RECIPE_RUNNER_PARENT=$$
# Train, together with the other machines; the log is shown here and kept in the results folder.
axolotl train /shared/models/gemma/config/axolotl.yaml --launcher torchrun 2>&1 | tee -a "$OUTPUT_DIR/train-node$NODE_RANK.log"
# See that all results are there, and say what has been learned.
"$PYTHON" -m runner.entrypoints.node finish --results "$OUTPUT_DIR"
