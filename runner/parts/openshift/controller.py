"""`python -m runner.parts.openshift.controller PLAN …`: the driver's program, which sends every
stage and gate.

Each step is one of `recipe submit`, which finds all state on the cluster. So a new driver pod
continues where the last one stopped.
"""

import argparse
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from runner.parts.jobs import batch, podspec
from runner.parts.jobs.kubernetes import Manifest
from runner.parts.jobs.stage import say, write_termination_message
from runner.parts.openshift import errors, pipeline, submit
from runner.parts.openshift.client import Cluster, connect_in_pod
from runner.parts.openshift.errors import accounted
from runner.parts.openshift.helper_pod import run_to_end
from runner.parts.openshift.jobs import PROMOTE, Owner, Sent, render_job, title_of
from runner.parts.openshift.status import FAILED
from runner.parts.openshift.transfer import Files
from runner.parts.openshift.watch import Failed
from runner.plan import PLAN_FILE, Plan, Stage
from runner.scenarios.saved_plan import read_plan
from runner.tools import child_process
from runner.tools.problem import Stop, Tell


def parse_pod_arguments(
    name: str, arguments: list[str], extra_arguments: Mapping[str, Any]
) -> argparse.Namespace:
    """The arguments of a program in a pod that asks the cluster. name: of its module;
    extra_arguments: besides those of all, with argparse's settings."""
    program = argparse.ArgumentParser(prog=f"python -m {name}")
    program.add_argument("file", type=Path)
    program.add_argument("--server", required=True)
    program.add_argument("--keys", required=True, type=Path)
    # A pod asks for weeks, and no answer is urgent.
    program.add_argument("--pause", type=float, default=10.0, help="seconds between two checks")
    for argument, settings in extra_arguments.items():
        program.add_argument(argument, **settings)
    parsed = program.parse_args(arguments)
    errors.PAUSE_SECONDS = parsed.pause
    return parsed


def connect_and_read_plan(parsed: argparse.Namespace) -> tuple[Cluster, Plan]:
    """The cluster, and the plan in the pod. Raises Stop without either."""
    plan = read_plan(parsed.file, pipeline.read_plan_text)
    return connect_in_pod(parsed.server, parsed.keys, plan.site.namespace), plan


def submit_all(cluster: Cluster, plan: Plan, options: submit.Sending) -> Sent | None:
    """Sends the first milestone that is not done, with everything that only this machine has, and
    then the driver. Returns the driver, None if all is done. Raises Stop as `submit` does, and at a
    closed gate."""
    space = plan.site.namespace
    if cluster.get("ServiceAccount", space, pipeline.ACCOUNT) is None:
        raise Stop(
            f"The namespace `{space}` has no service account `{pipeline.ACCOUNT}`, which the driver of a pipeline needs.",
            "`recipe site RECIPE` generates it and its rights, for `oc apply -k`. Without --all you send each stage yourself.",
        )
    driver = pipeline.render_driver(plan, options.target, options.files.key)
    existing_driver = pipeline.driver_of(cluster, plan)
    manifests = list(driver.support)
    if existing_driver is None:
        manifests.append(driver.job)
    for manifest in manifests:
        cluster.apply(manifest, dry_run=True)
    first_sent = submit.send_next_part(cluster, plan, None, options)
    if first_sent is None:
        return None
    if options.dry_run:
        options.tell(
            f"The cluster would accept {driver.kind} `{driver.name}`, which sends all later stages."
        )
    else:
        with accounted(
            lambda _: (
                f"{title_of(first_sent.job)} was sent and continues. Submit again for the next step."
            )
        ):
            _send(cluster, plan, driver, options)
    return driver


def wake(cluster: Cluster, plan: Plan, tell: Tell) -> None:
    """Starts the driver again after a promotion, with its former options and owner, if the recipe
    has not changed."""
    job = pipeline.driver_of(cluster, plan)
    if job is None or pipeline.is_driver_at_work(job):
        return
    command = job["spec"]["template"]["spec"]["containers"][0]["command"]
    options = {}
    for name in ("--target", "--files"):
        if name in command:
            options[name] = command[command.index(name) + 1]
    driver = pipeline.render_driver(plan, options.get("--target"), options.get("--files", ""))
    if pipeline.is_same_driver(job, driver):
        _send(cluster, plan, driver, submit.Sending(tell, _nobody, owner=Owner.of(job)))
    else:
        tell("`recipe submit RECIPE --all` continues with the recipe as it is now.")


def _send(cluster: Cluster, plan: Plan, driver: Sent, options: submit.Sending) -> None:
    existing_driver = pipeline.driver_of(cluster, plan)
    tell = options.tell
    if (
        existing_driver
        and pipeline.is_driver_at_work(existing_driver)
        and pipeline.is_same_driver(existing_driver, driver)
    ):
        tell(
            f"{driver.kind} `{driver.name}` already exists and continues by itself. Nothing changes."
        )
        return
    replaced = []
    if existing_driver:
        submit.require_consent(existing_driver, options.owner, options.confirm)
        replaced.append(existing_driver)
    with submit.replacing(cluster, driver, replaced, tell) as remove:
        submit.provide_seal_key(cluster, driver, tell)
        for manifest in driver.support:
            cluster.apply(manifest)
        if existing_driver:
            remove(existing_driver)
        submit.create_job(cluster, driver, options.owner, tell)
    tell(
        "The driver sends each later stage and gate, even while this machine is off. It ends at a closed gate."
    )


