"""OpenAI's API: a local server for a stage's original and trained model, and questions to models
behind such a server.

vLLM serves a base model and adapters beside it, but no second whole model. So the default is vLLM
for an adapter if it is installed, and transformers' own command for everything else. Either runs as
a child process: `python -m runner.parts.serve.openai_api FOLDER MODULE ARGUMENTS`."""

import json
import os
import runpy
import shutil
import subprocess
import sys
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from http.client import HTTPException
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

from runner.check.validate import load
from runner.parts.evaluate import evaluate
from runner.parts.evaluate.gates import Measurement
from runner.parts.evaluate.metrics import ACCURACY
from runner.plan import Plan, Stage
from runner.recipe.recipe import Recipe
from runner.run import inference
from runner.run.launch import end, end_of, engine_environment, fault
from runner.run.run_folder import StageFolder
from runner.run.run_folder import folder as run_folder
from runner.scenarios import translate
from runner.tools import child_process, text
from runner.tools.files import read_json, write_json, write_text
from runner.tools.problem import Stop, listed
from runner.tools.process import HOST, free_port, hush
from runner.tools.run_files import ANSWERS, DEMO, HELD_OUT, SERVING, TEKKEN
from runner.tools.text import TextTokenizer, tokenizer_in
from runner.tools.vllm import SERVER, rank_of, refusals, room_for, saved
from runner.trainer import records
from runner.trainer.generation import Chat, end_tokens, messages, repetition_penalty, with_system

Pair = tuple[Chat, Chat]  # a recipe's original and its trained model
Ready = Callable[[str, Sequence[str], Path], None]
# The files of a model without its tokenizer, which is training's for both.
WEIGHTS = ("config.json", "*.safetensors", "*.safetensors.index.json", "*.py")
LOOK_SECONDS = 0.3
_OFFLINE = {
    "HF_HUB_OFFLINE": "1",
    "HF_HUB_DISABLE_UPDATE_CHECK": "1",
    "HF_HUB_DISABLE_TELEMETRY": "1",
}


def engine_for(pairs: Mapping[str, Pair]) -> str:
    """The engine for these recipes' models (see `serve`)."""
    _, trained = next(iter(pairs.values()))
    if find_spec("vllm") and trained.adapter and not _vllm_refusal(pairs):
        return "vllm"
    return "transformers"


def serve(engine: str, pairs: Mapping[str, Pair], folder: Path, port: int, ready: Ready) -> None:
    """Serves models until ^C. pairs: by recipe, its original and its trained model, the first
    recipe's in `folder`, that of its stage; port: 0 for any; ready: gets the address, the names of
    the models, and the log. Raises Stop with the reason if the server does not start, or ends."""
    _require_engine(engine, pairs)
    home = folder / SERVING
    port = free_port(port)
    lay_out(home, pairs, engine == "vllm")
    models = _model_names(engine, pairs)
    empty = home / "empty"
    log = home / "serve.log"
    url = f"http://{HOST}:{port}"
    empty.mkdir()
    command = _command(engine, home, pairs, port)
    with log.open("w", encoding="utf-8") as out:
        process = subprocess.Popen(
            [sys.executable, "-m", "runner.parts.serve.openai_api", str(empty), *command],
            env=engine_environment() | _OFFLINE | {"HF_HUB_CACHE": str(home)},
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=subprocess.STDOUT,
            encoding="utf-8",
            start_new_session=True,
        )
    try:
        _ready(process, url, log, models if engine == "transformers" else ())
        ready(url, models, log)
        raise _fault(process.wait(), log)
    finally:
        end(process)


def _require_engine(engine: str, pairs: Mapping[str, Pair]) -> None:
    """Raises Stop if the engine cannot serve these models, and ModuleNotFoundError if it lacks the
    package `openai`."""
    if engine == "vllm":
        if find_spec("vllm") is None:
            raise Stop("vLLM is not installed here.", "Install it, or leave out `--engine vllm`.")
        refusal = _vllm_refusal(pairs)
        if refusal:
            raise Stop(refusal, "Leave out `--engine vllm`.")
    if engine == "transformers" and find_spec("openai") is None:
        raise ModuleNotFoundError("No module named 'openai'", name="openai")


