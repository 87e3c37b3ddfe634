"""GGUF: a model as llama.cpp and Ollama load it, and the proof that llama.cpp answers with it as
transformers does.

llama.cpp's converter comes from the source package of llama-cpp-python, and its library from what
that package builds. Each runs in a process of its own, because its failures end the process:
`python -m runner.parts.export.gguf TASK`, a file with the names of a module and its function, and
the arguments.
"""

import ast
import ctypes
import importlib
import json
import math
import os
import signal
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

from runner.parts.export.trained_model import Proof, loaded, unproven, words_of
from runner.tools import child_process, packaged
from runner.tools.files import cache_folder, read_record, write_json
from runner.tools.problem import Stop
from runner.tools.process import hush
from runner.tools.run_files import TEKKEN
from runner.tools.text import TextTokenizer
from runner.trainer.generation import Chat, end_tokens, prompt

KINDS: Mapping[str, dict[str, Any]] = packaged.toml(__file__, "kinds.toml")
WHOLE = {facts["torch"]: kind for kind, facts in KINDS.items() if "torch" in facts}
TIE = 1e-3  # two words whose logits are closer than this are equally good in fp32
ANSWER_TOKENS = 40
PROMPT_TOKENS = 32  # the length of a prompt from a text that replaces questions
VERSION = "0.3.36"
SHA256 = "832db0699007f1be95a7e41ef12e88926b02ba836461e36a36372db2760c1a2e"
CONVERTER = "convert_hf_to_gguf.py"
ELSE = "`--format safetensors` exports it for servers that load it as transformers does."
# The parts of the source package for converting: the program, its architectures, and the library
# that writes the file.
_NEEDED = (CONVERTER, "conversion/", "gguf-py/gguf/", "LICENSE")


class Answer(NamedTuple):
    """The answer of transformers to a prompt, in token numbers, without sampling."""

    text: str  # the prompt
    prompt: tuple[int, ...]
    said: tuple[int, ...]
    likelihood: float  # the mean log-probability of its words in nats
    gaps: tuple[float, ...]  # for each word, the distance of the two best logits


def write(
    model: Path,
    out: Path,
    file_kind: str | None,
    turn_end: int | None,
    converter: Path,
    fewest_numbers: int = 0,
) -> str:
    """Writes a model as a GGUF file; returns its kind. file_kind: of KINDS, by default that of the
    weights. fewest_numbers: how many the file must have. Raises Stop."""
    if (model / TEKKEN).is_file():
        raise Stop(
            f"The tokenizer of `{model}` is that of mistral-common (`tekken.json`), which a GGUF file cannot hold with its template.",
            "`--format safetensors` exports the model for vLLM.",
        )
    facts = read_record(model / "config.json")
    kind_of_weights = WHOLE.get(str(facts.get("dtype") or facts.get("torch_dtype")), "bf16")
    file_kind = file_kind or kind_of_weights
    # The converter itself writes eight bits and more; fewer bits need a file with the original
    # weights first.
    if file_kind in WHOLE.values() or file_kind == "q8_0":
        converted_kind = file_kind
        converted = out
    else:
        converted_kind = kind_of_weights
        converted = out.with_name(f".{out.name}.{converted_kind}")
    paths = (str(converter), str(model), str(converted))
    done = apart(run_converter, *paths, converted_kind, turn_end, fewest_numbers)
    if done.returncode or not converted.is_file():
        raise Stop(f"llama.cpp's converter cannot convert this model: {why(done)}", ELSE)
    if converted != out:
        done = apart(run_quantiser, str(converted), str(out), file_kind)
        if done.returncode:
            raise Stop(
                f"llama.cpp cannot write this model as {file_kind}: {why(done)}",
                "Choose another format with `--quantize`.",
            )
        converted.unlink()
    return file_kind


