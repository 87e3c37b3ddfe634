"""What a dead container has said last, and a status that keeps up with machines that end, come
again, or are suspended."""

from __future__ import annotations

import hmac
import io
import threading
import time
import urllib.error
import urllib.request
from datetime import UTC, datetime

import pytest

from runner.check.batch import CheckReport
from runner.commands import cli, options
from runner.parts.ci import pull_request
from runner.parts.evaluate import commands as comparing
from runner.parts.openshift import commands, errors, file_server
from runner.parts.openshift.client import connect
from runner.parts.openshift.diagnose import reasons
from runner.parts.openshift.status import FAILED, JobState
from runner.parts.serve import commands as talking
from runner.parts.start.commands import new
from runner.tools.problem import Problem, Stop
from runner.tools.text import printable
from tests.conftest import ROOT
from tests.parts.openshift.api import stamp
from tests.parts.openshift.conftest import in_process
from tests.parts.openshift.test_trouble import status_of
from tests.parts.openshift.test_watching import a_pod, job, train_to
from tests.parts.report.test_page import made

MASTER = "survival-master-0"
STEP = '[recipe] {"event": "step", "step": 70, "steps": 100, "loss": 1.25}'
DIED = {"terminated": {"exitCode": 1, "reason": "Error"}}


@pytest.fixture
def at_work(site, capsys):
    assert site.recipe("submit") == 0
    site.pods()
    train_to(site, 70)
    capsys.readouterr()
    return site


def ends(site, state: dict, logs: dict[str, str], **entry) -> None:
    """The master's container is so, and has written this before (`previous`) and now."""
    (kind, how), = state.items()  # fmt: skip
    container = status_of(kind, how, **entry)
    site.set_status("Pod", MASTER, {"phase": "Running", "containerStatuses": [container]})
    for when in ("now", "previous"):
        site.api.logs.pop((MASTER, when), None)
    site.api.logs |= {
        (MASTER, when): [(stamp(), line) for line in text.splitlines()]
        for when, text in logs.items()
    }


def shown(site, capsys, *arguments: str) -> list[str]:
    assert site.recipe("status", *arguments) == 0
    lines = capsys.readouterr().out.splitlines()
    return lines[next(number for number, line in enumerate(lines) if line.startswith("train: ")) :]


@in_process
@pytest.mark.parametrize(
    ("state", "logs", "last"),
    [
        # It ended, and runs again: what it wrote before is its word.
        (
            {"running": {}},
            {"previous": f"{STEP}\nValueError: the dead one", "now": f"Loading\n{STEP}"},
            DIED,
        ),
        # It has ended this moment, and not for the first time: the log before is an older one's.
        (
            DIED,
            {"previous": "ValueError: an older one", "now": f"{STEP}\nValueError: the dead one"},
            DIED,
        ),
        # Events are for programs.
        ({"running": {}}, {"previous": f"the dead one spoke plainly\n{STEP}", "now": STEP}, DIED),
        # The machine has thrown the log away: the present container knows nothing of it.
        ({"running": {}}, {"now": f"RuntimeError: of the present one\n{STEP}"}, DIED),
    ],
    ids=["it runs again", "it has just ended again", "events", "no log"],
)
def test_the_last_words_are_those_of_the_container_that_ended(
    at_work, capsys, golden_message, state, logs, last
):
    ends(at_work, state, logs, lastState=last, restartCount=2)
    golden_message("\n".join(shown(at_work, capsys)))


def test_a_message_of_events_alone_is_no_word():
    """Where a pod leaves none, a kubelet takes the end of its log."""
    for message, said in (
        (f"{STEP}\n", ""),
        (f"{STEP}\nNo room on the disk.\n{{}}", " It reported: No room on the disk."),
    ):
        end = {"terminated": {"exitCode": 1, "message": message}}
        pod = a_pod(
            phase="Failed", containerStatuses=[{"name": "pytorch", "restartCount": 0, "state": end}]
        )
        (line,) = reasons(JobState(FAILED, job(), [pod]), lambda _pod: "")
        assert line.endswith(f"ended.{said}" if said else "ended with exit code 1.")


LOG_OF_DEAD_POD = "".join(f"line {number}\n" for number in range(17)) + "ValueError: a bad row"


def dead_pod(name: str, message: str, policy: str | None = None) -> dict:
    end = {"terminated": {"exitCode": 1, "message": message}}
    pod = a_pod(
        phase="Failed", containerStatuses=[{"name": "pytorch", "restartCount": 0, "state": end}]
    )
    pod["metadata"] |= {"name": name, "uid": name}
    worker = pod["spec"]["containers"][0] | ({"terminationMessagePolicy": policy} if policy else {})
    return pod | {"spec": pod["spec"] | {"containers": [worker]}}