def _model_names(engine: str, pairs: Mapping[str, Pair]) -> tuple[str, ...]:
    """The names of the server's models. Without an adapter, vLLM serves the trained model alone."""
    names: list[str] = []
    for recipe, (_, after) in pairs.items():
        base_name, name = text.served(recipe)
        if engine == "vllm" and not after.adapter:
            names.append(name)
        else:
            names += [base_name, name]
    return tuple(names)


def _command(engine: str, home: Path, pairs: Mapping[str, Pair], port: int) -> list[str]:
    """The server's module and arguments."""
    import torch

    gpu = torch.cuda.is_available()
    if engine == "vllm":
        command = _vllm(home, pairs)
    else:
        command = ["transformers.cli.transformers", "serve", "--device", "auto" if gpu else "cpu"]
        command += ["--model-timeout", "-1"]  # models stay loaded
    command += ["--host", HOST, "--port", str(port), "--dtype", "bfloat16" if gpu else "float32"]
    if any(after.trust_remote_code for _, after in pairs.values()):
        command += ["--trust-remote-code"]
    return command


def _ready(process: subprocess.Popen[str], url: str, log: Path, models: Iterable[str]) -> None:
    """Waits without limit until the server answers. models: those that transformers' server loads
    now, so that the first question does not wait."""
    while process.poll() is None:
        try:
            opened(f"{url}/health", seconds=LOOK_SECONDS * 10).close()
            break
        except OSError:
            time.sleep(LOOK_SECONDS)
    else:
        raise _fault(process.returncode, log)
    for model in models:
        with opened(f"{url}/load_model", {"model": model}) as lines:
            events = [json.loads(line[6:]) for line in lines if line.startswith(b"data: ")]
        failed = [event.get("message", "") for event in events if event.get("status") == "error"]
        if failed:
            raise Stop(f"The server cannot load `{model}`: {failed[0]}", f"The whole log: {log}")


def _fault(code: int, log: Path) -> Stop:
    return Stop(f"{fault(end_of(log), code, 'Serving')}\nThe whole log: {log}")


def lay_out(home: Path, pairs: Mapping[str, Pair], one_template: bool = False) -> None:
    """Writes both models of each recipe in the form of the hub's cache, where a server finds them
    by name: links to the weights, and the tokenizer, template, end tokens and generation settings
    of training. one_template: whether the server has one for all, which has no system prompt if the
    recipes have different ones."""
    shutil.rmtree(home, ignore_errors=True)
    prompts = {after.system_prompt for _, after in pairs.values()}
    prompt_in_template = not one_template or len(prompts) == 1
    for name, (before, after) in pairs.items():
        tokenizer = tokenizer_in(after.tokenizer, after.trust_remote_code)
        _exactly(tokenizer)
        if tokenizer.chat_template and after.system_prompt and prompt_in_template:
            tokenizer.chat_template = with_system(tokenizer.chat_template, after.system_prompt)
        for called, chat in zip(text.served(name), (before, after), strict=True):
            folder = _snapshot(home, called)
            folder.mkdir(parents=True)
            write_text(folder.parents[1] / "refs" / "main", folder.name)
            for file in _weights(chat):
                (folder / file.name).symlink_to(file.resolve())
            tokenizer.save_pretrained(str(folder))
            pad_token = tokenizer.pad_token_id
            if pad_token is None:
                pad_token = tokenizer.eos_token_id
            # Defaults for a request: no sampling, and the tokens that end a turn.
            defaults = {
                "do_sample": False,
                "eos_token_id": end_tokens(tokenizer, after.turn_end),
                "pad_token_id": pad_token,
                "max_new_tokens": after.max_new_tokens,
                "repetition_penalty": repetition_penalty(chat),
            }
            write_json(folder / "generation_config.json", defaults)


