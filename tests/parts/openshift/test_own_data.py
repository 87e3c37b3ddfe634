"""A copy of a recipe with data of its own: its files travel with `submit`, and its pods train on
them."""

from __future__ import annotations

import csv
import hashlib
import io
import json
import re
import shutil
import tempfile
import threading
import time
import urllib.request
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from runner import catalog
from runner.check.validate import load
from runner.commands import cli
from runner.data.prepared import PreparedRows, asked, contents
from runner.parts.jobs import kubernetes
from runner.parts.openshift import commands, errors, file_server, helper_pod, transfer
from runner.parts.openshift.client import Cluster, connect
from runner.plan import Place
from runner.recipe.overrides import from_options
from runner.scenarios import place, planned, translate
from runner.scenarios.shared import twin
from runner.tools.files import read_json, write_json
from runner.tools.problem import Stop
from runner.trainer.records import Summary
from tests import shapes
from tests.conftest import ROOT
from tests.parts.openshift import api
from tests.parts.openshift.api import mapped
from tests.parts.openshift.conftest import in_process
from tests.parts.openshift.pods import once, operate, pods

pytestmark = pytest.mark.heavy

# What a machine without a GPU can train; a GPU takes the recipe as it is.
ON_CPU = (
    "model.precision=fp32",
    "model.attention=sdpa",
    "train.kernels=none",
    "train.optimizer=adamw_torch",
    "train.epochs=2",
    "machines.nodes=1",
    "train.gradient_accumulation_steps=1",
    "train.micro_batch_size=2",
    "demo.questions=",
)


@pytest.fixture
def desk(site, monkeypatch):
    """A folder of somebody's own, and the claims behind the pods' mounts. A short path: see
    test_pods."""
    with tempfile.TemporaryDirectory(prefix="own-") as folder:
        desk = Path(folder)
        (desk / "claim").mkdir()
        site.api.mounts["/shared/models"] = desk / "claim"
        site.api.mounts["/shared/workspace"] = desk / "workspace"
        monkeypatch.chdir(desk)
        yield desk


def own_copy(site, desk: Path) -> Path:
    """`recipe new mine --from survival`, three lines changed, a table of questions and a small
    model beside it."""
    assert cli._code(["new", "mine", "--from", "survival"]) == 0
    rows = [
        json.loads(line)
        for line in (ROOT / "recipes/data/survival-sample.jsonl").read_text("utf-8").splitlines()
    ]
    with (desk / "questions.csv").open("w", newline="", encoding="utf-8") as file:
        table = csv.DictWriter(file, ["topic", "question", "answer"], extrasaction="ignore")
        table.writeheader()
        table.writerows(rows)
    recipe = desk / "mine.yaml"
    text = recipe.read_text("utf-8")
    changes = {
        "  hub: cahlen/offline-practical-skills-qa-synthetic": "  path: questions.csv",
        "  base: HuggingFaceTB/SmolLM3-3B": "  base: my-model",
        "  namespace: lyric-professor": f"  namespace: {site.namespace}",
    }
    for old, new in changes.items():
        assert old in text, old
        text = text.replace(old, new, 1)
    recipe.write_text(text, encoding="utf-8")
    facts = twin.wanted(
        catalog.model("HuggingFaceTB/SmolLM3-3B"),
        catalog.chat_template("chatml"),
        4,
        1,
        desk / "my-model",
    )
    twin.tokenizer_for(facts)([row["answer"] for row in rows])
    twin.build(facts)
    return recipe


def submit(recipe: Path, *more: str) -> int:
    return cli._code(
        ["submit", str(recipe), "--yes", *(f"--set={change}" for change in ON_CPU), *more]
    )


def config(site, job: dict, folder: Path) -> dict[str, Path]:
    """The folder behind a job's config map, as a kubelet makes it, and as it is without a GPU."""
    template = (
        job["spec"].get("template") or job["spec"]["pytorchReplicaSpecs"]["Master"]["template"]
    )
    (volume,) = [volume for volume in template["spec"]["volumes"] if "configMap" in volume]
    (mount,) = [
        mount["mountPath"]
        for mount in template["spec"]["containers"][0]["volumeMounts"]
        if mount["name"] == volume["name"]
    ]
    folder.mkdir()
    for file, text in site.api.objects[("configmaps", site.namespace, volume["configMap"]["name"])][
        "data"
    ].items():
        here = (
            mapped(site.api, text)
            .replace(mount, str(folder))
            .replace("backend: nccl", "backend: gloo")
        )
        (folder / file).write_text(here, encoding="utf-8")
    return {mount: folder}


