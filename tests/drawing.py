"""Recipes drawn over the whole schema: a starter, a place for it, and settings of its scenario set
to values in bounds, at them and just beyond."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from hypothesis import strategies as st

from runner import catalog
from runner.check.by_schema import has, schema
from runner.check.validate import override
from runner.recipe import reading
from runner.recipe.recipe import Override
from runner.tools.text import yaml_text
from tests.conftest import ROOT, STARTERS

# What exists, where a setting names something that must: of other values there are too many that
# are simply refused.
MODELS = sorted(catalog.model_ids())
ROWS = {
    "lora": "data/lyrics-sample.jsonl",
    "last-layers": "data/survival-sample.jsonl",
    "full": "data/survival-sample.jsonl",
    "causal-lm": "data/gemma-sample.txt",
    "pretrain": "data/seven-b-text.jsonl",
    "stages": "data/survival-sample.jsonl",
    "image-classification": "data/shapes-sample.parquet",
}
POOLS: dict[str, list[Any]] = {
    "base": [*MODELS, "me/unknown"],
    "gpu": [*catalog.gpu_names(), "NVIDIA-H999"],
    "hub": ["cahlen/offline-practical-skills-qa-synthetic", "Salesforce/wikitext", "me/rows", "rows"],
    "revision": ["main", "v1.0", "0" * 40, "abc1234", "a b"],
    "split": ["train", "test", "train[:10%]"],
    "memory": ["32 GB", "512 GiB", "1 TB", "0.5 GiB", "1MiB", "64GB", "0 GB"],
    "gates": [["perplexity < 15"], ["validation_loss < 2.5", "generated_tokens >= 1"], ["accuracy > 0.5"], ["loss < 1e400"]],
    "time": ["45 min", "1 s", "2 d", "0.5 h", "0 s"],
    "version": ["3.2", "3.5", "3.6", "3.10", "2.25", "3.0"],
    "kueue": ["0.14", "0.16", "0.20"],
    "question": ["[question]", "For [topic], [question]", "no column", "[[x]] [question]", "[question"],
    "answer": ["[answer]", "[question] [answer]", "constant"],
    "image": ["quay.io/me/x:1", "recipe-runner", "quay.io/me/x@sha256:" + "a" * 64, "A b"],
    "address": ["10.0.0.1", "10.0.0.2", "<MAIN_NODE_IP>", "node-1.example.org", "::1", "localhost"],
    "mount": ["/shared/models", "/shared/data", "/shared", "/shared/models/", "/a b", "/mnt/ä", "/x:y", "//x", "/x/../y"],
    "output_dir": ["/shared/models/out", "/shared/models", "/shared/models/", "/tmp/out", "/a b/it's", "/mnt/$(x)", "/shared/models/../x"],
    "data_dir": ["/shared/models/data", "/shared/data/x", "/opt/recipe-runner/data/x", "/shared/models/a b"],
    "resume_from": ["checkpoint-100", "/shared/models/old/checkpoint-5"],
    "tasks": [["hellaswag"], ["arc_easy", "piqa"]],
    "sample_task": ["data/seven-b-task.jsonl", "../data/seven-b-task.jsonl", "data/none.jsonl"],
    "subset": ["default", "wikitext-2-raw-v1"],
    "axolotl": [{}, {"flash_attn_rms_norm": True}, {"max_grad_norm": 1.0}, {"lora_target_linear": True}, {"dataloader_num_workers": 2},
        {"max_steps": 100}, {"save_steps": 10}, {"torch_compile": True}, {"fp8": True}, {"sample_packing": True}, {"adam_beta2": 0.95},
        {"neftune_noise_alpha": 5}, {"context_parallel_size": 2}, {"lora_r": 8}, {"load_in_8bit": True}, {"gradient_checkpointing": "offload"}],
    "attachment": ["rdma-net", "ns/net", "a/b/c", "x,y"],
    "rdma_resource": ["rdma/rdma_shared_device_a", "nvidia.com/hostdev", "rdma shared", "x" * 80],
    "interface": ["eth0", "=eth0,eth1", "eth 0", "ib0"],
    "devices": ["mlx5", "mlx5_0,mlx5_1"],
    "storage_class": ["ocs-storagecluster-cephfs", "nfs", "A"],
    "topology": ["topology.kubernetes.io/zone", "rack", "a b", "/x"],
    "queue": ["default", "a.b", "x" * 64, "x" * 253, "Q"],
    "recipes": [["lyrics.yaml"], ["../seven-b.yaml", "gone.yaml"]],
    "python": ["python3", "/opt/venv/bin/python", "./venv/bin/python"],
}  # fmt: skip
TEXTS = ["a", "two words", "it's \"so\"", "ä€🙂", "x" * 63, "x" * 64, "x" * 300, "$(id) `id` ${HOME}", "# no comment", "a: b", "line\nline", "-", "[a]", "<|im_end|>", "{{ x }}", "yes", "1.0", " x ", "\ttab", "%s {0}"]  # fmt: skip
# More than this the plan and the draws themselves have to count and to write.
MOST = 10**6


@dataclass(frozen=True)
class Drawn:
    """A starter with changes on top."""

    starter: Path
    changes: tuple[Override, ...]

    def _repr_pretty_(self, printer: Any, _: bool) -> None:
        printer.text(repr(self))

    def __repr__(self) -> str:
        """The recipe that is meant, as a person can copy it beside the starter."""
        document = override(reading.read(self.starter), self.changes)[0]
        told = "\n".join(f"# {change.setting} = {change.after!r}" for change in self.changes)
        return f"\n# {self.starter.relative_to(ROOT)}, and\n{told}\n{yaml_text(document.data)}"


@cache
def sections(scenario: str) -> tuple[tuple[str, dict[str, Any]], ...]:
    """Every setting that can be drawn by its dotted path: each leaf, and each section that is there
    or not."""

    def below(part: dict[str, Any], path: str) -> list[tuple[str, dict[str, Any]]]:
        found = []
        for name, inner in part["properties"].items():
            here = f"{path}{name}"
            if here == "scenario":
                continue
            if inner.get("properties"):
                found += below(inner, f"{here}.")
                if here not in schema(scenario).get("required", ()):
                    found.append((here, inner))
            else:
                found.append((here, inner))
        return found

    return tuple(below(schema(scenario), ""))


def numbers(part: dict[str, Any]) -> st.SearchStrategy[Any]:
    whole = part["type"] == "integer"
    step = 1 if whole else 0.001
    least = part.get("minimum", part.get("exclusiveMinimum", -1))
    most = part.get("maximum", part.get("exclusiveMaximum", MOST))
    least = least + (step if "exclusiveMinimum" in part else 0)
    usual = [*part.get("examples", ()), *([part["default"]] if "default" in part else ())]
    near = [value for value in (1, 2, 3, 4, 8, 16, 64, 100, 512, 1024) if least <= value <= most]
    inside = st.integers(least, most) if whole else st.floats(least, most)
    return st.one_of(*([st.sampled_from(usual)] if usual else []), *([st.sampled_from(near)] if near else []), st.sampled_from([least, most]), inside)  # fmt: skip


def strings(part: dict[str, Any]) -> st.SearchStrategy[Any]:
    examples = st.sampled_from(part["examples"])
    if pattern := part.get("pattern"):
        return examples | st.from_regex(pattern)
    texts = [text for text in TEXTS if len(text) <= part.get("maxLength", MOST)]
    return examples | st.sampled_from(texts)


@cache
def in_bounds(scenario: str, path: str) -> st.SearchStrategy[Any]:
    part = schema(scenario)
    for name in path.split("."):
        part = part["items"] if name == "0" else part["properties"][name]
    name = path.rpartition(".")[2]
    if name in ("path", "sample", "validation_path"):
        return st.sampled_from([*([ROWS[scenario], f"../{ROWS[scenario]}"] * 4), "data/none.jsonl"])
    if (name in POOLS and part.get("type") != "object") or path.startswith("advanced."):
        return st.sampled_from([*POOLS.get(name, POOLS["axolotl"]), *part.get("examples", ())])
    if "enum" in part:
        return st.sampled_from(part["enum"])
    if "const" in part:
        return st.just(part["const"])
    if part["type"] in ("integer", "number"):
        return numbers(part)
    if part["type"] == "boolean":
        return st.booleans()
    if part["type"] == "string":
        return strings(part)
    if part["type"] == "array":
        inner = in_bounds(scenario, f"{path}.0")
        most = max(part.get("minItems", 0), min(3, part.get("maxItems", 3)))
        return st.lists(inner, min_size=part.get("minItems", 1), max_size=most)
    inside = {name: in_bounds(scenario, f"{path}.{name}") for name in part.get("properties", ())}
    inside.pop("sets", None)  # a section of data says where it is from, once
    required = part.get("required", ())
    return st.fixed_dictionaries(
        {name: value for name, value in inside.items() if name in required},
        optional={name: value for name, value in inside.items() if name not in required},
    )


def beyond(part: dict[str, Any]) -> list[Any]:
    """Values that the schema refuses, just out of bounds or of another kind."""
    wrong: list[Any] = ["banana", [], {}, None, True, 1e400, -1]
    if isinstance(part.get("type"), str) and part["type"] in ("integer", "number"):
        step = 1 if part["type"] == "integer" else 1e-3
        wrong += [part[name] - step for name in ("minimum", "exclusiveMinimum") if name in part]
        wrong += [part[name] + step for name in ("maximum", "exclusiveMaximum") if name in part]
    return wrong


CLUSTER = {"namespace": "mine", "claims": [{"name": "models", "mount": "/shared/models"}]}
MACHINES = [{"address": "10.0.0.1", "gpus": [0, 1]}, {"address": "10.0.0.2", "gpus": [0, 1]}]


def places(scenario: str) -> dict[str, list[Override]]:
    """What puts a recipe somewhere, by name."""

    def change(setting: str, value: Any) -> Override:
        return Override(setting, None, value, by=f"--set {setting}=…")

    found = {"as it is": [], "here": [change("openshift", None), change("serve", None)]}
    found["cluster"] = [change("openshift", CLUSTER)]
    found["trainjob"] = [change("openshift", CLUSTER | {"version": "3.6"})]
    if "nodes" in schema(scenario)["properties"]:
        found["here"].append(change("nodes", None))
        two = [change("machines.nodes", 2), change("machines.gpus_per_node", 2)]
        found["machines"] = [change("nodes", {"output_dir": "/shared/out", "machines": MACHINES}), *two, change("openshift", None)]  # fmt: skip
    return found


def required_in(scenario: str, path: str) -> bool:
    """Whether the section that a setting stands in needs another line to be one."""
    return bool(schema(scenario)["properties"][path.partition(".")[0]].get("required"))


@cache
def scenario_of(starter: Path) -> str:
    return str(reading.read(starter).data["scenario"])


# A recipe of four stages takes five times as long as another one.
WEIGHTED = [path for path in STARTERS for _ in range(1 if path.stem == "seven-b" else 2)]


@st.composite
def recipes(draw: st.DrawFn, most: int = 8) -> Drawn:
    """A recipe with up to `most` settings drawn."""
    starter = draw(st.sampled_from(WEIGHTED))
    scenario = scenario_of(starter)
    known = places(scenario)
    changes = list(known[draw(st.sampled_from(sorted(known)))])
    # Lines that only double-check the others, or that hold the plan to a promise, would refuse most
    # of what is drawn.
    checks = [name for name in ("train.effective_batch_size", "limits") if has(scenario, name)]
    changes += [Override(name, None, None, by="without") for name in checks]
    there = override(reading.read(starter), changes)[0].data
    drawable = [(path, part) for path, part in sections(scenario) if path.partition(".")[0] in there or "." not in path or not required_in(scenario, path)]  # fmt: skip
    for path, part in draw(st.lists(st.sampled_from(drawable), min_size=1, max_size=most, unique_by=lambda one: one[0])):  # fmt: skip
        bad = draw(st.integers(0, 39)) == 39
        value = draw(st.sampled_from(beyond(part)) if bad else in_bounds(scenario, path))
        home, _, name = path.rpartition(".")
        if name in ("path", "hub", "sets") and home.endswith("data"):
            others = {"path", "hub", "sets", "subset", "revision", "split"} - {name}
            changes += [Override(f"{home}.{other}", None, None, by="without") for other in others]
        changes.append(Override(path, None, value, by=f"--set {path}={value}"))
    return Drawn(starter, tuple(changes))
