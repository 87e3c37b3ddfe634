"""`recipe submit`: a recipe's job, to the cluster."""

from dataclasses import replace

import click

from runner.commands.options import allow_option, end, print_notes, recipe_path, say, set_option
from runner.parts.openshift.commands import cluster_options as shared
from runner.tools.problem import Stop, errors_of


@click.command()
@recipe_path
@set_option
@shared.stage_option
@click.option("--dry-run", is_flag=True, help="Let the cluster judge everything, and send nothing.")
@click.option(
    "--yes", is_flag=True, help="End a running job of the recipe as it was before it changed, without asking."
)
@click.option(
    "--all", "every", is_flag=True, help="Go on by itself, on the cluster, through every stage and gate after it."
)
@click.option("--follow", is_flag=True, help="Watch it: queue, image, start, step, loss and time left.")
@click.option(
    "--target", type=click.Choice(["pytorchjob", "trainjob"]), help="The kind of job. Default: by openshift.version."
)
@allow_option
def submit(
    path: str,
    sets: tuple[str, ...],
    stage: str | None,
    dry_run: bool,
    yes: bool,
    every: bool,
    follow: bool,
    target: str | None,
    allowed: tuple[str, ...],
) -> None:
    """Send a recipe to the cluster of your kubeconfig. Sending it twice changes nothing.

    That is what comes first that is not done: a stage, or the gate after it. What needs no GPU is waited for. With --all a
    driver goes on from there: a small job that sends what comes next when its time has come, and ends at a closed gate.
    """
    from runner import render
    from runner.check import sources, validate
    from runner.data.report import contents
    from runner.parts.openshift import deployment_rules, upload
    from runner.parts.openshift.client import connect
    from runner.parts.openshift.follow import follow as watch
    from runner.parts.openshift.submit import Sending
    from runner.parts.openshift.submit import submit as send
    from runner.parts.openshift.submit_all import submit_all
    from runner.scenarios import translate
    from runner.scenarios.shared.common import FETCHING

    if dry_run and follow:
        raise Stop("With `--dry-run` nothing is sent that `--follow` could watch.", "Leave out one of the two.", code=2)
    if every and stage:
        raise Stop("`--all` goes through every stage, and `--stage` names one.", "Leave out one of the two.", code=2)
    recipe, plan = shared.open_both(path, sets)
    if problems := list(deployment_rules.placeholder_commit(recipe)):
        raise Stop([replace(problem, severity="error") for problem in problems])
    # The same plan as it names files from here.
    here = translate(recipe, render.place(recipe))
    validate.require_fits(recipe, here, allowed)
    print_notes(deployment_rules.only_here(recipe))
    # Rows that lie in the image were read from the hub when it was built.
    asked = [] if plan.stages[0].trains or plan.stages[0].name == FETCHING else list(sources.datasets(recipe))
    print_notes(asked)
    if wrong := errors_of(asked):
        raise Stop(wrong)
    files = upload.files(recipe, plan.place)
    rows = {stage.name: contents(stage.data) for stage in here.stages}
    cluster = connect()
    how = Sending(say, shared.confirm(yes), target, dry_run, files, rows)
    what = submit_all(cluster, plan, how) if every else send(cluster, plan, stage, how)
    if what is None or dry_run:
        end(
            *(
                ("The cluster has judged it; nothing was sent.", "submit", path)
                if dry_run
                else ("Nothing is left to send.", "fetch", path)
            )
        )
        return
    if follow:
        with shared.live() as show:
            watch(cluster, what, show)
    else:
        say(f"Watch it: recipe status {path}, recipe logs {path} -f")
    end("It is on the cluster.", "status", path)
