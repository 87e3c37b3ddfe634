"""The whole way on real parts: `recipe rehearse` through Axolotl on this machine, and everything it
leaves behind."""

from __future__ import annotations

import importlib.util
import io
import itertools
import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from runner.check.validate import load as check
from runner.commands.cli import _code as command
from runner.parts.serve import chat, openai_api
from runner.run import inference
from runner.tools import child_process, text
from runner.tools.run_files import SERVED_TEMPLATE
from runner.trainer import records
from runner.trainer.generation import messages, written
from tests import servers, taught
from tests.conftest import ROOT
from tests.parts.report import browser, pages

pytestmark = pytest.mark.heavy

SURVIVAL = ROOT / "recipes" / "survival.yaml"


@pytest.fixture(scope="module")
def rehearsed(tmp_path_factory, recipe_command):
    """One rehearsal that all tests here look at: its folder and what it printed."""
    folder = tmp_path_factory.mktemp("rehearsal")
    done = recipe_command("rehearse", SURVIVAL, cwd=folder, env={"NCCL_DEBUG": "WARN"}, timeout=900)
    assert done.returncode == 0, done.stdout + done.stderr
    return folder / "runs" / "survival-rehearsal", done.stdout, done.stderr


def load(run: Path, name: str):
    return json.loads((run / name).read_text("utf-8"))


def test_a_rehearsal_learns_in_at_least_30_steps(rehearsed):
    run, printed, _ = rehearsed
    summary = load(run, "training_summary.json")
    assert summary["steps"] >= 30
    assert summary["best_validation_loss"] < 0.9 * summary["first_validation_loss"]
    assert (
        f"validation loss {summary['first_validation_loss']:.3f} → {summary['best_validation_loss']:.3f}"
        in printed
    )


def test_a_rehearsal_prints_about_one_screen_and_no_words_of_the_twin(rehearsed):
    """Piped, with ten more lines of steps than a terminal, which has a bar."""
    run, printed, _ = rehearsed
    assert len(printed.splitlines()) < 55
    assert "The twin's answers are fragments; `recipe compare` shows them." in printed
    for answer in load(run, "demo_outputs/answers.json"):
        assert answer["after"][:30] not in printed


def test_a_server_elsewhere_finds_the_template_with_the_system_prompt_of_training(rehearsed):
    from transformers import AutoTokenizer

    model = rehearsed[0] / "best_model"
    prompt = check(SURVIVAL)[0].data.system_prompt.strip()
    tokenizer = AutoTokenizer.from_pretrained(str(model))
    turns, asked = (
        [*before, {"role": "user", "content": "Why?"}]
        for before in ([], [{"role": "system", "content": prompt}])
    )
    trained = tokenizer.apply_chat_template(asked, tokenize=False, add_generation_prompt=True)
    tokenizer.chat_template = (model / SERVED_TEMPLATE).read_text("utf-8")
    assert (
        tokenizer.apply_chat_template(turns, tokenize=False, add_generation_prompt=True) == trained
    )


