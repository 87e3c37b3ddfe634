"""Edits of the starters as people make them, which were let through once: each is found, as what it
is, at its line."""

from __future__ import annotations

import io
import json
import shutil

import pandas as pd
import pytest

from runner.check.validate import examine
from runner.parts.jobs.kubernetes import IMAGE_REGISTRY as REGISTRY
from runner.recipe.overrides import from_options
from tests.conftest import ROOT

RECIPES = ROOT / "recipes"
SURVIVAL, LYRICS, SEVEN_B, GEMMA, RESNET = "survival", "lyrics", "seven-b", "gemma", "resnet"
ARITHMETIC = "arithmetic"

ATTENTION, LLAMA = "model.attention=sdpa", "model.base=meta-llama/Llama-3.2-1B"
SECRET = "openshift.hub_token_secret=hub-token"

CONFIG = {
    **{
        "model_type": "llama",
        "hidden_size": 64,
        "intermediate_size": 128,
        "num_hidden_layers": 4,
        "vocab_size": 100,
    },
    **{"num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 4096},
}

# A starter, what is set in it, whether that is an error or a note, and the setting that it is said
# at.
SET = [
    (SEVEN_B, ("stages.0.model.hidden_size=4128",), "error", "attention_heads"),
    (SURVIVAL, ("openshift.data_dir=/nowhere/data",), "note", "openshift.data_dir"),
    (SURVIVAL, ("openshift.data_dir=/shared/models/survival",), "error", "openshift.data_dir"),
    (SURVIVAL, ("machines.gpu=RTX 4090",), "error", "machines.gpu"),
    (SURVIVAL, ("machines.gpu=L40S",), "note", "machines.gpu"),
    (SURVIVAL, ("openshift.claims.1.mount=/dev/shm",), "error", "openshift.claims.1.mount"),
    (
        SURVIVAL,
        ("openshift.claims.1.mount=/opt/recipe-runner/data",),
        "error",
        "openshift.claims.1.mount",
    ),
    (SURVIVAL, ("openshift.claims.1.mount=/opt",), "error", "openshift.claims.1.mount"),
    (SURVIVAL, ("openshift.claims.1.mount=/usr",), "error", "openshift.claims.1.mount"),
    (
        SURVIVAL,
        ("openshift.claims.1.storage_class=fast disk",),
        "error",
        "openshift.claims.1.storage_class",
    ),
    (SURVIVAL, ("openshift.metrics_port=23456",), "error", "openshift.metrics_port"),
    (SURVIVAL, ("openshift.progress_port=29500",), "error", "openshift.progress_port"),
    (SURVIVAL, ("openshift.image=My Image:1",), "error", "openshift.image"),
    (SURVIVAL, ("openshift.image=Quay.io/Me/X",), "error", "openshift.image"),
    (
        SURVIVAL,
        (f"openshift.image={REGISTRY}/somebody/recipe-runner:0.1.0",),
        "note",
        "openshift.image",
    ),
    (
        SURVIVAL,
        (f"openshift.image={REGISTRY}/lyric-professor/other:2", "openshift.namespace=mine"),
        "note",
        "openshift.image",
    ),
    (SURVIVAL, ("openshift.queue=My_Queue",), "error", "openshift.queue"),
    # A job names it in a label.
    (SURVIVAL, (f"openshift.queue={'q' * 64}",), "error", "openshift.queue"),
    # Volumes, hosts, resources and jobs that Kubernetes refuses.
    (SURVIVAL, ("openshift.claims.1.mount=/x:y",), "error", "openshift.claims.1.mount"),
    (
        SURVIVAL,
        ("openshift.network.rdma_resource=rdma shared",),
        "error",
        "openshift.network.rdma_resource",
    ),
    (SURVIVAL, ("openshift.network.attachment=a/b/c",), "error", "openshift.network.attachment"),
    (SURVIVAL, ("openshift.deadline_hours=0.0001",), "error", "openshift.deadline_hours"),
    (
        SURVIVAL,
        (f"name={'a' * 53}", "machines.nodes=1000", "train.effective_batch_size="),
        "error",
        "name",
    ),
    # A text with a newline at its end, which every `$` of a pattern took once, and units did not.
    (SURVIVAL, ('limits.gpu_memory="45 GB\\n"',), "error", "limits.gpu_memory"),
    (SURVIVAL, ('name="survival\\n"',), "error", "name"),
    (SURVIVAL, ("train.report_to=wandb",), "error", "train.report_to"),
    (
        SEVEN_B,
        ("stages.1.train.report_to=mlflow", 'openshift.version="3.3"'),
        "error",
        "stages.1.train.report_to",
    ),
    (SURVIVAL, ("train.learning_rate=1",), "note", "train.learning_rate"),
    (RESNET, ("train.learning_rate=1",), "note", "train.learning_rate"),
    (
        SURVIVAL,
        ("machines.nodes=64", "train.effective_batch_size="),
        "note",
        "learning_rate_scaling",
    ),
    (SURVIVAL, ("train.warmup_ratio=0.99",), "note", "train.warmup_ratio"),
    (SURVIVAL, ("train.epochs=0.001",), "note", "train.epochs"),
    (SURVIVAL, ("advanced.axolotl.warmup_steps=5",), "error", "advanced.axolotl.warmup_steps"),
    (
        SEVEN_B,
        ("stages.3.train.lora_rank=128", "stages.3.train.lora_alpha=1"),
        "note",
        "stages.3.train.lora_alpha",
    ),
    (
        SEVEN_B,
        ("stages.3.train.lora_rank=8", "stages.3.train.lora_alpha=256"),
        "note",
        "stages.3.train.lora_alpha",
    ),
    (LYRICS, ("train.lora_alpha=1",), "note", "train.lora_alpha"),
    (LYRICS, ("train.lora_alpha=2048",), "note", "train.lora_alpha"),
    (SEVEN_B, ("stages.1.gates.0=perplexity > 15",), "note", "stages.1.gates.0"),
    (SEVEN_B, ("stages.2.gates.0=preference_accuracy < 0.5",), "note", "stages.2.gates.0"),
    (SEVEN_B, ("stages.1.gates.0=perplexity < -5",), "error", "stages.1.gates.0"),
    (SEVEN_B, ("stages.1.gates.0=perplexty < 15",), "error", "stages.1.gates.0"),
    (SEVEN_B, ("stages.0.data.min_words=200000",), "error", "stages.0.data.min_words"),
    (SEVEN_B, ("stages.0.data.limit=100",), "note", "stages.0.data.limit"),
    (
        SEVEN_B,
        ("stages.0.tokenizer.base=openai-community/gpt2", "stages.0.tokenizer.vocabulary=50257"),
        "note",
        "vocabulary",
    ),
    (SEVEN_B, ("stages.2.data.chosen='[rejected]'",), "error", "rejected"),
    (SURVIVAL, ("data.answer='[question]'",), "note", "data.answer"),
    (SURVIVAL, ("data.answer=always the same",), "error", "data.answer"),
    (SURVIVAL, ("data.system_prompt=You know [topic].",), "note", "data.system_prompt"),
    (SURVIVAL, ("data.system_prompt=<|im_start|>system",), "note", "data.system_prompt"),
    (SURVIVAL, ("model.sequence_len=64",), "error", "model.sequence_len"),
    (SURVIVAL, ("data.hub=justaname",), "error", "data.hub"),
    (SURVIVAL, ("data.revision=abc1234",), "error", "data.revision"),
    (SURVIVAL, ("model.revision=abc1234",), "error", "model.revision"),
    (
        SEVEN_B,
        (
            "stages.0.tokenizer.base=openai-community/gpt2",
            "stages.0.tokenizer.vocabulary=",
            "stages.0.tokenizer.revision=abc1234",
        ),
        "error",
        "stages.0.tokenizer.revision",
    ),
    (SURVIVAL, ("model.sequence_len=128",), "note", "model.sequence_len"),
    (LYRICS, ("model.sequence_len=32",), "note", "model.sequence_len"),
    (SEVEN_B, ("stages.1.model.sequence_len=64",), "note", "stages.1.model.sequence_len"),
    (RESNET, ("model.classes=4",), "error", "model.classes"),
    (GEMMA, ("model.precision=fp16",), "note", "model.precision"),
    (GEMMA, ("model.precision=fp32",), "error", "attention"),
    (SEVEN_B, ("stages.2.model.precision=fp32",), "error", "attention"),
    (
        SEVEN_B,
        ("stages.2.model.precision=bf16", "machines.gpu=Tesla-T4", ATTENTION),
        "error",
        "stages.2.model.precision",
    ),
    (
        SEVEN_B,
        ("stages.1.model.precision=fp32", "stages.1.speed.fp8=", ATTENTION),
        "note",
        "packing",
    ),
    (
        SURVIVAL,
        ("model.base=Qwen/Qwen2.5-1.5B-Instruct", "model.precision=fp16", ATTENTION),
        "note",
        "model.precision",
    ),
    (
        SURVIVAL,
        (LLAMA, SECRET, "data.chat_template=tokenizer_default"),
        "error",
        "data.chat_template",
    ),
    (
        SURVIVAL,
        (
            "train.report_to=mlflow",
            "openshift.tracking_secret=keys",
            "openshift.image=quay.io/me/x:1",
        ),
        "note",
        "train.report_to",
    ),
    (SURVIVAL, ("openshift.mirror=s3://team/runs",), "error", "openshift.mirror"),
    (SURVIVAL, ("openshift.connection=my-s3",), "note", "openshift.connection"),
    (
        SURVIVAL,
        (
            "openshift.connection=my-s3",
            "openshift.mirror=s3://team/runs",
            "openshift.image=quay.io/me/x:1",
        ),
        "note",
        "openshift.mirror",
    ),
    (
        SURVIVAL,
        ("openshift.deadline_hours=0.01", "limits.time="),
        "note",
        "openshift.deadline_hours",
    ),
    (SEVEN_B, ("openshift.deadline_hours=1",), "note", "openshift.deadline_hours"),
    (
        SURVIVAL,
        ("advanced.axolotl.dataloader_num_workers=-1",),
        "error",
        "advanced.axolotl.dataloader_num_workers",
    ),
    (SURVIVAL, ("advanced.axolotl.adam_beta1=-0.5",), "error", "advanced.axolotl.adam_beta1"),
    (SURVIVAL, ("data.split=trian",), "error", "data.split"),
    (SURVIVAL, ("data.split=train[:10%]+test",), "error", "data.split"),
    (GEMMA, ("data.validation_split=dev",), "error", "data.validation_split"),
    (RESNET, ("data.test_split=tests",), "error", "data.test_split"),
    (SURVIVAL, ("data.hub=cahlen/offline-practical-skill-qa-synthetic",), "note", "data.hub"),
    (SURVIVAL, ("data.path=data/survival-sample.jsonl", "data.hub="), "note", "revision"),
    (SEVEN_B, ("stages.0.gates.3=lm_eval.hellaswag.acc_nrm >= 0.35",), "note", "stages.0.gates.3"),
    (SEVEN_B, ("stages.0.gates.1=generated_tokens <= 1",), "note", "stages.0.gates.1"),
    # Gates that every model passes or none.
    (ARITHMETIC, ("gates.0=reward >= 5",), "error", "gates.0"),
    (ARITHMETIC, ("gates.0=reward.number >= 2",), "error", "gates.0"),
    (ARITHMETIC, ("gates.0=reward >= 1", "rewards={number: {weight: 0.5}}"), "error", "gates.0"),
    # TRL's generation with vLLM raises an error, as torch's AdamW does.
    (
        ARITHMETIC,
        ("train.generator=vllm", "train.eight_bit_base=true"),
        "error",
        "train.eight_bit_base",
    ),
    (SURVIVAL, ("advanced.axolotl.adam_beta2=1",), "error", "advanced.axolotl.adam_beta2"),
    # Other rows than those that are planned and proven.
    (SURVIVAL, ("advanced.axolotl.device_map=auto",), "error", "advanced.axolotl.device_map"),
    (
        SURVIVAL,
        ("advanced.axolotl.dataset_shard_num=4",),
        "error",
        "advanced.axolotl.dataset_shard_num",
    ),
    (ARITHMETIC, ("data.prompt=[answer]",), "note", "answer"),
    (LYRICS, ("serve.image=bad image",), "error", "serve.image"),
    (LYRICS, ("serve.model=pvc://models/../other",), "error", "serve.model"),
    (
        SURVIVAL,
        ("openshift.kueue=0.13", "openshift.queue=q", "openshift.topology=rack"),
        "error",
        "openshift.topology",
    ),
    (GEMMA, ("nodes.machines.0.address=localhost",), "error", "nodes.machines.0.address"),
    (SURVIVAL, ("search={over: {data.seed: [1, 2]}}",), "note", "search"),
    (SURVIVAL, ("search={over: {demo.max_new_tokens: [1, 2]}}",), "error", "search"),
    (SURVIVAL, ("search={over: {data.question: ['[nope]', '[question]']}}",), "error", "search"),
]


@pytest.mark.parametrize(
    ("starter", "options", "severity", "setting"), SET, ids=lambda value: str(value)[:60]
)
def test_what_was_let_through_is_found_at_its_setting(starter, options, severity, setting):
    """At the option, where that is what is wrong, or at the line that it does not fit."""
    found = examine(RECIPES / f"{starter}.yaml", from_options(options))
    places = [
        (
            one.severity,
            one.file.split("=")[0].removeprefix("--set ") if not one.line else one.source,
        )
        for one in found
    ]
    assert any(
        kind == severity and (place == setting or place.strip().startswith(f"{setting}:"))
        for kind, place in places
    ), found
    if severity == "note":
        assert all(kind == "note" for kind, _ in places), found


# A starter, a piece of it, what a person makes of that, and the kind of what is said at that very
# line.
EDITED = [
    (SURVIVAL, "question: For [topic], [question]", "question: For [topic] #1 [question]", "note"),
    (SURVIVAL, 'answer: "[answer]"', "answer: “[answer]”", "note"),
    (GEMMA, "<MAIN_NODE_IP>", "10.0.0.300", "error"),
    (GEMMA, "<SECOND_NODE_IP>", "<MAIN_NODE_IP>", "error"),
    (GEMMA, "<SECOND_NODE_IP>", "<main_node_ip>", "error"),
]


@pytest.mark.parametrize(
    ("starter", "before", "after", "severity"),
    EDITED,
    ids=["cut", "quotes", "address", "twice", "capitals"],
)
def test_what_was_let_through_is_found_at_its_line(starter, before, after, severity, tmp_path):
    shutil.copytree(RECIPES, tmp_path / "recipes")
    file = tmp_path / "recipes" / f"{starter}.yaml"
    text = file.read_text("utf-8").replace(
        f"address: {before}" if "<" in before else before,
        f"address: {after}" if "<" in before else after,
        1,
    )
    file.write_text(text, encoding="utf-8")
    line = max(number for number, shown in enumerate(text.splitlines(), 1) if after in shown)
    assert [(one.severity, one.line) for one in examine(file) if after in one.source] == [
        (severity, line)
    ]


@pytest.mark.parametrize(
    ("rows", "words", "severity"),
    [("", "has no row", "error"), ("Why?,Because.\n", "has only one row", "note")],
    ids=["none", "one"],
)
@pytest.mark.parametrize("ending", ["csv", "json", "jsonl", "parquet", "xlsx"])
def test_a_file_needs_rows_to_learn_from_and_to_measure_on(rows, words, severity, ending, tmp_path):
    table = pd.read_csv(io.StringIO(f"question,answer\n{rows}"))
    match ending:
        case "csv":
            table.to_csv(tmp_path / "my.csv", index=False)
        case "json" | "jsonl":
            table.to_json(tmp_path / f"my.{ending}", orient="records", lines=ending == "jsonl")
        case "parquet":
            table.to_parquet(tmp_path / "my.parquet")
        case "xlsx":
            table.to_excel(tmp_path / "my.xlsx", index=False)
    options = (
        f"data.path={tmp_path}/my.{ending}",
        "data.hub=",
        "data.revision=",
        "data.split=",
        "data.question='[question]'",
    )
    of_columns = {"json": "its first row is not an object", "jsonl": "it is empty"}
    said = of_columns.get(ending, words) if severity == "error" else words
    found = [
        one
        for one in examine(RECIPES / "survival.yaml", from_options(options))
        if one.file.startswith("--set data.path=")
    ]
    assert [one.severity for one in found] == [severity] and said in found[0].message


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "has no document"),
        ("\n \n\n", "has no document"),
        ("One two.\nThree.\n", "has only one document"),
        ("One.\n\nTwo.", None),
    ],
)
@pytest.mark.parametrize("share", ["0.1", ""])
def test_a_text_needs_documents(text, words, share, tmp_path):
    """One is enough where nothing is measured."""
    (tmp_path / "my.txt").write_text(text)
    options = (
        *(
            f"data.{name}="
            for name in ("hub", "subset", "revision", "split", "validation_split", "column")
        ),
        f"data.path={tmp_path}/my.txt",
        f"data.validation_share={share}",
    )
    found = [
        one.message
        for one in examine(RECIPES / f"{GEMMA}.yaml", from_options(options))
        if "Training and validation need more" in one.message
    ]
    if words and not (share == "" and "one" in words):
        assert len(found) == 1 and words in found[0]
    else:
        assert not found