def kubelet(site, desk: Path, jobs: int) -> threading.Thread:
    """Runs the pods of so many plain Jobs that get onto the cluster, each to its end, and says how
    they ended."""
    ended: set[str] = set()

    def work() -> None:
        while len(ended) < jobs:
            time.sleep(0.1)
            for (plural, _, name), job in list(site.api.objects.items()):
                if plural == "jobs" and job["metadata"]["uid"] not in ended:
                    place = desk / f"job-{len(list(desk.glob('job-*')))}"
                    done = once(
                        job, mounts(site) | config(site, job, desk / f"{place.name}-config"), place
                    )
                    (desk / f"{place.name}.log").write_text(
                        done.stdout + done.stderr, encoding="utf-8"
                    )
                    kind = "Failed" if done.returncode else "Complete"
                    site.set_status("Job", name, {"conditions": [{"type": kind, "status": "True"}]})
                    ended.add(job["metadata"]["uid"])

    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    return thread


def mounts(site) -> dict[str, Path]:
    return dict(site.api.mounts)


def said(desk: Path) -> str:
    return "\n".join(file.read_text("utf-8") for file in sorted(desk.glob("job-*.log")))


@pytest.mark.long
@in_process
def test_a_copy_trains_on_the_files_that_lie_beside_it(site, desk, capsys):
    recipe = own_copy(site, desk)
    kubelet(site, desk, jobs=1)
    assert submit(recipe) == 0, capsys.readouterr().out + said(desk)
    sent = desk / "claim" / "mine" / "files"
    assert {file.relative_to(sent).as_posix() for file in sent.rglob("*") if file.is_file()} == {
        "questions.csv",
        *(f"my-model/{file.name}" for file in (desk / "my-model").iterdir()),
    }
    assert (sent / "questions.csv").read_bytes() == (desk / "questions.csv").read_bytes()
    job = site.job(name="mine")
    mine = pods(job, mounts(site) | config(site, job, desk / "train"), desk / "pods")
    operate(job, mine, lambda: None, timeout=300)
    run = desk / "claim" / "mine"
    assert (run / "best_model" / "model.safetensors").is_file()
    summary = json.loads((run / "training_summary.json").read_text())
    assert summary["best_validation_loss"] < summary["first_validation_loss"]
    rows = json.loads((run / "data" / "report.json").read_text())
    assert rows["source"].endswith("/mine/files/questions.csv")


@dataclass(frozen=True)
class Copy:
    """A recipe of somebody's own. starter: what `--from` names, and how; data: the file or folder
    that `files` makes of the rows; base: whose twin is the model in the folder `my-model`, None for
    images; classes: of these.

    on_cpu: what lets the pods train without a GPU, and makes of few rows enough steps.
    """

    starter: tuple[str, ...]
    data: str
    files: Callable[[Path], list[str]]
    base: str | None
    on_cpu: tuple[str, ...]
    classes: int | None = None
    kin: bool = True

    @property
    def three(self) -> dict[str, object]:
        """Data and model; the namespace is the third."""
        model = {"model.classes": self.classes} if self.classes else {"model.base": "my-model"}
        return {"data.path": self.data, **model}


def chats(desk: Path) -> list[str]:
    """Conversations of two questions each, with a system turn, in JSONL."""
    sample = [
        json.loads(line)
        for line in (ROOT / "recipes/data/survival-sample.jsonl").read_text("utf-8").splitlines()
    ]
    with (desk / "chats.jsonl").open("w", encoding="utf-8") as file:
        for first, second in zip(sample, sample[1:] + sample[:1], strict=True):
            turns = [("system", f"You know {first['topic']}.")]
            for row in (first, second):
                turns += [("user", row["question"]), ("assistant", row["answer"])]
            messages = [{"role": role, "content": content} for role, content in turns]
            file.write(
                json.dumps({"id": first["question"][:8], "messages": messages}, ensure_ascii=False)
                + "\n"
            )
    return [row["answer"] for row in sample]


