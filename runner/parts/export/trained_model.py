"""A stage's model with all its records; and the proof, tensor by tensor, that exported weights are
the base model's with exactly the trained changes."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from runner import catalog
from runner.catalog import PackagedModel
from runner.data import packaged_models
from runner.parts.report.facts import RunFacts, StageFacts
from runner.plan import Stage
from runner.run import inference
from runner.run.run_folder import RunFolder, StageFolder
from runner.run.run_manifest import plan_of
from runner.tools.files import read_record
from runner.tools.model_classes import language_class, language_class_of
from runner.tools.problem import Stop
from runner.tools.run_files import ADAPTER, BEST_IMAGES, DEMO, EXPORT, SUMMARY
from runner.tools.text import tokenizer_in
from runner.trainer.generation import Chat, chats
from runner.trainer.merging import Base

if TYPE_CHECKING:
    from transformers import PreTrainedModel


def unproven(difference: str, remedy: str = "") -> Stop:
    """The error of an export that could not be proven."""
    usual = "Nothing was saved. Please report this; the trained model is unchanged in the run."
    return Stop(f"The export differs from the trained model: {difference}.", remedy or usual)


Proof = dict[str, float]  # the results of a comparison: counts and distances, by name
WEIGHTS = "adapter_model.safetensors"
_PREFIX = "base_model.model."  # PEFT's additions before and after the name of a layer
_PART = re.compile(
    r"(?P<layer>.+)\.(?P<part>lora_(?:embedding_)?[AB]|lora_magnitude_vector)(?:\.weight)?\Z"
)


def words_of(chat: Chat, folder: Path | None = None) -> Any:
    """The tokenizer of a model. folder: of a copy of it."""
    return tokenizer_in(folder or chat.tokenizer, chat.trust_remote_code)


@dataclass(frozen=True)
class AdapterFolder:
    """An adapter's folder, as PEFT writes it."""

    folder: Path

    @cached_property
    def config(self) -> Mapping[str, Any]:
        return read_record(self.folder / "adapter_config.json")

    @cached_property
    def layers(self) -> Mapping[str, Mapping[str, str]]:
        """The layers that it changes: the name of the tensor of each part, by layer."""
        from safetensors import safe_open

        tensors_of: dict[str, dict[str, str]] = {}
        with safe_open(self.folder / WEIGHTS, framework="numpy") as tensors:
            for name in tensors.keys():  # noqa: SIM118 - it is no mapping
                part = _PART.match(name.removeprefix(_PREFIX))
                if part:
                    tensors_of.setdefault(part["layer"], {})[part["part"]] = name
        return tensors_of

    def scale(self, layer: str) -> float:
        """The factor of a layer's change: alpha by rank, or by its root (PEFT's `use_rslora`)."""

        def setting(by_layer: str, of_all_layers: str) -> Any:
            for pattern, value in (self.config.get(by_layer) or {}).items():
                if re.match(rf"(.*\.)?({pattern})$", layer):
                    return value
            return self.config[of_all_layers]

        rank = setting("rank_pattern", "r")
        alpha = setting("alpha_pattern", "lora_alpha")
        if self.config.get("use_rslora"):
            return float(alpha / rank**0.5)
        return float(alpha / rank)


class TrainedModel(NamedTuple):
    """A run's model."""

    folder: StageFolder  # of its stage
    run: RunFacts  # as the page shows it
    stage: StageFacts  # as the page shows it
    base: Base | None  # what training started from; None if it is neither here nor on a hub
    chat: Chat  # how it is asked
    questions: tuple[str, ...]  # of the demo

    @property
    def model(self) -> Path:
        return self.folder.model

    @property
    def adapter(self) -> AdapterFolder | None:
        """The trained adapter; None if the stage trains the model itself."""
        folder = self.folder.path / ADAPTER
        if (folder / WEIGHTS).is_file():
            return AdapterFolder(folder)
        return None

    @property
    def home(self) -> Path:
        """The default folder of its exports."""
        return self.folder.path / EXPORT

    @property
    def packaged_model(self) -> PackagedModel | None:
        """The packaged model that training started from, or None."""
        if self.run.rehearsal:
            return None
        return catalog.packaged_model(self.run.planned.model)

    @property
    def hub_base(self) -> str:
        """The base model's name on the hub, of a packaged model that of its original; empty for a
        folder, random weights, or the twin of a rehearsal."""
        model = self.run.planned.model
        packaged_model = self.packaged_model
        if packaged_model:
            return packaged_model.like
        on_hub = model.count("/") == 1 and not model.startswith((".", "/", "~"))
        if on_hub and not self.run.rehearsal:
            return model
        return ""