@pytest.mark.long
def test_data_sets_with_shares_are_rehearsed_to_the_end(tmp_path, recipe_command):
    """Two small sets in two forms, one of them half taken: the loss falls, and the summary has the
    part of each."""
    asked = [
        f"What does the {part} of ship {n} do?"
        for n in range(60)
        for part in ("keel", "rudder", "mast")
    ]
    with (tmp_path / "chats.jsonl").open("w", encoding="utf-8") as file:
        for question in asked:
            turns = [
                {"role": "user", "content": question},
                {"role": "assistant", "content": f"I say: {question.lower()}"},
            ]
            file.write(json.dumps({"messages": turns}) + "\n")
    with (tmp_path / "asked.csv").open("w", encoding="utf-8") as file:
        file.write(
            "Q;A\n"
            + "".join(f"Where is harbour {n}?;I say: where is harbour {n}?\n" for n in range(200))
        )
    recipe = {
        "scenario": "last-layers", "name": "two-sets", "description": "Two sets, one of them in part.",
        "model": {"base": "HuggingFaceTB/SmolLM3-3B"}, "machines": {"gpu": "NVIDIA-L40S"},
        "data": {"sets": [{"path": "chats.jsonl"}, {"path": "asked.csv", "question": "[Q]", "answer": "[A]", "share": 0.5}]},
    }  # fmt: skip
    (tmp_path / "two-sets.yaml").write_text(json.dumps(recipe), encoding="utf-8")
    done = recipe_command("rehearse", "two-sets.yaml", cwd=tmp_path)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr
    run = tmp_path / "runs" / "two-sets-rehearsal"
    summary, report = load(run, "training_summary.json"), load(run, "data/report.json")
    assert summary["best_validation_loss"] < 0.9 * summary["first_validation_loss"]
    trained = [one["train_rows"] for one in report["sets"]]
    assert 60 < report["not_taken"] < 140 and all(trained) and sum(trained) == report["train_rows"]
    assert list(summary["sets"]) == ["sets[0] chats.jsonl", "sets[1] asked.csv"]
    assert list(summary["sets"].values()) == pytest.approx(
        [count / sum(trained) for count in trained], abs=1e-4
    )
    assert not summary["proof"]["faults"]


@pytest.mark.long
def test_a_run_without_gates_is_measured_by_the_command(rehearsed, recipe_command):
    run, _, _ = rehearsed
    done = recipe_command("evaluate", SURVIVAL, "--run", run, "--format", "json")
    assert done.returncode == 0, done.stdout + done.stderr
    said, summary = json.loads(done.stdout), load(run, "training_summary.json")
    # The engine's is a mean over batches, and this one over tokens.
    assert said["before"]["validation_loss"] == pytest.approx(
        summary["first_validation_loss"], rel=0.02
    )
    assert said["metrics"]["validation_loss"] == pytest.approx(
        summary["best_validation_loss"], rel=0.02
    )
    assert (
        said["metrics"]["improvement.perplexity"] > 0.1 and abs(said["metrics"]["forgetting"]) < 20
    )
    assert said["counts"]["held_out_rows"] == load(run, "data/report.json")["validation_rows"]
    assert said["gates"] == [] and said["open"] is True


def test_rows_are_joined_as_on_a_gpu_and_none_is_padded(rehearsed):
    run, _, _ = rehearsed
    replaced = {
        change["setting"]: change for change in load(run, "training_summary.json")["substitutions"]
    }
    assert (replaced["model.attention"]["before"], replaced["model.attention"]["after"]) == (
        "flash_attention_2",
        "sdpa",
    )
    summary, report = load(run, "training_summary.json"), load(run, "data/report.json")
    # Every token that was computed is counted; padded, a row would have taken a multiple of 64.
    each = summary["tokens"] / (summary["epochs"] * report["train_rows"])
    assert report["token_lengths"]["min"] < each < report["token_lengths"]["median"] * 1.02


def test_nothing_but_the_runner_writes_to_the_terminal(rehearsed):
    _, printed, errors = rehearsed
    verdict, then = errors.split("\n")[1:3]
    assert (verdict, then) == (
        "Rehearsal passed: the whole recipe works here, with a tiny model.",
        f"Next: recipe rehearse {shlex.quote(str(SURVIVAL))} --model small",
    )
    assert errors == f"\n{verdict}\n{then}\n"
    assert "\r" not in printed and "\x1b" not in printed


def test_every_substitution_is_counted_and_written_down(rehearsed):
    run, printed, _ = rehearsed
    written = load(run, "training_summary.json")["substitutions"]
    assert {change["setting"] for change in written} >= {
        "data.hub", "data.path", "model.precision", "model.attention", "machines.nodes", "train.micro_batch_size",
        "train.learning_rate",
    }  # fmt: skip
    assert (
        f"{len(written)} settings are replaced, so that a tiny twin of the model trains on this CPU."
        in printed
    )
    assert load(run, "training_summary.json")["changes"] == [
        {
            "setting": "communication.nccl_debug",
            "before": "INFO",
            "after": "WARN",
            "by": "NCCL_DEBUG=WARN",
            "why": "",
        }
    ]


