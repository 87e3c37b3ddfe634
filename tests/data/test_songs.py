"""Songs as data: what is drawn from a stream, what is left out and why, and what is asked about a
song."""

from __future__ import annotations

import json
import random
import tracemalloc
from collections import Counter
from dataclasses import asdict

import pytest
import yaml
from pydantic import TypeAdapter

from runner import catalog
from runner.check.validate import examine, load
from runner.data.song_rows import BottomK, SongRows
from runner.data.songs import CLASSES, Lyrics, _pattern
from runner.parts.jobs import kubernetes
from runner.scenarios import prepare, translate
from runner.tools.problem import Stop
from tests.conftest import ROOT

RECIPES = [load(file)[0] for file in sorted((ROOT / "recipes").rglob("*.yaml"))]
# The starters with songs whose demo has questions of its own.
SONG_STARTERS = [
    recipe
    for recipe in RECIPES
    if "songs" in (recipe.settings.get("data") or {}) and recipe.demo_questions
]
assert SONG_STARTERS
FORM = "Generate a song verse in the style of [artist] in the genre of [genre]."
ALL = {"write_verse": 0.6, "recognise_style": 0.2, "classify_genre": 0.2}


def asked_for(path=None, **songs) -> dict:
    """The data section of a plan, as scenario lora writes it."""
    limits = {
        "instruction": "instruction", "lyrics": "lyrics", "instruction_form": FORM, "count": 100, "per_artist": 50,
        "min_words": 3, "max_words": 50, "tasks": ALL,
    }  # fmt: skip
    return {
        "kind": "lyrics", "stream": True, "system_prompt": None,
        "sets": [{
            "hub": None if path else "someone/songs", "revision": "main", "subset": None, "split": "train",
            "path": str(path) if path else None,
        }],
        "special_tokens": asdict(catalog.chat_template("chatml")), "max_lost_share": 0.1, "validation_share": 0.2, "seed": 42, "sequence_len": 1024,
        "songs": limits | songs,
    }  # fmt: skip


def instruction(artist="Nobody", genre="folk") -> str:
    return FORM.replace("[artist]", artist).replace("[genre]", genre)


def song(number: int, artist="Nobody", genre="folk") -> dict:
    return {
        "instruction": instruction(artist, genre),
        "lyrics": f"la la song number {number} goes on",
    }


@pytest.fixture
def file_of(tmp_path):
    def write(rows) -> str:
        path = tmp_path / "songs.jsonl"
        path.write_text(
            "".join((row if isinstance(row, str) else json.dumps(row)) + "\n" for row in rows),
            encoding="utf-8",
        )
        return path

    return write


def rows_of(out) -> dict[str, list[dict]]:
    from datasets import Dataset

    return {
        side: list(Dataset.from_parquet(str(out / f"{side}.parquet")))
        for side in ("train", "validation")
    }


def prepared(tmp_path, wanted, **options):
    report = prepare(wanted, tmp_path / "out", **options)
    return report, rows_of(tmp_path / "out")


def test_every_row_is_kept_or_counted_with_the_reason(tmp_path, file_of, golden_message):
    rows = [song(number) for number in range(20)]
    rows += [song(0), {**song(1), "lyrics": "LA la, song number 1 -- goes on!"}]
    rows += ["{not json", "[1]"]
    rows += [
        {"instruction": instruction(), "lyrics": "two words"},
        {"instruction": instruction(), "lyrics": "x " * 60},
    ]
    rows += [
        {"instruction": instruction(), "lyrics": None},
        {"lyrics": "no instruction at all here"},
    ]
    rows += [{"instruction": "Write me something nice.", "lyrics": "a song about nice things"}]
    rows += [{"instruction": instruction("unknown", "n/a"), "lyrics": "a song that nobody knows"}]
    report, sides = prepared(tmp_path, asked_for(file_of(rows)))
    assert sorted(report.dropped.values()) == [1, 1, 1, 1, 1, 1, 2]
    assert [number for number, _ in report.bad_lines] == [23, 24]
    assert (report.rows_in, report.duplicates, report.distinct) == (30, 2, 20)
    kept = report.train_rows + report.validation_rows
    assert report.rows_in == kept + report.duplicates + report.not_drawn + sum(
        report.dropped.values()
    )
    assert (
        (len(sides["train"]), len(sides["validation"]))
        == (report.train_rows, report.validation_rows)
        == (16, 4)
    )
    golden_message("\n".join(line for line in report.lines() if not line.startswith("bytes")))


def test_at_most_so_many_songs_of_an_artist_however_the_name_is_cased(tmp_path, file_of):
    rows = [song(number, "Loud Crowd" if number % 2 else "LOUD CROWD") for number in range(30)]
    rows += [song(100 + number, f"Quiet {number}") for number in range(10)]
    report, sides = prepared(
        tmp_path, asked_for(file_of(rows), per_artist=4, tasks={"recognise_style": 1})
    )
    artists = Counter(row["answer"].casefold() for side in sides.values() for row in side)
    assert artists["loud crowd"] == 4
    assert len(artists) == 11
    assert report.dropped["more than 4 songs of one artist"] == 26


