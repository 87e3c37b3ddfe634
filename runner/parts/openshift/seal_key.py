"""The Secret with the key that measured numbers are sealed with: pods read it, and no run holds it."""

from runner import parts
from runner.parts.jobs.podspec import KEY, KEY_SECRET
from runner.parts.openshift.client import MANAGER, Cluster, address
from runner.parts.openshift.errors import Refused


def require(cluster: Cluster, namespace: str, dry_run: bool = False) -> bool:
    """Makes the Secret of this person's own key where the namespace has none; whether it did. One that is there stays, because
    what was measured is sealed with it.

    Raises Stop where the cluster refuses it.
    """
    manifest = {
        "apiVersion": "v1",
        "kind": "Secret",
        "type": "Opaque",
        "metadata": {"name": KEY_SECRET, "namespace": namespace},
        "stringData": {KEY: "" if dry_run else parts.hook("seal_key")(make=True)},
    }
    query = [("fieldManager", MANAGER), *([("dryRun", "All")] if dry_run else [])]
    try:
        cluster.request("POST", address("Secret", namespace), query, manifest)
    except Refused as refused:
        if refused.status == 409:
            return False
        raise refused.stop("Secret", namespace, KEY_SECRET) from None
    return True
