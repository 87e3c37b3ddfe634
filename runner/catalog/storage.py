"""Kinds of storage: whether several machines can write to one volume."""

from __future__ import annotations

from runner.catalog.tables import table


def shared(provisioner: str) -> bool | None:
    """Whether volumes of a provisioner can be ReadWriteMany; None where that is not known. A cluster's operator may put its own
    name before the driver's (`openshift-storage.cephfs.csi.ceph.com`)."""
    for known, facts in table("storage").items():
        if provisioner == known or provisioner.endswith(f".{known}"):
            return bool(facts["shared"])
    return None
