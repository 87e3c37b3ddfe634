"""What a pod can get of a machine, against worked numbers."""

from __future__ import annotations

import pytest

from runner.catalog import hardware
from runner.catalog.hardware import GIB, KERNEL
from runner.parts.planner import storage

# What OpenShift's own script reserves of so much memory that Linux sees
# (harche/openshift-node-sizing, README), GiB.
RESERVED = {4: 1, 8: 1.8, 16: 2.6, 32: 3.56, 64: 5.48, 128: 9.32, 256: 11.88, 512: 17, 1024: 27.24}


@pytest.mark.parametrize("seen", RESERVED)
def test_reserved_memory_is_that_of_openshifts_script(seen):
    allocated = hardware.memory(seen * GIB / (1 - KERNEL)) / GIB
    assert allocated == pytest.approx(seen - RESERVED[seen] - 100 / 1024, abs=1e-6)


# A count of CPUs, and what OpenShift's script reserves of them: half a CPU at least.
@pytest.mark.parametrize(
    ("count", "reserved"), [(1, 0.5), (4, 0.5), (8, 0.5), (37, 0.5), (64, 0.816), (192, 2.352)]
)
def test_reserved_cpus_are_those_of_openshifts_script(count, reserved):
    assert hardware.cpus(count) == pytest.approx(count - reserved, abs=0.005)


# 32 GB are 29.80 GiB; Linux sees 63/64 of them, 29.34; of these 3.40 are reserved, 0.10 is the
# eviction threshold, and 3 are for the cluster's own pods: 22.84.
@pytest.mark.parametrize(
    ("size", "left"),
    [
        (32 * 10**9, 22),
        (32 * GIB, 24),
        (16 * GIB, 10),
        (64 * 10**9, 50),
        (2 * 10**12, 1787),
        (GIB, -3),
    ],
)
def test_what_one_pod_has_left_is_whole_gib(size, left):
    assert hardware.pod_memory_gib(size) == left


@pytest.mark.parametrize(
    ("count", "left"), [(1, 0), (2, 1), (4, 3), (8, 7), (16, 15), (64, 62), (192, 189)]
)
def test_what_one_pod_has_left_is_whole_cpus(count, left):
    assert hardware.pod_cpus(count) == left


@pytest.mark.parametrize("pod", [1, 10, 22, 100, 1000])
def test_the_smallest_machine_for_a_pod_has_so_much_left_and_a_smaller_one_has_not(pod):
    size = storage.machine_gib(pod)
    assert hardware.pod_memory_gib(size * GIB) >= pod > hardware.pod_memory_gib((size - 1) * GIB)
