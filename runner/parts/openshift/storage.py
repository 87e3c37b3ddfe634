"""Storage: whether a claim that is to be made for several machines can be, asked before anything is sent."""

from collections.abc import Callable
from typing import Any

from runner.catalog import tables
from runner.parts.jobs.kubernetes import SHARED
from runner.parts.openshift.client import Cluster, Manifest
from runner.tools.names import listed
from runner.tools.problem import Stop

DEFAULT = "storageclass.kubernetes.io/is-default-class"
SETTING = "`openshift.claims[].storage_class`"


def require(cluster: Cluster, made: list[dict[str, Any]], tell: Callable[[str], None]) -> None:
    """Says what is not known of the storage of claims that are to be made. Raises Stop where it cannot be what they ask for:
    such a claim is never bound, and pods wait for it without end.

    made: the manifests.
    """
    made = [claim for claim in made if SHARED in claim["spec"]["accessModes"]]
    if not made:
        return
    classes = {one["metadata"]["name"]: one for one in cluster.list("StorageClass", "", forgiving=True)}
    if not classes:
        names = listed(claim["metadata"]["name"] for claim in made)
        tell(
            f"Several machines will write to {names}, and you may not see this cluster's kinds of storage: its default, or what "
            f"{SETTING} names, must give {SHARED}."
        )
        return
    unknown: dict[str, list[str]] = {}
    for claim in made:
        name = _class_of(claim, classes)
        if tables.shared_storage(classes[name].get("provisioner", "")) is None:
            unknown.setdefault(name, []).append(claim["metadata"]["name"])
    for name, claims in unknown.items():
        tell(
            f"Several machines will write to {listed(claims)}. Whether `{name}` ({classes[name].get('provisioner')}) can give "
            f"{SHARED} is not known here; if it cannot, pods wait for ever, and `recipe status` says so."
        )


def _class_of(claim: Manifest, classes: dict[str, Manifest]) -> str:
    """The kind of storage of a claim, which can be as it is asked for or may be."""
    claim_name, name = claim["metadata"]["name"], claim["spec"].get("storageClassName") or _default(classes)
    able = [other for other, one in sorted(classes.items()) if tables.shared_storage(one.get("provisioner", ""))]
    write = f"Write {listed(able, 'or')} there" if able else "Ask its admin for one"
    remedy = f"{SETTING} names the kind of storage. {write}; or stay on one machine with `machines.nodes: 1`."
    if name is None:
        raise Stop(
            f"The claim `{claim_name}` names no kind of storage, and this cluster has no default, so it would wait for ever.",
            remedy,
        )
    if name not in classes:
        raise Stop(f"This cluster has no kind of storage `{name}`, which the claim `{claim_name}` asks for.", remedy)
    provisioner = classes[name].get("provisioner", "")
    if tables.shared_storage(provisioner) is False:
        raise Stop(
            f"Several machines write to the claim `{claim_name}`, and `{name}` ({provisioner}) makes volumes for one at a time.",
            remedy,
        )
    return name


def _default(classes: dict[str, Manifest]) -> str | None:
    """Of several defaults a cluster takes the newest (Kubernetes documentation, Storage Classes)."""
    chosen = [
        (one["metadata"].get("creationTimestamp", ""), name)
        for name, one in classes.items()
        if (one["metadata"].get("annotations") or {}).get(DEFAULT) == "true"
    ]
    return max(chosen)[1] if chosen else None
