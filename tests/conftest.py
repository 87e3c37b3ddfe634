"""What several tests share."""

from __future__ import annotations

import difflib
import fcntl
import os
import pickle
import re
import shlex
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from functools import cache, lru_cache, partial
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest
import yaml
from hypothesis import settings

from runner.tools import text
from runner.tools.problem import Problem
from runner.tools.process import ensure_home

# A test says itself which hub and which servers it meets: what somebody's shell says about them
# would change messages, and `make golden` would write the change down. Tests with a real server
# name it in RECIPE_TEST_….
SERVICES = (
    "HF_",
    "HUGGING_FACE_",
    "HUGGINGFACE_",
    "TRANSFORMERS_",
    "DATASETS_",
    "WANDB_",
    "MLFLOW_",
    "AWS_",
)
for variable in [name for name in os.environ if name.startswith(SERVICES)]:
    del os.environ[variable]

# The same examples at every run, so that a change alone can turn a test red; `make test-long` draws
# new ones.
settings.register_profile("steady", derandomize=True)
settings.load_profile("steady")

# Axolotl would otherwise report each of its runs to its makers, and wait for an answer where there
# is no network.
os.environ["AXOLOTL_DO_NOT_TRACK"] = "1"

# Threads of several processes on two cores wait for each other by spinning: a training loop of 8 s
# takes 70.
os.environ.setdefault("OMP_NUM_THREADS", "1")

# What tests measure is sealed with this key, in every process of theirs; nobody's own settings are
# touched.
os.environ["RECIPE_RUNNER_KEY"] = "5ea1" * 16
# Tests read thousands of manifests: libyaml reads them ten times as fast as Python does.
for name in ("safe_load", "safe_load_all"):
    reads = getattr(yaml, name.removeprefix("safe_"))
    setattr(yaml, name, partial(reads, Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader)))
# Tests render the same recipes again and again, and PyYAML writes slowly: what it has written is
# remembered.
written = lru_cache(2_000)(
    lambda pickled, options: yaml.dump(pickle.loads(pickled), **dict(options))
)
text.yaml = SimpleNamespace(
    dump=lambda value, **options: written(pickle.dumps(value), tuple(options.items()))
)
# What somebody has learned from own runs is no part of a test, and neither is what another test has
# learned: nobody, not even root, can create a folder there.
os.environ["XDG_CONFIG_HOME"] = f"{os.devnull}/settings"
# What the command line does first: many tests call what is below it.
ensure_home()

# Tests compute as a processor without bf16 does, wherever they run: `recipe run` would choose
# another number format on some machines.
os.environ.setdefault("ONEDNN_MAX_CPU_ISA", "AVX512_CORE_VNNI")

# What `make test-processors` sets to play another processor; a process with an environment of its
# own needs it too.
PROCESSOR = {
    name: os.environ[name]
    for name in ("ATEN_CPU_CAPABILITY", "ONEDNN_MAX_CPU_ISA")
    if name in os.environ
}

# What a shell starts in the background ignores ^C, and so would every process that a test starts
# and interrupts.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

ROOT = Path(__file__).resolve().parent.parent
RECIPES = sorted((ROOT / "recipes").glob("*.yaml"))
MINIMAL = sorted((ROOT / "recipes" / "minimal").glob("*.yaml"))
STARTERS = [*RECIPES, *MINIMAL]
# Recipes that name a cluster; others are for plain machines.
ON_CLUSTER = [path for path in RECIPES if "\nopenshift:" in path.read_text("utf-8")]
# Those for this machine alone have nothing to render.
RENDERED = [path for path in STARTERS if re.search("\n(openshift|nodes):", path.read_text("utf-8"))]

