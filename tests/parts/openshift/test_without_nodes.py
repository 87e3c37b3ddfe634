"""The tests of this folder against a cluster that RECIPE_TEST_KUBECONFIG names, without nodes: none waits for a pod."""

import os
import re
import subprocess
import sys

import pytest

from tests.conftest import ROOT
from tests.parts.openshift.api import TESTS, Api
from tests.parts.openshift.conftest import in_process

HERE = "tests/parts/openshift"
# These two ask no cluster: they train, and start a server of vLLM.
ELSEWHERE = [f"--ignore={HERE}/test_pods.py", f"--ignore={HERE}/test_vllm.py"]
# What else a test may skip for than what the cluster lacks: this test, recipes without a cluster, and tools that are not here.
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
    assert [one for one in cluster.requests if one.startswith("POST") and one.endswith("/pytorchjobs")] or lacks
    reasons = re.findall(r"^SKIPPED .*?: (.*)$", said, re.MULTILINE)
    assert reasons and all("this cluster lacks" in one or any(word in one for word in OTHERWISE) for one in reasons)
    assert any("lacks the custom resource TrainJob" in one for one in reasons) == bool(lacks)
