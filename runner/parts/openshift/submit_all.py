"""Submit all: what comes next as `recipe submit` sends it, and then the driver, which takes everything after it."""

from runner.parts.openshift import driver
from runner.parts.openshift.client import Cluster
from runner.parts.openshift.driver_job import ACCOUNT
from runner.parts.openshift.jobs import Sent
from runner.parts.openshift.submit import Sending, Tell, delete, post, seal, step
from runner.plan import Plan
from runner.tools.problem import Stop


def submit_all(cluster: Cluster, plan: Plan, how: Sending) -> Sent | None:
    """Sends the first milestone that is not done, with all that this machine alone can give, and the driver; gives the driver,
    None where all is done. Sent twice it changes nothing. The rest is as in `submit`.

    Raises Stop where the cluster refuses anything, and then nothing has been sent, and where the next gate is closed.
    """
    _account_is_there(cluster, plan)
    what = driver.sent(plan, how.target, how.files_key)
    there = driver.found(cluster, plan)
    for manifest in what.support:
        cluster.apply(manifest, dry_run=True)
    if there is None:
        cluster.apply(what.job, dry_run=True)
    if step(cluster, plan, None, how) is None:
        return None
    if how.dry_run:
        how.tell(f"The cluster would accept {what.kind} `{what.name}`, which takes everything after it.")
    else:
        _send(cluster, plan, what, how.tell)
    return what


def wake(cluster: Cluster, plan: Plan, tell: Tell) -> None:
    """After a promotion: the driver that has ended at the gate goes on, where it is still of this very recipe. What it was
    started with, it is started with again."""
    job = driver.found(cluster, plan)
    if job is None or driver.walks(job):
        return
    command = job["spec"]["template"]["spec"]["containers"][0]["command"]
    options = {name: command[command.index(name) + 1] for name in ("--target", "--files") if name in command}
    what = driver.sent(plan, options.get("--target"), options.get("--files", ""))
    if driver.same(job, what):
        _send(cluster, plan, what, tell)
    else:
        tell("`recipe submit RECIPE --all` goes on by itself, with the recipe as it is now.")


def _send(cluster: Cluster, plan: Plan, what: Sent, tell: Tell) -> None:
    there = driver.found(cluster, plan)
    if there and driver.walks(there) and driver.same(there, what):
        tell(f"{what.kind} `{what.name}` is there already, and goes on by itself; nothing changes.")
        return
    if there:
        delete(cluster, what.kind, what.namespace, what.name)
        tell(f"{what.kind} `{what.name}` of before: deleted")
    seal(cluster, what, tell)
    for manifest in what.support:
        cluster.apply(manifest)
    post(cluster, what, tell)
    tell("It takes stage after stage and gate after gate; this machine may sleep. A closed gate ends it.")


def _account_is_there(cluster: Cluster, plan: Plan) -> None:
    space = plan.site["namespace"]
    if cluster.get("ServiceAccount", space, ACCOUNT) is None:
        raise Stop(
            f"There is no service account `{ACCOUNT}` in the namespace `{space}`, by which a pipeline walks by itself.",
            "`recipe site RECIPE` writes it and its rights, for `oc apply -k`; without --all you send each stage yourself.",
        )