def test_the_end_of_a_log_is_not_taken_for_a_written_reason():
    """Seen with 17 lines for each of four pods."""
    pod = dead_pod("data-a", LOG_OF_DEAD_POD, "FallbackToLogsOnError")
    said = reasons(JobState(FAILED, job(), [pod]), lambda _pod: "")
    assert said == [
        "Machine 0 (`data-a`) ended with exit code 1. The log says: ValueError: a bad row"
    ]


def test_of_pods_that_failed_one_after_the_other_the_newest_is_explained():
    pods = [dead_pod(f"data-{letter}", f"attempt {letter}") for letter in "abcd"]
    (said,) = reasons(JobState(FAILED, job(), pods[-1:], replaced=pods[:-1]), lambda _pod: "")
    assert said == "Machine 0 (`data-d`) ended. It reported: attempt d"
    running = a_pod(
        phase="Running", containerStatuses=[{"name": "pytorch", "state": {"running": {}}}]
    )
    (said,) = reasons(JobState(FAILED, job(), [running], replaced=pods), lambda _pod: "")
    assert said == "Machine 0 (`data-d`, since replaced) ended. It reported: attempt d"


def test_a_job_that_its_failure_policy_has_ended_shows_the_reason_of_its_pod_alone():
    policy = "Container prepare for pod a/data-a failed with exit code 3 matching FailJob rule at index 0"
    condition = {
        "type": "Failed",
        "status": "True",
        "reason": "PodFailurePolicy",
        "message": policy,
    }
    failed = job(conditions=[condition])
    (said,) = reasons(
        JobState(FAILED, failed, [dead_pod("data-a", "There are no rows.")]), lambda _pod: ""
    )
    assert said == "Machine 0 (`data-a`) ended. It reported: There are no rows."


@in_process
def test_a_crash_loop_is_told_in_each_of_its_moments(at_work, capsys):
    """It ends, waits, runs again without a step, and trains again."""
    moments = (
        (DIED, "restarting after a failure, 3 of 4 machines run"),
        (
            {"waiting": {"reason": "CrashLoopBackOff"}},
            "restarting after a failure, 3 of 4 machines run",
        ),
        ({"running": {"startedAt": stamp()}}, "restarting after a failure, 4 of 4 machines run"),
    )
    for state, said in moments:
        ends(at_work, state, {"now": "Loading"}, lastState=DIED, restartCount=3)
        assert shown(at_work, capsys)[0].startswith(f"train: {said}")
    train_to(at_work, 71)
    assert shown(at_work, capsys)[0].startswith("train: step 71 of 100, loss 1.500, ")


