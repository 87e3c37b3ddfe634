"""Serving and asking by address: what is laid out for a server, and what is said where one is not
as it should be."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer, models, pre_tokenizers, processors
from transformers import AutoTokenizer, GemmaTokenizer, LlamaTokenizer, PreTrainedTokenizerFast

from runner import catalog
from runner.check.validate import examine, load
from runner.commands.cli import _code as command
from runner.data.tokenizers import jinja
from runner.parts.evaluate import evaluate
from runner.parts.evaluate.evaluate import Measures
from runner.parts.serve import openai_api
from runner.run.run_folder import RunFolder
from runner.tools import packaged, process, text
from runner.tools.files import write_json
from runner.tools.problem import Stop
from runner.tools.process import bound_port, free_port
from runner.trainer.generation import Chat, messages, with_system, written
from tests.conftest import ROOT
from tests.stages import finish, plan_in

SURVIVAL = ROOT / "recipes" / "survival.yaml"
PROMPT = 'You\'re "calm".\nUse {{ no }} {% tricks %}, \\ and 🙂 ümlauts.'
PIECES = ["<pad>", "<eos>", "<bos>", "<unk>", "<s>", "</s>", "▁", "a", "b", "▁a", "▁b"]


@pytest.mark.parametrize(
    "name",
    sorted(
        {
            facts.chat_template
            for name in catalog.model_ids()
            if (facts := catalog.model(name)).chat_template
        }
    ),
)
def test_a_template_begins_with_the_system_prompt_of_training_where_a_request_has_none(name):
    plain = PreTrainedTokenizerFast(tokenizer_object=Tokenizer(models.BPE()), eos_token="</s>")
    plain.chat_template = jinja(catalog.chat_template(name))
    asked, turns = (
        messages(PROMPT, "Why?", earlier=[("Who?", "I.")]),
        messages(None, "Why?", earlier=[("Who?", "I.")]),
    )
    trained, without = (written(plain, each, asking=True) for each in (asked, turns))
    plain.chat_template = with_system(plain.chat_template, f" {PROMPT}\n")
    assert (
        written(plain, turns, asking=True)
        == written(plain, asked, asking=True)
        == trained
        != without
    )
    other = messages("Be brief.", "Why?")
    assert PROMPT not in written(plain, other, asking=True) and "Be brief." in written(
        plain, other, asking=True
    )


def byte_level() -> PreTrainedTokenizerFast:
    made = Tokenizer(
        models.BPE(
            vocab={piece: at for at, piece in enumerate(PIECES)}, merges=[("▁", "a"), ("▁", "b")]
        )
    )
    made.pre_tokenizer = pre_tokenizers.Metaspace()
    made.post_processor = processors.TemplateProcessing(
        single="<bos> $A <eos>", special_tokens=[("<bos>", 2), ("<eos>", 1)]
    )
    return PreTrainedTokenizerFast(tokenizer_object=made, bos_token="<bos>", eos_token="<eos>")


@pytest.mark.parametrize("kind", [GemmaTokenizer, LlamaTokenizer, byte_level])
def test_plain_text_becomes_its_own_tokens_and_no_others(kind, tmp_path):
    if kind is byte_level:
        made = byte_level()
    else:
        vocabulary = {piece: at for at, piece in enumerate(PIECES)}
        made = kind(vocab=vocabulary, merges=[("▁", "a"), ("▁", "b")], add_bos_token=True)
    assert made("a b").input_ids[0] == made.bos_token_id, "as its makers have it"
    bare = made("a b", add_special_tokens=False).input_ids
    openai_api._exactly(made)
    made.save_pretrained(str(tmp_path))
    assert AutoTokenizer.from_pretrained(str(tmp_path))("a b").input_ids == bare


def test_names_are_those_that_the_hubs_cache_takes():
    from huggingface_hub.utils import validate_repo_id

    for name in ("survival", "a--b---c", "x" * 53):
        for called in text.served(name):
            validate_repo_id(called)
            assert "--" not in called
    assert text.served("survival") == ("survival-base", "survival")


def test_a_port_that_is_taken_is_said_before_anything_is_loaded():
    with bound_port(0) as other:
        other.listen()
        port = other.getsockname()[1]
        with pytest.raises(Stop, match=f"Port {port} of this machine is in use") as stop:
            free_port(port)
    assert "`--port`" in stop.value.text
    assert free_port() > 0


def test_a_port_that_nobody_can_have_is_said_so(monkeypatch):
    monkeypatch.setattr(process, "HOST", "203.0.113.1")
    with pytest.raises(Stop, match="cannot be used: Cannot assign requested address"):
        free_port()


def test_a_server_that_is_not_installed_is_said_with_its_extra(monkeypatch, tmp_path, capsys):
    RunFolder(tmp_path).mark("running", recipe="survival")
    finish(plan_in(tmp_path, "survival"))
    monkeypatch.setattr(openai_api, "find_spec", lambda name: None)
    assert command(["serve", str(SURVIVAL), "--run", str(tmp_path)]) == 1
    said = capsys.readouterr()
    assert "served by transformers" in said.out and packaged.install("serve") in said.err
    assert command(["serve", str(SURVIVAL), "--run", str(tmp_path), "--engine", "vllm"]) == 1
    assert "vLLM is not installed here" in capsys.readouterr().err


def asked(folder: Path, name: str, rank: int = 8, **own: Any) -> tuple[Chat, Chat]:
    """A recipe's models after training an adapter. own: fields of both."""
    home = folder / name
    if not home.exists():
        made = byte_level()
        made.chat_template = own.pop("template", "{{ messages }}")
        made.save_pretrained(str(home / "best_model"))
        write_json(home / "lora_adapter" / "adapter_config.json", {"r": rank})
    before = Chat(**{"model": "base", "revision": "main", "tokenizer": str(home / "best_model"), "system_prompt": None, "max_new_tokens": 9} | own)  # fmt: skip
    return before, replace(
        before, model=str(home / "best_model"), adapter=str(home / "lora_adapter")
    )


