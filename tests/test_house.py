"""The shape of the house: imports point down, the light commands stay light, and nothing names this
place."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections import defaultdict
from collections.abc import Collection, Iterator
from dataclasses import fields
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

from runner import parts
from tests.conftest import ROOT, computes
from tests.density import Counts, Density, count_files, count_source, density

# The rooms of the core, from the ground up: a module imports from its own room and from those
# below.
CORE = (
    *(
        "tools",
        "parts",
        "plan",
        "catalog",
        "recipe",
        "trainer",
        "data",
        "scenarios",
        "check",
        "run",
    ),
    *("entrypoints", "commands", "__main__"),
)
# What only one part can do, others import from it inside a function, once they know that it is here
# (`parts.has`, `parts.require`). The parts that each room of the core and each part imports so.
SOFT = {
    "trainer": {
        "pretrain": "a stage of that part alone has packed blocks",
        "proof": "judges the engine's own rows before the first step",
        "tracking": "sends curves to a server",
    },
    "scenarios": {
        "evaluate": "gates and evaluations of stages",
        "openshift": "files beside the jobs of a render",
        "rewards": "the rewards of a model's own answers",
    },
    "check": {
        "axolotl_files": "reads files of other trainers",
        "jobs": "values under `openshift` that a recipe leaves out",
        "nodes": "counts that follow the list of machines",
    },
    "run": {"planner": "compares a run with its forecast"},
    "entrypoints": {"proof": "judges the engine's rows before a GPU is reserved"},
    "commands": {
        "ci": "formats for programs of CI",
        "openshift": "whether there is a login",
        "proof": "shows what is trained",
        "report": "the page at the end of a run",
        "serve": "asks the models behind a server",
        "start": "whether a file of data becomes a recipe",
    },
    "editor": {"report": "the page of a run"},
    "evaluate": {
        "openshift": "overrules a gate on the cluster",
        "serve": "measures the models behind a server",
    },
    "export": {"tracking": "sends an exported model to the server that has its curves"},
    "images": {
        "evaluate": "the types of an evaluation",
        "planner": "its formulas, which the planner alone imports",
    },
    "jobs": {"evaluate": "the gate in a pod", "report": "the page of a run in a pod"},
    "nodes": {"planner": "compares a run with its forecast"},
    "openshift": {
        "evaluate": "the key that pods seal evaluations with",
        "report": "the page of a run that was fetched",
    },
    "planner": {
        "images": "traces the models of that part",
        "serve": "what a server needs",
    },
    "proof": {"rewards": "tries the rewards"},
    "report": {"openshift": "jobs on the cluster"},
    "search": {"report": "the page of all trials"},
    "start": {"openshift": "a model on a claim"},
}
# These are imported at the top, by a module that only the other part imports.
FOR_THE_OTHER = {"runner.parts.images.formulas": "planner"}
CONTRACT = "runner.parts.contract"
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


# What a check of a plain recipe does without, because each takes a part of its time.
LATE = (
    *(
        "runner.trainer.records",
        "runner.run.run_folder",
        "runner.data.report",
        "runner.data.judged",
    ),
    *(
        "runner.parts.search.trials",
        "runner.parts.serve.rules",
        "runner.data.songs",
    ),
    *(
        "jsonschema",
        "jinja2",
        "difflib",
        "zipfile",
        "importlib.metadata",
        "html",
        "socket",
        "concurrent.futures",
    ),
)


def modules() -> dict[str, Path]:
    files = sorted((ROOT / "runner").rglob("*.py"))
    assert len(files) > 30
    return {
        ".".join(file.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__"): file
        for file in files
    }


def imports(file: Path):
    for node in ast.walk(ast.parse(file.read_text("utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def part_of(module: str) -> str:
    """The part that a module belongs to; empty for the core, the contract among it."""
    words = module.split(".")
    return (
        words[2] if words[1:2] == ["parts"] and len(words) > 2 and words[2] in parts.found() else ""
    )


def arrows() -> list[tuple[str, str]]:
    known = modules()
    found = [
        (module, wanted if wanted in known else wanted.rpartition(".")[0])
        for module, file in known.items()
        for wanted in imports(file)
        if wanted.startswith("runner.") and (wanted in known or wanted.rpartition(".")[0] in known)
    ]
    assert len(found) > 1000
    return [(module, wanted) for module, wanted in found if module not in (wanted, CONTRACT)]


def room(module: str) -> str:
    return module.split(".")[1] if "." in module else "tools"


def test_rooms_and_parts_import_other_parts_only_where_tables_say_so():
    found: dict[str, set[str]] = {name: set() for name in (*CORE, *parts.found())}
    for module, wanted in arrows():
        here, there = part_of(module) or room(module), part_of(wanted)
        if there and here != there:
            found[here].add(there)
    needs = {name: part.needs for name, part in parts.found().items()}
    assert found == {name: {*needs.get(name, ()), *SOFT.get(name, ())} for name in found}
    assert all(reason for reasons in SOFT.values() for reason in reasons.values())


def asked_for(function: ast.AST, before: int) -> set[str]:
    """The parts that a function asks for above a line."""
    return {
        node.args[0].value
        for node in ast.walk(function)
        if isinstance(node, ast.Call)
        and ast.unparse(node.func) in ("parts.has", "parts.require")
        and isinstance(node.args[0], ast.Constant)
        and node.lineno < before
    }


def unasked_imports(module: str, tree: ast.Module, soft: Collection[str]) -> Iterator[str]:
    """The imports of other parts that no function asks for, except those for types alone."""
    functions = [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)]
    types_alone = {
        id(inner)
        for node in ast.walk(tree)
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"
        for inner in ast.walk(node)
    }
    for node in ast.walk(tree):
        if not isinstance(node, ast.Import | ast.ImportFrom) or id(node) in types_alone:
            continue
        imported = ast.unparse(node).split("runner.parts.")[1:]
        part = re.split(r"\W", imported[0])[0] if imported else ""
        if part not in soft or FOR_THE_OTHER.get(module) == part:
            continue
        around = [each for each in functions if any(inner is node for inner in ast.walk(each))]
        if not any(part in asked_for(function, node.lineno) for function in around):
            yield f"{module}:{node.lineno} imports {part}"


def test_whoever_imports_a_part_that_may_be_missing_asks_for_it_first():
    found: list[str] = []
    for module, file in modules().items():
        soft = SOFT.get(part_of(module) or room(module), ())
        found += unasked_imports(module, ast.parse(file.read_text("utf-8")), soft)
    assert found == []
    unasked = ast.parse("def f():\n    from runner.parts.proof import prove\n")
    assert [*unasked_imports("a", unasked, {"proof"})] == ["a:2 imports proof"]
    asked = "def f():\n    parts.require('proof')\n    from runner.parts.proof import prove\n"
    assert [*unasked_imports("a", ast.parse(asked), {"proof"})] == []
    assert [*unasked_imports("a", ast.parse(asked.replace("proof'", "serve'")), {"proof"})] != []


def test_the_contract_imports_nothing_of_ours_when_it_runs():
    """It names what is on every floor, so its imports are for types alone and make no arrow."""
    code = f"import sys, {CONTRACT}; print([each for each in sys.modules if each.split('.')[0] in ('runner', 'torch', 'transformers')])"
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True
    )
    imported = ast.literal_eval(done.stdout)
    above = [module for module in imported if not module.startswith("runner.tools")]
    assert sorted(above) == ["runner", "runner.parts", CONTRACT]


def test_imports_of_the_core_point_down():
    rooms = {room(module) for module in modules() if not part_of(module) and module != "runner"}
    assert rooms == set(CORE)
    for module, wanted in arrows():
        if not part_of(module) and not part_of(wanted) and wanted != "runner":
            assert CORE.index(room(wanted)) <= CORE.index(room(module)), (
                f"{module} imports {wanted}, which is above it"
            )


def test_the_core_has_at_most_eight_floors():
    """A room's floor is one above the highest that it imports from."""
    below = defaultdict(set)
    for module, wanted in arrows():
        if (
            not part_of(module)
            and not part_of(wanted)
            and wanted != "runner"
            and module != "runner.__main__"
        ):
            below[room(module)] |= {room(wanted)} - {room(module)}
    floors: dict[str, int] = {}
    for name in TopologicalSorter(below).static_order():
        floors[name] = 1 + max((floors[other] for other in below[name]), default=0)
    assert 3 < max(floors.values()) <= 8, floors


