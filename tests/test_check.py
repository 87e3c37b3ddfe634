"""`recipe check`: all problems at once, each with its line and a remedy, in three formats."""

from __future__ import annotations

import json

import pytest

from runner.examine import examine
from runner.recipe.changes import from_options
from runner.recipe.check import load
from tests.conftest import RECIPES, ROOT


def problems(path) -> list[str]:
    return [str(problem).replace(f"{path.parent}/", "") for problem in examine(path)]


def messages(path) -> list[tuple[int, int, str, str]]:
    return [(p.line, p.column, p.message, p.hint) for p in examine(path)]


def line_of(path, start: str) -> int:
    return next(n for n, line in enumerate(path.read_text("utf-8").splitlines(), 1) if line.strip().startswith(start))


@pytest.mark.parametrize("path", RECIPES, ids=lambda path: path.stem)
def test_every_starter_recipe_is_clean(path):
    found = examine(path)
    assert [str(problem) for problem in found if problem.severity == "error"] == []
    # Gemma's 500 steps of warmup, and between evaluations, are what was asked for, and longer than its run.
    gemma = [
        "Stage `train` ends after 39 steps, before its first evaluation and its first checkpoint at step 500.",
        "The learning rate rises over 500 steps, and stage `train` has 39",
    ]
    notes = gemma if path.stem == "gemma" else []
    assert [problem.message.partition(":")[0] for problem in found] == notes


def test_an_unknown_setting_is_shown_with_its_line_and_the_nearest_known_one(edited):
    path = edited(("  epochs: 4                           #", "  epocs: 4   #"))
    line = line_of(path, "epocs")
    assert problems(path) == [
        f"recipe.yaml:{line}:3: `epocs` is not a setting of `train`.\n"
        f"   {line} |   epocs: 4   # times through all rows; more learns more, until it learns them by heart\n"
        f"      |   ^^^^^\nDid you mean `epochs`?"
    ]


WRONG = {
    "a quoted number": (
        ("epochs: 4", 'epochs: "4"'),
        "`epochs` must be a number, and `4` is text.",
        "Write it without quotes: 4",
    ),
    "a quoted 2e-5": (
        ("learning_rate: 5.0e-5", 'learning_rate: "2e-5"'),
        "`learning_rate` must be a number, and `2e-5` is text.",
        "Write it without quotes: 2e-5",
    ),
    "a decimal comma": (
        ("learning_rate: 5.0e-5", "learning_rate: 0,00005"),
        "`learning_rate` must be a number, and `0,00005` is text.",
        "Write a number alone, with a point for decimals: 0.00005 or 5e-5. Units belong in the comment.",
    ),
    "digits in groups": (
        ("sequence_len: 1024", "sequence_len: 1_024"),
        "`sequence_len` must be a whole number, and `1_024` is text.",
        "Write its digits without gaps: 1024",
    ),
    "a percentage": (
        ("validation_share: 0.1", "validation_share: 10 %"),
        "`validation_share` must be a number, and `10 %` is text.",
        "Write the share as a number: 0.1",
    ),
    "a unit": (
        ("memory_gib: 20", "memory_gib: 20Gi"),
        "`memory_gib` must be a whole number, and `20Gi` is text.",
        "Write a whole number alone, with a point for decimals: 0.00005 or 5e-5. Units belong in the comment.",
    ),
    "yes for true": (
        ("lm_head: true", "lm_head: yes"),
        "`lm_head` must be `true` or `false`, and `yes` is text.",
        "Write `true`.",
    ),
    "no value": (
        ("epochs: 4  ", "epochs:  "),
        "`epochs` has no value.",
        "Write a number, or delete the line to use the default, `3`.",
    ),
    "half a machine": (
        ("cpus: 6 ", "cpus: 6.5 "),
        "`cpus` must be a whole number, and 6.5 is not.",
        "Write a whole number, or delete the line to use the default, `8`.",
    ),
    "a list for a value": (
        ("seed: 42 ", "seed: [42] "),
        "`seed` must be a whole number, and here it is a list.",
        "Write a single value, without `-` or brackets.",
    ),
    "a value for a section": (
        ("communication:   ", "communication: 3 #"),
        None,
        None,
    ),
    "too small": (
        ("micro_batch_size: 8", "micro_batch_size: 0"),
        "`micro_batch_size` must be at least 1, and here it is 0.",
        "Rows that one GPU works on at once, a count. GPU memory grows with it.",
    ),
    "too large": (
        ("validation_share: 0.1", "validation_share: 0.9"),
        "`validation_share` must be at most 0.5, and here it is 0.9.",
        "Share of the rows that training never sees and the validation loss is measured on, 0.001 to 0.5.",
    ),
    "not finite": (
        ("learning_rate: 5.0e-5", "learning_rate: .nan"),
        "This is not a finite number.",
        "Write its digits.",
    ),
    "a wrong choice": (
        ("precision: bf16", "precision: bfloat16"),
        "`precision` cannot be `bfloat16`.",
        "It can be `bf16`, `fp16` or `fp32`. Did you mean `bf16`?",
    ),
    "a restart policy that the cluster would swallow": (
        ("restart_policy: OnFailure", "restart_policy: OnFail"),
        "`restart_policy` cannot be `OnFail`.",
        "It can be `OnFailure`, `Never` or `ExitCode`. Did you mean `OnFailure`?",
    ),
    "a clean-up policy that would delete every pod": (
        ("clean_pod_policy: None", "clean_pod_policy: none"),
        "`clean_pod_policy` cannot be `none`.",
        "It can be `None`, `Running` or `All`. Did you mean `None`?",
    ),
    "a time without its unit": (
        ("time: 30 min", "time: 30"),
        "`time` cannot be `30`.",
        "It must be a number and its unit, s, min, h or d. For example: 5 min",
    ),
    "a name that no pod can have": (
        ("name: survival  ", "name: Survival_1  "),
        "`name` cannot be `Survival_1`.",
        "It must be lower-case letters, digits and `-`, starting with a letter, at most 53 characters.",
    ),
    "a setting in the wrong section": (
        ("cpus: 6 ", "cpus: 6\n  epochs: 4 "),
        "`epochs` is not a setting of `machines`.",
        "It belongs to `train`.",
    ),
    "an unknown scenario": (
        ("scenario: last-layers", "scenario: last-layer"),
        "There is no scenario `last-layer`.",
        None,
    ),
}


