"""Better or worse: a tiny model that was trained on a rule passes its gates, and one that was trained on noise is refused."""

from __future__ import annotations

import json
import random
from pathlib import Path

import pytest

from runner.check.validate import load
from runner.data import lyrics
from runner.runs import gates
from runner.runs.run_folder import RunFolder
from runner.runs.stage_folder import StageFolder
from runner.scenarios.shared import conversations, twin
from runner.training import held_out
from runner.training.answers import messages, written
from tests.conftest import ROOT
from tests.stages import finish, plan_in

pytestmark = pytest.mark.heavy

LYRICS = ROOT / "recipes" / "lyrics.yaml"
GENRES = {"moon": "jazz", "engine": "rock", "prairie": "country", "neon": "disco"}
ASKED = ["accuracy.genre >= 0.6", "improvement.perplexity >= 0.3", "forgetting <= 5", "generated_tokens >= 1"]


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
        made.append((f"{lyrics.GENRE[1]}\n\n{song}", genre))
    return made


def trained(folder: Path, rule: bool) -> StageFolder:
    """A finished run of the lyrics recipe whose model has learned from such rows, without the engine."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    recipe = load(LYRICS)[0]
    base = folder / twin.__name__.rpartition(".")[2]
    wanted = twin.wanted(recipe.facts, conversations.special_tokens(recipe), 2, 42, base, fixed_head=False)
    both = rows(400, rule)
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
    held_out.keep(made[:60], folder)
    torch.manual_seed(7)
    model = AutoModelForCausalLM.from_pretrained(base, dtype=torch.float32)
    steps, optimizer = made[60:], torch.optim.AdamW(model.parameters(), lr=3e-3)
    for start in [start for _ in range(4) for start in range(0, len(steps), 10)]:
        for each in steps[start : start + 10]:
            numbers, labels = (torch.tensor([each[name]]) for name in ("input_ids", "labels"))
            (model(input_ids=numbers, labels=labels).loss / 10).backward()
        optimizer.step()
        optimizer.zero_grad()
    run = RunFolder(folder, "rehearsal")
    run.mark("finished", recipe=recipe.name)
    plan = plan_in(
        folder, "lyrics", f"gates={json.dumps(ASKED)}", f"model.base={base}", accelerator=False, on_cluster=False
    )
    finish(plan)
    stage = StageFolder(plan, plan.stage("train"))
    model.save_pretrained(stage.model)
    tokenizer.save_pretrained(stage.model)
    stage.mark("finished", outputs=stage.outputs())
    return stage


@pytest.fixture(scope="module")
def measured(tmp_path_factory) -> dict[bool, StageFolder]:
    """A run that has learned a rule, and one that has learned noise, each measured."""
    made = {rule: trained(tmp_path_factory.mktemp(f"rule-{rule}"), rule) for rule in (True, False)}
    for folder in made.values():
        gates.measure(folder)
    return made


def test_what_was_trained_on_a_rule_passes(measured):
    folder = measured[True]
    record, verdicts = gates.record(folder), gates.verdicts(folder, look=True)
    assert isinstance(record, gates.Measurement) and gates.passed(verdicts), (record, verdicts)
    assert record.metrics["accuracy.genre"] == record.metrics["accuracy"] >= 0.6 > record.before["accuracy.genre"]
    gain = 1 - record.metrics["perplexity"] / record.before["perplexity"]
    assert record.metrics["improvement.perplexity"] == pytest.approx(gain)
    rise = record.metrics["general_loss"] - record.before["general_loss"]
    assert record.metrics["forgetting"] == pytest.approx(rise)
    assert record.counts["held_out_rows"] == record.counts["short_answers.genre"] == 60
    assert record.counts["general_tokens"] > 4000 and not record.missing.keys() - {"accuracy.style"}


def test_what_was_trained_on_noise_is_refused(measured):
    folder = measured[False]
    missed = {verdict.metric: verdict.why for verdict in gates.verdicts(folder) if not verdict.holds}
    assert missed == {"accuracy.genre": "it misses the threshold"}
    assert not gates.opened(folder)[0]


def test_a_number_that_is_missing_or_edited_is_refused(measured):
    folder = measured[True]
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
    held_out.keep([{"input_ids": [1, 2, 3], "labels": [1, 2, 3]}], folder.path)
    assert {verdict.why for verdict in gates.verdicts(folder)} == {
        "measured on other rows than those that are held out now"
    }
    (folder.path / "held_out.parquet").write_bytes(kept)
    assert gates.opened(folder, look=True)[0]


def test_the_command_says_it_to_people_and_programs_and_ends_so(measured, recipe_command, capsys):
    folder = measured[False]
    same = ("--set", f"gates={json.dumps(ASKED)}", "--set", f"model.base={folder.path / 'twin'}")
    done = recipe_command("evaluate", LYRICS, "--run", folder.path, *same, "--format", "json")
    assert done.returncode == 1, done.stdout + done.stderr
    said = json.loads(done.stdout)
    assert said["open"] is False and [gate["holds"] for gate in said["gates"]] == [False, True, True, True]
    assert said["seed"] == 42 and all(said[part] for part in ("run", "inputs", "model", "rows", "code", "settings"))
