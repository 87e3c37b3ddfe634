"""The commands for the cluster, and what commands of other parts ask of it.

A command imports what only it needs, because `recipe status` runs often."""

import shlex
import shutil
import sys
import webbrowser
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import cache
from pathlib import Path

import click

from runner import parts
from runner.check import sources, validate
from runner.commands.options import command, end, open_recipe, print_notes, say, set_words
from runner.parts.jobs.kubernetes import Manifest, job_name
from runner.parts.openshift import client, jobs, pipeline, watch
from runner.parts.openshift.client import Cluster, connect
from runner.parts.openshift.diagnose import why
from runner.parts.openshift.errors import TryAgain, accounted, pause
from runner.parts.openshift.status import (
    ENDED,
    FAILED,
    FINISHED,
    JobState,
    early_stop,
    ended,
    read_state,
)
from runner.plan import Plan, Stage
from runner.recipe.recipe import Recipe
from runner.run import run_folder
from runner.run.run_manifest import keep
from runner.scenarios import forecasting, place, planned, translate
from runner.scenarios.shared.common import FETCHING
from runner.tools.files import write_all
from runner.tools.problem import Stop, Tell, counted, errors_of, plural
from runner.tools.process import HOST
from runner.tools.text import printable


def open_plan(path: str, sets: tuple[str, ...]) -> Plan:
    """The plan of a recipe on the cluster. Its data files need not be on this machine."""
    return open_both(path, sets, look=False)[1]


def open_both(path: str, sets: tuple[str, ...], look: bool = True) -> tuple[Recipe, Plan]:
    """A recipe, and its plan on the cluster. look: whether to read the files that the recipe
    names."""
    recipe, _ = open_recipe(path, sets, look=look)
    if not recipe.settings.get("openshift"):
        raise Stop(
            f"`{path}` has no section `openshift`, so it names no cluster.",
            "Add a section `openshift:` with a `namespace`. `recipe list` shows the runs on this machine.",
        )
    return recipe, planned(recipe, "pytorchjob")


def job_at_work(cluster: Cluster, plan: Plan, name: str | None) -> Manifest:
    """The job to show: of the stage `name`, else of the current stage or gate. Raises Stop if there
    is none."""
    if name is None:
        stage = plan.stages[-1]
    else:
        stage = plan.stage(name)
    if name is None and (
        milestone := pipeline.default_milestone(pipeline.milestones(cluster, plan))
    ):
        if milestone.job:
            return milestone.job
        stage = milestone.stage
    for job in jobs.read_stage_jobs(cluster, plan, stage):
        return job
    cluster.require_namespace(plan.site.namespace)
    name = job_name(plan.only(stage))
    raise Stop(
        f"There is no job `{name}` in `{plan.site.namespace}`.", "Send it with `recipe submit`."
    )


def other_sender(job: Manifest | None, path: str) -> list[str]:
    """Who sent a job, if it came from another recipe file or machine."""
    if job:
        owner = jobs.Owner.of(job)
    else:
        owner = jobs.Owner()
    if owner.person and owner != jobs.Owner.here(path, owner.person):
        return [str(owner)]
    return []


@command
def site(paths: tuple[str, ...], sets: tuple[str, ...], out: str | None) -> None:
    """Generate what the cluster needs before a recipe's first job: namespace, queue, rights,
    claims, the image, TensorBoard. Recipes of several namespaces get a folder for each. This needs
    no cluster and no network."""
    from runner.parts.openshift import site as sites

    plans = [open_plan(path, sets) for path in dict.fromkeys(paths)]
    if out:
        folder = Path(out)
    elif len(plans) == 1:
        folder = Path(f"build/{plans[0].name}/site")
    else:
        folder = Path("build/site")
    for file in write_all(folder, sites.render(plans)):
        say(str(file))
    say()
    for step in sites.steps(plans, str(folder)):
        say(step)
    done = f"What the namespace needs is in {folder}. Apply it with the commands above, or send the folder to an admin."
    end(done, "submit", paths[0])