def test_no_modules_import_each_other_in_a_circle():
    below = defaultdict(set)
    for module, wanted in arrows():
        below[module].add(wanted)
    TopologicalSorter(below).prepare()  # raises CycleError, which names them


def test_a_class_name_has_one_meaning():
    found = defaultdict(list)
    for module, file in modules().items():
        for node in ast.walk(ast.parse(file.read_text("utf-8"))):
            if isinstance(node, ast.ClassDef):
                found[node.name].append(module)
    assert len(found) > 100
    assert {name: places for name, places in found.items() if len(places) > 1} == {}


# How dense the runner may be at most, and where it should arrive. A bound only ever falls. Each is
# a share and a little above the runner's own figure, so that clear code never reaches it. `python
# tests/density.py runner` prints today's figures.
BOUNDS = Density(
    nodes_per_line=6.15,
    conditional_expressions_per_1000_lines=11,
    comprehensions_per_1000_lines=35.5,
    walruses_per_1000_lines=1.7,
    tuple_assignments_per_1000_lines=1.6,
    vague_names_percent=1.7,
    complex_functions_per_1000=17,
    untyped_parameters_per_1000_functions=46,
)
AIMS = Density(
    nodes_per_line=5.5,
    conditional_expressions_per_1000_lines=20,
    comprehensions_per_1000_lines=40,
    walruses_per_1000_lines=3,
    tuple_assignments_per_1000_lines=4,
    vague_names_percent=2,
    complex_functions_per_1000=20,
    untyped_parameters_per_1000_functions=67,
)
# A bound further above its figure than this is lowered, so that what was gained stays.
SLACK = 1.25