@pytest.mark.parametrize("case", WRONG, ids=str)
def test_every_wrong_value_has_its_own_message(edited, case):
    change, message, hint = WRONG[case]
    found = messages(edited(change))
    assert found, "nothing was found wrong"
    if message:
        assert found[0][2] == message
        assert hint is None or found[0][3] == hint
        assert len(found) == 1
    assert all(line > 0 for line, *_ in found)


def test_a_number_like_2e_5_is_a_number(edited):
    recipe, _, _ = load(edited(("learning_rate: 5.0e-5", "learning_rate: 2e-5")))
    assert recipe.train.learning_rate == 2e-5


CONTRADICTIONS = {
    "effective batch size": (
        ("effective_batch_size: 64", "effective_batch_size: 60"),
        "`effective_batch_size` says 60, and the other lines make 64: micro batch 8 × accumulation 2 × 4 GPUs.",
    ),
    "more layers than there are": (
        ("last_layers: 2", "last_layers: 40"),
        "`last_layers` is 40, and `HuggingFaceTB/SmolLM3-3B` has 36 layers.",
    ),
    "a column that is not there": (
        ("question: For [topic], [question]", "question: For [topics], [question]"),
        None,
    ),
    "an open bracket": (
        ("question: For [topic], [question]", "question: For [topic], [question"),
        "`question` opens a bracket and does not close it.",
    ),
    "an unknown model": (
        ("base: HuggingFaceTB/SmolLM3-3B", "base: HuggingFaceTB/SmolLM4-3B"),
        "The model `HuggingFaceTB/SmolLM4-3B` is not in the catalog, and no folder of that name holds a readable `config.json`.",
    ),
    "a sequence longer than the model reads": (
        ("sequence_len: 1024", "sequence_len: 100000"),
        "`HuggingFaceTB/SmolLM3-3B` reads at most 65,536 tokens, and `sequence_len` is 100,000.",
    ),
    "two sources": (
        ("  split: train", "  path: data/survival-sample.jsonl\n  split: train"),
        "`data` has both `path` and `hub`, and only one can be read.",
    ),
    "results on no claim": (
        ("output_dir: /shared/models/survival", "output_dir: /tmp/survival"),
        "`output_dir` `/tmp/survival` lies on none of the claims, so results would be lost with the pods.",
    ),
    "two claims at one mount": (
        ("mount: /shared/workspace", "mount: /shared/models"),
        "Two claims have the mount `/shared/models`.",
    ),
}


