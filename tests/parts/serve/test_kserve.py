"""The server on the cluster as files: accepted by KServe's own schemas, and its arguments by vLLM's
own parser."""

from __future__ import annotations

import json
import os
import subprocess
from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest
import yaml

from runner.check.validate import load
from runner.parts.serve import kserve, serving
from runner.parts.serve.kserve import arguments, served
from runner.parts.serve.serving import source
from runner.recipe.overrides import from_options
from runner.scenarios import place
from runner.scenarios.render import emit
from runner.tools import text
from runner.tools.problem import Stop
from runner.tools.vllm import RANKS
from tests.conftest import ROOT, WRITE_GOLDEN, setting_of
from tests.parts.openshift.judging import core_refusals, refusals
from tests.parts.openshift.kserve import PLATFORM, container, llm_pod, pod

# What vLLM's server takes, by the names of its arguments, as its own parser says; its choices where
# it has some.
KNOWN = json.loads((ROOT / "tests" / "fixtures" / "vllm-arguments.json").read_text("utf-8"))
WAYS = {
    "a whole model": ("survival", ()),
    "an adapter": ("lyrics", ()),
    "the last stage of a pipeline": ("seven-b", ("serve={}",)),
    "an adapter from the top of a claim": ("minimal/lyrics-demo", ("serve={}",)),
    "a runtime of its own": (
        "survival",
        ("serve={image: 'registry/vllm:1', route: true}", "openshift.queue=gpus"),
    ),
    "a model in an image": ("survival", ("serve.model=oci://quay.io/us/survival:1",)),
    "a model on S3": (
        "survival",
        ("serve.model=s3://team/runs/survival/train/best_model", "openshift.connection=my-s3"),
    ),
    "several GPUs": (
        "seven-b",
        ("serve={gpus: 4, concurrency: 64}", "openshift.service_account=server"),
    ),
    "an adapter of another rank": ("lyrics", ("train.lora_rank=24",)),
    "Mistral's own tokenizer": (
        "lyrics",
        ("model.base=mistralai/Mistral-7B-Instruct-v0.3", "data.chat_template=mistral_common"),
    ),
    "code of the model's own": (
        "lyrics",
        ("model.trust_remote_code=true", f"model.revision={'a' * 40}"),
    ),
}


@cache
def made(name: str, *sets: str):
    recipe, _, _ = load(ROOT / "recipes" / f"{name}.yaml", from_options(sets))
    return served(recipe)


def documents(name: str, *sets: str) -> list[dict]:
    plan, server = made(name, *sets)
    return [yaml.safe_load(file.text) for file in kserve.render(plan, server)]


@pytest.mark.parametrize("way", WAYS)
def test_kserve_and_kubernetes_would_take_every_server(way):
    name, sets = WAYS[way]
    service, *runtimes = documents(name, *sets)
    for manifest in (service, *runtimes):
        assert refusals(manifest) == []
    service["metadata"] |= {"uid": "1", "generation": 1}
    runtime = runtimes[0] if runtimes else PLATFORM
    assert service["spec"]["predictor"]["model"]["runtime"] == runtime["metadata"]["name"]
    made_of = pod(runtime, service)
    assert core_refusals(made_of) == []
    claims = [
        one["persistentVolumeClaim"]["claimName"]
        for one in made_of["spec"]["volumes"]
        if "emptyDir" not in one
    ]
    # A pod that names one claim in two volumes waits for ever (kubernetes, issue 127004).
    assert len(claims) == len(set(claims))


@pytest.mark.parametrize(
    "spoil",
    [
        lambda service: service["spec"]["predictor"].update(replicas=1),
        lambda service: service["spec"].pop("predictor"),
        lambda service: service["spec"]["predictor"].update(minReplicas="1"),
        lambda service: service["spec"]["predictor"]["model"]["modelFormat"].pop("name"),
        lambda service: service["spec"]["predictor"]["model"]["env"].append(
            {"value": "without a name"}
        ),
    ],
    ids=[
        "unknown field",
        "no predictor",
        "text for a number",
        "no format",
        "a variable without a name",
    ],
)
def test_kserve_refuses_what_it_does_not_know(spoil):
    (service,) = documents("survival")
    spoil(service)
    assert refusals(service)


