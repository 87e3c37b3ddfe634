"""The catalog against the real model classes, and what the checker makes of models that it knows or
does not."""

from __future__ import annotations

import json
import math
import re
import tomllib
from dataclasses import replace

import pytest

from runner import catalog
from runner.check.validate import judge, load
from runner.commands import cli
from runner.data.tokenizers import jinja
from runner.parts.planner import parameters
from runner.parts.planner.parameters import has_formulas
from runner.plan import Place
from runner.recipe.overrides import apply, from_options
from runner.recipe.reading import parse, read
from runner.scenarios import translate
from runner.scenarios.shared import twin
from runner.tools import packaged
from runner.tools.problem import Problem, Stop
from tests.conftest import ROOT

LYRICS = ROOT / "recipes" / "lyrics.yaml"
MODELS = catalog.model_ids()
# Models with the sizes of another are not built again.
SIZES = [name for name, facts in catalog.table("models").items() if "like" not in facts]
# What the issue asks to be known; the catalog may know more.
EXPECTED = {
    "HuggingFaceTB/SmolLM3-3B": 3_075_098_624,
    "microsoft/Phi-4-mini-instruct": 3_836_021_760,
    "microsoft/Phi-3-mini-4k-instruct": 3_821_079_552,
    "Qwen/Qwen2.5-7B-Instruct": 7_615_616_512,
    "Qwen/Qwen2.5-Coder-7B-Instruct": 7_615_616_512,
    "meta-llama/Llama-3.2-3B-Instruct": 3_212_749_824,
    "google/gemma-3-270m": 268_098_176,
    "google/gemma-3-1b-it": 999_885_952,
}


def on_meta(facts: catalog.Model):
    """The real model class with the catalog's geometry, without weights."""
    import torch
    from transformers import AutoConfig

    from runner.tools.model_classes import language_class
    from runner.tools.process import without_gpu_kernels

    without_gpu_kernels()
    sizes = dict(
        hidden_size=facts.hidden_size,
        intermediate_size=facts.intermediate_size,
        num_hidden_layers=facts.num_hidden_layers,
        num_attention_heads=facts.num_attention_heads,
        num_key_value_heads=facts.num_key_value_heads,
        head_dim=facts.head_dim,
        vocab_size=facts.vocab_size,
        max_position_embeddings=facts.max_position_embeddings,
        tie_word_embeddings=facts.tied,
        **facts.own,
        pad_token_id=None,
    )
    config = AutoConfig.for_model(facts.model_type, **facts.class_settings(sizes))
    with torch.device("meta"):
        return language_class(config).from_config(config)


def problem_of(*options: str) -> Problem:
    with pytest.raises(Stop) as stop:
        load(LYRICS, from_options(options))
    (problem,) = stop.value.problems
    return problem


def test_the_catalog_has_the_models_that_the_recipes_are_meant_for():
    assert {name: catalog.model(name).parameters for name in EXPECTED} == EXPECTED


@pytest.mark.parametrize("name", SIZES)
def test_every_models_facts_are_those_of_its_real_class(name):
    import torch

    facts = catalog.model(name)
    model = on_meta(facts)
    names = {key for key, _ in model.named_parameters()}
    assert sum(parameter.numel() for parameter in model.parameters()) == facts.parameters
    # Files on the hub may hold a tied LM head a second time.
    twice = facts.vocab_size * facts.hidden_size if facts.tied else 0
    assert facts.published - facts.beside in (facts.parameters, facts.parameters + twice)
    assert facts.licence
    assert facts.embedding in names
    assert (facts.lm_head in names) is not facts.tied
    layers = model.get_submodule(facts.layers_path)
    assert len(layers) == facts.num_hidden_layers
    assert {type(layer).__name__ for layer in layers} == {facts.layer_class}
    linear = {
        key.rpartition(".")[2]
        for key, part in layers.named_modules()
        if isinstance(part, torch.nn.Linear)
    }
    assert set(facts.linear) == linear - set(facts.family.get("missed", ()))
    paths = {
        facts.linear_path(0, name).removeprefix(f"{facts.layers_path}.0.") for name in facts.linear
    }
    assert paths <= {
        ".".join(key.split(".")[1:]) for key, _ in layers.named_modules()
    } or facts.family.get("experts")
    seeing = {
        key: tuple(part.shape) for key, part in model.named_parameters() if facts.is_of_tower(key)
    }
    assert seeing == dict(parameters.of_towers(facts))
    assert facts.source and facts.chat_template and facts.eos_token and facts.pad_token