def _snapshot(home: Path, called: str) -> Path:
    """The folder of a model's one revision in the hub's cache (huggingface_hub 1.x)."""
    return home / f"models--{called}" / "snapshots" / "0"


def _exactly(tokenizer: TextTokenizer) -> None:
    """Makes the tokenizer add nothing to a text: templates write the beginning, and plain text has
    none."""
    from tokenizers.processors import TemplateProcessing

    for name in ("add_bos_token", "add_eos_token"):
        if hasattr(tokenizer, name):
            setattr(tokenizer, name, False)
    if hasattr(tokenizer, "backend_tokenizer"):  # mistral-common's adds nothing to a text
        tokenizer.backend_tokenizer.post_processor = TemplateProcessing(
            single="$A", pair="$A $B", special_tokens=[]
        )


def _weights(chat: Chat) -> list[Path]:
    folder = Path(chat.model)
    if not folder.is_dir():
        from huggingface_hub import snapshot_download

        try:
            folder = Path(
                snapshot_download(chat.model, revision=chat.revision, allow_patterns=list(WEIGHTS))
            )
        except OSError as error:
            raise Stop(
                f"The model `{chat.model}` cannot be loaded: {str(error).splitlines()[0]}",
                "Check the network.",
            ) from None
    return [file for pattern in WEIGHTS for file in sorted(folder.glob(pattern))]


def _vllm(home: Path, pairs: Mapping[str, Pair]) -> list[str]:
    """vLLM's module and arguments: the models of all recipes with adapters, else only the trained
    one."""
    adapters = {}
    for name, (_, after) in pairs.items():
        if after.adapter:
            adapters[text.served(name)[1]] = after.adapter
    wholes = [text.served(name)[0 if adapters else 1] for name in pairs]
    served = str(_snapshot(home, wholes[0]))
    longest = max(after.max_new_tokens for _, after in pairs.values())
    # vLLM ignores `do_sample`, and samples unless the temperature is 0.
    greedy = json.dumps({"temperature": 0.0, "max_new_tokens": longest})
    command = [SERVER, "--model", served, "--served-model-name", *wholes]
    command += ["--generation-config", served, "--override-generation-config", greedy]
    if Path(served, TEKKEN).is_file():
        command += ["--tokenizer-mode", "mistral"]
    if adapters:
        rank = max(room_for(rank_of(saved(Path(folder)))) or 0 for folder in adapters.values())
        command += [
            "--enable-lora",
            "--max-loras",
            str(len(adapters)),
            "--max-lora-rank",
            str(rank),
        ]
        command += ["--lora-modules", *(f"{name}={folder}" for name, folder in adapters.items())]
    return command


def _vllm_refusal(pairs: Mapping[str, Pair]) -> str:
    """Why vLLM cannot serve these models, a sentence; empty if it can."""
    (main_recipe, main_pair), *further_pairs = pairs.items()
    _, trained = main_pair
    if trained.adapter:
        refusal = _adapter_refusal(trained.adapter)
        if refusal:
            return f"vLLM does not serve this adapter: {refusal}."
    for name, pair in further_pairs:
        refusal = _refusal_beside(main_recipe, main_pair, pair)
        if not refusal and not trained.adapter:
            refusal = f"`{main_recipe}` has no adapter"
        if refusal:
            return f"vLLM does not serve `{name}` beside `{main_recipe}`: {refusal}."
    return ""


def _adapter_refusal(adapter: str) -> str:
    return next(refusals(saved(Path(adapter))), "")


def _refusal_beside(main_recipe: str, main_pair: Pair, pair: Pair) -> str:
    """Why vLLM cannot serve a trained model beside that of the main recipe; empty if it can."""
    main_before, main_after = main_pair
    before, after = pair
    if (before.model, before.revision) != (main_before.model, main_before.revision):
        return f"its base model is not that of `{main_recipe}`"
    if _chat_template(after) != _chat_template(main_after):
        return f"its chat template is not that of `{main_recipe}`"
    if not after.adapter:
        return "it has no adapter"
    return _adapter_refusal(after.adapter)


