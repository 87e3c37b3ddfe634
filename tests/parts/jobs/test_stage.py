"""A stage's pod starts its engine only behind the gates before it, by the records on the claim."""

from __future__ import annotations

import json
import math
import os
import signal
import subprocess
import sys
import time
from dataclasses import asdict, replace
from functools import lru_cache
from pathlib import Path

import pytest

from runner.check.validate import load
from runner.data.prepared import ROOM, PreparedRows
from runner.parts.evaluate import gates
from runner.parts.jobs import batch, kubernetes
from runner.parts.jobs import stage as entry
from runner.plan import PLAN_FILE, Plan, Stage, read_keys
from runner.recipe.overrides import from_options
from runner.run import pipeline
from runner.run.run_folder import RunFolder, StageFolder, inputs
from runner.scenarios import planned, saved_plan, translate
from runner.tools import child_process
from runner.tools.problem import Stop
from runner.trainer.settings import Demo
from tests.conftest import ROOT
from tests.stages import leave, measured

SEVEN_B = ROOT / "recipes" / "seven-b.yaml"
PASSING = {
    "perplexity": 3.0,
    "generated_tokens": 16,
    "loss_rise.3": 0.0,
    "lm_eval.hellaswag.acc_norm": 0.5,
}
PASSING |= {"regression.lm_eval.hellaswag.acc_norm": 0.0, "preference_accuracy": 0.9}


@lru_cache(8)
def whole(*options: str) -> Plan:
    recipe, _, _ = load(SEVEN_B, from_options(options))
    return translate(recipe, kubernetes.place(recipe))


def plan_text(stage: Stage) -> str:
    """The file that a stage's pod reads."""
    return next(file.text for file in stage.files if file.path == PLAN_FILE)


class Claim:
    """A claim in a folder of this machine, and the plans that pods of the stages read from their
    config maps."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.site = (f"openshift.claims.0.mount={folder}", f"openshift.output_dir={folder}/seven-b")
        self.site += (f"openshift.data_dir={folder}/seven-b/data",)

    def stage(self, name: str, *options: str) -> StageFolder:
        """A stage's folder, by the plan that its pod reads."""
        plan = saved_plan.from_json(self.here(plan_text(whole(*self.site, *options).stage(name))))
        return StageFolder(plan, plan.stages[-1])

    def here(self, text: str) -> str:
        """A pod has /tmp to itself; here somebody else may test at the same moment."""
        return text.replace("/tmp/recipe-runner", f"{self.folder}/scratch")

    def finish(self, *names: str, options: tuple[str, ...] = ()) -> None:
        """The stages look finished, without any training."""
        for name in names:
            folder = self.stage(name, *options)
            self.run.mark("running")
            if name == "data":
                for file in (
                    "tokenizer/t",
                    "sft/train.parquet",
                    "dpo/train.parquet",
                    "lora/train.parquet",
                ):
                    self._write(folder.results / file, file)
                for length in (512, 1024, 2048):
                    self._write(folder.results / "blocks" / f"train-{length}.npy", str(length))
            else:
                self._write(folder.model / "model.safetensors", name)
                if demo := folder.stage.config.get("recipe_runner", {}).get("demo"):
                    # With the folders as a pod knows them.
                    text = json.dumps(asdict(Demo(**demo))).replace(
                        str(self.folder), "/shared/models"
                    )
                    self._write(folder.path / "demo.json", text)
            folder.mark(
                "running", inputs=inputs(folder.plan, folder.stage), keys=dict(folder.stage.keys)
            )
            folder.mark("finished", outputs=folder.outputs())

    def measure(self, name: str, **changed) -> None:
        """An evaluation of the stage is on record; what is changed of it, or None of its parts."""
        measured(self.stage(name), **{"metrics": PASSING} | changed)

    @property
    def run(self) -> RunFolder:
        return RunFolder(self.folder / "seven-b", "run")

    @staticmethod
    def _write(file: Path, text: str) -> None:
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)

    def start(self, name: str, *options: str) -> tuple[bool, list[str]]:
        """Whether a pod of the stage has started its engine, and what it said; raises Stop where it
        does not."""
        said: list[str] = []
        mark = self.folder / "started"
        mark.unlink(missing_ok=True)
        # Its engine ends badly, so that nothing has to be whole afterwards.
        code = entry.run(
            self.stage(name, *options), ["sh", "-c", f"touch {mark}; exit 7"], said.append
        )
        assert code == (7 if mark.exists() else 0)
        return mark.exists(), said


