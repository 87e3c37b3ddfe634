"""Whether this user has a login to a cluster, by the kubeconfig alone: the official client takes a
second to import."""

import os
from collections.abc import Mapping
from pathlib import Path

import yaml


def logged_in() -> bool:
    """Whether a kubeconfig's current context has a user. The login may have expired."""
    kubeconfig_paths = os.environ.get("KUBECONFIG")
    if kubeconfig_paths:
        files = kubeconfig_paths.split(os.pathsep)
    else:
        files = ["~/.kube/config"]
    return any(_has_user(Path(file).expanduser()) for file in files if file)


def _has_user(file: Path) -> bool:
    try:
        kubeconfig = yaml.safe_load(file.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, yaml.YAMLError):
        return False
    if not isinstance(kubeconfig, Mapping):
        return False
    return bool(kubeconfig.get("current-context")) and bool(kubeconfig.get("users"))
