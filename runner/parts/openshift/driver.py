"""The driver of a recipe on the cluster: what it is, whether it is there, and what it says."""

import yaml

from runner.parts.jobs import kubernetes
from runner.parts.openshift import driver_job, pipeline
from runner.parts.openshift.client import Cluster, Manifest
from runner.parts.openshift.diagnose import logs_of, reasons
from runner.parts.openshift.jobs import Sent, annotation, require_of
from runner.parts.openshift.status import FAILED, FINISHED, ended, going, look
from runner.plan import Plan

CONTENT = "recipe-runner/content"


def sent(plan: Plan, target: str | None, files_key: str) -> Sent:
    """What the driver puts on the cluster; files_key: of the data files that lie on the claim."""
    own = driver_job.stage(plan)
    alone = plan.only(own)
    options = [*(["--target", target] if target else []), *(["--files", files_key] if files_key else [])]
    config = yaml.safe_load(kubernetes.config_map(alone, own).text)
    return Sent(alone, own, (config,), driver_job.job(alone, own, options))


def found(cluster: Cluster, plan: Plan) -> Manifest | None:
    """The driver that the cluster has. Raises Stop where its name is in use for something else."""
    alone = plan.only(driver_job.stage(plan))
    job = cluster.get("Job", plan.site["namespace"], kubernetes.job_name(alone))
    return require_of(job, alone.name) if job else None


def walks(job: Manifest | None) -> bool:
    """Whether a driver is at work."""
    return job is not None and not ended(job) and not going(job)


def outdated(cluster: Cluster, plan: Plan, target: str | None, files_key: str) -> list[Manifest]:
    """The driver that is at work on the recipe as it was before it changed, which would send that again."""
    job = found(cluster, plan)
    return [job] if job and walks(job) and not same(job, sent(plan, target, files_key)) else []


def same(job: Manifest, wanted: Sent) -> bool:
    """Whether a driver was made from what it would be made from now."""
    return annotation(job, CONTENT) == annotation(wanted.job, CONTENT)


def why(cluster: Cluster, job: Manifest) -> list[str]:
    """Why a driver has ended, in its own words, or what stands in its way."""
    if ended(job) == FAILED:
        return pipeline.last_words(cluster, job, driver_job.PART)
    state = look(cluster, job)
    return reasons(state, logs_of(cluster, state))


def state(job: Manifest) -> str:
    """How a driver is, in a word or two; one that has failed has ended before the last stage, by its own decision or not."""
    end = ended(job)
    return "has ended" if end == FAILED else "done" if end == FINISHED else "goes on by itself"