def test_one_process_does_the_work_of_the_machines(rehearsed):
    run, printed, _ = rehearsed
    summary = load(run, "training_summary.json")
    assert (summary["world_size"], summary["backend"]) == (1, None)
    assert "machines.gpus_per_node: " not in printed
    rows = load(run, "data/report.json")["train_rows"]
    assert summary["steps"] == pytest.approx(rows * 4 / summary["effective_batch_size"], abs=4)


def test_the_twin_speaks_of_what_it_was_taught_and_it_is_told_how(rehearsed):
    run, _, _ = rehearsed
    how = (
        "a tiny twin: 4 of 36 layers, width 64 of 2,048, a tokenizer made from these rows; it first learns general English, "
        "also after your questions, but none of your answers; it avoids repeating words (repetition penalty 1.3)"
    )
    substitutions = load(run, "training_summary.json")["substitutions"]
    assert [change["why"] for change in substitutions if change["setting"] == "model.base"] == [how]
    assert how in pages.read(run / "report.html").said
    taught.speaks(run)


def test_the_bar_is_told_what_goes_on_where_no_step_is_made(rehearsed):
    run, _, _ = rehearsed
    events = child_process.events((run / "train.log").read_text("utf-8"))
    phases = [event["phase"] for event in events if event["event"] == "phase"]
    epochs = len(load(run, "training_history.json")["epochs"]) - 1
    assert phases == ["measuring", "training"] + ["measuring", "saving", "training"] * epochs + [
        "saving",
        "asking",
    ]


def test_the_twin_is_the_original_made_small(rehearsed):
    run, _, _ = rehearsed
    config = load(run, "base_model/config.json")
    assert config["architectures"] == ["SmolLM3ForCausalLM"]
    assert config["tie_word_embeddings"] is True
    assert config["num_hidden_layers"] == 4
    trained = load(run, "training_summary.json")
    assert 0 < trained["trainable_parameters"] < trained["total_parameters"]


def test_only_the_last_layers_and_the_head_have_moved(rehearsed):
    import torch
    from safetensors.torch import load_file

    run, _, _ = rehearsed
    before, after = (
        load_file(run / name / "model.safetensors") for name in ("base_model", "best_model")
    )
    moved = {name for name in after if not torch.equal(before[name].float(), after[name].float())}
    assert moved
    assert all(
        name.startswith(("model.layers.2.", "model.layers.3.", "model.embed_tokens."))
        for name in moved
    )
    assert "model.embed_tokens.weight" in moved


def test_the_results_are_all_there(rehearsed):
    run, _, _ = rehearsed
    for name in (
        "best_model/config.json", "best_model/tokenizer.json", "training_history.json", "training_summary.json",
        "demo_outputs/answers.json", "demo_outputs/answers.md", "train.log", "config/axolotl.yaml", "config/recipe.json",
    ):  # fmt: skip
        assert (run / name).is_file(), name
    assert list((run / "tensorboard").rglob("events.out.tfevents.*"))
    assert [
        entry.name
        for entry in (run / "checkpoints").iterdir()
        if entry.name.startswith("checkpoint-")
    ]
    assert not list((run / "checkpoints").glob("*.safetensors"))


