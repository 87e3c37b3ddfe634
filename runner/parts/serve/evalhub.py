"""`recipe evaluate --evalhub`: OpenShift AI's EvalHub measures lm-eval's tasks on the models of a
server, which its pods ask by OpenAI's API. It is driven by its REST interface (eval-hub 1.0,
docs/openapi.yaml)."""

import json
import os
import time
import urllib.error
from collections.abc import Mapping
from contextlib import suppress
from http.client import HTTPException
from pathlib import Path
from typing import Any

from runner.parts.evaluate.evaluate import Measures
from runner.parts.evaluate.gates import Measurement
from runner.parts.evaluate.metrics import SCORE
from runner.parts.jobs.kubernetes import fill_template, job_name
from runner.parts.openshift import client
from runner.parts.openshift.errors import TryAgain
from runner.parts.serve import kserve, openai_api
from runner.parts.serve.serving import LLM, SERVICE
from runner.plan import OnClaim, Plan, Stage
from runner.recipe.recipe import Recipe
from runner.run.run_folder import StageFolder, folder
from runner.scenarios import translate
from runner.tools.problem import Stop, Tell, listed, worded
from runner.tools.run_files import BEST_MODEL
from runner.tools.text import served

PROVIDER, TASK = "lm_evaluation_harness", Path(__file__).with_name("evalhub-task.yaml")
# the environment variable with a token for EvalHub; by default the kubeconfig's is sent
TOKEN = "EVALHUB_TOKEN"
AT_WORK = ("pending", "running")
SECONDS, PATIENCE = 5.0, 24  # between two looks at a job, and how many may fail in a row


def measured(
    hub: str, url: str | None, recipe: Recipe, stage: str | None, tell: Tell
) -> tuple[StageFolder, Measurement]:
    """EvalHub's results for the trained and the original model, without any record. hub: its
    address; url: of the server; by default the recipe's own on the cluster. Raises Stop if EvalHub
    or the server cannot be used."""
    base, name = served(recipe.name)
    if url:
        plan = translate(recipe, folder(recipe.name, "run").place())
        own = None
    else:
        plan, own = kserve.served(recipe)
    wanted = openai_api.answering(plan, stage)
    evaluation = wanted.evaluation
    if not evaluation or not evaluation.tasks:
        raise Stop(*worded("serve.no-tasks", stage=wanted))
    # Of a server somewhere, an adapter is expected to be beside its base model.
    if own:
        both = own.base_name is not None
    else:
        both = bool(wanted.config.get("adapter"))
    url = openai_api.address(url or _on_cluster(plan, wanted))
    words = _tokenizer(plan, wanted, own.source.results if own else None)
    server = _Hub(hub, plan.site.get("namespace"))
    known = [
        one["id"] for one in server.ask(f"evaluations/providers/{PROVIDER}").get("benchmarks") or ()
    ]
    unknown = [task for task in evaluation.tasks if task not in known]
    if unknown:
        raise Stop(*worded("serve.tasks-unknown", unknown=listed(unknown), hub=server.url))
    shots = _shots(evaluation.tasks)
    measures = Measures()
    words = words | {"limit": evaluation.limit or None}
    tasks = [
        fill_template(TASK, id=task, shots=shots.get(task, 0), **words) for task in evaluation.tasks
    ]
    # One after another: vLLM 0.32 on a processor dies of two requests for log-probabilities at once
    # beside an adapter.
    for model in (name, base) if both else (name,):
        asked = {"name": model, "model": {"url": url, "name": model}, "benchmarks": tasks}
        job = str(server.ask("evaluations/jobs", asked)["resource"]["id"])
        tell(f"EvalHub measures `{model}` at {url}: job {job}")
        try:
            _take(measures, model != name, server.ended(job, model, tell))
        except BaseException:
            with suppress(Stop):
                server.ask(
                    f"evaluations/jobs/{job}", method="DELETE"
                )  # its results would be read by no one
            raise
    found = Measurement(
        **vars(measures.found(())), stage=wanted.name, checkpoint=url, seed=evaluation.seed
    )
    return StageFolder(plan, wanted), found


def _on_cluster(plan: Plan, stage: Stage) -> str:
    """The address that KServe gave the recipe's own server, as EvalHub's pods reach it."""
    if stage != plan.stages[-1]:
        raise Stop(*worded("serve.serves-last", plan=plan, stage=stage))
    name = job_name(plan)
    space = plan.site["namespace"]
    cluster = client.connect()
    there = cluster.get(SERVICE, space, name) or cluster.get(LLM, space, name, forgiving=True)
    if there is None:
        cluster.require_namespace(space)
    status = (there or {}).get("status", {})
    url = (status.get("address") or status).get(
        "url"
    )  # an LLMInferenceService has only that of the gateway
    if not url:
        raise Stop(*worded("serve.not-served", name=name, space=space))
    return str(url)


