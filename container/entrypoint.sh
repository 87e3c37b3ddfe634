#!/bin/bash
# Runs a command as whoever the cluster lets us be. A user id without a name has no home folder, and `/` is not
# writable: whatever wants to write to a home folder is told where it may.
# Jobs that recipe-runner renders set the same variables themselves; this is for everything else.
set -euo pipefail

if [[ -z "${HOME:-}" || "${HOME}" == "/" || ! -w "${HOME}" ]]; then
  export HOME="${TMPDIR:-/tmp}/home"
fi
# torch's compiler asks for the user's name and fails where the user id has none.
export USER="${USER:-recipe}" LOGNAME="${LOGNAME:-recipe}"
export XDG_CACHE_HOME="${XDG_CACHE_HOME:-${HOME}/.cache}"
export HF_HOME="${HF_HOME:-${XDG_CACHE_HOME}/huggingface}"
export TRITON_CACHE_DIR="${TRITON_CACHE_DIR:-${XDG_CACHE_HOME}/triton}"
export TORCHINDUCTOR_CACHE_DIR="${TORCHINDUCTOR_CACHE_DIR:-${XDG_CACHE_HOME}/inductor}"
mkdir -p "${HOME}" "${XDG_CACHE_HOME}"

if [[ "${1:-}" == "smoke" ]]; then
  shift
  exec "$(dirname "$0")/smoke.sh" "$@"
fi
exec "$@"
