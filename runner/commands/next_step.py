"""The command that comes before training and after a rehearsal, by the model and by what is here: a
GPU, a login to a cluster."""

from importlib.util import find_spec
from pathlib import Path

from runner import catalog, parts
from runner.recipe.recipe import Recipe
from runner.run import this_machine
from runner.run.run_folder import folder
from runner.run.this_machine import LocalRun
from runner.tools.problem import Stop

SMALL = "small"  # the packaged model of `recipe rehearse --model`
DEVICES = (
    "/dev/nvidiactl",
    "/dev/dxg",
    "/dev/kfd",
)  # a GPU's driver on Linux: NVIDIA's, that of WSL, AMD's
LONGEST = 24 * 3600  # seconds of training on a processor that are worth proposing


def training_verb(recipe: Recipe) -> str:
    """The command that begins the real training, on the machines that the recipe names, if they can
    be reached."""
    if "openshift" in recipe.settings and _logged_in():
        return "submit"
    if "nodes" in recipe.settings:
        return "render"
    return "run"


def _logged_in() -> bool:
    """Whether this user has a login to a cluster, which may have expired."""
    if not parts.has("openshift"):
        return False
    from runner.parts.openshift import login

    return login.logged_in()


def before_training(recipe: Recipe) -> str:
    """The command that comes before anything was trained. Training a packaged model takes minutes
    on any machine, so it needs no rehearsal."""
    if catalog.packaged_model(recipe.settings["model"].get("base", "")):
        return "run"
    return "rehearse"


def after_rehearsal(recipe: Recipe, path: str, model: str | None) -> tuple[str, ...]:
    """The next command and its words. model: the real model that was rehearsed, None for a twin."""
    if model is None and can_train_small(recipe):
        return ("rehearse", path, "--model", SMALL)
    verb = training_verb(recipe)
    if has_gpu(recipe) or verb != "run" or trains_in_a_day(recipe):
        return ("run" if has_gpu(recipe) else verb, path)
    # Neither a GPU nor a cluster, and too much for this processor: a plan names the GPU that the
    # recipe needs.
    if model:
        return ("chat", path, "--page")
    return ("plan", path)


def can_train_small(recipe: Recipe) -> bool:
    """Whether the recipe has one base model that the packaged small one can replace, and that one
    is installed."""
    packaged = catalog.packaged_model(SMALL)
    if packaged is None or find_spec(packaged.module) is None:
        return False
    has_base = recipe.settings["model"].knows("base")
    return has_base and not recipe.stage_recipes and recipe.model.base != SMALL


def has_gpu(recipe: Recipe) -> bool:
    """Whether this machine has a GPU that the recipe may use. PyTorch, which takes seconds to
    import, decides only where a driver is."""
    return any(Path(device).exists() for device in DEVICES) and bool(
        this_machine.gpus_here(recipe)[0]
    )


def run_here(recipe: Recipe) -> LocalRun:
    """The recipe on this machine's GPUs, or on its processor if it has none."""
    home = folder(recipe.name, "run")
    if has_gpu(recipe):
        return this_machine.local_run(recipe, home)
    return this_machine.processor_run(recipe, home)


def trains_in_a_day(recipe: Recipe) -> bool:
    """Whether this machine's processor can train the recipe in a day, as far as that is known."""
    try:
        predictions = run_here(recipe).predictions.values()
    except Stop:
        return False
    seconds = [prediction.seconds for prediction in predictions if prediction.seconds is not None]
    fits = not any(prediction.too_large for prediction in predictions)
    return fits and bool(seconds) and sum(seconds) < LONGEST
