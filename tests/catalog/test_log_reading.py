"""A trouble is looked for in the error that ended a process, not in what successful runs log as
well."""

from __future__ import annotations

import pytest

from runner.catalog import log_reading, troubles
from runner.catalog.log_reading import ERROR, EVENT, INFO, PLAIN, WARNING, read_line

# What bitsandbytes 0.50.2 logs on every processor with avx512_bf16 where the hub is not asked.
OFFLINE_KERNEL = (
    "[2026-11-28 22:35:34,348] [WARNING] [bitsandbytes.backends.cpu.ops] Failed to load CPU gemm_4bit_forward from "
    "kernels-community: Version 1 of 'kernels-community/quantization-bitsandbytes' is not available in the local cache and "
    "Hugging Face Hub is in offline mode. Download the kernel while online first, or pass an explicit `revision=<commit>`.. "
    "Please make sure you already `pip install kernels` and the kernels >= 0.11.1\n"
)


def trace(message: str, before: str = "") -> str:
    """A trace with this message; before: of the process, on every line."""
    lines = (
        "Traceback (most recent call last):",
        '  File "train.py", line 7, in <module>',
        "    train()",
        message,
    )
    return "".join(f"{before}{line}\n" for line in lines)


def code_of(*logs: str) -> str:
    """The trouble that logs show, by its name; otherwise the runner's own reason, or the last
    error."""
    found = troubles.diagnose(logs)
    return found.trouble.trouble.name if found.trouble else found.stop or found.error


@pytest.mark.parametrize(
    ("line", "level", "text"),
    [
        ("[2026-11-28 22:35:29,945] [WARNING] [torchao] Failed to load", WARNING, "Failed to load"),
        ("[WARNING|trainer.py:123] 2026-11-28 22:35:29 >> Failed", WARNING, None),
        ("WARNING:root:Failed", WARNING, "root:Failed"),
        ("2026-11-28 22:35:29,945 - urllib3 - WARNING - Retrying", WARNING, "Retrying"),
        (
            "W1128 22:35:30.613000 21057 torch/utils/_pytree.py:630] deprecated",
            WARNING,
            "deprecated",
        ),
        ("/site-packages/torch/cuda.py:734: UserWarning: Can't initialize NVML", WARNING, None),
        ("[2026-11-28 22:35:29,945] [INFO] [axolotl.cli] config:", INFO, "config:"),
        ("node-1:12:34 [0] NCCL INFO Connection reset by peer", INFO, None),
        ("node-1:12:34 [0] NCCL WARN Error: failed to extend /dev/shm", ERROR, None),
        (
            "[rank1]:[E626 06:24:44.903881913 ProcessGroupNCCL.cpp:616] [Rank 1] Watchdog",
            ERROR,
            "[Rank 1] Watchdog",
        ),
        ("[W socket.cpp:558] [c10d] The IPv4 network addresses", ERROR, None),
        (
            "[2023-10-13 17:40:02,544] torch.distributed.elastic: [ERROR] failed (exitcode: -9)",
            ERROR,
            None,
        ),
        ("(EngineCore_DP0 pid=12) ERROR 11-28 22:35:34 [core.py:708]   File", ERROR, "  File"),
        ("2026-11-28T22:35:34.123456789Z [2026-11-28 22:35:34,1] [WARNING] [a.b] x", WARNING, "x"),
        ("\x1b[33m[2026-11-28 22:35:34,1] [WARNING] [a.b] x\x1b[0m", WARNING, "x"),
        ('[recipe] {"event": "step", "step": 7}', EVENT, None),
        ("ValueError: ERROR: of ours", PLAIN, None),
        ("NVRM: Xid (PCI:0000:44:00): 79, GPU has fallen off the bus", PLAIN, None),
        ("  Warning  FailedScheduling  48s   0/2 nodes are available", PLAIN, None),
    ],
)
def test_the_level_of_a_line(line, level, text):
    read = read_line(line)
    assert read.level == level
    assert text in (None, read.text)


@pytest.mark.parametrize(
    ("log", "reason"),
    [
        (OFFLINE_KERNEL, ""),
        (OFFLINE_KERNEL + trace("KeyError: 'turns'"), "KeyError: 'turns'"),
        (OFFLINE_KERNEL + trace("OSError: [Errno 28] No space left on device"), "disk full"),
        (
            OFFLINE_KERNEL
            + trace("runner.trainer.stopping.TrainingStopped: It is nan.\nLower it."),
            "It is nan.\nLower it.",
        ),
        (
            OFFLINE_KERNEL + "Stopped by recipe-runner: No rows.\nWrite some.\n",
            "No rows.\nWrite some.",
        ),
    ],
    ids=[
        "nothing else",
        "an unknown error",
        "a known error",
        "training that stops itself",
        "a program that stops itself",
    ],
)
def test_a_warning_is_no_trouble(log, reason):
    assert code_of(log) == reason


