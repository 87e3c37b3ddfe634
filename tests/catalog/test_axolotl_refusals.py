"""Settings under `advanced` that Axolotl refuses beside what the runner writes: said by `check`,
and no others."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from typing import Any

import pytest

from runner import catalog
from runner.catalog.tables import table
from runner.check.validate import ALLOWED, examine, load
from runner.recipe.overrides import from_options
from runner.recipe.recipe import Override, Recipe
from runner.scenarios import place, translate
from runner.scenarios.shared.axolotl import LIGER, refusal
from tests.catalog.axolotls_own import validated
from tests.conftest import RECIPES, ROOT, setting_of

# Recipes of each kind, and where settings of Axolotl's stand in them.
HOMES = dict.fromkeys(("survival", "lyrics", "gemma"), "advanced.axolotl") | {
    f"seven-b/{stage}": f"stages.{index}.advanced.axolotl"
    for index, stage in enumerate(("pretrain", "sft", "dpo", "lora"))
}
# The same with other lines, beside which Axolotl refuses other settings.
FUSED = "lyrics model.base=HuggingFaceTB/SmolLM2-1.7B-Instruct"
KINDS = (
    *HOMES,
    FUSED,
    f"{FUSED} train.adapter=qlora",
    "survival distribution=zero3",
    "survival model.attention=sdpa",
)


def parts(kind: str) -> tuple[str, list[Override]]:
    """The name of a kind's recipe, and the lines that are otherwise in it."""
    name, *lines = kind.split()
    return name.partition("/")[0], from_options(lines)


def with_setting(kind: str, key: str, value: Any) -> Override:
    home = HOMES[kind.split()[0]]
    return Override(home, None, {key: value}, by=f"--set {home}.{key}={value}")


@cache
def recipe_of(kind: str) -> Recipe:
    name, lines = parts(kind)
    return load(ROOT / "recipes" / f"{name}.yaml", lines)[0]


def config_of(kind: str) -> dict[str, Any]:
    """The config of the stage that such settings reach."""
    recipe = recipe_of(kind)
    stages = [one for one in translate(recipe, place(recipe)).stages if one.engine == "axolotl"]
    name = kind.split()[0].partition("/")[2] or "train"
    return dict(next(one for one in stages if one.name.startswith(name)).config)


def takes(kind: str, more: dict[str, Any]) -> bool:
    """Whether Axolotl's own validation takes a recipe's config with more settings, on its own
    GPU."""
    gpu = catalog.gpu(recipe_of(kind).machines.gpu)
    assert gpu
    try:
        validated(config_of(kind) | more, gpu, 4)
    except Exception:
        return False
    return True


def values(part: dict[str, Any]) -> Iterator[Any]:
    """A few values of the kind that Axolotl's schema has for a setting."""
    definitions = catalog.axolotl_settings()["$defs"]
    part = definitions[part["$ref"].removeprefix("#/$defs/")] if "$ref" in part else part
    for choice in part.get("anyOf", ()):
        yield from values(choice)
    kinds = part.get("type", ())
    for kind in [kinds] if isinstance(kinds, str) else kinds:
        if "enum" in part or "const" in part:
            yield from part.get("enum", [part.get("const")])[:4]
        elif kind == "array":
            yield from ([item] for item in [*values(part.get("items", {"type": "string"}))][:2])
        elif kind == "object":
            known = part.get("properties", {})
            yield {name: next(values(known[name]), 1) for name in part.get("required", ())}
        else:
            yield from {
                "boolean": [True, False],
                "integer": [1, 0, 2],
                "number": [0.5, 0.0],
                "string": ["x"],
            }.get(kind, ())


TAKEN = {
    setting
    for known in table("axolotl-refusals").values()
    if known.get("taken")
    for setting in known["settings"]
}
# Axolotl is asked about those beside mistral-common in tests/scenarios/test_mistral_common.py.
ASKED = {
    name: known for name, known in table("axolotl-refusals").items() if name != "tokens_of_mistral"
}
KNOWN = sorted({setting for known in ASKED.values() for setting in known["settings"]})


