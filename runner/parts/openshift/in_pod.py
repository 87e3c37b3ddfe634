"""The cluster as a pod reaches it, by the key of its own service account."""

import argparse
import signal
import sys
from dataclasses import dataclass
from pathlib import Path

from runner.entrypoints import stage as entry
from runner.parts.openshift.client import Connection
from runner.parts.openshift.errors import patient
from runner.plan import Plan
from runner.tools.problem import Stop

# Between two looks, seconds: a pod asks for weeks, and nobody waits for its word.
PAUSE_SECONDS = 10.0


@dataclass(frozen=True)
class Account:
    """Who a pod is. host: the cluster's address; keys: the folder that a kubelet keeps the key in."""

    host: str
    keys: Path

    def auth_settings(self) -> dict[str, dict[str, str]]:
        """As the official client's configuration has them; read each time, because a kubelet replaces the key within the hour."""
        try:
            token = (self.keys / "token").read_text(encoding="utf-8").strip()
        except OSError as error:
            raise Stop(
                f"The pod has no key to the cluster: {error.filename}: {error.strerror}.",
                "Its service account must be mounted: `automountServiceAccountToken: true`.",
            ) from None
        return {"token": {"key": "authorization", "value": f"Bearer {token}"}}


def connect(server: str, keys: Path, namespace: str) -> Connection:
    """The cluster that this pod runs in, trusted by the authority beside the key. It takes no package that a training image
    need not have."""
    import urllib3

    authority = keys / "ca.crt"
    pool = urllib3.PoolManager(ca_certs=str(authority)) if authority.is_file() else urllib3.PoolManager()
    return Connection(pool, Account(server, keys), namespace)


class Program:
    """What every program in a pod that asks the cluster is told and does first. name: of its module."""

    def __init__(self, name: str) -> None:
        self.parser = argparse.ArgumentParser(prog=f"python -m {name}")
        self.parser.add_argument("file", type=Path)
        self.parser.add_argument("--server", required=True)
        self.parser.add_argument("--keys", required=True, type=Path)
        self.parser.add_argument("--pause", type=float, default=PAUSE_SECONDS)

    def begin(self, arguments: list[str]) -> argparse.Namespace:
        """What it is told; from now on it ends when it is asked to."""
        given = self.parser.parse_args(arguments)
        # The first process of a pod gets no default reaction to signals.
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
        patient(given.pause)
        return given


def opened(given: argparse.Namespace) -> tuple[Connection, Plan]:
    """The cluster, and the plan that lies in the pod. Raises Stop where either cannot be had."""
    plan = entry.read(given.file)
    return connect(given.server, given.keys, plan.site["namespace"]), plan
