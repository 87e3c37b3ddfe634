"""Transfer: data files to a claim, and a run's results from it to this machine, through a
short-lived pod."""

import base64
import json
import math
import os
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial as bound
from pathlib import Path, PurePosixPath
from tempfile import TemporaryDirectory
from typing import Any

from runner.catalog.models import BESIDE, CONFIG
from runner.data import object_store
from runner.data.report import REPORT_FILE
from runner.parts.jobs import kubernetes, mirror, podspec
from runner.parts.openshift.client import Cluster, connect, pieces
from runner.parts.openshift.errors import TryAgain, is_recent, pause
from runner.parts.openshift.file_server import CHUNK, Piece, partial
from runner.parts.openshift.helper_pod import Share, open_claim
from runner.plan import Place, Plan, Stage
from runner.recipe.recipe import Recipe
from runner.run.run_folder import RunFolder, RunRecord, StageFolder, StageRecord
from runner.scenarios.shared import common
from runner.tools.files import content_hash, read_record, sha256, write_json
from runner.tools.problem import Stop, Tell, listed, plural
from runner.tools.run_files import (
    ADAPTER,
    BEST_IMAGES,
    BEST_MODEL,
    DEMO,
    DEMO_OUTPUTS,
    PAGE,
    REPORT,
    RUN,
    STAGE,
)

MOST = 8 * 2**20  # bytes of one request: small files travel together, large ones in parts
# Large, and useless outside the cluster.
LEFT_THERE = ("checkpoints/", "scratch/", "data/", f"{kubernetes.SENT_FILES}/")
REPORTS = (f"/{REPORT}", f"/{REPORT_FILE}")  # on the rows, fetched without the rows
# The main results of a stage: if only some of them come, the others belong to another run.
RESULTS = (BEST_MODEL, ADAPTER, BEST_IMAGES, DEMO_OUTPUTS)


@dataclass(frozen=True)
class Files:
    """Files that a recipe's pods need from this machine."""

    folder: str = ""  # for them on the claim
    paths: Mapping[str, Path] = field(default_factory=dict)  # here, by the path below `folder`
    digests: Mapping[str, str] = field(default_factory=dict)  # their SHA-256, by the same path
    sent: str = ""  # the key of files that another machine sent
    # Of the data at `s3://` addresses that this machine can read, by address.
    versions: Mapping[str, str] = field(default_factory=dict)

    @property
    def key(self) -> str:
        """A hash of all files and, behind a plus sign, one of the versions; empty if there are
        none."""
        if self.digests:
            files_key = content_hash(dict(self.digests), 32)
        else:
            files_key = self.sent
        if self.versions:
            return f"{files_key}+{content_hash(dict(self.versions), 32)}"
        return files_key


def files(recipe: Recipe, place: Place) -> Files:
    """This machine's files that pods read from a claim, none if pods get them otherwise. Raises
    Stop if unreadable."""
    site = recipe.openshift
    versions = {}
    for setting, address in recipe.addresses():
        if setting[-1] == "path":
            version = object_store.version(address)
            if version:
                versions[address] = version
    paths: dict[str, Path] = {}
    if site is None or site.data_from != "claim" or place.files_dir is None:
        return Files(versions=versions)
    for _, local in recipe.local_files():
        local_path = recipe.folder / local
        pod_path = PurePosixPath(common.data_file(recipe, place, local) or "")
        name = str(pod_path.relative_to(place.files_dir))
        if local_path.is_file():
            paths[name] = local_path
            continue
        inner = sorted(path for path in local_path.rglob("*") if path.is_file())
        if not inner:
            raise Stop(
                f"`{local_path}` has no files to send.",
                "Check the path; it is relative to the recipe's folder.",
            )
        for path in inner:
            paths[f"{name}/{path.relative_to(local_path).as_posix()}"] = path
    try:
        digests = {name: sha256(path) for name, path in paths.items()}
        return Files(place.files_dir, paths, digests, versions=versions)
    except OSError as error:
        raise Stop(f"`{error.filename}` cannot be read: {error.strerror}.") from None


