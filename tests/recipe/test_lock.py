"""Models outside the catalog: written down from a hub played on this machine or from a folder, and
read without either."""

from __future__ import annotations

import json
import os
import re
import shutil

import pytest

from runner import catalog
from runner.check.validate import examine, judge, load
from runner.recipe import lock
from runner.recipe.reading import parse
from runner.tools.problem import Stop
from tests.conftest import ROOT, setting_of
from tests.hub import COMMIT, Hub, Repository

pytestmark = pytest.mark.heavy

LYRICS = (ROOT / "recipes" / "lyrics.yaml").read_text("utf-8")
NAME = "someone/fine-llama"
CONFIG = {
    "model_type": "llama",
    "hidden_size": 2048,
    "intermediate_size": 8192,
    "num_hidden_layers": 16,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "vocab_size": 128264,
    "max_position_embeddings": 8192,
    "tie_word_embeddings": True,
}
WORDS = {
    "eos_token": {"content": "<|im_end|>", "special": True},
    "bos_token": "<|begin_of_text|>",
    "chat_template": "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}",
}
FILES = {
    "config.json": json.dumps(CONFIG).encode(),
    "tokenizer_config.json": json.dumps(WORDS).encode(),
    "model.safetensors": b"weights, which nobody is to fetch",
}


@pytest.fixture(scope="module")
def hub():
    return Hub(models=dict.fromkeys((NAME, "someone/other"), FILES))


@pytest.fixture
def add(recipe_command, tmp_path, hub):
    """Runs `recipe models ADD…` against the hub played here, in an empty folder."""

    def run(*arguments, hub=hub, **env):
        return recipe_command(
            "models",
            *arguments,
            cwd=tmp_path,
            env={"HF_HOME": str(tmp_path / "hf"), "HF_ENDPOINT": hub.url, "HF_TOKEN": "", **env},
        )

    return run


def recipe_for(folder, base: str, *more: tuple[str, str]):
    """The lyrics recipe with another base model, in `folder`."""
    text = re.sub(r"base: \S+", f"base: {base}", LYRICS, count=1).replace(
        "  sample: data", "  # sample: data"
    )
    for old, new in more:
        text = text.replace(old, new, 1)
    (folder / "my.yaml").write_text(text, encoding="utf-8")
    return folder / "my.yaml"


def test_a_model_of_the_hub_is_written_down_without_its_weights_and_then_needs_no_network(
    add, hub, recipe_command, tmp_path, golden_message
):
    recipe = recipe_for(tmp_path, NAME)
    offline = {"HF_HOME": str(tmp_path / "nothing"), "HF_HUB_OFFLINE": "1"}
    before = recipe_command("check", recipe, env=offline)
    assert before.returncode == 1 and f"recipe models add {NAME}" in before.stdout + before.stderr
    hub.downloaded.clear()
    done = add("--recipe", "my.yaml", "add", NAME)
    assert done.returncode == 0, done.stderr
    golden_message(done.stdout)
    assert hub.downloaded == ["config.json", "tokenizer_config.json"]
    golden_message((tmp_path / lock.LOCK).read_text("utf-8"), "the file")
    for command in (("check",), ("plan",), ("render", "--out", tmp_path / "out")):
        done = recipe_command(command[0], recipe, *command[1:], env=offline)
        assert done.returncode == 0, done.stderr + done.stdout
    facts = load(recipe)[0].model_facts
    assert (facts.revision, facts.head_dim, facts.chat_template, facts.eos_token) == (
        COMMIT,
        64,
        "chatml",
        "<|im_end|>",
    )
    assert facts.pad_token == "<|im_end|>" and facts.linear[0] == "q_proj"
    # The commit is what the cluster fetches and trains.
    assert COMMIT in "".join(file.read_text("utf-8") for file in (tmp_path / "out").rglob("*.json"))
    shown = recipe_command("models", "--recipe", recipe).stdout
    assert re.search(rf"^{NAME} +1\.24B +- +8,192 .*{lock.LOCK}$", shown, re.MULTILINE)
    assert re.search(
        r"^Qwen/Qwen3-8B +8\.19B +2025 +40,960 +L4 +L4 .*apache-2\.0 +catalog$", shown, re.MULTILINE
    )


def test_a_render_is_the_same_with_and_without_a_cache(add, tmp_path, recipe_command):
    recipe = recipe_for(tmp_path, NAME)
    assert add("add", NAME).returncode == 0
    for home in ("hf", "nothing"):
        env = {"HF_HOME": str(tmp_path / home), "HF_HUB_OFFLINE": "1"}
        assert (
            recipe_command("render", recipe, "--out", tmp_path / f"out-{home}", env=env).returncode
            == 0
        )
    texts = [
        {
            path.relative_to(tmp_path / out): path.read_text("utf-8")
            for path in sorted((tmp_path / out).rglob("*.*"))
        }
        for out in ("out-hf", "out-nothing")
    ]
    assert texts[0] and texts[0] == texts[1]


