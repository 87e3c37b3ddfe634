"""`recipe check`: all problems at once, each with its line and a remedy, in three formats."""

from __future__ import annotations

import json

import pytest

from runner.check.validate import examine, load
from runner.recipe.lock import LOCK
from runner.recipe.overrides import from_options
from runner.tools import packaged
from runner.tools.problem import errors_of
from tests.conftest import ROOT, STARTERS, setting_of


def line_of(path, start: str) -> int:
    return next(
        n
        for n, line in enumerate(path.read_text("utf-8").splitlines(), 1)
        if line.strip().startswith(start)
    )


@pytest.mark.parametrize("path", STARTERS, ids=lambda path: path.stem)
def test_no_starter_recipe_has_an_error_or_a_note_but_for_its_placeholder(path):
    found = examine(path)
    assert all(problem.severity == "note" and "placeholder" in problem.message for problem in found)
    assert len(found) == (path.stem == "resnet")


def test_an_unknown_setting_is_shown_with_its_line_and_the_nearest_known_one(
    edited, golden_message
):
    path = edited(("  epochs: 4                           #", "  epocs: 4   #"))
    (problem,) = examine(path)
    assert (problem.line, problem.column, problem.severity) == (line_of(path, "epocs"), 3, "error")
    golden_message(str(problem))


# A line of the section `openshift`, which settings of pods take the place of.
ABOVE_REQUESTS = "clean_pod_policy: None "
# What is changed in the survival recipe, and the setting that is wrong then.
WRONG = {
    "a quoted number": ("epochs: 4", 'epochs: "4"', "epochs"),
    "a quoted 2e-5": ("learning_rate: 5.0e-5", 'learning_rate: "2e-5"', "learning_rate"),
    "a decimal comma": ("learning_rate: 5.0e-5", "learning_rate: 0,00005", "learning_rate"),
    "digits in groups": ("sequence_len: 1024", "sequence_len: 1_024", "sequence_len"),
    "a percentage": ("validation_share: 0.1", "validation_share: 10 %", "validation_share"),
    "a path whose backslashes mean line breaks": (
        "sample: data/survival-sample.jsonl",
        'sample: "C:\\new\\rows.jsonl"',
        "sample",
    ),
    "a unit": ("memory: 32 GB", "memory: 32Gi", "memory"),
    "yes for true": ("lm_head: true", "lm_head: yes", "lm_head"),
    "no value": ("epochs: 4  ", "epochs:  ", "epochs"),
    "half a machine": ("cpus: 8 ", "cpus: 8.5 ", "cpus"),
    "a list for a value": ("seed: 42 ", "seed: [42] ", "seed"),
    "a value for a section": ("communication:   ", "communication: 3 #", "nccl_debug"),
    "too small": ("micro_batch_size: 8", "micro_batch_size: 0", "micro_batch_size"),
    "too large": ("validation_share: 0.1", "validation_share: 0.9", "validation_share"),
    "not finite": ("learning_rate: 5.0e-5", "learning_rate: .nan", "learning_rate"),
    "a wrong choice": ("precision: bf16", "precision: bfloat16", "precision"),
    "a restart policy that a cluster swallows": (
        "restart_policy: OnFailure",
        "restart_policy: OnFail",
        "restart_policy",
    ),
    "a clean-up policy that deletes every pod": (
        "clean_pod_policy: None",
        "clean_pod_policy: none",
        "clean_pod_policy",
    ),
    "a time without its unit": ("time: 75 min", "time: 30", "time"),
    "a name that no pod can have": ("name: survival  ", "name: Survival_1  ", "name"),
    "a setting in the wrong section": ("cpus: 8 ", "cpus: 8\n  epochs: 4 ", "epochs"),
    "a time limit of nothing": ("time: 75 min", "time: 0 s", "time"),
    "a time limit without end": ("time: 75 min", f"time: {'9' * 400} s", "time"),
    "GPU memory of nothing": ("  gpu_memory: 45 GB", "  gpu_memory: 0 GB", "gpu_memory"),
    "memory without its unit": ("memory: 32 GB", "memory: 32", "memory"),
    "memory that is nothing": ("memory: 32 GB", "memory: 0 GB", "memory"),
    "memory that no machine has": ("memory: 32 GB", "memory: 32000 TB", "memory"),
    "memory too little for a pod": ("memory: 32 GB", "memory: 4 GB", "memory"),
    "one CPU, and none for a pod": ("cpus: 8 ", "cpus: 1 ", "cpus"),
    "CPUs that no machine has": ("cpus: 8 ", "cpus: 5000 ", "cpus"),
    "memory as it was written once": ("memory: 32 GB", "memory_gib: 32", "memory_gib"),
    "a limit of memory as it was written once": (
        "cpus: 8 ",
        "cpus: 8\n  memory_limit_gib: 24 ",
        "memory_limit_gib",
    ),
    "a limit of CPUs as it was written once": (
        "cpus: 8 ",
        "cpus: 8\n  cpus_limit: 6 ",
        "cpus_limit",
    ),
    "a pod as large as its machine": (ABOVE_REQUESTS, "requests:\n    memory: 32 GB ", "memory"),
    "a pod with all CPUs of its machine": (ABOVE_REQUESTS, "requests:\n    cpus: 8 ", "cpus"),
    "a pod of no memory": (ABOVE_REQUESTS, "requests:\n    memory: 0 GiB ", "memory"),
    "a limit above the machine": (ABOVE_REQUESTS, "limits:\n    memory: 64 GiB ", "memory"),
    "a limit below the request": (
        ABOVE_REQUESTS,
        "requests: {cpus: 4}\n  limits:\n    cpus: 2 ",
        "cpus",
    ),
    "a rate in Mbit/s": (ABOVE_REQUESTS, "network:\n    gbit_s: 25000 ", "gbit_s"),
    "an unknown scenario": ("scenario: last-layers", "scenario: last-layer", "scenario"),
}


