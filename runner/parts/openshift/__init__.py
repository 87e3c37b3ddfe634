"""The cluster, through the official Kubernetes client: sending jobs, watching them, fetching what they leave."""

from runner.parts import Part

PART = Part(
    package=__name__,
    needs=("jobs",),
    sections=("openshift", "image"),
    rules="rules",
    hooks={
        "beside_jobs": "site.beside_jobs",
        "why_on_cluster": "commands.why_on_cluster",
        "promote_on_cluster": "commands.promote_on_cluster",
        "model_on_claim": "transfer.copied",
    },
    command_module="commands",
    commands={
        "site": "Write what its namespace needs, once.",
        "submit": "Send a recipe to the cluster.",
        "status": "Say how far jobs on the cluster are.",
        "logs": "Show what a job's machines write.",
        "fetch": "Bring results from the cluster.",
        "stop": "End a job on the cluster.",
        "open": "Show the cluster's TensorBoard.",
    },
)