MESSAGES = ROOT / "tests" / "golden" / "messages"
WRITE_GOLDEN = os.environ.get("RECIPE_GOLDEN") == "write"
# Tensors, and commands and functions that train. By this alone tests are chosen for `make
# test-processors`, so that none is forgotten; that it takes a few more with them costs seconds.
FLOATING_POINT = re.compile(
    r"(import|from) (torch|numpy|safetensors|llama_cpp)\b|\b(ENGINES|carry_out|\w*loss_at_once|\w*validation_loss)\b"
    r"|\"rehearse\"|recipe.rehearse|Rehearse"
)
# All that was collected, whether or not it runs: files of tests, and which tests ask for messages.
COLLECTED: set[Path] = set()
ASKING: set[tuple[str, str]] = set()


def own_time(
    monkeypatch: pytest.MonkeyPatch, module: ModuleType, **functions: Callable[..., object]
) -> None:
    """`module` reads another clock, and it alone: threads of servers and pods go by the real
    one."""
    monkeypatch.setattr(module, "time", SimpleNamespace(**vars(time) | functions))


def home(item: pytest.Item) -> tuple[str, str]:
    """The golden file of a test's messages, `check.txt`, and the test's name in it."""
    room, _, file = item.path.relative_to(ROOT / "tests").as_posix().rpartition("/")
    return f"{room or item.path.stem.removeprefix('test_')}.txt", f"{file}::{item.name}"


def read_messages(file: str) -> dict[str, str]:
    """Texts by heading; a heading stands at the start of its line, and the lines of its text are
    indented."""
    text = (MESSAGES / file).read_text("utf-8") if (MESSAGES / file).is_file() else ""
    entries = (
        entry.partition("\n")
        for entry in re.split(r"^(?=\S)", text, flags=re.MULTILINE)
        if entry.strip()
    )
    return {
        heading: re.sub("^    ", "", body.rstrip("\n"), flags=re.MULTILINE)
        for heading, _, body in entries
    }


@contextmanager
def changing_messages(file: str) -> Iterator[dict[str, str]]:
    """The entries of a golden file, which are written back at the end. Nobody else writes
    meanwhile: `make golden` runs several processes, and tests of all of them write into one
    file."""
    MESSAGES.mkdir(exist_ok=True)
    folder = os.open(MESSAGES, os.O_RDONLY)
    try:
        fcntl.flock(folder, fcntl.LOCK_EX)
        entries = read_messages(file)
        yield entries
        write_messages(file, entries)
    finally:
        os.close(folder)


def write_messages(file: str, entries: dict[str, str]) -> None:
    MESSAGES.mkdir(exist_ok=True)
    indented = {
        heading: re.sub("^(?=.)", "    ", entries[heading], flags=re.MULTILINE)
        for heading in sorted(entries)
    }
    text = "\n\n".join(f"{heading}\n{body}" for heading, body in indented.items())
    (MESSAGES / file).write_text(f"{text}\n", encoding="utf-8")


def setting_of(problem: Problem) -> str:
    """The setting that a problem points at: the first word of the recipe's line, or what `--set`
    names."""
    if problem.line:
        return problem.source.split()[0].rstrip(":")
    return problem.file.removeprefix("--set ").partition("=")[0]


def words(said: object) -> str:
    """What is said; of problems the message and the hint, because the place is asserted beside it
    and moves often."""
    problems = (
        [said]
        if isinstance(said, Problem)
        else said
        if isinstance(said, list)
        else getattr(said, "problems", [])
    )
    return "\n\n".join(f"{problem.message}\n{problem.hint}".strip() for problem in problems) or str(
        said
    ).rstrip("\n")


def helpers(text: str) -> Iterator[Path]:
    """The files of tests that a file of tests imports something from, or starts as a program."""
    for module, names in re.findall(
        r"(?:from |\")(tests[\w.]*)(?: import (\(.*?\)|.*?)$|\")", text, re.M | re.DOTALL
    ):
        home = ROOT / module.replace(".", "/")
        files = [
            home.with_suffix(".py"),
            *(home / f"{name}.py" for name in re.findall(r"\w+", names)),
        ]
        yield from (file for file in files if file.is_file() and file != Path(__file__))