def test_vllm_gets_the_adapters_of_all_recipes(tmp_path):
    pairs = {"lyrics": asked(tmp_path, "lyrics"), "songs": asked(tmp_path, "songs", 24)}
    assert openai_api._vllm_refusal(pairs) == ""
    said = openai_api._vllm(tmp_path, pairs)
    assert said[said.index("--served-model-name") + 1 :][:2] == ["lyrics-base", "songs-base"]
    assert said[said.index("--lora-modules") + 1 :] == [
        f"{name}={pairs[name][1].adapter}" for name in pairs
    ]
    assert (said[said.index("--max-loras") + 1], said[said.index("--max-lora-rank") + 1]) == (
        "2",
        "32",
    )


@pytest.mark.parametrize(
    ("other", "why"),
    [
        ({"model": "another"}, "its base model is not that of `lyrics`"),
        ({"template": "{{ other }}"}, "its chat template is not that of `lyrics`"),
        ({"rank": 1024}, "its rank is 1024, and vLLM serves ranks up to 512"),
    ],
)
def test_vllm_is_not_begun_for_recipes_that_cannot_share_it(other, why, tmp_path, monkeypatch):
    monkeypatch.setattr(openai_api, "find_spec", lambda name: True)
    pairs = {"lyrics": asked(tmp_path, "lyrics"), "songs": asked(tmp_path, "songs", **other)}
    assert openai_api._vllm_refusal(pairs) == f"vLLM does not serve `songs` beside `lyrics`: {why}."
    # Without `--engine`, transformers serves them, and vLLM serves the first one alone.
    assert openai_api.engine_for(pairs) == "transformers"
    assert openai_api.engine_for({"lyrics": pairs["lyrics"]}) == "vllm"


def test_a_template_for_several_recipes_has_a_system_prompt_only_if_all_have_it(
    tmp_path, monkeypatch
):
    monkeypatch.setattr(openai_api, "_weights", lambda chat: [])
    monkeypatch.setattr(openai_api, "repetition_penalty", lambda chat: 1.0)
    for number, (other, alone) in enumerate((("Be brief.", True), ("Be long.", False))):
        pairs = {
            "lyrics": asked(tmp_path, "lyrics", system_prompt="Be brief."),
            "songs": asked(tmp_path, "songs", system_prompt=other),
        }
        home = tmp_path / f"home-{number}"
        for one_template in (True, False):
            openai_api.lay_out(home, pairs, one_template)
            template = AutoTokenizer.from_pretrained(
                str(openai_api._snapshot(home, "lyrics"))
            ).chat_template
            assert ("Be brief." in template) == (alone or not one_template)