@pytest.mark.parametrize("key", KNOWN)
def test_what_is_refused_axolotl_refuses(key):
    """In at least one of the recipes, with a value for which `check` says so."""
    part = catalog.axolotl_settings()["properties"][key]
    refused = 0
    for kind in KINDS:
        config = config_of(kind)
        for value in values(part):
            if refusal(key, value, config):
                refused += not takes(kind, {key: value})
        if refused:
            return
    assert key in TAKEN_AND_LOST or key in TAKEN


# Axolotl takes them, and the recipe's own lines then no longer say what happens.
TAKEN_AND_LOST = (
    "fp8",
    "saves_per_epoch",
    "xformers_attention",
    "adapter",
    "pretraining_dataset",
    "tensor_parallel_size",
)


@pytest.mark.parametrize("kind", HOMES)
def test_check_says_it_at_the_setting(kind):
    for key in ("max_packed_sequence_len", "flash_attention", "context_parallel_size"):
        if key in config_of(kind):
            continue
        value = True if key == "flash_attention" else 512
        (found,) = examine(
            ROOT / "recipes" / f"{parts(kind)[0]}.yaml", [with_setting(kind, key, value)]
        )
        assert (found.severity, setting_of(found)) == ("error", f"{HOMES[kind]}.{key}")
        assert found.message.startswith("Axolotl 0.19.0 cannot use this line here: ")


@pytest.mark.parametrize(
    ("kind", "key", "value"),
    [
        ("survival", "rl", "orpo"),
        ("lyrics", "rl", "grpo"),
        ("gemma", "reward_model", True),
        ("survival", "deepspeed", "ds.json"),
        ("survival", "peft_use_dora", True),
        ("gemma", "lora_r", 8),
    ],
)
def test_what_axolotl_takes_and_cannot_work_is_refused(kind, key, value, golden_message):
    """Preferences without pairs, another way of sharing the model beside the recipe's, and adapters
    without one."""
    assert key not in config_of(kind)
    (found,) = examine(ROOT / "recipes" / f"{kind}.yaml", [with_setting(kind, key, value)])
    assert (found.severity, setting_of(found)) == ("error", f"advanced.axolotl.{key}")
    golden_message(found)


def test_a_second_warmup_is_answered_with_a_line_that_can_be_written(golden_message):
    """The schema takes the line that the answer names."""
    for kind, key, value in (
        ("survival", "warmup_steps", 5),
        ("lyrics", "warmup_steps", 5),
        ("gemma", "warmup_ratio", 0.1),
    ):
        (found,) = examine(ROOT / "recipes" / f"{kind}.yaml", [with_setting(kind, key, value)])
        assert setting_of(found) == f"advanced.axolotl.{key}"
    golden_message(found, "where the section has both")
    (found,) = examine(
        ROOT / "recipes" / "survival.yaml", [with_setting("survival", "warmup_steps", 5)]
    )
    golden_message(found)
    instead = from_options(["train.warmup_ratio=0.1"])
    assert not [
        one
        for one in examine(ROOT / "recipes" / "survival.yaml", instead)
        if one.severity == "error"
    ]
    instead = from_options(["train.warmup_steps=", "train.warmup_ratio=0.1"])
    assert not [
        one for one in examine(ROOT / "recipes" / "gemma.yaml", instead) if one.severity == "error"
    ]


def test_an_epsilon_of_muon_is_refused_where_gpus_share_the_model(golden_message):
    survival = ROOT / "recipes" / "survival.yaml"
    shared, *own = [
        *from_options(["distribution=fsdp", "train.optimizer=muon"]),
        with_setting("survival", "adam_epsilon", 1e-7),
    ]
    (found,) = (one for one in examine(survival, [shared, *own]) if one.severity == "error")
    assert setting_of(found) == "advanced.axolotl.adam_epsilon"
    golden_message(found)
    for changes in (own, [shared, own[1]]):
        assert not [one for one in examine(survival, changes) if one.severity == "error"]


def test_a_dora_adapter_is_let_through():
    lyrics = ROOT / "recipes" / "lyrics.yaml"
    for changes in (
        [with_setting("lyrics", "peft_use_dora", True)],
        from_options(["train.use_dora=true"]),
    ):
        assert not [one for one in examine(lyrics, changes) if one.severity == "error"]


