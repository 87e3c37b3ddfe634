"""Upload: the data files that lie beside a recipe, onto its claim, through a short-lived pod."""

import json
import time
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path, PurePosixPath

from runner.parts.openshift.client import Cluster
from runner.parts.openshift.errors import TryAgain, pause, recent
from runner.parts.openshift.file_server import Piece
from runner.parts.openshift.helper_pod import Share, Tell, helper
from runner.plan import Place, Plan, Stage
from runner.recipe.recipe import Recipe
from runner.scenarios.shared.common import data_file
from runner.tools.files import sha256
from runner.tools.names import content_hash
from runner.tools.problem import Stop

# Bytes of one request: small files travel together, large ones in parts.
MOST = 8 * 2**20
# Seconds between two lines about how far it is.
EVERY_SECONDS = 5.0


@dataclass(frozen=True)
class Files:
    """What a recipe's pods need of this machine. paths: each file's own here, by its path below `folder` there; digests: the
    SHA-256 of each, by the same; sent: the key of those that somebody has sent already, for whom has none of them here."""

    folder: str
    paths: Mapping[str, Path]
    digests: Mapping[str, str]
    sent: str = ""

    @property
    def key(self) -> str:
        """One hash for all; empty where there is nothing to send."""
        return content_hash(dict(self.digests), 32) if self.digests else self.sent


def files(recipe: Recipe, place: Place) -> Files | None:
    """The files of this machine that pods find on a claim, by the names that they know them by; None where they have them
    from elsewhere.

    Raises Stop where one is not there or cannot be read.
    """
    site = recipe.openshift
    if site is None or site.data_from != "claim" or place.files_dir is None:
        return None
    paths: dict[str, Path] = {}
    for _, local in recipe.local_files():
        here = recipe.folder / local
        name = str(PurePosixPath(data_file(recipe, place, local) or "").relative_to(place.files_dir))
        inner = [here] if here.is_file() else sorted(path for path in here.rglob("*") if path.is_file())
        if not inner:
            raise Stop(f"There is nothing in `{here}` that could be sent.", "Paths start from the recipe's own folder.")
        paths |= {(name if path == here else f"{name}/{path.relative_to(here).as_posix()}"): path for path in inner}
    try:
        return Files(place.files_dir, paths, {name: sha256(path) for name, path in paths.items()})
    except OSError as error:
        raise Stop(f"`{error.filename}` cannot be read: {error.strerror}.") from None


def upload(cluster: Cluster, plan: Plan, stage: Stage, sent: Files, tell: Tell) -> None:
    """Sends what the claim has not got, and takes away there what is here no more. What has come over stays, whatever
    breaks; sending again goes on behind it. plan: of the stage alone.

    Raises Stop where the claim is too small, or the helper does not start.
    """
    with helper(cluster, plan, stage, tell, sent.folder, writes=True) as share:
        left = _state(share, sent)
        total = sum(left.values())
        told = grown = time.monotonic()
        while left:
            for pieces, body in _bodies(sent, left):
                head = json.dumps([asdict(piece) for piece in pieces]).encode()
                try:
                    share.ask("pieces", head + b"\n" + body, content="application/octet-stream")
                except TryAgain:
                    pause()
                    break
                for piece in pieces:
                    left[piece.path] -= piece.length
                if time.monotonic() - told > EVERY_SECONDS:
                    told = time.monotonic()
                    tell(f"  sent {_mib(total - sum(left.values()))} of {_mib(total)} MiB")
            before, left = sum(left.values()), _state(share, sent)
            grown = time.monotonic() if sum(left.values()) < before else grown
            if left and not recent(grown):
                raise Stop("The data files came over in part only.", "Submit again; it goes on where it stopped.")
        share.get("only", list(sent.paths))
    count = f"{len(sent.paths):,} data file{'s' if len(sent.paths) > 1 else ''}"
    tell(f"{count} in `{sent.folder}`: " + (f"{_mib(total)} MiB sent" if total else "all there already"))


def _mib(size: int) -> str:
    return f"{size / 2**20:,.1f}"


def _state(share: Share, sent: Files) -> dict[str, int]:
    """Bytes that are still to be sent, by file. Raises Stop where the claim has no room for them."""
    sizes = {name: path.stat().st_size for name, path in sent.paths.items()}
    asked = {name: (size, sent.digests[name]) for name, size in sizes.items()}
    answer = share.signed("state", asked)
    there = answer["there"]
    left = {name: size - there[name] for name, size in sizes.items() if there[name] >= 0}
    if (needed := sum(left.values())) > answer["free"]:
        raise Stop(
            f"The claim has {_mib(answer['free'])} MiB free, and the data files need {_mib(needed)} MiB.",
            "Delete something there, or name a larger claim under `openshift.claims`.",
        )
    return left


def _bodies(sent: Files, left: Mapping[str, int]) -> Iterator[tuple[list[Piece], bytes]]:
    """What is left, in requests of at most MOST bytes. An empty file is a piece of no bytes."""
    pieces: list[Piece] = []
    body = bytearray()
    for name, missing in left.items():
        size = sent.paths[name].stat().st_size
        with sent.paths[name].open("rb") as data:
            data.seek(size - missing)
            while True:
                offset = data.tell()
                part = data.read(MOST - len(body))
                pieces.append(Piece(name, sent.digests[name], offset, len(part)))
                body += part
                if len(body) >= MOST:
                    yield pieces, bytes(body)
                    pieces, body = [], bytearray()
                if offset + len(part) >= size or not part:
                    break
    if pieces:
        yield pieces, bytes(body)
