"""Proof around a run: of prepared rows, of what the engine is about to train, and of what is on record."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from runner.parts.proof import showing
from runner.plan import Place
from runner.recipe.recipe import Recipe
from runner.tools.problem import Stop
from runner.trainer.proof_record import Proof

Tell = Callable[[str], None]


def prove(proofs: Mapping[str, Any], tell: Tell) -> None:
    """The engine gets as far as the first step of each stage: rows are tokenised, and judged before a GPU is held.

    `model` and `tokenizer`: as `without_gpu.prove` takes them; `stages`: by name the engine's `config`, and where the proof goes
    to, `out`.
    """
    import yaml

    from runner.parts.proof import without_gpu
    from runner.scenarios.shared import twin as twins

    model = twins.read_model(proofs["model"]) if proofs["model"] else None
    for name, stage in proofs["stages"].items():
        tell(f"Tokenising, and proving what `{name}` will train")
        config = yaml.safe_load(Path(stage["config"]).read_text(encoding="utf-8"))
        try:
            proven = without_gpu.prove(config, Path(stage["out"]), model, proofs["tokenizer"])
        except Stop as stop:
            raise Stop(f"`{name}` cannot be trained like this. {stop.text}") from None
        for line in showing.plain(proven):
            tell(f"  {line}")


def before_training(cfg: Any, trainer: Any, settings: Any) -> str:
    """What is wrong with the rows that are about to be trained, for a person; empty where nothing is."""
    from runner.parts.proof import before_training as first_step

    return first_step.prove(cfg, trainer, settings).complaint


def show_rows(recipe: Recipe, place: Place, count: int, say: Tell, shown: Callable[[str], Iterable[str]]) -> None:
    """What each stage trains, as the engine makes it of the rows that lie there now. Raises Stop where that cannot be told."""
    from runner.parts.proof import without_gpu
    from runner.scenarios import translate

    provable = without_gpu.stages(recipe, translate(recipe, place))
    if not provable:
        raise Stop(f"`{recipe.name}` trains on images; there are no tokens to show.", "Leave out `--show`.", code=2)
    for stage in provable:
        say(f"{stage.name}: what is trained")
        stage.prove(count)
        for line in shown(str(stage.folder)):
            say(line)


def shown(folder: str, whole: bool = False) -> Iterable[list[showing.Styled]]:
    """What is trained, as the proof in a folder has it: lines of parts, each with what it is."""
    return showing.lines(Proof.read(Path(folder)), whole)
