"""The table of docs/cluster.md, which version of OpenShift AI gets which form, against the code
that chooses it."""

from __future__ import annotations

import re

import pytest

from runner.parts.jobs import kubernetes, podspec, trainjob
from runner.parts.openshift.client import KINDS, OLDER
from tests.conftest import ROOT

HEADING = "### Which version gets which form"


def table() -> dict[str, dict[str, str]]:
    """The cells of each row, by version; `as in VERSION` is what that version has."""
    text = (ROOT / "docs" / "cluster.md").read_text("utf-8").partition(HEADING)[2]
    head, _, *rows = [
        line.strip("| ").split(" | ") for line in text.splitlines()[:20] if line.startswith("|")
    ]
    columns = [re.findall(r"\d+\.\d+", cell) for cell in head]
    found = {
        row[0]: {v: cell for cell, names in zip(row, columns, strict=True) for v in names}
        for row in rows
    }
    for cells in found.values():
        for version, cell in cells.items():
            if same := re.fullmatch(r"as in (\d+\.\d+)", cell):
                cells[version] = cells[same[1]]
    return found


@pytest.mark.parametrize("version", ["2.25", "3.0", "3.1", "3.2", "3.3", "3.4", "3.5", "3.6"])
def test_the_table_of_versions_says_what_the_code_does(version):
    rows = {
        name.split()[0]: cells[version]
        for name, cells in table().items()
        if not name.startswith("server")
    }
    number = kubernetes.version_numbers(version)
    default = {kubernetes.PYTORCHJOB: "PyTorchJob", kubernetes.TRAINJOB: "TrainJob"}[
        kubernetes.default(version)
    ]
    assert rows["training"].startswith(default)
    assert ("TrainJob" in rows["training"]) == (number >= trainjob.SINCE)
    assert ("`runtimePatches`" in rows["training"]) == kubernetes.patched(version)
    assert ("the runtime's" in rows["`terminationGracePeriodSeconds`"]) == (
        trainjob.SINCE <= number < kubernetes.PATCHES_SINCE
    )
    assert ("the platform's server" in rows["`report_to:"]) == (number >= podspec.MLFLOW_SINCE)
    # As in runner/parts/openshift/site, where no recipe says the version of Kueue.
    assert rows["queue"] == (
        "Kueue `v1beta2`" if kubernetes.patched(version) else "Kueue `v1beta1`"
    )


def test_the_table_names_the_versions_of_the_kinds_that_are_used():
    text = (
        (ROOT / "docs" / "cluster.md")
        .read_text("utf-8")
        .partition(HEADING)[2]
        .partition("\n### ")[0]
    )
    for kind in ("TrainJob", "LLMInferenceService", "LocalQueue"):
        assert f"`{KINDS[kind][0].rpartition('/')[2]}`" in text, kind
    assert f"`{OLDER['LocalQueue'].rpartition('/')[2]}`" in text