@command
def submit(
    path: str,
    sets: tuple[str, ...],
    stage: str | None,
    dry_run: bool,
    yes: bool,
    take_over: tuple[str, ...],
    all_stages: bool,
    follow: bool,
    target: str | None,
    allowed: tuple[str, ...],
) -> None:
    """Send a recipe to the cluster of your kubeconfig. Sending it twice changes nothing.

    It sends the first part that is not done: a stage, or the gate after a stage. If that part needs
    no GPU, it waits for it and sends the next one. With --all, a small job on the cluster, the
    driver, sends the later parts until a gate is closed.
    """
    from runner.data.prepared import contents
    from runner.parts.openshift import controller, transfer
    from runner.parts.openshift import submit as sending

    _refuse_contradicting_options(dry_run, follow, all_stages, stage)
    recipe, plan = open_both(path, sets)
    local_plan = _require_fit_to_send(recipe, allowed)
    _require_datasets(recipe, plan)
    files = transfer.files(recipe, plan.place)
    rows = {stage.name: contents(stage.data) for stage in local_plan.stages}
    cluster = connect()
    if validate.TOO_LARGE not in allowed:
        written = forecasting().written(recipe, local_plan)
    else:
        written = {}
    owner = jobs.Owner.here(path, cluster.person())
    options = sending.Sending(
        say, confirm(yes, take_over), target, dry_run, files, rows, written, owner=owner
    )
    if all_stages:
        sent = controller.submit_all(cluster, plan, options)
    else:
        sent = sending.submit(cluster, plan, stage, options)
    if dry_run:
        end(f"The cluster accepts `{plan.name}`. Nothing was sent.", "submit", path)
    elif sent is None:
        end(f"All stages of `{plan.name}` are done. There is nothing to send.", "fetch", path)
    else:
        if follow:
            with screen() as show:
                watch.follow(cluster, sent, lambda state, reasons: show(_progress(state, reasons)))
            progress = "has finished"
        else:
            words = shlex.join([path, *set_words(sets)])
            say(f"Watch it: recipe logs {words} -f")
            progress = "is on the cluster"
        end(f"The job of `{plan.name}` {progress}.", "status", path)


def _refuse_contradicting_options(
    dry_run: bool, follow: bool, all_stages: bool, stage: str | None
) -> None:
    if dry_run and follow:
        raise Stop(
            "With `--dry-run` there is no job that `--follow` could watch.",
            "Leave out one of the two.",
            code=2,
        )
    if all_stages and stage:
        raise Stop(
            "`--all` includes every stage, so it excludes `--stage`.",
            "Leave out one of the two.",
            code=2,
        )


def _require_fit_to_send(recipe: Recipe, allowed: tuple[str, ...]) -> Plan:
    """Checks what needs no cluster, and prints notes about it. Returns the same plan with the names
    of files on this machine. Raises Stop for a problem."""
    from runner.parts.openshift import rules

    problems = list(rules.placeholder_commit(recipe))
    if problems:
        raise Stop([replace(problem, severity="error") for problem in problems])
    local_plan = translate(recipe, place(recipe))
    print_notes(validate.require_fits(recipe, local_plan, allowed))
    for note in rules.RENDER_NOTES:
        print_notes(note(recipe))
    return local_plan


def _require_datasets(recipe: Recipe, plan: Plan) -> None:
    """Raises Stop if the hub lacks a dataset, or its rows do not fit."""
    first_stage = plan.stages[0]
    # The rows in an image were read from the hub when it was built.
    if first_stage.trains or first_stage.name == FETCHING:
        return
    problems = list(sources.datasets(recipe))
    print_notes(problems)
    wrong = errors_of(problems)
    if wrong:
        raise Stop(wrong)


def confirm(yes: bool, take_over: tuple[str, ...]) -> jobs.Confirm:
    """Asks on a terminal; elsewhere `--yes` must answer beforehand, and `--take-over` for another
    person's job."""

    def ask(fact: str, action: str, person: str) -> bool:
        if person:
            is_answered = person in take_over
        else:
            is_answered = yes
        if is_answered:
            return True
        if not sys.stdin.isatty():
            if person:
                remedy = f"ask {person} first, then add `--take-over {shlex.quote(person)}`"
            else:
                remedy = "add `--yes`"
            raise Stop(f"{fact} Nothing was changed.", f"To {action}, {remedy}.")
        return click.confirm(printable(f"{fact} {action.capitalize()}?"))

    return ask


def _progress(state: JobState | None, reasons: list[str]) -> str:
    if state:
        head = [f"{state.name}: {watch.describe_state(state)}"]
    else:
        head = []
    return "\n".join([*head, *(f"  {reason}" for reason in reasons)])


