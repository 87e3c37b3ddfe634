"""One mistake, one message, at the line where it was made and in the words of whoever made it."""

from __future__ import annotations

import shutil

import pytest

from runner.catalog import tables
from runner.catalog.tables import table
from runner.check import by_schema
from runner.check.validate import examine
from runner.recipe.overrides import from_options
from tests.conftest import ROOT

RECIPES = ROOT / "recipes"
SURVIVAL, SEVEN_B, GEMMA = "survival", "seven-b", "gemma"
TASK = "seven-b", "tasks: [hellaswag]"

# A starter, a piece of it, what a person makes of that, how the line begins that is named, and
# words of what is said.
MISTAKES = [
    (SURVIVAL, "\ntrain: ", "\n#train: ", "#train:", "is commented out"),
    (SURVIVAL, "\ntrain: ", "\n# train: ", "# train:", "they belong to `model`"),
    (SURVIVAL, "\nmodel: ", "\n#model: ", "#model:", "is commented out"),
    (SURVIVAL, "\ndata: ", "\n# data: ", "# data:", "they belong to `train`"),
    (SURVIVAL, "\ndemo: ", "\n#demo: ", "#demo:", "they belong to `openshift`"),
    (SEVEN_B, "\nstages: ", "\n#stages: ", "#stages:", "is commented out"),
    (
        SEVEN_B,
        "    data:                             # questions and",
        "    #data:     # questions and",
        "#data:",
        "is commented out",
    ),
    (
        SURVIVAL,
        "\ntrain:                                # what to train, and how",
        "",
        "last_layers:",
        "Write `train:` above",
    ),
    (SURVIVAL, "  epochs: 4", "epochs: 4", "epochs: 4", "Indent it by 2 spaces."),
    (SURVIVAL, "  queue: default", "queue: default", "queue: default", "Indent it by 2 spaces."),
    (
        SURVIVAL,
        "    - How do I treat",
        "- How do I treat",
        "- How do I treat",
        "Indent it by 4 spaces.",
    ),
    (SURVIVAL, "  questions:  ", "questions:  ", "questions:", "It belongs to `demo`."),
    (
        SURVIVAL,
        "    - name: trained",
        "      name: trained",
        "name: trained",
        "Write `- name: trained-models-pvc`",
    ),
    (
        SURVIVAL,
        "    - name: workspace",
        "      name: workspace",
        "name: workspace",
        "write `- name:`",
    ),
    (
        SURVIVAL,
        "    - How do I treat",
        "      How do I treat",
        "How do I treat",
        "Write `- How do I treat a minor burn?`",
    ),
    (
        SURVIVAL,
        "    - How do I tie",
        "      How do I tie",
        "How do I tie",
        "Write `- How do I tie a bowline",
    ),
    (SURVIVAL, "scenario: last", "scenarios: last", "scenarios:", "Did you mean `scenario`?"),
    (*TASK, "tasks: [helaswag]", "tasks: [helaswag]", "Write `hellaswag`."),
    (*TASK, "tasks: [hellaswag, arc-easy]", "tasks: [hellaswag, arc-easy]", "Write `arc_easy`"),
    (SURVIVAL, "\nmodel:", "\nModel:", "Model:", "Did you mean `model`?"),
    (SURVIVAL, "\nopenshift:", "\ncluster:", "cluster:", "Here it is called `openshift`."),
    (
        SURVIVAL,
        "    - name: workspace",
        "    -name: workspace",
        "-name: workspace",
        "Write `- name:`.",
    ),
    (
        SURVIVAL,
        "learning_rate: 5.0e-5",
        "learning_rate: 5e\u22125",
        "learning_rate: 5",
        "another character: 5e-5",
    ),
    (SURVIVAL, "name: survival", "name: [survival]", "name: [survival]", "`name: survival`"),
    (SURVIVAL, 'answer: "[answer]"', 'answer: ["[answer]"]', "answer:", '`answer: "[answer]"`'),
    (SURVIVAL, "name: survival ", "name: 3.10 ", "name: 3.10", "cannot be `3.10`"),
    (
        SURVIVAL,
        "revision: main ",
        "revision: 3.10 ",
        "revision: 3.10",
        'Put quotes around it: "3.10".',
    ),
    (
        SURVIVAL,
        "treat a minor",
        "treat: a minor",
        "- How do I treat: a",
        'whole text: "How do I treat: a minor burn?"',
    ),
    (
        SURVIVAL,
        "- How do I treat",
        '- "How" do I treat',
        '- "How"',
        "whole text: '\"How\" do I treat a minor burn?'",
    ),
    (
        SURVIVAL,
        "question: For [topic], [question]",
        "question: 'What's [question]'",
        "question: 'W",
        "whole text: \"What's",
    ),
    (SURVIVAL, "gpu_memory: 45 GB", "gpu_memory: 20gb", "gpu_memory: 20gb", "Write `20 GB`."),
    (SURVIVAL, "time: 75 min", "time: 75 minutes", "time: 75", "Write `75 min`."),
    (
        SURVIVAL,
        "size_gib: 50",
        "size_gib: 20GB",
        "size_gib: 20GB",
        "Write the number without `GB`: 20",
    ),
    (
        SURVIVAL,
        "learning_rate: 5.0e-5",
        "learning_rate: 0,0002",
        "learning_rate: 0,0002",
        "a decimal point instead of the comma: 0.0002",
    ),
    (
        SURVIVAL,
        "mount: /shared/models  ",
        "mount: /  ",
        "mount: /",
        "names a folder and has no `:`. For example: /shared/models",
    ),
    (GEMMA, "gpus: [2, 3]", "gpus: 2,3", "gpus: 2,3", "`gpus: [2, 3]`"),
    (GEMMA, "gpus: [2, 3]", "gpus: 2", "gpus: 2", "`gpus: [2]`"),
    (GEMMA, "gpus: [2, 3]", "gpus: [2 3]", "gpus: [2 3]", "[2, 3]"),
    (
        SURVIVAL,
        "sequence_len: 1024",
        "sequence_len: 1k",
        "sequence_len: 1k",
        "Write all its digits: 1000, or 1024",
    ),
    (
        SURVIVAL,
        "base: ",
        "base: https://huggingface.co/",
        "base: https",
        "the name alone: `HuggingFaceTB/SmolLM3-3B`.",
    ),
    (
        SURVIVAL,
        "hub: ",
        "hub: https://hf.co/datasets/",
        "hub: https",
        "`cahlen/offline-practical-skills-qa-synthetic`.",
    ),
    (
        SURVIVAL,
        "base: HuggingFaceTB/SmolLM3-3B",
        "base: ./data/nothing",
        "base: ./data",
        "There is no folder",
    ),
    (
        SURVIVAL,
        "base: HuggingFaceTB/SmolLM3-3B",
        "base: ./dta",
        "base: ./dta",
        "Did you mean `./data`?",
    ),
    (
        SURVIVAL,
        "base: HuggingFaceTB/SmolLM3-3B",
        "base: data",
        "base: data",
        "has no readable `config.json`",
    ),
    (
        SURVIVAL,
        "base: HuggingFaceTB/SmolLM3-3B",
        "base: smollm3",
        "base: smollm3",
        "`HuggingFaceTB/SmolLM3-3B`?",
    ),
]