def answers(chat: Chat, tokenizer: TextTokenizer, texts: Sequence[str]) -> Iterator[Answer]:
    """The answer of transformers to each prompt, in fp32 and from the weights alone."""
    import torch

    model = loaded(chat.model, None, torch.float32, chat.trust_remote_code).eval()
    stops = end_tokens(tokenizer, chat.turn_end)
    for text, numbers in prompts(tokenizer, chat, texts):
        tokens = torch.tensor([numbers])
        with torch.no_grad():
            prompt_and_answer = model.generate(
                input_ids=tokens, attention_mask=torch.ones_like(tokens), max_new_tokens=min(ANSWER_TOKENS, chat.max_new_tokens),
                do_sample=False, repetition_penalty=1.0, eos_token_id=stops or None, pad_token_id=(stops or [0])[0],
            )  # fmt: skip
            logits = model(input_ids=prompt_and_answer).logits[0, len(numbers) - 1 : -1]
        answer = prompt_and_answer[0, len(numbers) :]
        likely = logits.log_softmax(-1).gather(1, answer[:, None]).mean()
        best = logits.topk(2).values
        gaps = tuple((best[:, 0] - best[:, 1]).tolist())
        yield Answer(text, tuple(numbers), tuple(answer.tolist()), float(likely), gaps)


def prompts(
    tokenizer: TextTokenizer, chat: Chat, texts: Sequence[str]
) -> Iterator[tuple[str, list[int]]]:
    """Each prompt, as text and in token numbers: a question formatted as in training, or the
    beginning of a text."""
    for text in texts:
        prompt_text = prompt(chat, tokenizer, text)
        yield prompt_text, list(tokenizer(prompt_text, add_special_tokens=False)["input_ids"])


def prove(file: Path, file_kind: str, chat: Chat, texts: Sequence[str], general: str) -> Proof:
    """Proves that a GGUF file is the model of `chat`: it has the template and the end tokens;
    llama.cpp splits text into the same tokens, and answers as transformers does. texts: questions,
    or beginnings of texts; general: any text. Returns the comparison. Raises Stop if the proof
    fails."""
    tokenizer = words_of(chat)
    trained_answers = list(answers(chat, tokenizer, texts))
    read_texts = [text for text, _ in prompts(tokenizer, chat, [general])]
    for answer in trained_answers:
        read_texts.append(answer.text)
    stops = end_tokens(tokenizer, chat.turn_end)
    lengths = [len(answer.prompt) + len(answer.said) for answer in trained_answers]
    task = {
        "texts": read_texts,
        "ends": stops,
        "answers": [{"prompt": answer.prompt, "said": answer.said} for answer in trained_answers],
        "context": max(lengths) + 8,
    }
    done = apart(look_into, str(file), task)
    if done.returncode:
        raise Stop(f"llama.cpp cannot load the converted model: {why(done)}", ELSE)
    view = json.loads(done.stdout)
    _prove_tokens(view, tokenizer, stops, read_texts)
    return _prove_answers(view["answers"], trained_answers, file_kind)


def _prove_tokens(
    view: Mapping[str, Any], tokenizer: TextTokenizer, stops: Sequence[int], texts: Sequence[str]
) -> None:
    """Compares template, end tokens and tokens of texts. view: llama.cpp's, of `look_into`."""
    if view["chat_template"] != (tokenizer.chat_template or ""):
        raise unproven("the chat template in the file is not the trained one")
    for token, is_end in zip(stops, view["ends"], strict=True):
        if not is_end:
            raise unproven(
                f"no answer would end with `{tokenizer.convert_ids_to_tokens(token)}`, as in training"
            )
    for text, tokens in zip(texts, view["texts"], strict=True):
        if tokens != tokenizer(text, add_special_tokens=False)["input_ids"]:
            example = " ".join(text.split())[:60]
            raise unproven(f"llama.cpp cuts text into other tokens, for example “{example}…”")


