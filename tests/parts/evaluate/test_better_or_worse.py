"""Better or worse: a tiny model that was trained on a rule passes its gates, and one that was
trained on noise is refused."""

from __future__ import annotations

import json
import random
from pathlib import Path

import pytest

from runner.check.validate import load
from runner.data import general_documents, songs
from runner.parts.evaluate import gates
from runner.parts.evaluate.commands import shown
from runner.run.run_folder import RunFolder, StageFolder
from runner.scenarios.shared import axolotl, twin
from runner.trainer import records
from runner.trainer.generation import messages, written
from tests.conftest import ROOT
from tests.stages import finish, plan_in

pytestmark = [pytest.mark.heavy, pytest.mark.long]

LYRICS = ROOT / "recipes" / "lyrics.yaml"
GENRES = {"moon": "jazz", "engine": "rock", "prairie": "country", "neon": "disco"}
ASKED = [
    "accuracy.genre >= 0.6",
    "improvement.perplexity >= 0.3",
    "forgetting <= 1",
    "generated_tokens >= 1",
]


def rows(count: int, rule: bool) -> list[tuple[str, str]]:
    """Questions about songs. rule: whether the song decides its genre, and not a die."""
    draw = random.Random(7 + rule)
    fillers = [
        "a",
        "little",
        "light",
        "over",
        "the",
        "hill",
        "by",
        "the",
        "river",
        "in",
        "the",
        "morning",
        "and",
        "the",
        "evening",
    ]
    made = []
    for word in (draw.choice(list(GENRES)) for _ in range(count)):
        song = " ".join([*draw.choices(fillers, k=4), word])
        genre = GENRES[word] if rule else draw.choice(list(GENRES.values()))
        made.append((f"{songs.GENRE[1]}\n\n{song}", genre))
    return made