def test_without_a_cluster_the_files_of_the_other_recipes_are_read(tmp_path):
    text = (ROOT / "recipes" / "minimal" / "lora.yaml").read_text("utf-8")
    file = tmp_path / "demo.yaml"
    file.write_text(
        f"{text}\nserve: {{recipes: [gone.yaml]}}\n".replace(
            "../data", str(ROOT / "recipes" / "data")
        ),
        "utf-8",
    )
    (problem,) = examine(file)
    assert (
        problem.message == "`gone.yaml` cannot be served: This file does not exist."
        and "gone.yaml" in problem.source
    )
    (tmp_path / "gone.yaml").write_text(text.replace("name: minimal-lora", "name: other"), "utf-8")
    assert examine(file) == []


def test_two_recipes_of_one_name_cannot_share_a_server(tmp_path):
    text = (ROOT / "recipes" / "minimal" / "lora.yaml").read_text("utf-8")
    (tmp_path / "other.yaml").write_text(text, "utf-8")
    (tmp_path / "demo.yaml").write_text(f"{text}\nserve: {{recipes: [other.yaml]}}\n", "utf-8")
    recipe, _, _ = load(tmp_path / "demo.yaml", look=False)
    with pytest.raises(Stop, match="Two recipes of this server are called `minimal-lora`"):
        openai_api.others(recipe)


class Speaks(BaseHTTPRequestHandler):
    """As much of OpenAI's API as vLLM's has: log-probabilities of a prompt, and a token that must
    be sent."""

    def log_message(self, *_: Any) -> None:
        pass

    def do_GET(self) -> None:
        self._say(*self.server.says("GET", self.path, None, self.headers))

    def do_DELETE(self) -> None:
        self._say(*self.server.says("DELETE", self.path, None, self.headers))

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self._say(*self.server.says("POST", self.path, body, self.headers))

    def _say(self, code: int, body: Any) -> None:
        text = (body if isinstance(body, str) else json.dumps(body)).encode()
        self.send_response(code)
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text)


@contextmanager
def speaking(says: Any) -> Iterator[str]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), Speaks)
    server.says = says
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        server.server_close()


def listed(*known: str) -> dict[str, Any]:
    return {"object": "list", "data": [{"id": name} for name in known]}


def test_the_models_of_a_recipe_are_found_by_the_names_that_serve_gives_them():
    recipe = load(SURVIVAL)[0]
    for known, after, before in (
        (("other", "survival", "survival-base"), "survival", "survival-base"),
        (("whatever",), "whatever", ""),
        (("survival-base",), "", "survival-base"),
        (("one", "two"), "", ""),
    ):
        with speaking(lambda *_, known=known: (200, listed(*known))) as url:
            server = openai_api.at(f"{url}/v1/", recipe)
        assert (server.after.model, server.before.model) == (
            after,
            before,
        ) and server.url == f"{url}/v1"
        assert server.after.system_prompt == recipe.data.system_prompt and server.after.chat
    with pytest.raises(Stop, match="It has `one` and `two`"):
        server.chat(base=False)


@pytest.mark.parametrize(
    ("code", "body", "told"),
    [
        (401, "who are you", "Set OPENAI_API_KEY"),
        (503, "still loading", "answered 503"),
        (200, "<html>", "has no API like OpenAI's"),
        (200, [1], "has no API like OpenAI's"),
    ],
)
def test_a_server_that_says_no_or_something_else_is_said(code, body, told, capsys):
    with speaking(lambda *_: (code, body)) as url:
        assert command(["ask", str(SURVIVAL), "Why?", "--url", url]) == 1
    assert told in capsys.readouterr().err


def test_an_answer_without_words_is_said(capsys):
    with speaking(
        lambda method, *_: (200, listed("survival") if method == "GET" else {"error": "too long"})
    ) as url:
        assert command(["ask", str(SURVIVAL), "Why?", "--url", url.removeprefix("http://")]) == 1
    assert 'has no message: {"error": "too long"}' in capsys.readouterr().err