def test_the_draw_is_what_sorting_everything_would_give():
    """The stream's order changes nothing, and the memory of what went by is not needed."""
    rng = random.Random(7)
    items = [
        (f"key {number}", f"owner {rng.randrange(40)}" if rng.random() < 0.9 else None)
        for number in range(3000)
    ]

    def drawn(order):
        draw = BottomK(200, 6, 42)
        for key, owner in order:
            draw.offer(key, key, owner)
        kept = draw.drawn()
        assert len(order) == len(kept) + draw.duplicates + draw.over_cap + draw.not_drawn
        return kept

    everything = BottomK(len(items), len(items), 42)
    for key, owner in items:
        everything.offer((key, owner), key, owner)
    seen: Counter = Counter()
    expected = []
    for key, owner in everything.drawn():
        seen[owner] += 1
        if owner is None or seen[owner] <= 6:
            expected.append(key)
    expected = expected[:200]
    assert drawn(items) == expected
    shuffled = items + items[:500]
    rng.shuffle(shuffled)
    assert drawn(shuffled) == expected


def test_another_seed_draws_other_songs(tmp_path, file_of):
    path = file_of([song(number) for number in range(400)])
    limits = {"count": 100, "per_artist": 1000}

    def answers(seed):
        report, sides = prepared(tmp_path, asked_for(path, **limits) | {"seed": seed})
        assert report.distinct == 100 and report.not_drawn == 300
        return {
            row["messages"][-1]["content"] + row["full-question"]
            for side in sides.values()
            for row in side
        }

    first, again, other = answers(1), answers(1), answers(2)
    assert first == again
    assert len(first & other) < 60


@pytest.mark.long
def test_a_stream_of_any_length_takes_the_memory_of_the_draw(tmp_path, monkeypatch):
    """60,000 songs go by, 200 are kept; the hub's dataset is asked for as a stream."""
    import datasets

    calls = []

    def load_dataset(name, subset, **options):
        calls.append((name, options))
        return (
            {
                "instruction": instruction(f"Artist {number % 5000}"),
                "lyrics": f"{'word ' * 30} {number}",
            }
            for number in range(60_000)
        )

    monkeypatch.setattr(datasets, "load_dataset", load_dataset)
    settings: Lyrics = TypeAdapter(Lyrics).validate_python(asked_for(count=200))
    songs = SongRows(settings)
    tracemalloc.start()
    try:
        drawn = songs._draw(200)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    how = {"split": "train", "revision": "main", "data_files": None, "streaming": True}
    assert calls == [("someone/songs", how)]
    assert (songs.report.rows_in, len(drawn)) == (60_000, 200)
    assert peak < 4e6, f"{peak / 1e6:.1f} MB for 200 songs of 160 characters"


def test_a_hub_that_is_gone_points_to_a_local_file(tmp_path, monkeypatch, golden_message):
    import datasets

    def load_dataset(*_, **__):
        raise ConnectionError("no network")

    monkeypatch.setattr(datasets, "load_dataset", load_dataset)
    with pytest.raises(Stop, match=r"`data\.path`") as stop:
        prepare(asked_for(), tmp_path / "out")
    golden_message(stop.value)


def test_nothing_is_asked_that_the_row_does_not_answer(tmp_path, file_of):
    rows = [song(number, "Somebody", "unknown") for number in range(60)]
    rows += [song(100 + number, "Various Artists", "ska") for number in range(60)]
    rows += [song(200 + number, "Both Known", "soul") for number in range(60)]
    report, sides = prepared(tmp_path, asked_for(file_of(rows), count=1000, per_artist=1000))
    everything = sides["train"] + sides["validation"]
    assert len(everything) == 180
    for row in everything:
        asked, answer = row["full-question"], row["answer"]
        assert "unknown" not in asked.casefold() and "various" not in asked.casefold()
        if asked.startswith("In whose style"):
            assert answer in ("Somebody", "Both Known")
        elif asked.startswith("Which genre"):
            assert answer in ("ska", "soul")
        else:
            assert answer.startswith("la la song")
            number = int(answer.split()[4])
            assert asked == (
                "Generate a song verse in the style of Somebody."
                if number < 100
                else "Generate a song verse in the genre of ska."
                if number < 200
                else instruction("Both Known", "soul")
            )
    assert set(report.tasks) == set(ALL)