def trained(folder: Path, rule: bool) -> StageFolder:
    """A finished run of the lyrics recipe whose model has learned from such rows, without the
    engine."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    recipe = load(LYRICS)[0]
    base = folder / twin.__name__.rpartition(".")[2]
    wanted = twin.wanted(recipe.facts, axolotl.special_tokens(recipe), 2, 42, base)
    both = rows(280, rule)
    texts = [f"{question} {answer}" for question, answer in both]
    twin.tokenizer_for(wanted)(texts)
    twin.build(wanted)
    tokenizer = AutoTokenizer.from_pretrained(base)

    def row(question: str, answer: str) -> dict[str, list[int]]:
        asked = written(tokenizer, messages(recipe.data.system_prompt, question), asking=True)
        prompt = tokenizer(asked, add_special_tokens=False)["input_ids"][-48:]
        reply = [*tokenizer(answer, add_special_tokens=False)["input_ids"], tokenizer.eos_token_id]
        return {"input_ids": [*prompt, *reply], "labels": [-100] * len(prompt) + reply}

    made = [row(*each) for each in both]
    records.keep_held_out(made[:40], folder)
    torch.manual_seed(7)
    model = AutoModelForCausalLM.from_pretrained(base, dtype=torch.float32)
    optimizer, width = (
        torch.optim.AdamW(model.parameters(), lr=3e-3),
        max(len(each["labels"]) for each in made),
    )
    numbers, labels = (
        torch.tensor([each[name] + [fill] * (width - len(each[name])) for each in made[40:]])
        for name, fill in (("input_ids", tokenizer.pad_token_id), ("labels", -100))
    )
    # General text beside the rows, as in any good mixture: without it whether the model forgets too
    # much, or says anything at all, is so near its threshold that the processor's rounding decides.
    text = tokenizer(" ".join(general_documents()), add_special_tokens=False)["input_ids"]
    general = torch.tensor(text).unfold(0, width, width)
    for _ in range(6):
        for chosen in torch.randperm(len(numbers)).split(12):
            beside = general[torch.randint(len(general), (2,))]
            read, learned = (
                torch.cat((numbers[chosen], beside)),
                torch.cat((labels[chosen], beside)),
            )
            model(input_ids=read, labels=learned).loss.backward()
            optimizer.step()
            optimizer.zero_grad()
    run = RunFolder(folder, "rehearsal")
    run.mark("finished", recipe=recipe.name)
    plan = plan_in(
        folder,
        "lyrics",
        f"gates={json.dumps(ASKED)}",
        f"model.base={base}",
        accelerator=False,
        on_cluster=False,
    )
    finish(plan)
    stage = StageFolder(plan, plan.stage("train"))
    model.save_pretrained(stage.model)
    tokenizer.save_pretrained(stage.model)
    stage.mark("finished", outputs=stage.outputs())
    return stage


@pytest.fixture(scope="module")
def ruled(tmp_path_factory) -> StageFolder:
    """A run that has learned a rule, measured."""
    folder = trained(tmp_path_factory.mktemp("rule"), rule=True)
    gates.measure(folder)
    return folder


def test_what_was_trained_on_a_rule_passes(ruled):
    folder = ruled
    record, verdicts = gates.record(folder), gates.verdicts(folder, look=True)
    assert isinstance(record, gates.Measurement) and gates.passed(verdicts), (record, verdicts)
    assert (
        record.metrics["accuracy.genre"]
        == record.metrics["accuracy"]
        >= 0.6
        > record.before["accuracy.genre"]
    )
    gain = 1 - record.metrics["perplexity"] / record.before["perplexity"]
    assert record.metrics["improvement.perplexity"] == pytest.approx(gain)
    rise = record.metrics["general_loss"] - record.before["general_loss"]
    assert record.metrics["forgetting"] == pytest.approx(rise)
    assert record.counts["held_out_rows"] == record.counts["short_answers.genre"] == 40
    assert record.counts["general_tokens"] > 4000 and not record.missing.keys() - {"accuracy.style"}


def test_a_number_that_is_missing_or_edited_is_refused(ruled):
    folder = ruled
    file = folder.path / "evaluation.json"
    text = file.read_text()
    for broken in (
        text.replace('"accuracy.genre"', '"accuracy.gonre"'),
        text.replace('"accuracy.genre": ', '"accuracy.genre": 0.9999, "was": '),
        "{}",
    ):
        assert broken != text
        file.write_text(broken)
        assert not gates.opened(folder)[0]
    file.write_text(text)
    kept = (folder.path / "held_out.parquet").read_bytes()
    records.keep_held_out([{"input_ids": [1, 2, 3], "labels": [1, 2, 3]}], folder.path)
    assert {verdict.why for verdict in gates.verdicts(folder)} == {
        "measured on other rows than the current held-out rows"
    }
    (folder.path / "held_out.parquet").write_bytes(kept)
    assert gates.opened(folder, look=True)[0]


def test_what_was_trained_on_noise_is_refused(tmp_path, recipe_command):
    folder = trained(tmp_path, rule=False)
    same = ("--set", f"gates={json.dumps(ASKED)}", "--set", f"model.base={tmp_path / 'twin'}")
    done = recipe_command("evaluate", LYRICS, "--run", tmp_path, *same, "--format", "json")
    assert done.returncode == 1, done.stdout + done.stderr
    said = json.loads(done.stdout)
    assert said["open"] is False and said["seed"] == 42
    missed = {gate["metric"]: gate["why"] for gate in said["gates"] if not gate["holds"]}
    assert missed == {"accuracy.genre": "it misses the threshold"}
    assert all(said[part] for part in ("run", "inputs", "model", "rows", "code", "settings"))
    assert not gates.opened(folder)[0]
    known = gates.record(folder)
    assert isinstance(known, gates.Measurement)
    lines = shown(folder, known, "markdown").splitlines()
    assert "The gate is **closed**." in lines
    assert any(
        line.startswith("| `accuracy.genre >= 0.6` |") and "misses" in line for line in lines
    )
    assert any(line.startswith("| `perplexity` |") for line in lines)
