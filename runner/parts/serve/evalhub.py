"""`recipe evaluate --evalhub`: OpenShift AI's EvalHub measures lm-eval's tasks on the models of a
server, which its pods ask by OpenAI's API. It is driven by its REST interface (eval-hub 1.0,
docs/openapi.yaml)."""

from __future__ import annotations

import json
import os
import time
import urllib.error
from collections.abc import Iterable, Mapping, Sequence
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
from runner.parts.serve.serving import LLM, SERVICE, Serving
from runner.plan import OnClaim, Plan, Stage
from runner.recipe.recipe import Recipe
from runner.run.run_folder import StageFolder, folder
from runner.scenarios import translate
from runner.tools.problem import Stop, Tell, listed
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
    if url:
        plan = translate(recipe, folder(recipe.name, "run").place())
        own_server = None
    else:
        plan, own_server = kserve.served(recipe)
    measured_stage = openai_api.answering(plan, stage)
    evaluation = measured_stage.evaluation
    if not evaluation or not evaluation.tasks:
        raise Stop(
            f"The stage `{measured_stage.name}` names no tasks of lm-eval, so EvalHub has nothing to measure.",
            "Write tasks, such as `evaluation.tasks: [hellaswag]`.",
        )
    url = openai_api.address(url or _on_cluster(plan, measured_stage))
    tokenizer = _tokenizer(plan, measured_stage, own_server.source.results if own_server else None)
    server = _Hub(hub, plan.site.namespace)
    _require_tasks(server, evaluation.tasks)
    shots = _shots(evaluation.tasks)
    tasks = []
    for task in evaluation.tasks:
        tasks.append(
            fill_template(
                TASK, id=task, shots=shots.get(task, 0), limit=evaluation.limit or None, **tokenizer
            )
        )
    base, trained = served(recipe.name)
    models = [trained]
    if _serves_base_model(own_server, measured_stage):
        models.append(base)
    measures = Measures()
    # One after another: vLLM 0.32 on a processor dies of two requests for log-probabilities at once
    # beside an adapter.
    for model in models:
        job = _finished_job(server, url, model, tasks, tell)
        _take(measures, model == base, job)
    measurement = Measurement(
        **vars(measures.found(())),
        stage=measured_stage.name,
        checkpoint=url,
        seed=evaluation.seed,
    )
    return StageFolder(plan, measured_stage), measurement


def _serves_base_model(own_server: Serving | None, stage: Stage) -> bool:
    """Of a server somewhere, an adapter is expected to be beside its base model."""
    if own_server:
        return own_server.base_name is not None
    return bool(stage.config.get("adapter"))


def _require_tasks(server: _Hub, tasks: Sequence[str]) -> None:
    benchmarks = server.ask(f"evaluations/providers/{PROVIDER}").get("benchmarks") or ()
    offered = [benchmark["id"] for benchmark in benchmarks]
    unknown = [task for task in tasks if task not in offered]
    if unknown:
        raise Stop(
            f"EvalHub at {server.url} does not have {listed(unknown)}.",
            "Change `evaluation.tasks`, or ask the platform's admin to add the task to EvalHub's provider of lm-eval.",
        )


def _finished_job(
    server: _Hub, url: str, model: str, tasks: Sequence[Mapping[str, object]], tell: Tell
) -> Mapping[str, Any]:
    """Sends a job that measures one model, and waits until it has ended. A job that is no longer
    waited for is deleted, because its results would be read by no one."""
    request = {"name": model, "model": {"url": url, "name": model}, "benchmarks": tasks}
    job = str(server.ask("evaluations/jobs", request)["resource"]["id"])
    tell(f"EvalHub measures `{model}` at {url}: job {job}")
    try:
        return server.ended(job, model, tell)
    except BaseException:
        with suppress(Stop):
            server.ask(f"evaluations/jobs/{job}", method="DELETE")
        raise


def _on_cluster(plan: Plan, stage: Stage) -> str:
    """The address that KServe gave the recipe's own server, as EvalHub's pods reach it."""
    if stage != plan.stages[-1]:
        raise Stop(
            f"The server on the cluster has the model of the stage `{plan.stages[-1].name}`, and not that of `{stage.name}`.",
            "Leave the stage out, or name a server that has it: `--url`.",
        )
    name = job_name(plan)
    space = plan.site.namespace
    cluster = client.connect()
    server = cluster.get(SERVICE, space, name) or cluster.get(LLM, space, name, forgiving=True)
    if server is None:
        cluster.require_namespace(space)
    status = (server or {}).get("status", {})
    url = (status.get("address") or status).get(
        "url"
    )  # an LLMInferenceService has only that of the gateway
    if not url:
        raise Stop(
            f"`{space}` has no server `{name}` that answers.",
            "`recipe serve RECIPE --cluster` starts it. Or name another server: `--url`.",
        )
    return str(url)