@pytest.fixture(scope="module")
def densities() -> Density:
    return density(count_files(modules().values()))


@pytest.mark.parametrize("measure", [field.name for field in fields(Density)])
def test_the_runner_becomes_no_denser(measure, densities):
    figure, bound, aim = (getattr(each, measure) for each in (densities, BOUNDS, AIMS))
    words = measure.replace("_", " ")
    assert figure <= bound, (
        f"runner/ has {figure:.2f} {words}; at most {bound} are allowed, and the aim is {aim}. Run `python tests/density.py FILE…` "
        f"for the files that you changed, and rewrite what is above the bound: see `Style` in CONTRIBUTING.md. Never raise the bound."
    )
    assert bound <= max(SLACK * figure, aim), (
        f"runner/ has only {figure:.2f} {words} left. Keep the gain: in tests/test_house.py, lower the bound of `{measure}` "
        f"from {bound} to {max(1.02 * figure, aim):.1f}."
    )


def test_every_measure_of_density_counts_what_it_names():
    source = '''
"""A docstring and a comment are no code."""


def total(price: float, given: dict[str, Any], *, key=None):
    """So is this one."""
    # Three names, one of them vague, and one parameter of any type.
    first, last = price, 1
    return [value if value else 0 for value in given if (size := value)]
'''
    counts = count_source(source)
    names = {"price", "given", "key", "first", "last", "value", "size"}
    assert counts == Counts(
        code_lines=3, nodes=counts.nodes, conditional_expressions=1, comprehensions=1, walruses=1, tuple_assignments=1,
        functions=1, complex_functions=0, untyped_parameters=1, names=len(names), vague_names=2,
    )  # fmt: skip
    assert (
        counts.nodes == count_source(source.replace("(price", "(\n    price")).nodes
    )  # wrapping changes no size
    assert density(counts + counts) == density(counts)  # nor does more of the same change a share
    assert density(counts).conditional_expressions_per_1000_lines == pytest.approx(1000 / 3)
    branches = "".join(f"    if {name} and {name}: pass\n" for name in "abcdefgh")
    assert count_source("def f():\n" + branches).complex_functions == 1
    assert (
        count_source(
            "def f():\n" + branches.replace("    if h and h: pass\n", "")
        ).complex_functions
        == 0
    )


