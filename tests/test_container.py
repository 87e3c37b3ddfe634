"""The container, proved as far as it can be without building it: its file, its entry point, its
user, its versions."""

from __future__ import annotations

import importlib.metadata
import json
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import tempfile
import tomllib
from pathlib import Path

import pytest

from runner import catalog
from tests.conftest import ROOT

CONTAINER = ROOT / "container"
FILE = CONTAINER / "Containerfile"
# A user id as OpenShift gives one to a namespace: nobody knows it, and it is in group 0.
UNKNOWN = ["setpriv", "--reuid=1000680000", "--regid=0", "--clear-groups", "env", "-i"]
SYSTEM_PYTHON = "/usr/bin/python3"


def instructions() -> list[tuple[str, str]]:
    """The Containerfile's instructions, lines joined: `("RUN", "pip install …")`."""
    text = "".join(
        line
        for line in FILE.read_text("utf-8").splitlines(keepends=True)
        if not line.startswith("#")
    )
    joined = re.sub(r"\\\n\s*", "", text)
    return [
        (word, rest.strip())
        for word, _, rest in (line.partition(" ") for line in joined.splitlines())
        if word
    ]


def constraints() -> dict[str, str]:
    lines = (ROOT / "constraints.txt").read_text("utf-8").splitlines()
    return {
        _name(line.split("==")[0]): line.split("==")[1]
        for line in lines
        if "==" in line and line[0] != "#"
    }


