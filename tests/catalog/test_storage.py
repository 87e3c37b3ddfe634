"""Kinds of storage: which several machines can write to."""

from __future__ import annotations

import pytest

from runner.parts.openshift import submit


@pytest.mark.parametrize(
    ("provisioner", "can"),
    [
        ("openshift-storage.cephfs.csi.ceph.com", True),
        ("cephfs.csi.ceph.com", True),
        ("openshift-storage.rbd.csi.ceph.com", False),
        ("ebs.csi.aws.com", False),
        ("kubernetes.io/azure-file", True),
        ("notcephfs.csi.ceph.com", None),
        ("csi.trident.netapp.io", None),
        ("", None),
    ],
)
def test_a_provisioner_is_known_by_its_name_or_the_end_of_it(provisioner, can):
    assert submit.shared_storage(provisioner) is can