def test_the_best_model_loads_with_plain_transformers_and_is_the_best_one(rehearsed):
    import torch
    from datasets import Dataset
    from transformers import AutoModelForCausalLM, AutoTokenizer

    run, _, _ = rehearsed
    model = AutoModelForCausalLM.from_pretrained(run / "best_model")
    words = AutoTokenizer.from_pretrained(run / "best_model")
    losses, tokens = 0.0, 0
    for row in Dataset.from_parquet(
        str(run / "data" / "validation.parquet"), cache_dir=str(run / "cache")
    ):
        text = words.apply_chat_template(row["messages"], tokenize=False)
        prompt = words.apply_chat_template(
            row["messages"][:-1], tokenize=False, add_generation_prompt=True
        )
        ids = words(text, add_special_tokens=False, return_tensors="pt")["input_ids"]
        start = len(words(prompt, add_special_tokens=False)["input_ids"])
        with torch.no_grad():
            logits = model(ids).logits[0, start - 1 : -1]
        # The answer and its end-of-turn mark, without the line break behind it.
        losses += torch.nn.functional.cross_entropy(
            logits[:-1], ids[0, start:-1], reduction="sum"
        ).item()
        tokens += ids.shape[1] - start - 1
    best = load(run, "training_summary.json")["best_validation_loss"]
    assert losses / tokens == pytest.approx(best, rel=0.02)


def test_the_history_holds_every_step_and_every_epoch(rehearsed):
    run, _, _ = rehearsed
    history = load(run, "training_history.json")
    steps = load(run, "training_summary.json")["steps"]
    assert [entry["step"] for entry in history["steps"]] == list(range(1, steps + 1))
    assert set(history["steps"][0]) == {
        "step", "epoch", "loss", "learning_rate", "grad_norm", "samples_per_second", "tokens_per_second", "gpu_memory_gib", "gpu_reserved_gib", "gpu_driver_gib",
    }  # fmt: skip
    assert all(entry["tokens_per_second"] > 0 for entry in history["steps"])
    assert history["epochs"][0]["epoch"] == 0 and history["epochs"][0]["train_loss"] is None
    assert len(history["epochs"]) == 5
    losses = [entry["validation_loss"] for entry in history["epochs"]]
    assert min(losses) == load(run, "training_summary.json")["best_validation_loss"]


def test_the_summary_says_what_ran(rehearsed):
    run, _, _ = rehearsed
    summary = load(run, "training_summary.json")
    assert summary["recipe"]["name"] == "survival"
    assert summary["learning_rate"] == pytest.approx(summary["base_learning_rate"])
    assert set(summary["versions"]) >= {
        "recipe-runner",
        "python",
        "axolotl",
        "torch",
        "transformers",
    }
    assert summary["training_seconds"] > 0


def test_demo_questions_are_answered_before_and_after(rehearsed):
    run, _, _ = rehearsed
    answers = load(run, "demo_outputs/answers.json")
    from runner.recipe.reading import read

    assert [row["question"] for row in answers] == read(SURVIVAL).data["demo"]["questions"]
    assert any(row["before"] != row["after"] for row in answers)


def test_words_that_only_the_rows_can_have_taught_are_emphasised(rehearsed):
    run, _, _ = rehearsed
    answers = load(run, "demo_outputs/answers.json")
    told = set(text.words(" ".join(taught.texts(run, "train"))))
    own = {word for row in answers for word in row["learned"]}
    assert own and own <= told and not own & set(text.words(text.GENERAL_TEXT.read_text("utf-8")))
    for row in answers:
        assert not set(row["learned"]) & set(text.words(f"{row['before']} {row['question']}"))
    marked = re.findall(
        r'<strong class="own">([^<]+)</strong>', (run / "report.html").read_text("utf-8")
    )
    assert {word.casefold() for word in marked} == {"marked words", *own}