@contextmanager
def screen() -> Iterator[Tell]:
    """Shows a text instead of the previous one; if output is piped, below it, and only when it has
    changed."""
    if not sys.stdout.isatty():
        last_text = ""

        def show(now: str) -> None:
            nonlocal last_text
            if now != last_text:
                last_text = now
                say(now)

        yield show
        return
    from rich.live import Live
    from rich.text import Text

    with Live(Text("…"), refresh_per_second=4) as view:
        yield lambda now: view.update(Text(printable(now), overflow="fold"))


@command
def status(
    path: str | None, sets: tuple[str, ...], stage: str | None, namespace: str | None, live: bool
) -> None:
    """Show the progress of a recipe's job, and why it does not start. Without RECIPE, show a table
    of all jobs of recipe-runner.

    The table compares speed and GPU memory with the plan, and shows the cost so far: in GPU hours,
    or in the currency of `limits.price_per_gpu_hour`, if the recipe has it.
    """
    # A recipe names its own namespace, and only a recipe has settings and stages.
    if path and namespace:
        raise Stop(
            "`-n` is for calls without a recipe; a recipe names its namespace itself.",
            f"Leave out -n, or write `--set openshift.namespace={namespace}`.",
            code=2,
        )
    if path and live:
        raise Stop(
            "`--watch` updates the table of all jobs.",
            "Leave out the recipe. Or use `recipe submit RECIPE --follow` for one recipe.",
            code=2,
        )
    if not path and (sets or stage):
        option = "--stage" if stage else "--set"
        raise Stop(f"`{option}` needs a recipe.", "Name one.", code=2)
    if path is None:
        _status_of_namespace(namespace, live)
        return
    plan = open_plan(path, sets)
    all_milestones, continues = _stages(connect(), plan, stage, path)
    looked_at = pipeline.default_milestone(all_milestones)
    summary, verb = _next_step(plan, looked_at, continues)
    if verb == "logs":
        end(summary, verb, path, "-f")
    else:
        end(summary, verb, path)


def _next_step(
    plan: Plan, milestone: pipeline.Milestone | None, continues: bool
) -> tuple[str, str]:
    """How far a recipe is, and the command that comes next. milestone: to look at, None if all are
    done; continues: whether the next one starts by itself."""
    if milestone is None:
        return f"All stages of `{plan.name}` are done.", "fetch"
    subject = f"{milestone.title} of `{plan.name}`"
    if milestone.at_work:
        return f"{subject} has not finished yet.", "logs"
    if milestone.state == FAILED:
        failed = "is closed" if milestone.of_gate else "has failed"
        return f"{subject} {failed}.", "why"
    if continues:
        return f"{subject} is next, and starts by itself.", "status"
    return f"{subject} is next.", "submit"


def _status_of_namespace(namespace: str | None, live: bool) -> None:
    """Shows the table of all jobs. namespace: None for the kubeconfig's current one."""
    cluster = connect()
    namespace = namespace or cluster.namespace
    count = _table(cluster, namespace, live)
    jobs_here = counted(count, "job")
    verb = "status" if count else "submit"
    end(f"The namespace `{namespace}` has {jobs_here} of recipe-runner.", verb, "RECIPE")


def _table(cluster: Cluster, namespace: str, live: bool) -> int:
    """Shows all jobs of a namespace, and returns how many there are. live: shows them until all
    have ended, and retries while the cluster does not answer."""
    if sys.stdout.isatty():
        columns = shutil.get_terminal_size().columns
    else:
        columns = None

    def table_of(rows: list[watch.JobRow]) -> str:
        if rows:
            return "\n".join(watch.format_table(rows, columns))
        return f"No job of recipe-runner in `{namespace}`."

    if not live:
        rows = watch.read_job_rows(cluster, namespace)
        say(table_of(rows))
        return len(rows)
    cluster = cluster.once()
    last_table = ""
    with screen() as show:
        while True:
            try:
                rows = watch.read_job_rows(cluster, namespace)
                last_table = table_of(rows)
                show(last_table)
                if all(row.state.ended for row in rows):
                    return len(rows)
            except TryAgain as silence:
                show(
                    "\n".join(
                        filter(None, [last_table, f"{silence.text.splitlines()[0]} Trying again."])
                    )
                )
            pause()


def _show(cluster: Cluster, name: str, job: Manifest, path: str) -> None:
    state = read_state(cluster, job)
    say(f"{name}: {watch.describe_state(state)}{jobs.sender_note(job)}")
    for reason in (*other_sender(job, path), *why(cluster, state)):
        say(f"  {reason}")