BEFORE_SFT = ("data", "init", "pretrain-512", "pretrain-1024", "pretrain-2048")


@pytest.fixture
def claim(tmp_path):
    made = Claim(tmp_path)
    made.finish(*BEFORE_SFT)
    return made


def test_a_stage_starts_behind_a_verdict_that_holds(claim):
    claim.measure("pretrain-2048")
    started, said = claim.start("sft")
    assert started and any("sft: starting" in line for line in said)


def test_a_job_with_another_number_of_machines_does_not_train_with_another_batch(
    claim, monkeypatch, golden_message
):
    """As somebody leaves it who scales its nodes in the console."""
    claim.measure("pretrain-2048")
    monkeypatch.setenv("PET_NNODES", "2")
    assert claim.stage("sft").stage.machines.nodes == 1
    with pytest.raises(Stop) as stop:
        claim.start("sft")
    golden_message(stop.value)
    for as_planned in ("1", "1:2"):  # an elastic job names its bounds
        monkeypatch.setenv("PET_NNODES", as_planned)
        assert claim.start("sft")[0]


@pytest.mark.parametrize(
    ("record", "words"),
    [
        (None, "no evaluation was recorded"),
        ({"metrics": PASSING | {"perplexity": 99.0}}, "it misses the threshold"),
        ({"metrics": PASSING | {"perplexity": math.nan}}, "it is not a finite number"),
        (
            {"metrics": PASSING | {"perplexity": -5.0}},
            "this value is impossible; the metric is at least 1",
        ),
        ({"metrics": {}}, "it was not measured"),
        ({"metrics": PASSING | {"perplexity": "3"}}, "it is not a number"),
        ({"inputs": "another"}, "measured before the stage's inputs changed"),
        ({"model": "another"}, "measured on another model"),
        ({"run": "another"}, "measured in another run"),
        ({"settings": "another"}, "before the evaluation's settings changed"),
    ],
    ids=[
        "none",
        "missed",
        "nan",
        "impossible",
        "missing",
        "text",
        "other inputs",
        "another model",
        "other run",
        "other evaluation",
    ],
)
def test_no_stage_starts_behind_a_verdict_that_is_not_plainly_good(
    claim, record, words, golden_message
):
    if record is not None:
        claim.measure("pretrain-2048", **record)
    with pytest.raises(Stop) as stop:
        claim.start("sft")
    assert "gate after `pretrain-2048` is closed" in stop.value.text and words in stop.value.text
    assert "recipe promote RECIPE pretrain-2048 --cluster" in stop.value.text
    golden_message(stop.value)
    assert not (claim.folder / "started").exists()


def test_half_a_record_opens_nothing(claim, golden_message):
    claim.measure("pretrain-2048")
    file = claim.folder / "seven-b" / "pretrain-2048" / "evaluation.json"
    file.write_text(file.read_text()[:-20])
    with pytest.raises(Stop, match="the record is unreadable") as stop:
        claim.start("sft")
    golden_message(stop.value)


def test_a_promotion_opens_the_gate_that_it_overruled_and_is_told(claim):
    claim.measure("pretrain-2048", metrics=PASSING | {"perplexity": 99.0})
    said: list[str] = []
    assert (
        entry.promote(claim.stage("pretrain-2048"), "Ada", "the demo is tomorrow", said.append) == 0
    )
    started, told = claim.start("sft")
    assert started and said == told[:2] and "PROMOTED against its gate by Ada" in told[0]
    assert told[1] == "  missed: perplexity 99 (required < 15)"
    with pytest.raises(Stop, match="is closed"):
        claim.start("sft", "stages.0.gates.0=perplexity < 14")