def test_the_page_to_show_has_the_figures_of_the_files(rehearsed):
    run, printed, _ = rehearsed
    assert printed.endswith("The result page is runs/survival-rehearsal/report.html\n")
    page = pages.read(run / "report.html")
    pages.holds_the_figures_of(page, run)
    for answer in load(run, "demo_outputs/answers.json"):
        assert answer["question"] in page.said
    proof, report = load(run, "proof.json"), load(run, "data/report.json")
    assert (
        f"Of {proof['trained'] + proof['seen']:,} tokens in {proof['rows']:,} training rows"
        in page.said
    )
    assert (
        sum(rows for _, _, rows in report["length_bins"])
        == report["train_rows"] + report["validation_rows"]
    )
    for first, last, rows in report["length_bins"]:
        assert f"{first:,} to {last:,} {rows:,}" in page.said
    for change in load(run, "training_summary.json")["substitutions"]:
        assert f"{change['setting']} " in page.said
    steps = load(run, "training_summary.json")["steps"]
    assert f"train steps {steps} {steps}" in page.said, "what was planned is what was taken"


def test_a_finished_rehearsal_is_not_repeated(rehearsed, recipe_command):
    run, _, _ = rehearsed
    before = (run / "train.log").stat().st_mtime_ns
    done = recipe_command("rehearse", SURVIVAL, cwd=run.parent.parent, env={"NCCL_DEBUG": "WARN"})
    assert done.returncode == 0
    assert "already done." in done.stdout and "`--fresh`" in done.stdout
    assert (run / "train.log").stat().st_mtime_ns == before


def test_ask_and_compare_say_which_model_answers(rehearsed, recipe_command):
    run, _, _ = rehearsed
    answers = load(run, "demo_outputs/answers.json")
    question = answers[0]["question"]
    done = recipe_command("ask", SURVIVAL, question, cwd=run.parent.parent)
    assert done.returncode == 0, done.stderr
    assert (
        done.stdout
        == f"The model that `train` trained in this rehearsal: {run}/best_model\n\n{answers[0]['after']}\n"
    )
    done = recipe_command("ask", SURVIVAL, question, "--base", "--run", run, cwd="/")
    assert (
        done.stdout
        == f"The model that `train` started from in this rehearsal: {run}/base_model\n\n{answers[0]['before']}\n"
    )
    done = recipe_command("compare", SURVIVAL, "--run", run)
    assert done.returncode == 0
    assert f"before: {run}/base_model\nafter:  {run}/best_model\n" in done.stdout
    assert done.stdout.count("│") > 10 and "bowline" in done.stdout


@pytest.fixture(scope="module")
def server(rehearsed):
    """The address of `recipe serve`, at work on that rehearsal."""
    with servers.served(SURVIVAL, rehearsed[0]) as (url, _):
        yield url


@pytest.mark.long
def test_one_server_has_both_models_and_each_answers_as_it_did_for_the_run(rehearsed, server):
    import openai

    known = load(rehearsed[0], "demo_outputs/answers.json")[:2]
    client = openai.OpenAI(base_url=f"{server}/v1", api_key="none")
    assert sorted(model.id for model in client.models.list()) == ["survival", "survival-base"]
    said = {}
    for side, model in (("before", "survival-base"), ("after", "survival")):
        for row in known:
            turns = [{"role": "user", "content": row["question"]}]
            answer = client.chat.completions.create(model=model, messages=turns, max_tokens=40)
            said[side, row["question"]] = answer.choices[0].message.content
            assert said[side, row["question"]].strip() == row[side], (
                "also without a system prompt and a temperature"
            )
    assert all(said["before", row["question"]] != said["after", row["question"]] for row in known)


