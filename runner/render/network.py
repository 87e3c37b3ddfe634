"""How machines talk to each other: NCCL's settings for plain Ethernet and for RDMA."""

from runner.plan import Plan, Stage


def environment(plan: Plan, stage: Stage) -> dict[str, str]:
    """NCCL's variables (NVIDIA NCCL documentation, Environment Variables). One machine talks to nobody."""
    network = plan.site.get("network")
    if stage.machines.nodes == 1 or network is None:
        return {}
    over = {"NCCL_SOCKET_IFNAME": network["interface"]}
    if network["kind"] == "rdma":
        # GPUs may write past the processor where card and GPU hang on the same switch.
        return over | {"NCCL_IB_DISABLE": "0", "NCCL_IB_HCA": network["rdma_devices"], "NCCL_NET_GDR_LEVEL": "PHB"}
    # Without it NCCL looks for InfiniBand first, and on some machines finds a card that the pod may not use.
    return over | {"NCCL_IB_DISABLE": "1"}


def joined(plan: Plan, stage: Stage) -> dict[str, str]:
    """What joins a pod to a secondary network, where the recipe names one (Multus, Kubernetes Network Custom Resource
    Definition De-facto Standard v1.3, section 4.1.1)."""
    attachment = (plan.site.get("network") or {}).get("attachment")
    return {"k8s.v1.cni.cncf.io/networks": attachment} if attachment and stage.machines.nodes > 1 else {}


def resources(plan: Plan, stage: Stage) -> dict[str, int]:
    """The RDMA devices that a pod asks for, one a link; nothing over Ethernet."""
    network = plan.site.get("network")
    if stage.machines.nodes == 1 or network is None or network["kind"] != "rdma":
        return {}
    return {network["rdma_resource"]: network.get("links") or 1}