def top_level_names(tree: ast.Module) -> set[str]:
    """What a module binds when it is imported, also under `if` and `try`."""
    names: set[str] = set()
    statements = list(tree.body)
    while statements:
        statement = statements.pop()
        if isinstance(statement, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            names.add(statement.name)
            continue
        if isinstance(statement, (ast.Import, ast.ImportFrom)):
            names |= {(name.asname or name.name).partition(".")[0] for name in statement.names}
            continue
        names |= {
            node.id
            for node in ast.walk(statement)
            if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)
        }
        statements += [child for child in ast.walk(statement) if isinstance(child, ast.stmt)][1:]
    return names


def imported_modules(tree: ast.Module, known: Collection[str]) -> dict[str, str]:
    """The modules of the runner that a file imports at its top, by the names that it gives them."""
    imported: dict[str, str] = {}
    for statement in tree.body:
        if not isinstance(statement, ast.ImportFrom):
            continue
        for name in statement.names:
            module = f"{statement.module}.{name.name}"
            if module in known:
                imported[name.asname or name.name] = module
    return imported


def test_tests_name_what_is_in_a_module():
    """A test that takes hours to come round would find out late that a name has moved."""
    known = modules()
    bound = {
        module: top_level_names(ast.parse(file.read_text("utf-8")))
        for module, file in known.items()
    }
    asked = 0
    lacking = []
    for file in sorted((ROOT / "tests").rglob("*.py")):
        tree = ast.parse(file.read_text("utf-8"))
        imported = imported_modules(tree, known)
        # A parameter or a variable may have the same name as a module.
        rebound = {node.arg for node in ast.walk(tree) if isinstance(node, ast.arg)} | {
            node.id
            for node in ast.walk(tree)
            if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)
        }
        for node in ast.walk(tree):
            if not isinstance(node, ast.Attribute) or not isinstance(node.value, ast.Name):
                continue
            module = imported.get(node.value.id)
            if module is None or node.value.id in rebound or node.attr.startswith("__"):
                continue
            asked += 1
            if node.attr not in bound[module] and f"{module}.{node.attr}" not in known:
                lacking.append(f"{file.relative_to(ROOT)}:{node.lineno}: {module}.{node.attr}")
    assert asked > 1000
    assert lacking == []


def test_programs_beside_the_package_import_what_is_there():
    known = modules()
    asked, lacking = 0, []
    for file in (
        file
        for folder in ("benchmarks", "container", "docs", "schemas")
        for file in (ROOT / folder).rglob("*.py")
    ):
        for wanted in imports(file):
            if not wanted.startswith("runner."):
                continue
            asked += 1
            module, _, name = wanted.rpartition(".")
            if wanted not in known and not re.search(
                rf"\b{re.escape(name)}\b",
                known[module].read_text("utf-8") if module in known else "",
            ):
                lacking.append(f"{file.relative_to(ROOT)} imports {wanted}")
    assert asked > 50 and lacking == []


def test_programs_beside_the_package_use_the_package_of_their_own_clone():
    """Python puts a program's folder first, so `import runner` would find what is installed:
    another clone, perhaps."""
    programs = []
    for folder in ("benchmarks", "docs", "schemas"):
        for file in sorted((ROOT / folder).rglob("*.py")):
            source = file.read_text("utf-8")
            if "__main__" in source and re.search(
                r"^\s*(?:from|import) (?:runner|tests|benchmarks|schemas)\b", source, re.MULTILINE
            ):
                programs.append(source)
    assert len(programs) > 10
    for source in programs:
        where = re.search(r"^sys\.path(?:\.insert\(\s*0, |\[:0\] = )", source, re.MULTILINE)
        package = re.search(r"^\s*(?:from|import) runner\b", source, re.MULTILINE)
        assert where and (package is None or where.start() < package.start()), source[:200]


def test_tables_are_read_by_name():
    """Unpacked by position, a table that somebody moves up in its file takes the place of another,
    and no checker sees it."""
    unpacked = []
    for module, file in modules().items():
        for node in ast.walk(ast.parse(file.read_text("utf-8"))):
            several = isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Tuple)
            if several and re.search(
                r"(?:toml\(|[A-Z_]{4,}|table\(.*\)).*\.values\(\)", ast.unparse(node.value)
            ):
                unpacked.append(f"{module}:{node.lineno}")
    assert unpacked == [], "read each of the tables by its name"