@pytest.mark.parametrize("case", WRONG, ids=str)
def test_every_wrong_value_has_its_own_message(edited, case, golden_message):
    old, new, setting = WRONG[case]
    (problem,) = examine(edited((old, new)))
    assert (problem.severity, setting_of(problem)) == ("error", setting)
    golden_message(problem)


def test_a_number_like_2e_5_is_a_number(edited):
    recipe, _, _ = load(edited(("learning_rate: 5.0e-5", "learning_rate: 2e-5")))
    assert recipe.train.learning_rate == 2e-5


CONTRADICTIONS = {
    "no GPU on a cluster": ("gpu: NVIDIA-L40S", "gpu: none", "gpu"),
    "effective batch size": (
        "effective_batch_size: 64",
        "effective_batch_size: 60",
        "effective_batch_size",
    ),
    "more layers than there are": ("last_layers: 2", "last_layers: 40", "last_layers"),
    "a column that is not there": (
        "question: For [topic], [question]",
        "question: For [topics], [question]",
        "question",
    ),
    "an open bracket": (
        "question: For [topic], [question]",
        "question: For [topic], [question",
        "question",
    ),
    "a question without its brackets": (
        "question: For [topic], [question]",
        "question: question #",
        "question",
    ),
    "an answer without its brackets": ('answer: "[answer]"', "answer: answer", "answer"),
    "an unknown model": (
        "base: HuggingFaceTB/SmolLM3-3B",
        "base: HuggingFaceTB/SmolLM4-3B",
        "base",
    ),
    "a sequence longer than the model reads": (
        "sequence_len: 1024",
        "sequence_len: 100000",
        "sequence_len",
    ),
    "two sources": ("  split: train", "  path: data/survival-sample.jsonl\n  split: train", "path"),
    "results on no claim": (
        "output_dir: /shared/models/survival",
        "output_dir: /tmp/survival",
        "output_dir",
    ),
    "links over which nobody talks": (
        ABOVE_REQUESTS,
        "network:\n    gbit_s: 25\n    links: 2 ",
        "links",
    ),
    "one port for two": (ABOVE_REQUESTS, "progress_port: 9400 ", "progress_port"),
    "two claims at one mount": ("mount: /shared/workspace", "mount: /shared/models", "mount"),
    "the same mount, written in another way": (
        "mount: /shared/workspace",
        "mount: //shared/./models/",
        "mount",
    ),
    "results that leave their claim": (
        "output_dir: /shared/models/survival",
        "output_dir: /shared/models/../../etc",
        "output_dir",
    ),
    "results beside their claim": (
        "output_dir: /shared/models/survival",
        "output_dir: /shared/models/../models-of-others",
        "output_dir",
    ),
    "rows in the results' own folder": (
        ABOVE_REQUESTS,
        "data_dir: /shared/models/x/../survival/ ",
        "data_dir",
    ),
    "a mount that leads to the system": (
        "mount: /shared/workspace",
        "mount: /shared/../usr/bin",
        "mount",
    ),
}


