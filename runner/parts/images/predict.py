"""A trained network is asked what a picture shows."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

from runner.data.row_files import Bad
from runner.tools.problem import Stop


def load(weights: Path) -> Callable[[Path], dict[str, float]]:
    """A function from a file with a picture to the share that the network gives each class, by name, the largest first.

    It raises Stop where the file is no picture, or the weights cannot be read.
    """
    import torch

    from runner.parts.images import network
    from runner.parts.images.pictures import scaled
    from runner.parts.images.training import normalise

    known = cache(lambda: _opened(weights, network.load))

    def ask(picture: Path) -> dict[str, float]:
        pixels = _pixels(picture)
        model, facts = known()
        mean, std = (torch.tensor(facts[name]).view(1, 3, 1, 1) for name in ("mean", "std"))
        batch = torch.from_numpy(scaled(pixels, facts["image_size"]).copy()).permute(2, 0, 1).unsqueeze(0)
        with torch.no_grad():
            shares = model(pixel_values=normalise(batch, mean, std)).logits.softmax(-1)[0].tolist()
        named = zip(map(str, facts["classes"]), shares, strict=True)
        return dict(sorted(named, key=lambda each: -each[1]))

    return ask


def _pixels(picture: Path) -> Any:
    from runner.parts.images.pictures import decoded

    if not picture.is_file():
        raise Stop(f"There is no file `{picture}`.", "This model tells images apart: name the file of a picture.")
    pixels = decoded(picture.read_bytes())
    if isinstance(pixels, Bad):
        raise Stop(f"`{picture}` is {pixels.reason}.", "PNG, JPEG, WEBP, BMP and GIF can be.")
    return pixels


def _opened(weights: Path, read: Callable[[Path], Any]) -> Any:
    try:
        return read(weights)
    except Exception as error:  # a file of weights can be broken in many ways
        reason = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise Stop(f"The weights in `{weights}` cannot be read: {reason}", "Check the run folder.") from None