@pytest.mark.parametrize(
    ("name", "adapter"),
    [
        ("microsoft/Phi-4-mini-instruct", 184_549_376),
        ("microsoft/Phi-3-mini-4k-instruct", 201_326_592),
    ],
)
def test_rank_128_on_every_linear_layer_adds_the_known_number_of_parameters(name, adapter):
    from peft import LoraConfig, get_peft_model

    facts = catalog.model(name)
    model = get_peft_model(
        on_meta(facts), LoraConfig(r=128, target_modules=list(facts.linear), task_type="CAUSAL_LM")
    )
    assert sum(part.numel() for part in model.parameters() if part.requires_grad) == adapter


@pytest.mark.parametrize(
    "kind", sorted(filter(has_formulas, {catalog.model(name).model_type for name in MODELS}))
)
def test_fused_lora_kernels_are_known_to_work_exactly_where_axolotl_can_patch_them(kind, tmp_path):
    """Axolotl rewrites the attention's source; where it does not find what it looks for, it stops
    the run."""
    import torch
    from axolotl.monkeypatch.lora_kernels import get_attention_cls_from_config, patch_self_attn_lora
    from axolotl.utils.dict import DictDefault
    from transformers import AutoConfig

    facts = next(catalog.model(name) for name in MODELS if catalog.model(name).model_type == kind)
    assert torch
    AutoConfig.for_model(kind).save_pretrained(str(tmp_path))
    cfg = DictDefault({"base_model": str(tmp_path)})
    attention = get_attention_cls_from_config(cfg)
    forward = attention.forward
    try:
        if facts.fused_lora:
            patch_self_attn_lora(cfg)
        else:
            with pytest.raises(AssertionError, match="Original QKV code not found"):
                patch_self_attn_lora(cfg)
    finally:
        attention.forward = forward
        for left in ("_original_forward", "axolotl_attn_forward"):
            if left in vars(attention):
                delattr(attention, left)


@pytest.mark.parametrize("name", MODELS)
def test_every_models_chat_template_is_one_that_axolotl_has_and_ends_its_turns(name):
    from axolotl.utils.chat_templates import get_chat_template

    marks = catalog.chat_template(catalog.model(name).chat_template)
    assert marks.end in marks.tokens
    assert marks.message("user", "hello").count("hello") == 1
    if marks.axolotl != "tokenizer_default":
        import jinja2

        text = (
            jinja2.Environment()
            .from_string(get_chat_template(marks.axolotl, jinja_template=jinja(marks)))
            .render(
                messages=[
                    {"role": "user", "content": "one"},
                    {"role": "assistant", "content": "two"},
                ],
                bos_token="",
                eos_token=marks.end,
            )
        )
        expected = marks.conversation([("user", "one"), ("assistant", "two")])
        assert text.strip() == expected.strip()


@pytest.mark.parametrize("name", sorted(catalog.table("templates")))
def test_a_template_that_is_written_from_its_turns_says_what_the_turns_say(name):
    import jinja2

    marks = catalog.chat_template(name)
    messages = [
        {"role": role, "content": f"<{role}>"} for role in ("system", "user", "assistant", "user")
    ]
    text = (
        jinja2.Environment()
        .from_string(jinja(marks))
        .render(messages=messages, add_generation_prompt=True)
    )
    assert (
        text
        == marks.conversation((turn["role"], turn["content"]) for turn in messages) + marks.reply
    )
    assert text.count("<system>") == 1 and text.index("<system>") < text.index("<user>")