@in_process
def test_steps_of_before_a_worker_was_replaced_are_no_progress(at_work, capsys):
    """All go back to the last checkpoint; the master's log still ends with the steps of before."""
    assert shown(at_work, capsys)[0].startswith("train: step 70 of 100")
    worker = at_work.pods()[-1]["metadata"]
    at_work.cluster.delete("Pod", at_work.namespace, worker["name"], grace_seconds=0)
    at_work.pod(worker["name"], at_work.job(), worker["labels"], phase="Pending")
    assert shown(at_work, capsys)[0].startswith("train: waiting for machines, 3 of 4 machines run")
    started = datetime.fromtimestamp(time.time() + 1, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    running = status_of("running", {"startedAt": started})
    at_work.set_status("Pod", worker["name"], {"phase": "Running", "containerStatuses": [running]})
    assert shown(at_work, capsys)[0].startswith(
        "train: restarting after a failure, 4 of 4 machines run"
    )


@in_process
def test_a_job_that_is_suspended_without_a_queue_waits_for_no_queue(
    at_work, capsys, golden_message
):
    meta = at_work.api.objects["pytorchjobs", at_work.namespace, "survival"]
    meta["spec"]["runPolicy"]["suspend"] = True
    meta["metadata"]["labels"].pop("kueue.x-k8s.io/queue-name", None)
    for pod in at_work.pods():
        at_work.cluster.delete("Pod", at_work.namespace, pod["metadata"]["name"], grace_seconds=0)
    golden_message("\n".join(shown(at_work, capsys)))
    assert cli._code(["status", "-n", at_work.namespace]) == 0
    assert "suspended" in capsys.readouterr().out
    at_work.cluster.patch(
        "PyTorchJob", at_work.namespace, "survival", {"spec": {"runPolicy": {"suspend": False}}}
    )
    assert "suspended" not in shown(at_work, capsys)[0]


@in_process
def test_why_says_that_it_answers_of_this_machine_where_the_cluster_has_no_job(
    site, capsys, tmp_path, golden_message
):
    made(tmp_path / "runs" / "survival", "survival")
    command = [
        "why",
        str(ROOT / "recipes" / "survival.yaml"),
        "--set",
        f"openshift.namespace={site.namespace}",
    ]
    assert cli._code(command) == 0
    golden_message(capsys.readouterr().out)


# They would clear the screen, write a title, go back over what was read, hide it, and turn it
# round.
OBEYED = "\x1b[2J\x1b]0;title\x07\x1b[8mhid\x1b[0mden\x07\x08\x9b31m \u202eback\x1b"


def harmless(said: str) -> bool:
    return "hidden" in said and not [
        sign for sign in said if sign not in "\n\t" and not sign.isprintable()
    ]


@in_process
def test_control_characters_of_pods_and_clusters_do_not_reach_the_terminal(at_work, capsys):
    site = at_work
    ends(
        site,
        {"running": {}},
        {"previous": f"ValueError: {OBEYED}", "now": f"{OBEYED}\n{STEP}"},
        lastState=DIED,
    )
    assert harmless("\n".join(shown(site, capsys)))
    assert site.recipe("logs") == 0
    said = capsys.readouterr()
    assert harmless(said.out) and harmless(said.err)
    site.event("PyTorchJob", "survival", "FailedCreatePod", f"Error creating: {OBEYED}")
    site.cluster.delete("Pod", site.namespace, MASTER, grace_seconds=0)
    assert harmless("\n".join(shown(site, capsys)))
    assert cli._code(["status", "-n", site.namespace]) == 0
    assert harmless(capsys.readouterr().out)
    site.api.forbidden = OBEYED
    assert site.recipe("submit", "--set", "train.epochs=2", "--yes") == 1
    assert harmless(capsys.readouterr().err)


def test_control_characters_of_a_log_do_not_reach_the_terminal(tmp_path, capsys):
    (tmp_path / "pod.log").write_text(f"ValueError: {OBEYED}\n")
    assert cli._code(["why", str(tmp_path / "pod.log")]) == 0
    assert harmless(capsys.readouterr().out)


class Talking:
    """A model that answers with what terminals obey."""

    names, asked_with = ("original", "trained"), "a question"

    def ask(self, question, earlier):
        yield "", OBEYED


def test_control_characters_of_other_people_and_models_do_not_reach_the_terminal(
    tmp_path, monkeypatch, capsys
):
    """The next step of a command, the answer of a busy cluster, questions about other people's jobs
    and files, a conversation, a comparison, and the log of a pull request."""
    options.end(OBEYED, "report", OBEYED)
    new._say(Stop(OBEYED))
    assert harmless(capsys.readouterr().err)

    asked = []
    monkeypatch.setattr("sys.stdin.isatty", lambda: True, raising=False)
    monkeypatch.setattr("click.confirm", asked.append)
    commands.confirm(False, ())(f"{OBEYED} made it.", "stop it", "ann")
    assert harmless(asked[0])

    monkeypatch.setattr("sys.stdin.isatty", lambda: False, raising=False)
    monkeypatch.setattr("sys.stdin", io.StringIO("Why?\n"))
    talking._talk(Talking(), [])
    assert harmless(capsys.readouterr().out)

    comparing._show(["run 1"], [(OBEYED, "state", (OBEYED,))])
    assert harmless(capsys.readouterr().out)

    verdict = CheckReport(
        1, (Problem("a.yaml", 1, 1, f"`{OBEYED}` is not a setting.", source=OBEYED),)
    )
    monkeypatch.setattr(pull_request, "judged", lambda files, jobs: verdict)
    monkeypatch.setattr(pull_request, "find", lambda paths: (["a.yaml"], []))
    (tmp_path / "event.json").write_text("{}")
    assert pull_request.main(["github"], {"GITHUB_EVENT_PATH": str(tmp_path / "event.json")}) == 1
    assert harmless(capsys.readouterr().out)


@in_process
def test_control_characters_of_a_busy_cluster_do_not_reach_the_terminal(site, monkeypatch, capsys):
    monkeypatch.setattr(errors, "SILENT_SECONDS", 0.0)
    site.api.busy, site.api.says, site.api.retry_after = [503], OBEYED, "1"
    assert connect().list("Pod", site.namespace) == []
    assert harmless(capsys.readouterr().err)


@pytest.mark.parametrize("text", ["plain", "a\tb\nc", "日本語 é ✓ 🙂", "זה עברית", "[31m"])
def test_what_is_no_control_character_stays(text):
    assert printable(text) == text


def test_the_file_server_compares_its_word_in_constant_time(tmp_path, monkeypatch):
    """However much of a guess is right, the answer takes as long; whatever is written for it, it is
    a no."""
    compared = []
    monkeypatch.setattr(
        file_server,
        "compare_digest",
        lambda one, other: compared.append(one) or hmac.compare_digest(one, other),
    )
    server = file_server.FileServer(("127.0.0.1", 0), tmp_path, "secret", writes=True)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        for word, data, status in (
            *((word, None, 403) for word in ("secre", "x", "s%C3%A9cret", "")),
            *(("secret", None, 200), ("secreT", b"{}", 403), ("secret", b"{}", 200)),
        ):
            address = (
                f"http://127.0.0.1:{server.server_address[1]}/{word}/{'state' if data else 'list'}"
            )
            try:
                with urllib.request.urlopen(urllib.request.Request(address, data)) as answer:
                    assert answer.status == status
            except urllib.error.HTTPError as error:
                assert error.code == status
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
    assert len(compared) == 7