MAP = ROOT / "ARCHITECTURE.md"


def test_the_map_is_short_and_has_every_floor_in_order_and_every_part():
    text = MAP.read_text("utf-8")
    assert len(text.split()) <= 1500
    rows = [
        re.findall(r"^\| `([\w./]+)` \|", section, re.MULTILINE) for section in text.split("\n## ")
    ]
    floors, ours = (row for row in rows if row)
    named = [row.partition("/")[0].removesuffix(".py") for row in floors]
    assert named == [floor for floor in CORE if floor != "__main__"]
    assert sorted(ours) == sorted(parts.found())


def decisions() -> list[Path]:
    return [
        ROOT / "runner" / "DECISIONS.md",
        *(ROOT / "runner/parts" / name / "DECISIONS.md" for name in parts.found()),
    ]


def test_the_core_and_every_part_have_their_decisions():
    assert len(decisions()) > 10
    assert [
        file
        for file in decisions()
        if not re.search(r"^- \S", file.read_text("utf-8"), re.MULTILINE)
    ] == []


def test_every_path_that_a_document_names_is_there():
    ours = re.compile(r"`((?:runner|tests|benchmarks|schemas|docs|ci)/[\w./-]*)`")
    found = 0
    for file in (
        MAP,
        ROOT / "CONTRIBUTING.md",
        ROOT / "README.md",
        *sorted((ROOT / "docs").glob("*.md")),
        *decisions(),
    ):
        for path in ours.findall(file.read_text("utf-8")):
            found += 1
            if path == "runner/catalog/measured/":
                continue  # written where somebody has a GPU
            assert any(ROOT.glob(re.sub("NAME|my-demo", "*", path))), (
                f"{file.relative_to(ROOT)} names {path}"
            )
    assert found > 60


def test_a_check_of_one_recipe_imports_only_what_it_needs():
    recipe = ROOT / "recipes" / "minimal" / "last-layers.yaml"
    code = (
        f"import sys; from runner.commands.cli import _code; assert _code(['check', {str(recipe)!r}]) == 0\n"
        f"assert 'runner.parts.planner.rules' in sys.modules; print(sorted(set(sys.modules) & set({LATE!r})))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert done.stdout.endswith("\n[]\n"), done.stdout


def test_check_and_render_import_nothing_heavy(tmp_path):
    code = (
        "import sys; from runner.commands.cli import _code\n"
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
    names = subprocess.run(
        ["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout.split("\n")
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
    from runner.parts.openshift import client, jobs

    clusters = parts.found()["jobs"].targets
    assert clusters
    for target in clusters:
        kind = jobs.KIND.get(target)
        assert kind, f"{target}: KIND in runner/parts/openshift/jobs.py"
        assert kind in jobs.POD_LABEL and kind in jobs.CONTAINER, (
            f"{target}: POD_LABEL and CONTAINER in jobs.py"
        )
        assert kind in client.KINDS, f"{target}: KINDS in runner/parts/openshift/client.py"
        plural = client.KINDS[kind][1]
        access = "runner/parts/openshift/site/access.yaml"
        assert plural in (ROOT / access).read_text("utf-8"), f"{target}: {access}"


def test_every_engine_that_trains_has_its_formulas():
    from runner.run.launch import ENGINES

    # What the runner does itself, without a GPU, is not forecast.
    assert set(ENGINES) - {"runner"} == set(parts.table("formulas")), (
        "`formulas` in the part's table"
    )


def test_tests_that_compute_in_floating_point_are_found_by_what_they_name_and_by_what_they_take_from_others():
    found = {name: computes(ROOT / "tests" / name) for name in (
        "run/test_rehearsal.py", "parts/export/test_gguf.py", "scenarios/test_kernels.py", "test_text.py", "check/test_check.py"
    )}  # fmt: skip
    # Of the first it is its own text, of the second an import, of the third a program that it
    # starts.
    assert list(found.values()) == [True, True, True, False, False]