def _chat_template(chat: Chat) -> str | None:
    template: str | None = tokenizer_in(chat.tokenizer, chat.trust_remote_code).chat_template
    return template


def others(recipe: Recipe) -> dict[str, Pair]:
    """The models of the recipes under `serve.recipes`, each of its newest run. Raises Stop if one
    has none."""
    section = recipe.settings.get("serve")
    pairs: dict[str, Pair] = {}
    served_names = {*text.served(recipe.name)}
    for file in (section.recipes if section else None) or ():
        sharing_recipe = load(recipe.folder / file, look=False)[0]
        names = text.served(sharing_recipe.name)
        if served_names.intersection(names):
            raise Stop(
                f"Two recipes of this server are called `{names[1]}`.",
                f"Rename `{file}`, or leave it out.",
            )
        served_names.update(names)
        folder = inference.folder_of(sharing_recipe, None)
        pairs[sharing_recipe.name] = inference.models(sharing_recipe, folder)
    return pairs


KEY = "OPENAI_API_KEY"  # the environment variable of OpenAI's own clients, sent if it is set
SECONDS = 600  # enough for an answer on a processor
AGREEMENT = "agreement"
_NO_LOGS = "this server gives no log-probabilities of a prompt"


def opened(
    url: str,
    body: Mapping[str, object] | None = None,
    seconds: float = SECONDS,
    headers: Mapping[str, str] | None = None,
    method: str | None = None,
) -> Any:
    """The answer to a request. body: sent as JSON; headers: instead of the one with the key. Raises
    OSError."""
    if headers is None:
        if os.environ.get(KEY):
            headers = {"Authorization": f"Bearer {os.environ[KEY]}"}
        else:
            headers = {}
    if body is not None:
        sent = json.dumps(body).encode()
    else:
        sent = None
    request = urllib.request.Request(
        url, sent, {"Content-Type": "application/json", **headers}, method=method
    )
    # A proxy cannot reach a server of this machine.
    handlers: list[urllib.request.BaseHandler] = []
    if urllib.parse.urlsplit(url).hostname in ("127.0.0.1", "localhost", "::1"):
        handlers.append(urllib.request.ProxyHandler({}))
    opener = urllib.request.build_opener(*handlers)
    return opener.open(request, timeout=seconds)