def of(run: RunFolder, stage: str | None = None) -> TrainedModel:
    """The model of a stage, by default the last with one. Raises Stop if it is missing, changed, or
    one for images."""
    plan = plan_of(run)
    if stage:
        folder = StageFolder(plan, plan.stage(stage))
    else:
        folder = inference.newest(plan)
    _require_model(folder)
    run_facts = RunFacts(run)
    stage_facts = [facts for facts in run_facts.stages if facts.name == folder.stage.name]
    if not stage_facts:
        raise Stop(
            f"The stage `{folder.stage.name}` has no record.", "`recipe fetch` downloads it."
        )
    packaged_models.make_ready([folder.stage])
    base = _base_of(folder.stage, run_facts)
    demo = read_record(folder.path / DEMO)
    questions = tuple(demo.get("questions") or ())
    if demo:
        if base:
            demo["base_model"] = base[0]
        _, chat = chats(folder.path, demo)
    else:
        chat = Chat(str(folder.model), None, str(folder.model), None, max_new_tokens=40, chat=False)
    return TrainedModel(folder, run_facts, stage_facts[0], base, chat, questions)


def _require_model(folder: StageFolder) -> None:
    """Raises Stop if a stage has no language model, or its weights have changed."""
    plan = folder.plan
    if list(folder.path.glob(BEST_IMAGES)):
        raise Stop(
            f"`{plan.name}` trains a model that classifies images, which servers of language models do not load.",
            f"It is in `{folder.path / BEST_IMAGES}`, as `torch.load` reads it; its shape is in `{SUMMARY}` beside it.",
        )
    if folder.stage.config.get("reward_model"):
        raise Stop(
            f"`{plan.name}` trains a reward model, which gives scores; an export could not be compared by its answers.",
            f"It is in `{folder.model}`, as AutoModelForSequenceClassification reads it.",
        )
    if not folder.weights_files:
        raise Stop(f"The stage `{folder.stage.name}` has no model.", "Leave out `--stage`.")
    if folder.state.outputs:
        changed = folder.changed_outputs()
        if changed:
            raise Stop(
                f"`{folder.path / changed[0]}` has changed since training.",
                "The records of this run no longer describe it. Restore the file, or export the model with other tools.",
            )


def _base_of(stage: Stage, run_facts: RunFacts) -> Base | None:
    """The base model, as for merging: in the plan's current folder, or else by its name on the
    hub."""
    name = str(stage.config.get("base_model") or "")
    if Path(name).is_dir():
        return name, None
    if not name.startswith("/"):
        return name, stage.config.get("revision_of_model")
    if run_facts.planned.model and not run_facts.rehearsal:
        return run_facts.planned.model, run_facts.planned.revision or None
    return None


def without_weights(model: Base, trust_remote_code: bool) -> Any:
    """A model by its config alone."""
    import torch
    from transformers import AutoConfig

    name, revision = model
    config = AutoConfig.from_pretrained(
        name, revision=revision, trust_remote_code=trust_remote_code
    )
    with torch.device("meta"):
        return language_class(config).from_config(config, trust_remote_code=trust_remote_code)


def numbers_for_text(model: Base, trust_remote_code: bool) -> int:
    """How many numbers the half for text has, of a model that also sees; 0 for others. Some are in
    no parameter, such as the router biases of GLM-4.6V."""
    from runner.trainer import seeing

    built = without_weights(model, trust_remote_code)
    if not seeing.parts_that_see(built):
        return 0
    tensors = {}  # by identity, because an LM head may be the embedding
    for module in (built.get_decoder(), built.get_output_embeddings()):
        for tensor in module.state_dict(keep_vars=True).values():
            tensors[id(tensor)] = tensor
    return sum(tensor.numel() for tensor in tensors.values())


def loaded(
    name: str, revision: str | None = None, dtype: object = "auto", trust_remote_code: bool = False
) -> Any:
    """A language model from this machine or the hub. Raises OSError if it cannot be loaded."""
    options: dict[str, Any]
    if revision and not Path(name).is_dir():
        options = {"revision": revision}
    else:
        options = {}
    model_class = language_class_of(name, trust_remote_code, options.get("revision"))
    return model_class.from_pretrained(
        name, dtype=dtype, trust_remote_code=trust_remote_code, **options
    )


def states(folder: Path, base: Base, trust_remote_code: bool) -> tuple[Any, Any, Any]:
    """The tensors of a model and of its base by name, tied ones under each name; and the precision
    of both."""
    tensors = loaded(str(folder), trust_remote_code=trust_remote_code).state_dict()
    dtype = next(tensor.dtype for tensor in tensors.values() if tensor.is_floating_point())
    return (
        tensors,
        loaded(*base, dtype=dtype, trust_remote_code=trust_remote_code).state_dict(),
        dtype,
    )