def _prove_answers(
    file_answers: Sequence[tuple[list[int], float]],
    trained_answers: Sequence[Answer],
    file_kind: str,
) -> Proof:
    """Compares the chosen tokens and their likelihood. file_answers: llama.cpp's, for each of the
    trained model's."""
    same = 0
    off = 0.0
    allowed = KINDS[file_kind]["allowed"]
    for answer, (chosen, likelihood) in zip(trained_answers, file_answers, strict=True):
        off = max(off, abs(likelihood - answer.likelihood))
        for token, trained, gap in zip(chosen, answer.said, answer.gaps, strict=True):
            if token == trained:
                same += 1
            elif file_kind == "f32" and gap > TIE:
                raise unproven(
                    f"llama.cpp answers with other tokens: {chosen} for {list(answer.said)}"
                )
    if not off <= allowed:
        raise unproven(
            f"the likelihood of an answer differs by {off:.2g} nats in llama.cpp, but {file_kind} may lose at most {allowed:g}",
            "Choose a format with more bits with `--quantize`.",
        )
    return {
        "prompts": len(trained_answers),
        "tokens": sum(len(answer.said) for answer in trained_answers),
        "same_tokens": same,
        "largest_difference_nats": off,
    }


def converter() -> Path:
    """The folder of llama.cpp's converter, of the version that the extra `gguf` builds. pip
    downloads it once from its configured index, and checks its hash. Raises Stop if it is not
    available."""
    folder = cache_folder() / f"llama.cpp-of-llama-cpp-python-{VERSION}"
    if (folder / CONVERTER).is_file():
        return folder
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder.parent) as fetched:
        wanted = Path(fetched) / "requirements.txt"
        wanted.write_text(f"llama-cpp-python=={VERSION} --hash=sha256:{SHA256}\n", encoding="utf-8")
        options = [
            "--require-hashes",
            "--no-deps",
            "--no-binary",
            "llama-cpp-python",
            "--dest",
            fetched,
        ]
        command = [sys.executable, "-m", "pip", "download", "--quiet", *options, "-r", str(wanted)]
        done = subprocess.run(command, capture_output=True, encoding="utf-8", errors="replace")
        archive = next(Path(fetched).glob("*.tar.gz"), None)
        if done.returncode or archive is None:
            lines = done.stderr.splitlines()
            errors = [line for line in lines if line.startswith("ERROR")]
            if errors or lines:
                reason = (errors or lines)[-1]
            else:
                reason = "pip saved no archive"
            raise Stop(
                f"llama.cpp's converter cannot be downloaded: {reason}",
                f"It is in the source package of llama-cpp-python {VERSION} (77 MB), which pip downloads once, from your package index.",
            )
        # The converter is in the folder `vendor/llama.cpp` of the source package.
        unpacked = Path(fetched) / "unpacked"
        with tarfile.open(archive) as packed:
            for member in packed:
                _, _, name = member.name.partition("/vendor/llama.cpp/")
                if name.startswith(_NEEDED) and member.isfile():
                    member.name = name
                    packed.extract(member, unpacked, filter="data")
        # Another process may have been faster, and its folder is in use.
        with suppress(OSError):
            unpacked.rename(folder)
    return folder


def architectures(converter: Path) -> Iterator[str]:
    """The architectures of language models that the converter supports, from its source: loading it
    takes seconds. Of models that also see, it writes the half for text, and leaves out the rest."""
    source = (converter / "conversion" / "__init__.py").read_text(encoding="utf-8")
    tables = {}
    for node in ast.parse(source).body:
        if isinstance(node, ast.AnnAssign) and node.value:
            tables[getattr(node.target, "id", "")] = node.value
    that_see = ast.literal_eval(tables["MMPROJ_MODEL_MAP"])
    for name in ast.literal_eval(tables["TEXT_MODEL_MAP"]):
        if "ForCausalLM" in name or "LMHead" in name or name in that_see:
            yield name


def apart(function: Callable[..., object], *arguments: object) -> subprocess.CompletedProcess[str]:
    """A function of this part in a process of its own, until it ends; its result is the exit code.
    arguments: for JSON."""
    env = os.environ | {child_process.PARENT: str(os.getpid())}
    with tempfile.TemporaryDirectory() as folder:
        task = Path(folder) / "task.json"
        write_json(task, [function.__module__, function.__name__, arguments])
        command = [sys.executable, "-m", __name__, str(task)]
        return subprocess.run(
            command, capture_output=True, encoding="utf-8", errors="replace", env=env
        )