class Served(NamedTuple):
    """A recipe's models behind a server."""

    name: str  # of the recipe
    url: str  # of the API, with `/v1`
    listed: tuple[str, ...]  # the names of the server's models
    # How each is asked, with its name there as `model`, empty if the server lacks it:
    before: Chat
    after: Chat

    def chat(self, base: bool) -> Chat:
        """How the original or the trained model is asked. Raises Stop if the server does not have
        it."""
        chat = self.before if base else self.after
        if not chat.model:
            there = listed(self.listed) or "none"
            which = "original" if base else "trained"
            message = (
                f"The server at {self.url} has no {which} model of this recipe. It has {there}.",
                f"`recipe serve` names them {listed(text.served(self.name))}.",
            )
            raise Stop(*message)
        return chat

    def answers(self, chat: Chat, questions: Iterable[str]) -> list[str]:
        """An answer to each question, without sampling. Raises Stop if the server gives none."""
        return [self._answer(chat, question) for question in questions]

    def _answer(self, chat: Chat, question: str) -> str:
        if not chat.chat:
            return str(self.goes_on(chat.model, question, chat.max_new_tokens)["text"]).strip()
        body = {
            "model": chat.model,
            "max_tokens": chat.max_new_tokens,
            "temperature": 0.0,
            "messages": messages(chat.system_prompt, question),
        }
        content = self._ask("chat/completions", body)["message"].get("content")
        return str(content or "").strip()

    def goes_on(
        self, model: str, prompt: str | Sequence[int], length: int, **more: object
    ) -> Mapping[str, Any]:
        """A model's continuation of a prompt: the one choice of `/v1/completions`, with `usage`.
        Raises Stop."""
        body = {"model": model, "prompt": prompt, "max_tokens": length, "temperature": 0.0}
        return self._ask("completions", body | more)

    def _ask(self, path: str, body: Mapping[str, object]) -> Mapping[str, Any]:
        reply = _json(f"{self.url}/{path}", body)
        choices = reply.get("choices")
        if "messages" in body:
            part = "message"
        else:
            part = "text"
        if not isinstance(choices, list) or not choices or part not in choices[0]:
            raise Stop(
                f"The server's answer has no {part}: {json.dumps(reply)[:300]}",
                "Look at the server's log.",
            )
        return {**choices[0], "usage": reply.get("usage") or {}}

    def measure(self, folder: StageFolder) -> Measurement:
        """Measures both models through their server; records nothing. Raises Stop if the run has no
        held-out rows."""
        evaluation = folder.stage.evaluation
        rows = records.read_held_out(folder.path / HELD_OUT)
        if evaluation is None or not folder.model.is_dir():
            raise Stop(
                f"`{folder.run.shown}` has no model whose rows could be sent to a server.",
                "Name a run: `--run DIR`.",
            )
        tokenizer = tokenizer_in(folder.model, self.after.trust_remote_code)
        numbers = rows.rows if rows else ()
        chosen = evaluate.questions(numbers, tokenizer, evaluation.asked, evaluation.seed)
        measures = evaluate.Measures()
        for chat, before in ((self.after, False), (self.before, True)):
            if not chat.model:
                measures.lack([AGREEMENT], "the server does not have this model", before)
                continue
            with measures.taking([AGREEMENT], before) as results:
                results[AGREEMENT] = self._agreement(chat, folder, "before" if before else "after")
            with measures.taking([ACCURACY], before) as results:
                results |= accuracy(self, chat, tokenizer, chosen)
            with measures.taking(["validation_loss", "perplexity"], before) as results:
                results |= on_rows(self, chat, numbers, measures)
        measures.counts["short_answers"] = len(chosen)
        facts = vars(measures.found(()))
        return Measurement(
            **facts, stage=folder.stage.name, checkpoint=self.url, seed=evaluation.seed
        )

    def _agreement(self, chat: Chat, folder: StageFolder, side: str) -> float:
        """The share of the demo's questions that a model answers word for word as in the run. Just
        below 1 if another machine or precision rounds differently; near 0 for another model."""
        rows = read_json(folder.path / ANSWERS)
        demo = read_json(folder.path / DEMO)
        if not rows or not demo:
            raise evaluate.Cannot("the run has no answers to the demo's questions")
        chat = replace(chat, max_new_tokens=demo["max_new_tokens"])
        answers = self.answers(chat, [str(row["question"]) for row in rows])
        same = [answer == row[side] for answer, row in zip(answers, rows, strict=True)]
        return float(sum(same) / len(same))


def at(url: str, recipe: Recipe, stage: str | None = None) -> Served:
    """The server at an address, and how a recipe's models are asked there. stage: by default the
    last that trains. Raises Stop if the server does not answer, or the recipe trains on images."""
    wanted = answering(translate(recipe, run_folder(recipe.name, "run").place()), stage)
    demo = wanted.config["recipe_runner"]["demo"]
    url = address(url)
    listed = tuple(str(model.get("id")) for model in _json(f"{url}/models").get("data") or ())
    base, trained = text.served(recipe.name)
    # A server with one model may give it any name.
    if trained in listed:
        name = trained
    elif len(listed) == 1 and base not in listed:
        name = listed[0]
    else:
        name = ""
    fields = ("system_prompt", "max_new_tokens", "chat", "turn_end", "trust_remote_code")
    after = Chat(name, None, "", **{field: demo.get(field) for field in fields})
    before = replace(after, model=base if base in listed else "")
    return Served(recipe.name, url, listed, before, after)


