"""The tests of a job's way, against a cluster that is named by RECIPE_TEST_KUBECONFIG and has no nodes: none waits for a pod."""

import os
import subprocess
import sys

import pytest

from tests.conftest import ROOT
from tests.parts.openshift.api import TESTS, Api
from tests.parts.openshift.conftest import in_process


@pytest.mark.long
@in_process
def test_a_jobs_way_is_tested_to_its_end_on_a_cluster_without_nodes(tmp_path):
    cluster = Api("default", nodes=False)
    try:
        file = cluster.kubeconfig(tmp_path / "config", "default", TESTS)
        command = [sys.executable, "-m", "pytest", "-q", "-n0", "-m", "not long", "tests/parts/openshift/test_flows.py"]
        env = os.environ | {"RECIPE_TEST_KUBECONFIG": str(file)}
        done = subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True, timeout=300)
    finally:
        cluster.close()
    assert done.returncode == 0, done.stdout[-3000:]
    assert [one for one in cluster.requests if one.startswith("POST") and one.endswith("/pytorchjobs")]