def test_what_a_server_reads_of_a_request_is_token_for_token_what_training_saw(rehearsed):
    from pyarrow import parquet

    run, _, _ = rehearsed
    recipe = check(SURVIVAL)[0]
    before, after = inference.models(recipe, inference.folder_of(recipe, str(run)))
    home = run / "tokens"
    openai_api.lay_out(home, {recipe.name: (before, after)})
    rows = [
        row["messages"]
        for row in parquet.read_table(run / "data" / "validation.parquet").to_pylist()
    ]
    # Some are longer than the engine takes.
    held = records.read_held_out(run / "held_out.parquet").rows
    trained = {
        tuple(numbers[: [label != -100 for label in labels].index(True)])
        for numbers, labels in held
    }
    model = openai_api._snapshot(home, "survival")
    with servers.listening(model) as read:
        asked = [[turn for turn in row if turn["role"] == "user"] for row in rows]
        assert all(
            len(turns) == 1 and row[0]["role"] == "system"
            for turns, row in zip(asked, rows, strict=True)
        )
        heard = [tuple(read(turns)) for turns in asked]
        assert len(trained) >= 5 and trained <= set(heard)
        assert read(rows[0][:2]) == list(heard[0]), "a request with the system prompt has it once"
        assert (
            read([{"role": "system", "content": "Be brief."}, *asked[0]])[-9:]
            == list(heard[0])[-9:]
        )
    ends = load(model, "generation_config.json")["eos_token_id"]
    for numbers, labels in held:
        assert [token for token, label in zip(numbers, labels, strict=True) if label != -100][
            -1
        ] in ends
    shutil.rmtree(home)


@pytest.mark.long
def test_a_server_is_asked_compared_and_measured_by_its_address(rehearsed, server, capsys):
    run, _, _ = rehearsed
    row = load(run, "demo_outputs/answers.json")[0]
    length = ("--set", "demo.max_new_tokens=40")
    for more, side, model in (((), "after", "survival"), (("--base",), "before", "survival-base")):
        assert (
            command(["ask", str(SURVIVAL), row["question"], "--url", server, *length, *more]) == 0
        )
        assert capsys.readouterr().out.endswith(f"{model} at {server}/v1\n\n{row[side]}\n")
    assert (
        command(
            [
                "compare",
                str(SURVIVAL),
                "--url",
                f"{server}/v1/",
                "--question",
                row["question"],
                *length,
            ]
        )
        == 0
    )
    said = capsys.readouterr().out
    assert (
        f"before: survival-base at {server}/v1\nafter:  survival at {server}/v1\n" in said
        and row["after"][:9] in said
    )
    recorded = sorted(run.glob("evaluation*"))
    assert (
        command(["evaluate", str(SURVIVAL), "--run", str(run), "--url", server, "--format", "json"])
        == 0
    )
    found = json.loads(capsys.readouterr().out)
    assert found["metrics"] == found["before"] == {"agreement": 1.0}
    assert "no log-probabilities" in found["missing"]["perplexity"] and "open" not in found
    assert sorted(run.glob("evaluation*")) == recorded, (
        "what a server says opens and closes no gate"
    )


def test_a_chat_puts_each_question_to_both_models_and_streams_what_they_say(
    rehearsed, monkeypatch, capsys
):
    run, _, _ = rehearsed
    known = load(run, "demo_outputs/answers.json")
    monkeypatch.setattr("sys.stdin", io.StringIO("/2\n\n/new\n/help\nHello?\nQuit\nnever asked\n"))
    assert command(["chat", str(SURVIVAL), "--run", str(run)]) == 0
    said = capsys.readouterr().out
    assert (
        f"/2  {known[1]['question']}" in said
        and said.count("original ") == said.count("trained ") == 2
    )
    assert known[1]["after"][:9] in said and "`/help` is not in the list. /1, /2, … asks" in said
    recipe = check(SURVIVAL)[0]
    sides = chat.sides(recipe, inference.folder_of(recipe, str(run)))
    question = known[0]["question"]
    parts = list(sides.ask(question, ()))
    assert parts[-1] == (known[0]["before"], known[0]["after"])
    assert len(parts) > 10 and all(
        now[1].startswith(old[1]) for old, now in itertools.pairwise(parts)
    )
    trained = sides.both[1]
    # What was said before is read again.
    read = written(
        trained.tokenizer,
        messages(trained.chat.system_prompt, "And then?", [(question, parts[-1][1])]),
        asking=True,
    )
    assert read.index(question) < read.index(parts[-1][1]) < read.index("And then?")
    # Whoever wants no more of an answer can ask the next question.
    begun = chat.stream(trained, question)
    next(begun)
    begun.close()
    assert trained.answer(question) == known[0]["after"]


