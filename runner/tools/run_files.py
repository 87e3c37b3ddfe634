"""The names of the files in a run folder and in each stage's. Writers, readers and cleaners take them from here; this
module imports nothing."""

# Of the run: what it is of, and what was changed in the recipe to make it.
RUN = "run.json"
LOCK = ".lock"
CONFIG = "config"
# What it was to be, and the page to show.
PLANNED = "planned.json"
PAGE = "report.html"
# Of every stage: what it was made from and what it has left; its log; why it was stopped, where it says so itself.
STAGE = "stage.json"
LOG = "train.log"
# In the environment of whom somebody else keeps the log for.
LOG_KEPT = "RECIPE_RUNNER_LOG"
STOPPED = "stopped.json"
# Of a stage that prepares data: what became of the rows, as text.
REPORT = "report.txt"
# In the folder of a base model that was fetched onto a claim: its name, and the commit that is there whole.
FETCHED = ".fetched.json"
# Of a stage that trains: the model, the adapter alone, and of images the files of weights.
BEST_MODEL = "best_model"
# In it where it was trained with a system prompt: its template as a server takes it, for requests that bring none.
SERVED_TEMPLATE = "served_template.jinja"
ADAPTER = "lora_adapter"
BEST_IMAGES, FINAL_IMAGES, LATEST_IMAGES = "best_model.pth", "final_model.pth", "checkpoint_latest.pth"
CHECKPOINTS = "checkpoints"
# Written into a checkpoint after everything else in it.
COMPLETE = "complete.json"
# What it says of itself in the end, every step of it, and the time it has taken so far.
SUMMARY = "training_summary.json"
HISTORY = "training_history.json"
TIME_LIMIT = "time_limit.json"
# How far it was in the end, as the cluster's console reads it.
PROGRESS = "progress.json"
# What was proven of its rows before the first step.
PROOF = "proof.json"
# Of the rows that training measures itself by, as it tokenised them.
HELD_OUT = "held_out.parquet"
# How its model is asked, and what it and the one before have answered.
DEMO = "demo.json"
DEMO_OUTPUTS = "demo_outputs"
ANSWERS = f"{DEMO_OUTPUTS}/answers.json"
# Of a stage that is served: both models as a server finds them by name, and its log.
SERVING = "serving"
TENSORBOARD = "tensorboard"
# The model in forms for others, and what is on record of each; where one was pushed to.
EXPORT = "export"
EXPORTED = "export.json"
PUSHED = "pushed.json"
# In the environment of pods: the key that measured numbers are sealed with, which never is in a run.
SEAL_KEY = "RECIPE_RUNNER_KEY"
# Of a stage that is measured: what was found, how, and a person's override.
EVALUATION = "evaluation.json"
EVALUATION_TASK = "evaluation-task.json"
MEASURED = ".measured.json"
PROMOTION = "promotion.json"

# Everything that training, and measuring after it, leave in the folder of a stage beside its configs, as patterns of names.
LEFT = (
    *(pattern for home in (BEST_MODEL, ADAPTER) for pattern in (home, f".{home}.partial")),
    *(BEST_IMAGES, FINAL_IMAGES, LATEST_IMAGES),
    *(CHECKPOINTS, SUMMARY, HISTORY, PROOF, HELD_OUT, TIME_LIMIT, PROGRESS, STOPPED, STAGE),
    *(DEMO, DEMO_OUTPUTS, SERVING, TENSORBOARD, "train*.log", EVALUATION, EVALUATION_TASK, MEASURED, PROMOTION, EXPORT),
)
