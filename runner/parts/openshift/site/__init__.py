"""The site: what a namespace needs before the first job of its recipes, from the templates beside this file; and how
files beside a recipe get to its pods, for people who send manifests without `recipe submit`.

Every object names its own namespace, and the kustomization sets none: the right to pull another namespace's image is
given there. It leaves claims out, because some may exist with another size or mode, which a cluster refuses to change.
"""

import re
import shlex
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import groupby
from pathlib import Path, PurePosixPath
from string import Template

from runner.catalog import hardware
from runner.parts.jobs import batch, kubernetes, podspec, trainjob
from runner.parts.jobs.kubernetes import CLAIMS_FILE, IMAGE_REGISTRY, Manifest, image
from runner.parts.openshift import driver_job
from runner.plan import Plan, Stage
from runner.recipe.recipe import Recipe
from runner.scenarios.shared.common import data_file
from runner.tools.files import Artifact
from runner.tools.names import listed
from runner.tools.problem import Stop
from runner.tools.text import yaml_text

TEMPLATES = Path(__file__).parent
# Who pods are where a recipe says nothing else, TensorBoard's among them.
ACCOUNT = "recipe-runner"
# What a claim with results is asked for at least where no recipe says a size: later recipes keep theirs there too.
RESULTS_GIB = 100
COMMENT_COLUMN = 48
NEWER_QUEUES_SINCE = (0, 15)
# What is written beside jobs: instructions for files, and the pod that opens their claims, which stays for this many
# seconds.
README, POD = "FILES.md", "files.yaml"
PART, OPEN_SECONDS = "files", 4 * 3600
# What a site's kustomization may take, in this order, and what each file is.
FILES = {
    "namespace.yaml": "the project; delete this line where someone else has made it for you",
    "queue.yaml": "the line in which jobs wait for GPUs; without Kueue delete this line, and `queue` in the recipes",
    "access.yaml": "who pods are, and what people may do",
    "build.yaml": "the image, built in the cluster",
    "pull.yaml": "the right to fetch the image that another namespace has built; somebody with rights there applies it",
    "tensorboard.yaml": "curves of all runs, and who may reach them",
    "monitoring.yaml": "what the cluster's Prometheus reads of training, and its way there",
}
# Of a TensorBoard whose claim is for one machine at a time: it would keep the claim from a job on another machine.
STOPPED = "0 # the claim is for one machine at a time: write 1 only while no job runs"
MANAGED = (
    "    # Lets Kueue queue its jobs. OpenShift AI then refuses jobs without a queue: every recipe here must name one.\n"
    '    kueue.openshift.io/managed: "true"\n'
)


def render(plans: Sequence[Plan]) -> list[Artifact]:
    """The site of the one namespace that the plans name; of several, a folder each and a kustomization that takes all.

    Raises Stop if two recipes name the same image by two tags.
    """
    spaces = _by_namespace(plans)
    if len(spaces) == 1:
        return _site(plans, *spaces.popitem())
    files = [
        Artifact(f"{space}/{file.path}", file.text) for space in spaces for file in _site(plans, space, spaces[space])
    ]
    header = ["# The sites of several namespaces, written by `recipe site`; each folder says more.", "#"]
    header += [f"#   {step}" for step in steps(plans, ".")]
    takes = _resources({space: f"for {_recipes(own)}" for space, own in spaces.items()})
    top = "apiVersion: kustomize.config.k8s.io/v1beta1\nkind: Kustomization\nresources:\n"
    return [*files, Artifact("kustomization.yaml", "\n".join(header) + f"\n{top}{takes}\n")]


def _by_namespace(plans: Iterable[Plan]) -> dict[str, list[Plan]]:
    ordered = sorted(plans, key=_namespace)
    return {space: list(own) for space, own in groupby(ordered, key=_namespace)}


def _namespace(plan: Plan) -> str:
    return str(plan.site["namespace"])