def notes(desk: Path) -> list[str]:
    """Texts in files of two kinds, in folders."""
    paragraphs = (ROOT / "recipes/data/gemma-sample.txt").read_text("utf-8").split("\n\n")
    for number, text in enumerate(paragraphs):
        file = desk / "notes" / f"{number % 3}" / f"{number}{'.md' if number % 2 else '.txt'}"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text, encoding="utf-8")
    (desk / "notes" / "picture.png").write_bytes(b"not a text")
    return paragraphs


def drawings(desk: Path) -> list[str]:
    """Images of three sizes in a folder for each class."""
    draw = np.random.default_rng(1)
    for name in ("disc", "rows", "checks"):
        (desk / "drawings" / name).mkdir(parents=True)
        for number in range(40):
            image = Image.fromarray(shapes.picture(name, draw)).resize((32 + number % 3 * 16,) * 2)
            image.save(desk / "drawings" / name / f"{number}.{'png' if number % 2 else 'jpg'}")
    return []


def songs(desk: Path) -> list[str]:
    """Songs as a spreadsheet writes them: semicolons, quotes, a byte-order mark."""
    rows = [
        json.loads(line)
        for line in (ROOT / "recipes/data/lyrics-sample.jsonl").read_text("utf-8").splitlines()
    ]
    with (desk / "songs.csv").open("w", newline="", encoding="utf-8-sig") as file:
        table = csv.writer(file, delimiter=";")
        table.writerow(["instruction", "lyrics"])
        table.writerows([row["Instruction"], row["Label"]] for row in rows)
    return [row["Label"] for row in rows]


TEXT_ON_CPU = (
    "model.precision=fp32",
    "model.attention=sdpa",
    "train.kernels=none",
    "train.optimizer=adamw_torch",
    "train.gradient_accumulation_steps=1",
    "train.effective_batch_size=",
    "train.micro_batch_size=2",
    "train.learning_rate=0.002",
    "train.epochs=2",
    "machines.nodes=1",
)
COPIES = {
    "messages": Copy(
        ("survival",),
        "chats.jsonl",
        chats,
        "Qwen/Qwen3-0.6B",
        (*TEXT_ON_CPU, "demo.questions="),
        kin=False,
    ),
    "texts": Copy(
        ("gemma", "--minimal"),
        "notes",
        notes,
        "google/gemma-3-270m",
        (
            *TEXT_ON_CPU,
            "model.sequence_len=64",
            "train.cross_entropy=plain",
            "train.eval_steps=10",
            "train.save_steps=10",
        ),
    ),
    # Without the starter's own image and code, whose commit is a placeholder.
    "classes": Copy(
        ("resnet",),
        "drawings",
        drawings,
        None,
        ("model.width=8", "train.optimizer=adamw_torch", "image=", "openshift.image="),
        classes=3,
    ),
    "songs": Copy(
        ("lyrics",),
        "songs.csv",
        songs,
        "microsoft/Phi-4-mini-instruct",
        (*TEXT_ON_CPU, "train.cross_entropy=plain", "demo.categories="),
    ),
}


@pytest.mark.long
@in_process
@pytest.mark.parametrize("case", COPIES)
def test_a_copy_of_three_decisions_goes_all_the_way(site, desk, recipe_command, case):
    """`recipe new` with data, model and namespace, and then the README's commands, with nothing
    built and nothing copied."""
    made = COPIES[case]
    texts = made.files(desk)
    if made.base:
        base = catalog.model(made.base)
        template = catalog.chat_template(base.chat_template or "chatml")
        facts = twin.wanted(base, template, 2, 1, desk / "my-model")
        twin.tokenizer_for(facts)(texts)
        twin.build(facts)
    if not made.kin:
        # A model that nobody has written down anywhere.
        whole = read_json(desk / "my-model" / "config.json")
        write_json(
            desk / "my-model" / "config.json",
            {key: whole[key] for key in whole if key != "twin_of"},
        )
    decisions = made.three | {"openshift.namespace": site.namespace}
    sets = [f"--set={setting}={value}" for setting, value in decisions.items()]
    assert cli._code(["new", "mine", "--from", *made.starter, *sets]) == 0
    for verb in ("check", "plan", "rehearse"):
        done = recipe_command(verb, "mine.yaml", cwd=desk, env={"HF_HUB_OFFLINE": "1"})
        assert done.returncode == 0, done.stdout[-4000:] + done.stderr
    for mount in ("data", "models", "workspace"):
        site.api.mounts[f"/shared/{mount}"] = desk / mount
    kubelet(site, desk, jobs=1)
    name = kubernetes.job_name(commands.open_plan("mine.yaml", ()))
    assert (
        cli._code(["submit", "mine.yaml", "--yes", *(f"--set={one}" for one in made.on_cpu)]) == 0
    ), said(desk)
    job = site.job(name=name)
    mine = pods(job, mounts(site) | config(site, job, desk / "train"), desk / "pods")
    operate(job, mine, lambda: None, timeout=300)
    run = desk / "models" / "mine"
    summary = Summary.read(run)
    if made.base:
        assert (run / "best_model" / "model.safetensors").is_file()
        assert summary.best_validation_loss < summary.first_validation_loss
    else:
        assert (run / "best_model.pth").is_file() and summary.best_accuracy > 1 / made.classes
    data = read_json(
        next(desk.glob("models/mine/data/report.json"), desk / "data" / "mine" / "report.json")
    )
    assert data["source"].endswith(f"/mine/files/{made.data}")


