"""`recipe stop`: ends a job on the cluster."""

import click

from runner.commands.options import end, recipe_path, say, set_option
from runner.parts.openshift.commands import cluster_options as shared


@click.command()
@recipe_path
@set_option
@shared.stage_option
def stop(path: str, sets: tuple[str, ...], stage: str | None) -> None:
    """End a recipe's job and delete it. Results and checkpoints stay on the claim.

    That is what is at work or not done yet, a stage or the gate after it; with --stage the stage and its gate. The driver of
    `submit --all` ends with it, and a run of Kubeflow Pipelines.
    """
    from runner.parts.openshift import driver, kfp_runs, pipeline
    from runner.parts.openshift.client import connect
    from runner.parts.openshift.jobs import existing, recipe_of
    from runner.parts.openshift.submit import delete
    from runner.tools.problem import Stop

    plan = shared.open_plan(path, sets)
    cluster = connect()
    ended = []
    # Before what it would send again.
    if walking := driver.found(cluster, plan):
        kind, name = walking["kind"], walking["metadata"]["name"]
        delete(cluster, kind, walking["metadata"]["namespace"], name)
        ended.append(f"{kind} `{name}`")
    for run in kfp_runs.found(cluster, plan):
        try:
            kfp_runs.end(cluster, plan, run)
            ended.append(f"the run `{run}` of Kubeflow Pipelines")
        except Stop as refusal:
            # It waits, and sends nothing by itself.
            say(
                f"{refusal.text}\nThe run `{run}` of Kubeflow Pipelines waits for a new submit; end it in the dashboard, under Runs."
            )
    # What is done stays on the cluster, which shows by it how far all is.
    milestone = None if stage else pipeline.looked_at(pipeline.milestones(cluster, plan))
    chosen = milestone.stage if milestone else plan.stage(stage) if stage else plan.stages[-1]
    plan_of = plan.only(chosen)
    parts = [milestone.of_gate] if milestone else [False, True] if chosen.gates else [False]
    for job in (job for of_gate in parts for job in existing(cluster, plan, chosen, of_gate)):
        kind, name = job["kind"], job["metadata"]["name"]
        if recipe_of(job) != plan_of.name:
            raise Stop(
                f"{kind} `{name}` is not of the recipe `{plan.name}`, and stays.", "Look at it with `oc describe`."
            )
        delete(cluster, kind, job["metadata"]["namespace"], name)
        ended.append(f"{kind} `{name}`")
    if not ended:
        say(f"No job of `{plan.name}` is under way.")
        end("Nothing was ended.", "status")
        return
    say(
        f"{', '.join(ended)} ended. What was trained lies in {plan_of.place.run_dir}; `recipe submit` goes on from there."
    )
    end("What was trained stays.", "submit", path)