def test_base_and_adapter_come_from_one_server_under_two_names():
    (service,) = documents("lyrics")
    predictor = service["spec"]["predictor"]
    assert predictor["model"]["storageUri"].startswith(
        "pvc://training-data-pvc/base-models/microsoft-Phi-4-mini"
    )
    said = options(predictor["model"]["args"])
    assert said["served-model-name"] == "lyrics-base"
    assert (
        said["lora-modules"] == "lyrics=/mnt/trained/lora_adapter"
        and said["max-lora-rank"] == "128"
    )
    # Both are asked with the template and the end token of training.
    assert said["tokenizer"] == said["generation-config"] == "/mnt/trained/best_model"
    (volume,) = predictor["volumes"]
    assert volume["persistentVolumeClaim"] == {"claimName": "trained-models-pvc", "readOnly": True}
    assert predictor["model"]["volumeMounts"][0]["subPath"] == "lyrics"


def test_a_server_answers_to_the_names_that_ask_uses():
    _, server = made("lyrics", "name=two--dashes")
    assert (server.base_name, server.name) == text.served("two--dashes")


def test_base_and_adapter_on_one_claim_are_mounted_together():
    (service,) = documents("seven-b", "serve={}")
    predictor = service["spec"]["predictor"]
    assert "volumes" not in predictor and "volumeMounts" not in predictor["model"]
    assert predictor["model"]["storageUri"] == "pvc://seven-b-pvc/seven-b"
    said = options(predictor["model"]["args"])
    assert said["model"] == "/mnt/models/dpo/best_model"
    assert said["tokenizer"] == said["generation-config"] == "/mnt/models/lora/best_model"
    assert said["lora-modules"] == "seven-b=/mnt/models/lora/lora_adapter"


def test_results_may_lie_at_the_top_of_their_claim():
    """An adapter's beside its base model, and a whole model's."""
    (service,) = documents("minimal/lyrics-demo", "serve={}", "openshift.output_dir=/shared/models")
    model = service["spec"]["predictor"]["model"]
    assert model["storageUri"] == "pvc://trained-models-pvc" and "volumeMounts" not in model
    said = options(model["args"])
    assert said["model"].startswith("/mnt/models/base-models/")
    assert said["tokenizer"] == "/mnt/models/best_model"
    assert said["lora-modules"] == "lyrics-demo=/mnt/models/lora_adapter"
    (service,) = documents("survival", "openshift.output_dir=/shared/models")
    assert (
        service["spec"]["predictor"]["model"]["storageUri"] == "pvc://trained-models-pvc/best_model"
    )


@pytest.mark.parametrize(
    ("rank", "room"), [(1, 1), (8, 8), (24, 32), (128, 128), (200, 256), (512, 512)]
)
def test_an_adapter_has_the_smallest_room_that_vllm_has_for_it(rank, room):
    _, server = made("lyrics", f"train.lora_rank={rank}")
    assert [one.rank for one in server.source.adapters] == [
        rank
    ] and server.source.room_for_rank == room
    assert room in RANKS and str(room) in map(str, KNOWN["arguments"]["max-lora-rank"])


@pytest.mark.parametrize(
    ("sets", "words"),
    [
        (("train.lora_rank=1024",), "vLLM serves ranks up to 512"),
        (
            ("advanced.axolotl={lora_modules_to_save: [embed_tokens]}",),
            "`embed_tokens`, `modules_to_save`",
        ),
        (("train.use_dora=true",), "DoRA"),
    ],
    ids=["rank", "whole layers", "dora"],
)
def test_an_adapter_that_vllm_would_refuse_or_lose_is_served_merged(sets, words):
    recipe, _, _ = load(ROOT / "recipes" / "lyrics.yaml", from_options(sets))
    _, server = served(recipe)
    assert (
        server.base_name is None
        and server.source.uri == "pvc://trained-models-pvc/lyrics/best_model"
    )
    assert not any(word.startswith("--lora") for word in arguments(server))
    (note,) = [one for one in serving.problems(recipe, server) if one.severity == "note"]
    assert words in note.message and setting_of(note) == "serve"


def test_an_adapter_on_layers_that_vllm_may_not_know_is_served_merged():
    """It would leave them out without a word (vllm, issue 55193)."""
    plan, _ = made("lyrics")
    stage = plan.stages[-1]
    config = dict(stage.config) | {"lora_target_modules": ["qkv_proj", "gate_inner"]}
    found = source(plan, replace(stage, config=config))
    assert not found.adapters and "gate_inner" in found.whole_because