def test_a_folder_is_written_down_under_the_name_that_the_recipe_has_for_it(add, tmp_path):
    folder = tmp_path / "mine"
    folder.mkdir()
    for name in ("config.json", "tokenizer_config.json"):
        (folder / name).write_bytes(FILES[name])
    recipe = recipe_for(tmp_path, "mine", ("hub: rajtripathi/5M-Songs-Lyrics", "path: songs.jsonl"))
    (tmp_path / "songs.jsonl").write_text('{"Instruction": "", "Label": ""}\n', encoding="utf-8")
    there = load(recipe)[0]
    done = add("add", "mine")
    assert done.returncode == 0, done.stderr
    here = load(recipe)[0]
    assert here.base_folder == there.base_folder == folder
    assert (here.model_facts.chat_template, here.model_facts.revision) == ("chatml", "")
    shutil.rmtree(folder)
    # A machine that has not the folder knows the model all the same, and says so.
    (note,) = [
        note for note in examine(tmp_path / "my.yaml") if "not on this machine" in note.message
    ]
    assert (note.severity, setting_of(note)) == ("note", "base")
    assert load(recipe)[0].model_facts == here.model_facts


def test_a_folder_that_holds_another_model_than_was_written_down_is_named_at_its_line(
    add, tmp_path, golden_message
):
    """Estimates, layers and rows would be those of the old one."""
    folder = tmp_path / "mine"
    folder.mkdir()
    for name in ("config.json", "tokenizer_config.json"):
        (folder / name).write_bytes(FILES[name])
    recipe = recipe_for(tmp_path, "mine", ("hub: rajtripathi/5M-Songs-Lyrics", "path: songs.jsonl"))
    (tmp_path / "songs.jsonl").write_text('{"Instruction": "", "Label": ""}\n', encoding="utf-8")
    assert add("add", "mine").returncode == 0
    errors = [problem for problem in examine(recipe) if problem.severity == "error"]
    assert errors == []
    for changed in (
        {**CONFIG, "hidden_size": 4096, "tie_word_embeddings": False},
        {"model_type": "llama"},
    ):
        (folder / "config.json").write_text(json.dumps(changed), encoding="utf-8")
        (problem,) = [problem for problem in examine(recipe) if problem.severity == "error"]
        assert setting_of(problem) == "base"
        golden_message(
            f"{problem.message}\n{problem.hint}".replace(str(tmp_path), "<tmp>"), str(len(changed))
        )
    # Whoever asks after a job need not have the folder as it was.
    assert load(recipe, look=False)[0].base_folder == folder
    (folder / "config.json").write_text(
        json.dumps({**CONFIG, "hidden_size": 4096}), encoding="utf-8"
    )
    assert add("add", "mine", "--recipe", str(recipe)).returncode == 0
    assert [problem for problem in examine(recipe) if problem.severity == "error"] == []


def test_a_model_on_a_claim_is_written_down_from_a_copy_of_its_small_files(
    add, tmp_path, golden_message
):
    done = add("add", "/shared/models/mine")
    assert done.returncode == 1
    golden_message(done.stderr)
    (tmp_path / "copied").mkdir()
    (tmp_path / "copied" / "config.json").write_bytes(FILES["config.json"])
    assert add("add", "copied", "--as", "/shared/models/mine").returncode == 0
    recipe = load(recipe_for(tmp_path, "/shared/models/mine"))[0]
    assert recipe.model_facts.hidden_size == 2048
    assert not [name for name, _ in recipe.local_files() if name == "model.base"]


@pytest.mark.parametrize(
    "wrong",
    [{"hidden_size": "wide", "head_dim": 64}, {"num_attention_heads": 0}, {"vocab_size": None}],
)
def test_a_config_that_makes_no_sense_is_not_written_down(wrong, add, tmp_path):
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "config.json").write_text(json.dumps(CONFIG | wrong), encoding="utf-8")
    done = add("add", "mine")
    assert done.returncode == 1 and "config.json" in done.stderr and "bug" not in done.stderr, (
        done.stderr
    )
    assert not (tmp_path / lock.LOCK).exists()


def test_a_second_model_leaves_the_first_as_it_is(add, tmp_path):
    assert add("add", NAME).returncode == 0
    first = lock.entries(tmp_path / lock.LOCK)
    assert add("add", "someone/other").returncode == 0
    both = lock.entries(tmp_path / lock.LOCK)
    assert both[NAME] == first[NAME] and set(both) == {NAME, "someone/other"}


@pytest.mark.parametrize(
    ("name", "answer"),
    [
        ("Qwen/Qwen3-8B", "catalog"),
        ("no such name", "neither a folder"),
        ("mistralai/Mistral-Small-4-119B-2603", "cannot train"),
    ],
)
def test_what_needs_no_lock_or_can_have_none_is_said(add, name, answer, golden_message):
    config = b'{"model_type": "mistral4", "text_config": {}}'
    images = Hub(models={"mistralai/Mistral-Small-4-119B-2603": FILES | {"config.json": config}})
    done = add("add", name, hub=images)
    assert done.returncode == 1 and answer in done.stderr and "Traceback" not in done.stderr
    golden_message(done.stderr)