def steps(plans: Sequence[Plan], folder: str) -> list[str]:
    """What to do with a site that is in `folder`, a command a line; the last ones from the root of a checkout."""
    spaces = _by_namespace(plans)
    said = [(f"oc apply -k {folder}", "applies these files; repeat it after every change")]
    for space, own in spaces.items():
        names = [claim["name"] for plan in own for claim in plan.site["claims"]]
        if len(set(names)) < len(names):
            # For one recipe `submit` makes it, once it has seen that the cluster's storage will do.
            home = folder if len(spaces) == 1 else f"{folder}/{space}".removeprefix("./")
            file = f"{home}/{CLAIMS_FILE}".removeprefix("./")
            said.append((f"oc create -f {file}", "creates storage that several recipes share; read its first lines"))
    for space, own in spaces.items():
        for name in _built(space, own):
            said.append((kubernetes.build_command(name, space), "builds the image, from the root of a checkout"))
    width = max(len(command) for command, _ in said if "start-build" not in command)  # that one is long
    return [f"{command:<{width}}   # {what}" for command, what in said]


def _site(plans: Sequence[Plan], space: str, own: list[Plan]) -> list[Artifact]:
    """plans: of all namespaces, because others may start from the image that is built here; own: those of this one."""
    queues = list(dict.fromkeys(plan.site["queue"] for plan in own if plan.site.get("queue")))
    accounts = dict.fromkeys([ACCOUNT, *(plan.site.get("service_account") or ACCOUNT for plan in own)])
    # That one is in every namespace, and not ours to change.
    accounts.pop("default", None)
    owners = dict.fromkeys(made[0] for made in map(_reference, own) if made)
    parts = {
        "namespace.yaml": [_filled("namespace", namespace=space, managed=MANAGED if queues else "")],
        "queue.yaml": [_filled("queue", namespace=space, queue=queue, api=_kueue(own)) for queue in queues],
        "access.yaml": [
            *(_filled("account", namespace=space, account=account) for account in accounts),
            _filled("access", namespace=space),
            _filled("driver", namespace=space, account=driver_job.ACCOUNT),
        ],
        "build.yaml": [
            _filled(
                "build",
                namespace=space,
                name=name,
                tag=f"{name}:{tag}",
                embed=_embedded(plans, space, name),
                command=kubernetes.build_command(name, space),
                driver=str(hardware.DRIVER),
            )
            for name, tag in _built(space, own).items()
        ],
        "pull.yaml": [
            _filled(
                "pull",
                namespace=space,
                owner=owner,
                binding=f"{space}-fetches-images",
                accounts=f"system:serviceaccounts:{space}",
            )
            for owner in owners
            if owner != space
        ],
        "tensorboard.yaml": _boards(space, own),
        "monitoring.yaml": _monitoring(space, own),
        CLAIMS_FILE: [_claims(space, own)],
    }
    files = [Artifact(name, "---\n".join(texts)) for name, texts in parts.items() if texts]
    takes = _resources({file.path: FILES[file.path] for file in files if file.path in FILES})
    header = "\n".join(f"#   {step}" for step in steps(own, "."))
    listing = Template(_template("kustomization")).substitute(
        namespace=space, recipes=_recipes(own), steps=header, resources=takes
    )
    return [*files, Artifact("kustomization.yaml", listing)]


def _reference(plan: Plan) -> tuple[str, str, str] | None:
    """Namespace, name and tag of the recipe's image where it is in the cluster's own registry; None elsewhere."""
    whole = image(plan)
    # A name alone is one of the namespace's own image streams.
    whole = whole if "/" in whole else f"{IMAGE_REGISTRY}/{_namespace(plan)}/{whole}"
    parts = re.fullmatch(rf"{re.escape(IMAGE_REGISTRY)}/([^/]+)/([^/:@]+)(?::([^@]+))?(?:@.+)?", whole)
    return (parts[1], parts[2], parts[3] or "latest") if parts else None


def _built(space: str, own: Iterable[Plan]) -> dict[str, str]:
    """Tags by name of the images that are built in a namespace: those of its own that its recipes start from."""
    tags: dict[str, str] = {}
    for plan in own:
        owner, name, tag = _reference(plan) or ("", "", "")
        if owner == space and tags.setdefault(name, tag) != tag:
            raise Stop(
                f"The recipes of `{space}` name the image `{name}` by two tags, `{tags[name]}` and `{tag}`.",
                "One build gives one tag: name the same one in `openshift.image`, or write two sites.",
            )
    return tags