def test_no_route_and_no_runtime_unless_they_are_written():
    (service,) = documents("survival")
    assert "networking.kserve.io/visibility" not in service["metadata"]["labels"]
    assert service["metadata"]["annotations"]["security.opendatahub.io/enable-auth"] == "true"
    service, runtime = documents("survival", *WAYS["a runtime of its own"][1])
    assert service["metadata"]["labels"]["networking.kserve.io/visibility"] == "exposed"
    assert service["metadata"]["annotations"]["security.opendatahub.io/enable-auth"] == "true"
    assert service["metadata"]["labels"]["kueue.x-k8s.io/queue-name"] == "gpus"
    assert runtime["spec"]["containers"][0]["image"] == "registry/vllm:1"


def test_a_changed_server_or_model_is_another_pod():
    def content(*sets: str) -> str:
        (service,) = documents("survival", *sets)
        assert service["spec"]["predictor"]["annotations"] == {
            kserve.CONTENT: service["metadata"]["annotations"][kserve.CONTENT]
        }
        return service["metadata"]["annotations"][kserve.CONTENT]

    assert content() == content("demo.max_new_tokens=20")
    assert len({content(), content("serve.concurrency=9"), content("train.epochs=2")}) == 3


def test_several_gpus_share_the_model_and_memory():
    (service,) = documents("seven-b", *WAYS["several GPUs"][1])
    predictor = service["spec"]["predictor"]
    assert options(predictor["model"]["args"])["tensor-parallel-size"] == "4"
    assert predictor["model"]["resources"]["limits"]["nvidia.com/gpu"] == "4"
    assert predictor["serviceAccountName"] == "server"
    (mount,) = [one for one in predictor["model"]["volumeMounts"] if one["name"] == "shm"]
    assert mount["mountPath"] == "/dev/shm"


def test_a_server_sees_the_folders_of_the_recipes_pods():
    recipe, _, _ = load(ROOT / "recipes" / "lyrics.yaml")
    there = place(recipe, kserve.NAME)
    assert there == place(recipe, "pytorchjob") and there.files_dir
    here, _, _ = load(ROOT / "recipes" / "minimal" / "lora.yaml", from_options(("serve={}",)))
    with pytest.raises(Stop, match="no section `openshift`"):
        served(here)


def test_a_recipe_is_rendered_for_a_server_only_where_it_says_so():
    recipe, _, _ = load(ROOT / "recipes" / "seven-b.yaml")
    assert not [file for file in emit(recipe) if file.path.startswith("serve/")]
    with pytest.raises(Stop, match="no section `serve`"):
        emit(recipe, (kserve.NAME,))


@pytest.mark.parametrize(
    ("sets", "setting"),
    [
        (("serve.context=1000000",), "serve.context"),
        (("serve.gpus=3",), "serve.gpus"),
        (("serve.model=s3://bucket/model",), "serve.model"),
        (("serve.image=registry/vllm:1", "serve.runtime=vllm-cpu-runtime"), "serve.runtime"),
        (("serve.contxt=12",), "serve.contxt"),
    ],
    ids=["context", "odd GPUs", "source", "two runtimes", "unknown"],
)
def test_what_cannot_be_served_is_refused_at_its_line(sets, setting):
    with pytest.raises(Stop) as stop:
        load(ROOT / "recipes" / "survival.yaml", from_options(sets))
    assert setting in {setting_of(problem) for problem in stop.value.problems}


# Adapters of several recipes on one server.


def sharing(folder: Path, **other: str) -> Path:
    """A copy of lyrics whose server also has the adapter of `songs.yaml` beside it. other: lines of
    songs by their first words, with `__` for two blanks."""
    text = (ROOT / "recipes" / "lyrics.yaml").read_text("utf-8")
    lines = {
        "name:": "name: songs",
        "  job_name:": "  job_name: songs",
        "  output_dir:": "  output_dir: /shared/models/songs",
    }
    lines |= {
        f"{key.replace('__', '  ')}:": f"{key.replace('__', '  ')}: {value}"
        for key, value in other.items()
    }
    written = [
        next((new for key, new in lines.items() if line.startswith(key)), line)
        for line in text.splitlines()
    ]
    (folder / "songs.yaml").write_text("\n".join(written) + "\n", "utf-8")
    assert "\nserve:" in text
    (folder / "lyrics.yaml").write_text(
        text.replace("\nserve:", "\nserve:\n  recipes: [songs.yaml]"), "utf-8"
    )
    return folder / "lyrics.yaml"


def shared_server(file: Path, *sets: str):
    recipe, _, _ = load(file, from_options(sets), look=False)
    return recipe, *served(recipe)


