"""A plan as a pipeline for Kubeflow Pipelines: a task for each stage and gate, as its SDK compiles
it (IR YAML, schema 2.1.0).

Each task is a small pod that sends the next job and waits for it, by the driver's code
(`runner.parts.openshift.kfp.task`). The tasks after a gate are in a condition on its verdict; a
closed gate ends the run in a task that fails. The plan is in a config map beside the pipeline.
Sources: kfp 2.17's specification, and the output of its compiler.
"""

import json
from functools import cache, partial
from pathlib import Path

import yaml

from runner.parts.jobs import kubernetes, podspec
from runner.plan import Plan, Stage
from runner.recipe.recipe import Recipe
from runner.scenarios import planned
from runner.tools.files import Artifact
from runner.tools.text import from_template, template, yaml_text

NAME = FOLDER = kubernetes.PIPELINE
FILE = "pipeline.yaml"
MODULE = "runner.parts.openshift.kfp.task"
OPEN = "open"
HERE = Path(__file__).parent
in_json = partial(json.dumps, ensure_ascii=False)

place = kubernetes.place  # the tasks send the recipe's own pods, so the paths are theirs


@cache
def kinds() -> dict[str, dict[str, object]]:
    return dict(yaml.safe_load((HERE / "tasks.yaml").read_text(encoding="utf-8")))


def named(recipe: Recipe) -> bool:
    """Whether a recipe asks for this target: it is rendered only on request."""
    return False


def emitted(recipe: Recipe) -> list[Artifact]:
    return render(planned(recipe, NAME))


def render(plan: Plan) -> list[Artifact]:
    """The config map with the plan, and the pipeline. plan: whole, as the cluster gets it."""
    # Late, because the check of a recipe without a place asks every target for one.
    from runner.parts.openshift.jobs import OWNER
    from runner.parts.openshift.pipeline import driver_command, driver_stage

    alone, driver = driver_stage(plan, NAME)
    marks = zip(OWNER, ('"$(oc whoami)"', '"$(hostname)"', '"$(realpath RECIPE)"'), strict=True)
    signed = " ".join(f"{name}={value}" for name, value in marks)
    header_fields = {
        "recipe": plan.name,
        "fingerprint": plan.fingerprint,
        "namespace": plan.site.namespace,
    }
    comment = from_template(
        HERE / "header.txt", config=kubernetes.CONFIG_FILE, signed=signed, **header_fields
    )
    sections: list[list[Stage]] = [[]]
    for stage in plan.stages:
        sections[-1].append(stage)
        if stage.gates and stage != plan.stages[-1]:
            sections.append([])
    facts = {
        "plan": plan,
        "sections": sections,
        "kinds": kinds(),
        "open": OPEN,
        "image": kubernetes.image(plan),
        "command": podspec.clone_first(plan, driver_command(alone, module=MODULE)),
        "env": podspec.as_env_list(podspec.CACHES | podspec.code_path(plan)),
        "config": kubernetes.config_map_name(alone, driver),
        "folder": alone.place.config_dir,
        "mounts": [
            {"volumeName": mount["name"], "mountPath": mount["mountPath"]}
            for mount, _ in podspec.code_folders(alone)
        ],
        "pull": kubernetes.pull(kubernetes.image(alone)),
    }
    pipeline, platform = yaml.safe_load_all(
        template(HERE / "pipeline.yaml.jinja", json=in_json).render(facts)
    )
    pipeline["components"] = dict(sorted(pipeline["components"].items()))
    config = kubernetes.config_map(alone, driver)
    text = f"{comment}{yaml_text(pipeline)}---\n{yaml_text(platform)}"
    return [Artifact(f"{FOLDER}/{config.path}", config.text), Artifact(f"{FOLDER}/{FILE}", text)]