@pytest.mark.parametrize(
    ("starter", "home", "columns"),
    [
        (GEMMA, "data", "text"),
        (SEVEN_B, "stages.0.data", "text"),
        (SEVEN_B, "stages.2.data", "system,question,chosen,rejected"),
        (LYRICS, "data", "Instruction,Label"),
    ],
)
def test_a_file_with_a_header_alone_is_refused_whatever_its_rows_are(
    starter, home, columns, tmp_path
):
    (tmp_path / "my.csv").write_text(f"{columns}\n")
    of_hub = ("hub", "subset", "revision", "split", "validation_split")
    options = [f"{home}.path={tmp_path}/my.csv", *(f"{home}.{name}=" for name in of_hub)]
    options += ["data.validation_share=0.1"] if starter == GEMMA else []
    found = [
        one.message
        for one in examine(RECIPES / f"{starter}.yaml", from_options(options))
        if one.severity == "error"
    ]
    assert len(found) == 1 and "has no row" in found[0], found


@pytest.mark.parametrize(
    ("word", "times", "said"),
    [("word ", 200, "error"), ("wordywordywordy ", 100, "note"), ("word ", 20, None)],
)
@pytest.mark.parametrize("count", [20, 300])
def test_a_length_that_leaves_out_the_rows_of_a_file_is_found(word, times, said, count, tmp_path):
    """Surely where they have as many words, and all of them are looked at; likely by their
    letters."""
    (tmp_path / "my.csv").write_text(
        "question,answer\n" + "".join(f"{n}?,{n} {word * times}\n" for n in range(count))
    )
    options = (
        f"data.path={tmp_path}/my.csv",
        "data.hub=",
        "data.question='[question]'",
        "data.system_prompt=",
    )
    found = examine(RECIPES / "survival.yaml", from_options((*options, "model.sequence_len=128")))
    expected = "note" if said and count > 200 else said
    assert [one.severity for one in found if "128 tokens" in one.message] == (
        [expected] if said else []
    )


