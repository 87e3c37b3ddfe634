"""Pods: which of several pods of one Job this is."""

import os

# Kubernetes numbers the pods of an indexed Job from 0 (https://kubernetes.io/docs/concepts/workloads/controllers/job/).
INDEX = "JOB_COMPLETION_INDEX"


def helping_pod() -> int:
    """The number of this pod, where it is one of several and not the first, which does all that cannot be shared; else 0."""
    return int(os.environ.get(INDEX) or 0)
