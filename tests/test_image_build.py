"""The image, built for real by buildah on a stand-in base of this machine's own files, and tried as
OpenShift runs it.

What is not the real thing: the base (this machine's system under UBI's name, its Python as
`python3.12` where it has no other with venv), PyTorch for CPU where this machine has that, and
neither embedded data nor the FlashAttention kernel, which are downloads from a hub.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from pathlib import Path

import pytest

from tests.conftest import ROOT

pytestmark = pytest.mark.long

BASE = ("bin sbin lib lib64 etc usr/bin usr/sbin usr/lib64 usr/lib/x86_64-linux-gnu usr/lib/gcc usr/lib/python3 "
        "usr/share/python-wheels usr/share/zoneinfo")  # fmt: skip
ENVIRONMENT = {"STORAGE_DRIVER": "vfs", "BUILDAH_ISOLATION": "chroot"}
# The image's folder with nothing writable but /tmp, and a user of whom it knows nothing: what
# restricted-v2 gives a pod.
AS_IN_A_POD = """
mount --bind "$1" "$1" && mount -o remount,ro,bind "$1"
mount -t tmpfs tmpfs "$1/tmp" && chmod 1777 "$1/tmp"
mount -t proc proc "$1/proc" && mount --rbind /dev "$1/dev"
root=$1; shift
exec chroot --userspec=1000680000:0 "$root" /usr/bin/env -i "$@"
"""


def buildah(store: Path, *words: object, timeout_s: float = 600) -> str:
    command = ["buildah", "--root", store / "images", "--runroot", store / "run", *words]
    done = subprocess.run(
        [str(word) for word in command],
        env=os.environ | ENVIRONMENT,
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=timeout_s,
    )
    assert done.returncode == 0, f"{words[0]}\n{done.stdout[-3000:]}\n{done.stderr[-3000:]}"
    return done.stdout.strip()


@pytest.fixture(scope="module")
def built():
    """`(folder, environment)` of the built image."""
    python = Path("/usr/bin/python3").resolve()
    if os.geteuid() != 0 or any(
        shutil.which(tool) is None for tool in ("buildah", "unshare", "chroot", "tar")
    ):
        pytest.skip("building an image takes root, and buildah (`apt-get install buildah`)")
    if subprocess.run(
        ["/usr/bin/python3", "-c", "import ensurepip"], capture_output=True
    ).returncode:
        pytest.skip("the system's python3 has no venv")
    store = Path(tempfile.mkdtemp(prefix="recipe-build-"))
    try:
        base = store / "base"
        for folder in ("tmp", "var/tmp", "root", "proc", "sys", "dev"):
            (base / folder).mkdir(parents=True)
        wheels = [
            place for place in os.environ.get("PIP_FIND_LINKS", "").split() if place.startswith("/")
        ]
        parts = [
            *BASE.split(),
            f"usr/lib/{python.name}",
            f"usr/include/{python.name}",
            *(w[1:] for w in wheels),
        ]
        there = [part for part in parts if (Path("/") / part).exists()]
        packed = subprocess.Popen(
            ["tar", "-C", "/", "--exclude=*.a", "-cf", "-", *there], stdout=subprocess.PIPE
        )
        subprocess.run(["tar", "-C", base, "-xf", "-"], stdin=packed.stdout, check=True)
        assert packed.wait() == 0
        if not (base / "usr/bin/python3.12").exists():
            (base / "usr/bin/python3.12").symlink_to(python.name)
        container = buildah(store, "from", "scratch")
        buildah(store, "copy", "--quiet", container, base, "/")
        shutil.rmtree(base)
        settings = {"PATH": "/usr/bin:/bin"} | {
            name: value
            for name, value in os.environ.items()
            if name.startswith("PIP_") or name.lower().endswith("_proxy")
        }
        given = [word for name, value in settings.items() for word in ("--env", f"{name}={value}")]
        buildah(store, "config", *given, container)
        buildah(store, "commit", "--quiet", "--rm", container, "stand-in-base")
        build = [
            "--layers=false",
            "--pull-never",
            "-f",
            "container/Containerfile",
            "-t",
            "recipe-runner",
        ]
        arguments = ["BASE=stand-in-base", "EMBED=", "FLASH_ATTENTION="]
        asked = [word for argument in arguments for word in ("--build-arg", argument)]
        buildah(store, "build", *build, *asked, ".", timeout_s=3600)
        container = buildah(store, "from", "--pull-never", "recipe-runner")
        inside = buildah(
            store,
            "inspect",
            "--format",
            '{{range .OCIv1.Config.Env}}{{.}}{{"\\n"}}{{end}}',
            container,
        )
        yield Path(buildah(store, "mount", container)), inside.splitlines()
    finally:
        shutil.rmtree(store, ignore_errors=True)


def in_a_pod(image: tuple[Path, list[str]], *command: str) -> subprocess.CompletedProcess:
    folder, environment = image
    entry = "/opt/recipe-runner/bin/entrypoint.sh"
    return subprocess.run(
        [
            "unshare",
            "--mount",
            "bash",
            "-ec",
            AS_IN_A_POD,
            "pod",
            folder,
            *environment,
            entry,
            *command,
        ],
        capture_output=True,
        text=True,
        timeout=1800,
    )


def test_nothing_but_tmp_can_be_written_to(built):
    done = in_a_pod(
        built,
        "bash",
        "-c",
        "id -u; touch /tmp/a && echo tmp; touch /opt/recipe-runner/a || echo read-only",
    )
    assert done.stdout.split() == ["1000680000", "tmp", "read-only"], done.stderr


def test_the_smoke_script_checks_and_rehearses(built):
    done = in_a_pod(built, "smoke")
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    assert "torch 2.13.0" in done.stdout and "validation loss" in done.stdout
    assert done.stdout.rstrip().endswith("The image is fine.")


def test_it_holds_what_the_constraints_say(built):
    done = in_a_pod(built, "pip", "check")
    assert done.returncode == 0, done.stdout
    frozen = in_a_pod(built, "pip", "freeze").stdout.lower().replace("_", "-").splitlines()
    wanted = (ROOT / "constraints.txt").read_text("utf-8").lower().replace("_", "-").splitlines()
    known = {
        line.split("==")[0]: line.split("==")[1]
        for line in wanted
        if "==" in line and line[0] != "#"
    }
    found = [line.split("+")[0].split("==") for line in frozen if "==" in line]
    assert len(found) > 200
    assert [(name, version) for name, version in found if known.get(name, version) != version] == []
