"""A copy speaks of itself: its header, description and comments hold for other data and other
machines, and what its demo asks is in the file."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from runner.check.copying import commented
from runner.parts.start import drafting
from runner.recipe.overrides import from_options
from runner.recipe.reading import parse
from tests.conftest import STARTERS

# Words that are true of a starter alone, by its name.
OWN = {
    "arithmetic": "problem|arithmetic|grade school|gsm8k",
    "domain": "wikitext|2,845",
    "gemma": "Gemma 3 270M|2,048|31\\b|A40",
    "lyrics": "song|verse|genre|artist|lyric|Phi-4-mini to|200,064|47\\.7|2\\.2 GB",
    "museum": "museum|thirty|four minutes|make demo|wording|without a GPU",
    "resnet": "CIFAR|ten classes|60,000|50,000",
    "seven-b": "6,083,055,616|from scratch to|H100",
    "sft-dpo": "L40S|48 GB",
    "survival": "survival|four L40S|13\\.62|10 GB each|47\\.7|2,845",
}
# Machines that no starter has, and their number.
MACHINES = ("machines.gpu=NVIDIA-H200",)
ROWS = {
    "questions": [
        {"frage": f"Was tut Biene {n}?", "antwort": f"Sie sammelt {n}."} for n in range(9)
    ],
    "text": [{"text": f"Die Biene {n} sammelt Nektar auf vielen Wiesen."} for n in range(9)],
}
# The changes that give a starter other data; the rest have rows of another form, or several data
# sets, and keep theirs.
OTHER_DATA = {
    "museum": ("questions", ()),
    "survival": ("questions", ()),
    "gemma": ("text", ()),
    "lyrics": ("questions", ("data.question=[frage]", "data.answer=[antwort]")),
}


def copy_of(starter: Path, folder: Path, *changes: str) -> str:
    """The text of a copy of a starter in a folder with files of another form."""
    sets = list(changes)
    kind, more = OTHER_DATA.get(starter.stem, ("", ()))
    if kind:
        (folder / "bees.jsonl").write_text("\n".join(map(json.dumps, ROWS[kind])), "utf-8")
        sets += ["data.path=bees.jsonl", *more]
    made = drafting.draft(drafting.starter(str(starter)), "my-demo", from_options(sets))
    assert not made.errors, made.errors
    return made.text


def spoken(text: str) -> dict[str, str]:
    """What a copy says of itself, by its setting: the comments, the header and the description."""
    document = parse("my-demo.yaml", text)
    said = {".".join(map(str, paths[0])): comment for _, paths, _, comment in commented(document)}
    return {
        **said,
        "header": text.partition("\n\n")[0].replace("Copied from", ""),
        "description": re.sub(r"\(a copy of [\w-]+\)", "", document.data["description"]),
    }


@pytest.mark.parametrize("starter", STARTERS, ids=lambda path: path.stem)
def test_a_copy_with_other_data_and_machines_does_not_speak_of_its_starter(
    starter, tmp_path, monkeypatch
):
    if starter.stem not in OWN:
        pytest.skip("a minimal starter has no facts of its own")
    monkeypatch.chdir(tmp_path)
    text = copy_of(starter, tmp_path, *MACHINES)
    own = re.compile(OWN[starter.stem], re.IGNORECASE)
    about_own_data = () if starter.stem in OTHER_DATA else ("data", "rewards", "stages")
    for setting, words in spoken(text).items():
        if setting.startswith(about_own_data) and about_own_data:
            continue  # its data is still the starter's
        # Names of the copied recipe and of data that stays are no claims.
        words = re.sub(rf"{starter.stem}\.|\b[\w-]+/[\w.-]+", "", words)
        words = re.sub(rf"[ .]+{starter.stem}\.?", " ", words)
        if setting in ("header", "description") and starter.stem not in OTHER_DATA:
            words = re.sub(r"learns from .*?, planned", "planned", words)
        assert not own.search(words), f"{setting}: {words}"
    assert "NVIDIA-H200" in text.partition("\n\n")[0]


def test_a_header_is_made_of_the_copy_and_says_what_its_demo_asks(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (museum,) = (path for path in STARTERS if path.stem == "museum")
    text = copy_of(museum, tmp_path)
    header = text.partition("\n\n")[0]
    assert "# My-demo: small learns from bees.jsonl, planned for one NVIDIA-L40S." in header
    assert "recipe check    my-demo.yaml" in header
    assert "The demo asks 5 questions of the rows" in header
    words = parse("my-demo.yaml", text).data["description"]
    assert words == "small learns from bees.jsonl, planned for one NVIDIA-L40S (a copy of museum)"
    # Questions of one's own are not the demo's choice.
    asked = copy_of(museum, tmp_path, "demo.questions=[Was ist Propolis?]")
    assert "The demo asks" not in asked and "Was ist Propolis?" in asked


def test_a_copy_for_a_processor_says_so(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (museum,) = (path for path in STARTERS if path.stem == "museum")
    text = copy_of(museum, tmp_path, "machines.gpu=none")
    assert "planned for a CPU" in text.partition("\n\n")[0]
    assert "L40S" not in text


def test_a_copy_that_differs_in_its_name_alone_keeps_its_header_without_advice_on_copies(
    tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    made = drafting.draft(drafting.starter("museum"), "my-demo", [])
    header = made.text.partition("\n\n")[0]
    assert "Copied from museum: teaches a real small model thirty facts" in header
    assert "make demo" not in header and "recipe new" not in header
    assert header.endswith("runs the whole recipe with a tiny model")


def test_the_prompt_of_songs_goes_with_the_songs(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (lyrics,) = (path for path in STARTERS if path.stem == "lyrics")
    assert "songwriter" not in copy_of(lyrics, tmp_path)


def test_what_follows_another_number_of_gpus_has_a_comment_of_its_own(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    made = drafting.draft(
        drafting.starter("survival"), "my-demo", from_options(["machines.nodes=2"])
    )
    assert "follows recipe new" not in made.text
    assert "planned for 2 NVIDIA-L40S" in made.text