def test_a_folder_speaks_like_its_kin_only_where_their_vocabularies_are_equally_large():
    facts = catalog.model("mistralai/Mistral-7B-Instruct-v0.3")
    config = {key: value for key, value in facts.__dict__.items() if isinstance(value, int | str)}
    assert catalog.from_config("mine", config).chat_template == "mistral"
    other = catalog.from_config("mine", config | {"vocab_size": 131072})
    assert (other.layer_class, other.chat_template, other.eos_token) == (
        "MistralDecoderLayer",
        "",
        "",
    )


def test_a_model_that_cannot_work_is_refused_at_its_line_with_why_and_what_can(golden_message):
    text = (ROOT / "recipes" / "lyrics.yaml").read_text("utf-8")
    line = next(n for n, row in enumerate(text.splitlines(), 1) if row.startswith("  base:"))
    document = parse(
        str(ROOT / "recipes" / "my.yaml"),
        text.replace("microsoft/Phi-4-mini-instruct #", "microsoft/Phi-3-small-8k-instruct #"),
    )
    (problem,) = judge(document)[1]
    assert (problem.line, problem.severity) == (line, "error")
    golden_message(problem)
    for other in set(EXPECTED) - {"google/gemma-3-270m"}:
        assert f"`{other}`" in problem.hint


def test_a_folder_with_such_a_model_is_refused_too(tmp_path):
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "phi3small"}), encoding="utf-8")
    assert "cannot train" in problem_of(f"model.base={tmp_path}").message


def test_models_in_place_of_an_unsuitable_one_come_by_size_and_stricter_licences_last():
    """A model of half the size was named first once."""
    for name, facts in catalog.table("unsuitable").items():
        was_free = facts["licence"] in ("apache-2.0", "mit")
        others = [catalog.model(other) for other in facts["instead"]]
        far = [abs(math.log((other.parameters or 0) / facts["parameters"])) for other in others]
        ranks = [
            (other.free < was_free, distance) for other, distance in zip(others, far, strict=True)
        ]
        assert ranks == sorted(ranks), name
    _, hint = catalog.unsuitable("microsoft/Phi-3-small-8k-instruct")
    assert "Use `Qwen/Qwen2.5-7B-Instruct`" in hint