def why(done: subprocess.CompletedProcess[str]) -> str:
    """Why a process failed, by its output: llama.cpp's first error, or Python's last line."""
    if done.returncode < 0:
        return f"it was killed by {signal.Signals(-done.returncode).name}"
    lines = list(filter(None, map(str.strip, done.stderr.splitlines())))
    for line in lines:
        if "error loading" in line:
            return line
    if lines:
        return lines[-1]
    return "it gave no reason"


def is_gpt2(tokenizer: Path) -> bool:
    """Whether a `tokenizer.json` splits text into words as GPT-2 does, like the tokenizers that are
    trained here."""
    facts = read_record(tokenizer)
    if facts.get("normalizer") or facts.get("model", {}).get("type") != "BPE":
        return False
    parts: Any = facts.get("pre_tokenizer") or {}
    if parts.get("type") != "ByteLevel" or parts.get("add_prefix_space"):
        return False
    return bool(parts.get("use_regex", True))


def teach(turn_end: int | None) -> None:
    """Gives the converter the name of a pre-tokenizer with an unknown hash, the kind of a Phi's
    tokenizer, and the token that ends an answer. It replaces methods, because there are no options
    for these."""
    import gguf
    from conversion.base import ModelBase, TextModel
    from conversion.phi import Phi3MiniModel

    by_hash = TextModel.get_vocab_base_pre
    by_class = Phi3MiniModel.set_vocab
    add = gguf.SpecialVocab.add_to_gguf

    def name_of(model: Any, tokenizer: TextTokenizer) -> str:
        try:
            return str(by_hash(model, tokenizer))
        except NotImplementedError:
            if is_gpt2(model.dir_model / "tokenizer.json"):
                return "gpt-2"
            raise

    def of_phi(model: Any) -> None:
        # The converter looks for the tokenizer's class, which transformers 5 no longer writes.
        if (model.dir_model / "tokenizer.model").is_file():
            by_class(model)
        else:
            TextModel._set_vocab_gpt2(model)

    def with_turn_end(vocabulary: Any, writer: object, quiet: bool = False) -> None:
        if turn_end is not None:
            vocabulary.special_token_ids["eot"] = turn_end
        add(vocabulary, writer, quiet)

    # transformers 5.16.1 saves no layers that predict a token further, which the converter expects
    # of Qwen3.5.
    ModelBase.no_mtp = True
    TextModel.get_vocab_base_pre = name_of
    Phi3MiniModel.set_vocab = of_phi
    gguf.SpecialVocab.add_to_gguf = with_turn_end


def run_converter(
    converter: str,
    model: str,
    out: str,
    file_kind: str,
    turn_end: int | None = None,
    fewest_numbers: int = 0,
) -> None:
    """llama.cpp's own converter, with the facts that it lacks about a model that was trained
    here."""
    hush()
    sys.path.insert(0, converter)  # the converter has its own library `gguf`
    import convert_hf_to_gguf

    teach(turn_end)
    sys.argv = ["convert_hf_to_gguf.py", model, "--outfile", out, "--outtype", file_kind]
    convert_hf_to_gguf.main()
    written_numbers = numbers_in(Path(out))
    if written_numbers < fewest_numbers:
        Path(out).unlink()
        sys.exit(
            f"The file has {written_numbers:,} numbers, and the trained model {fewest_numbers:,}, so layers are missing"
        )


def numbers_in(file: Path) -> int:
    """How many numbers all weights of a GGUF file have."""
    import gguf

    tensors = gguf.GGUFReader(file).tensors
    return sum(math.prod(int(size) for size in tensor.shape) for tensor in tensors)


ERROR = 4  # GGML_LOG_LEVEL_ERROR
FP32 = 0  # GGML_TYPE_F32