def test_a_gate_that_is_tightened_later_is_closed_to_all_stages_after_it(claim, golden_message):
    for name in ("pretrain-2048", "sft", "dpo"):
        claim.finish(*(() if name == "pretrain-2048" else (name,)))
        claim.measure(name)
    assert claim.start("lora")[0]
    with pytest.raises(Stop) as stop:
        claim.start(
            "lora", "stages.1.gates.0=perplexity < 2", "stages.2.gates.0=preference_accuracy > 0.99"
        )
    assert (
        "gate after `sft` is closed" in stop.value.text
        and "recipe promote RECIPE sft --cluster" in stop.value.text
    )
    golden_message(stop.value, "in a pod")
    assert not (claim.folder / "started").exists()
    with pytest.raises(Stop) as stop:
        pipeline.guard(claim.stage("lora", "stages.0.gates.0=perplexity < 2"), print)
    assert (
        "gate after `pretrain-2048` is closed" in stop.value.text
        and "--cluster" not in stop.value.text
    )
    golden_message(stop.value, "on this machine")


def test_an_open_gate_needs_no_promotion(claim):
    claim.measure("pretrain-2048")
    with pytest.raises(Stop, match="there is nothing to overrule"):
        entry.promote(claim.stage("pretrain-2048"), "Ada", "why not", print)


@pytest.mark.parametrize(
    ("stage", "options"),
    [
        ("sft", ("stages.0.train.learning_rate=1e-4",)),
        ("sft", ("stages.0.model.seed=7",)),
        ("sft", ("stages.1.data.seed=7",)),
        ("pretrain-1024", ("stages.0.data.min_words=60",)),
    ],
    ids=lambda value: value if isinstance(value, str) else value[0],
)
def test_results_of_the_recipe_as_it_was_before_it_changed_are_not_gone_on_from(
    claim, stage, options, golden_message
):
    claim.measure("pretrain-2048")
    with pytest.raises(Stop, match="from other settings than this recipe's") as stop:
        claim.start(stage, *options)
    golden_message(stop.value)


def test_a_change_that_does_not_concern_what_a_stage_reads_leaves_it_its_way(claim):
    claim.measure("pretrain-2048")
    assert claim.start(
        "sft",
        "stages.2.data.seed=7",
        "stages.3.train.lora_rank=32",
        "stages.0.train.logging_steps=5",
    )[0]


def test_an_unfinished_stage_before_is_not_built_on(tmp_path, golden_message):
    claim = Claim(tmp_path)
    claim.finish("data", "init")
    with pytest.raises(Stop, match="`pretrain-512`, which is not finished") as stop:
        claim.start("pretrain-1024")
    golden_message(stop.value)


def test_weights_that_somebody_exchanged_are_not_built_on(claim, golden_message):
    claim.measure("pretrain-2048")
    (claim.folder / "seven-b" / "pretrain-2048" / "best_model" / "model.safetensors").write_text(
        "others"
    )
    with pytest.raises(Stop, match="`pretrain-2048` has changed since it was made") as stop:
        claim.start("sft")
    assert "`best_model/model.safetensors`" in stop.value.text
    golden_message(stop.value)


def test_what_is_finished_is_not_trained_again(claim):
    assert claim.start("pretrain-2048") == (False, ["pretrain-2048: done already"])
    started, said = claim.start("pretrain-512", "stages.0.train.weight_decay=0.2")
    assert started and [line for line in said if "(weight_decay: 0.1 → 0.2)" in line]


def test_what_would_come_out_the_same_is_taken_for_what_it_would_be(claim):
    """Cleaned otherwise, and to the same text: nothing after it is made again, and nothing waits
    for that in vain."""
    changed = "stages.0.data.min_words=60"
    claim.finish("data", options=(changed,))
    for name in ("init", "pretrain-512", "pretrain-1024", "pretrain-2048"):
        assert claim.start(name, changed) == (False, [f"{name}: done already"])
    claim.measure("pretrain-2048")
    assert claim.start("sft", changed)[0]


def test_the_folder_of_another_recipe_is_left_alone(claim):
    claim.run.mark("finished", recipe="another")
    with pytest.raises(Stop, match="contains a run of the recipe `another`"):
        claim.start("init", "stages.0.model.seed=7")
    assert (claim.folder / "seven-b" / "init" / "best_model").is_dir()


