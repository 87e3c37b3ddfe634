"""Models that also see, trained on text: they speak as their half for text does, their loss is that
of a language model, an adapter stays within that half, and nothing else is trained."""

from __future__ import annotations

import json
import re
from dataclasses import replace

import pytest

from runner import catalog
from runner.check.validate import judge
from runner.parts.planner import memory, parameters
from runner.parts.planner.parameters import has_formulas
from runner.parts.planner.trace.tracing import trace
from runner.parts.planner.workload import Adapter, Workload
from runner.plan import Machines, Place
from runner.recipe.overrides import apply, from_options
from runner.recipe.reading import parse
from runner.scenarios import place, translate
from runner.scenarios.language.translation import in_text, text_parameters
from runner.scenarios.shared import twin
from runner.tools.model_classes import language_class_of
from runner.tools.process import without_gpu_kernels
from tests.conftest import ROOT

LORA = (ROOT / "recipes" / "minimal" / "lora.yaml").read_text("utf-8")
OURS = "microsoft/Phi-4-mini-instruct"
# The first model of each type, by the types of both halves.
SEEING = {}
for name in reversed(catalog.model_ids()):
    facts = catalog.model(name)
    if facts.sees:
        SEEING[facts.model_type, facts.text_type] = name
MODELS = sorted(SEEING.values())


@pytest.fixture(params=MODELS)
def tiny(request, tmp_path):
    """The facts of a model, and its twin as the class with the parts that see."""
    without_gpu_kernels()
    facts = catalog.model(request.param)
    twin.bare(replace(facts, vocab_size=256), tmp_path)
    model = language_class_of(str(tmp_path), False).from_pretrained(str(tmp_path))
    return facts, model


def of_text(facts, model):
    """The half for text, as its own class."""
    from transformers import AutoModelForCausalLM
    from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

    config = model.config.get_text_config()
    if config.model_type in MODEL_FOR_CAUSAL_LM_MAPPING_NAMES:
        text = AutoModelForCausalLM.from_config(config)
    else:
        text = body_with_head(config)
    weights = {}
    for name, weight in model.state_dict().items():
        if name.startswith(f"{facts.root}."):
            weights[f"model.{name.removeprefix(facts.root + '.')}"] = weight
        elif name == facts.lm_head:
            weights["lm_head.weight"] = weight
    missing, unknown = text.load_state_dict(weights, strict=False)
    assert not missing and not unknown
    return text


def body_with_head(config):
    """A language model of a half for text that transformers has without an LM head (GLM-4.6V)."""
    from torch import nn
    from transformers import AutoModel
    from transformers.loss.loss_utils import ForCausalLMLoss
    from transformers.modeling_outputs import CausalLMOutput

    class BodyWithHead(nn.Module):
        def __init__(self):
            super().__init__()
            self.model = AutoModel.from_config(config)
            self.lm_head = nn.Linear(config.hidden_size, config.vocab_size, bias=False)

        def forward(self, input_ids, labels=None):
            logits = self.lm_head(self.model(input_ids=input_ids).last_hidden_state)
            loss = None
            if labels is not None:
                loss = ForCausalLMLoss(logits, labels, config.vocab_size)
            return CausalLMOutput(loss=loss, logits=logits)

    return BodyWithHead()


def rows():
    import torch

    torch.manual_seed(1)
    return torch.randint(5, 250, (4, 24))


def test_both_classes_say_the_same(tiny):
    import torch

    facts, model = tiny
    text = of_text(facts, model)
    with torch.no_grad():
        with_parts_that_see = model.eval()(input_ids=rows()).logits
        assert torch.equal(with_parts_that_see, text.eval()(input_ids=rows()).logits)
    seeing = {name for name, _ in model.named_parameters() if facts.is_of_tower(name)}
    assert seeing and not [name for name, _ in text.named_parameters() if "vision" in name]


def test_its_loss_is_one_mean_over_the_tokens_of_a_step(tiny):
    import inspect

    import torch

    from runner.trainer import seeing

    facts, model = tiny
    text = of_text(facts, model)
    labels = rows()
    labels[0, :20] = -100
    takes = inspect.signature(model.forward)
    seeing.compute_loss_as_for_text(model, fused=False)
    assert inspect.signature(model.forward) == takes and model.accepts_loss_kwargs
    trained = (labels[:, 1:] != -100).sum()
    with torch.no_grad():
        whole = model(input_ids=rows(), labels=labels, num_items_in_batch=trained).loss
        parts = [
            model(input_ids=row[None], labels=label[None], num_items_in_batch=trained).loss
            for row, label in zip(rows(), labels, strict=True)
        ]
        expected = text(input_ids=rows(), labels=labels).loss
    assert torch.allclose(whole, expected, atol=1e-5)
    assert torch.allclose(sum(parts), expected, atol=1e-5)


def test_the_parts_that_see_are_found_and_nothing_else(tiny):
    from peft import LoraConfig, get_peft_model

    from runner.trainer import seeing

    facts, model = tiny
    names = {name for name, _ in model.named_parameters() if facts.is_of_tower(name)}
    assert {*seeing.parts_that_see(model)} == names
    adapted = get_peft_model(
        model, LoraConfig(r=2, target_modules=in_text(facts, list(facts.linear)))
    )
    found = {name.removeprefix("base_model.model.") for name in seeing.parts_that_see(adapted)}
    assert found == names


