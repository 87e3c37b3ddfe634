"""Every trouble is found in a whole log, as machines with and without avx512_bf16 write it, and
none in one without a trouble.

`tests/fixtures/logs/` has logs of real trainings with Axolotl 0.19.0, each of which failed as its
name says. A trouble that takes a GPU, a network or a cluster gets a log that is built: the real
beginning of a training, or the description of a pod, the words of a public thread
(`tests/fixtures/troubles.toml`), and for a log the real end that torchrun writes."""

from __future__ import annotations

import tomllib

import pytest

from runner.catalog import troubles
from tests.catalog.test_log_reading import OFFLINE_KERNEL
from tests.conftest import ROOT

LOGS = ROOT / "tests/fixtures/logs"
THREADS = tomllib.loads((ROOT / "tests/fixtures/troubles.toml").read_text("utf-8"))
BY_NAME = {trouble.name: trouble for trouble in troubles.known()}
KERNEL_WARNING = "[bitsandbytes.backends.cpu.ops]"
BEGINS = '[recipe] {"event": "begin"'
# In the words of kubelet, scheduler and Job controller: no public thread shows these.
BY_CLUSTER = {
    "preempted": "  Normal   Preempting      2s     default-scheduler  Preempted by a pod on node gpu-1: low priority",
    "machine gone": "  Warning  NodeLost        2s     node-controller    Node gpu-1 is not responding: Marking for deletion Pod lab/x",
    "too many failures": "  Warning  BackoffLimitExceeded  2s  job-controller  Job has reached the specified backoff limit",
}
# vLLM's last words, as tests/parts/openshift/test_serving.py has them too.
BY_SERVER = {
    "argument": "api_server.py: error: unrecognized arguments: --max-lora-rank=128",
    "no room for one request": "ValueError: To serve at least one request with the models's max seq len (4096), 0.5 GiB is needed",
    "server memory": "ValueError: Free memory on device (1.00/44.40 GiB) on startup is less than desired GPU memory utilization",
    "another rank": "ValueError: LoRA rank 256 is greater than max_lora_rank 128.",
    "architecture": "ValueError: Model architectures ['OtherForCausalLM'] are not supported for now.",
    "no model": "ValueError: Invalid repository ID or local directory specified: '/mnt/models'.",
}
SERVER_LINE = "(EngineCore_DP0 pid=72) ERROR 11-28 22:35:34 [core.py:708] "
UNKNOWN = {
    "unknown-layer": "ValueError: Target modules {'nothing_proj'} not found in the base model.",
    "unknown-rows": "ValueError: Messages is null. Please check `field_messages`.",
}


def real(name: str) -> str:
    return (LOGS / f"{name}.log").read_text("utf-8")


def until_training() -> str:
    return real("finished").partition(BEGINS)[0]


def end_by_torchrun() -> str:
    """What torchrun writes once one of its processes has failed."""
    log = real("own-stop-of-two")
    return log[log.index("E1128") :]


def lines_of(case: str) -> str:
    return str(THREADS[case]["log"]).strip("\n")


def whole_logs() -> dict[str, tuple[str, str]]:
    """By case: the name of its trouble, and its whole log."""
    whole = {
        name: (name, real(trouble.code))
        for name, trouble in BY_NAME.items()
        if (LOGS / f"{trouble.code}.log").is_file()
    }
    whole["killed rank"] = ("main memory", real("main-memory-of-a-rank"))
    for case, shown in THREADS.items():
        trouble = BY_NAME[shown.get("trouble", case)]
        if troubles.LOG in trouble.places:
            whole[f"{case}, built"] = (
                trouble.name,
                f"{until_training()}{lines_of(case)}\n{end_by_torchrun()}",
            )
        else:
            whole[case] = (trouble.name, described(lines_of(case)))
    for name, words in BY_CLUSTER.items():
        whole[name] = (name, described(words))
    for name, words in BY_SERVER.items():
        raised = (
            "Traceback (most recent call last):",
            '  File "core.py", line 699, in run_engine_core',
            "    engine()",
            words,
        )
        trace = "".join(f"{SERVER_LINE}{line}\n" for line in raised)
        whole[name] = (
            name,
            f"{OFFLINE_KERNEL}INFO 11-28 22:35:30 [api_server.py:1] starting\n{trace}",
        )
    return whole


def described(events: str) -> str:
    return f"{(LOGS / 'description.txt').read_text('utf-8')}{events}\n"


def on_other_processors(log: str) -> dict[str, str]:
    """The log as processors write it, with the hub and without it, by the processor."""
    others = [line for line in log.splitlines(keepends=True) if KERNEL_WARNING not in line]
    return {
        "as it is": log,
        "without avx512_bf16": "".join(others),
        "with avx512_bf16, offline": "".join([OFFLINE_KERNEL, *others]),
    }


WHOLE = whole_logs()


@pytest.mark.parametrize("case", WHOLE)
def test_a_trouble_is_found_in_a_whole_log(case):
    name, log = WHOLE[case]
    thread = THREADS.get(case.removesuffix(", built"), {})
    words = {key: thread[key] for key in ("gpu",) if key in thread}
    for processor, text in on_other_processors(log).items():
        if name in BY_SERVER:
            found = troubles.diagnose(text, troubles.SERVER, source="/mnt/models")
        else:
            found = troubles.diagnose_anything(text, **words)
        assert found.trouble and found.trouble.trouble.name == name, (
            f"{processor}: {found.stop or found.error}"
        )


def test_every_trouble_has_a_whole_log():
    assert {name for name, _ in WHOLE.values()} == set(BY_NAME)


@pytest.mark.parametrize("name", UNKNOWN)
def test_an_unknown_error_stays_unknown_in_a_whole_log(name):
    for processor, text in on_other_processors(real(name)).items():
        found = troubles.diagnose_anything(text)
        assert found.trouble is None, processor
        assert found.error.startswith(UNKNOWN[name])


@pytest.mark.parametrize("name", ["own-stop", "own-stop-of-two"])
def test_a_training_that_stops_itself_gives_its_own_reason_in_a_whole_log(name):
    for processor, text in on_other_processors(real(name)).items():
        assert troubles.diagnose_anything(text).stop, processor


def test_a_whole_log_without_a_trouble_shows_none():
    for text in (*on_other_processors(real("finished")).values(), described("")):
        assert troubles.diagnose_anything(text) == troubles.Diagnosis()


def test_the_fixtures_show_both_kinds_of_processors():
    logs = [file.read_text("utf-8") for file in LOGS.glob("*.log")]
    assert len(logs) > 15
    assert 0 < sum(KERNEL_WARNING in log for log in logs) < len(logs)