def test_models_add_refuses_what_cannot_be_trained_and_names_what_can(
    tmp_path, monkeypatch, capsys, golden_message
):
    """By its name before the hub is asked, and a folder by its config."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "config.json").write_text(
        json.dumps({"model_type": "phi3small"}), encoding="utf-8"
    )
    for name in ("microsoft/Phi-3-small-8k-instruct", "mine"):
        assert (
            cli._code(["models", "add", name]) == 1 and not (tmp_path / "models.lock.yaml").exists()
        )
        golden_message(capsys.readouterr().err, name)


def test_everything_put_in_place_of_an_unsuitable_model_is_in_the_catalog():
    for name, facts in catalog.table("unsuitable").items():
        assert set(facts["instead"]) <= set(MODELS)
        assert name not in MODELS


@pytest.mark.parametrize(
    ("wrong", "right"),
    [
        ("google/gemma-270m", "google/gemma-3-270m"),
        ("microsoft/Phi-4-mini", "microsoft/Phi-4-mini-instruct"),
        ("HuggingFaceTB/SmolLM-3B", "HuggingFaceTB/SmolLM3-3B"),
        ("meta-llama/Llama-3.2-8B-Instruct", "meta-llama/Llama-3.2-3B-Instruct"),
    ],
)
def test_a_name_that_does_not_exist_is_answered_with_the_right_one(wrong, right):
    assert f"Did you mean `{right}`?" in problem_of(f"model.base={wrong}").hint


def test_a_model_in_a_folder_starts_from_the_recipe_and_is_sent_to_pods(
    recipe_command, tmp_path, golden_message
):
    facts = catalog.model("microsoft/Phi-4-mini-instruct")
    config = {key: value for key, value in facts.__dict__.items() if isinstance(value, int | str)}
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "config.json").write_text(json.dumps(config), encoding="utf-8")
    text = (ROOT / "recipes" / "lyrics.yaml").read_text("utf-8")
    text = text.replace("base: microsoft/Phi-4-mini-instruct #", "base: mine #").replace(
        "sample: data", "# sample: data"
    )
    text = text.replace("hub: rajtripathi/5M-Songs-Lyrics", "path: songs.jsonl")
    (tmp_path / "my.yaml").write_text(text, encoding="utf-8")
    (tmp_path / "songs.jsonl").write_text('{"Instruction": "", "Label": ""}\n', encoding="utf-8")
    recipe, _, _ = load(tmp_path / "my.yaml")
    assert recipe.base_folder == tmp_path / "mine"
    here = translate(recipe, Place(*map(str, [tmp_path] * 4)))
    assert here.stages[-1].config["base_model"] == str(tmp_path / "mine")
    done = recipe_command("render", tmp_path / "my.yaml", "--out", tmp_path / "out")
    assert done.returncode == 0, done.stderr
    assert "/files/mine`" in done.stderr and "/files/songs.jsonl`" in done.stderr
    golden_message(done.stderr)
    assert "note" not in recipe_command("render", LYRICS, "--out", tmp_path / "starter").stderr


@pytest.mark.parametrize(
    ("config", "sizes"),
    [
        (
            {"model_type": "gpt2", "n_embd": 64, "n_layer": 3, "n_head": 4, "n_positions": 99},
            (64, 256, 3, 4, 99),
        ),
        (
            {
                "model_type": "gpt2",
                "n_embd": 64,
                "n_layer": 3,
                "n_head": 4,
                "n_inner": 96,
                "n_ctx": 9,
            },
            (64, 96, 3, 4, None),
        ),
        (
            {"model_type": "mpt", "d_model": 64, "n_layers": 3, "n_heads": 8, "max_seq_len": 99},
            (64, 256, 3, 8, 99),
        ),
        ({"model_type": "mamba", "hidden_size": 64, "num_hidden_layers": 2}, (64, 256, 2, 1, None)),
        (
            {"model_type": "hybrid", "hidden_size": 64, "layer_types": ["a", "b", "a"]},
            (64, 256, 3, 1, None),
        ),
        (
            {"model_type": "odd", "hidden_size": 64, "n_layer": 2, "num_key_value_heads": [1, 2]},
            (64, 256, 2, 1, None),
        ),
    ],
)
def test_an_architecture_that_nobody_has_looked_at_may_call_its_sizes_what_it_likes(config, sizes):
    from runner.catalog.models import UNBOUNDED

    model = catalog.from_config("mine", config | {"vocab_size": 512})
    found = (
        model.hidden_size,
        model.intermediate_size,
        model.num_hidden_layers,
        model.num_attention_heads,
    )
    assert (*found, model.max_position_embeddings) == (*sizes[:-1], sizes[-1] or UNBOUNDED)
    assert model.num_key_value_heads == model.num_attention_heads


WRONG_CONFIGS = {
    "a size is missing": {"model_type": "llama", "hidden_size": 64},
    "a size is missing under every name": {"model_type": "gpt2", "n_embd": 64, "vocab_size": 512},
    "no type": {"hidden_size": 64},
    "a type that is none": {"model_type": ["llama"], "hidden_size": 64},
    "a size that is no count": {
        "model_type": "gpt2",
        "n_embd": 64,
        "n_layer": 2,
        "vocab_size": "many",
    },
    "no heads": {"model_type": "llama", "hidden_size": 64, "num_attention_heads": 0},
    "several models": {
        "model_type": "llava",
        "text_config": {"model_type": "llama"},
        "vision_config": {"model_type": "clip"},
    },
}


@pytest.mark.parametrize("case", WRONG_CONFIGS)
def test_a_config_that_does_not_say_how_large_the_model_is_is_named_with_what_it_lacks(
    tmp_path, case, golden_message
):
    (tmp_path / "config.json").write_text(json.dumps(WRONG_CONFIGS[case]), encoding="utf-8")
    golden_message(problem_of(f"model.base={tmp_path}"))


@pytest.fixture
def own_code(tmp_path):
    """A folder with a model that brings its own code, here or in another repository."""

    def make(place: str = "modeling_mine.Mine"):
        facts = catalog.model("microsoft/Phi-4-mini-instruct")
        sizes = [
            "hidden_size",
            "intermediate_size",
            "num_hidden_layers",
            "num_attention_heads",
            "num_key_value_heads",
            "vocab_size",
            "max_position_embeddings",
        ]
        config = {"model_type": "mine", "auto_map": {"AutoModelForCausalLM": place}}
        config |= {key: getattr(facts, key) for key in sizes}
        (tmp_path / "config.json").write_text(json.dumps(config), encoding="utf-8")
        return tmp_path

    return make


def test_a_model_with_its_own_code_is_refused_with_why(own_code, golden_message):
    problem = problem_of(f"model.base={own_code()}")
    assert "its own code" in problem.message and "`trust_remote_code: true`" in problem.hint
    golden_message(problem)


def test_a_model_with_its_own_code_is_taken_once_it_is_trusted(own_code):
    recipe, _, _ = load(
        LYRICS, from_options([f"model.base={own_code()}", "model.trust_remote_code=true"])
    )
    assert recipe.model_facts.custom_code


def test_code_beside_a_model_that_transformers_has_itself_is_no_reason_to_refuse(own_code):
    folder = own_code()
    config = json.loads((folder / "config.json").read_text("utf-8"))
    (folder / "config.json").write_text(
        json.dumps(config | {"model_type": "phi3"}), encoding="utf-8"
    )
    recipe, _, _ = load(LYRICS, from_options([f"model.base={folder}"]))
    assert not recipe.model_facts.custom_code


def test_code_from_the_hub_needs_a_full_commit(own_code, golden_message):
    folder = own_code("someone/code--modeling_mine.Mine")
    trusted = (f"model.base={folder}", "model.trust_remote_code=true")
    problem = problem_of(*trusted)
    assert "revision `main`" in problem.message
    golden_message(problem)
    load(LYRICS, from_options([*trusted, f"model.revision={'a1' * 20}"]))
    assert "revision `v1.0`" in problem_of(*trusted, "model.revision=v1.0").message


def test_trusting_a_hub_models_code_needs_a_full_commit():
    assert "revision `main`" in problem_of("model.trust_remote_code=true").message


def test_lora_names_that_a_model_does_not_have_are_answered_with_those_it_has(golden_message):
    problem = problem_of("train.lora_layers=[q_proj, o_proj]")
    assert "`q_proj`" in problem.message and "`qkv_proj`" in problem.hint
    golden_message(problem)


def test_chatml_is_refused_where_its_special_tokens_are_not_known(golden_message):
    problem = problem_of("data.chat_template=chatml")
    assert "ChatML" in problem.message
    golden_message(problem)


def test_fp16_is_noted_where_it_overflows(golden_message):
    _, _, notes = load(
        LYRICS, from_options(["model.base=google/gemma-3-270m", "model.precision=fp16"])
    )
    (note,) = [note for note in notes if "fp16" in note.message]
    assert note.severity == "note"
    golden_message(note)


RECIPE_OF = {
    "lora": LYRICS,
    "causal-lm": ROOT / "recipes" / "gemma.yaml",
    "images": ROOT / "recipes" / "resnet.yaml",
}


def advised(path, settings: dict[str, str]) -> dict[str, str]:
    """The settings of `model` that the checker asks for in place of some, from its hints."""
    document, _ = apply(
        read(path), from_options([f"{name}={value}" for name, value in settings.items()])
    )
    found = [
        re.fullmatch(r"Write `(precision|attention): (\w+)`\.", problem.hint)
        for problem in judge(document)[1]
    ]
    return {f"model.{hint[1]}": hint[2] for hint in found if hint}


@pytest.mark.parametrize("gpu", catalog.gpu_names())
def test_what_is_advised_for_a_gpu_and_a_model_leads_to_no_other_complaint(gpu):
    followed = 0
    # Advice looks at a model's type and at what fp16 does to it, so one of each will do.
    kinds = {
        (facts.model_type, facts.fp16): name for name in MODELS if (facts := catalog.model(name))
    }
    cases = [(kind, name) for kind in ("lora", "causal-lm") for name in kinds.values()] + [
        ("images", "")
    ]
    for kind, base in cases:
        for precision in ("bf16", "fp16", "fp32"):
            asked = {"machines.gpu": gpu, "model.precision": precision} | (
                {"model.base": base} if base else {}
            )
            if advice := advised(RECIPE_OF[kind], asked):
                followed += 1
                assert advised(RECIPE_OF[kind], asked | advice) == {}, (
                    kind,
                    base,
                    precision,
                    advice,
                )
    assert followed >= sum(not fp16 for _, fp16 in kinds)


@pytest.mark.parametrize(
    "gpu", [name for name in catalog.gpu_names() if not catalog.gpu(name).bf16]
)
@pytest.mark.parametrize("precision", ["bf16", "fp16"])
def test_gemma_is_told_fp32_where_the_gpu_has_no_bf16(gpu, precision):
    asked = {
        "machines.gpu": gpu,
        "model.base": "google/gemma-3-1b-it",
        "model.precision": precision,
    }
    assert advised(LYRICS, asked)["model.precision"] == "fp32"


@pytest.mark.parametrize("precision", ["bf16", "fp8"])
def test_several_stages_are_told_what_they_know_where_the_gpu_has_no_bf16(precision):
    path = ROOT / "recipes" / "seven-b.yaml"
    stated = f"stages.0.model.precision={precision}"
    with pytest.raises(Stop) as stop:
        load(path, from_options(["machines.gpu=Tesla-T4", stated]))
    assert any(
        problem.hint.startswith("Write `precision: fp32`") for problem in stop.value.problems
    )
    everywhere = ["model.precision=fp32", "model.attention=sdpa", "stages.1.speed.fp8="]
    recipe, _, _ = load(path, from_options(["machines.gpu=Tesla-T4", *everywhere]))
    here = translate(recipe, Place(*["/x"] * 4))
    assert set(here.facts["precision"].values()) == {"fp32"}
    assert not any(stage.config.get("bf16") for stage in here.stages)


def test_a_twin_speaks_as_its_original_does_though_no_catalog_has_that(tmp_path):
    """A folder of somebody's own, or a locked model: its chat template and end token must reach the
    rehearsal."""
    original = replace(catalog.model("microsoft/Phi-4-mini-instruct"), id="somebody/their-own")
    twin.bare(original, tmp_path)
    small = catalog.model(str(tmp_path))
    assert (small.chat_template, small.eos_token) == ("phi-4-mini", "<|endoftext|>")
    assert (small.linear, small.hidden_size) == (original.linear, twin.WIDTH)


def test_tables_that_are_parsed_when_they_are_read_say_what_their_files_say():
    files = sorted((ROOT / "runner").rglob("*.toml"))
    assert len(files) > 100
    for file in files:
        text = file.read_text("utf-8")
        whole, tables = tomllib.loads(text), packaged.Tables(file, text)
        assert (
            list(tables) == list(whole) and dict(tables) == whole and len(tables) == len(whole)
        ), file


def test_a_broken_table_is_reported_with_its_file_and_its_line_there(tmp_path, golden_message):
    models = (ROOT / "runner" / "catalog" / "models.toml").read_text("utf-8")
    header = '["HuggingFaceTB/SmolLM3-3B"]'
    broken = {
        "a model twice": (models + f"\n{header}\nparameters = 1\n", models.count("\n") + 2),
        "no value": (models + "\n[mine]\nlayers =\n", models.count("\n") + 3),
        "no end": (models + "\n[mine]\nlayers = [", 0),
    }
    for case, (text, line) in broken.items():
        tables = packaged.Tables(tmp_path / "models.toml", text)
        assert (
            tables["microsoft/Phi-4-mini-instruct"]
            == tomllib.loads(models)["microsoft/Phi-4-mini-instruct"]
        )
        with pytest.raises(Stop) as stop:
            dict(tables)
        (problem,) = stop.value.problems
        assert (problem.file, problem.line) == (str(tmp_path / "models.toml"), line)
        golden_message(stop.value, case)