def _stages(
    cluster: Cluster, plan: Plan, only: str | None, path: str
) -> tuple[list[pipeline.Milestone], bool]:
    """Shows every stage and gate, or those of one stage; returns all, and whether a driver or run
    starts the next one."""
    if only:
        plan.stage(only)
    existing_jobs = jobs.read_jobs(cluster, plan)
    all_milestones = pipeline.milestones(cluster, plan, existing_jobs=existing_jobs)
    for milestone in all_milestones:
        if only in (None, milestone.stage.name):
            _show_milestone(cluster, milestone, path)
    driver: Manifest | None = None
    runs: dict[str, Manifest] = {}
    if not only:
        driver = pipeline.driver_of(cluster, plan)
        runs = pipeline.runs_of(cluster, plan)
    if driver:
        _show_driver(cluster, driver)
    for run in runs.values():
        say(
            f"run `{run['metadata']['name']}` of Kubeflow Pipelines: continues by itself{jobs.sender_note(run)}"
        )
    for job in pipeline.find_former_jobs(existing_jobs, plan, all_milestones):
        job_kind = job["kind"]
        name = job["metadata"]["name"]
        _show(cluster, f"{job_kind} `{name}`", job, path)
        command = f"oc delete {job_kind.lower()} {name} -n {plan.site.namespace}"
        say(f"  The recipe no longer has this stage. To stop it: {command}")
    return all_milestones, bool(runs) or pipeline.is_driver_at_work(driver)


def _show_milestone(cluster: Cluster, milestone: pipeline.Milestone, path: str) -> None:
    """Shows the state of a stage or gate, and why its job does not get on."""
    job = milestone.job
    state = milestone.state
    name = milestone.stage.name
    if milestone.of_gate:
        name = f"{name} gate"
    if milestone.of_gate and job and state in (*ENDED, pipeline.PROMOTED):
        _show_verdict(cluster, name, job, state)
    elif job and (milestone.at_work or state == FAILED):
        _show(cluster, name, job, path)
        if state in (pipeline.CHANGED, pipeline.GOING):
            say(f"  {state[0].upper()}{state[1:]}.")
    else:
        say(f"{name}: {state}{_early_end(cluster, milestone)}{jobs.sender_note(job)}")


def _show_verdict(cluster: Cluster, name: str, job: Manifest, state: str) -> None:
    """Shows a gate that was measured, with its table, and who has overruled it."""
    verdict = {FAILED: "closed", pipeline.PROMOTED: "promoted"}.get(state, "open")
    say(f"{name}: {verdict}{jobs.sender_note(job)}")
    promotion = jobs.annotation(job, pipeline.PROMOTION)
    for text in (*pipeline.last_words(cluster, job), *promotion.splitlines()):
        say(f"  {text}")


def _early_end(cluster: Cluster, milestone: pipeline.Milestone) -> str:
    """That a finished stage ended early, as the end of a line; empty if it did not, or if the
    recipe does not allow that."""
    plugin_settings = milestone.stage.config.get("recipe_runner") or {}
    if milestone.of_gate or not plugin_settings.get("early_stopping"):
        return ""
    if milestone.job is None or milestone.state != FINISHED:
        return ""
    early = early_stop(cluster, milestone.job)
    if early:
        return f"; {early.told}"
    return ""


def _show_driver(cluster: Cluster, driver: Manifest) -> None:
    """Shows the driver, and why it has ended, or what it waits for."""
    # A failed one ended before the last stage, for any reason.
    state = {FAILED: "has ended", FINISHED: "done"}.get(ended(driver) or "", "continues by itself")
    say(f"driver: {state}{jobs.sender_note(driver)}")
    if ended(driver) == FAILED:
        texts = pipeline.last_words(cluster, driver)
    else:
        texts = why(cluster, read_state(cluster, driver))
    for text in texts:
        say(f"  {text}")


@command
def logs(path: str, sets: tuple[str, ...], stage: str | None, node: int, follow: bool) -> None:
    """Print the log of one of a job's machines. After a restart, the previous container's log comes
    first."""
    plan = open_plan(path, sets)
    cluster = connect()
    job = job_at_work(cluster, plan, stage)
    # On stderr, so that the log itself can be piped.
    for text in other_sender(job, path):
        say(text, err=True)
    if follow:
        cluster = cluster.once()
        meta = job["metadata"]
        watch.follow_log(
            cluster, lambda: cluster.get(job["kind"], meta["namespace"], meta["name"]), node, say
        )
        return end(
            f"The job of `{plan.name}` and the log of machine {node} have ended.", "status", path
        )
    for line in watch.whole_log(cluster, job, node):
        say(line)
    for reason in why(cluster, read_state(cluster, job)):
        say(reason, err=True)
    end(f"This is the log of `{plan.name}` on machine {node}.", "status", path)