def test_rows_that_the_gpus_have_no_room_for_are_not_trained_on(claim, monkeypatch, golden_message):
    """A batch may be larger than it was when the rows were prepared."""
    claim.measure("pretrain-2048")
    recipe, _, _ = load(
        SEVEN_B,
        from_options(
            (
                *claim.site,
                "stages.2.train.micro_batch_size=16",
                "stages.2.train.gradient_accumulation_steps=1",
            )
        ),
    )
    dpo = planned(recipe, "pytorchjob").stage("dpo")
    monkeypatch.setenv(ROOM, dpo.env[ROOM].replace('"dpo"', '"sft"'))
    for longest in (2000, 900):
        PreparedRows(100, 10, longest=longest).write(claim.stage("data").results / "sft")
        if longest == 2000:
            with pytest.raises(Stop) as stop:
                claim.start("sft")
            golden_message(stop.value)
        else:
            assert claim.start("sft")[0]


def test_the_other_machines_look_too_and_keep_no_record(claim, monkeypatch):
    monkeypatch.setenv("PET_NODE_RANK", "1")
    with pytest.raises(Stop, match="is closed"):
        claim.start("sft")
    assert not (claim.folder / "started").exists()
    claim.measure("pretrain-2048")
    assert claim.start("sft") == (True, [])
    assert not (claim.folder / "seven-b" / "sft").exists(), (
        "the first machine alone keeps the record"
    )


def test_a_refusal_is_left_where_the_cluster_shows_it(claim, monkeypatch, capsys):
    log = claim.folder / "termination-log"
    log.touch()
    monkeypatch.setattr(entry, "TERMINATION_LOG", log)
    file = claim.folder / PLAN_FILE
    file.write_text(plan_text(whole(*claim.site).stage("sft")))
    assert entry.main(["run", str(file), "--", "false"]) == child_process.DECIDED
    assert "gate after `pretrain-2048` is closed" in log.read_text()
    file.write_text("{")
    assert entry.main(["run", str(file), "--", "false"]) == child_process.DECIDED
    assert "is missing or broken" in capsys.readouterr().err


def test_how_far_training_has_come_is_left_where_the_clusters_trainer_looks_once_the_stage_is_done(
    claim, monkeypatch
):
    """A hook before the pod's stop would not run: the container's process ends by itself."""
    log = claim.folder / "termination-log"
    log.touch()
    monkeypatch.setattr(entry, "TERMINATION_LOG", log)
    claim.measure("pretrain-2048")
    folder = claim.stage("sft")
    leave(folder.plan, folder.stage)
    (folder.path / "progress.json").write_text('{"progressPercentage": 100}')
    results = folder.path.rename(claim.folder / "results")

    def trains(ends: int) -> int:
        return entry.run(
            folder, ["sh", "-c", f"cp -r {results}/. {folder.path}; exit {ends}"], print
        )

    assert trains(7) == 7 and log.read_text() == "", "what has failed leaves its reason, or its log"
    assert trains(0) == 0 and log.read_text() == '{"progressPercentage": 100}'
    log.write_text("")
    assert trains(7) == 0 and log.read_text() == '{"progressPercentage": 100}', (
        "it was done already"
    )


def test_the_reason_of_an_engine_that_stops_itself_is_left_where_the_cluster_shows_it(
    claim, monkeypatch
):
    log = claim.folder / "termination-log"
    log.touch()
    monkeypatch.setattr(entry, "TERMINATION_LOG", log)
    claim.measure("pretrain-2048")
    folder = claim.stage("sft")
    stops = f"""echo '{{"message": "There are no rows."}}' > {folder.path}/stopped.json; exit {child_process.DECIDED}"""
    assert entry.run(folder, ["sh", "-c", stops], print) == child_process.DECIDED
    assert log.read_text() == "There are no rows."


def test_a_gate_measures_again_only_what_does_not_hold(claim, monkeypatch):
    measured = []

    def measure(folder, checkpoint=None):
        measured.append(folder.stage.name)
        claim.measure(
            folder.stage.name,
            metrics=PASSING | ({"perplexity": 99.0} if len(measured) == 1 else {}),
        )

    monkeypatch.setattr(gates, "measure", measure)
    said: list[str] = []
    folder = claim.stage("pretrain-2048")
    assert entry.gate(folder, said.append) == 1
    assert said[-1] == "The gate after `pretrain-2048` is closed." and any(
        "MISSED" in line for line in said
    )
    assert entry.gate(folder, said.append) == 0, "a gate that is sent again looks again"
    assert entry.gate(folder, said.append) == 0
    assert len(measured) == 2
    assert said[-1] == "The gate after `pretrain-2048` is open."