MINIMAL_COPIES = {
    "last-layers": ("survival", "messages"),
    "lora": ("minimal/lora", "messages"),
    "lyrics-demo": ("minimal/lyrics-demo", "songs"),
    "image-classification": ("resnet", "classes"),
}


@pytest.mark.long
@pytest.mark.parametrize("case", MINIMAL_COPIES)
def test_a_minimal_copy_with_data_of_its_own_rehearses(tmp_path, recipe_command, case):
    """With the catalog's model. (The minimal starter for text goes all the way above.)"""
    starter, data = MINIMAL_COPIES[case]
    made = COPIES[data]
    made.files(tmp_path)
    classes = [f"--set=model.classes={made.classes}"] if made.classes else []
    short = [] if "/" in starter else ["--minimal"]
    commands = (
        ["new", "mine", "--from", starter, *short, f"--set=data.path={made.data}", *classes],
        ["rehearse", "mine.yaml"],
    )
    for command in commands:
        done = recipe_command(*command, cwd=tmp_path, env={"HF_HUB_OFFLINE": "1"}, timeout=1200)
        assert done.returncode == 0, done.stdout[-4000:] + done.stderr
    (report,) = (tmp_path / "runs").rglob("report.json")
    assert read_json(report)["source"].endswith(made.data)


@pytest.fixture
def sending(site, desk, monkeypatch):
    """Sends a folder of files to the claim as `submit` does before the first stage; gives what it
    told."""
    recipe = own_copy_of_texts(site, desk)
    for name in ("trained-models-pvc", "workspace-pvc"):
        site.claim(name)
    # Small pieces: each file here takes some, and the small ones share one.
    monkeypatch.setattr(transfer, "MOST", 2**16)

    def send() -> list[str]:
        told: list[str] = []
        opened, plan = commands.open_both(str(recipe), ())
        (stage, *_) = plan.stages
        transfer.upload(
            connect(), plan.only(stage), stage, transfer.files(opened, plan.place), told.append
        )
        return told

    return send


def own_copy_of_texts(site, desk: Path) -> Path:
    recipe = own_copy(site, desk)
    shutil.rmtree(desk / "my-model" / ".cache", ignore_errors=True)
    (desk / "my-model" / "empty.txt").touch()
    return recipe


def there(desk: Path) -> dict[str, bytes]:
    sent = desk / "claim" / "mine" / "files"
    return {
        file.relative_to(sent).as_posix(): file.read_bytes()
        for file in sent.rglob("*")
        if file.is_file()
    }


def here(desk: Path) -> dict[str, bytes]:
    files = [desk / "questions.csv", *(desk / "my-model").iterdir()]
    return {file.relative_to(desk).as_posix(): file.read_bytes() for file in files}


def posts(site) -> int:
    return sum(
        asked.startswith("POST") and asked.endswith("/pieces") for asked in site.api.requests
    )


@in_process
def test_what_lies_there_is_not_sent_again_and_what_is_gone_here_goes_there(site, desk, sending):
    assert "MiB sent" in sending()[-1] and there(desk) == here(desk)
    pieces = posts(site)
    assert sending()[-1].endswith("all there already") and posts(site) == pieces
    (desk / "my-model" / "empty.txt").unlink()
    with (desk / "questions.csv").open("a") as file:
        file.write("Knots,Which one?,The bowline.\n")
    assert "MiB sent" in sending()[-1]
    assert there(desk) == here(desk) and posts(site) == pieces + 1