@command
def fetch(
    path: str, sets: tuple[str, ...], stage: str | None, to: str | None, everything: bool
) -> None:
    """Download a job's results from its claim, or from the recipe's mirror: model, curves, answers,
    summary. An interrupted download continues.

    If there are several stages, each gets a folder of its own in the run's folder.
    """
    from runner.parts.openshift import transfer

    recipe, plan = open_both(path, sets, look=False)
    # The last one contains the final result.
    if stage:
        chosen = plan.stage(stage)
    else:
        chosen = plan.stages[-1]
    folder = run_folder.folder(plan.name, "run", to)
    another = "Name another folder with `--to`."
    run_folder.require_of(folder, plan.name, another)
    if folder.state and folder.state.origin != "cluster":
        raise Stop(f"`{folder.path}` contains a run of this machine.", another)
    came, number = _download(plan, chosen, folder, path, everything)
    current = transfer.record_results(folder, plan, chosen, number, say)
    where = Path(to or folder.path) / chosen.folder
    say(f"{came} {plural('file', came)} fetched to {where}")
    if current:
        keep(folder, recipe, plan)
        if parts.has("report"):
            from runner.parts.report import page

            page.leave(folder, say)
    following = ["compare", path]
    if to:
        following += ["--run", to]
    if not current:
        following = ["status", path]
        description = "results of an older version"
    elif folder.state and folder.state.status == FINISHED:
        description = "results"
    else:
        description = "results so far"
    verb, *arguments = following
    end(f"The {description} of `{plan.name}` are in {where}.", verb, *arguments)


def _download(
    plan: Plan, stage: Stage, folder: run_folder.RunFolder, path: str, everything: bool
) -> tuple[int, str]:
    """Downloads a stage's results from the recipe's mirror, if it can be read, else from the
    claim. Returns the number of files, and the run's id, or empty."""
    from runner.parts.openshift import transfer

    if plan.site.mirror:
        try:
            return transfer.fetch_mirrored(plan, stage, folder.path, everything)
        except Stop as stop:
            say(f"{stop.text}\nThe results on the claim are fetched instead.")
    cluster = connect()
    for text in other_sender(next(iter(jobs.read_stage_jobs(cluster, plan, stage)), None), path):
        say(text)
    return transfer.fetch(cluster, plan, stage, folder.path, say, everything)


@command
def stop(
    path: str, sets: tuple[str, ...], stage: str | None, yes: bool, take_over: tuple[str, ...]
) -> None:
    """Stop a recipe's job and delete it. Results and checkpoints stay on the claim.

    It stops the current stage or gate, or with --stage that stage and its gate. It also stops the
    driver of `submit --all`, and a run of Kubeflow Pipelines. It asks before it stops a job from
    another person, machine or recipe file.
    """
    from runner.parts.openshift.submit import require_consent

    plan = open_plan(path, sets)
    if stage:
        plan.stage(stage)  # an unknown stage ends the command before anything is stopped
    cluster = connect()
    owner = jobs.Owner.here(path, cluster.person())
    confirm_once = cache(confirm(yes, take_over))
    stopped: list[str] = []

    def already_stopped(_: object) -> str:
        if stopped:
            return f"Already stopped: {', '.join(stopped)}."
        return ""

    with accounted(already_stopped):
        chosen = _stop_jobs(
            cluster, plan, stage, lambda job: require_consent(job, owner, confirm_once), stopped
        )
    if not stopped:
        end(f"No job of `{plan.name}` is running or waiting, so none was stopped.", "status", path)
        return
    say(
        f"Stopped {', '.join(stopped)}. The results so far are in {plan.only(chosen).place.run_dir}; `recipe submit` continues from there."
    )
    end(
        f"The job of `{plan.name}` was stopped. Its results so far stay on the cluster.",
        "submit",
        path,
    )