def test_a_gated_model_a_dataset_an_unknown_name_and_no_network_are_told_apart(
    add, tmp_path, golden_message
):
    name = "meta-llama/Llama-3.2-1B-Instructed"
    cases = {
        "gated": (Hub(models={name: Repository(FILES, gated=True)}), {}),
        "unknown": (Hub(), {}),
        "a data set.": (Hub(datasets={name: {}}), {}),
        "no hub": (Hub(), {"HF_ENDPOINT": "http://127.0.0.1:9"}),
        "offline": (Hub(), {"HF_HUB_OFFLINE": "1"}),
        "too many requests": (Hub(busy=True), {}),
        "renamed": (
            Hub(models={"meta-llama/Llama": FILES}, renamed={name: "meta-llama/Llama"}),
            {},
        ),
    }
    for case, (other, env) in cases.items():
        done = add("add", name, hub=other, **env)
        assert done.returncode == 1 and "Traceback" not in done.stderr, (case, done.stderr)
        golden_message(done.stderr.replace(other.url, "<hub>"), case)
    assert not (tmp_path / lock.LOCK).exists()


BROKEN = {
    "no yaml": ("source:", "source: [", "source:"),
    "a size in words": ("hidden_size: 2048", "hidden_size: two", "hidden_size:"),
    "a size below 1": ("head_dim: 64", "head_dim: -64", "head_dim:"),
    "more layers than any": (
        "num_hidden_layers: 16",
        "num_hidden_layers: 16000000",
        "num_hidden_layers:",
    ),
    "heads that do not fit": (
        "num_key_value_heads: 8",
        "num_key_value_heads: 7",
        "num_key_value_heads:",
    ),
    "a name that is no setting": ("vocab_size:", "vocabsize:", "vocabsize:"),
    "what is counted": ("hidden_size:", "parameters: 3\n    hidden_size:", "parameters:"),
    "a short commit": (COMMIT, COMMIT[:7], "revision:"),
    "no template": ('chat_template: "chatml"', "chat_template: mine", "chat_template:"),
    "another branch": ('branch: "main"', 'branch: "v2"', "branch:"),
    "one line alone": ("    source", "    # source", f'"{NAME}":'),
}


@pytest.mark.parametrize("case", BROKEN)
def test_a_lock_that_is_broken_ends_at_its_line_with_what_to_do(
    case, tmp_path, add, golden_message
):
    assert add("add", NAME).returncode == 0
    file = tmp_path / lock.LOCK
    old, new, where = BROKEN[case]
    text = file.read_text("utf-8")
    assert text.count(old) >= 1
    file.write_text(text.replace(old, new, 1), encoding="utf-8")
    recipe = recipe_for(tmp_path, NAME)
    problems = [
        one
        for one in judge(parse(str(recipe), recipe.read_text("utf-8")))[1]
        if one.severity == "error"
    ]
    assert {one.file for one in problems} == {str(file)}
    assert where in problems[0].source and all(one.hint for one in problems)
    golden_message(problems)


@pytest.mark.parametrize("text", ["", "models: 3\n", "- a\n", "models:\n  someone/fine-llama: 3\n"])
def test_a_file_that_is_no_lock_is_no_traceback(text, tmp_path):
    (tmp_path / lock.LOCK).write_text(text, encoding="utf-8")
    recipe = recipe_for(tmp_path, NAME)
    with pytest.raises(Stop) as stop:
        load(recipe)
    assert {one.file for one in stop.value.problems} == {str(tmp_path / lock.LOCK)}
    assert "recipe new" not in stop.value.text and "models add" in stop.value.text


def test_the_catalog_is_looked_at_before_the_lock(tmp_path):
    (tmp_path / lock.LOCK).write_text("nonsense: [", encoding="utf-8")
    recipe = load(recipe_for(tmp_path, "Qwen/Qwen3-8B"))[0]
    assert recipe.model_facts == catalog.model("Qwen/Qwen3-8B")


def test_a_copy_of_a_recipe_takes_its_models_entry_along(add, tmp_path, recipe_command):
    recipe_for(tmp_path, NAME)
    assert add("add", NAME).returncode == 0 and add("add", "someone/other").returncode == 0
    (tmp_path / "elsewhere").mkdir()
    done = recipe_command("new", "copy", "--from", tmp_path / "my.yaml", cwd=tmp_path / "elsewhere")
    assert done.returncode == 0, done.stderr
    assert f"{lock.LOCK}: also copied" in done.stdout
    assert set(lock.entries(tmp_path / "elsewhere" / lock.LOCK)) == {NAME}
    env = {"HF_HOME": str(tmp_path / "nothing"), "HF_HUB_OFFLINE": "1"}
    assert (
        recipe_command(
            "check", tmp_path / "elsewhere" / "copy.yaml", env=os.environ | env
        ).returncode
        == 0
    )
