"""Thinking on and off: this year's families are trained behind the words with which their own chat
templates ask them. TRL and Axolotl have copies of these templates."""

from __future__ import annotations

from pathlib import Path

import pytest

from runner import catalog
from runner.check.validate import examine
from runner.data import tokenizers
from runner.parts.proof.judging import Faults, Reader
from runner.recipe.overrides import from_options
from runner.recipe.recipe import CONVERSATIONS
from runner.scenarios.shared.axolotl import datasets
from tests.conftest import ROOT

ASKED = {"role": "user", "content": "What floats?"}
SYSTEM = {"role": "system", "content": "You are patient."}
ANSWER = {"role": "assistant", "content": "Wood floats."}
SECOND = [{"role": "user", "content": "And what sinks?"}, {"role": "assistant", "content": "Iron."}]
THOUGHTS = "Wood is lighter than water."
# The hub's templates of Qwen3.5 from 4B on and below, and of Qwen3.6.
QWEN = ("qwen3_5_think", "qwen3_5_nothink", "qwen3_6")


def trl_template(name: str) -> str:
    import trl

    return (Path(trl.__file__).parent / "chat_templates" / f"{name}.jinja").read_text("utf-8")


def rendered(template: str, messages: list, **options: object) -> str:
    from transformers.utils.chat_template_utils import _compile_jinja_template

    return _compile_jinja_template(template).render(messages=messages, **options)


def written(name: str, messages: list) -> str:
    marks = catalog.chat_template(name)
    return marks.conversation((turn["role"], turn["content"]) for turn in messages)


@pytest.mark.parametrize("file", QWEN)
def test_without_thoughts_qwen_is_trained_as_its_own_template_asks_without_thinking(file):
    own = trl_template(file)
    marks = catalog.chat_template("qwen-3-5")
    for messages in ([ASKED, ANSWER], [SYSTEM, ASKED, ANSWER]):
        assert written("qwen-3-5", messages) == rendered(own, messages)
        asked = rendered(own, messages[:-1], add_generation_prompt=True, enable_thinking=False)
        assert written("qwen-3-5", messages[:-1]) + marks.reply == asked
    # Their own leaves out the empty thoughts of earlier answers, TRL's for training does not.
    several = [SYSTEM, ASKED, ANSWER, *SECOND]
    assert written("qwen-3-5", several) == rendered(trl_template(f"{file}_training"), several)


def test_gemma_is_trained_as_its_own_template_asks_without_thinking():
    """Its template writes the empty thought only when it asks."""
    from axolotl.utils.chat_templates import get_chat_template

    own = get_chat_template("gemma4")
    marks = catalog.chat_template("gemma-4")
    empty_thought = "<|channel>thought\n<channel|>"
    for messages in ([ASKED, ANSWER], [SYSTEM, ASKED, ANSWER, *SECOND]):
        whole = rendered(own, messages, bos_token="<bos>")
        assert written("gemma-4", messages).replace(empty_thought, "") == whole
        asked = rendered(own, messages[:-1], bos_token="<bos>", add_generation_prompt=True)
        behind_earlier = written("gemma-4", messages[:-1]).replace(empty_thought, "")
        assert behind_earlier + marks.reply == asked


def test_llama_is_trained_as_its_own_template_writes():
    from axolotl.utils.chat_templates import get_chat_template

    own = get_chat_template("llama4")
    messages = [SYSTEM, ASKED, ANSWER, *SECOND]
    assert written("llama-4", messages) == rendered(own, messages, bos_token="<|begin_of_text|>")


def test_glm_is_trained_as_its_own_template_asks_without_thinking():
    """Its template ends no answer, the training does."""
    own = trl_template("glm4moe")
    marks = catalog.chat_template("glm-4-5")
    for messages in ([ASKED, ANSWER], [SYSTEM, ASKED, ANSWER, *SECOND]):
        whole = rendered(own, messages, enable_thinking=False)
        assert written("glm-4-5", messages).replace(marks.end, "") == whole
        asked = rendered(own, messages[:-1], add_generation_prompt=True, enable_thinking=False)
        behind_earlier = written("glm-4-5", messages[:-1]).replace(marks.end, "")
        assert behind_earlier + marks.reply == f"{asked}\n"


def test_a_model_with_chatmls_tokens_may_be_trained_with_chatml():
    path = ROOT / "recipes" / "minimal" / "lora.yaml"
    for base, refused in (("Qwen/Qwen3.5-4B", False), ("google/gemma-4-E4B-it", True)):
        sets = from_options([f"model.base={base}", "data.chat_template=chatml"])
        errors = [one for one in examine(path, sets) if one.severity == "error"]
        assert bool(errors) is refused


def judged(file: str, thoughts: str, folder: Path) -> tuple[str, str, list]:
    """A row as Axolotl renders it by the model's own template, what is trained of it, and the kinds
    of faults that the proof finds."""
    from axolotl.prompt_strategies import load as strategy
    from axolotl.utils.dict import DictDefault

    marks = catalog.chat_template("qwen-3-5")
    texts = [THOUGHTS, ASKED["content"], ANSWER["content"]]
    model = catalog.model("Qwen/Qwen3.5-4B")
    tokenizer = tokenizers.train(texts, folder, model, marks, 600)
    tokenizer.chat_template = trl_template(file)
    row = {"messages": [ASKED, {**ANSWER, "reasoning_content": thoughts} if thoughts else ANSWER]}
    data = datasets("", CONVERSATIONS)["datasets"][0]
    settings = {"chat_template": "tokenizer_default", "sequence_len": 512, "datasets": [data]}
    cfg = DictDefault({**settings, "eot_tokens": [marks.end]})
    made = strategy("chat_template", tokenizer, cfg, DictDefault(data)).tokenize_prompt(row)
    trained = [token for token in made["labels"] if token != -100]
    ends = frozenset(tokenizer.convert_tokens_to_ids([tokenizer.eos_token, marks.end]))
    reader = Reader(tokenizer, frozenset(data["roles_to_train"]), None, ends)
    faults = Faults()
    reader.judge(made["input_ids"], made["labels"], reader.talk(row, "messages"), faults)
    kinds = [fault["kind"] for fault in faults]
    return tokenizer.decode(made["input_ids"]), tokenizer.decode(trained), kinds


@pytest.mark.parametrize("file", QWEN)
def test_rows_with_thoughts_are_rendered_by_the_models_own_template(file, tmp_path):
    whole, trained, faults = judged(file, THOUGHTS, tmp_path)
    row = [ASKED, {**ANSWER, "reasoning_content": THOUGHTS}]
    assert whole == rendered(trl_template(file), row)
    assert trained == f"{THOUGHTS}\n</think>\n\nWood floats.<|im_end|>"
    # Small ones are asked without thinking, so answers that begin with thoughts are a fault.
    assert faults == (["prompt_differs"] if file == "qwen3_5_nothink" else [])


@pytest.mark.parametrize("file", QWEN)
def test_rows_without_thoughts_are_a_fault_where_the_own_template_asks_with_thinking(
    file, tmp_path
):
    """So `chat_template: auto` does not use it."""
    _, trained, faults = judged(file, "", tmp_path)
    assert trained == "Wood floats.<|im_end|>"
    assert faults == ([] if file == "qwen3_5_nothink" else ["prompt_differs"])