def test_a_gate_does_not_measure_what_the_recipe_as_it_was_has_left(claim):
    with pytest.raises(Stop, match="made from other settings"):
        entry.gate(claim.stage("pretrain-2048", "stages.0.train.learning_rate=1e-4"), print)


def test_the_clusters_wish_to_end_reaches_the_engine(claim):
    code = (
        "import sys; from runner.parts.jobs.stage import _child; sys.exit(_child([sys.executable, '-c', "
        "'import signal, sys, time; signal.signal(signal.SIGTERM, lambda *_: sys.exit(9)); "
        'print("up", flush=True); time.sleep(60)\']))'
    )
    process = subprocess.Popen(
        [sys.executable, "-c", code],
        cwd=ROOT,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        stdout=subprocess.PIPE,
    )
    assert process.stdout.readline() == b"up\n"
    time.sleep(0.2)
    process.send_signal(signal.SIGTERM)
    assert process.wait(20) == 9


# Processes in pods


GPUS = "GPU-pretended-0,GPU-pretended-1"


@pytest.mark.parametrize("visible", [None, GPUS], ids=["not named", "named"])
def test_what_measures_sees_the_gpus_of_its_pod(claim, monkeypatch, visible):
    """With the environment of every process that a gate's pod starts; its GPUs are those that the
    cluster has given it."""
    started = []

    def child(command, env, *_others):
        started.append(env)
        raise Stop("that is all")

    monkeypatch.setattr(gates, "follow", child)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    if visible:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    for name in ("pretrain-2048", "sft", "dpo", "lora"):
        claim.finish(name)
        with pytest.raises(Stop, match="that is all"):
            entry.gate(claim.stage(name), print)
    assert [env.get("CUDA_VISIBLE_DEVICES") for env in started] == [visible] * 4
    assert not [
        env
        for env in started
        if env.get("ACCELERATE_USE_CPU") or env.get("ACCELERATE_TORCH_DEVICE")
    ]


@pytest.mark.parametrize("rank", [0, 1])
def test_the_engine_gets_the_environment_of_its_pod_as_it_is(claim, monkeypatch, rank):
    claim.measure("pretrain-2048")
    file, seen = claim.folder / PLAN_FILE, claim.folder / "seen.json"
    file.write_text(claim.here(plan_text(whole(*claim.site).stage("sft"))))
    engine = [
        sys.executable,
        "-c",
        f"import json, os; json.dump(dict(os.environ), open({str(seen)!r}, 'w')); raise SystemExit(3)",
    ]
    around = os.environ | {
        "PYTHONPATH": str(ROOT),
        "PET_NODE_RANK": str(rank),
        "CUDA_VISIBLE_DEVICES": GPUS,
    }
    guard = [sys.executable, "-m", "runner.parts.jobs.stage", "run", str(file), "--", *engine]
    assert subprocess.run(guard, cwd=claim.folder, env=around, timeout=120).returncode == 3
    inside = json.loads(seen.read_text())
    changed = {
        name for name in around.keys() | inside.keys() if around.get(name) != inside.get(name)
    }
    # The engine ends with the process that looks after it.
    assert changed - {"LC_CTYPE"} == {child_process.PARENT}


def test_looking_at_the_records_loads_no_engine():
    """Each machine of each stage looks first, and so does `recipe status`; torch alone would take
    them half a minute."""
    code = (
        "import sys, runner.parts.jobs.stage, runner.parts.openshift.pipeline; print(*sys.modules)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True
    )
    loaded = {name.partition(".")[0] for name in done.stdout.split()}
    assert not loaded & {
        "torch",
        "transformers",
        "datasets",
        "axolotl",
        "numpy",
        "jsonschema",
        "click",
        "kubernetes",
    }


# Keys