@pytest.mark.parametrize("case", CONTRADICTIONS, ids=str)
def test_lines_that_contradict_each_other_are_found(edited, case, golden_message):
    old, new, setting = CONTRADICTIONS[case]
    (problem,) = errors_of(examine(edited((old, new))))
    assert setting_of(problem) == setting
    golden_message(problem)


# What a file holds that its name does not say.
MISNAMED = {
    "rows.json": '{"topic": "a", "question": "b", "answer": "c"}\n' * 2,
    "rows.jsonl": '[{"topic": "a", "question": "b", "answer": "c"}]\n',
}


@pytest.mark.parametrize("name", MISNAMED)
def test_a_row_a_line_is_read_under_either_name_and_a_list_under_its_own(
    edited, name, golden_message
):
    path = edited(("  split: train", f"  path: {name}"), ("  hub: ", "  # "))
    (path.parent / name).write_text(MISNAMED[name], "utf-8")
    problems = [problem for problem in examine(path) if problem.severity == "error"]
    if name == "rows.json":
        assert problems == []
    else:
        (problem,) = problems
        assert setting_of(problem) == "path"
        golden_message(problem)


@pytest.mark.parametrize("written", ["cpu", "CPU", "no"])
def test_a_processor_that_is_named_like_a_gpu_gets_the_right_word(written, tmp_path):
    path = tmp_path / "x.yaml"
    path.write_text(
        (ROOT / "recipes/minimal/lora.yaml")
        .read_text("utf-8")
        .replace("../data", str(ROOT / "recipes/data"))
    )
    (note,) = load(path, from_options([f"machines.gpu={written}"]), look=False)[2]
    assert note.hint == "Write `gpu: none` to train on the CPU of this machine."
    assert load(path, from_options(["machines.gpu=none"]), look=False)[2] == []


def test_sharding_on_one_gpu_is_a_contradiction(edited, golden_message):
    path = edited(
        ("distribution: ddp", "distribution: zero2"),
        ("nodes: 4", "nodes: 1"),
        ("  effective_batch_size: 64", "  # "),
    )
    (problem,) = examine(path)
    assert setting_of(problem) == "distribution"
    golden_message(problem)


@pytest.mark.parametrize(
    ("wrong", "meant"), [("NVIDIA-L40X", "NVIDIA-L40"), ("l40s", "NVIDIA-L40S")]
)
def test_an_unknown_gpu_is_a_note_and_no_error(
    edited, recipe_command, wrong, meant, golden_message
):
    path = edited(("gpu: NVIDIA-L40S", f"gpu: {wrong}"))
    (note,) = examine(path)
    assert (note.severity, setting_of(note)) == ("note", "gpu")
    assert wrong in note.message and f"`{meant}`" in note.hint
    golden_message(note)
    done = recipe_command("check", path)
    assert done.returncode == 0 and str(note) in done.stdout


@pytest.mark.parametrize("line", ["flash_atention: true", "num_epochs: 9"])
def test_axolotl_settings_that_do_not_exist_or_contradict_are_errors(edited, line, golden_message):
    (problem,) = examine(edited(("demo:  ", f"advanced:\n  axolotl:\n    {line}\ndemo:  ")))
    assert (problem.severity, problem.source.strip()) == ("error", line)
    golden_message(problem)


@pytest.mark.parametrize(
    ("lines", "marked"),
    [
        (["neftune_noise_alpha: banana"], "banana"),
        (["rl: dpoo"], "dpoo"),
        (["fsdp_config:", "  offload_params: maybe"], "maybe"),
        (["fsdp_config:", "  ofload_params: true"], "ofload_params"),
        (["peft:", "  loftq_config:", "    loftq_bits: [4]"], "[4]"),
        (["lr_groups:", "  - lr: 1"], "lr"),
        (["dynamic_checkpoint:", "  enabled: true", "  check_interval: 0"], "0"),
        (["sequence_len: [1]"], "[1]"),
    ],
    ids=str,
)
def test_values_for_axolotl_are_judged_before_training_where_they_stand(edited, lines, marked):
    path = edited(
        (
            "demo:  ",
            "\n".join(["advanced:", "  axolotl:", *(f"    {line}" for line in lines), "demo:  "]),
        )
    )
    (problem,) = examine(path)
    text = path.read_text("utf-8").splitlines()[problem.line - 1]
    assert text[problem.column - 1 :].startswith(marked)
    assert problem.severity == "error"


