"""The models of a run behind OpenAI's API, here or on the cluster, and in a chat."""

from runner.parts import Part

PART = Part(
    package=__name__,
    needs=("evaluate", "jobs", "openshift", "planner"),
    sections=("serve",),
    rules="serving",
    targets={"kserve": "kserve"},
    hooks={
        "models_at": "openai_api.at",
        "plan_server": "commands.plan_server",
    },
    command_module="commands",
    commands={
        "chat": "Chat with the original and the trained model, side by side.",
        "serve": "Serve both models with OpenAI's API.",
    },
)
