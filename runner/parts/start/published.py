"""Published models: what the hub says of a model that the catalog does not have."""

from dataclasses import replace
from pathlib import Path

from runner.catalog.models import Model, described, near_model
from runner.tools.problem import Stop


def on_hub(name: str, revision: str) -> Model:
    """The model of that name and revision on the hub, with the commit that this is now. Raises Stop where it cannot be had."""
    from httpx import HTTPError
    from huggingface_hub import HfApi, hf_hub_download
    from huggingface_hub.errors import (
        GatedRepoError,
        HFValidationError,
        RemoteEntryNotFoundError,
        RepositoryNotFoundError,
        RevisionNotFoundError,
    )

    def fetch(file: str) -> Path | None:
        try:
            return Path(hf_hub_download(name, file, revision=facts.sha))
        except RemoteEntryNotFoundError:
            return None

    try:
        facts = HfApi().model_info(name, revision=revision)
        model = described(name, fetch)
    except GatedRepoError:
        raise Stop(
            f"`{name}` is gated: its licence must be accepted before its files can be had.",
            f"Accept it at https://huggingface.co/{name}, then `hf auth login`, or set HF_TOKEN.",
        ) from None
    except RevisionNotFoundError:
        raise Stop(
            f"`{name}` has no revision `{revision}`.", "Name a branch, a tag or a commit; without one it is `main`."
        ) from None
    except RepositoryNotFoundError:
        raise Stop(f"The hub has no model `{name}` that you may read.", _instead(name)) from None
    except HFValidationError:
        raise Stop(f"`{name}` is neither a folder here nor a name on the hub.", _near(name)) from None
    except (HTTPError, OSError) as error:
        raise Stop(
            f"The hub cannot be asked for `{name}`: {(str(error).strip() or type(error).__name__).splitlines()[0]}",
            "Check the network, and HF_ENDPOINT where you have a hub of your own; or name a folder that holds the model.",
        ) from None
    licences = [tag.partition(":")[2] for tag in facts.tags or () if tag.startswith("license:")]
    return replace(model, revision=facts.sha or "", licence=" ".join(licences), gated=bool(facts.gated))


def _near(name: str) -> str:
    near = near_model(name)
    known = f"Did you mean `{near}`? That one is in the catalog. " if near else ""
    return f"{known}Check the name; a private model needs `hf auth login`, or HF_TOKEN."


def _instead(name: str) -> str:
    """What is there in place of a model: a dataset of that name, or a name that is near."""
    from httpx import HTTPError
    from huggingface_hub import HfApi

    try:
        HfApi().dataset_info(name)
    except (HTTPError, OSError):
        return _near(name)
    return "That is the name of a dataset. A recipe names it under `data.hub`; `model.base` is to be a model."
