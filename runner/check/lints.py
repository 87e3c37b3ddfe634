"""Notes on unusual values, each with the usual ones, and on texts that probably mean something else."""

import re
from collections.abc import Iterator
from functools import cache

from runner.recipe.recipe import Recipe, Settings
from runner.tools import packaged
from runner.tools.problem import Problem, worded

# Above these learning rates, runs of our starters and of the papers that they name diverge. Images with SGD tolerate
# more.
HIGHEST_RATE, HIGHEST_SCALED, HIGHEST_OF_IMAGES = 0.02, 0.002, 1.0
# A warmup of more than half of the steps; fewer epochs than a tenth.
LONGEST_WARMUP, FEWEST_EPOCHS = 0.5, 0.1
# The weight of an adapter, alpha / rank: below an eighth it has hardly any effect, above four training diverges. PEFT's
# published run of rsLoRA has 8 (method_comparison, rank 64).
LEAST_SCALE, MOST_SCALE, MOST_STABLE = 1 / 8, 4, 8


def _sections(recipe: Recipe) -> Iterator[tuple[str, Settings]]:
    for name, section in recipe.sections.items():
        if section.knows("learning_rate"):
            yield name, section


def rates(recipe: Recipe) -> Iterator[Problem]:
    gpus, images = sum(recipe.gpu_counts), recipe.scenario == "image-classification"
    scaled = gpus > 8 and not images
    for name, section in _sections(recipe):
        rate = section["learning_rate"]
        if rate > (HIGHEST_OF_IMAGES if images else HIGHEST_RATE) or (images and rate == 1):
            usual = "0.001 to 0.5" if images else "1e-5 to 5e-4"
            yield recipe.note((name, "learning_rate"), *worded("check.learning-rate-diverges", rate=rate, usual=usual))
        elif scaled and section.get("learning_rate_scaling") == "linear" and rate * gpus > HIGHEST_SCALED:
            message = f"Multiplied by {gpus} GPUs, the learning rate is {rate * gpus:g}, which makes almost every model diverge."
            hint = "Write `learning_rate_scaling: none`. Usual values are 1e-5 to 5e-4 in total."
            yield recipe.note((name, "learning_rate_scaling"), message, hint)


def lengths(recipe: Recipe) -> Iterator[Problem]:
    for name, section in _sections(recipe):
        ratio, epochs = section.get("warmup_ratio"), section.get("epochs")
        if ratio is not None and ratio > LONGEST_WARMUP:
            yield recipe.note((name, "warmup_ratio"), *worded("check.long-warmup", ratio=ratio))
        if epochs is not None and epochs < FEWEST_EPOCHS:
            yield recipe.note((name, "epochs"), *worded("check.less-than-an-epoch", epochs=epochs))


def adapters(recipe: Recipe) -> Iterator[Problem]:
    for name, section in recipe.sections.items():
        for of in ("", "lora_"):
            rank, alpha, stable = section.get(f"{of}rank"), section.get(f"{of}alpha"), section.get("use_rslora")
            by, root, most = (rank**0.5, "√", MOST_STABLE) if rank and stable else (rank, "", MOST_SCALE)
            if not rank or not alpha or LEAST_SCALE <= alpha / by <= most:
                continue
            message = f"An alpha of {alpha:g} is so small for a rank of {rank} that the adapter has almost no effect."
            hint = f"Write `{of}alpha: {2 * rank}` for a rank of {rank}, or delete the line. Usual values are {rank} to {2 * rank}."
            if stable:
                hint = "Delete the line; with `use_rslora` an alpha of 16 is usual at any rank."
            if alpha > by:
                message = f"The adapter is multiplied by alpha / {root}rank = {alpha / by:.3g}. Values far above 2 break training."
            yield recipe.note((name, f"{of}alpha"), message, hint)


_MARK = re.compile(r"<\|\w+\|>|<(start|end)_of_turn>|\[/?INST\]")
_COLUMN = re.compile(r"(?<!\[)\[([A-Za-z_]\w*)\]")