@pytest.mark.parametrize("case", CONTRADICTIONS, ids=str)
def test_lines_that_contradict_each_other_are_found(edited, case):
    change, message = CONTRADICTIONS[case]
    found = messages(edited(change))
    assert len(found) == 1
    assert message is None or found[0][2] == message
    assert found[0][0] > 1


def test_a_missing_column_names_those_that_are_there(edited):
    path = edited(("question: For [topic], [question]", "question: For [topics], [question]"))
    (_, _, message, hint), *_ = messages(path)
    assert (
        message
        == f"`question` names the column `topics`, which `{path.parent}/data/survival-sample.jsonl` does not have."
    )
    assert hint == "Did you mean `[topic]`? Its columns are `topic`, `question` and `answer`."


def test_sharding_on_one_gpu_is_a_contradiction(edited):
    path = edited(
        ("distribution: ddp", "distribution: zero2"), ("nodes: 4", "nodes: 1"), ("  effective_batch_size: 64", "  # ")
    )
    assert [m[2] for m in messages(path)] == ["`zero2` shares the work between GPUs, and this recipe has one."]


def test_an_unknown_gpu_is_a_note_and_no_error(edited, recipe_command):
    path = edited(("gpu: NVIDIA-L40S", "gpu: NVIDIA-L40X"))
    done = recipe_command("check", path)
    assert done.returncode == 0
    assert "note: The GPU `NVIDIA-L40X` is not in the catalog" in done.stdout
    assert "Did you mean `NVIDIA-L40`?" in done.stdout
    assert [m[3] for m in messages(edited(("gpu: NVIDIA-L40S", "gpu: l40s")))] == ["Did you mean `NVIDIA-L40S`?"]


def test_axolotl_settings_that_do_not_exist_or_contradict_are_errors(edited):
    path = edited(("demo:  ", "advanced:\n  axolotl:\n    flash_atention: true\ndemo:  "))
    assert [m[2] for m in messages(path)] == ["Axolotl 0.19.0 has no setting `flash_atention`."]
    path = edited(("demo:  ", "advanced:\n  axolotl:\n    num_epochs: 9\ndemo:  "))
    assert [(m[2], m[3]) for m in messages(path)] == [
        (
            "`advanced.axolotl.num_epochs` contradicts the recipe, whose other lines make it `4`.",
            "Delete it, and change `train.epochs` instead.",
        )
    ]


def test_all_problems_come_at_once_and_in_order(edited):
    path = edited(
        ("last_layers: 2", "last_layers: 99"),
        ("lm_head: true", "lm_hed: true"),
        ("validation_share: 0.1", "validation_share: 3"),
        ("cpus: 6 ", "cpus: six "),
    )
    found = messages(path)
    assert [message.split("`")[1] for _, _, message, _ in found] == [
        "last_layers",
        "lm_hed",
        "validation_share",
        "cpus",
    ]
    assert [line for line, *_ in found] == sorted(line for line, *_ in found)


def test_a_refused_setting_causes_no_second_complaint(edited):
    path = edited(("nodes: 4", "nodes: four"))
    assert [m[2] for m in messages(path)] == ["`nodes` must be a whole number, and `four` is text."]


def test_json_has_the_promised_form(edited, recipe_command):
    path = edited(("epochs: 4", "epocs: 4"))
    done = recipe_command("check", path, "--format", "json")
    assert done.returncode == 1
    said = json.loads(done.stdout)
    assert said == {
        "checked": 1,
        "problems": [
            {
                "file": str(path),
                "line": line_of(path, "epocs"),
                "column": 3,
                "message": "`epocs` is not a setting of `train`.",
                "hint": "Did you mean `epochs`?",
            }
        ],
    }


def test_github_annotations_point_at_the_line(edited, recipe_command):
    path = edited(("epochs: 4", "epocs: 4"))
    done = recipe_command("check", path, "--format", "github")
    line = line_of(path, "epocs")
    assert done.stdout == (
        f"::error file={path},line={line},col=3::`epocs` is not a setting of `train`. Did you mean `epochs`?\n"
    )