@pytest.fixture(scope="module")
def recipes(tmp_path_factory):
    folder = tmp_path_factory.mktemp("mistakes") / "recipes"
    shutil.copytree(RECIPES, folder)
    return folder


@pytest.mark.parametrize(
    ("starter", "before", "after", "line", "words"),
    MISTAKES,
    ids=lambda value: str(value)[:40].strip(),
)
def test_one_mistake_is_one_message_at_its_line(starter, before, after, line, words, recipes):
    text = (RECIPES / f"{starter}.yaml").read_text("utf-8")
    file = recipes / f"{starter}-mine.yaml"
    file.write_text(text.replace(before, after, 1), encoding="utf-8")
    assert file.read_text("utf-8") != text
    (found,) = [
        one for one in examine(file) if starter != GEMMA or one.severity == "error"
    ]  # its two notes are its own
    assert found.source.strip().startswith(line), str(found)
    assert words in f"{found.message} {found.hint}", str(found)


def test_what_a_file_lacks_is_said_once(tmp_path):
    file = tmp_path / "short.yaml"
    file.write_text("scenario: last-layers\n")
    (found,) = examine(file)
    assert found.message == "The recipe lacks `name`, `model`, `data` and `machines`."
    added = [line.partition(":")[0] for line in found.hint.splitlines()]
    assert added == ["Add `name`", "Add `model`", "Add `data`", "Add `machines`"]


@pytest.mark.parametrize(
    ("starter", "section", "theirs", "ours"),
    [
        (SURVIVAL, "train", "lr", "learning_rate"),
        (SURVIVAL, "train", "batch_size", "micro_batch_size"),
        (SURVIVAL, "train", "num_train_epochs", "epochs"),
        (SURVIVAL, "train", "per_device_train_batch_size", "micro_batch_size"),
        (SURVIVAL, "model", "max_seq_length", "sequence_len"),
        ("lyrics", "train", "r", "lora_rank"),
        (SEVEN_B, "stages.3.train", "r", "lora_rank"),
        (SURVIVAL, "model", "lr", "learning_rate`, and it belongs to `train"),
    ],
)
def test_other_tools_names_of_settings_are_known(starter, section, theirs, ours):
    found = examine(RECIPES / f"{starter}.yaml", from_options((f"{section}.{theirs}=1",)))
    assert [one.hint for one in found if f"`{theirs}`" in one.message] == [
        f"Here it is called `{ours}`."
    ]


def test_what_is_no_whole_number_is_not_too_small_as_well():
    (found,) = examine(
        RECIPES / f"{SEVEN_B}.yaml", from_options(("stages.3.train.lora_alpha=0.5",))
    )
    assert found.message == "`lora_alpha` must be a whole number, but 0.5 is not."


def test_every_synonym_means_settings_and_commands_that_there_are():
    from runner import scenarios
    from runner.check.schema_errors import settings
    from runner.commands.cli import commands

    COMMANDS = list(commands())

    names = {
        path[-1]
        for scenario in scenarios.names()
        for path, _ in settings(by_schema.schema(scenario))
    }
    words = table("synonyms")
    assert {meant for several in words["settings"].values() for meant in several} <= names
    assert set(words["commands"].values()) <= set(COMMANDS) and not set(words["commands"]) & set(
        COMMANDS
    )
    assert (
        tables.setting_called("Learning-Rate", names) is None
        and tables.setting_called("LR", names) == "learning_rate"
    )


@pytest.mark.parametrize(
    ("theirs", "ours"), [("validate", "check"), ("train", "run"), ("init", "new")]
)
def test_other_tools_names_of_commands_are_known(theirs, ours, capsys):
    from runner.commands import cli

    assert cli._code([theirs, "x.yaml"]) == 2
    assert f"There is no command `{theirs}`. Did you mean `{ours}`?" in capsys.readouterr().err