def upload(cluster: Cluster, plan: Plan, stage: Stage, sent: Files, tell: Tell) -> None:
    """Sends the files that the claim lacks, and deletes those that no longer exist here. After a
    failure, the next upload continues. plan: of the stage alone. Raises Stop if the claim is too
    small, or no helper starts."""
    with open_claim(cluster, plan, stage, tell, sent.folder, writes=True) as share:
        remaining = _remaining_bytes(share, sent)
        total = sum(remaining.values())
        last_report = grown = time.monotonic()
        while remaining:
            for pieces, body in _request_bodies(sent, remaining):
                head = json.dumps([piece._asdict() for piece in pieces]).encode()
                try:
                    share.ask("pieces", head + b"\n" + body, content="application/octet-stream")
                except TryAgain:
                    pause()
                    break
                for piece in pieces:
                    remaining[piece.path] -= piece.length
                if time.monotonic() - last_report > 5.0:  # seconds
                    last_report = time.monotonic()
                    sent_bytes = total - sum(remaining.values())
                    tell(f"  sent {_mib(sent_bytes)} of {_mib(total)} MiB")
            before = sum(remaining.values())
            remaining = _remaining_bytes(share, sent)
            if sum(remaining.values()) < before:
                grown = time.monotonic()
            if remaining and not is_recent(grown):
                raise Stop(
                    "The data files were uploaded only in part.",
                    "Submit again. The upload continues where it stopped.",
                )
        share.get("only", list(sent.paths))
    outcome = "all there already"
    if total:
        outcome = f"{_mib(total)} MiB sent"
    count = len(sent.paths)
    tell(f"{count:,} {plural('data file', count)} in `{sent.folder}`: {outcome}")


def _mib(size: int) -> str:
    return f"{size / 2**20:,.1f}"


def _remaining_bytes(share: Share, sent: Files) -> dict[str, int]:
    """Bytes that are still to be sent, by file. Raises Stop if the claim has no room for them."""
    sizes = {name: path.stat().st_size for name, path in sent.paths.items()}
    expected = {name: (size, sent.digests[name]) for name, size in sizes.items()}
    answer = share.signed("state", expected)
    received = answer["there"]
    remaining = {name: size - received[name] for name, size in sizes.items() if received[name] >= 0}
    needed = sum(remaining.values())
    if needed > answer["free"]:
        raise Stop(
            f"The claim has {_mib(answer['free'])} MiB free, but the data files need {_mib(needed)} MiB.",
            "Delete something there, or name a larger claim under `openshift.claims`.",
        )
    return remaining


def _request_bodies(
    sent: Files, remaining: Mapping[str, int]
) -> Iterator[tuple[list[Piece], bytes]]:
    """The remaining parts, in requests of at most MOST bytes. An empty file is a part of 0
    bytes."""
    pieces: list[Piece] = []
    body = bytearray()
    for name, missing in remaining.items():
        size = sent.paths[name].stat().st_size
        with sent.paths[name].open("rb") as data:
            for offset in range(size - missing, size, MOST) or (0,):
                data.seek(offset)
                part = data.read(MOST)
                if len(body) + len(part) > MOST:
                    yield pieces, bytes(body)
                    pieces = []
                    body = bytearray()
                pieces.append(Piece(name, sent.digests[name], offset, len(part)))
                body += part
    if pieces:
        yield pieces, bytes(body)


def fetch(
    cluster: Cluster, plan: Plan, stage: Stage, target: Path, tell: Tell, everything: bool = False
) -> tuple[int, str]:
    """Downloads a stage's results below the run folder `target`; skips files with the same hash,
    continues partial ones. Returns the number of files, and the run's id on the claim, or empty.
    Raises Stop if there are no results, or the helper does not start."""
    with open_claim(cluster, plan.only(stage), stage, tell, plan.place.run_dir) as share:
        claim_files = json.loads(share.get("list"))
        number = ""
        if any(file["path"] == RUN for file in claim_files):
            number = RunRecord.of(json.loads(share.get(f"file/{RUN}"))).id
        home = ""
        if stage.folder:
            home = f"{stage.folder}/"
        excluded = () if everything else LEFT_THERE
        files = []
        for file in claim_files:
            path = file["path"]
            # The run's own record is different on each machine.
            if path == RUN or not path.startswith(home):
                continue
            if not path.removeprefix(home).startswith(excluded):
                files.append(file)
        coming = {target / file["path"] for file in files}
        _forget_older(bound(share.get, f"file/{home}{STAGE}"), coming, target / stage.folder)
        if not files:
            raise Stop(
                f"`{plan.place_of(stage).run_dir}` has no results yet.",
                "`recipe status` shows the progress of the job.",
            )
        for file in claim_files:
            is_report = file["path"].startswith("data/") and file["path"].endswith(REPORTS)
            if is_report and file not in files:
                files.append(file)
        return sum(_fetch_file(share, file, target, tell) for file in files), number