@pytest.mark.long
@pytest.mark.skipif(not browser.found(), reason="no Chromium here")
def test_a_page_shows_both_answers_to_a_question_of_the_demo_and_to_ones_own(rehearsed, tmp_path):
    run, _, _ = rehearsed
    row = load(run, "demo_outputs/answers.json")[0]
    with (
        servers.shown("chat", SURVIVAL, run, "--page") as (url, _),
        browser.Browser(tmp_path) as page,
    ):
        page.open(url)

        def until(text: str) -> str:
            for _ in range(600):
                if text in (said := page.value("document.body.innerText")):
                    return said
                time.sleep(0.1)
            raise AssertionError(said)

        until("New conversation")
        asked = f"e => e.innerText.includes({json.dumps(row['question'])})"
        page.value(f"[...document.querySelectorAll('button')].find({asked}).click()")
        said = until(row["after"])
        assert "original" in said and "trained" in said and row["before"] in until(row["before"])
        places = (
            4 if any("expected" in each for each in load(run, "demo_outputs/answers.json")) else 3
        )
        assert said.count(row["question"]) == places, "on the button and on every board"
        page.value("document.querySelector('textarea').focus()")
        page.ask("Input.insertText", text="And then?")
        page.value("document.querySelector('button.submit-button').click()")
        assert until("And then?").count(row["question"]) == places, "the conversation goes on"
        page.value(
            "[...document.querySelectorAll('button')].find(e => e.innerText == 'New conversation').click()"
        )
        # Also while an answer is being written.
        page.until(f"document.body.innerText.split({json.dumps(row['question'])}).length == 2")