@cache
def computes(file: Path) -> bool:
    """Whether a file of tests names what computes in floating point, itself or in what it takes
    from other tests."""
    seen, left = set(), {file}
    while left:
        seen.add(one := left.pop())
        text = one.read_text("utf-8")
        if FLOATING_POINT.search(text):
            return True
        left |= set(helpers(text)) - seen
    return False


def pytest_configure(config: pytest.Config) -> None:
    """Two fork servers for all processes of the tests: importing the engine takes a processor half
    a minute, and importing what `check` needs half a second, which hundreds of commands would each
    take again."""
    if ENGINES in os.environ or config.option.collectonly:
        return
    from runner.run import launch
    from runner.trainer import fork_server

    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HF_HUB_OFFLINE", "1")  # as tests that train set it; it is read by imports
        start_server(config, launch.forking(), ENGINES)
    start_server(config, fork_server.forking(os.environ), COMMANDS)


def start_server(
    config: pytest.Config, server: AbstractContextManager[None], variable: str
) -> None:
    """Starts a fork server that ends with the tests; its address is then in `variable` and not in
    the product's own, so that nothing is forked by chance."""
    from runner.trainer import fork_server

    server.__enter__()
    config.add_cleanup(partial(server.__exit__, None, None, None))
    if address := os.environ.pop(fork_server.ADDRESS, ""):
        os.environ[variable] = address


def pytest_itemcollected(item: pytest.Item) -> None:
    COLLECTED.add(item.path)
    if computes(item.path):
        item.add_marker("floating_point")
    if "golden_message" in getattr(item, "fixturenames", ()):
        ASKING.add(home(item))
        item.add_marker("golden")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    items.sort(key=lambda item: item.get_closest_marker("heavy") is None)


@pytest.fixture
def golden_message(request, tmp_path):
    """Compares what people read with the running test's entry in tests/golden/messages; `case`
    tells several apart."""
    file, name = home(request.node)
    known, said, failed = read_messages(file), {}, request.session.testsfailed

    def compare(text: object, case: str = "") -> None:
        heading = f"{name} · {case}" if case else name
        assert heading not in said, f"two messages of this test are called `{case}`"
        said[heading] = words(text).replace(str(tmp_path), "<tmp>").replace(str(ROOT), "<root>")
        if shlex.quote(str(ROOT)) != str(
            ROOT
        ):  # commands quote a path that needs it, in the golden file for what follows alone
            said[heading] = re.sub(
                r"'<root>([^']*)'",
                lambda path: shlex.quote(f"/{path[1]}").replace("/", "<root>", 1),
                said[heading],
            )
        if not WRITE_GOLDEN and said[heading] != known.get(heading):
            old, new = known.get(heading, "").split("\n"), said[heading].split("\n")
            lines = difflib.unified_diff(
                old, new, f"golden/messages/{file}", "said now", lineterm=""
            )
            pytest.fail(
                "\n".join([heading, *lines, "`make golden` rewrites it; read the difference."]),
                pytrace=False,
            )

    def left_in(entries: dict[str, str]) -> set[str]:
        """The test's own entries that it asks for no more."""
        return {heading for heading in entries if heading.partition(" · ")[0] == name} - said.keys()

    yield compare
    if request.session.testsfailed != failed:
        return
    if WRITE_GOLDEN:
        with changing_messages(file) as entries:
            for heading in left_in(entries):
                del entries[heading]
            entries |= said
    else:
        assert not left_in(known), (
            f"golden/messages/{file} still has what the test asks for no more; `make golden` deletes it"
        )


# Commands and options that load a model.
LOADING = {
    "--exact",
    "ask",
    "compare",
    "evaluate",
    "export",
    "merge",
    "prepare",
    "rehearse",
    "report",
    "run",
}
# The environment variables with the servers' addresses: one has imported what loads models, the
# other all commands.
ENGINES, COMMANDS = "RECIPE_TEST_ENGINES", "RECIPE_TEST_COMMANDS"
IN_A_FORK = "tests.command_in_a_fork"


