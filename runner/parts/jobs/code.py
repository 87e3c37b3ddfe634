"""Code by git: an init container clones one commit into a folder of the pod."""

from collections.abc import Mapping
from pathlib import Path

from runner.parts.jobs import kubernetes
from runner.parts.jobs.kubernetes import Folder, Manifest
from runner.plan import Plan

MOUNT = kubernetes.CODE_DIR
FOLDER = f"{MOUNT}/repository"
CONTAINER = "clone-code"
# The folder with the code, for the container that clones it; and home and caches of every container.
CLONED = kubernetes.folder("code", MOUNT, {"emptyDir": {}})
SCRATCH = kubernetes.folder("tmp", "/tmp", {"emptyDir": {}})

# Its arguments are the address, the commit and the folder. A restarted pod keeps the folder. Some servers send a commit
# only with its branch, so the second fetch takes everything.
SCRIPT = Path(__file__).with_name("clone.sh").read_text(encoding="utf-8")


def init_containers(plan: Plan, env: list[Manifest]) -> list[Manifest]:
    """The container that clones the plan's code before the pod's own starts; empty if the code is in the image. It has
    the pod's own image, so that no second one is downloaded."""
    if plan.code_from_git is None:
        return []
    # No more than the pod's own container, so the pod requests nothing in addition.
    share = {"cpu": "1", "memory": "1Gi"}
    resources = {"requests": share, "limits": share}
    command = ["/bin/sh", "-c", SCRIPT, CONTAINER, *_address(plan.code_from_git)]
    # Otherwise git waits for a user name and password.
    env = [*env, {"name": "GIT_TERMINAL_PROMPT", "value": "0"}]
    # Its last words are git's message, if it fails.
    own: Manifest = {"command": command, "env": env, "resources": resources, "words": kubernetes.LAST_WORDS}
    return [kubernetes.container(plan, CONTAINER, [CLONED, SCRATCH], **own)]


def folders(plan: Plan) -> list[Folder]:
    """The pod's own container can read the code, and cannot change it."""
    return [kubernetes.folder("code", MOUNT, {"emptyDir": {}}, readOnly=True)] if plan.code_from_git else []


def environment(plan: Plan) -> dict[str, str]:
    """Makes Python look in the cloned code before it looks in the image."""
    return {"PYTHONPATH": FOLDER} if plan.code_from_git else {}


def wrapped(plan: Plan, command: list[str]) -> list[str]:
    """A command that clones the code and then becomes the given one, for a job that takes no init container."""
    if plan.code_from_git is None:
        return command
    before = "# Never wait for a name and a password.\nexport GIT_TERMINAL_PROMPT=0\n"
    after = '# Leave address, commit and folder out,\nshift 3\n# go back,\ncd /\n# and become the training command.\nexec "$@"\n'
    return ["/bin/sh", "-c", f"{before}{SCRIPT}{after}", CONTAINER, *_address(plan.code_from_git), *command]


def _address(git: Mapping[str, str]) -> list[str]:
    return [git["url"], git["commit"], FOLDER]