def _library() -> Any:
    """llama.cpp's library, which prints only errors here; its other messages fill pages."""
    import llama_cpp as library

    def say(level: int, text: bytes, data: object) -> None:
        if level == ERROR:
            sys.stderr.write(text.decode(errors="replace"))

    library.saying = library.llama_log_callback(
        say
    )  # which must live as long as the library is in use
    library.llama_log_set(library.saying, None)
    return library


def run_quantiser(file: str, out: str, file_kind: str) -> int:
    library = _library()
    options = library.llama_model_quantize_default_params()
    options.ftype = getattr(library, f"LLAMA_FTYPE_MOSTLY_{file_kind.upper()}")
    return int(library.llama_model_quantize(file.encode(), out.encode(), options))


def look_into(file: str, task: Mapping[str, Any]) -> None:
    """Prints llama.cpp's view of a file, on this processor. task: `texts` to tokenise, `ends` that
    may end an answer, `answers` with `prompt` and `said` in token numbers, and `context`, the
    longest of them."""
    import numpy as np

    library = _library()
    options = library.llama_model_default_params()
    options.n_gpu_layers = 0
    options.use_extra_bufts = (
        False  # repacked weights would need instructions that not every processor has
    )
    model = library.llama_model_load_from_file(file.encode(), options)
    if not model:
        raise SystemExit(1)
    vocabulary = library.llama_model_get_vocab(model)
    room = library.llama_context_default_params()
    room.n_ctx = room.n_batch = room.n_ubatch = task["context"]
    # With a cache in half precision the answers would look like another model's.
    room.type_k = room.type_v = FP32
    room.flash_attn_type = library.LLAMA_FLASH_ATTN_TYPE_DISABLED
    context = library.llama_init_from_model(model, room)

    name = b"tokenizer.chat_template"
    template = ctypes.create_string_buffer(1)
    size = library.llama_model_meta_val_str(model, name, template, 1)
    template = ctypes.create_string_buffer(max(0, size) + 1)
    library.llama_model_meta_val_str(model, name, template, len(template))

    def tokens(text: str) -> list[int]:
        raw = text.encode()
        room = (library.llama_token * (len(raw) + 8))()
        count = library.llama_tokenize(vocabulary, raw, len(raw), room, len(room), False, True)
        return list(room[:count])

    def give(tokens: Sequence[int]) -> None:
        numbers = (library.llama_token * len(tokens))(*tokens)
        batch = library.llama_batch_get_one(numbers, len(tokens))
        if library.llama_decode(context, batch):
            raise SystemExit("llama.cpp cannot read a prompt")

    def answer(prompt: Sequence[int], trained_answer: Sequence[int]) -> tuple[list[int], float]:
        """The chosen token at each place of an answer, and the mean log-probability of its words,
        in nats."""
        library.llama_memory_clear(library.llama_get_memory(context), True)
        give(prompt)
        chosen = []
        total = 0.0
        size = library.llama_vocab_n_tokens(vocabulary)
        for token in trained_answer:
            raw = library.llama_get_logits_ith(context, -1)
            logits = np.ctypeslib.as_array(raw, shape=(size,)).astype(np.float64)
            chosen.append(int(logits.argmax()))
            logits -= logits.max()
            total += float(logits[token]) - math.log(np.exp(logits).sum())
            give([token])
        return chosen, total / max(1, len(trained_answer))

    view = {
        "chat_template": template.value.decode(),
        "ends": [bool(library.llama_vocab_is_eog(vocabulary, token)) for token in task["ends"]],
        "texts": list(map(tokens, task["texts"])),
        "answers": [answer(trained["prompt"], trained["said"]) for trained in task["answers"]],
    }
    print(json.dumps(view))


if __name__ == "__main__":
    child_process.watch_parent()
    module, name, given = json.loads(Path(sys.argv[1]).read_text(encoding="utf-8"))
    sys.exit(getattr(importlib.import_module(module), name)(*given))