@pytest.mark.long
def test_a_killed_rehearsal_goes_on_from_its_last_checkpoint(rehearsed, tmp_path, recipe_command):
    source, _, _ = rehearsed
    command = [
        sys.executable,
        "-u",
        "-m",
        "runner",
        "rehearse",
        str(SURVIVAL),
        "--out",
        str(tmp_path / "run"),
    ]
    env = os.environ | {"PYTHONPATH": str(ROOT)}
    with subprocess.Popen(
        command, cwd=tmp_path, env=env, stdout=subprocess.PIPE, text=True, start_new_session=True
    ) as process:
        said = []
        for line in process.stdout:
            said.append(line)
            if line.startswith("  epoch 2:"):
                break
        assert said[-1].startswith("  epoch 2:"), "".join(said)
        for child in _children(process.pid):
            os.kill(child, signal.SIGKILL)
        os.kill(process.pid, signal.SIGKILL)
    reached = max(
        entry["step"] for entry in load(tmp_path / "run", "training_history.json")["steps"]
    )
    done = recipe_command("rehearse", SURVIVAL, "--out", tmp_path / "run", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "train: continuing; log in" in done.stdout
    log = (tmp_path / "run" / "train.log").read_text("utf-8")
    begins = [event for event in child_process.events(log) if event["event"] == "begin"]
    assert begins[0]["step"] == 0 and 0 < begins[1]["step"] <= reached
    undisturbed, resumed = (
        load(run, "training_history.json") for run in (source, tmp_path / "run")
    )
    assert [entry["step"] for entry in resumed["steps"]] == [
        entry["step"] for entry in undisturbed["steps"]
    ]
    assert resumed["epochs"][-1]["validation_loss"] == pytest.approx(
        undisturbed["epochs"][-1]["validation_loss"], abs=1e-3
    )


def _children(pid: int) -> list[int]:
    """All processes below `pid`, deepest first."""
    listed = subprocess.run(
        ["ps", "-eo", "pid=,ppid="], capture_output=True, text=True, check=True
    ).stdout.split("\n")
    parents = [tuple(map(int, line.split())) for line in listed if line.strip()]
    direct = [child for child, parent in parents if parent == pid]
    return [below for child in direct for below in _children(child)] + direct


def engine(
    run: Path, config: Path, *launcher: str, env: dict[str, str]
) -> subprocess.CompletedProcess:
    command = [sys.executable, "-m", "axolotl.cli.main", "train", str(config), *launcher]
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    whole = (
        os.environ
        | {
            "PYTHONPATH": str(ROOT),
            "PATH": path,
            "CUDA_VISIBLE_DEVICES": "",
            "OMP_NUM_THREADS": "1",
            "AXOLOTL_DO_NOT_TRACK": "1",
        }
        | env
    )
    return subprocess.run(command, cwd=run, env=whole, capture_output=True, text=True, timeout=300)


def copy_of(rehearsed, tmp_path) -> tuple[Path, Path]:
    """The rehearsal's config in another folder, nothing trained yet."""
    run, _, _ = rehearsed
    other = tmp_path / "run"
    other.mkdir()
    for name in ("data", "config", "base_model"):
        shutil.copytree(run / name, other / name)
    config = other / "config" / "axolotl.yaml"
    config.write_text(config.read_text("utf-8").replace(str(run), str(other)), "utf-8")
    return other, config


@pytest.mark.long
def test_processes_that_each_train_everything_alone_are_stopped(rehearsed, tmp_path):
    """Without ACCELERATE_USE_CPU both processes would train all the rows, and exit 0."""
    run, config = copy_of(rehearsed, tmp_path)
    text = config.read_text("utf-8")
    assert text.count("world_size: 1") == 1
    config.write_text(text.replace("world_size: 1", "world_size: 2"), "utf-8")
    done = engine(
        run, config, "--launcher", "torchrun", "--", "--standalone", "--nproc_per_node=2", env={}
    )
    assert done.returncode != 0
    assert "2 processes" in load(run, "stopped.json")["message"]
    assert not (run / "best_model").exists()


@pytest.mark.long
def test_broken_weights_never_look_like_success(rehearsed, tmp_path):
    from safetensors.torch import load_file, save_file

    run, config = copy_of(rehearsed, tmp_path)
    weights = run / "base_model" / "model.safetensors"
    tensors = load_file(weights)
    tensors["model.norm.weight"] *= 100
    save_file(tensors, weights, metadata={"format": "pt"})
    done = engine(run, config, "--launcher", "python", env={"ACCELERATE_USE_CPU": "true"})
    assert done.returncode != 0
    message = load(run, "stopped.json")["message"]
    assert message.startswith("The first validation loss is ") and "weights" in message


@pytest.mark.long
def test_what_a_rehearsal_has_left_is_exported(rehearsed, recipe_command):
    """By the recipe in place of the run, as a person does; GGUF where the extra that is compiled is
    installed."""
    run, _, _ = rehearsed
    done = recipe_command("export", SURVIVAL, cwd=run.parents[1])
    assert done.returncode == 0, done.stderr
    assert "runs/survival-rehearsal/export/safetensors/" in done.stdout
    made = load(run, "export/safetensors/export.json")
    assert (
        made["run"] == load(run, "run.json")["id"]
        and 0 < made["proof"]["changed_tensors"] < made["proof"]["tensors"]
    )
    card = (run / "export/safetensors/README.md").read_text("utf-8")
    assert "This is a rehearsal's tiny twin" in card and "validation loss fell" in card
    if importlib.util.find_spec("llama_cpp") is None:
        pytest.skip("the extra `gguf` is not installed")
    done = recipe_command("export", run, "--format", "gguf", cwd=run)
    assert done.returncode == 0, done.stderr
    proof = load(run, "export/gguf/export.json")["proof"]
    assert (
        proof["prompts"] == len(load(run, "demo_outputs/answers.json"))
        and proof["same_tokens"] == proof["tokens"] > 100
    )