def test_what_goes_with_the_rest_is_let_through():
    survival = ROOT / "recipes" / "survival.yaml"
    for key, value, line in (
        ("deepcompile", True, "distribution=zero3"),
        ("fp32_norms", True, "distribution=fsdp"),
    ):
        setting, _, wished = line.partition("=")
        changes = [
            Override(setting, None, wished, by=f"--set {line}"),
            with_setting("survival", key, value),
        ]
        assert not [
            one for one in examine(survival, changes, allowed=ALLOWED) if one.severity == "error"
        ]
        assert [
            one
            for one in examine(survival, changes[1:], allowed=ALLOWED)
            if one.severity == "error"
        ]


# Axolotl looks for the file that only a pod has, and says nothing about the setting.
NOT_SAID = ("deepcompile",)


@pytest.mark.long
@pytest.mark.parametrize("kind", KINDS)
def test_what_axolotl_refuses_of_all_its_settings_check_refuses(kind):
    """Alone beside the recipe, with a few values of each."""
    name, lines = parts(kind)
    file = next(path for path in RECIPES if path.stem == name)
    asked, missed = 0, []
    assert takes(kind, {})
    for key, part in catalog.axolotl_settings()["properties"].items():
        for value in values(part):
            asked += 1
            if key in NOT_SAID or takes(kind, {key: value}):
                continue
            found = examine(file, [*lines, with_setting(kind, key, value)], allowed=ALLOWED)
            if not any(one.severity == "error" for one in found):
                missed.append(f"{key}: {value}")
    assert asked > 600 and missed == []


GROKFAST = "axolotl.integrations.grokfast.GrokfastPlugin"


def test_a_plugins_settings_go_with_the_plugin(golden_message):
    """Beside the plug-ins that the recipe loads, in their order."""
    survival = ROOT / "recipes" / "survival.yaml"
    both = Override(
        "advanced.axolotl",
        None,
        {"plugins": [GROKFAST], "grokfast_alpha": 0.9},
        by="--set advanced.axolotl",
    )
    assert [one for one in examine(survival, [both]) if one.severity == "error"] == []
    recipe = load(survival, [both])[0]
    config = translate(recipe, place(recipe)).stage("train").config
    assert (
        config["plugins"] == [*config_of("survival")["plugins"], GROKFAST]
        and config["grokfast_alpha"] == 0.9
    )
    # The recipe loads Liger's itself.
    assert examine(survival, [with_setting("survival", "liger_layer_norm", True)]) == []
    (problem,) = examine(survival, [with_setting("survival", "grokfast_alpha", 0.9)])
    assert setting_of(problem) == "advanced.axolotl.grokfast_alpha"
    golden_message(problem, "without its plug-in")
    (problem,) = examine(survival, [with_setting("survival", "swanlab_projct", "mine")])
    golden_message(problem, "misspelt")
    (problem,) = examine(survival, [with_setting("survival", "plugins", [GROKFAST, "grokfast"])])
    assert problem.severity == "error" and setting_of(problem) == "advanced.axolotl.plugins"
    golden_message(problem, "a plug-in without its module")
    for key, value in (
        ("cut_cross_entropy", True),
        ("use_scattermoe", True),
        ("expert_parallel_size", 2),
        ("recipe", "x"),
    ):
        (problem,) = examine(survival, [with_setting("survival", key, value)])
        assert problem.severity == "error" and ("plug-in" in problem.message) == (
            key != "recipe"
        ), problem


def test_every_value_of_a_plugin_is_judged_like_its_own():
    survival = ROOT / "recipes" / "survival.yaml"
    changes = Override(
        "advanced.axolotl", None, {"plugins": [GROKFAST], "grokfast_alpha": "much"}, by="--set x"
    )
    (problem,) = examine(survival, [changes])
    assert problem.message == "`advanced.axolotl.grokfast_alpha` cannot be `much`."
    plugins = catalog.axolotl_settings()["plugins"]
    assert (
        len(plugins) == 15
        and sum(map(len, plugins.values())) > 80
        and "liger_rope" in plugins[LIGER]
    )
