"""Code by git: an init container that clones one commit into a folder which only this pod has."""

from collections.abc import Mapping

from runner.parts.jobs import kubernetes
from runner.parts.jobs.kubernetes import Manifest
from runner.plan import Plan

MOUNT = kubernetes.CODE_DIR
FOLDER = f"{MOUNT}/repository"
CONTAINER = "clone-code"

# Its first argument is the address, its second the commit, its third the folder. A restarted pod finds the folder as it
# was left. Some servers hand out a commit only with the branch that it is on, so the second fetch takes everything.
SCRIPT = """\
# Stop at the first line that fails, and at a name that has no value.
set -eu
# Begin with an empty folder, also where the pod was started before.
rm -rf "$3"
# Make a repository in it,
git init --quiet "$3"
# go there,
cd "$3"
# and name the address that the code comes from.
git remote add origin "$1"
# Fetch this commit alone, or everything from a server that gives no single commits.
git fetch --quiet --depth 1 origin "$2" 2>/dev/null || git fetch --quiet origin
# Put the files of this commit into the folder.
git -c advice.detachedHead=false checkout --quiet --detach "$2"
# What the pod runs is exactly this commit, or the pod does not start.
test "$(git rev-parse HEAD)" = "$2"
# Say so in the log.
echo "cloned $1 at $2"
"""


def init_containers(plan: Plan, env: list[Manifest]) -> list[Manifest]:
    """The container that clones the plan's code before the pod's own starts; empty if the code is in the image. It has
    the image of the pod's own container, which needs git, so that no second image has to be brought to the cluster.
    """
    if plan.code_from_git is None:
        return []
    # What starts first needs no more than what follows, so the pod asks for nothing on top.
    resources = {"cpu": "1", "memory": "1Gi"}
    return [
        {
            "name": CONTAINER,
            **kubernetes.pulled(plan),
            "command": ["/bin/sh", "-c", SCRIPT, CONTAINER, *_address(plan.code_from_git)],
            # Without a terminal git would otherwise wait for a user's name and password without end.
            "env": [*env, {"name": "GIT_TERMINAL_PROMPT", "value": "0"}],
            "resources": {"requests": resources, "limits": resources},
            # What git says, if it cannot be done.
            "terminationMessagePolicy": "FallbackToLogsOnError",
            "securityContext": kubernetes.CLOSED | {"readOnlyRootFilesystem": True},
            "volumeMounts": [{"name": "code", "mountPath": MOUNT}, {"name": "tmp", "mountPath": "/tmp"}],
        }
    ]


def volumes(plan: Plan) -> list[Manifest]:
    return [{"name": "code", "emptyDir": {}}] if plan.code_from_git else []


def mounts(plan: Plan) -> list[Manifest]:
    """Where the pod's own container sees the code; it cannot change it."""
    return [{"name": "code", "mountPath": MOUNT, "readOnly": True}] if plan.code_from_git else []


def environment(plan: Plan) -> dict[str, str]:
    """Python looks there first, before what the image has installed."""
    return {"PYTHONPATH": FOLDER} if plan.code_from_git else {}


def wrapped(plan: Plan, command: list[str]) -> list[str]:
    """A command that clones the code and then becomes the given one, for a job that takes no init container."""
    if plan.code_from_git is None:
        return command
    before = "# Never wait for a name and a password.\nexport GIT_TERMINAL_PROMPT=0\n"
    after = '# Leave address, commit and folder out,\nshift 3\n# go back,\ncd /\n# and become the training command.\nexec "$@"\n'
    script = f"{before}{SCRIPT}{after}"
    return ["/bin/sh", "-c", script, CONTAINER, *_address(plan.code_from_git), *command]


def _address(git: Mapping[str, str]) -> list[str]:
    """The script's arguments."""
    return [git["url"], git["commit"], FOLDER]