@pytest.mark.parametrize(
    "line", ["neftune_noise_alpha: 5", "neftune_noise_alpha:", "bf16: auto", "plugins: [a.B]"]
)
def test_values_that_axolotl_takes_are_no_problem(edited, line):
    path = edited(("demo:  ", f"advanced:\n  axolotl:\n    {line}\ndemo:  "))
    assert not [problem for problem in examine(path) if "cannot be" in problem.message]


def test_the_stages_of_a_pipeline_have_their_values_judged_too():
    option = "stages.2.advanced.axolotl={neftune_noise_alpha: banana}"
    (problem,) = examine(ROOT / "recipes" / "seven-b.yaml", from_options([option]))
    assert problem.file == f"--set {option}"


def test_all_problems_come_at_once_and_in_order(edited):
    path = edited(
        ("last_layers: 2", "last_layers: 99"),
        ("lm_head: true", "lm_hed: true"),
        ("validation_share: 0.1", "validation_share: 3"),
        ("cpus: 8 ", "cpus: eight "),
    )
    problems = examine(path)
    assert [setting_of(problem) for problem in problems] == [
        "last_layers",
        "lm_hed",
        "validation_share",
        "cpus",
    ]
    assert [problem.line for problem in problems] == sorted(problem.line for problem in problems)


def test_a_refused_setting_causes_no_second_complaint(edited, golden_message):
    (problem,) = examine(edited(("nodes: 4", "nodes: four")))
    assert setting_of(problem) == "nodes"
    golden_message(problem)


def test_json_has_the_promised_form(edited, recipe_command):
    path = edited(("epochs: 4", "epocs: 4"))
    (problem,) = examine(path)
    done = recipe_command("check", path, "--format", "json")
    assert done.returncode == 1
    place = {"severity": "error", "file": str(path), "line": line_of(path, "epocs"), "column": 3}
    words = {"message": problem.message, "hint": problem.hint}
    (found,) = json.loads(done.stdout)["problems"]
    assert found.pop("rule") == "train/setting-unknown" and found.pop("fingerprint")
    assert found == place | words
    assert json.loads(done.stdout)["notes"] == []


def test_json_has_notes_apart(edited, recipe_command):
    path = edited(("warmup_ratio: 0.03", "warmup_ratio: 0.99"))
    done = recipe_command("check", path, "--format", "json")
    said = json.loads(done.stdout)
    assert done.returncode == 0 and said["problems"] == []
    assert [(note["severity"], note["line"]) for note in said["notes"]] == [
        ("note", line_of(path, "warmup_ratio"))
    ]


def test_github_annotations_point_at_the_line(edited, recipe_command):
    path = edited(("epochs: 4", "epocs: 4"))
    (problem,) = examine(path)
    done = recipe_command("check", path, "--format", "github")
    place = f"file={path},line={line_of(path, 'epocs')},col=3"
    assert done.stdout == f"::error {place}::{problem.message} {problem.hint}\n"


def test_a_folder_means_every_recipe_below_it(edited, recipe_command):
    path = edited()
    (path.parent / "deep").mkdir()
    (path.parent / "deep" / "other.yaml").write_text("scenario: 1\n")
    (path.parent / LOCK).write_text("models: {}\n")
    done = recipe_command("check", path.parent)
    assert done.returncode == 1
    assert "2 recipes checked, 1 error." in done.stdout


def test_a_folder_without_recipes_is_wrong_use(tmp_path, recipe_command, golden_message):
    done = recipe_command("check", tmp_path)
    assert (done.returncode, done.stdout) == (2, "")
    golden_message(done.stderr)


def test_a_path_that_is_missing_is_a_problem(tmp_path, recipe_command, golden_message):
    done = recipe_command("check", tmp_path / "no.yaml")
    assert done.returncode == 1
    assert done.stdout.startswith(f"{tmp_path}/no.yaml: ")
    golden_message(done.stdout)


def test_set_is_judged_like_the_file(recipe_command, golden_message):
    done = recipe_command("check", "recipes/survival.yaml", "--set", "train.epocs=3")
    assert done.returncode == 1
    assert done.stdout.startswith("--set train.epocs=3: ")
    golden_message(done.stdout)
    assert (
        recipe_command("check", "recipes/survival.yaml", "--set", "train.epochs=3").returncode == 0
    )
    assert recipe_command("check", "recipes/survival.yaml", "--set", "epochs").returncode == 2


