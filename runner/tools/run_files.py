"""The names of the files in a run folder and in each stage's. Writers, readers and cleaners take
them from here; this module imports nothing."""

# Of the run: its recipe, and what was changed in it.
RUN = "run.json"
LOCK = ".lock"
CONFIG = "config"
# The recipe and plan at its start, and the page to show.
PLANNED = "planned.json"
PAGE = "report.html"
# Of every stage: its inputs and outputs, its log, and why it was stopped, if it recorded that.
STAGE = "stage.json"
LOG = "train.log"
# Set when a parent process captures this process's log.
LOG_KEPT = "RECIPE_RUNNER_LOG"
STOPPED = "stopped.json"
# Of a stage that prepares data: how the rows were used, as text.
REPORT = "report.txt"
# In the folder of a base model on a claim: its name, and the commit that was downloaded completely.
FETCHED = ".fetched.json"
# Of a stage that trains: the model, the adapter alone, and for images the files of weights.
BEST_MODEL = "best_model"
# In the model's folder, if it was trained with a system prompt: the template for a server, for
# requests without one.
SERVED_TEMPLATE = "served_template.jinja"
ADAPTER = "lora_adapter"
# In the folder of a model that also sees: what prepares images and sound for it.
PROCESSOR = ("processor_config.json", "preprocessor_config.json", "video_preprocessor_config.json")
# In a model's folder: the tokenizer of Mistral's own package.
TEKKEN = "tekken.json"
BEST_IMAGES, FINAL_IMAGES, LATEST_IMAGES = (
    "best_model.pth",
    "final_model.pth",
    "checkpoint_latest.pth",
)
CHECKPOINTS = "checkpoints"
# The last file that is written into a checkpoint.
COMPLETE = "complete.json"
# Its summary at the end, every step, and the time so far.
SUMMARY = "training_summary.json"
HISTORY = "training_history.json"
TIME_LIMIT = "time_limit.json"
# Its run at MLflow or Weights & Biases.
TRACKED = "tracking.json"
# Its last progress, as the cluster's console reads it.
PROGRESS = "progress.json"
# What was proven about its rows before the first step.
PROOF = "proof.json"
# The held-out rows, as training tokenised them.
HELD_OUT = "held_out.parquet"
# How to ask its model, and its answers and those of the model before.
DEMO = "demo.json"
DEMO_OUTPUTS = "demo_outputs"
# Answers of each evaluation with their rewards, if a model learns from its own answers.
SAMPLES = "samples.json"
ANSWERS = f"{DEMO_OUTPUTS}/answers.json"
# How many of its answers are right.
GRADED = f"{DEMO_OUTPUTS}/graded.json"
# Of a stage that is served: both models under the names for a server, and its log.
SERVING = "serving"
TENSORBOARD = "tensorboard"
# Exported models, the record of each, and where one was pushed to.
EXPORT = "export"
EXPORTED = "export.json"
PUSHED = "pushed.json"
# In the environment of pods: the key that seals measured numbers; it is never in a run.
SEAL_KEY = "RECIPE_RUNNER_KEY"
# Of a stage that is measured: the results, how they were measured, and a person's override.
EVALUATION = "evaluation.json"
EVALUATION_TASK = "evaluation-task.json"
MEASURED = ".measured.json"
PROMOTION = "promotion.json"

# Patterns of all files in a stage's folder that training and evaluation write, without its configs.
LEFT = (
    *(pattern for home in (BEST_MODEL, ADAPTER) for pattern in (home, f".{home}.partial")),
    *(BEST_IMAGES, FINAL_IMAGES, LATEST_IMAGES),
    *(
        CHECKPOINTS,
        SUMMARY,
        HISTORY,
        PROOF,
        HELD_OUT,
        TIME_LIMIT,
        TRACKED,
        PROGRESS,
        STOPPED,
        STAGE,
    ),
    *(DEMO, DEMO_OUTPUTS, SAMPLES, SERVING, TENSORBOARD, "train*.log", EXPORT),
    *(EVALUATION, EVALUATION_TASK, MEASURED, PROMOTION),
)