def test_where_nobody_answers_the_address_is_said(capsys):
    assert command(["compare", str(SURVIVAL), "--url", f"http://127.0.0.1:{free_port()}"]) == 1
    said = capsys.readouterr().err
    assert "No server answers at http://127.0.0.1:" in said and "`recipe serve RECIPE`" in said


def test_the_key_of_the_environment_is_sent_and_what_is_sent_is_what_training_asks(
    monkeypatch, capsys
):
    heard: list[Any] = []
    monkeypatch.setenv(openai_api.KEY, "sesame")

    def says(method: str, path: str, body: Any, headers: Any) -> tuple[int, Any]:
        heard.append((method, path, body, headers["Authorization"]))
        known = (
            {"choices": [{"message": {"content": " Because. "}}]} if body else listed("survival")
        )
        return 200, known

    with speaking(says) as url:
        assert command(["ask", str(SURVIVAL), "Why?", "--url", url]) == 0
    assert capsys.readouterr().out.endswith("\n\nBecause.\n")
    recipe = load(SURVIVAL)[0]
    (_, models_path, _, _), (_, path, body, key) = heard
    assert (models_path, path, key) == ("/v1/models", "/v1/chat/completions", "Bearer sesame")
    assert (
        body["messages"] == messages(recipe.data.system_prompt, "Why?") and body["temperature"] == 0
    )
    assert body["max_tokens"] == recipe.demo.max_new_tokens and body["model"] == "survival"


def test_the_loss_on_held_out_rows_comes_from_a_server_that_gives_log_probabilities():
    rows = [([5, 6, 7, 8], [-100, -100, 7, 8]), ([9, 3], [9, 3])]

    def says(method: str, path: str, body: Any, headers: Any) -> tuple[int, Any]:
        assert body["echo"] and body["logprobs"] and isinstance(body["prompt"], list)
        logs = [None, *(-number / 10 for number in body["prompt"][1:]), -9.0]
        return 200, {"choices": [{"text": "", "logprobs": {"token_logprobs": logs}}]}

    chat, measures = Chat("m", None, "", None, 8), Measures()
    with speaking(says) as url:
        server = openai_api.Served("survival", f"{url}/v1", ("m",), chat, chat)
        found = openai_api.on_rows(server, chat, rows, measures)
    # Of each row the tokens that count; the first follows on nothing.
    assert found["validation_loss"] == pytest.approx((0.7 + 0.8 + 0.3) / 3)
    assert found["perplexity"] == pytest.approx(2.718281828 ** found["validation_loss"])
    assert measures.counts == {"held_out_rows": 2, "held_out_tokens": 3}


def test_a_server_that_reads_other_tokens_than_training_saw_is_not_measured():
    chat = Chat("m", None, "", None, 8)
    question = evaluate.ShortAnswer((1, 2, 3), "a", ())

    class Words:
        def decode(self, numbers: Any) -> str:
            return "…"

        def __call__(self, text: str) -> dict[str, list[int]]:
            return {"input_ids": [1]}

    with speaking(
        lambda *_: (200, {"choices": [{"text": "a"}], "usage": {"prompt_tokens": 4}})
    ) as url:
        server = openai_api.Served("survival", f"{url}/v1", ("m",), chat, chat)
        with pytest.raises(evaluate.Cannot, match="reads 4 tokens, but training read 3"):
            openai_api.accuracy(server, chat, Words(), [question])


def test_the_stage_that_is_asked_by_address_is_the_one_that_is_named():
    recipe = load(ROOT / "recipes" / "seven-b.yaml")[0]
    with speaking(lambda *_: (200, listed("seven-b"))) as url:
        assert (
            openai_api.at(url, recipe).after.chat
            and not openai_api.at(url, recipe, "pretrain-512").after.chat
        )
        with pytest.raises(Stop, match="no stage `nowhere`"):
            openai_api.at(url, recipe, "nowhere")


def test_the_two_ways_of_measuring_exclude_each_other(capsys):
    assert (
        command(["evaluate", str(SURVIVAL), "--url", "http://127.0.0.1:1", "--checkpoint", "x"])
        == 2
    )
    assert "Leave one out" in capsys.readouterr().err