def _stop_jobs(
    cluster: Cluster,
    plan: Plan,
    stage: str | None,
    ask: Callable[[Manifest], None],
    stopped: list[str],
) -> Stage:
    """Ends what `recipe stop` ends, adds names to `stopped`, returns the stage. ask: raises Stop if
    a job must stay."""
    runs = pipeline.runs_of(cluster, plan)
    # All questions come first, so that nothing has changed after a no.
    for milestone in pipeline.milestones(cluster, plan):
        if milestone.job and milestone.at_work and stage in (None, milestone.stage.name):
            ask(milestone.job)
    for job in runs.values():
        ask(job)
    # First the driver, which would send the jobs again.
    driver = pipeline.driver_of(cluster, plan)
    if driver:
        ask(driver)
        jobs.delete(cluster, driver, stopped, say)
    for run in runs:
        _end_run(cluster, plan, run, stopped)
    if stage:
        chosen = plan.stage(stage)
        of_gates = [False, True] if chosen.gates else [False]
    else:
        looked_at = pipeline.default_milestone(pipeline.milestones(cluster, plan))
        if looked_at is None:
            # all jobs have finished; they stay on the cluster, because they show the progress
            return plan.stages[-1]
        chosen = looked_at.stage
        of_gates = [looked_at.of_gate]
    for of_gate in of_gates:
        for job in jobs.read_stage_jobs(cluster, plan, chosen, of_gate):
            _require_own(job, plan, chosen)
            ask(job)
            jobs.delete(cluster, job, stopped, say)
    return chosen


def _end_run(cluster: Cluster, plan: Plan, run: str, stopped: list[str]) -> None:
    """Ends a run of Kubeflow Pipelines, and adds it to `stopped`; reports a refusal."""
    try:
        pipeline.end_run(cluster, plan, run)
        stopped.append(f"the run `{run}` of Kubeflow Pipelines")
    except Stop as refusal:
        say(refusal.text)
        say(
            f"The run `{run}` of Kubeflow Pipelines still exists, and continues when the recipe is submitted again. To end it, stop it in the dashboard, under Runs."
        )


def _require_own(job: Manifest, plan: Plan, stage: Stage) -> None:
    """Raises Stop if a job of the stage's name does not belong to the recipe."""
    if jobs.recipe_of(job) != plan.only(stage).name:
        name = job["metadata"]["name"]
        space = job["metadata"]["namespace"]
        raise Stop(
            f"{job['kind']} `{name}` does not belong to the recipe `{plan.name}`, so it stays.",
            f"Look at it with `oc describe {job['kind']} {name} -n {space}`.",
        )


@command
def open_(path: str, sets: tuple[str, ...], port: int, no_browser: bool) -> None:
    """Open TensorBoard with the curves of all runs on a recipe's claim, until ^C."""
    plan = open_plan(path, sets)
    cluster = connect()
    space = plan.site.namespace
    claim = plan.claim_of(plan.place.run_dir)
    claim_name = claim.name if claim else None
    pod = client.tensorboard(cluster, space, claim_name)

    def ready(local: int) -> None:
        address = f"http://{HOST}:{local}/"
        say(f"TensorBoard: {address}  (^C stops it)")
        if not no_browser:
            webbrowser.open(address)

    client.forward(cluster, space, lambda: pod, client.TENSORBOARD_PORT, port, ready)


def why_on_cluster(recipe: Recipe, path: str, stage: str | None) -> list[str]:
    """The progress of a recipe's job, and its problems. Raises Stop without a job or an answer of
    the cluster."""
    plan = planned(recipe, "pytorchjob")
    cluster = connect()
    state = read_state(cluster, job_at_work(cluster, plan, stage))
    namespace = state.job["metadata"]["namespace"]
    progress = f"{jobs.title_of(state.job)} in `{namespace}`: {watch.describe_state(state)}"
    problems = why(cluster, state) or ["No problem was found."]
    return [progress, *other_sender(state.job, path), *problems]


def promote_on_cluster(
    path: str, sets: tuple[str, ...], stage: str, person: str, reason: str, tell: Tell
) -> None:
    """Overrules the gate of a stage on the cluster, and starts the work that waits for it."""
    from runner.parts.openshift import controller

    plan = open_plan(path, sets)
    cluster = connect()
    stage_jobs = jobs.read_stage_jobs(cluster, plan, plan.stage(stage))
    job = stage_jobs[0] if stage_jobs else None
    for text in other_sender(job, path):
        tell(text)
    controller.promote(cluster, plan, plan.stage(stage), person, reason, tell)
    controller.wake(cluster, plan, tell)