def test_the_mix_of_tasks_is_a_setting(tmp_path, file_of):
    path = file_of([song(number) for number in range(1000)])
    limits = {"count": 1000, "per_artist": 1000}
    report, _ = prepared(tmp_path, asked_for(path, **limits))
    assert report.tasks["write_verse"] == pytest.approx(600, abs=60)
    assert report.tasks["classify_genre"] == pytest.approx(200, abs=50)
    only, _ = prepared(
        tmp_path, asked_for(path, **limits, tasks={"write_verse": 0, "classify_genre": 2})
    )
    assert only.tasks == {"classify_genre": 1000}


def test_the_same_words_are_never_on_both_sides(tmp_path, file_of):
    rows = [song(number % 40, f"Artist {number}") for number in range(200)]
    rows = [
        {**row, "lyrics": row["lyrics"].upper() if n % 3 else row["lyrics"]}
        for n, row in enumerate(rows)
    ]
    _, sides = prepared(tmp_path, asked_for(file_of(rows), tasks={"write_verse": 1}))
    words = {side: {row["answer"].casefold() for row in rows} for side, rows in sides.items()}
    assert words["train"] and words["validation"]
    assert not words["train"] & words["validation"]


def test_too_long_conversations_are_left_out_by_tokens(tmp_path, file_of):
    rows = [song(number) for number in range(20)] + [
        {"instruction": instruction(), "lyrics": "very " * 45}
    ]

    class Words:
        name_or_path = "words"

        def __call__(self, texts, **_):
            return {"input_ids": [text.split() for text in texts]}

    wanted = asked_for(file_of(rows), tasks={"write_verse": 1}) | {"sequence_len": 40}
    report, _ = prepared(tmp_path, wanted, tokenizer_for=lambda texts: Words())
    assert report.dropped["longer than 40 tokens"] == 1
    assert report.token_lengths["max"] > 40


def test_nothing_left_is_a_stop_that_shows_the_reasons(tmp_path, file_of, golden_message):
    rows = [{"instruction": instruction(), "lyrics": "short"}] * 5
    with pytest.raises(Stop, match="fewer than 3 words") as stop:
        prepare(asked_for(file_of(rows)), tmp_path / "out")
    golden_message(stop.value)


def test_a_form_of_other_words_is_read_as_the_recipe_says():

    read = _pattern("A [genre] song by [artist]")
    found = read.match("a  trip hop song by The Long Name.")
    assert (found["genre"], found["artist"]) == ("trip hop", "The Long Name")
    greedy = _pattern(FORM)
    found = greedy.match(instruction("In the Genre", "r&b / soul"))
    assert (found["artist"], found["genre"]) == ("In the Genre", "r&b / soul")


@pytest.mark.parametrize("recipe", SONG_STARTERS, ids=lambda recipe: recipe.name)
def test_a_starters_demo_asks_every_kind_of_question_that_it_trains(recipe):
    trained = {task for task, share in recipe.data.songs.tasks.plain().items() if share}
    questions = [question for _, question in recipe.demo_questions]
    asked = {
        task
        for task, words in CLASSES.values()
        if any(question.startswith(f"{words}\n\n") for question in questions)
    }
    if any(_pattern(recipe.data.songs.instruction_form).match(question) for question in questions):
        asked.add("write_verse")
    assert asked == trained


def test_the_recipes_own_sample_gives_every_task(tmp_path):
    recipe, _, _ = load(ROOT / "recipes" / "lyrics.yaml")
    wanted = dict(translate(recipe, kubernetes.place(recipe)).stages[-1].data)
    wanted["sets"] = [
        wanted["sets"][0] | {"hub": None, "path": str(ROOT / "recipes" / recipe.data.sample)}
    ]
    report, sides = prepared(tmp_path, wanted)
    assert report.train_rows + report.validation_rows == 120
    assert set(report.tasks) == set(ALL)
    assert all(row["messages"][0]["role"] == "system" for side in sides.values() for row in side)


@pytest.mark.parametrize("count", [20, 300])
def test_songs_that_nobody_asks_for_in_the_recipes_words_are_said(tmp_path, golden_message, count):
    (tmp_path / "songs.csv").write_text(
        "Band,Text\n" + "".join(f"The Planes,Song {n} of oak\n" for n in range(count))
    )
    recipe = yaml.safe_load((ROOT / "recipes" / "lyrics.yaml").read_text())
    recipe["data"] = {
        "path": "songs.csv",
        "songs": {"instruction": "Band", "lyrics": "Text", "count": 20},
    }
    (tmp_path / "my.yaml").write_text(yaml.safe_dump(recipe))
    (problem,) = [one for one in examine(tmp_path / "my.yaml") if "instruction_form" in one.message]
    assert problem.severity == "note"
    golden_message(
        problem.message.replace(str(tmp_path), "<tmp>") + "\n" + problem.hint, str(count)
    )
    asks = "Generate a song verse in the style of Abba in the genre of pop."
    (tmp_path / "songs.csv").write_text(f"Band,Text\n{asks},words\n" + "The Planes,words\n" * 20)
    assert not [one for one in examine(tmp_path / "my.yaml") if "instruction_form" in one.message]