@pytest.mark.parametrize("value", ["-1", "0", "1000000000000"])
@pytest.mark.parametrize(
    "name",
    ["max_steps", "eval_steps", "save_steps", "gc_steps", "val_set_size", "dataset_num_proc"],
)
@pytest.mark.parametrize("verb", ["check", "plan"])
def test_no_number_of_axolotls_ends_a_command_by_a_fault_of_ours(
    verb, name, value, tmp_path, monkeypatch
):
    from runner.commands import cli

    monkeypatch.chdir(tmp_path)
    assert cli._code(
        [verb, str(RECIPES / "survival.yaml"), "--set", f"advanced.axolotl.{name}={value}"]
    ) in (0, 1)


@pytest.mark.parametrize(
    "sizes", [{"hidden_size": 132}, {"head_dim": 33}, {"num_key_value_heads": 3}]
)
def test_a_folders_model_with_heads_that_cannot_be_is_refused(sizes, tmp_path):
    shutil.copytree(RECIPES, tmp_path / "recipes")
    (tmp_path / "recipes" / "mine").mkdir()
    (tmp_path / "recipes" / "mine" / "config.json").write_text(json.dumps(CONFIG | sizes))
    found = examine(tmp_path / "recipes" / "survival.yaml", from_options(("model.base=mine",)))
    assert [
        "impossible type or size" in one.message for one in found if one.severity == "error"
    ] == [True]