def test_set_wins_over_environment_and_environment_over_the_recipe():
    asked = {"EPOCHS": "7", "NCCL_DEBUG": "WARN"}
    recipe, made, _ = load(
        ROOT / "recipes" / "survival.yaml", from_options(["train.epochs=9"]), asked
    )
    assert (recipe.train.epochs, recipe.communication.nccl_debug) == (9, "WARN")
    assert [(change.setting, change.before, change.after) for change in made][-1] == (
        "train.epochs",
        7,
        9,
    )


# Lines about the hub, which leave with it.
NOT_OF_A_FILE = (
    ("  revision: main                      # version on the hub\n", ""),
    ("  split: train ", "  # "),
)


def parquet_copy(edited, tmp_path):
    from datasets import Dataset

    path = edited(
        ("  hub: cahlen/offline-practical-skills-qa-synthetic", "  path: data/rows.parquet #"),
        *NOT_OF_A_FILE,
        ("question: For [topic], [question]", "question: For [topics], [question]"),
        ("  sample: data/survival-sample.jsonl", "  # "),
    )
    Dataset.from_list([{"topic": "a", "question": "b", "answer": "c"}] * 50).to_parquet(
        str(tmp_path / "data" / "rows.parquet")
    )
    return path


def test_the_columns_of_a_parquet_file_are_checked_where_pyarrow_is_there(
    edited, tmp_path, golden_message
):
    (problem,) = examine(parquet_copy(edited, tmp_path))
    assert (problem.severity, setting_of(problem)) == ("error", "question")
    golden_message(problem)


def test_without_pyarrow_a_parquet_file_is_a_visible_note(
    edited, tmp_path, monkeypatch, golden_message
):
    import sys

    path = parquet_copy(edited, tmp_path)
    # Its parts too: one that a test before has imported would be there yet.
    for name in ["pyarrow", *(name for name in sys.modules if name.startswith("pyarrow."))]:
        monkeypatch.setitem(sys.modules, name, None)
    (note,) = examine(path)
    assert note.severity == "note" and "pyarrow" in note.message
    (extra,) = [
        extra
        for extra, packages in packaged.toml(packaged.__file__, "extras.toml").items()
        if "pyarrow" in packages
    ]
    assert note.hint == packaged.install(extra), "the file is no worse for it"
    golden_message(note)


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("rows.csv", ""),
        ("rows.jsonl", "nonsense\n"),
        ("rows.json", "[[1, 2]]"),
        ("rows.jsonl", ""),
        ("rows.xlsx", "question"),
        ("rows/", None),
    ],
    ids=["no header", "no JSON", "no object", "empty", "no spreadsheet", "a folder of nothing"],
)
def test_a_data_file_that_cannot_be_read_is_found_by_check(
    edited, tmp_path, name, content, golden_message
):
    path = edited(
        ("  hub: cahlen/offline-practical-skills-qa-synthetic", f"  path: data/{name} #"),
        *NOT_OF_A_FILE,
    )
    if content is None:
        (tmp_path / "data" / name).mkdir()
    else:
        (tmp_path / "data" / name).write_text(content)
    (problem,) = examine(path)
    assert setting_of(problem) == "path"
    golden_message(problem.message)


def test_a_csv_of_ones_own_needs_only_the_data_section_changed(edited, tmp_path):
    path = edited(
        ("  hub: cahlen/offline-practical-skills-qa-synthetic", "  path: data/mine.csv #"),
        *NOT_OF_A_FILE,
        ("question: For [topic], [question]", "question: '[Frage]'"),
        ('answer: "[answer]"', 'answer: "[Antwort]"'),
        ("  sample: data/survival-sample.jsonl", "  # "),
    )
    rows = "".join(f"Warum {number}?,{number} sind genug davon.\n" for number in range(800))
    (tmp_path / "data" / "mine.csv").write_text(f"Frage,Antwort\n{rows}")
    # The prompt and the questions of the starter are about its own rows.
    assert {setting_of(note) for note in examine(path)} <= {"system_prompt", "-"}


def test_a_gated_model_without_a_token_for_the_pods_is_noted(edited, golden_message):
    gated = ("base: HuggingFaceTB/SmolLM3-3B", "base: meta-llama/Llama-3.2-3B-Instruct")
    (note,) = [one for one in examine(edited(gated)) if "gated" in one.message]
    assert (note.severity, setting_of(note)) == ("note", "base")
    golden_message(note)
    with_token = ("  claims:", "  hub_token_secret: hub-token\n  claims:")
    assert not [one for one in examine(edited(gated, with_token)) if "gated" in one.message]