def promote(
    cluster: Cluster, plan: Plan, stage: Stage, person: str, reason: str, tell: Tell
) -> None:
    """Overrules a stage's gate. Raises Stop if there is nothing to overrule."""
    if not stage.gates:
        raise Stop(
            f"The stage `{stage.name}` has no gate to overrule.",
            "Write a requirement under `gates` first.",
        )
    verdict = pipeline.milestone_of(cluster, plan, stage, of_gate=True)
    if verdict.state == pipeline.UNDER_WAY:
        raise Stop(
            f"The gate after `{stage.name}` is being measured.",
            "`recipe status` shows when it is done.",
        )
    gate = render_job(plan, stage, of_gate=True)
    # Without the key the pod would accept no measurement.
    submit.require_seal_key(cluster, gate.namespace)
    for manifest in gate.support:
        if manifest["kind"] == "ConfigMap":
            cluster.apply(manifest)
    lines = run_to_end(cluster, promotion_pod(gate.plan, stage, person, reason), PROMOTE, tell)
    for line in lines:
        tell(line)
    if verdict.job is not None and verdict.state == FAILED:
        # The gate's Job shows the override, because `recipe status` and `recipe submit` do not read
        # the claim.
        change = {"metadata": {"annotations": {pipeline.PROMOTION: "\n".join(lines)}}}
        with accounted(
            lambda _: (
                "The override is saved on the claim; promote again to show it on the gate's Job."
            )
        ):
            cluster.patch("Job", gate.namespace, verdict.job["metadata"]["name"], change)


def promotion_pod(plan: Plan, stage: Stage, person: str, reason: str) -> Manifest:
    """The pod: no GPU, the claims, and half an hour, because it hashes a large model's weights."""
    file = f"{plan.place.config_dir}/{PLAN_FILE}"
    command = [
        "python",
        "-m",
        "runner.parts.jobs.stage",
        PROMOTE,
        file,
        "--by",
        person,
        "--reason",
        reason,
    ]
    folders = [podspec.config(plan, stage), *podspec.claims(plan)]
    secrets = podspec.seal_key(plan) + podspec.connection(plan)
    return batch.alone(
        plan, stage, PROMOTE, command, folders, seconds=1800, secrets=secrets, memory="4Gi"
    )


def walk(
    cluster: Cluster,
    plan: Plan,
    target: str | None,
    files_key: str,
    tell: Tell,
    stage: str = "",
    of_gate: bool = False,
) -> pipeline.Milestone | None:
    """Sends the next part and waits for it, until all are done, or that `stage`, or the gate after
    it. Returns that milestone, None for all. files_key: of the data files on the claim. Raises Stop
    if it cannot continue."""
    files = Files(sent=files_key)
    while True:
        try:
            # A driver sends as its owner; a run of Kubeflow Pipelines, which names its stage, as
            # the owner of its plan.
            if stage:
                driver = None
            else:
                driver = pipeline.driver_of(cluster, plan)
            if driver:
                owner = Owner.of(driver)
            elif stage:
                owner = pipeline.owner_of_runs(cluster, plan)
            else:
                owner = Owner()
            options = submit.Sending(
                tell, _nobody, target, files=files, unattended=True, owner=owner
            )
            for milestone in pipeline.milestones(cluster, plan, files_key):
                if milestone.done and (milestone.stage.name, milestone.of_gate) == (stage, of_gate):
                    return milestone
            sent_part = submit.send_next_part(cluster, plan, None, options)
            if sent_part is None:
                return None
            submit.wait(cluster, sent_part, tell)
        except Failed as failed:
            # The next step reports a closed gate, unless a person has overruled it since.
            if not failed.of_gate:
                raise
        except errors.TryAgain as silence:
            tell(f"{silence.text.splitlines()[0]} Trying again.")
            errors.pause()


def _nobody(fact: str, action: str, person: str) -> bool:
    """The answer to a question that only a person may decide."""
    raise Stop(f"{fact} Nothing was changed.", "`recipe submit RECIPE --all` asks you.")


def main(arguments: list[str]) -> int:
    parsed = parse_pod_arguments(
        "runner.parts.openshift.controller", arguments, {"--target": {}, "--files": {"default": ""}}
    )
    try:
        cluster, plan = connect_and_read_plan(parsed)
        walk(cluster, plan, parsed.target, parsed.files, say)
    except Stop as stop:
        print(stop.text, file=sys.stderr, flush=True)
        write_termination_message(stop.text)
        return child_process.DECIDED
    write_termination_message(f"All stages of `{plan.name}` are done.")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
