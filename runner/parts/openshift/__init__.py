"""The cluster, through the official Kubernetes client: sending jobs, watching them, fetching what they leave."""
