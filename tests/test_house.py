"""The shape of the house: imports point down, the light commands stay light, and nothing names this place."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

from tests.conftest import ROOT, computes

# Floors by the longest matching prefix; a module may import from its own floor and those below.
FLOORS = {
    "runner.problem": 0,
    "runner.bugs": 0,
    "runner.names": 0,
    "runner.text": 0,
    "runner.files": 0,
    "runner.lengths": 0,
    "runner.run_files": 0,
    "runner.packaged": 0,
    "runner.quiet": 0,
    "runner.extras": 0,
    "runner.vllm": 0,
    "runner.ports": 0,
    "runner": 0,
    "runner.catalog": 1,
    "runner.recipe": 2,
    "runner.plan": 3,
    "runner.prepared": 3,
    "runner.serving": 3,
    "runner.estimate": 4,
    "runner.targets": 4,
    "runner.training": 4,
    "runner.proof": 4,
    "runner.data": 5,
    "runner.scenarios": 6,
    "runner.check": 7,
    "runner.emit": 7,
    "runner.planned": 7,
    "runner.offers": 7,
    "runner.comparing": 7,
    "runner.drafting": 7,
    "runner.trace": 7,
    "runner.runs": 8,
    "runner.report": 8,
    "runner.export": 8,
    "runner.hardware": 8,
    "runner.doctor": 8,
    "runner.entrypoints": 9,
    "runner.cluster": 10,
    # It is called by one of the commands, and shows what others print.
    "runner.editing": 11,
    "runner.commands": 11,
    "runner.cli": 11,
    "runner.__main__": 11,
}
APART = ("runner.scenarios", "runner.targets", "runner.estimate")
HEAVY = (
    "torch",
    "transformers",
    "datasets",
    "huggingface_hub",
    "kubernetes",
    "axolotl",
    "accelerate",
    "peft",
    "numpy",
    "pyarrow",
    "pydantic",
)


def modules() -> dict[str, Path]:
    files = sorted((ROOT / "runner").rglob("*.py"))
    assert len(files) > 30
    return {".".join(file.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__"): file for file in files}


def room(module: str) -> str:
    fitting = [prefix for prefix in FLOORS if module == prefix or module.startswith(f"{prefix}.")]
    return max(fitting, key=len)


def imports(file: Path):
    for node in ast.walk(ast.parse(file.read_text("utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield node.module
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def test_every_module_has_a_floor():
    for module in modules():
        assert room(module) != "runner" or module == "runner", (
            f"{module}: name its floor in tests/test_house.py and ARCHITECTURE.md"
        )


def test_imports_point_down():
    looked_at = 0
    for module, file in modules().items():
        for wanted in imports(file):
            if wanted == "runner" or not wanted.startswith("runner."):
                continue
            looked_at += 1
            assert FLOORS[room(wanted)] <= FLOORS[room(module)], (
                f"{module} imports {wanted}, which is on a higher floor"
            )
    assert looked_at > 100


def test_scenarios_targets_and_estimate_do_not_import_each_other():
    for module, file in modules().items():
        home = room(module)
        for wanted in imports(file):
            if home in APART and wanted.startswith("runner.") and room(wanted) in APART:
                assert room(wanted) == home, f"{module} imports {wanted}"


def test_check_and_render_import_nothing_heavy(tmp_path):
    code = (
        "import sys; from runner.cli import _code\n"
        f"assert _code(['check', {str(ROOT / 'recipes')!r}]) == 0\n"
        f"assert _code(['list']) == _code(['models']) == _code(['gpus']) == 0\n"
        f"assert _code(['show', {str(ROOT / 'recipes' / 'survival.yaml')!r}]) == 0\n"
        f"assert _code(['render', {str(ROOT / 'recipes' / 'survival.yaml')!r}, '--out', {str(tmp_path)!r}]) == 0\n"
        f"found = sorted(set(sys.modules) & set({HEAVY!r}))\n"
        "print('heavy:', found); sys.exit(bool(found))"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


def tracked() -> list[Path]:
    names = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True).stdout.split("\n")
    files = [ROOT / name for name in names if name and (ROOT / name).is_file()]
    assert len(files) > 50
    return files


def test_the_project_names_no_path_of_one_machine_and_no_registry_address():
    words = ["../" + "shared", "/wo" + "rk/", "files.python" + "hosted.org", "pypi." + "org/simple"]
    for file in tracked():
        text = file.read_text("utf-8", errors="replace")
        for word in words:
            assert word not in text, f"{file.relative_to(ROOT)} names {word}"


def test_a_cluster_target_lacks_no_line_elsewhere():
    from runner.cluster import client, jobs
    from runner.targets import TARGETS

    clusters = [target for target in TARGETS if target != "nodes"]
    assert clusters
    for target in clusters:
        kind = jobs.KIND.get(target)
        assert kind, f"{target}: KIND in runner/cluster/jobs.py"
        assert kind in jobs.POD_LABEL and kind in jobs.CONTAINER, f"{target}: POD_LABEL and CONTAINER in jobs.py"
        assert kind in client.KINDS, f"{target}: KINDS in runner/cluster/client.py"
        plural = client.KINDS[kind][1]
        access = "runner/targets/site/access.yaml"
        assert plural in (ROOT / access).read_text("utf-8"), f"{target}: {access}"


def test_every_engine_that_trains_has_its_formulas():
    from runner.estimate.forecast import FORMULAS
    from runner.runs.engines import ENGINES

    # What the runner does itself, without a GPU, is not forecast.
    assert set(ENGINES) - {"runner"} == set(FORMULAS), "FORMULAS in runner/estimate/forecast.py"


def test_tests_that_compute_in_floating_point_are_found_by_what_they_name_and_by_what_they_take_from_others():
    found = {name: computes(ROOT / "tests" / name) for name in (
        "runs/test_rehearsal.py", "export/test_gguf.py", "scenarios/test_kernels.py", "test_text.py", "check/test_check.py"
    )}  # fmt: skip
    # Of the first it is its own text, of the second an import, of the third a program that it starts.
    assert list(found.values()) == [True, True, True, False, False]
