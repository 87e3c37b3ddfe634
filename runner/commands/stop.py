"""`recipe stop`: ends a job on the cluster."""

from __future__ import annotations

import click

from runner.commands import cluster_options as shared
from runner.commands.options import recipe_path, say, set_option


@click.command()
@recipe_path
@set_option
@shared.stage_option
def stop(path: str, sets: tuple[str, ...], stage: str | None) -> None:
    """End a recipe's job and delete it. Results and checkpoints stay on the claim.

    Of a pipeline the step that is not done, a stage or the gate after it; with --stage the stage and its gate.
    """
    from runner.execute.cluster import steps
    from runner.execute.cluster.connect import connect
    from runner.execute.cluster.jobs import names, prepares
    from runner.execute.cluster.submit import delete
    from runner.problem import Stop

    plan = shared.open_plan(path, sets)
    cluster = connect()
    chosen = shared.chosen(cluster, plan, stage)
    space, plan_of = plan.site["namespace"], plan.only(chosen)
    wanted = list(names(plan, chosen))
    if stage is None and len(plan.stages) > 1:
        # What is done stays on the cluster, which shows by it how far all is.
        step = steps.current(steps.steps(cluster, plan))
        wanted = [(kind, name) for kind, name in wanted if step and (kind == "Job") == step.of_gate]
    else:
        wanted += [("Job", job["metadata"]["name"]) for job in prepares(cluster, plan_of)]
    ended = []
    for kind, name in wanted:
        job = cluster.get(kind, space, name)
        if job is None:
            continue
        owner = (job["metadata"].get("annotations") or {}).get("recipe-runner/recipe")
        if owner != plan_of.name:
            raise Stop(
                f"{kind} `{name}` is not of the recipe `{plan.name}`, and stays.", "Look at it with `oc describe`."
            )
        delete(cluster, kind, space, name)
        ended.append(f"{kind} `{name}`")
    if not ended:
        say(f"No job of `{plan.name}` is on the cluster.")
        return
    say(
        f"{', '.join(ended)} ended. What was trained lies in {plan_of.place.run_dir}; `recipe submit` goes on from there."
    )