def test_an_adapter_stays_within_the_half_for_text_and_training_changes_nothing_else(tiny):
    import torch
    from peft import LoraConfig, get_peft_model

    from runner.trainer import seeing

    facts, model = tiny
    seeing.compute_loss_as_for_text(model, fused=False)
    pattern = in_text(facts, list(facts.linear))
    adapted = get_peft_model(
        model, LoraConfig(r=2, target_modules=pattern, init_lora_weights=False)
    )
    trained = {name: part for name, part in adapted.named_parameters() if part.requires_grad}
    layers = f"base_model.model.{facts.layers_path}."
    assert trained and all(name.startswith(layers) for name in trained)
    before = seeing.checksums(adapted)
    optimizer = torch.optim.AdamW(trained.values(), lr=0.1)
    first = adapted(input_ids=rows(), labels=rows()).loss
    first.backward()
    assert all(weight.grad is None for weight in seeing.parts_that_see(adapted).values())
    optimizer.step()
    assert seeing.checksums(adapted) == before
    assert adapted(input_ids=rows(), labels=rows()).loss != first


def config_of(name: str, *sets: str, scenario: str = "lora") -> dict:
    text = (ROOT / "recipes" / "minimal" / f"{scenario}.yaml").read_text("utf-8")
    text = re.sub(r"(?m)^  base: \S+", f"  base: {name}", text)
    document, _ = apply(
        parse(str(ROOT / "recipes" / "minimal" / "mine.yaml"), text), from_options(sets)
    )
    recipe, problems = judge(document)[:2]
    assert not [one for one in problems if one.severity == "error"], problems
    return dict(translate(recipe, place(recipe)).stages[-1].config)


@pytest.mark.parametrize("name", MODELS)
def test_each_technique_trains_the_half_for_text_alone(name):
    facts = catalog.model(name)
    names = [path for path, _ in parameters.named(facts)]
    for options in ((), ("train.adapter=qlora",)):
        config = config_of(name, *options)
        pattern = config["lora_target_modules"]
        reached = {path for path in names if re.fullmatch(pattern, path.removesuffix(".weight"))}
        assert reached and all(path.startswith(f"{facts.layers_path}.") for path in reached)
        assert "unfrozen_parameters" not in config
    every = config_of(name, scenario="full")["unfrozen_parameters"]
    assert every == text_parameters(facts)
    some = config_of(name, scenario="last-layers")["unfrozen_parameters"]
    for patterns in (every, some):
        expressions = [pattern.replace(".", r"\.") for pattern in patterns]
        reached = {path for path in names if any(re.search(one, path) for one in expressions)}
        assert reached and not [path for path in reached if facts.is_of_tower(path)]


@pytest.mark.parametrize("name", MODELS)
def test_the_fused_loss_that_auto_chooses_may_be_written_too(name):
    for loss in ("auto", "fused"):
        assert config_of(name, f"train.cross_entropy={loss}")["liger_fused_linear_cross_entropy"]


@pytest.mark.parametrize("name", MODELS)
def test_a_pattern_that_reaches_parts_that_see_is_refused(name, golden_message):
    text = LORA.replace(OURS, name)
    sets = from_options([r"train.lora_pattern=.*\.(q_proj|qkv)"])
    document, _ = apply(parse(str(ROOT / "recipes" / "minimal" / "mine.yaml"), text), sets)
    golden_message("\n".join(map(str, judge(document)[1])), name)


BEGUN = Machines(1, 1, "NVIDIA-L40S", 1, 1)


@pytest.mark.parametrize(
    "name", [name for name in MODELS if has_formulas(catalog.model(name).model_type)]
)
@pytest.mark.parametrize("four_bit", [False, True])
def test_formulas_and_trace_count_the_parts_that_see_as_weights_alone(name, four_bit):
    facts = replace(catalog.model(name), num_hidden_layers=3, id="tiny", parameters=None)
    adapter = Adapter(
        16, facts.linear, four_bit=four_bit, pattern=in_text(facts, list(facts.linear))
    )
    run = Workload(
        machines=BEGUN, model=facts, adapter=adapter, sequence_len=256, fused_loss="fused"
    )
    traced = trace(run, operations=False)
    formulas = memory.estimate(run)
    assert traced.parameters == parameters.total(facts) + parameters.adapter(run)
    assert formulas.state.weights == pytest.approx(traced.weights, rel=0.006)
    assert formulas.tensors == pytest.approx(traced.peak, rel=0.05)
    seeing = parameters.tower(facts).whole
    assert traced.weights > (0.5 if four_bit else 2) * seeing
    assert traced.trainable == parameters.adapter(run)


def test_the_plan_says_how_much_of_the_model_reads_images(recipe_command, tmp_path):
    file = tmp_path / "mine.yaml"
    text = LORA.replace(OURS, "google/gemma-3-4b-it").replace("../data/", f"{ROOT}/recipes/data/")
    file.write_text(text, encoding="utf-8")
    done = recipe_command("plan", file, "--details")
    assert "419,816,304 (9.8%); rows of text train none of them" in done.stdout, done.stderr
    shown = json.loads(recipe_command("plan", file, "--format", "json").stdout)
    assert shown["stages"][-1]["seeing_parameters"] == 419_816_304


def test_a_rehearsal_needs_no_gpu_and_keeps_the_pattern():
    config = config_of(MODELS[0])
    text = LORA.replace(OURS, MODELS[0])
    recipe = judge(parse(str(ROOT / "recipes" / "minimal" / "mine.yaml"), text))[0]
    here = translate(recipe, Place("/c", "/d", "/r", "/s", accelerator=False)).stages[-1].config
    assert here["lora_target_modules"] == config["lora_target_modules"]