def _embedded(plans: Iterable[Plan], space: str, name: str) -> str:
    """The recipes, of whatever namespace, whose data is in the image that is built here."""
    return " ".join(
        plan.name
        for plan in plans
        if plan.site["data_from"] == "image" and (_reference(plan) or ())[:2] == (space, name)
    )


def _boards(space: str, own: Iterable[Plan]) -> list[str]:
    """A TensorBoard for each claim with results."""
    own = list(own)
    boards: dict[str, str] = {}
    for plan in own:
        if claim := plan.claim_of(plan.place.run_dir):
            name, mount = claim["name"], claim["mount"]
            board = _filled(
                "tensorboard",
                namespace=space,
                claim=name,
                board=f"tensorboard-{name}",
                account=ACCOUNT,
                image=image(plan),
                mount=mount,
                logdir=f"--logdir={mount}",
                replicas="1" if kubernetes.claim_mode(_sharing(own, name)) == kubernetes.SHARED else STOPPED,
            )
            boards.setdefault(name, board)
    return [*boards.values(), *([_filled("closed", namespace=space)] if boards else [])]


def _kueue(own: Iterable[Plan]) -> str:
    """The API version of queues on the cluster: Kueue 0.15 brought the newer one, and 0.20 dropped the older one.
    Without a stated version the recipes' OpenShift AI decides: 3.6 starts TrainJobs in a way that only newer ones
    know."""
    sites = [plan.site for plan in own]
    known = [kubernetes.numbers(site["kueue"]) >= NEWER_QUEUES_SINCE for site in sites if site.get("kueue")]
    newer = all(known) if known else all(map(kubernetes.patched, sites))
    return f"kueue.x-k8s.io/{'v1beta2' if newer else 'v1beta1'}"


def _monitoring(space: str, own: Sequence[Plan]) -> list[str]:
    """What reads the metrics, and the way through the network policies that OpenShift AI puts around each TrainJob. If
    it has none yet, a policy of ours would be the first."""
    ports = dict.fromkeys(sorted(plan.site["metrics_port"] for plan in own))
    lines = "\n".join(f"        - protocol: TCP\n          port: {port}" for port in ports)
    walled = any(kubernetes.numbers(plan.site["version"]) >= trainjob.WALLED_SINCE for plan in own)
    policies = [_filled("scraping", namespace=space, ports=lines)] if walled else []
    return [_filled("monitoring", namespace=space), *policies]


def _claims(space: str, own: list[Plan]) -> str:
    """A claim of each name, in one text: as large as a recipe says, else with room for all recipes that say nothing."""
    texts = []
    for name in dict.fromkeys(claim["name"] for plan in own for claim in plan.site["claims"]):
        plans = _sharing(own, name)
        sharing = [(plan, claim) for plan in plans for claim in plan.site["claims"] if claim["name"] == name]
        machines = kubernetes.most_machines(plans)
        stated = [claim["size_gib"] for _, claim in sharing if claim.get("size_gib")]
        guessed = [plan.claim_gib(name) for plan, claim in sharing if not claim.get("size_gib")]
        holds_results = any(plan.claim_of(plan.place.run_dir) == claim for plan, claim in sharing)
        floor = RESULTS_GIB if holds_results and not stated else 0
        kinds = [claim["storage_class"] for _, claim in sharing if claim.get("storage_class")]
        texts.append(
            _filled(
                "claim",
                namespace=space,
                claim=name,
                storage=f"  storageClassName: {_word(kinds[0])}\n" if kinds else "",
                mode=kubernetes.claim_mode(plans),
                who=f"{machines} machines at once; its storage must allow it"
                if machines > 1
                else "one machine at a time",
                size=f"{max(*stated, sum(guessed), floor)}Gi",
                why=("room for results of " if holds_results else "for ") + _recipes(plans),
            )
        )
    return _filled("claims", claims="---\n".join(texts).rstrip())


def _sharing(own: Iterable[Plan], name: str) -> list[Plan]:
    """The recipes of a namespace that have a claim."""
    return [plan for plan in own if any(claim["name"] == name for claim in plan.site["claims"])]


def _recipes(plans: Iterable[Plan]) -> str:
    return listed(plan.name for plan in plans)


def _resources(files: dict[str, str]) -> str:
    return _aligned("\n".join(f"  - {_word(name)} # {what}" for name, what in files.items()))


