#!/bin/bash
# Does the image stand on its feet? Versions, a check of a recipe, and a rehearsal from data to answers, without GPU or
# network. It writes to TMPDIR (by default /tmp) alone, as pods must: their root file system is read-only. The first argument is
# another recipe to rehearse.
set -euo pipefail

recipe="${1:-${RECIPES:-/opt/recipe-runner/recipes}/survival.yaml}"
python -c '
import importlib.metadata as packages
for name in ("torch", "transformers", "axolotl", "recipe-runner"):
    print(name, packages.version(name))
'
export HF_HUB_OFFLINE=1
recipe --version
recipe check "${recipe}"
work="$(mktemp -d)"
cd "${work}"
recipe rehearse "${recipe}" --out "${work}/run"
rm -rf "${work}"
echo "The image is fine."