def fetch_mirrored(
    plan: Plan, stage: Stage, target: Path, everything: bool = False
) -> tuple[int, str]:
    """The same from the recipe's mirror, with keys from the environment, else from the connection's
    Secret. Raises Stop if the mirror has no results, or cannot be read."""
    if "AWS_ACCESS_KEY_ID" in os.environ:
        secret = {}
    else:
        secret = keys_of(connect(), plan) or {}
    keys = {podspec.CONNECTION[key]: value for key, value in secret.items()}
    came = 0
    number = ""
    for mirrored_stage in plan.stages:
        is_wanted = mirrored_stage == stage
        if not is_wanted and not StageFolder(plan, mirrored_stage).prepares:
            continue
        home = target / mirrored_stage.folder
        address = mirror.address_of(plan, mirrored_stage)
        with object_store.asking(address, keys) as store:
            manifest = mirror.newest(store, address)
            if manifest is None:
                if is_wanted:
                    raise Stop(
                        f"The mirror has no results at `{address}` yet.",
                        "`recipe status RECIPE` shows what the job does. A training sends its first files with its first checkpoint.",
                    )
                continue
            chosen = {
                name: _mirrored(name, is_wanted, everything, target, home)
                for name in manifest.files
            }
            if is_wanted and RUN in manifest.files:
                record = json.loads(mirror.read(store, address, manifest, RUN))
                number = RunRecord.of(record).id
            read_stage_record = bound(mirror.read, store, address, manifest, STAGE)
            _forget_older(read_stage_record, set(chosen.values()), home)
            came += mirror.copy(store, address, manifest, chosen.get, target)
    return came, number


def _mirrored(name: str, wanted: bool, everything: bool, target: Path, home: Path) -> Path | None:
    """Where a file of the mirror belongs here; None if it is not fetched."""
    if name.startswith(f"{mirror.DATA}/"):
        rows = target / "data" / name.removeprefix(f"{mirror.DATA}/")
        if everything or f"/{name}".endswith(REPORTS):
            return rows
        return None
    if name == RUN or not wanted:
        return None  # the run's own record is different on each machine
    if name.startswith(LEFT_THERE) and not everything:
        return None
    if name == PAGE:
        return target / name
    return home / name


def keys_of(cluster: Cluster, plan: Plan) -> dict[str, str] | None:
    """A data connection's keys; None if its Secret may not be read. Raises Stop if that is missing
    or lacks a key."""
    name = plan.site.connection
    assert name  # a rule requires one wherever the recipe has an address on a server
    space = plan.site.namespace
    secret = cluster.get("Secret", space, name, forgiving=True)
    if secret is None:
        raise Stop(
            f"The namespace `{space}` has no Secret `{name}`, which `openshift.connection` names.",
            f"In the OpenShift AI console, create a connection of the type S3 with this resource name. Or: `oc create secret generic {name} --namespace {space} --from-file=AWS_ACCESS_KEY_ID=FILE --from-file=AWS_SECRET_ACCESS_KEY=FILE --from-literal=AWS_S3_ENDPOINT=URL`.",
        )
    if not secret:
        return None
    keys = {}
    for key, text in (secret.get("data") or {}).items():
        keys[key] = base64.b64decode(text).decode()
    lacking = [key for key in podspec.REQUIRED if not keys.get(key)]
    if lacking:
        raise Stop(
            f"The Secret `{name}` in `{space}`, which `openshift.connection` names, lacks {listed(lacking)}.",
            "Edit the connection in the OpenShift AI console; it must be of the type S3.",
        )
    return {key: keys[key] for key in podspec.CONNECTION if keys.get(key)}


def _forget_older(read: Callable[[], bytes], coming: Collection[Path | None], home: Path) -> None:
    """Deletes another run's results in a stage's folder `home` that the new one lacks: a mix of
    both would load as a model. Those of the same run stay, and older ones until newer ones come.
    coming: the paths of all files that come; read: gives their record."""
    outdated = []
    newer = False
    for result in (home / name for name in RESULTS):
        for path in (result, *result.rglob("[!.]*")):
            if path.is_file() and path not in coming:
                outdated.append(path)
        if any(path.is_relative_to(result) for path in coming if path):
            newer = True
    record_file = home / STAGE
    if outdated and newer and record_file in coming:
        present_record = b""
        if record_file.is_file():
            present_record = record_file.read_bytes()
        if present_record != read():
            for path in outdated:
                path.unlink()