def test_one_server_has_the_adapters_of_several_recipes(tmp_path):
    recipe, plan, server = shared_server(sharing(tmp_path, __lora_rank="24"))
    service = kserve.service(plan, server)
    assert refusals(service) == []
    said = options(service["spec"]["predictor"]["model"]["args"])
    assert said["served-model-name"] == "lyrics-base songs-base"
    assert (
        said["lora-modules"]
        == "lyrics=/mnt/trained/lyrics/lora_adapter songs=/mnt/trained/songs/lora_adapter"
    )
    assert (said["max-loras"], said["max-lora-rank"]) == ("2", "128")
    assert said["chat-template"].startswith("/mnt/trained/lyrics/best_model/"), (
        "both have the same system prompt"
    )
    # Both adapters are on one claim, which is mounted once, with both folders below it.
    (volume,) = service["spec"]["predictor"]["volumes"]
    (mount,) = service["spec"]["predictor"]["model"]["volumeMounts"]
    assert (
        volume["persistentVolumeClaim"]["claimName"] == "trained-models-pvc"
        and "subPath" not in mount
    )
    _, _, alone = shared_server(ROOT / "recipes" / "lyrics.yaml", "serve={}")
    needs, fewer = server.forecast, alone.forecast
    assert needs.adapter == 2 * fewer.adapter and needs.weights == fewer.weights
    assert server.models == ("lyrics", "songs", "lyrics-base", "songs-base")
    assert alone.models == ("lyrics", "lyrics-base")
    (note,) = serving.problems(recipe, server)
    assert (
        note.message
        == "The adapters have different ranks, `128` and `24`. vLLM keeps room for rank 128 for each."
    )


def test_results_on_another_claim_get_a_mount_of_their_own(tmp_path):
    _, plan, server = shared_server(sharing(tmp_path, __output_dir="/shared/workspace/songs"))
    predictor = kserve.service(plan, server)["spec"]["predictor"]
    said = options(predictor["model"]["args"])
    assert (
        said["lora-modules"] == "lyrics=/mnt/trained/lora_adapter songs=/mnt/trained-2/lora_adapter"
    )
    mounts = {
        one["name"]: (one["mountPath"], one["subPath"])
        for one in predictor["model"]["volumeMounts"]
    }
    assert mounts == {
        "trained": ("/mnt/trained", "lyrics"),
        "trained-2": ("/mnt/trained-2", "songs"),
    }
    claims = [one["persistentVolumeClaim"]["claimName"] for one in predictor["volumes"]]
    assert claims == ["trained-models-pvc", "workspace-pvc"]


# The same as an LLMInferenceService.

GOLDEN = Path(__file__).with_name("llminferenceservice.yaml")
ALONE = ("serve.kind=LLMInferenceService", "serve.recipes=[songs.yaml]")


@pytest.mark.golden
def test_each_model_of_an_llm_inference_service_has_a_name_and_an_address(tmp_path):
    file = sharing(tmp_path, __output_dir="/shared/workspace/songs", __lora_rank="24")
    recipe, plan, server = shared_server(file, *ALONE)
    (made,) = kserve.render(plan, server)
    if WRITE_GOLDEN:
        GOLDEN.write_text(made.text, "utf-8")
    assert made.text == GOLDEN.read_text("utf-8")
    service = yaml.safe_load(made.text)
    assert made.path == "serve/llminferenceservice.yaml" and refusals(service) == []
    service["metadata"] |= {"uid": "1", "generation": 1}
    one = llm_pod(service)
    assert core_refusals(one) == []
    claims = [each["persistentVolumeClaim"]["claimName"] for each in one["spec"]["volumes"]]
    assert claims == ["training-data-pvc", "trained-models-pvc", "workspace-pvc"]
    mounts = {
        each["mountPath"]: each["subPath"] for each in one["spec"]["containers"][0]["volumeMounts"]
    }
    assert (
        mounts["/mnt/lora/lyrics"] == "lyrics/lora_adapter"
        and mounts["/mnt/lora/songs"] == "songs/lora_adapter"
    )
    args = one["spec"]["containers"][0]["args"]
    said = options(args)
    assert {*said} <= KNOWN["arguments"].keys() and (said["max-loras"], said["max-lora-rank"]) == (
        "2",
        "128",
    )
    # The last list of names counts, so it has KServe's own too.
    names = "lyrics-base songs-base publishers/lyrical-professor/models/lyrics-base"
    assert said["served-model-name"] == names and said["chat-template"].startswith(
        "/mnt/lora/lyrics/"
    )
    assert [problem.severity for problem in serving.problems(recipe, server)] == ["note"]