@in_process
def test_what_sends_is_named_once_after_its_stage(site, desk, sending, monkeypatch):
    names, create = [], Cluster.create

    def named(cluster, manifest):
        names.append(manifest["metadata"]["name"])
        return create(cluster, manifest)

    monkeypatch.setattr(Cluster, "create", named)
    sending()
    assert len(names) == 1 and re.fullmatch("mine-data-send-[0-9a-f]{8}", names[0])


@in_process
def test_a_broken_transfer_goes_on_behind_what_has_arrived(site, desk, sending):
    site.api.lost_answers = 3
    sending()
    assert there(desk) == here(desk)
    whole = sum(map(len, here(desk).values()))
    # Each piece has arrived, with an answer or without: nothing travels twice.
    assert posts(site) <= whole // 2**16 + 1 + 3


@in_process
def test_sending_that_was_given_up_goes_on_later(site, desk, sending, monkeypatch):
    monkeypatch.setattr(errors, "PATIENCE_SECONDS", 1.0)
    site.api.busy, site.api.busy_at = [503] * 400, "/pieces"
    with pytest.raises(Stop) as stop:
        sending()
    assert "The upload continues where it stopped." in stop.value.text and helpers(site) == []
    site.api.busy = []
    sending()
    assert there(desk) == here(desk)


@in_process
def test_a_claim_without_room_is_named_before_anything_is_sent(
    site, desk, sending, monkeypatch, golden_message
):
    full = {"there": dict.fromkeys(here(desk), 0), "free": 5}
    monkeypatch.setattr(helper_pod.Share, "signed", lambda *_: full)
    with pytest.raises(Stop) as stop:
        sending()
    golden_message(re.sub(r"need [\d.,]+ MiB", "need N MiB", stop.value.text))
    assert there(desk) == {}


@in_process
def test_the_right_that_sending_needs_is_named(site, desk, sending, monkeypatch, golden_message):
    rule = next(rule for rule in api.ROLES["recipe-user"] if "pods/proxy" in rule["resources"])
    monkeypatch.setitem(rule, "verbs", ["get"])
    with pytest.raises(Stop) as stop:
        sending()
    golden_message(stop.value.text)
    assert helpers(site) == []


def helpers(site) -> list:
    parts = [
        site.cluster.list("Pod", site.namespace, {"recipe-runner/part": part})
        for part in ("fetch", "send")
    ]
    return [pod for pods in parts for pod in pods]


@in_process
@pytest.mark.parametrize(("data_from", "part"), [("claim", "send"), ("image", "look")])
def test_a_dry_run_judges_the_pod_that_works_before_the_job(
    site, capsys, golden_message, data_from, part
):
    """Quota, admission and rights of pods are others than those of jobs."""
    site.api.refused_parts = {part: "exceeded quota: pods"}
    sets = ("--set", f"openshift.data_from={data_from}")
    hub = ("--set", "data.hub=", "--set", "data.path=data/survival-sample.jsonl")
    assert site.recipe("submit", "--dry-run", *sets, *hub) == 1
    golden_message(capsys.readouterr().err, part)
    site.api.refused_parts = {}
    assert site.recipe("submit", "--dry-run", *sets, *hub) == 0
    assert site.cluster.list("Pod", site.namespace) == []


def test_nothing_is_written_or_deleted_outside_of_the_folder(tmp_path):
    root = tmp_path / "root"
    root.mkdir()
    (tmp_path / "kept").write_text("kept")
    for name in ("../kept", "/etc/hostname", "", "."):
        with pytest.raises(OSError):
            file_server.take(root, [file_server.Piece(name, "0" * 64, 0, 1)], io.BytesIO(b"x"))
        with pytest.raises(OSError):
            file_server.state(root, {name: (1, "0" * 64)}, lambda: None)
    file_server.keep_only(root, [])
    assert (tmp_path / "kept").read_text() == "kept"


