"""Mistakes that people make, made on purpose: each is refused by mypy, by ruff, or when the files
are rendered. A mistake is one replacement in one file; the tree itself stays as it is."""

from __future__ import annotations

import re
import subprocess
import sys
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.conftest import ROOT

RECIPE = "recipes/survival.yaml"
PRINT_FILES = """
import sys
from pathlib import Path
from runner.check.validate import load
from runner.scenarios.render import planned, render
recipe, _, _ = load(Path(sys.argv[1]))
for file in render(planned(recipe, "pytorchjob"), ("pytorchjob",)):
    print(file.path, file.text, sep="\\n")
"""


@dataclass(frozen=True)
class Mistake:
    """before, after: a text that the file has once, and what is written instead. refusal: a part of
    the message; of ruff, the code."""

    name: str
    file: str
    before: str
    after: str
    refusal: str

    def text(self, original: str) -> str:
        """The file's text with the mistake."""
        assert original.count(self.before) == 1, f"{self.file} has `{self.before}` not once"
        return original.replace(self.before, self.after)


MYPY = (
    Mistake(
        "a wrong attribute in a message",
        "runner/parts/jobs/mirror.py",
        "{stage.name}: {content} came from",
        "{stage.title}: {content} came from",
        'has no attribute "title"',
    ),
    Mistake(
        "a misspelt setting of the site, as a key",
        "runner/parts/openshift/submit.py",
        "queue = sent.plan.site.queue",
        'queue = sent.plan.site.get("queu")',
        "incompatible type \"Literal['queu']\"",
    ),
    Mistake(
        "a misspelt setting of the site, as an attribute",
        "runner/parts/jobs/kubernetes.py",
        "if plan.site.queue:",
        "if plan.site.queu:",
        '"Openshift" has no attribute "queu"',
    ),
    Mistake(
        "a misspelt keyword argument",
        "runner/parts/openshift/site/__init__.py",
        "podspec.claims(plan), seconds=OPEN_SECONDS",
        "podspec.claims(plan), second=OPEN_SECONDS",
        'Missing positional argument "seconds"',
    ),
    Mistake(
        "a misspelt option of a problem",
        "runner/data/songs.py",
        'a share above 0.",\n            key=True',
        'a share above 0.",\n            keys=True',
        'Unexpected keyword argument "keys"',
    ),
    Mistake(
        "a severity that does not exist",
        "runner/parts/planner/storage.py",
        'severity="note", mending=enough',
        'severity="warning", mending=enough',
        "incompatible type \"Literal['warning']\"",
    ),
    Mistake(
        "a wrong attribute of a stage",
        "runner/parts/jobs/podspec.py",
        "if network and network.kind",
        "if stage.machine and network and network.kind",
        '"Stage" has no attribute "machine"',
    ),
    Mistake(
        "a value that a setting no longer has",
        "runner/parts/openshift/rules.py",
        'in_image = site.data_from == "image"',
        'in_image = site.data_from == "embedded"',
        "Non-overlapping equality check",
    ),
    Mistake(
        "a fraction where a dataclass wants a whole number",
        "runner/scenarios/shared/common.py",
        "memory_gib=16.0, cpus=4,",
        "memory_gib=16.0, cpus=0.5,",
        'incompatible type "float"; expected "int"',
    ),
    Mistake(
        "a misspelt setting of the run",
        "runner/trainer/stopping.py",
        "self.limit = settings.time_limit_seconds",
        "self.limit = settings.time_limit_second",
        '"RunSettings" has no attribute "time_limit_second"',
    ),
    Mistake(
        "a misspelt option of the run",
        "runner/scenarios/shared/axolotl.py",
        'options["master_weights"] = "fp32"',
        'options["master_weight"] = "fp32"',
        'TypedDict "RunOptions" has no key "master_weight"',
    ),
    Mistake(
        "a field of the run that is forgotten",
        "runner/parts/pretrain/translation.py",
        "            base_model=before.best_model_dir,\n",
        "",
        'Missing named argument "base_model" for "Demo"',
    ),
    Mistake(
        "a branch that returns nothing",
        "runner/parts/jobs/trainjob.py",
        'if not (site.queue and site.kueue):\n        return ""',
        "if not (site.queue and site.kueue):\n        return",
        "Return value expected",
    ),
    Mistake(
        "a section that may be missing",
        "runner/recipe/recipe.py",
        "return site is not None and claim_of(path, site.claims) is not None",
        "return claim_of(path, site.claims) is not None",
        '"None" of "Openshift | None" has no attribute "claims"',
    ),
    Mistake(
        "arguments in the wrong order",
        "runner/parts/jobs/batch.py",
        "PREPARE, spec, kubernetes.origin(spec, plan, stage)",
        "PREPARE, spec, kubernetes.origin(plan, spec, stage)",
        'incompatible type "Plan"',
    ),
)
RUFF = (
    Mistake(
        "a misspelt variable",
        "runner/parts/jobs/pytorchjob.py",
        "machines.nodes - 1, **replica}",
        "machines.nodes - 1, **replcia}",
        "F821",
    ),
    Mistake(
        "a message that shows no value",
        "runner/parts/jobs/trainjob.py",
        'f"OpenShift AI {plan.site.version} has no TrainJob; 3.2 introduced it."',
        'f"OpenShift AI has no TrainJob; 3.2 introduced it."',
        "F541",
    ),
)
RENDERING = (
    Mistake(
        "a misspelt field of a pod",
        "runner/parts/jobs/pytorchjob.py",
        "terminationGracePeriodSeconds=podspec.grace(stage)",
        "graces=podspec.grace(stage)",
        "pod.yaml has no place for graces",
    ),
    Mistake(
        "a misspelt place of a template",
        "runner/parts/jobs/pod.yaml",
        "$terminationGracePeriodSeconds",
        "$words",
        "pod.yaml has no place for terminationGracePeriodSeconds",
    ),
    Mistake(
        "a misspelt name in a page",
        "runner/parts/jobs/header.jinja",
        "{{ plan.fingerprint }}",
        "{{ plan.fingerprnt }}",
        "fingerprnt",
    ),
    Mistake(
        "a blank without its word",
        "runner/parts/jobs/prepare.txt",
        "oc delete $job",
        "oc delete $jobs",
        "jobs",
    ),
)


