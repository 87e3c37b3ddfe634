"""The models of a run behind OpenAI's API, here or on the cluster, and in a chat."""