def test_a_file_that_did_not_come_over_whole_never_takes_its_name(tmp_path):
    piece = file_server.Piece("a/b.csv", hashlib.sha256(b"right").hexdigest(), 0, 5)

    def there() -> int:
        return file_server.state(tmp_path, {piece.path: (5, piece.digest)}, lambda: None)["there"][
            piece.path
        ]

    file_server.take(tmp_path, [piece], io.BytesIO(b"wrong"))
    assert there() == 0 and [file for file in tmp_path.rglob("*") if file.is_file()] == []
    file_server.take(tmp_path, [piece], io.BytesIO(b"right"))
    assert there() == -1 and (tmp_path / "a" / "b.csv").read_bytes() == b"right"
    assert there() == -1


def test_the_last_piece_of_a_large_file_is_answered_before_the_file_is_hashed(
    tmp_path, monkeypatch
):
    """Hashing takes minutes where storage is slow, and the answer to a piece has no room for signs
    of life."""
    monkeypatch.setattr(file_server, "digest", lambda *_: pytest.fail("it was hashed"))
    file_server.take(tmp_path, [file_server.Piece("a", "0" * 64, 0, 1)], io.BytesIO(b"x"))


@pytest.mark.parametrize(("verb", "body"), [("hash/a", None), ("state", b'{"a": [1, "0"]}')])
def test_a_disk_that_refuses_in_the_middle_of_an_answer_is_said(tmp_path, monkeypatch, verb, body):
    def refuses(*_):
        raise OSError(5, "Input/output error", "a")

    (tmp_path / "a").write_text("x")
    monkeypatch.setattr(file_server, "digest", refuses)
    server = file_server.FileServer(("127.0.0.1", 0), tmp_path, "word", writes=True)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        address = f"http://127.0.0.1:{server.server_address[1]}/word/{verb}"
        with urllib.request.urlopen(address, data=body, timeout=10) as answer:
            said = answer.read()
        monkeypatch.setattr(helper_pod.Share, "get", lambda *_: said)
        with pytest.raises(Stop) as stop:
            helper_pod.Share(None, address).signed(verb)
    finally:
        server.shutdown()
        server.server_close()
    assert "Input/output error" in stop.value.text


@in_process
def test_a_model_on_a_claim_is_written_down_through_a_pod_and_then_needs_no_cluster(
    site, desk, capsys, golden_message
):
    facts = twin.wanted(
        catalog.model("Qwen/Qwen3-0.6B"),
        catalog.chat_template("chatml"),
        2,
        1,
        desk / "claim" / "us",
    )
    twin.tokenizer_for(facts)(["How do I tie a bowline?"] * 50)
    twin.build(facts)
    (desk / "q.jsonl").write_text(
        '{"topic": "a", "question": "b", "answer": "c"}\n', encoding="utf-8"
    )
    name, sets = "/shared/models/us", (f"openshift.namespace={site.namespace}", "data.path=q.jsonl")
    new = [
        "new",
        "mine",
        "--from",
        "survival",
        *(f"--set={one}" for one in (f"model.base={name}", *sets)),
    ]
    assert cli._code(new) == 0
    said = capsys.readouterr().out
    assert f"recipe models add {name} --recipe mine.yaml" in said
    assert cli._code(["check", "mine.yaml"]) == 1
    assert cli._code(["models", "add", name, "--recipe", "mine.yaml"]) == 1
    capsys.readouterr()
    for claim in ("trained-models-pvc", "workspace-pvc"):
        site.claim(claim)
    assert cli._code(["models", "add", "/shared/models/nobody", "--recipe", "mine.yaml"]) == 1
    golden_message(capsys.readouterr().err.replace(str(desk), "<desk>"), "no such folder")
    assert cli._code(["models", "add", "/elsewhere/us", "--recipe", "mine.yaml"]) == 1
    golden_message(capsys.readouterr().err, "no such claim")
    assert not Path("models.lock.yaml").exists()
    assert cli._code(["models", "add", name, "--recipe", "mine.yaml"]) == 0
    assert helpers(site) == []
    requests = len(site.api.requests)
    assert cli._code(["check", "mine.yaml"]) == 0 and cli._code(["plan", "mine.yaml"]) == 0
    assert len(site.api.requests) == requests
    recipe, _, _ = load("mine.yaml")
    assert (recipe.model_facts.model_type, recipe.model_facts.hidden_size) == ("qwen3", 64)
    # What lies on the claim is not sent, and pods start from it there.
    assert [setting for setting, _ in recipe.local_files()] == [("data", "path")]
    assert translate(recipe, kubernetes.place(recipe)).stage("train").config["base_model"] == name