def test_a_list_of_recipes_is_all_that_differs_between_two_servers(tmp_path):
    file = sharing(tmp_path, __output_dir="/shared/workspace/songs")
    _, plan, server = shared_server(file, *ALONE)
    more = kserve.service(plan, server)["spec"]["model"]
    _, plan, server = shared_server(
        ROOT / "recipes" / "lyrics.yaml", "serve={kind: LLMInferenceService}"
    )
    less = kserve.service(plan, server)["spec"]["model"]
    assert more["lora"]["adapters"][:1] == less["lora"]["adapters"]
    assert (
        more | {"lora": 0} == less | {"lora": 0} and more["lora"]["adapters"][1]["name"] == "songs"
    )


@pytest.mark.parametrize(
    "way", ["a whole model", "an adapter", "several GPUs", "a model in an image"]
)
def test_kserve_would_take_every_llm_inference_service(way):
    name, sets = WAYS[way]
    sets = (*sets, "serve.image=registry/vllm:1")
    recipe, _, _ = load(ROOT / "recipes" / f"{name}.yaml", from_options(sets))
    plan, server = served(recipe)
    server.kind = kserve.LLM
    service = kserve.service(plan, server)
    assert refusals(service) == [] and kserve.runtime(plan, server) is None
    assert service["spec"]["template"]["containers"][0]["image"] == "registry/vllm:1"
    assert ("lora" in service["spec"]["model"]) == bool(server.source.adapters)


@pytest.mark.parametrize(
    ("sets", "setting", "said"),
    [
        ((), "serve.kind", "needs a claim for the base model and for each adapter"),
        (("serve.runtime=vllm-cpu-runtime",), "serve.runtime", "an LLMInferenceService has none"),
    ],
)
def test_what_an_llm_inference_service_cannot_have_is_said_at_its_line(
    sets, setting, said, tmp_path
):
    (tmp_path / "data").symlink_to(ROOT / "recipes" / "data")
    with pytest.raises(Stop) as stop:
        load(sharing(tmp_path), from_options((*ALONE, *sets)))
    assert any(said in each.message and setting_of(each) == setting for each in stop.value.problems)


def test_recipes_with_other_system_prompts_share_a_template_without_one(tmp_path):
    file = sharing(tmp_path)
    other = tmp_path / "songs.yaml"
    other.write_text(
        other.read_text("utf-8").replace("You are a songwriter", "You are a critic"), "utf-8"
    )
    recipe, _, server = shared_server(file)
    assert not any(argument.startswith("--chat-template") for argument in arguments(server))
    (note,) = serving.problems(recipe, server)
    assert (
        note.message.startswith("The recipes have different system prompts")
        and "ask --url" in note.message
    )


def test_another_training_of_one_recipe_is_another_server(tmp_path):
    def content(**other: str) -> str:
        _, plan, server = shared_server(sharing(tmp_path, **other))
        return kserve.service(plan, server)["metadata"]["annotations"][kserve.CONTENT]

    assert content() == content() != content(__learning_rate="0.0003")


@pytest.mark.parametrize(
    ("sets", "other", "said"),
    [
        (
            (),
            {"__base": "microsoft/Phi-3-mini-4k-instruct"},
            "`songs` has another base model than `lyrics`.",
        ),
        ((), {"__namespace": "elsewhere"}, "`songs` is in another namespace: `elsewhere`."),
        ((), {"__precision": "fp16"}, "`songs` was trained with another precision than `lyrics`."),
        ((), {"name": "lyrics"}, "Two models of the server would be called `lyrics`."),
        (
            (),
            {"__output_dir": "/shared/models/lyrics"},
            "`songs` and `lyrics` leave their results in the same folder.",
        ),
        (
            ("serve.recipes=[gone.yaml]",),
            {},
            "`gone.yaml` cannot be served: This file does not exist.",
        ),
        (
            ("serve.model=oci://quay.io/us/model:1",),
            {},
            "`recipes` adds adapters to the base model of this recipe, but `model` names another model.",
        ),
        (
            ("train.use_dora=true",),
            {},
            "`lyrics` cannot share a base model: it is a DoRA adapter, which vLLM does not support.",
        ),
    ],
)
def test_a_recipe_that_cannot_share_the_server_is_refused_at_its_line(sets, other, said, tmp_path):
    file = sharing(tmp_path, **other)
    (tmp_path / "data").symlink_to(ROOT / "recipes" / "data")
    with pytest.raises(Stop) as stop:
        load(file, from_options(sets))
    (problem,) = stop.value.problems
    assert problem.message == said and problem.hint


