"""The tests of this folder against a cluster that RECIPE_TEST_KUBECONFIG names, without nodes: none
waits for a pod."""

import os
import re
import subprocess
import sys
from typing import Any

import pytest

from runner.parts.openshift.errors import Refused
from tests.conftest import ROOT
from tests.parts.openshift.api import TESTS, Api
from tests.parts.openshift.conftest import Site, end_job_of_model, in_process

HERE = "tests/parts/openshift"
# These two ask no cluster: they train, and start a server of vLLM.
ELSEWHERE = [f"--ignore={HERE}/test_pods.py", f"--ignore={HERE}/test_vllm.py"]
# What else a test may skip for than what the cluster lacks: this test, recipes without a cluster,
# and tools that are not here.
OTHERWISE = ("has no place on a cluster", "no kfp here", "no kubectl here")


def against(cluster: Api, tmp_path, *arguments: str) -> str:
    """What the tests print that run against this cluster."""
    file = cluster.kubeconfig(tmp_path / "config", "default", TESTS)
    command = [sys.executable, "-m", "pytest", "-q", "-rs", "-n0", "-m", "not long", *arguments]
    env = os.environ | {"RECIPE_TEST_KUBECONFIG": str(file)}
    done = subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True, timeout=900)
    assert done.returncode == 0, re.sub(r"(?m)^SKIPPED .*\n", "", done.stdout)[-6000:]
    return done.stdout


@pytest.mark.long
@in_process
@pytest.mark.parametrize("lacks", ["", "trainjobs"])
def test_all_tests_run_to_their_end_on_a_cluster_without_nodes(tmp_path, lacks):
    cluster = Api("default", nodes=False)
    cluster.missing |= {lacks} - {""}
    few = [f"{HERE}/test_flows.py", f"{HERE}/test_pipeline.py", "-k", "trainjob"]
    try:
        said = against(cluster, tmp_path, *(few if lacks else [HERE, *ELSEWHERE]))
    finally:
        cluster.close()
    assert [
        one for one in cluster.requests if one.startswith("POST") and one.endswith("/pytorchjobs")
    ] or lacks
    reasons = re.findall(r"^SKIPPED .*?: (.*)$", said, re.MULTILINE)
    assert reasons and all(
        "this cluster lacks" in one or any(word in one for word in OTHERWISE) for one in reasons
    )
    assert any("lacks the custom resource TrainJob" in one for one in reasons) == bool(lacks)


class ClusterWithAJobController:
    """Its controller counts the Job's pod as active, and ends the Job when the pod has ended.
    Kubernetes refuses the end of a Job with active pods (`active>0 is invalid for finished
    job`)."""

    def __init__(self) -> None:
        template = {
            "metadata": {"name": "mine-model-x1y2z"},
            "spec": {"containers": [{"name": "node"}]},
        }
        self.pod = template
        self.job = {"metadata": {"name": "mine-model"}, "status": {"active": 1}}

    def list(self, kind: str, namespace: str, labels: dict[str, str]) -> list[dict[str, Any]]:
        assert (kind, labels) == ("Pod", {"job-name": "mine-model"})
        return [self.pod]

    def request(self, method: str, path: str, body: dict[str, Any], content: str) -> None:
        assert method == "PATCH"
        if "/jobs/" in path:
            raise Refused(
                422,
                "status.active: Invalid value: 1: active>0 is invalid for finished job",
                "tests",
            )
        self.pod["status"] = body["status"]
        self.job["status"] = {"conditions": [{"type": "Complete", "status": "True"}]}


def test_where_a_controller_runs_jobs_the_pod_of_a_model_ends_and_with_it_the_job():
    """Without nodes, the tests would otherwise wait for the model for ever."""
    cluster = ClusterWithAJobController()
    with pytest.raises(Refused):
        end_job_of_model(Site("mine", cluster, None, runs_jobs=False), cluster.job)
    end_job_of_model(Site("mine", cluster, None, runs_jobs=True), cluster.job)
    assert cluster.pod["status"]["phase"] == "Succeeded" and cluster.job["status"]["conditions"]