@pytest.fixture
def looks_into_the_image():
    """Nothing stands in for the pod that looks."""


@in_process
def test_a_job_whose_image_lacks_its_rows_is_not_sent(
    looks_into_the_image, site, tmp_path, capfd, golden_message
):
    site.api.mounts["/opt/recipe-runner/data"] = tmp_path / "embedded"
    assert site.recipe("submit") == 1 and site.job() is None
    golden_message(capfd.readouterr().err, "nothing there")
    plan = planned(load(ROOT / "recipes" / "survival.yaml")[0], "pytorchjob")
    there = tmp_path / "embedded" / "survival"
    there.mkdir(parents=True)
    PreparedRows(90, 10, asked="of another recipe").write(there)
    assert site.recipe("submit") == 1 and site.job() is None
    golden_message(capfd.readouterr().err, "of another recipe")
    PreparedRows(90, 10, asked=asked(plan.stage("train").data)).write(there)
    assert site.recipe("submit") == 0 and site.job() is not None
    assert (
        "The image contains 90 rows for training and 10 for validation." in capfd.readouterr().out
    )
    assert site.cluster.list("Pod", site.namespace, {"recipe-runner/part": "look"}) == []


@in_process
def test_an_image_whose_rows_are_too_long_for_the_gpus_is_not_trained_on(
    looks_into_the_image, site, tmp_path, capfd, golden_message
):
    site.api.mounts["/opt/recipe-runner/data"] = tmp_path / "embedded"
    large = ("--set", "train.micro_batch_size=28", "--set", "train.gradient_accumulation_steps=4")
    plan = planned(load(ROOT / "recipes" / "survival.yaml")[0], "pytorchjob")
    there = tmp_path / "embedded" / "survival"
    there.mkdir(parents=True)
    for longest, code in ((900, 1), (192, 0)):
        PreparedRows(90, 10, asked=asked(plan.stage("train").data), longest=longest).write(there)
        assert site.recipe("submit", *large) == code and (site.job() is None) == bool(code)
        if code:
            golden_message(capfd.readouterr().err, "the figure")


@in_process
def test_an_image_whose_rows_are_of_the_file_as_it_was_is_not_trained_on(
    looks_into_the_image, site, desk, capfd, golden_message
):
    recipe = own_copy(site, desk)
    sets = ("openshift.data_from=image", "model.base=HuggingFaceTB/SmolLM3-3B")
    found, _, _ = load(recipe, from_options((*ON_CPU, *sets)))
    plan = translate(found, place(found))
    site.api.mounts["/opt/recipe-runner/data"] = desk / "embedded"
    rows = desk / "embedded" / "mine"
    rows.mkdir(parents=True)
    data = plan.stage("train").data
    assert contents(data)
    PreparedRows(90, 10, asked=asked(data), contents=contents(data)).write(rows)
    with (desk / "questions.csv").open("a", encoding="utf-8") as file:
        file.write("Knots,Which one?,The bowline.\n")
    assert (
        submit(recipe, *(f"--set={change}" for change in sets)) == 1
        and site.job(name="mine") is None
    )
    golden_message("\n".join(capfd.readouterr().err.replace(str(desk), "<tmp>").splitlines()[-2:]))
    PreparedRows(91, 10, asked=asked(data), contents=contents(data)).write(rows)
    assert (
        submit(recipe, *(f"--set={change}" for change in sets)) == 0
        and site.job(name="mine") is not None
    )


def test_what_was_prepared_for_the_image_is_what_its_pods_ask_for(tmp_path):
    """`recipe prepare`, which fills the image, and a pod name the same file by two paths."""
    rows = (f"data.path={ROOT}/recipes/data/survival-sample.jsonl", "data.hub=")
    recipe, _, _ = load(ROOT / "recipes" / "survival.yaml", from_options(rows))
    here = Place(*(str(tmp_path / name) for name in ("config", "data", "run", "scratch")))
    prepared = translate(recipe, here).stages[0].config["data"]
    in_pods = translate(recipe, kubernetes.place(recipe)).stage("train").data
    assert prepared["sets"][0]["path"] != in_pods["sets"][0]["path"]
    assert asked(prepared) == asked(in_pods)
    other, _, _ = load(ROOT / "recipes" / "survival.yaml", from_options((*rows, "data.seed=7")))
    assert asked(translate(other, here).stages[0].config["data"]) != asked(in_pods)