def names(mistakes: tuple[Mistake, ...]) -> dict[str, list[str]]:
    return {"argvalues": mistakes, "ids": [mistake.name for mistake in mistakes]}


@pytest.fixture(scope="module")
def complaints(tmp_path_factory) -> dict[str, list[str]]:
    """What mypy says of all mistakes at once, by the file. Together, because reading the package
    takes longer than judging a line."""
    folder = tmp_path_factory.mktemp("mistakes")
    shadows = []
    for number, (file, text) in enumerate(mistaken().items()):
        copy = folder / f"{number}.py"
        copy.write_text(text, "utf-8")
        shadows += ["--shadow-file", file, str(copy)]
    command = [sys.executable, "-m", "mypy", "--cache-dir", str(folder / "cache"), *shadows]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    messages: dict[str, list[str]] = defaultdict(list)
    for file, message in re.findall(r"(?m)^(\S+):\d+: error: (.*)$", done.stdout):
        messages[file].append(message)
    assert messages, done.stdout + done.stderr
    return messages


def mistaken() -> dict[str, str]:
    """Each file with its mistakes."""
    texts: dict[str, str] = {}
    for mistake in MYPY:
        original = texts.get(mistake.file) or (ROOT / mistake.file).read_text("utf-8")
        texts[mistake.file] = mistake.text(original)
    return texts


def test_each_mistake_can_be_made():
    """The code that it changes has not moved. The proof that mypy refuses it takes minutes."""
    for mistake in (*MYPY, *RENDERING):
        mistake.text((ROOT / mistake.file).read_text("utf-8"))


@pytest.mark.long
@pytest.mark.parametrize("mistake", **names(MYPY))
def test_mypy_refuses(mistake, complaints):
    assert any(mistake.refusal in message for message in complaints[mistake.file]), complaints


@pytest.mark.long
def test_mypy_refuses_nothing_else(complaints):
    """What a mistake breaks elsewhere would hide that its own line is not judged."""
    assert set(complaints) == {mistake.file for mistake in MYPY}


@pytest.mark.parametrize("mistake", **names(RUFF))
def test_ruff_refuses(mistake):
    original = (ROOT / mistake.file).read_text("utf-8")
    assert ruff_codes(mistake.file, original) == []
    assert mistake.refusal in ruff_codes(mistake.file, mistake.text(original))


def ruff_codes(file: str, text: str) -> list[str]:
    command = [sys.executable, "-m", "ruff", "check", "--output-format", "concise"]
    done = subprocess.run(
        [*command, "--stdin-filename", file, "-"],
        cwd=ROOT,
        input=text,
        capture_output=True,
        text=True,
        check=False,
    )
    return re.findall(r":\d+:\d+: ([A-Z]+\d+) ", done.stdout)


@pytest.mark.parametrize("mistake", **names(RENDERING))
def test_rendering_refuses(mistake, tmp_path):
    file = ROOT / mistake.file
    done = rendered(tmp_path, mistake.file, mistake.text(file.read_text("utf-8")))
    assert done.returncode != 0 and mistake.refusal in done.stderr, done.stdout + done.stderr


def test_tables_may_come_in_any_order(tmp_path):
    """Each is read by its name, so that moving one up changes nothing."""
    file = "runner/parts/jobs/environment.toml"
    text = (ROOT / file).read_text("utf-8")
    tables = re.split(r"(?m)^(?=\[)", text)
    assert len(tables) > 4
    backwards = rendered(tmp_path / "backwards", file, tables[0] + "".join(tables[:0:-1]))
    forwards = rendered(tmp_path / "forwards", file, text)
    assert forwards.returncode == backwards.returncode == 0, backwards.stderr
    assert "NCCL_" in forwards.stdout and forwards.stdout == backwards.stdout


def rendered(folder: Path, changed: str, text: str) -> subprocess.CompletedProcess[str]:
    """Prints the files of a recipe for the cluster, by a package in which one file has another
    text."""
    for file in (ROOT / "runner").rglob("*"):
        copy = folder / file.relative_to(ROOT)
        if file.is_file():
            copy.parent.mkdir(parents=True, exist_ok=True)
            copy.symlink_to(file)
    (folder / changed).unlink()
    (folder / changed).write_text(text, "utf-8")
    return subprocess.run(
        [sys.executable, "-c", PRINT_FILES, str(ROOT / RECIPE)],
        cwd=folder,
        env={"PYTHONPATH": str(folder), "PYTHONDONTWRITEBYTECODE": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