def test_pythons_own_warning_and_the_source_below_it_are_no_trouble():
    warning = "/site-packages/kernels/utils.py:80: UserWarning: Hugging Face Hub is in offline mode\n  'offline mode',\n"
    assert code_of(warning) == ""


def test_axolotls_settings_are_no_trouble():
    assert (
        code_of(
            '[2026-11-28 22:35:40,018] [INFO] [axolotl.cli.config] config:\n{\n  "name": "offline mode"\n}\n'
        )
        == ""
    )


def test_a_stop_of_the_runners_own_wins_over_the_table():
    stop = "Stopped by recipe-runner: The model cannot be downloaded: offline mode is enabled.\n"
    other = trace("torch.OutOfMemoryError: CUDA out of memory.")
    assert code_of(other + stop) == "The model cannot be downloaded: offline mode is enabled."


def test_the_last_error_wins_over_one_that_was_caught():
    assert (
        code_of(trace("ConnectionError: Couldn't connect to the hub"), trace("KeyError: 'a'"))
        == "hub unreachable"
    )
    caught = (
        trace("ConnectionError: Couldn't connect to the hub")
        + "[2026-11-28 22:35:29,945] [INFO] [a] as before\n"
    )
    assert code_of(caught + trace("KeyError: 'turns'")) == "KeyError: 'turns'"


def test_a_line_with_an_error_loses_to_the_trace_after_it():
    line = "[2026-11-28 22:35:29,945] [ERROR] [posthog] error uploading: Couldn't connect to us.i.posthog.com\n"
    assert code_of(line + trace("KeyError: 'turns'")) == "KeyError: 'turns'"
    assert code_of(trace("KeyError: 'turns'") + line) == "KeyError: 'turns'"


def test_the_causes_of_an_error_count():
    causes = trace("RuntimeError: DataLoader worker (pid 4) is killed by signal: Killed.")
    chained = "\nThe above exception was the direct cause of the following exception:\n\n"
    assert (
        code_of(causes + chained + trace("RuntimeError: DataLoader worker exited unexpectedly"))
        == "main memory"
    )
    assert code_of(
        trace("OSError: [Errno 28] No space left on device")
        + chained
        + trace("RuntimeError: unexpected pos")
    ) == ("disk full")


def test_a_launchers_error_is_not_that_of_its_child():
    launcher = trace(
        "torch.distributed.elastic.multiprocessing.errors.ChildFailedError: \n====\ntrain FAILED\n"
    )
    assert code_of(trace("KeyError: 'turns'") + launcher) == "KeyError: 'turns'"
    assert (
        code_of(
            trace(
                "subprocess.CalledProcessError: Command '['axolotl']' died with <Signals.SIGKILL: 9>."
            )
        )
        != ""
    )


def test_a_generic_error_sends_to_the_lines_that_explain_it():
    shared = (
        "node:1:2 [0] NCCL WARN Error: failed to extend /dev/shm/nccl-WU88OE to 9637892 bytes\n"
    )
    assert (
        code_of(
            shared + trace("torch.distributed.DistBackendError: NCCL error, unhandled system error")
        )
        == "shared memory"
    )
    xid = "NVRM: Xid (PCI:0000:44:00): 95, uncontained\n"
    assert (
        code_of(xid + trace("RuntimeError: CUDA error: an illegal memory access was encountered"))
        == "ecc"
    )


def test_what_another_process_brings_about_is_not_the_reason():
    aborted = trace(
        "torch.distributed.DistBackendError: NCCL error, ncclRemoteError", before="[rank1]: "
    )
    assert code_of(trace("KeyError: 'turns'", before="[rank0]: ") + aborted) == "KeyError: 'turns'"
    assert code_of(aborted, trace("torch.OutOfMemoryError: CUDA out of memory.")) == "gpu memory"
    assert code_of(aborted) == "other machine gone"


def test_the_trace_of_a_server_has_a_level_on_each_line():
    before = "(EngineCore_DP0 pid=12) ERROR 11-28 22:35:34 [core.py:708] "
    server = trace("torch.OutOfMemoryError: CUDA out of memory.", before)
    end = trace(
        "RuntimeError: Engine core initialization failed. See root cause above.",
        "(APIServer pid=1) ",
    )
    assert troubles.diagnose(server + end, troubles.SERVER).trouble.trouble.name == "server memory"


def test_what_training_has_outlived_is_no_reason():
    step, begin = (
        '[recipe] {"event": "step", "step": 7}\n',
        '[recipe] {"event": "begin", "steps": 9}\n',
    )
    outlived = trace("ConnectionError: Couldn't connect to the hub")
    assert code_of(outlived + step + trace("KeyError: 'turns'")) == "KeyError: 'turns'"
    assert code_of("CUDA error: out of memory\n" + outlived + begin) == ""
    assert not log_reading.read_logs([outlived + step]).endings