@pytest.mark.parametrize(
    ("changed", "what"),
    [({"chat_template": "chatml"}, "chat template"), ({"tokens": ["<song>"]}, "vocabulary")],
)
def test_adapters_of_one_server_need_one_template_and_one_vocabulary(changed, what):
    plan, _ = made("lyrics")
    (*before, last) = plan.stages
    other = replace(
        plan, name="songs", stages=(*before, replace(last, config=dict(last.config) | changed))
    )
    assert (
        serving.cannot_share(plan, other)
        == f"`songs` was trained with another {what} than `lyrics`."
    )


# What vLLM says itself.


def options(args: list[str]) -> dict[str, str]:
    """Arguments by name; of one that is given twice the last one counts. Several values are joined
    by blanks."""
    found: dict[str, str] = {}
    for arg in args:
        name, _, value = arg.partition("=")
        if arg.startswith("--"):
            last = name.removeprefix("--")
            found[last] = value
        else:
            found[last] = f"{found[last]} {arg}".strip()
    return found


@pytest.mark.parametrize("way", WAYS)
def test_vllm_knows_every_argument(way):
    """By a table of its own parser's; `test_vllms_own_parser_takes_every_server` compares that with
    vLLM."""
    name, sets = WAYS[way]
    service, *runtimes = documents(name, *sets)
    serves = container(runtimes[0] if runtimes else PLATFORM, service)
    said = options(serves["args"])
    assert {"port", "model", "served-model-name", "max-model-len"} <= said.keys()
    for argument, value in said.items():
        assert argument in KNOWN["arguments"], argument
        choices = KNOWN["arguments"][argument]
        assert choices is None or value in map(str, choices), f"{argument}={value}"


JUDGE = """
import json, sys
try:
    from vllm.entrypoints.openai.cli_args import make_arg_parser, validate_parsed_serve_args
except ImportError:  # since 0.32 or a little before
    from vllm.entrypoints.launchers.cli_args import make_arg_parser, validate_parsed_serve_args
from vllm.utils.argparse_utils import FlexibleArgumentParser
parser = make_arg_parser(FlexibleArgumentParser())
table = {
    name.removeprefix("--"): list(action.choices) if action.choices else None
    for action in parser._actions for name in action.option_strings if name.startswith("--")
}
read = []
for args in json.loads(sys.stdin.read()):
    given = parser.parse_args(args)
    validate_parsed_serve_args(given)
    read.append({name: str(getattr(given, name)) for name in ("served_model_name", "max_model_len", "lora_modules", "port")})
json.dump({"table": table, "read": read}, open(sys.argv[1], "w"))
"""


@pytest.mark.long
def test_vllms_own_parser_takes_every_server(tmp_path):
    """`RECIPE_TEST_VLLM` names a Python with vLLM, or with `vllm-cpu`, which needs no GPU."""
    python = os.environ.get("RECIPE_TEST_VLLM")
    if not python:
        pytest.skip("no vLLM here; RECIPE_TEST_VLLM names a Python that has it")
    lists = []
    for name, sets in WAYS.values():
        service, *runtimes = documents(name, *sets)
        args = container(runtimes[0] if runtimes else PLATFORM, service)["args"]
        # It looks whether the file is there.
        lists.append(
            [
                f"--chat-template={__file__}" if arg.startswith("--chat-template=") else arg
                for arg in args
            ]
        )
    out = tmp_path / "read.json"
    env = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"} | {
        "CUDA_VISIBLE_DEVICES": ""
    }
    done = subprocess.run(
        [python, "-c", JUDGE, str(out)],
        input=json.dumps(lists),
        capture_output=True,
        text=True,
        env=env,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    found = json.loads(out.read_text("utf-8"))
    used = {argument for args in lists for argument in options(args)}
    assert {name: found["table"][name] for name in used} == {
        name: KNOWN["arguments"][name] for name in used
    }
    for args, read in zip(lists, found["read"], strict=True):
        said = options(args)
        assert (
            read["served_model_name"] == str([said["served-model-name"]]) and read["port"] == "8080"
        )
        assert read["max_model_len"] == said["max-model-len"]
        assert ("/lora_adapter'" in read["lora_modules"]) == ("lora-modules" in said)
