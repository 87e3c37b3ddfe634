"""Hub: an export becomes a repository there, private unless somebody says otherwise, by the hub's own client."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from runner.parts.export import exporting
from runner.parts.export.exporting import Tell
from runner.parts.export.source import Source
from runner.parts.export.unproven import unproven
from runner.tools.files import Record, sha256
from runner.tools.problem import Stop
from runner.tools.run_files import EXPORTED, PUSHED

if TYPE_CHECKING:
    from huggingface_hub import HfApi

# What a repository may hold that was just made.
_FRESH = {".gitattributes", "README.md"}


@dataclass(frozen=True)
class Pushed(Record):
    """Where a model was pushed to, last of all. model: its hash, as of an Export; repository: its name on the hub; commit: there."""

    FILE = PUSHED
    model: str = ""
    format: str = ""
    repository: str = ""
    commit: str = ""


def push(source: Source, name: str, form: str, kind: str | None, public: bool, tell: Tell) -> str:
    """Sends an export to the hub, made anew where it is not there or not whole, and gives its address. public: whether a new
    repository can be read by everybody.

    The token is that of the environment (`HF_TOKEN`) or of the hub's login, and is kept nowhere.
    Raises Stop where there is none, or the hub refuses.
    """
    from huggingface_hub import HfApi, get_token

    if not get_token():
        raise Stop(
            "There is no token for the hub.",
            "Put one that may write into `HF_TOKEN`, or call `hf auth login`; the runner keeps it nowhere.",
        )
    api = HfApi()
    with _refusals(name):
        _require_room(api, name, public)
        folder = _whole(source, form, kind, tell)
        made = exporting.read(folder)
        address = api.create_repo(name, private=not public, exist_ok=True)
        commit = api.upload_folder(
            repo_id=address.repo_id,
            folder_path=folder,
            commit_message=f"{source.run.name}: what {made.stage} of run {made.run} has left, {made.format} {made.kind}".rstrip(),
            delete_patterns="*",
        )
        _require_arrived(api, address.repo_id, commit.oid, folder, made.files)
        private = api.model_info(address.repo_id).private
    Pushed(made.model, made.format, address.repo_id, commit.oid).write(source.home)
    tell(f"It can be read by {'you and those whom you let' if private else 'everybody'}.")
    return str(address)


def _require_room(api: HfApi, name: str, public: bool) -> None:
    """Raises Stop where a repository of that name holds something else, or would show to everybody what nobody said to show."""
    from huggingface_hub.errors import RepositoryNotFoundError

    try:
        known = api.model_info(name)
    except RepositoryNotFoundError:
        return
    if not known.private and not public:
        raise Stop(
            f"`{name}` is there, and everybody can read it.", "`--public` pushes to it; another name is private."
        )
    files = {one.rfilename for one in known.siblings or ()}
    if EXPORTED not in files and files - _FRESH:
        raise Stop(f"`{name}` holds another model, which `recipe push` has not put there.", "Name another repository.")


def _whole(source: Source, form: str, kind: str | None, tell: Tell) -> Path:
    """The export of this model, with a card of today; made where there is none, or not all of it is as it was made."""
    folder = exporting.place(source, form, kind)
    known = exporting.read(folder)
    same = known.model and known.model == source.stage.weights and known.run == source.run.state.id
    if same and all((folder / one).is_file() and sha256(folder / one) == digest for one, digest in known.files.items()):
        exporting.tell_of(source, folder, known)
        return folder
    return exporting.export(source, form, kind, None, tell)


def _require_arrived(api: HfApi, name: str, commit: str, folder: Path, files: Mapping[str, str]) -> None:
    """Holds what the hub has against what was sent: all files, and the hash of each that it keeps by hash."""
    there = {one.rfilename: one for one in api.model_info(name, revision=commit, files_metadata=True).siblings or ()}
    for file in (*files, EXPORTED):
        if file not in there:
            raise unproven(f"`{file}` has not arrived at the hub", "Push it again.")
        if (kept := there[file].lfs) is not None and kept.sha256 != sha256(folder / file):
            raise unproven(f"the hub has another `{file}`", "Push it again.")


@contextmanager
def _refusals(name: str) -> Iterator[None]:
    """What the hub refuses, in a sentence."""
    import httpx
    from huggingface_hub.errors import HfHubHTTPError, HFValidationError

    try:
        yield
    except HFValidationError as error:
        raise Stop(f"`{name}` is no name for a repository: {error}", "It is `NAME`, or `ORGANISATION/NAME`.") from None
    except HfHubHTTPError as error:
        said = error.server_message or str(error).splitlines()[0]
        raise Stop(
            f"The hub does not take `{name}`: {said}",
            "Does the token write, and to that name? `hf auth whoami` says whose it is.",
        ) from None
    except httpx.HTTPError as error:
        raise Stop(
            f"The hub cannot be reached: {error}", "Check the network, and `HF_ENDPOINT` where you have one."
        ) from None