def merged(
    folder: Path, adapter: AdapterFolder, base: Base, trust_remote_code: bool = False
) -> Proof:
    """Proves that a model is its base with an adapter in it: each layer of the adapter is W + s·B·A
    within the rounding of its precision, and differs from the base's; all other layers are the
    base's. It needs twice the model in main memory. largest_difference: from W + s·B·A, as a share
    of the largest change. Raises Stop."""
    import torch
    from safetensors.torch import load_file

    tensors, before, dtype = states(folder, base, trust_remote_code)
    parts = load_file(adapter.folder / WEIGHTS)
    changes = {f"{layer}.weight": layer for layer in adapter.layers}
    for name, tensor in tensors.items():
        if name not in before or before[name].shape != tensor.shape:
            raise unproven(f"its base model has no tensor `{name}` of that shape")
    tied = {tensor.data_ptr() for name, tensor in before.items() if name in changes}
    furthest = 0.0
    for name, tensor in tensors.items():
        was = before[name]
        if name not in changes:
            if was.data_ptr() not in tied and not torch.equal(tensor, was):
                raise unproven(
                    f"`{name}` differs from the base model's, but the adapter does not change it"
                )
            continue
        change = _change(adapter, parts, changes[name], was.double())
        if not change.any():
            continue
        if torch.equal(tensor, was):
            raise unproven(
                f"`{name}` is the same as in the base model: the adapter was lost, or is too small for this precision"
            )
        off = (tensor.double() - was.double() - change).abs()
        # Allows twice half a unit in the last place of both, and sums over the rank in another
        # order; DoRA also rounds a row's norm and its factor.
        if adapter.config.get("use_dora"):
            rounded = 4
        else:
            rounded = 2
        allowed = torch.finfo(dtype).eps * (rounded * was.double().abs() + 8 * change.abs().max())
        if bool((off > allowed).any()):
            raise unproven(
                f"`{name}` is not the base model's plus the adapter's change; they differ by up to {float(off.max()):.3g}"
            )
        furthest = max(furthest, float(off.max() / change.abs().max()))
    return {
        "changed_tensors": len(changes),
        "tensors": len(tensors),
        "largest_difference": furthest,
    }


def _change(adapter: AdapterFolder, parts: Mapping[str, Any], layer: str, was: object) -> Any:
    """s·B·A of a layer whose weight was `was`, both in fp64 [out, in]; for DoRA, the change to rows
    with their learned norms. Raises Stop for anything but LoRA and DoRA of linear layers, and LoRA
    of embeddings."""
    names = adapter.layers[layer]
    embedding = "lora_embedding_A" in names
    turned = adapter.config.get("fan_in_fan_out")
    if embedding:
        wanted = ("lora_embedding_A", "lora_embedding_B")
    else:
        wanted = ("lora_A", "lora_B")
    lengths: tuple[str, ...] = ()
    if adapter.config.get("use_dora") and not embedding and not turned:
        lengths = ("lora_magnitude_vector",)
    if set(names) != {*wanted, *lengths}:
        raise unproven(
            f"the adapter's part of `{layer}` is not plain LoRA ({', '.join(sorted(names))})"
        )
    a, b = (parts[names[part]].double() for part in wanted)
    change = (b @ a) * adapter.scale(layer)
    for part in lengths:
        merged_layer = was + change
        length = parts[names[part]].double()[:, None]
        return merged_layer / merged_layer.norm(dim=1, keepdim=True) * length - was
    if embedding or turned:
        return change.T
    return change


def trained(folder: Path, base: Base, trust_remote_code: bool = False) -> Proof:
    """Proves that a trained model differs from its base. Raises Stop, and OSError if the base
    cannot be loaded."""
    import torch

    tensors, before, _ = states(folder, base, trust_remote_code)
    # Training may have added tokens.
    same = sum(name in tensors and torch.equal(tensors[name], was) for name, was in before.items())
    if same == len(tensors):
        raise unproven("all its tensors equal the base model's, so the training is lost")
    return {"changed_tensors": len(tensors) - same, "tensors": len(tensors)}


def beside(
    adapter: Path,
    base: Base,
    merged_model: Path,
    prompts: Sequence[Sequence[int]],
    trust_remote_code: bool,
) -> Proof:
    """Proves that an adapter beside its base model answers as the merged model, not as the base
    model. prompts: in token numbers. Returns the largest difference of a logit from the merged and
    the base model. Raises Stop if not."""
    import torch
    from peft import PeftModel

    def last_logits(model: PreTrainedModel) -> list[Any]:
        model.eval()
        with torch.no_grad():
            logits = []
            for prompt in prompts:
                logits.append(model(input_ids=torch.tensor([list(prompt)])).logits[0, -1])
            return logits

    plain = loaded(*base, torch.float32, trust_remote_code)
    without_adapter = last_logits(plain)
    with_adapter = last_logits(PeftModel.from_pretrained(plain, str(adapter)))
    of_merged = last_logits(loaded(str(merged_model), None, torch.float32, trust_remote_code))
    moved = _largest_difference(with_adapter, without_adapter)
    off = _largest_difference(with_adapter, of_merged)
    if not moved:
        raise unproven("with its base model it answers like the base model, so it was lost")
    # The rounding of a merge is smaller than the effect of the adapter.
    if not off < moved / 2:
        raise unproven(
            f"with its base model it differs by {off:.2g} from the merged model, and by {moved:.2g} from the base model"
        )
    return {"from_base": moved, "from_merged": off}


def _largest_difference(logits: Sequence[Any], compared: Sequence[Any]) -> float:
    pairs = zip(logits, compared, strict=True)
    return max(
        float((first_logits - second_logits).abs().max()) for first_logits, second_logits in pairs
    )