def answers(recipe: Recipe) -> Iterator[Problem]:
    """The answer must differ from the question, and the preferred answer from the rejected one."""
    for home, section in recipe.data_sets():
        asked, taught = (set(_COLUMN.findall(section.get(name) or "")) for name in ("question", "answer"))
        if taught and taught <= asked:
            yield recipe.note((*home, "answer"), *worded("check.answer-is-question"))
        if section.get("chosen") and section["chosen"] == section.get("rejected"):
            yield recipe.problem((*home, "rejected"), *worded("check.chosen-is-rejected"))


def prompts(recipe: Recipe) -> Iterator[Problem]:
    """A system prompt is one text for all rows."""
    for home, section in recipe.data_sections:
        text = section.get("system_prompt") or ""
        if mark := _MARK.search(text):
            yield recipe.note((*home, "system_prompt"), *worded("check.template-marks", mark=mark))
        elif column := _COLUMN.search(text):
            yield recipe.note((*home, "system_prompt"), *worded("check.column-in-prompt", column=column))


def long_rows(recipe: Recipe) -> Iterator[Problem]:
    """A token is at most a word."""
    for home, section in recipe.data_sections:
        words = len((section.get("system_prompt") or "").split())
        where, length = recipe.longest_row(home)
        if length and words >= length:
            yield recipe.problem(where, *worded("check.prompt-too-long", words=words, length=length))


_QUOTES = ("\u201c", "\u201d", "\u201e", "\u00ab", "\u2018", "\u201a")
# The pattern begins with the literal `#`: this search is ten times as fast as one for any blank.
_MAY_CUT = re.compile(r"#(?<=\s#)[^\s#]")


def cut_texts(recipe: Recipe) -> Iterator[Problem]:
    """YAML ends a text at ` #`, and accepts only straight quotes."""
    text = recipe.document.text
    if not _MAY_CUT.search(text) and not any(quote in text for quote in _QUOTES):
        return  # most recipes have neither
    lines = text.splitlines()
    for path, place in recipe.document.values.items():
        value = recipe.document.lookup(path)
        if not isinstance(value, str) or path in recipe.document.origins or place.line > len(lines):
            continue
        line = lines[place.line - 1]
        rest = line[place.column - 1 + place.width :]
        plain = "#" in rest and "\n" not in value and line[place.column - 1 :].startswith(value)
        if plain and (cut := re.match(r"\s+(#[^\s#]\S*)", rest)):
            yield recipe.note(path, *worded("check.cut-by-comment", cut=cut))
        if value[:1] in _QUOTES:
            yield recipe.note(path, *worded("check.typographic-quote", value=value))


_QUESTION = re.compile(r"^ *- (.+?)(?: +#.*)?$", re.MULTILINE)
_SOURCE = re.compile(r"^ +(?:hub|path|sample): (\S+)", re.MULTILINE)


@cache
def _starters() -> tuple[tuple[str, frozenset[str], frozenset[str]], ...]:
    """For each starter recipe: the name, the items of its lists, its questions, and its data."""
    texts = ((name, file.read_text(encoding="utf-8")) for name, file in packaged.named().items())
    return tuple((name, frozenset(_QUESTION.findall(text)), frozenset(_SOURCE.findall(text))) for name, text in texts)


def demo(recipe: Recipe) -> Iterator[Problem]:
    """A starter's questions fit only the starter's data."""
    data = [name for _, one in recipe.data_sets() for name in (one.get("hub"), one.get("path")) if name]
    asked = [question for _, question in recipe.demo_questions]
    for name, questions, sources in _starters() if data and asked else ():
        theirs = [question for question in asked if question in questions]
        if not theirs or not sources.isdisjoint(data):
            continue
        message = f"`{theirs[0]}` is a question of the starter `{name}`, but the model learns from `{data[0]}`."
        document = recipe.document
        place = next(at for at in document.values if at[:1] == ("demo",) and document.lookup(at) == theirs[0])
        hint = "Write questions about your own data. Or delete them: then the demo asks questions of validation rows."
        yield recipe.note(place, message, hint)
        return


RULES = (demo, answers, long_rows, cut_texts, prompts, rates, lengths, adapters)