def _name(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def test_hadolint_has_nothing_to_say():
    hadolint = Path(sys.executable).parent / "hadolint"
    done = subprocess.run(
        [hadolint, "--no-color", FILE], capture_output=True, text=True, timeout=60
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_everything_that_is_copied_is_there_and_not_ignored():
    allowed = {
        line[1:]
        for line in (ROOT / ".dockerignore").read_text("utf-8").splitlines()
        if line.startswith("!")
    }
    copied = [rest.split() for word, rest in instructions() if word == "COPY"]
    sources = [part for parts in copied for part in parts[:-1] if not part.startswith("--")]
    assert len(sources) >= 8
    for source in sources:
        assert (ROOT / source).exists(), source
        assert source.split("/")[0] in allowed, f"{source} would not reach the build"


def test_the_labels_name_the_installed_versions():
    (label,) = [rest for word, rest in instructions() if word == "LABEL"]
    said = dict(re.findall(r'io\.recipe-runner\.(\w+)="([^"]+)"', label))
    assert set(said) >= {"axolotl", "torch", "transformers"}
    for package, version in said.items():
        assert constraints()[package] == version
    from runner import __version__

    assert f'org.opencontainers.image.version="{__version__}"' in label


def test_the_image_names_no_user_that_the_cluster_could_not_replace():
    users = [rest for word, rest in instructions() if word == "USER"]
    assert users[-1] == "1001"
    copies = [rest for word, rest in instructions() if word == "COPY" and "--chown" in rest]
    assert copies == []


def requirements(*extras: str) -> list[str]:
    """What the image installs for these extras before the project's own code is there."""
    printed = subprocess.check_output(
        [sys.executable, CONTAINER / "requirements.py", *extras], cwd=ROOT, text=True, timeout=30
    )
    return printed.splitlines()


def test_the_requirements_are_the_train_extras():
    lines = requirements("train")
    assert "axolotl[deepspeed]==0.19.0" in lines
    assert any(line.startswith("click") for line in lines)


def test_no_requirement_of_the_image_is_the_project_itself():
    """An extra may name others of the project. pip would look for them on PyPI, which does not
    have the project."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    extras = project["optional-dependencies"]
    assert "recipe-runner[files]" in extras["train"]
    for extra in extras:
        lines = requirements(extra)
        assert [line for line in lines if line.startswith(project["name"])] == []
    assert set(extras["files"]) <= set(requirements("train"))


def arguments() -> dict[str, str]:
    """The Containerfile's build arguments and their defaults."""
    return dict(rest.split("=", 1) for word, rest in instructions() if word == "ARG")


def section(title: str) -> str:
    """What `docs/cluster.md` has under this heading."""
    page = (ROOT / "docs" / "cluster.md").read_text("utf-8")
    return page.partition(f"### {title}\n")[2].partition("\n### ")[0]


def test_the_image_brings_the_client_of_mlflow():
    (line,) = [rest for word, rest in instructions() if word == "RUN" and "requirements.py" in rest]
    extras = re.search(r"requirements\.py ([\w ]+)>", line)[1].split()
    assert "mlflow-skinny" in constraints()
    assert "mlflow-skinny" in {
        _name(re.split(r"[\[=<>~! ;]", line)[0]) for line in requirements(*extras)
    }


def test_an_image_for_cuda_12_is_one_build_argument_away():
    """The line that installs PyTorch asks the index that the argument names, and without it
    PyPI."""
    (index,) = re.findall(
        r"An older driver.*?`([A-Z_]+)` names PyTorch's own package index", section("The image")
    )
    assert arguments()[index] == '""'
    (line,) = [rest for word, rest in instructions() if word == "RUN" and "torch==" in rest]
    for address, asked in (
        ("https://example.org/cuda", ["--index-url", "https://example.org/cuda"]),
        ("", []),
    ):
        script = f'pip() {{ printf "%s\\n" "$@"; }}\n{line}'
        done = subprocess.run(
            ["sh", "-ec", script], env={index: address}, capture_output=True, text=True, check=True
        )
        words = done.stdout.splitlines()
        assert words[-1] == f"torch=={constraints()['torch']}"
        assert [word for word in words if word == "--index-url" or "example.org" in word] == asked


def test_base_and_kernel_have_exact_tags_and_the_page_says_how_to_pin_them():
    given, page = arguments(), section("The image")
    (base,) = re.findall(r"`([A-Z_]+)` is a tag", page)
    (kernel,) = re.findall(r"`([A-Z_]+)` is a version whose content", page)
    assert re.fullmatch(r"[\w./-]+:\d+\.\d+", given[base]), "a tag with its version, not `latest`"
    assert re.fullmatch(r"v\d+", given[kernel])
    assert "@sha256:" in page and "commit" in page
    assert [rest for word, rest in instructions() if word == "FROM"] == [f"${{{base}}}"]
    (fetched,) = [rest for word, rest in instructions() if word == "RUN" and "kernel.py" in rest]
    assert f'"${{{kernel}}}"' in fetched
    named = set(re.findall(r"`([A-Z_]{4,})[=`]", page))
    assert {base, kernel} < named <= set(given), (
        "the page names an argument that the Containerfile lacks"
    )


def test_the_flash_attention_of_the_image_is_found_without_the_hub(tmp_path):
    """A kernel in the place of the real one, which needs a GPU: the way to it is the same."""
    (env,) = [rest for word, rest in instructions() if word == "ENV" and "LOCAL_KERNELS" in rest]
    given = arguments()
    place = re.search(r'LOCAL_KERNELS="\$\{FLASH_ATTENTION\}=([^"]+)"', env)[1]
    (fetched,) = [rest for word, rest in instructions() if "kernel.py" in rest and word == "RUN"]
    assert fetched.endswith(place)
    facts = '{"id": "fake", "name": "fake", "version": 2, "license": "MIT", "python-depends": [], "backend": {"type": "cuda"}}'
    (tmp_path / "metadata.json").write_text(facts)
    (tmp_path / "__init__.py").write_text("found = True\n")
    repository = given["FLASH_ATTENTION"]
    ask = (
        "from axolotl.monkeypatch.attention.fa2_hub_kernel import FA2_HUB_KERNEL_VERSION as version\n"
        "from transformers.modeling_flash_attention_utils import FLASH_ATTN_KERNEL_FALLBACK as names\n"
        "from kernels import get_kernel\n"
        "name = names['flash_attention_2']\n"
        "print(name, f'v{version}', get_kernel(name, version=version).found)"
    )
    done = subprocess.run(
        [sys.executable, "-c", ask],
        env=os.environ
        | {
            "LOCAL_KERNELS": f"{repository}={tmp_path}",
            "HF_HUB_OFFLINE": "1",
            "HF_HOME": str(tmp_path / "hf"),
        },
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.stdout.strip().endswith(f"{repository} {given['FLASH_ATTENTION_VERSION']} True"), (
        done.stderr
    )


@pytest.fixture(scope="module")
def image():
    """What the image has: a virtual environment of the system's interpreter with the runner
    installed, all read-only, and one writable folder. The large packages are this environment's
    own, linked."""
    if os.geteuid() != 0 or shutil.which("setpriv") is None:
        pytest.skip("becoming another user takes root and setpriv")
    root = Path(tempfile.mkdtemp(prefix="recipe-image-"))
    root.chmod(0o755)
    packages = sysconfig.get_paths()["purelib"]
    same = subprocess.run(
        [SYSTEM_PYTHON, "-c", "import sys, ensurepip; print(sys.version_info[:2])"],
        capture_output=True,
        text=True,
    )
    if same.stdout.strip() != str(sys.version_info[:2]):
        shutil.rmtree(root)
        pytest.skip(
            f"the system's python3 is not {sys.version_info[:2]} with venv, so it cannot load these packages"
        )
    if subprocess.run([*UNKNOWN, "ls", packages], capture_output=True).returncode:
        shutil.rmtree(root)
        pytest.skip(f"another user cannot read {packages}")
    try:
        subprocess.run([SYSTEM_PYTHON, "-m", "venv", root / "venv"], check=True, timeout=120)
        (site,) = (root / "venv" / "lib").glob("python*/site-packages")
        (site / "linked.pth").write_text(f"import sys; sys.path.append({packages!a})\n")
        # Linked packages leave their commands behind; the launcher needs this one.
        torchrun = root / "venv" / "bin" / "torchrun"
        torchrun.write_text(
            f"#!{root}/venv/bin/python\nfrom torch.distributed.run import main\nmain()\n"
        )
        torchrun.chmod(0o755)
        for name in (
            "runner",
            "recipes",
            "schemas",
            "pyproject.toml",
            "README.md",
            "constraints.txt",
        ):
            source = ROOT / name
            shutil.copytree(source, root / "src" / name) if source.is_dir() else shutil.copy(
                source, root / "src" / name
            )
        # The Containerfile's last install, with the build tool that is here already.
        install = [
            root / "venv/bin/python",
            "-m",
            "pip",
            "install",
            "--quiet",
            "--no-deps",
            "--no-build-isolation",
            "--ignore-installed",
            ".",
        ]
        subprocess.run(install, cwd=root / "src", check=True, timeout=300)
        shutil.copytree(CONTAINER, root / "bin")
        subprocess.run(["chmod", "-R", "a+rX,a-w", root], check=True)
        (root / "tmp").mkdir(mode=0o777)
        (root / "tmp").chmod(0o777)
        yield root
    finally:
        shutil.rmtree(root)


def as_nobody_known(image: Path, *command: str, **env: str):
    around = {
        "PATH": f"{image}/venv/bin:/usr/bin:/bin",
        "TMPDIR": f"{image}/tmp",
        "RECIPES": f"{image}/src/recipes",
        **env,
    }
    return subprocess.run(
        [
            *UNKNOWN,
            *(f"{name}={value}" for name, value in around.items()),
            f"{image}/bin/entrypoint.sh",
            *command,
        ],
        cwd=image / "tmp",
        capture_output=True,
        text=True,
        timeout=570,
    )


def test_an_unknown_user_gets_a_home_and_a_name(image):
    done = as_nobody_known(
        image, "bash", "-c", 'id -u; touch "$HOME/a" "$XDG_CACHE_HOME/b"; echo "$HOME $USER"'
    )
    assert done.stdout.splitlines() == ["1000680000", f"{image}/tmp/home recipe"], done.stderr
    done = as_nobody_known(image, "bash", "-c", "echo $HOME", HOME="/")
    assert done.stdout.strip() == f"{image}/tmp/home"


def test_an_unknown_user_cannot_change_the_image(image):
    done = as_nobody_known(image, "touch", f"{image}/src/recipes/new.yaml")
    assert done.returncode != 0


@pytest.mark.long
def test_the_smoke_command_rehearses_as_an_unknown_user_without_a_home(image):
    done = as_nobody_known(image, "smoke")
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    assert done.stdout.rstrip().endswith("The image is fine.")
    assert "validation loss" in done.stdout and "torch 2.13.0" in done.stdout


@pytest.mark.long
def test_the_containers_own_install_lines_give_exactly_the_constraints(tmp_path):
    python = next((name for name in ("python3.12", "python3.11") if _runs(name)), sys.executable)
    subprocess.run([python, "-m", "venv", tmp_path / "venv"], check=True, timeout=120)
    for name in ("runner", "recipes", "schemas", "pyproject.toml", "README.md", "constraints.txt"):
        source = ROOT / name
        shutil.copytree(source, tmp_path / "src" / name) if source.is_dir() else shutil.copy(
            source, tmp_path / "src" / name
        )
    shutil.copy(CONTAINER / "requirements.py", tmp_path / "src")
    env = os.environ | {
        "PATH": f"{tmp_path}/venv/bin:{os.environ['PATH']}",
        "VIRTUAL_ENV": str(tmp_path / "venv"),
    }
    lines = [rest for word, rest in instructions() if word == "RUN" and "pip install" in rest]
    assert len(lines) == 3
    for line in lines:
        subprocess.run(
            ["bash", "-ec", line], cwd=tmp_path / "src", env=env, check=True, timeout=1800
        )
    frozen = subprocess.run(
        [tmp_path / "venv/bin/python", "-m", "pip", "freeze"],
        capture_output=True,
        text=True,
        check=True,
        timeout=120,
    ).stdout
    found = {
        _name(line.split("==")[0]): line.split("==")[1]
        for line in frozen.splitlines()
        if "==" in line
    }
    wanted = constraints()
    assert {
        name: version
        for name, version in found.items()
        if wanted.get(name) != version.split("+")[0]
    } == {}
    missing = (
        set(wanted)
        - set(found)
        - needed_by(
            "dev", "cluster", "serve", "search", "registry", "gguf", "small", "edit", "docs"
        )
        # A packaged model trains on the machine where it is installed.
        - {model.package for model in catalog.packaged_models()}
    )
    if "+cpu" in found["torch"]:
        # This machine has torch's build for CPU, which brings none of what a GPU needs.
        missing = {
            name
            for name in missing
            if not name.startswith(("nvidia-", "cuda-")) and name != "setuptools"
        }
    assert missing == set(), "a constraint that the image does not install"


# Packages that are on PyPI as source alone, all pure Python but DeepSpeed, which compiles when it
# is used.
FROM_SOURCE = ("axolotl-contribs-lgpl", "axolotl-contribs-mit", "deepspeed", "langdetect", "rouge-score", "sqlitedict",
               "word2number")  # fmt: skip


@pytest.mark.long
def test_every_version_exists_for_the_images_python_and_cuda(tmp_path):
    """pip resolves the image's requirements for Python 3.12 and PyTorch's CUDA build, which this
    machine need not have."""
    wanted = constraints()
    pip = [sys.executable, "-m", "pip"]
    lines = [f"{name}=={wanted[name]}" for name in FROM_SOURCE]
    subprocess.run(
        [*pip, "wheel", "--quiet", "--no-deps", "-w", tmp_path, *lines], check=True, timeout=600
    )
    needed = "\n".join(requirements("train", "data", "mlflow"))
    (tmp_path / "requirements.txt").write_text(needed, "utf-8")
    tags = [
        *(f"manylinux_2_{minor}" for minor in range(5, 35)),
        "manylinux1",
        "manylinux2010",
        "manylinux2014",
        "linux",
    ]
    done = subprocess.run(
        [
            *(
                *pip,
                "install",
                "--dry-run",
                "--ignore-installed",
                "--quiet",
                "--report",
                tmp_path / "report.json",
            ),
            *(
                "--target",
                tmp_path / "nowhere",
                "--find-links",
                tmp_path,
                "-c",
                ROOT / "constraints.txt",
            ),
            *("--implementation", "cp", "--python-version", "3.12", "--only-binary=:all:"),
            *(word for tag in tags for word in ("--platform", f"{tag}_x86_64")),
            *("-r", tmp_path / "requirements.txt", f"torch=={wanted['torch']}"),
        ],
        capture_output=True,
        text=True,
        timeout=1800,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    report = json.loads((tmp_path / "report.json").read_text("utf-8"))["install"]
    found = {_name(one["metadata"]["name"]): one["metadata"]["version"] for one in report}
    assert found["torch"] == wanted["torch"] and any(name.startswith("nvidia-") for name in found)
    assert {name: version for name, version in found.items() if wanted.get(name) != version} == {}


def _runs(name: str) -> bool:
    found = shutil.which(name)
    return (
        bool(found)
        and subprocess.run([found, "-m", "ensurepip", "--version"], capture_output=True).returncode
        == 0
    )


def needed_by(*extras: str) -> set[str]:
    """Every package that the project's extras need, directly or through others, in this
    environment."""
    import tomllib

    from packaging.requirements import Requirement

    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    open_ones = [line for extra in extras for line in project["optional-dependencies"][extra]]
    seen: set[str] = set()
    while open_ones:
        wanted = Requirement(open_ones.pop())
        if str(wanted) in seen:
            continue
        seen.add(str(wanted))
        try:
            requires = [
                Requirement(line) for line in importlib.metadata.requires(wanted.name) or []
            ]
        except importlib.metadata.PackageNotFoundError:
            continue
        asked = [{"extra": extra} for extra in ("", *wanted.extras)]
        open_ones += [
            str(one)
            for one in requires
            if one.marker is None or any(map(one.marker.evaluate, asked))
        ]
    return {_name(Requirement(one).name) for one in seen}