def _tokenizer(plan: Plan, stage: Stage, results: OnClaim | None) -> dict[str, Any]:
    """The name on the hub of the model that training started from, or else the folder of the
    trained model on its claim, as a task names them. Raises Stop if EvalHub's pods can read
    neither."""
    first_stage = next(
        planned for planned in plan.stages if "demo" in planned.config.get("recipe_runner", {})
    )
    # On the cluster, `base_model` is the folder that the model was downloaded into.
    name = str(
        (first_stage.model or {}).get("base")
        or first_stage.config["recipe_runner"]["demo"].get("base_model", "")
    )
    if name and not Path(name).is_absolute():
        return {"tokenizer": name, "claim": None}
    if results is None:
        raise Stop(
            f"EvalHub reads the tokenizer from the hub, but the model of `{stage.name}` has one of its own.",
            "Leave out `--url`: of a server on the cluster, EvalHub reads it from the claim with the results.",
        )
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

    task_index = TaskManager().task_index
    shots: dict[str, int] = {}
    for task in tasks:
        file = task_index.get(task, {}).get("yaml_path")
        if isinstance(file, str | Path):
            config = load_yaml_config(str(file), mode="simple")
            shots[task] = int(config.get("num_fewshot") or 0)
    return shots


def _take(measures: Measures, before: bool, job: Mapping[str, Any]) -> None:
    """Adds a finished job's results, and why a task has none. before: of the original model."""
    results = _by_id((job.get("results") or {}).get("benchmarks"))
    states = _by_id(job["status"].get("benchmarks"))
    for benchmark in job["benchmarks"]:
        task = benchmark["id"]
        scores: dict[str, float] = {}
        for name, value in (results.get(task, {}).get("metrics") or {}).items():
            if _is_number(value) and "stderr" not in name:
                scores[f"{SCORE}{task}.{name}"] = float(value)
        if before:
            measures.before.update(scores)
        else:
            measures.metrics.update(scores)
        if not scores:
            error = states.get(task, {}).get("error_message") or job["status"].get("message") or {}
            message = str(error.get("message") or job["status"]["state"])
            reason = " ".join(message.split())[:300]
            measures.lack([f"{SCORE}{task}"], f"EvalHub says: {reason}", before)


def _by_id(benchmarks: Iterable[Mapping[str, Any]] | None) -> dict[str, Mapping[str, Any]]:
    return {benchmark["id"]: benchmark for benchmark in benchmarks or ()}


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


class _Hub:
    """EvalHub's REST interface."""

    url: str
    headers: dict[str, str]  # the token, and the namespace that its jobs run in

    def __init__(self, url: str, namespace: str | None) -> None:
        self.url = (url if "://" in url else f"https://{url}").rstrip("/").removesuffix("/api/v1")
        token = os.environ.get(TOKEN)
        if not token and self.url.startswith("https://"):
            with suppress(Stop):  # without a kubeconfig
                settings = list(client.connect().configuration.auth_settings().values())
                if settings:
                    token = str(settings[0]["value"] or "").removeprefix("Bearer ")
        self.headers = {}
        if namespace:
            self.headers["X-Tenant"] = namespace
        if token:
            self.headers["Authorization"] = f"Bearer {token}"

    def ended(self, job: str, model: str, tell: Tell) -> Mapping[str, Any]:
        """The job once it has ended. Raises TryAgain if EvalHub does not answer for two minutes."""
        last_line = ""
        silent = 0
        while True:
            try:
                current = self.ask(f"evaluations/jobs/{job}")
                silent = 0
                status = current["status"]
                if status["state"] not in AT_WORK:
                    return current
                states = [benchmark.get("status") for benchmark in status.get("benchmarks") or ()]
                done = sum(state not in AT_WORK for state in states)
                count = len(current["benchmarks"])
                line = f"  `{model}`: {status['state']}, {done} of {count} tasks done"
                if line != last_line:
                    tell(line)
                last_line = line
            except TryAgain:
                # Not by the clock: one look at an EvalHub that hangs takes a minute, and the job is
                # lost without us.
                silent += 1
                if silent >= PATIENCE:
                    raise
            time.sleep(SECONDS)

    def ask(
        self, path: str, body: Mapping[str, object] | None = None, method: str | None = None
    ) -> dict[str, Any]:
        try:
            with openai_api.opened(
                f"{self.url}/api/v1/{path}", body, 60, self.headers, method
            ) as answer:
                text = answer.read()
                reply = json.loads(text) if text else {}
        except urllib.error.HTTPError as error:
            text = error.read().decode("utf-8", errors="replace")
            with suppress(ValueError, TypeError, KeyError):
                text = json.loads(text)["message"]
            message = " ".join(text.split())[:300] or error.reason
            if error.code in (401, 403):
                raise Stop(
                    f"EvalHub at {self.url} does not let you in: {message}",
                    f"Log in with `oc login`, or set {TOKEN} to a token whose account may use EvalHub in the recipe's namespace.",
                ) from None
            failure: type[Stop]
            if error.code == 429 or error.code >= 500:
                failure = TryAgain
            else:
                failure = Stop
            raise failure(
                f"EvalHub at {self.url} answered {error.code}: {message}", "Its log says more."
            ) from None
        except (OSError, HTTPException) as error:
            reason = getattr(error, "reason", None) or error
            raise TryAgain(
                f"EvalHub does not answer at {self.url}: {reason}",
                "Check the address: `oc get routes --all-namespaces | grep evalhub`. If its certificate is not trusted here, name a file with the authority in SSL_CERT_FILE.",
            ) from None
        except ValueError:
            reply = None
        if not isinstance(reply, dict):
            raise Stop(f"{self.url} is not an EvalHub.", "Check the address.")
        return reply
