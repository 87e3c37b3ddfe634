"""Allocatable: what a pod can get of a machine, once the kernel, the kubelet and the cluster's own pods have theirs.

Kubernetes gives pods a machine's capacity less `system-reserved` and the eviction threshold, and calls the rest allocatable.
On every machine it then starts pods of its own, whose requests a training pod finds taken.
"""

from __future__ import annotations

import math

GIB = 2**30
# Linux describes each page of 4 KiB in 64 bytes (`struct page`), and does not count those as memory that there is.
KERNEL = 64 / 4096
# OpenShift's sizing of `system-reserved` (machine-config-operator, templates/common/_base/files/kubelet-auto-sizing.yaml;
# harche/openshift-node-sizing has its table): of each next so many GiB that share.
RESERVED_MEMORY = ((4, 0.25), (4, 0.20), (8, 0.10), (112, 0.06), (math.inf, 0.02))
# The same of CPUs: so much for the first, so much for each other one, and never less than the last.
RESERVED_FIRST_CPU, RESERVED_OTHER_CPU, RESERVED_CPUS = 0.06, 0.012, 0.5
# The kubelet's own default of `evictionHard` (`memory.available`).
EVICTION = 100 * 2**20
# What the cluster's own pods request on each machine: network, DNS, metrics, tuning and storage drivers about 2 GiB and 0.4
# CPUs, and room for a log collector and the GPU operator. Assumed; `oc describe node` shows a site's own sum.
PODS_MEMORY, PODS_CPUS = 3 * GIB, 0.5


def memory(size: float) -> float:
    """Allocatable memory of a machine with `size` bytes, in bytes."""
    seen = size * (1 - KERNEL)
    reserved, left = 0.0, seen
    for step, share in RESERVED_MEMORY:
        part = min(left, step * GIB)
        reserved, left = reserved + share * part, left - part
    return seen - reserved - EVICTION


def cpus(count: int) -> float:
    """Allocatable CPUs of a machine with `count` CPU threads."""
    return count - max(RESERVED_CPUS, RESERVED_FIRST_CPU + RESERVED_OTHER_CPU * (count - 1))


def pod_memory_gib(size: float) -> int:
    """What one pod can have beside the cluster's own, whole GiB; 0 or less where nothing is left."""
    return math.floor((memory(size) - PODS_MEMORY) / GIB)


def pod_cpus(count: int) -> int:
    """What one pod can have beside the cluster's own, whole CPUs; 0 or less where nothing is left."""
    return math.floor(cpus(count) - PODS_CPUS)


def machine_gib(pod_gib: int) -> int:
    """The smallest machine, in whole GiB, that has so many GiB for a pod."""
    size = pod_gib
    while pod_memory_gib(size * GIB) < pod_gib:
        size += 1
    return size