@pytest.fixture(scope="session")
def forks() -> dict[str, str]:
    """The address of the server with the engines, in the variable of the product; empty where
    nothing is forked. Not for tests that kill what they start: a fork would outlive it."""
    from runner.commands import cli
    from runner.trainer import fork_server

    fork_server.PROGRAMS[IN_A_FORK] = tuple({module for _, module in cli.commands().values()})
    address = os.environ.get(ENGINES)
    return {fork_server.ADDRESS: address} if address else {}


@pytest.fixture(scope="session")
def forked(forks):
    """Runs `python -m MODULE ARGS…` to its end, in a fork where there are forks; returns the
    finished process, with its errors among its output. server: the variable with the address of the
    server. Raises TimeoutExpired."""
    from runner.trainer import fork_server

    def run(
        command: list[str],
        cwd: Path,
        env: dict[str, str],
        timeout: float = 600,
        server: str = ENGINES,
    ):
        env = env | (forks if server == ENGINES else {}) | {"CUDA_VISIBLE_DEVICES": ""}
        with pytest.MonkeyPatch.context() as patch:
            if forks:
                patch.setenv(fork_server.ADDRESS, os.environ[server])
            patch.chdir(cwd)
            process = fork_server.fork(command, env)
        if process is None:
            assert not forks, "the fork server is gone"
            both = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
            return subprocess.run(command, cwd=cwd, env=env, timeout=timeout, **both)
        late = threading.Timer(timeout, os.killpg, (process.pid, signal.SIGKILL))
        late.start()
        with process.stdout:
            said = process.stdout.read()
        if not late.is_alive():
            raise subprocess.TimeoutExpired(command, timeout, said)
        late.cancel()
        return subprocess.CompletedProcess(command, process.wait(timeout), said, "")

    return run


@pytest.fixture(scope="session")
def recipe_command(forked, tmp_path_factory):
    """Runs `recipe ARGS…` as a fork of a process that has imported what it needs, or as a process
    of its own where a test gives it other modules; returns the finished process, output as text."""

    def run(
        *arguments: str, cwd: Path = ROOT, env: dict[str, str] | None = None, timeout: float = 600
    ):
        words, own = [*map(str, arguments)], env or {}
        whole = os.environ | {"PYTHONPATH": str(ROOT), "COLUMNS": "120"} | own
        if "PYTHONPATH" in own:
            command = [sys.executable, "-m", "runner", *words]
            return subprocess.run(
                command, cwd=cwd, env=whole, capture_output=True, text=True, timeout=timeout
            )
        folder = tmp_path_factory.mktemp("fork")
        files = [folder / "stdout", folder / "stderr"]
        command = [sys.executable, "-m", IN_A_FORK, *map(str, files), *words]
        done = forked(command, cwd, whole, timeout, ENGINES if LOADING & {*words} else COMMANDS)
        printed = (file.read_text("utf-8") if file.exists() else done.stdout for file in files)
        return subprocess.CompletedProcess(words, done.returncode, *printed)

    return run


@pytest.fixture
def s3_server():
    from tests import s3

    with s3.started() as server:
        yield server


@pytest.fixture
def survival_text() -> str:
    return (ROOT / "recipes" / "survival.yaml").read_text(encoding="utf-8")


@pytest.fixture
def edited(tmp_path, survival_text):
    """A copy of the survival recipe with lines replaced: `edited(("epochs: 4", "epocs: 4"))` gives
    its path."""
    import shutil

    def make(*replacements: tuple[str, str]) -> Path:
        text = survival_text
        for old, new in replacements:
            assert text.count(old) >= 1, f"{old!r} is not in the survival recipe"
            text = text.replace(old, new, 1)
        # Of its own data a copy asks its own questions.
        head, demo, rest = text.partition("\ndemo:")
        text = head + demo + rest.replace("    - ", "    - And ")
        (tmp_path / "data").mkdir(exist_ok=True)
        shutil.copy(ROOT / "recipes" / "data" / "survival-sample.jsonl", tmp_path / "data")
        path = tmp_path / "recipe.yaml"
        path.write_text(text, encoding="utf-8")
        return path

    return make