def _template(name: str) -> str:
    return (TEMPLATES / f"{name}.yaml").read_text(encoding="utf-8")


def _filled(name: str, /, **words: str) -> str:
    """A template with its blanks filled in, as YAML reads them; some are comments or whole lines."""
    free = ("claims", "command", "driver", "managed", "ports", "replicas", "storage", "who", "why")
    said = {key: word if key in free else _word(word) for key, word in words.items()}
    return _aligned(Template(_template(name)).substitute(said))


def _word(text: str) -> str:
    """A text as YAML, in quotes if it would be read as a number or as nothing."""
    return yaml_text([text])[2:].rstrip("\n")


def _aligned(text: str) -> str:
    """The comments behind what they are about, in one column if there is room."""
    return re.sub(r"(?m)^( *[^#\s].*?) +(# .*)$", lambda line: f"{line[1]:<{COMMENT_COLUMN - 1}} {line[2]}", text)


def beside_jobs(recipe: Recipe, plan: Plan) -> list[Artifact]:
    """The instructions for files beside a recipe, and the pod that they need, if any; nothing if there are no such
    files."""
    # Where pods read each file or folder, by its name from the recipe's folder.
    files = {name: data_file(recipe, plan.place, name) or "" for _, name in recipe.local_files()}
    if not files:
        return []
    comes, space, name = plan.site["data_from"], plan.site["namespace"], recipe.file.name
    words = {"name": plan.name, "recipe": name, "namespace": space}
    if comes == "claim":
        manifest = opening_pod(plan, plan.stages[0])
        pod = manifest["metadata"]["name"]
        homes = {file: str(PurePosixPath(there).parent) for file, there in files.items()}
        typed = [
            f"oc exec {pod} --namespace {space} -- mkdir -p {shlex.quote(home)}"
            for home in dict.fromkeys(homes.values())
        ]
        typed += [f"oc cp {shlex.quote(file)} {shlex.quote(f'{space}/{pod}:{home}/')}" for file, home in homes.items()]
        words |= {"pod": pod, "claims": str(PurePosixPath(plan.stages[0].folder, CLAIMS_FILE))}
        return [_instructions(comes, typed, words), Artifact(POD, yaml_text(manifest))]
    # Where each belongs in a checkout, whose `recipes/` pods have as their folder of files.
    top = plan.place.files_dir or "/"
    below = {file: f"recipes/{PurePosixPath(there).relative_to(top)}" for file, there in files.items()}
    homes = {name: "recipes"} | {file: str(PurePosixPath(there).parent) for file, there in below.items()}
    typed = [f'mkdir -p "$CHECKOUT"/{shlex.quote(home)}' for home in dict.fromkeys(homes.values())]
    typed += [f'cp -R {shlex.quote(file)} "$CHECKOUT"/{shlex.quote(home)}/' for file, home in homes.items()]
    if comes == "git":
        return [_instructions(comes, typed, words | {"added": shlex.join([f"recipes/{name}", *below.values()])})]
    last = "\n".join(f"    {step}" for step in steps([plan], "site") if "claims" not in step)
    if above := [file for file in files if file.startswith("..")]:
        last += f"\n\nAn image holds what is below `recipes/` alone: move {listed(above)} below the folder of the recipe first."
    return [_instructions(comes, typed, words | {"recipe": shlex.quote(name), "steps": last})]


def _instructions(comes: str, typed: Iterable[str], words: Mapping[str, str]) -> Artifact:
    """What to type for files that get to pods by that value of `openshift.data_from`. typed: the commands that copy
    them."""
    text = (TEMPLATES / f"files-{comes}.md").read_text(encoding="utf-8")
    copies = "\n".join(f"    {command}" for command in typed)
    return Artifact(README, Template(text).substitute(words, copies=copies))


def opening_pod(plan: Plan, stage: Stage) -> Manifest:
    """A pod that opens the claims and waits. Its image needs `tar`, as `oc cp` does."""
    # It runs nothing of the recipe's code.
    alone = replace(plan.only(stage), code_from_git=None)
    container = batch.small(alone, PART, ["sleep", str(OPEN_SECONDS)], podspec.claim_mounts(plan))
    return batch.alone(alone, stage, PART, container, podspec.claim_volumes(plan), seconds=OPEN_SECONDS)