def test_a_folder_means_every_recipe_below_it(edited, recipe_command):
    path = edited()
    (path.parent / "deep").mkdir()
    (path.parent / "deep" / "other.yaml").write_text("a: 1\n")
    done = recipe_command("check", path.parent)
    assert done.returncode == 1
    assert "2 recipes checked, 1 problem." in done.stdout


def test_a_folder_without_recipes_is_wrong_use(tmp_path, recipe_command):
    done = recipe_command("check", tmp_path)
    assert done.returncode == 2
    assert done.stderr == f"There is no *.yaml file below `{tmp_path}`.\nName a recipe, or a folder that holds some.\n"


def test_a_path_that_is_missing_is_a_problem(tmp_path, recipe_command):
    done = recipe_command("check", tmp_path / "no.yaml")
    assert done.returncode == 1
    assert "no.yaml: There is no such file." in done.stdout


def test_set_is_judged_like_the_file(recipe_command):
    done = recipe_command("check", "recipes/survival.yaml", "--set", "train.epocs=3")
    assert done.returncode == 1
    assert "--set train.epocs=3: `epocs` is not a setting of `train`.\nDid you mean `epochs`?" in done.stdout
    assert recipe_command("check", "recipes/survival.yaml", "--set", "train.epochs=3").returncode == 0
    assert recipe_command("check", "recipes/survival.yaml", "--set", "epochs").returncode == 2


def test_set_wins_over_environment_and_environment_over_the_recipe():
    asked = {"EPOCHS": "7", "NCCL_DEBUG": "WARN"}
    recipe, made, _ = load(ROOT / "recipes" / "survival.yaml", from_options(["train.epochs=9"]), asked)
    assert (recipe.train.epochs, recipe.communication.nccl_debug) == (9, "WARN")
    assert [(change.setting, change.before, change.after) for change in made][-1] == ("train.epochs", 7, 9)


def parquet_copy(edited, tmp_path):
    from datasets import Dataset

    path = edited(
        ("  hub: cahlen/offline-practical-skills-qa-synthetic", "  path: data/rows.parquet #"),
        ("question: For [topic], [question]", "question: For [topics], [question]"),
        ("  sample: data/survival-sample.jsonl", "  # "),
    )
    Dataset.from_list([{"topic": "a", "question": "b", "answer": "c"}]).to_parquet(
        str(tmp_path / "data" / "rows.parquet")
    )
    return path


def test_the_columns_of_a_parquet_file_are_checked_where_pyarrow_is_there(edited, tmp_path):
    path = parquet_copy(edited, tmp_path)
    assert [m[3] for m in messages(path)] == [
        "Did you mean `[topic]`? Its columns are `topic`, `question` and `answer`."
    ]


def test_without_pyarrow_a_parquet_file_is_a_visible_note(edited, tmp_path, monkeypatch):
    import sys

    path = parquet_copy(edited, tmp_path)
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    (note,) = examine(path)
    assert note.severity == "note"
    assert "reading Parquet needs pyarrow, which is not installed, so its columns are not checked." in note.message


@pytest.mark.parametrize(
    ("name", "content", "reason"),
    [
        ("rows.csv", "", "it has no first line with the names of its columns."),
        ("rows.jsonl", "nonsense\n", "its first row is not JSON."),
        ("rows.json", "[[1, 2]]", "its first row is not an object with named columns."),
        ("rows.jsonl", "", "it is empty."),
        (
            "rows.csv",
            "question;answer\na;b\n",
            "Semicolons stand between its columns, and a CSV file has commas there.",
        ),
    ],
)
def test_a_data_file_that_cannot_be_read_is_found_by_check(edited, tmp_path, name, content, reason):
    path = edited(("  hub: cahlen/offline-practical-skills-qa-synthetic", f"  path: data/{name} #"))
    (tmp_path / "data" / name).write_text(content)
    assert [m[2] for m in messages(path)] == [f"`{tmp_path}/data/{name}` cannot be read: {reason}"]


def test_a_csv_of_ones_own_needs_only_the_data_section_changed(edited, tmp_path):
    path = edited(
        ("  hub: cahlen/offline-practical-skills-qa-synthetic", "  path: data/mine.csv #"),
        ("question: For [topic], [question]", "question: '[Frage]'"),
        ('answer: "[answer]"', 'answer: "[Antwort]"'),
        ("  sample: data/survival-sample.jsonl", "  # "),
    )
    (tmp_path / "data" / "mine.csv").write_text("Frage,Antwort\nWarum?,Darum.\n")
    assert messages(path) == []