TRAINED = ("pretrain-512", "pretrain-1024", "pretrain-2048", "sft", "dpo", "lora")


@pytest.mark.parametrize(
    ("options", "changed"),
    [
        (("stages.1.train.learning_rate=1e-5",), ("sft", "dpo", "lora")),
        (("stages.1.data.seed=7",), ("data", "sft", "dpo", "lora")),
        (("stages.2.train.beta=0.2",), ("dpo", "lora")),
        (("stages.2.data.seed=7",), ("data", "dpo", "lora")),
        (("stages.3.train.lora_rank=32",), ("lora",)),
        (("stages.3.data.seed=7",), ("data", "lora")),
        (("stages.0.train.learning_rate=1e-4",), TRAINED),
        (("stages.0.train.curriculum.0.until=0.3",), ("data", *TRAINED)),
        (("stages.0.model.seed=7",), ("init", *TRAINED)),
        (("stages.0.data.min_words=60",), ("data", "init", *TRAINED)),
        (("stages.0.tokenizer.vocabulary=40000",), ("data", "init", *TRAINED)),
        (("machines.gpus_per_node=4",), TRAINED),
        (("stages.1.gates.0=perplexity < 14",), ()),
        (("stages.0.train.logging_steps=5",), ()),
        (("openshift.queue=fast",), ()),
        (("openshift.output_dir=/shared/models/other",), ()),
        ((*(f"stages.{index}.train.report_to=none" for index in range(4)),), ()),
    ],
    ids=lambda value: value[0] if value and "=" in value[0] else "",
)
def test_a_key_changes_with_what_its_stage_depends_on_and_with_nothing_else(options, changed):
    before, after = (
        {stage.name: stage.keys[""] for stage in whole(*some).stages} for some in ((), options)
    )
    assert tuple(name for name in before if before[name] != after[name]) == changed


def test_each_stage_keeps_its_checkpoints_under_its_own_key():
    for stage in whole().stages:
        if stage.engine == "axolotl":
            assert stage.config["output_dir"].endswith(
                f"/{stage.name}/checkpoints/{stage.keys['']}"
            )
    second = whole().stages[3]
    assert second.config["recipe_runner"]["blocks"]["continue_from"].endswith(
        f"/{whole().stages[2].keys['']}"
    )


def test_every_part_that_a_stage_reads_has_a_key():
    for plan in (whole(), whole("lora=")):
        known = {stage.name: stage.keys for stage in plan.stages}
        for stage in plan.stages:
            for name, beginnings in stage.reads.items():
                assert all(read_keys(known[name], beginnings).values()), (stage.name, name)


def test_a_changed_threshold_is_another_gate_and_the_same_stage():
    before, after = (
        next(stage for stage in whole(*some).stages if stage.name == "sft")
        for some in ((), ("stages.1.gates.0=perplexity < 14",))
    )
    assert before.keys == after.keys and batch.gate_key(before) != batch.gate_key(after)


def test_a_stages_file_says_nothing_of_later_stages():
    def files(*options):
        found = {}
        for stage in whole(*options).stages:
            stages = json.loads(plan_text(stage))["stages"]
            for one in stages:
                # The whole recipe's, which decides nothing here.
                one["config"].get("recipe_runner", {}).pop("fingerprint", None)
            found[stage.name] = stages
        return found

    before, after = (
        files(),
        files("stages.2.train.beta=0.2", "stages.2.gates.0=preference_accuracy >= 0.7"),
    )
    assert [name for name in before if before[name] != after[name]] == ["dpo", "lora"]


def test_what_a_pod_reads_says_the_same_as_the_plan(tmp_path):
    claim = Claim(tmp_path)
    plan = whole(*claim.site)
    for stage in plan.stages:
        folder = claim.stage(stage.name)
        # Only what the pod was started with is no business of its plan's.
        known = [
            replace(other, command=folder.plan.stage(other.name).command)
            for other in plan.upto(stage).stages
        ]
        asked = replace(plan.upto(stage), stages=tuple(known))
        assert folder.plan.as_json() == claim.here(asked.as_json())
        assert inputs(folder.plan, folder.stage) == inputs(plan, stage)
        assert pipeline.decision_on(folder).action == "begin"