def address(url: str) -> str:
    """The address of the API, with `/v1`, of a server that people may name without it."""
    if "://" not in url:
        url = f"http://{url}"
    return f"{url.rstrip('/').removesuffix('/v1')}/v1"


def answering(plan: Plan, stage: str | None) -> Stage:
    """The stage with that name, or the last one whose model answers. Raises Stop if its model does
    not."""
    answering_stages = []
    for planned in plan.stages:
        if "demo" in planned.config.get("recipe_runner", {}):
            answering_stages.append(planned)
    if stage and plan.stage(stage) in answering_stages:
        return plan.stage(stage)
    if not stage and answering_stages:
        return answering_stages[-1]
    raise Stop(
        "This model classifies images, so OpenAI's API has no question for it.",
        "`recipe ask RECIPE PICTURE` shows it a picture.",
    )


def _json(url: str, body: Mapping[str, object] | None = None) -> Mapping[str, Any]:
    try:
        with opened(url, body) as answer:
            reply = json.load(answer)
    except urllib.error.HTTPError as error:
        message = " ".join(error.read().decode("utf-8", errors="replace").split())[:300]
        if error.code in (401, 403):
            remedy = f"Set {KEY} to a token that it accepts."
        else:
            remedy = "Look at the server's log."
        raise Stop(
            f"The server answered {error.code} for {url}: {message or error.reason}", remedy
        ) from None
    except (OSError, HTTPException) as error:
        reason = getattr(error, "reason", None) or error
        raise Stop(
            f"No server answers at {url}: {reason}", "`recipe serve RECIPE` starts one here."
        ) from None
    except ValueError:
        reply = None
    if not isinstance(reply, dict):
        raise Stop(f"The server at {url} has no API like OpenAI's.", "Check the address.")
    return reply


def accuracy(
    served: Served, chat: Chat, tokenizer: TextTokenizer, chosen: Sequence[evaluate.ShortAnswer]
) -> dict[str, float]:
    """As `evaluate.accuracy`, from the server's continuation of each prompt."""
    length = evaluate.answer_length(chosen, tokenizer)

    def answers() -> Iterator[str]:
        for question in chosen:
            answer = served.goes_on(chat.model, tokenizer.decode(question.prompt), length)
            read = answer["usage"].get("prompt_tokens", len(question.prompt))
            if read != len(question.prompt):
                raise evaluate.Cannot(
                    f"the server reads {read} tokens, but training read {len(question.prompt)}"
                )
            yield str(answer["text"])

    return evaluate.right(chosen, answers())


def on_rows(
    served: Served, chat: Chat, rows: Sequence[evaluate.Row], measures: evaluate.Measures
) -> dict[str, float]:
    """Loss and perplexity from the log-probabilities of a prompt's tokens, which vLLM's server
    gives."""
    total = 0.0
    count = 0
    for numbers, labels in rows:
        try:
            answer = served.goes_on(chat.model, list(numbers), 1, echo=True, logprobs=1)
        except Stop:
            # transformers accepts no prompt in token numbers.
            raise evaluate.Cannot(_NO_LOGS) from None
        logs = ((answer.get("logprobs") or {}).get("token_logprobs") or ())[: len(numbers)]
        counted = []
        for log, label in zip(logs, labels, strict=False):
            if label != -100 and log is not None:
                counted.append(log)
        if len(logs) < len(numbers):
            raise evaluate.Cannot(_NO_LOGS)
        total = total - sum(counted)
        count = count + len(counted)
    if not count:
        raise evaluate.Cannot("training saved no held-out rows")
    measures.counts |= {"held_out_rows": len(rows), "held_out_tokens": count}
    return {"validation_loss": total / count, "perplexity": evaluate.exponential(total / count)}


if __name__ == "__main__":
    # A server that ends with its parent, in an empty folder: a folder named like a model would be
    # loaded.
    child_process.watch_parent()
    hush()
    os.chdir(sys.argv[1])
    sys.argv = sys.argv[2:]
    runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
