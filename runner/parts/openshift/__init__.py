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
        "site": "Generate what the cluster's namespace needs, once.",
        "submit": "Send a recipe to the cluster.",
        "status": "Show the progress of jobs on the cluster.",
        "logs": "Print the logs of a job's machines.",
        "fetch": "Download results from the cluster.",
        "stop": "Stop a job on the cluster.",
        "open": "Open the cluster's TensorBoard.",
    },
)
