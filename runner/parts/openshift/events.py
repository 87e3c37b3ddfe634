"""Events: what the cluster says has happened to its objects, by uid, because names are those of the objects before, too."""

from collections.abc import Callable

from runner.parts.openshift.client import Cluster, Manifest, Manifests

# How a cluster takes a pod off its machine: the kubelet for want of memory or disk, the scheduler for a pod of higher
# priority, and the node controller from a machine that is gone.
TAKEN = ("Evicted", "Preempted", "TaintManagerEviction")


def events_about(cluster: Cluster, about: Manifests, by_name: Callable[[Manifest], bool]) -> Manifests:
    """What went wrong with these objects, and with the claims of pods among them that are not bound, the latest last. What
    something went well after is over, but for a pod that was taken off its machine; of claims all is kept, because a reason
    why one is not bound may be no warning.

    by_name: of an event about an object whose uid nobody knows any more, or ever did, whether it counts all the same; asked of
    those since the first of these objects was made.
    """
    meta = about[0]["metadata"]
    volumes = [volume for manifest in about for volume in manifest.get("spec", {}).get("volumes") or ()]
    names = {volume["persistentVolumeClaim"]["claimName"] for volume in volumes if "persistentVolumeClaim" in volume}
    found = [cluster.get("PersistentVolumeClaim", meta["namespace"], name) for name in sorted(names)]
    unbound = [claim for claim in found if claim and claim.get("status", {}).get("phase") != "Bound"]
    uids = {manifest["metadata"]["uid"] for manifest in (*about, *unbound)}
    events = cluster.list("Event", meta["namespace"], forgiving=True)
    well: dict[str, str] = {}
    for event in events:
        if event.get("type") == "Normal":
            uid = event["involvedObject"].get("uid", "")
            well[uid] = max(well.get(uid, ""), when(event))

    def told(event: Manifest) -> bool:
        of = event["involvedObject"]
        uid = of.get("uid", "")
        if uid not in uids and not (when(event) >= meta["creationTimestamp"] and by_name(event)):
            return False
        if of.get("kind") == "PersistentVolumeClaim" or (event.get("reason") in TAKEN and uid not in uids):
            return True
        return event.get("type") == "Warning" and when(event) >= well.get(uid, "")

    return sorted(filter(told, events), key=when)


def when(event: Manifest) -> str:
    """When an event was seen last; each of the cluster's parts says it in a place of its own."""
    series = event.get("series") or {}
    said = (series.get("lastObservedTime"), event.get("lastTimestamp"), event.get("eventTime"))
    return next((at for at in said if at), event["metadata"].get("creationTimestamp") or "")
