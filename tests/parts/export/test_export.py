"""Exporting: what is proven before it is kept, what is refused before anything is written, and what
the card says."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from runner.data.tokenizers import load
from runner.parts.evaluate.gates import GateVerdict
from runner.parts.export import card, exporting, trained_model
from runner.run.run_folder import RunFolder, StageFolder
from runner.tools import packaged
from runner.tools.files import read_record
from runner.tools.problem import Stop
from runner.tools.run_files import ADAPTER, BEST_IMAGES
from tests.parts.export.runs import base_of_pieces, run_of, stage_of
from tests.stages import measured


@pytest.fixture(scope="module")
def whole(tmp_path_factory) -> RunFolder:
    return run_of(tmp_path_factory.mktemp("whole") / "run")


@pytest.fixture(scope="module")
def adapted(tmp_path_factory) -> RunFolder:
    return run_of(tmp_path_factory.mktemp("adapted") / "run", "lyrics")


@pytest.fixture
def told() -> list[str]:
    return []


def copy(run: RunFolder, folder: Path) -> StageFolder:
    """The same run elsewhere, whose files a test may change."""
    shutil.copytree(run.path, folder)
    return stage_of(RunFolder(folder))


def rewritten(file: Path, change) -> None:
    """A file of tensors with others in it."""
    from safetensors.torch import load_file, save_file

    tensors = load_file(file)
    save_file(change(tensors) or tensors, file, metadata={"format": "pt"})


def on_record(stage: StageFolder) -> None:
    stage.mark("finished", outputs=stage.outputs())


def refused(run: Path, form: str, out: Path, kind: str | None = None) -> str:
    with pytest.raises(Stop) as stop:
        exporting.export(trained_model.of(RunFolder(run)), form, kind, out, lambda line: None)
    left = [entry.name for entry in out.parent.iterdir() if "partial" in entry.name]
    assert not left and not out.exists()
    return stop.value.text


def test_a_whole_model_is_exported_with_proof_card_and_the_end_of_an_answer(whole, told):
    known = trained_model.of(whole)
    folder = exporting.export(known, "safetensors", None, None, told.append)
    assert folder == whole.path / "export" / "safetensors" and "changed 16 of 21 tensors" in told[0]
    made = exporting.Export.read(folder)
    assert (made.run, made.stage, made.model, made.format) == (
        whole.state.id,
        "train",
        known.stage.weights,
        "safetensors",
    )
    assert made.proof["changed_tensors"] == 16 and set(made.files) == {
        file.name for file in folder.iterdir()
    } - {"export.json"}
    ends = read_record(folder / "generation_config.json")["eos_token_id"]
    assert ends == 0
    # The same again takes its place.
    assert exporting.export(known, "safetensors", None, None, told.append) == folder


def test_a_model_that_is_the_base_model_is_refused(whole, tmp_path):
    stage = copy(whole, tmp_path / "run")
    shutil.copy(stage.run.path / "base_model/model.safetensors", stage.model / "model.safetensors")
    on_record(stage)
    assert "all its tensors equal the base model's, so the training" in refused(
        tmp_path / "run", "safetensors", tmp_path / "out"
    )


def test_servers_that_go_by_the_generation_config_end_an_answer_as_in_training(adapted, told):
    folder = exporting.export(trained_model.of(adapted), "safetensors", None, None, told.append)
    from transformers import AutoTokenizer

    words = AutoTokenizer.from_pretrained(folder)
    end = words.convert_tokens_to_ids("<|end|>")
    assert (
        words.eos_token != "<|end|>"
        and end in read_record(folder / "generation_config.json")["eos_token_id"]
    )
    assert "8 adapted layers are the base model's with the adapter added" in told[0]


@pytest.mark.parametrize(
    "lost, said",
    [
        ("all", "is the same as in the base model: the adapter was lost,"),
        ("one", "is the same as in the base model: the adapter was lost,"),
        ("half", "is not the base model's plus the adapter's change; they differ"),
        ("norm", "but the adapter does not change it"),
    ],
)
def test_a_merged_model_that_is_not_base_and_adapter_is_refused(adapted, tmp_path, lost, said):
    from safetensors.torch import load_file

    stage = copy(adapted, tmp_path / "run")
    base = load_file(stage.run.path / "base_model/model.safetensors")
    one = "model.layers.1.mlp.down_proj.weight"

    def change(tensors):
        if lost == "all":
            return base
        if lost == "norm":
            tensors["model.norm.weight"] += 1e-4
        else:
            tensors[one] = base[one] if lost == "one" else (base[one] + tensors[one]) / 2

    rewritten(stage.model / "model.safetensors", change)
    on_record(stage)
    assert said in refused(tmp_path / "run", "safetensors", tmp_path / "out")


@pytest.mark.parametrize("precision", ["bf16", "fp16"])
def test_a_merge_in_half_precision_is_proven_within_its_rounding(adapted, tmp_path, precision):
    """And a layer in which half of the change was lost is none."""
    from runner.trainer import merging

    stage, out = stage_of(adapted), tmp_path / "merged"
    adapter, base = (
        trained_model.AdapterFolder(stage.path / ADAPTER),
        (str(adapted.path / "base_model"), None),
    )
    merging.merge(adapter.folder, out, precision)
    proof = trained_model.merged(out, adapter, base)
    assert proof["changed_tensors"] == 8 and 1e-4 < proof["largest_difference"] < 0.1
    one, plain = (
        "model.layers.0.self_attn.o_proj.weight",
        trained_model.loaded(base[0]).state_dict(),
    )

    def change(tensors):
        tensors[one] = ((plain[one] + tensors[one].float()) / 2).to(tensors[one].dtype)

    rewritten(out / "model.safetensors", change)
    with pytest.raises(Stop, match="plus the adapter's change; they differ"):
        trained_model.merged(out, adapter, base)


@pytest.mark.parametrize("precision", ["fp32", "bf16", "fp16"])
@pytest.mark.parametrize("stable", [False, True])
def test_a_merge_of_dora_is_proven_with_the_lengths_that_its_rows_have_learned(
    adapted, tmp_path, precision, stable
):
    import torch
    from peft import LoraConfig, get_peft_model
    from transformers import AutoModelForCausalLM

    from runner.trainer import merging

    base, out = (str(adapted.path / "base_model"), None), tmp_path / "merged"
    told = LoraConfig(
        r=4, lora_alpha=8, use_dora=True, use_rslora=stable, target_modules=["o_proj", "down_proj"]
    )
    model = get_peft_model(AutoModelForCausalLM.from_pretrained(base[0]), told)
    torch.manual_seed(1)
    with torch.no_grad():
        for name, part in model.named_parameters():
            if "lora_" in name:
                part.mul_(1 + 0.1 * torch.rand_like(part)).add_(0.02 * torch.randn_like(part))
    model.save_pretrained(tmp_path / "adapter")
    merging.merge(tmp_path / "adapter", out, precision, named_base=base)
    folder = trained_model.AdapterFolder(tmp_path / "adapter")
    proof = trained_model.merged(out, folder, base)
    assert proof["changed_tensors"] == 4 and proof["largest_difference"] < 0.1
    one = "model.layers.0.self_attn.o_proj.weight"
    rewritten(out / "model.safetensors", lambda tensors: {**tensors, one: tensors[one] * 1.5})
    with pytest.raises(Stop, match="plus the adapter's change; they differ"):
        trained_model.merged(out, folder, base)


def test_an_adapter_is_proven_beside_its_base_model(adapted, told):
    folder = exporting.export(trained_model.of(adapted), "adapter", None, None, told.append)
    made = exporting.Export.read(folder)
    assert (
        made.proof["from_base"] > 1e-2 > made.proof["from_merged"]
        and made.proof["max_lora_rank"] == 8
    )
    names = {file.name for file in folder.iterdir()}
    assert {
        "adapter_config.json",
        "adapter_model.safetensors",
        "chat_template.jinja",
        "tokenizer.json",
        "README.md",
    } <= names
    assert not names & {"config.json", "model.safetensors"}
    assert "--enable-lora --max-lora-rank 8" in (folder / "README.md").read_text("utf-8")


def test_a_tokenizer_that_is_one_file_of_sentencepiece_is_read(tmp_path):
    """By transformers, which asks sentencepiece and protobuf for it: their versions must go
    together."""
    base = base_of_pieces(tmp_path / "base", marks_in_pieces=True)
    (base / "tokenizer.json").unlink()
    assert (
        load(str(base), None, False, local_only=True).tokenize("<|im_start|>a 1")[0]
        == "<|im_start|>"
    )


def test_an_adapter_that_does_nothing_is_refused(adapted, tmp_path):
    stage = copy(adapted, tmp_path / "run")
    rewritten(
        stage.path / ADAPTER / trained_model.WEIGHTS,
        lambda tensors: {name: part * 0 for name, part in tensors.items()},
    )
    assert "it was lost" in refused(tmp_path / "run", "adapter", tmp_path / "out")


@pytest.mark.parametrize(
    "change, said",
    [
        ({"r": 513}, "its rank is 513, and vLLM serves ranks up to 512"),
        ({"rank_pattern": {"o_proj": 1024}}, "its rank is 1024"),
        (
            {"modules_to_save": ["lm_head"]},
            "it contains whole layers (`lm_head`, `modules_to_save`)",
        ),
        ({"bias": "all"}, "it contains biases"),
        ({"use_dora": True}, "it is a DoRA"),
    ],
    ids=lambda value: str(value)[:20],
)
def test_what_servers_cannot_serve_is_refused_before_anything_is_written(
    adapted, tmp_path, change, said
):
    stage = copy(adapted, tmp_path / "run")
    file = stage.path / ADAPTER / "adapter_config.json"
    file.write_text(json.dumps(read_record(file) | change))
    text = refused(tmp_path / "run", "adapter", tmp_path / "out")
    elsewhere = "`--format safetensors`" if "modules_to_save" not in change else "best_model/"
    assert said in text and elsewhere in text


def test_names_that_match_no_layer_are_refused(adapted, tmp_path):
    stage = copy(adapted, tmp_path / "run")
    file = stage.path / ADAPTER / trained_model.WEIGHTS
    rewritten(
        file,
        lambda tensors: {
            name.replace("model.model.layers", "model.language_model.layers"): part
            for name, part in tensors.items()
        },
    )
    text = refused(tmp_path / "run", "adapter", tmp_path / "out")
    assert (
        "`language_model.layers.0.mlp.down_proj`, and 7 others" in text
        and "like the base model," in text
    )


def test_a_run_without_an_adapter_has_none_to_export(whole, tmp_path):
    assert "trains the model itself and no adapter" in refused(
        whole.path, "adapter", tmp_path / "out"
    )


def test_a_folder_that_holds_another_model_stays(whole, adapted, tmp_path, told):
    out = tmp_path / "out"
    exporting.export(trained_model.of(adapted), "safetensors", None, out, told.append)
    before = {file.name: file.read_bytes() for file in out.iterdir()}
    other = tmp_path / "other"
    other.mkdir()
    (other / "model.safetensors").write_bytes(b"somebody's own")
    for folder, said in (
        (out, "of another model"),
        (other, "something other than"),
        (other / "model.safetensors", "something other than"),
    ):
        with pytest.raises(Stop, match=said):
            exporting.export(trained_model.of(whole), "safetensors", None, folder, told.append)
    assert {file.name: file.read_bytes() for file in out.iterdir()} == before
    assert [file.name for file in other.iterdir()] == ["model.safetensors"]


def test_a_model_that_is_not_as_training_left_it_is_refused(whole, tmp_path):
    stage = copy(whole, tmp_path / "run")
    (stage.model / "config.json").write_text("{}")
    with pytest.raises(Stop, match=r"config\.json` has changed since training"):
        trained_model.of(RunFolder(tmp_path / "run"))


def test_a_model_that_tells_images_apart_is_no_model_of_language(whole, tmp_path):
    stage = copy(whole, tmp_path / "run")
    (stage.path / BEST_IMAGES).write_bytes(b"weights")
    with pytest.raises(Stop, match="classifies images,"):
        trained_model.of(RunFolder(tmp_path / "run"))


def test_the_card_has_the_facts_of_the_page_and_no_place_of_this_machine(whole, tmp_path, told):
    from huggingface_hub import ModelCard

    from runner.parts.report import facts, sentences

    stage = copy(whole, tmp_path / "run")
    measured(stage, metrics={"perplexity": 3.25, "forgetting": 0.125})
    run = RunFolder(tmp_path / "run")
    folder = exporting.export(trained_model.of(run), "safetensors", None, None, told.append)
    text = (folder / "README.md").read_text("utf-8")
    known = facts.RunFacts(run)
    for sentence in sentences.first(known):
        assert sentence in text
    for name, value in [*sentences.results(known.stages[-1]), *sentences.metrics(known.stages[-1])]:
        assert f"| {name} | {value} |" in text
    assert (
        "| perplexity | 3.25 |" in text
        and known.planned.fingerprint in text
        and known.stages[-1].weights in text
    )
    assert "- data: cc-by-4.0" in text and "rows.jsonl" in text and "/home/somebody" not in text
    assert str(tmp_path) not in text and "lyric-professor" not in text
    # Anybody's text stays text.
    assert "<script>" not in text and "&lt;script>alert(1)&lt;/script> \\| so" in text
    read = ModelCard(text).data
    assert read.library_name == "transformers" and read.tags == ["recipe-runner"]
    assert {one.metric_type: one.metric_value for one in read.eval_results} == {
        "perplexity": 3.25,
        "forgetting": 0.125,
    }
    # What was measured of another model says nothing of this one.
    on_record(stage)
    measured(stage, metrics={"perplexity": 3.25}, model="0" * 32)
    assert not card.measured(trained_model.of(run)) and "model-index" not in card.head(
        trained_model.of(run), "safetensors"
    )


def test_the_card_has_the_gates_of_its_stage(whole, tmp_path):
    source = trained_model.of(copy(whole, tmp_path / "run").run)
    verdicts = (
        GateVerdict("perplexity", "< 4", "3.25", True),
        GateVerdict("forgetting", "< 0.1", "0.125", False, "too high"),
    )
    source.stage.verdicts = verdicts
    text = card.text(source, "safetensors", "", {}, "")
    assert "| perplexity | < 4 | 3.25 | holds |" in plainly(text)
    assert "| forgetting | < 0.1 | 0.125 | missed: too high |" in plainly(text)


def plainly(text: str) -> str:
    return text.replace("&lt;", "<")


def test_the_card_names_a_base_model_and_data_of_the_hub(whole, tmp_path):
    stage = copy(whole, tmp_path / "run")
    file = stage.run.path / "planned.json"
    facts = read_record(file)
    facts |= {"model": "HuggingFaceTB/SmolLM3-3B", "licence": "apache-2.0"}
    file.write_text(json.dumps(facts))
    head = card.head(trained_model.of(stage.run), "gguf")
    assert (
        "base_model: HuggingFaceTB/SmolLM3-3B" in head and "base_model_relation: quantized" in head
    )
    assert (
        "license: apache-2.0" in head and "- cahlen/offline-practical-skills-qa-synthetic" in head
    )
    stage.run.mark("finished", kind="rehearsal")
    twin = card.head(trained_model.of(RunFolder.at(stage.run.path)), "gguf")
    assert "base_model" not in twin and "datasets" not in twin and "- rehearsal" in twin


class Words:
    """A tokenizer that has a chat template and nothing else."""

    def __init__(self, template: str) -> None:
        self.chat_template, self.bos_token = template, None

    def apply_chat_template(
        self, conversation, add_generation_prompt=False, tokenize=False, tools=None
    ):
        from transformers.utils.chat_template_utils import render_jinja_template

        texts, _ = render_jinja_template(
            conversations=[conversation],
            chat_template=self.chat_template,
            add_generation_prompt=add_generation_prompt,
        )
        return texts[0]


def templates() -> list[str]:
    from runner.catalog.tables import table

    assert len(table("templates")) > 8
    return list(table("templates"))


@pytest.mark.parametrize("name", templates())
def test_a_modelfile_writes_conversations_as_the_trained_template_does(name):
    """By the pieces; that Go puts them together so is held by the next test."""
    from runner.catalog.models import chat_template
    from runner.data.tokenizers import jinja

    words = Words(jinja(chat_template(name)))
    parts = card.pieces(words)
    assert parts is not None
    turns = ["How?", "So.", "And {{then}}?"]
    for system in (None, "Be brief."):
        talk = [{"role": "system", "content": system}] if system else []
        talk += [
            {"role": role, "content": turn}
            for role, turn in zip(("user", "assistant", "user"), turns, strict=True)
        ]
        assert parts.text(system, turns) == words.apply_chat_template(
            talk, add_generation_prompt=True
        )
    text = card.modelfile("a.gguf", words, True, "Be brief.", ["<|end|>", "<|end|>"], 512, 1.05)
    assert "PARAMETER repeat_penalty 1.05\n" in text
    assert (
        text.count("PARAMETER stop") == 1
        and 'SYSTEM """Be brief."""' in text
        and "num_ctx 512" in text
    )


GO = """package main
import ("encoding/json"; "os"; "text/template")
type Message struct { Role, Content string }
func main() {
	var cases []struct { Template, System string; Messages []Message }
	json.NewDecoder(os.Stdin).Decode(&cases)
	said := []string{}
	for _, one := range cases {
		file, _ := os.CreateTemp("", "said")
		template.Must(template.New("").Parse(one.Template)).Execute(file, one)
		text, _ := os.ReadFile(file.Name())
		os.Remove(file.Name())
		said = append(said, string(text))
	}
	json.NewEncoder(os.Stdout).Encode(said)
}
"""


@pytest.mark.long
@pytest.mark.skipif(
    not shutil.which("go"), reason="Go, whose templates Ollama uses, is not installed"
)
def test_go_writes_the_same_conversations(tmp_path):
    import subprocess

    from runner.catalog.models import chat_template
    from runner.data.tokenizers import jinja

    (tmp_path / "said.go").write_text(GO)
    cases, wanted = [], []
    for name in templates():
        words = Words(jinja(chat_template(name)))
        for system in ("", "Be brief."):
            talk = [{"role": "system", "content": system}] if system else []
            talk += [
                {"role": role, "content": f"{role}."} for role in ("user", "assistant", "user")
            ]
            wanted.append(words.apply_chat_template(talk, add_generation_prompt=True))
            told = [{"Role": one["role"], "Content": one["content"]} for one in talk]
            cases.append(
                {
                    "Template": card.go_template(card.pieces(words)),
                    "System": system,
                    "Messages": told,
                }
            )
    done = subprocess.run(
        ["go", "run", "said.go"],
        cwd=tmp_path,
        input=json.dumps(cases),
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0 and json.loads(done.stdout) == wanted, done.stderr


def test_a_template_that_cannot_be_taken_apart_is_not_guessed():
    counted = "{% for m in messages %}{{ loop.index }}{{ m.role }}{{ m.content }}{% endfor %}"
    assert card.pieces(Words(counted)) is None
    strict = "{% if messages[0].role == 'system' %}{{ raise_exception('no system') }}{% endif %}{{ messages[0].content }}"
    assert card.pieces(Words(strict)) is None
    assert "cannot be said in Go's words" in card.modelfile(
        "a.gguf", Words(counted), True, None, [], None, 1.0
    )


def test_only_words_parted_as_gpt2_does_are_called_so(whole, tmp_path):
    from runner.parts.export.gguf import is_gpt2

    file = stage_of(whole).model / "tokenizer.json"
    facts = read_record(file)
    assert is_gpt2(file)
    other = tmp_path / "tokenizer.json"
    for change in (
        {"pre_tokenizer": {"type": "Whitespace"}},
        {"normalizer": {"type": "NFC"}},
        {"model": {"type": "Unigram"}},
    ):
        other.write_text(json.dumps(facts | change))
        assert not is_gpt2(other)
    other.write_text(
        json.dumps(facts | {"pre_tokenizer": facts["pre_tokenizer"] | {"use_regex": False}})
    )
    assert not is_gpt2(other)


def test_wrong_use_is_said(whole, capsys):
    from runner.commands.cli import _code

    for arguments, said in (
        (["--quantize", "q8_0"], "`--quantize` needs `--format gguf`."),
        (["--format", "gguf", "--quantize", "q9"], "There is no format `q9`"),
    ):
        assert (
            _code(["export", str(whole.path), *arguments]) == 2 and said in capsys.readouterr().err
        )


@pytest.mark.parametrize(
    "package, arguments, extra",
    [
        ("llama_cpp", ["export", "--format", "gguf"], "gguf"),
        ("model_registry", ["register", "--registry", "http://127.0.0.1:9"], "registry"),
    ],
)
def test_an_extra_that_is_not_installed_is_said_before_anything_is_written(
    whole, tmp_path, monkeypatch, capsys, package, arguments, extra
):
    import sys

    from runner.commands.cli import _code

    monkeypatch.setitem(sys.modules, package, None)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    command, *options = arguments
    assert _code([command, str(whole.path), *options]) == 1
    said = capsys.readouterr().err
    assert f"`{package}`" in said and packaged.install(extra) in said
    assert not list(tmp_path.iterdir()) and not (whole.path / "export/gguf").exists()
