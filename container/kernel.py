"""Fetches a compiled kernel from the hub for the installed torch: `python kernel.py REPO REVISION
FOLDER`.

The image build has no GPU, so the CUDA version is the one torch was built for.
`LOCAL_KERNELS=REPO=FOLDER` then makes the `kernels` package load it from there, without asking the
hub. Without REPO there is nothing to fetch.
"""

import shutil
import sys

repository, revision, folder = sys.argv[1:]
if not repository:
    sys.exit(0)

from kernels.utils import install_kernel  # noqa: E402

found = install_kernel(repository, revision=revision, backend="cuda")
# Followed links: the hub's cache keeps files elsewhere, and the cache does not go into the image.
shutil.copytree(found, folder)
print(f"{repository} {revision}: {found.name}")