def _tokenizer(plan: Plan, stage: Stage, results: OnClaim | None) -> dict[str, Any]:
    """The name on the hub of the model that training started from, or else the folder of the
    trained model on its claim, as a task names them. Raises Stop if EvalHub's pods can read
    neither."""
    first = next(each for each in plan.stages if "demo" in each.config.get("recipe_runner", {}))
    # On the cluster, `base_model` is the folder that the model was downloaded into.
    name = str(
        (first.model or {}).get("base")
        or first.config["recipe_runner"]["demo"].get("base_model", "")
    )
    if name and not Path(name).is_absolute():
        return {"tokenizer": name, "claim": None}
    if results is None:
        raise Stop(*worded("serve.tokenizer-elsewhere", stage=stage))
    home = results.below(BEST_MODEL)
    # EvalHub mounts a claim there.
    return {
        "tokenizer": "/test_data",
        "claim": {"pvc": {"claim_name": home.claim, "sub_path": home.path}},
    }


def _shots(tasks: tuple[str, ...]) -> dict[str, int]:
    """The examples in a prompt that lm-eval's tasks have by themselves; EvalHub would use none. A
    group has none."""
    from lm_eval.tasks import TaskManager
    from lm_eval.utils import load_yaml_config

    known = TaskManager().task_index
    return {
        task: int(load_yaml_config(str(file), mode="simple").get("num_fewshot") or 0)
        for task in tasks
        if isinstance(file := known.get(task, {}).get("yaml_path"), str | Path)
    }


def _take(measures: Measures, before: bool, job: Mapping[str, Any]) -> None:
    """Adds a finished job's results, and why a task has none. before: of the original model."""
    scores = {
        one["id"]: one.get("metrics") or {}
        for one in (job.get("results") or {}).get("benchmarks") or ()
    }
    states = {one["id"]: one for one in job["status"].get("benchmarks") or ()}
    for task in (one["id"] for one in job["benchmarks"]):
        found = {
            f"{SCORE}{task}.{name}": float(value)
            for name, value in scores.get(task, {}).items()
            if isinstance(value, int | float)
            and not isinstance(value, bool)
            and "stderr" not in name
        }
        (measures.before if before else measures.metrics).update(found)
        if not found:
            said = states.get(task, {}).get("error_message") or job["status"].get("message") or {}
            why = " ".join(str(said.get("message") or job["status"]["state"]).split())[:300]
            measures.lack([f"{SCORE}{task}"], f"EvalHub says: {why}", before)


class _Hub:
    """EvalHub's REST interface. headers: the token, and the namespace that its jobs run in."""

    def __init__(self, url: str, namespace: str | None) -> None:
        self.url = (url if "://" in url else f"https://{url}").rstrip("/").removesuffix("/api/v1")
        token = os.environ.get(TOKEN)
        if not token and self.url.startswith("https://"):
            with suppress(Stop):  # without a kubeconfig
                settings = client.connect().configuration.auth_settings().values()
                token = next(
                    (str(one["value"] or "").removeprefix("Bearer ") for one in settings), None
                )
        if namespace:
            named = {"X-Tenant": namespace}
        else:
            named = {}
        self.headers = named | ({"Authorization": f"Bearer {token}"} if token else {})

    def ended(self, job: str, model: str, tell: Tell) -> Mapping[str, Any]:
        """The job once it has ended. Raises TryAgain if EvalHub does not answer for two minutes."""
        said = ""
        silent = 0
        while True:
            try:
                now = self.ask(f"evaluations/jobs/{job}")
                silent = 0
                status = now["status"]
                if status["state"] not in AT_WORK:
                    return now
                done = sum(
                    one.get("status") not in AT_WORK for one in status.get("benchmarks") or ()
                )
                line = (
                    f"  `{model}`: {status['state']}, {done} of {len(now['benchmarks'])} tasks done"
                )
                if line != said:
                    tell(line)
                said = line
            except TryAgain:
                # Not by the clock: one look at an EvalHub that hangs takes a minute, and the job is
                # lost without us.
                silent += 1
                if silent >= PATIENCE:
                    raise
            time.sleep(SECONDS)

    def ask(
        self, path: str, body: Mapping[str, Any] | None = None, method: str | None = None
    ) -> dict[str, Any]:
        try:
            with openai_api.opened(
                f"{self.url}/api/v1/{path}", body, 60, self.headers, method
            ) as answer:
                text = answer.read()
                known = json.loads(text) if text else {}
        except urllib.error.HTTPError as error:
            text = error.read().decode("utf-8", errors="replace")
            with suppress(ValueError, TypeError, KeyError):
                text = json.loads(text)["message"]
            said = " ".join(text.split())[:300] or error.reason
            if error.code in (401, 403):
                raise Stop(
                    *worded("serve.hub-forbids", url=self.url, token=TOKEN, said=said)
                ) from None
            kind: type[Stop]
            if error.code == 429 or error.code >= 500:
                kind = TryAgain
            else:
                kind = Stop
            raise kind(
                f"EvalHub at {self.url} answered {error.code}: {said}", "Its log says more."
            ) from None
        except (OSError, HTTPException) as error:
            why = getattr(error, "reason", None) or error
            raise TryAgain(*worded("serve.hub-silent", url=self.url, why=why)) from None
        except ValueError:
            known = None
        if not isinstance(known, dict):
            raise Stop(f"{self.url} is not an EvalHub.", "Check the address.")
        return known
