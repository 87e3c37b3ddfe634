"""Creates and shows proofs: after preparation and on request."""

import os
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import yaml

from runner import catalog
from runner.catalog.models import of_facts
from runner.data import tokenizers
from runner.plan import EngineConfig, Place
from runner.recipe.recipe import Recipe
from runner.run.launch import TRAIN, WITHOUT_GPU, engine_environment, follow
from runner.scenarios import translate
from runner.scenarios.shared import axolotl, common, twin
from runner.tools import packaged
from runner.tools.files import write_text
from runner.tools.problem import Stop, Tell
from runner.tools.text import template, yaml_text
from runner.trainer.records import Proof

Styled = tuple[str, str]  # what it is, and its text
TABLES = packaged.toml(__file__, "proof.toml")


def prove(proofs: Mapping[str, Any], tell: Tell) -> None:
    """Runs the engine up to the first step of each stage: tokenises rows, and judges them before a
    GPU is used.

    proofs: for each stage by name, the engine's `config`, the folder `out` for the proof and, if
    its base model does not exist yet, `model` and `tokenizer`, as for `prove_config`.
    """
    for name, stage in proofs.items():
        tell(f"Tokenising, and proving what `{name}` will train")
        config = yaml.safe_load(Path(stage["config"]).read_text(encoding="utf-8"))
        if stage.get("model"):
            model = of_facts(stage["model"])
        else:
            model = None
        try:
            proven = prove_config(config, Path(stage["out"]), model, stage.get("tokenizer"))
        except Stop as stop:
            raise Stop(f"`{name}` cannot be trained like this. {stop.text}") from None
        for line in plain(proven):
            tell(f"  {line}")


def show_rows(recipe: Recipe, place: Place, count: int, say: Tell) -> Iterator[str]:
    """Proves each stage on the present rows, and returns the folder of each proof. Raises Stop for
    images, and if the tokenizer is neither here nor on the hub."""
    trained = [stage for stage in translate(recipe, place).stages if stage.engine == "axolotl"]
    if not trained:
        raise Stop(
            f"`{recipe.name}` trains on images, so there are no tokens to show.",
            "Leave out `--show`.",
            code=2,
        )
    tokenizer_folder = None
    prepared_folder = Path(place.data_dir, "tokenizer")
    if prepared_folder.is_dir():
        tokenizer_folder = str(prepared_folder)
    else:
        tokenizer = common.tokenizer(recipe, place)
        if Path(tokenizer.base).is_dir():
            revision = None
        else:
            revision = tokenizer.revision
        if tokenizers.load(tokenizer.base, revision, tokenizer.trust_remote_code) is None:
            raise Stop(
                f"The tokenizer of `{tokenizer.base}` is not available, so there are no tokens to show.",
                "Check the network and your access. Or run `recipe rehearse`, which shows these rows with the tokens of a tiny model.",
            )
    for stage in trained:
        say(f"{stage.name}: what is trained")
        folder = Path(common.proof_dir(place), stage.folder)
        prove_config(stage.config, folder, recipe.facts, tokenizer_folder, count)
        yield str(folder)


def shown(folder: str, rows: bool = False) -> Iterable[list[Styled]]:
    """The proof in a folder, see `lines`; its rows are whole. rows: whether to show them."""
    proof = Proof.read(Path(folder))
    if rows:
        return lines(proof, whole=True)
    return lines(replace(proof, shown=()))


# Tokens of a long stretch that are shown: the first and the last.
FIRST, LAST = 14, 8


def lines(proof: Proof, whole: bool = False) -> Iterator[list[Styled]]:
    """Lines of parts, each with its kind: `trained`, `seen`, `cut`, or nothing. whole: show every
    token."""
    if proof.shown:
        yield [("", TABLES["explained"])]
    for row in proof.shown:
        yield [("", f"row {row['row']:,}, {row['tokens']:,} tokens")]
        for kind, tokens in row["spans"]:
            hidden = len(tokens) - FIRST - LAST
            if not whole and hidden > 1:
                tokens = [*tokens[:FIRST], f"… {hidden:,} more …", *tokens[-LAST:]]
            text = "·".join(tokens).replace("\n", "⏎")
            yield [("", f"  {kind:<8} "), (kind, text)]
    below = template(Path(__file__).with_name("proof.txt.jinja")).render(proof=proof)
    for line in below.splitlines():
        yield [("", line)]


def plain(proof: Proof) -> Iterator[str]:
    return ("".join(text for _, text in line) for line in lines(proof))


def prove_config(
    config: EngineConfig,
    folder: Path,
    model: catalog.Model | None = None,
    tokenizer: str | None = None,
    show: int = 2,
) -> Proof:
    """Judges the rows of an Axolotl config; writes `proof.json` and a log to `folder`. model: for
    the twin, instead of the config's own; tokenizer: a folder, if it is not with the base model;
    show: rows to show. Raises Stop with the problem, or if the engine fails."""
    tokenizers.forget_older(config)
    base_model = config["base_model"]
    with tempfile.TemporaryDirectory() as scratch:
        twin_folder = Path(scratch, "twin")
        proof_config = _proof_config(config, folder, show) | {
            "base_model": str(twin_folder),
            "tokenizer_config": tokenizer or config.get("tokenizer_config") or base_model,
            "output_dir": str(Path(scratch, "out")),
        }
        if model is None:
            model = catalog.model(base_model) or catalog.model(catalog.model_ids()[0])
        assert model is not None
        twin.bare(model, twin_folder)
        file = Path(scratch, "axolotl.yaml")
        write_text(file, yaml_text(proof_config))
        most = int(os.environ.get(tokenizers.TOKENISING_PROCESSES) or os.cpu_count() or 1)
        workers = {tokenizers.TOKENISING_PROCESSES: str(tokenizers.processes(config, most))}
        env = engine_environment() | WITHOUT_GPU | axolotl.UNTRACKED | workers
        command = [*TRAIN, str(file), "--launcher", "python"]
        follow(command, env, folder, lambda event: None, "Proving")
    return Proof.read(folder)


def _proof_config(config: EngineConfig, folder: Path, show: int) -> EngineConfig:
    """The config of a proof: the same rows, batches and template, for a tiny model."""
    changes = TABLES["config"]
    dropped_kinds = tuple(changes["dropped_kinds"])
    settings = {}
    for name, value in config.items():
        if name in changes["dropped"] or name.startswith(dropped_kinds):
            continue
        is_kernel = name.startswith("lora_") and name.endswith("_kernel")
        settings[name] = False if is_kernel else value
    settings |= changes["settings"]
    if config.get("adapter"):
        settings["adapter"] = "lora"
    if "trl" in config:
        settings["trl"] = {**config["trl"], "use_vllm": False}
    runner = config["recipe_runner"]
    planned = config.get("attn_implementation")
    proof = {**runner.get("proof", {}), "show": show, "planned": planned, **changes["proof"]}
    changed = {"run_dir": str(folder), **changes["runner"], "proof": proof}
    return settings | {"plugins": [axolotl.PLUGIN], "recipe_runner": {**runner, **changed}}