def test_a_folder_with_the_name_of_the_packaged_model_is_noted(tmp_path):
    shutil.copytree(RECIPES, tmp_path / "recipes")
    recipe, folder = tmp_path / "recipes" / "museum.yaml", tmp_path / "recipes" / "small"
    folder.mkdir()
    assert [problem.message for problem in examine(recipe)] == []
    (folder / "config.json").write_text(json.dumps(CONFIG))
    (note,) = examine(recipe)
    assert (note.severity, note.line) == ("note", 17)
    assert note.message == (
        "`small` is the model of the installation, and not that of the folder `small` beside the recipe."
    )
    assert note.hint == "Write `./small` for the folder's model."
    own = examine(recipe, from_options(("model.base=./small",)))
    assert not any("small` is the model" in problem.message for problem in own)
    assert not any(problem.severity == "error" for problem in own)


@pytest.mark.parametrize("said", [None, "{{ messages }}"])
def test_a_folders_own_chat_template_is_one_that_it_has(said, tmp_path):
    shutil.copytree(RECIPES, tmp_path / "recipes")
    model = tmp_path / "recipes" / "mine"
    model.mkdir()
    config = {
        **{
            "model_type": "llama",
            "hidden_size": 64,
            "intermediate_size": 128,
            "num_hidden_layers": 4,
            "vocab_size": 100,
        },
        **{"num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 4096},
    }
    (model / "config.json").write_text(json.dumps(config))
    (model / "tokenizer_config.json").write_text(
        json.dumps({"chat_template": said} if said else {})
    )
    options = ("model.base=mine", "data.chat_template=tokenizer_default")
    found = examine(tmp_path / "recipes" / "survival.yaml", from_options(options))
    assert [one.severity for one in found if "has no chat template" in one.message] == (
        [] if said else ["error"]
    )


@pytest.mark.parametrize(
    "image",
    [
        "quay.io/me/x",
        f"host:5000/a/b_c@sha256:{'a' * 64}",
        "X.org/a/b:1.2-RC_3",
        "recipe-runner:latest",
    ],
)
def test_images_that_a_registry_takes_are_let_through(image):
    found = examine(RECIPES / "survival.yaml", from_options((f"openshift.image={image}",)))
    assert not [one for one in found if one.severity == "error"]


@pytest.mark.parametrize("starter", sorted(file.stem for file in RECIPES.glob("*.yaml")))
def test_nothing_of_that_is_said_of_a_starter(starter):
    from runner.check import rules as shared
    from runner.check import sources
    from runner.check.validate import load
    from runner.parts.openshift import rules

    recipe, _, _ = load(RECIPES / f"{starter}.yaml")
    judges = [
        rule
        for rule in (*rules.RULES, *sources.RULES, *shared.UNUSUAL)
        if rule is not rules.placeholder_commit
    ]
    assert [found for rule in judges for found in rule(recipe)] == []


TOO_LARGE = (
    "--set",
    "train.micro_batch_size=256",
    "--set",
    "train.effective_batch_size=",
    "--set",
    "model.gradient_checkpointing=false",
)


@pytest.mark.parametrize("verb", ["check", "render", "submit"])
def test_what_cannot_fit_its_gpu_is_refused_unless_somebody_knows_better(
    verb, tmp_path, capsys, monkeypatch
):
    """At the low end of the plan's range, and before anything is written or sent."""
    from runner.commands import cli

    monkeypatch.chdir(tmp_path)
    # Where it goes on, there is no cluster to send it to.
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "none"))
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    path = str(RECIPES / "survival.yaml")
    assert cli._code([verb, path, *TOO_LARGE]) == 1
    said = "".join(capsys.readouterr())
    assert (
        "survival.yaml:" in said and "Stage `train` needs" in said and not list(tmp_path.iterdir())
    )
    code = cli._code([verb, path, *TOO_LARGE, "--allow", "too-large"])
    said = "".join(capsys.readouterr())
    assert code == (1 if verb == "submit" else 0), said
    assert ("note: Stage" in said) is (verb == "check") and ("kubeconfig" in said.lower()) is (
        verb == "submit"
    )


def test_what_may_fit_by_the_plans_range_is_only_noted():
    from runner.check.validate import examine, load
    from runner.parts.planner.planned import Planned

    kinds = set()
    for batch in (8, 21, 60, 65, 80):
        options = from_options((f"train.micro_batch_size={batch}", "train.effective_batch_size="))
        recipe, _, _ = load(RECIPES / "survival.yaml", options)
        (stage,) = Planned.of(recipe).forecasts
        said = [
            one.severity
            for one in examine(RECIPES / "survival.yaml", options)
            if "on each GPU" in one.message
        ]
        low, usable = stage.memory_range[0], stage.usable
        expected = [] if stage.full.fits else ["error"] if low > usable else ["note"]
        assert said == expected, batch
        kinds.add(tuple(said))
    assert kinds == {(), ("note",), ("error",)}