def _fetch_file(share: Share, file: dict[str, Any], target: Path, tell: Tell) -> int:
    """Fetches one file; 1 if it was transferred, 0 if it was already here. Raises Stop if its hash
    is wrong."""
    path = target / file["path"]
    if not path.resolve().is_relative_to(target.resolve()):
        raise Stop(f"The cluster named a file outside the folder: {file['path']}")
    digest = share.signed(f"hash/{file['path']}")["digest"]
    if path.is_file() and path.stat().st_size == file["size"] and sha256(path) == digest:
        return 0
    path.parent.mkdir(parents=True, exist_ok=True)
    half = partial(path, digest)
    half.touch()
    before = -1
    grown = 0.0
    while (have := half.stat().st_size) < file["size"]:
        if have > before:
            before = have
            grown = time.monotonic()
        elif is_recent(grown):
            pause()
        else:
            raise Stop(
                f"`{file['path']}` was downloaded only in part.",
                "Fetch again. The download continues where it stopped.",
            )
        _continue(share, file["path"], half, have)
    if sha256(half) != digest:
        half.unlink()
        raise Stop(
            f"`{file['path']}` was not downloaded completely.",
            "Fetch again. If training is still writing, wait for it.",
        )
    half.replace(path)
    size = file["size"]
    if size >= 2**20:
        size_text = f"{size / 2**20:.1f} MiB"
    else:
        size_text = f"{math.ceil(size / 1024)} KiB"
    tell(f"{file['path']}  {size_text}")
    return 1


def _continue(share: Share, name: str, half: Path, have: int) -> None:
    """Appends what follows the first `have` bytes. After a broken connection or a busy cluster,
    what came stays."""
    headers = None
    if have:
        headers = {"Range": f"bytes={have}-"}
    with suppress(TryAgain):
        response = share.ask(f"file/{name}", headers=headers, stream=True)
        continues = have and response.status == 206
        with half.open("ab" if continues else "wb") as out:
            for chunk in pieces(share.cluster, response, CHUNK):
                out.write(chunk)


def record_results(folder: RunFolder, plan: Plan, stage: Stage, run_id: str, tell: Tell) -> bool:
    """Marks the run folder as fetched from the cluster, with the run's id there, and replaces
    folders of the cluster in files that name a model. Returns False if the stage's record is of an
    older version of the recipe; True also if there is no record yet. run_id: of the run on the
    claim, which its evaluations name; empty if it has none, and the folder keeps its own."""
    home = folder.path / stage.folder
    record = StageRecord.read(home)
    # A claim keeps the old recipe's results until new ones replace them.
    is_older = bool(record) and record.keys.get("") != stage.keys[""]
    status = "running"
    if record and not is_older:
        status = record.status
    marks = {"recipe": plan.name, "origin": "cluster"}
    if run_id:
        marks["id"] = run_id
    folder.mark(status, **marks)
    if is_older:
        tell(
            "The results on the claim belong to an older version of the recipe; the current version has none yet. `recipe status` shows the progress of its job. Fetch again when that has finished."
        )
    _replace_cluster_folders(folder, plan, stage)
    return not is_older


def _replace_cluster_folders(folder: RunFolder, plan: Plan, stage: Stage) -> None:
    """In files that name a model, the folder to which the stage has downloaded its base becomes
    that base and its revision, and a folder of the run becomes the one here. Other paths stay, for
    example that of a model in the image."""
    home = folder.path / stage.folder
    place = plan.place
    for file, setting in (
        (DEMO, "base_model"),
        (f"{ADAPTER}/adapter_config.json", "base_model_name_or_path"),
    ):
        settings = read_record(home / file)
        cluster_folder = settings.get(setting)
        if not isinstance(cluster_folder, str):
            continue
        # A base may lie in the run's folder, too.
        downloaded = stage.model if cluster_folder == place.model_dir else None
        if downloaded:
            base = {setting: downloaded["base"], "revision": downloaded["revision"]}
            write_json(home / file, settings | base)
        elif cluster_folder.startswith(f"{place.run_dir}/"):
            below = cluster_folder.removeprefix(f"{place.run_dir}/")
            write_json(home / file, settings | {setting: str(folder.path / below)})


@contextmanager
def copied(recipe: Recipe, folder: str, tell: Tell) -> Iterator[Path]:
    """The small files of the model in `folder` on one of the recipe's claims, in a temporary folder
    here. The recipe need not be valid yet, because its model is unknown before. Raises Stop without
    such a claim or folder."""
    if not recipe.on_claim(folder):
        raise Stop(
            f"`{folder}` is neither a folder of this machine nor on a claim of `{recipe.name}`.",
            "`openshift.claims` lists the claims with their `mount`.",
        )
    place = kubernetes.place(recipe)
    plan = common.plan(
        recipe, place, lambda place: [common.work(place, "model", {}, common.PREPARING)]
    )
    with TemporaryDirectory() as local_folder:
        with open_claim(
            connect(), plan.only(plan.stages[0]), plan.stages[0], tell, folder
        ) as share:
            claim_paths = {file["path"] for file in json.loads(share.get("list"))}
            for name in claim_paths & {CONFIG, *BESIDE}:
                (Path(local_folder) / name).write_bytes(share.get(f"file/{name}"))
        yield Path(local_folder)
