"""Rules that a schema cannot express: a base model that is unknown or cannot be trained,
contradictions between lines, lines that do not fit model, GPU or data, and notes on unusual values
and on texts that probably mean something else.

A rule is a function from a Recipe to Problems. These look at settings, not at scenarios, and yield
nothing without their settings; a scenario's own rules are in its folder, in `rules.py`.
"""

import json
import re
from collections.abc import Callable, Iterator, Mapping
from functools import wraps
from importlib import import_module
from os.path import isdir
from pathlib import Path
from typing import Any

from runner import catalog, parts, scenarios
from runner.catalog import Schema, models
from runner.catalog.hardware import LIKE_NO_GPU, NO_GPU
from runner.check import by_schema, first_rows, schema_errors, sources, starters
from runner.data.tokenizers import MISTRAL, unfit
from runner.parts.contract import Rule
from runner.recipe import lock, units
from runner.recipe.document import Path_, dotted, path_of
from runner.recipe.recipe import Recipe
from runner.recipe.stages import STAGES
from runner.scenarios.shared import common, sharding
from runner.scenarios.shared.contradictions import contradictions
from runner.tools.files import read_record
from runner.tools.problem import Problem, Stop, found_by, listed, nearest
from runner.tools.run_files import TEKKEN
from runner.tools.settings import BrokenSetting, Settings
from runner.tools.text import hub_name


def judge(recipe: Recipe, look: bool = True) -> list[Problem]:
    """Every Problem found by the shared rules, the rules of parts and those of the scenario. A rule
    whose settings the schema refused yields nothing. look: whether to read the recipe's files,
    which may be on another machine."""
    problems: list[Problem] = []
    if recipe.settings.knows(STAGES):
        shared = list[Rule]()  # they judge each stage's own recipe
    else:
        shared = _shared_rules(recipe, look)
    for rule in (*shared, *scenarios.rules(recipe.scenario, look)):
        before = len(problems)
        try:
            problems.extend(rule(recipe))
        except BrokenSetting:  # `suppress` takes longer, and there are dozens of rules
            continue
        finally:
            if len(problems) > before:
                problems[before:] = found_by(check_name(rule), problems[before:])
    return problems


def check_name(rule: Rule) -> str:
    """The name of a rule in reports: that of its function, with `-`. Other people's baselines have
    it, so a function that gets another name takes its findings out of them."""
    return getattr(rule, "__name__", type(rule).__name__).replace("_", "-")


def _shared_rules(recipe: Recipe, look: bool) -> list[Rule]:
    """The rules of this room and of the parts. Those for a setting apply only to recipes that write
    it. look: whether rules may read the recipe's files."""
    modules: list[Any] = [first_rows, *parts.modules("rules")]
    if recipe.document.lookup(("data", "songs")) is not None:
        from runner.data import songs

        modules.append(songs)
    for part in parts.found().values():
        for setting, name in part.rules_of.items():
            if recipe.document.lookup(path_of(setting)) is not None:
                modules.append(import_module(part.module(name)))
    shared = list(RULES)
    for module in modules:
        shared += module.RULES
    if look:
        shared += FILE_RULES
        for module in modules:
            shared += getattr(module, "FILE_RULES", ())
    return shared


def of_section(name: str, *judges: Callable[[Recipe, Any], Iterator[Problem]]) -> tuple[Rule, ...]:
    """Rules from functions of a recipe and its section of that name. They yield nothing without the
    section."""

    return tuple(_of_section(name, judge) for judge in judges)


def _of_section(name: str, judge: Callable[[Recipe, Any], Iterator[Problem]]) -> Rule:
    @wraps(judge)  # for its name
    def rule(recipe: Recipe) -> Iterator[Problem]:
        section = recipe.settings.get(name)
        if section is not None:
            return judge(recipe, section)
        return iter(())

    return rule


def _base(recipe: Recipe) -> str:
    """The base model's name; empty if recipes of this scenario have none."""
    return str((recipe.settings.get("model") or {}).get("base", ""))


def known_model(recipe: Recipe) -> Iterator[Problem]:
    base = _base(recipe)
    if not base:
        return
    unsuitable = catalog.unsuitable(base, recipe.folder)
    if unsuitable:
        yield recipe.problem("model.base", *unsuitable)
        return
    if base not in catalog.model_ids():
        broken = lock.find(recipe.folder, base, recipe.model.revision)[1]
        if broken:
            yield from broken
            return
    if not recipe.model_facts:
        yield unknown_model(recipe)
        return
    folder = recipe.base_folder
    if folder and not isdir(folder) and not recipe.on_claim(base):
        yield recipe.note(
            "model.base",
            f"The folder `{base}` is not on this machine. Its description comes from `{lock.LOCK}`.",
            "Keep the folder beside the recipe on the machine that runs or submits it.",
        )


def as_locked(recipe: Recipe) -> Iterator[Problem]:
    """A folder on this machine must still match its entry in the lock file."""
    base = _base(recipe)
    if base and base not in catalog.model_ids():
        folder = recipe.base_folder
    else:
        folder = None
    if folder is None or not (folder / models.CONFIG).is_file():
        return
    locked, _ = lock.find(recipe.folder, base, recipe.model.revision)
    if locked is None:
        return
    try:
        current = models.in_folder(folder, base)
    except Stop as stop:
        yield recipe.problem("model.base", *stop.text.split("\n", 1))
        return
    shape = catalog.table("lock-file")["shape"]["fields"]
    changed = []
    for name in shape:
        before = getattr(locked, name)
        now = getattr(current, name)
        if now != before:
            changed.append(f"`{name}` is {now} and was {before}")
    if changed:
        yield recipe.problem(
            "model.base",
            f"The folder `{base}` contains another model than the one in `{lock.LOCK}`: {', '.join(changed)}.",
            f"`recipe models add {base} --recipe {recipe.file}` records the new one. Or restore the old one.",
        )


def folder_behind_packaged_model(recipe: Recipe) -> Iterator[Problem]:
    """A folder with a model that has the name of a packaged model, which hides it."""
    base = _base(recipe)
    config = recipe.folder / base / models.CONFIG
    if catalog.packaged_model(base) and config.is_file():
        yield recipe.note(
            "model.base",
            f"`{base}` is the model of the installation, and not that of the folder `{base}` beside the recipe.",
            f"Write `./{base}` for the folder's model.",
        )


def unknown_model(recipe: Recipe) -> Problem:
    """The problem of an unknown base model. A copied recipe may have it, because a lock file can
    follow."""
    return recipe.problem("model.base", *_why_unknown(recipe, recipe.model.base))


def _why_unknown(recipe: Recipe, base: str) -> tuple[str, str]:
    repository = hub_name(base)
    if repository:
        return (
            f"`{base}` is the address of a page, and a model on the hub is called `OWNER/NAME`.",
            f"Write the name alone: `{repository}`.",
        )
    config = models.config_of(base, recipe.folder)
    if config:
        return _no_geometry(base, config)
    folder = recipe.folder / base
    near = models.near_model(base)
    elsewhere = recipe.elsewhere(base)
    if isdir(folder) and not elsewhere:
        return _no_model_in(folder, base)
    could_be_a_folder = base.startswith((".", "/", "~")) or base.count("/") != 1
    if could_be_a_folder and not elsewhere and ("/" in base or not near):
        similar = _similar_folder(folder, base)
        return (
            f"There is no folder `{folder}`, and the catalog has no model `{base}`.",
            f"{similar}A path is relative to the recipe's folder. A model on the hub is `OWNER/NAME`; `recipe models` lists the catalog. A folder on the cluster is below the mount of a claim, `openshift.claims`.",
        )
    add = f"`recipe models add {base} --recipe {recipe.file}"
    if recipe.on_claim(base):
        return (
            f"`{base}` is on a claim, and this machine has no description of the model.",
            f"Record it once, for every machine that checks the recipe: {add}` reads it with a pod. Without access to the cluster, `recipe models add COPY --as {base} --recipe {recipe.file}` reads a copy of the model's small files.",
        )
    if elsewhere:
        return (
            f"The facts about the model at `{base}` are unknown here.",
            f"Record them for every machine that checks the recipe: {add}`.",
        )
    if recipe.model.revision != "main":
        add += f" --revision {recipe.model.revision}"
    suggestion = ""
    if near:
        suggestion = f"Did you mean `{near}`? "
    return (
        f"The model `{base}` is not in the catalog, and no folder of that name has a readable `config.json`.",
        f"{suggestion}`recipe models` lists the catalog. Or name a folder with a model. Or record this model from the hub, for every machine that checks the recipe: {add}`.",
    )


def _no_model_in(folder: Path, base: str) -> tuple[str, str]:
    """The problem of a folder that exists and has no model."""
    configs = sorted(folder.glob(f"*/{models.CONFIG}"))
    hint = "Name the folder in which the model was saved."
    if configs:
        subfolder = configs[0].parent.name
        hint = f"Did you mean `{base.rstrip('/')}/{subfolder}`?"
    return (
        f"The folder `{base}` has no readable `config.json`, so it contains no model.",
        hint,
    )


def _similar_folder(folder: Path, base: str) -> str:
    """The question whether a folder with a similar name was meant; empty without one."""
    if not isdir(folder.parent):
        return ""
    neighbours = [inner.name for inner in folder.parent.glob("*/") if inner.is_dir()]
    name = nearest(folder.name, neighbours)
    if not name:
        return ""
    parent = base.rstrip("/").removesuffix(folder.name)
    return f"Did you mean `{parent}{name}`? "


def _no_geometry(base: str, config: models.ModelConfig) -> tuple[str, str]:
    """The problem that a folder's `config.json` lacks the size of its language model, or describes
    several."""
    parts = []
    for name, part in config.items():
        if isinstance(part, dict) and "model_type" in part:
            parts.append(name)
    if parts:
        return (
            f"The `config.json` of `{base}` describes several models ({listed(parts)}). recipe-runner trains only models for text.",
            "`recipe models` lists models for text. Models that also read images or sound cannot be trained here.",
        )
    wrong = "has an impossible type or size"
    try:
        catalog.from_config(base, config)
    except KeyError as error:
        wrong = f"lacks `{error.args[0]}`"
    except models.NO_GEOMETRY:
        pass
    return (
        f"The `config.json` of `{base}` {wrong}, so the size of the model is unknown.",
        "Copy the file again from the model's source.",
    )


def custom_code(recipe: Recipe) -> Iterator[Problem]:
    """A model's own code runs with the user's rights, so it needs permission, and a version that
    cannot change."""
    if "base" not in (recipe.settings.get("model") or {}):
        return
    model = recipe.model
    facts = recipe.model_facts
    on_hub = facts is None or not facts.source.endswith("/config.json") or facts.remote_code
    can_change = on_hub and not re.fullmatch("[0-9a-f]{40}", recipe.model_revision)
    if model.trust_remote_code and can_change:
        setting = "model.trust_remote_code"
        if recipe.document.lookup(("model", "revision")) is not None:
            setting = "model.revision"
        yield recipe.problem(
            setting,
            f"The recipe trusts the model's own code, but its revision `{model.revision}` can change. The model's owner could put other code there, which would run with your rights.",
            "Write the full commit that you read, 40 hexadecimal digits, as `revision`.",
        )


def _has_chatml_tokens(facts: catalog.Model) -> bool:
    """Whether a model has ChatML's special tokens, or may have them, because it is unknown."""
    if not facts.chat_template:
        return True
    own_tokens = catalog.chat_template(facts.chat_template).tokens
    return {*catalog.chat_template("chatml").tokens} <= {*own_tokens}


def chat_template(recipe: Recipe) -> Iterator[Problem]:
    """ChatML's special tokens must be tokens of the model; else it cannot learn the end of an
    answer. `tokenizer_default` needs a tokenizer with a template, and `mistral_common` one of
    mistral-common."""
    facts = recipe.model_facts
    if not facts:
        return
    template = recipe.data.get("chat_template")
    if not template:
        return
    # by `special_tokens` or `tokens`
    is_added = "<|im_end|>" in str(recipe.document.lookup(("advanced", "axolotl")))
    if template == "chatml" and not _has_chatml_tokens(facts) and not is_added:
        yield recipe.problem(
            "data.chat_template",
            f"`{_base(recipe)}` does not know ChatML's special tokens, so it could not learn where an answer ends.",
            "Write `chat_template: auto`, which uses the special tokens of the model.",
            mending="auto",
        )
    yield from _mistral_template(recipe, facts, template)
    if template == "tokenizer_default" and not _has_template(recipe.base_folder, facts):
        yield recipe.problem(
            "data.chat_template",
            f"The tokenizer of `{recipe.model.base}` has no chat template, like those of most base models.",
            "Write `chat_template: auto`, or use the model's version for conversations.",
            mending="auto",
        )


def _mistral_template(recipe: Recipe, facts: models.Model, template: str) -> Iterator[Problem]:
    """A template of mistral-common needs a model of Mistral's, whose tokenizer it can read."""
    is_mistrals = facts.model_type in common.table("mistral_common")["model_types"]
    if template == MISTRAL and not is_mistrals:
        yield recipe.problem(
            "data.chat_template",
            f"mistral-common knows no models of type `{facts.model_type}`.",
            "Write `chat_template: auto`, which uses the special tokens of the model.",
            mending="auto",
        )
        return
    folder = recipe.base_folder
    if folder is None or not (folder / models.CONFIG).is_file():
        return
    reads_tekken = is_mistrals and (folder / TEKKEN).is_file()
    message = unfit(template, str(folder), reads_tekken)
    if message:
        if template == MISTRAL:
            mending = "auto"
        else:
            mending = MISTRAL
        yield recipe.problem("data.chat_template", *message, mending=mending)


def _has_template(folder: Path | None, facts: models.Model) -> bool:
    """Whether a model's tokenizer has a chat template. folder: of the model, if it is on this
    machine."""
    if folder and (folder / "tokenizer_config.json").is_file():
        saved_template = read_record(folder / "tokenizer_config.json").get("chat_template")
        return bool(saved_template) or any(folder.glob("chat_template*"))
    return bool(facts.own_template)


def advised_precision(recipe: Recipe) -> str:
    gpu = catalog.gpu(recipe.machines.gpu)
    facts = recipe.model_facts
    if not gpu:
        return "bf16"
    precisions = by_schema.part(recipe.scenario, "model.precision").get("enum", ())
    has_fp16 = facts is None or facts.fp16
    return gpu.precision(has_fp16 and "fp16" in precisions)


def _or_precision(recipe: Recipe) -> str:
    """The end of a remedy that also offers a precision of 16 bits; empty if the GPU has none."""
    precision = advised_precision(recipe)
    if precision == "fp32":
        return ""
    return f", or `precision: {precision}`"


def similar_gpus(recipe: Recipe) -> str:
    if recipe.machines.gpu.lower() in LIKE_NO_GPU:
        return f"Write `gpu: {NO_GPU}` to train on the CPU of this machine."
    # People write `L40S` or `H100`, but the cluster's label is longer.
    similar = listed(catalog.alike(recipe.machines.gpu), "or")
    if similar:
        return f"Did you mean {similar}?"
    return f"Known: {listed(catalog.gpu_names())}."


# No machine has less or more, so another unit was meant.
LEAST_MEMORY, MOST_MEMORY = 2**30, 64 * 2**40
LONGEST_SECONDS = 365 * 86400


def memory_sizes(recipe: Recipe) -> Iterator[Problem]:
    site = recipe.settings.get("openshift")
    sections = {"machines": recipe.machines}
    if site is not None:
        sections |= {"openshift.requests": site.requests, "openshift.limits": site.limits}
    for section, part in sections.items():
        memory = part.memory
        if memory and not LEAST_MEMORY <= units.size(memory) <= MOST_MEMORY:
            if section == "machines":
                owner = "machine"
            else:
                owner = "pod"
            yield recipe.problem(
                f"{section}.memory",
                f"A {owner} with {memory} of main memory is not plausible.",
                "Write between 1 GiB and 64 TiB, with its unit: `memory: 32 GB`.",
            )


def limits_can_be_meant(recipe: Recipe) -> Iterator[Problem]:
    """Limits of zero, and larger ones than any machine has: a time of zero would end training after
    its first step, and count it as finished."""
    limits = recipe.settings.get("limits") or {}
    time = limits.get("time")
    if time and not 1 <= units.seconds(time) <= LONGEST_SECONDS:
        yield recipe.problem(
            "limits.time",
            f"A time limit of {time[:40]} is not plausible.",
            "Write between 1 s and 365 d, with its unit: `time: 5 min`.",
        )
    memory = limits.get("gpu_memory")
    if memory and not 0 < units.size(memory) <= MOST_MEMORY:
        yield recipe.problem(
            "limits.gpu_memory",
            f"A limit of {memory[:40]} of GPU memory is not plausible.",
            "Write the memory of one GPU, or less, with its unit: `gpu_memory: 45 GB`.",
        )


AXOLOTL = f"Axolotl {catalog.AXOLOTL_VERSION}"
DEEPSPEED = f"DeepSpeed {catalog.DEEPSPEED_VERSION}"
BELOW_ZERO, BELOW_ONE, WARMUPS = (
    catalog.table("axolotl-values")[name] for name in ("below_zero", "below_one", "only_one")
)


def advanced_settings(recipe: Recipe) -> Iterator[Problem]:
    """Axolotl drops settings that it does not know without a message, and refuses values only when
    training starts."""
    advanced = recipe.settings.get("advanced")
    if not advanced:
        return
    schema = catalog.axolotl_settings()
    properties: dict[str, Any] = {}
    for plugin in schema["plugins"].values():
        properties |= plugin
    properties |= schema["properties"]
    for home, extra in advanced.items():
        owner = "train" if home == "axolotl" else home
        section = recipe.settings.get(owner) or {}
        if not isinstance(extra, Settings):
            continue
        for key, value in extra.plain().items():
            warmup = _refused_warmup(recipe, ("advanced", home, key), owner, section)
            if warmup:
                yield warmup
            else:
                yield from _advanced_value(recipe, ("advanced", home, key), value, properties)


def _refused_warmup(
    recipe: Recipe, path: Path_, owner: str, section: Mapping[str, object]
) -> Problem | None:
    """The problem that a section already sets the warm-up in another unit."""
    key = str(path[-1])
    rival = WARMUPS.get(key)
    if not rival or section.get(rival) is None:
        return None
    instead = f"change `{owner}.{rival}`. `recipe plan` shows the number of steps"
    if by_schema.has(recipe.scenario, f"{owner}.{key}"):
        instead = f"write `{key}` under `{owner}` instead of `{rival}`"
    return recipe.problem(
        path,
        f"`{owner}.{rival}` sets how long the learning rate rises, and Axolotl refuses `{key}` beside it.",
        f"Delete it, and {instead}.",
    )


def _advanced_value(
    recipe: Recipe, path: Path_, value: Any, properties: Schema
) -> Iterator[Problem]:
    """What Axolotl refuses about a setting. properties: the schemas of its settings."""
    key = str(path[-1])
    name = dotted(path)
    is_number = isinstance(value, int | float)
    if is_number and value < 0 and key in properties and key not in BELOW_ZERO:
        message = f"`{name}` cannot be `{value:g}`."
        yield recipe.problem(path, message, "Write 0 or more.")
    elif is_number and value >= 1 and key in BELOW_ONE:
        message = f"`{name}` cannot be `{value:g}`."
        yield recipe.problem(path, message, "Write a number below 1.")
    elif key in properties:
        part = {**properties[key], "$defs": catalog.axolotl_settings()["$defs"]}
        yield from schema_errors.values(recipe.document, path, part, value, AXOLOTL, name)
    else:
        yield schema_errors.unknown_to(recipe.document, path, properties, AXOLOTL)


def disk_of_pods(recipe: Recipe) -> bool:
    """Whether pods have the folder on a disk. Their `/tmp` is the machine's
    (`runner.parts.jobs.podspec.folders`)."""
    path = str(recipe.settings["sharding"]["nvme_path"])
    return recipe.on_claim(path) or path.startswith("/tmp/")


def own_engine_file(recipe: Recipe) -> Iterator[Problem]:
    """A user's own file must have DeepSpeed's or Axolotl's settings, and should not contradict the
    recipe."""
    if "sharding" not in recipe.settings:
        return
    try:
        document = sharding.own_file(recipe)
    except Stop as stop:
        (problem,) = stop.problems
        yield recipe.problem(
            "sharding.file",
            f"{problem.file}: {problem.message}",
            "Check the path; it is relative to the recipe's folder.",
        )
        return
    if document is None:
        return
    if common.by_fsdp(recipe):
        definitions = catalog.axolotl_settings()["$defs"]
        section = {**definitions["FSDPConfig"], "$defs": definitions}
        yield from schema_errors.values(
            document, (), section, document.data, AXOLOTL, "fsdp_config"
        )
        decides = sharding.fsdp_decided(recipe)
    elif recipe.distribution.startswith("zero"):
        yield from schema_errors.values(
            document, (), catalog.deepspeed_settings(), document.data, DEEPSPEED, ""
        )
        decides = _deepspeed_decided(recipe)
    else:
        return
    for path, file_value, ours in sharding.overruled(document.data, decides):
        name = dotted(path)
        if isinstance(file_value, Mapping):
            value = "{…}"
        else:
            value = json.dumps(file_value)
        if ours is None:
            message = f"The recipe sets `{name}` itself, and ignores this section."
        else:
            message = f"`{name}` is {value} here, but the recipe makes it {json.dumps(ours)}. The recipe wins."
        remedy = "Delete the line here, or change the recipe."
        yield document.problem(path, message, remedy, key=ours is None, severity="note")


def _deepspeed_decided(recipe: Recipe) -> dict[str, Any]:
    """The settings of DeepSpeed that the recipe decides."""
    precision = str(recipe.model.precision)
    if precision in ("auto", "fp8"):
        precision = "bf16"
    return sharding.decided(recipe, precision, recipe.train.max_grad_norm)


# The weight of an adapter, alpha / rank: below an eighth it has hardly any effect, above four
# training diverges. PEFT's published run of rsLoRA has 8 (method_comparison, rank 64).
LEAST_SCALE, MOST_SCALE, MOST_STABLE = 1 / 8, 4, 8


def adapters(recipe: Recipe) -> Iterator[Problem]:
    train = recipe.sections.get("train")
    if train is None:
        return
    rank = train.get("lora_rank")
    alpha = train.get("lora_alpha")
    if not rank or not alpha:
        return
    twice = 2 * rank
    if train.get("use_rslora"):
        divisor = rank**0.5
        formula = "alpha / √rank"
        most = MOST_STABLE
        hint = "Delete the line; with `use_rslora` an alpha of 16 is usual at any rank."
    else:
        divisor = rank
        formula = "alpha / rank"
        most = MOST_SCALE
        hint = f"Write `lora_alpha: {twice}` for a rank of {rank}, or delete the line. Usual values are {rank} to {twice}."
    scale = alpha / divisor
    if LEAST_SCALE <= scale <= most:
        return
    if alpha > divisor:
        message = f"The adapter is multiplied by {formula} = {scale:.3g}. Values far above 2 break training."
    else:
        message = f"An alpha of {alpha:g} is so small for a rank of {rank} that the adapter has almost no effect."
    yield recipe.note(("train", "lora_alpha"), message, hint)


_MARK = re.compile(r"<\|\w+\|>|<(start|end)_of_turn>|\[/?INST\]")
_COLUMN = re.compile(r"(?<!\[)\[([A-Za-z_]\w*)\]")


def answers(recipe: Recipe) -> Iterator[Problem]:
    for home, section in recipe.data_sets():
        if section.get("prompt"):
            question_setting = "prompt"
        else:
            question_setting = "question"
        columns = set(_COLUMN.findall(section.get(question_setting) or ""))
        taught = set(_COLUMN.findall(section.get("answer") or ""))
        if taught and taught <= columns:
            yield recipe.note(
                (*home, "answer"),
                f"`answer` is the same as `{question_setting}`, so the model would learn to repeat it.",
                "Name the column with the answers.",
            )
        if section.get("chosen") and section["chosen"] == section.get("rejected"):
            yield recipe.problem(
                (*home, "rejected"),
                "`chosen` and `rejected` are the same text, so there is nothing to prefer.",
                "Name the column with the worse answers.",
            )


def prompts(recipe: Recipe) -> Iterator[Problem]:
    """A system prompt is one text for all rows, without the marks of a chat template, and leaves
    room for them: a word is at least one token."""
    for home, section in recipe.data_sections:
        text = section.get("system_prompt") or ""
        place = (*home, "system_prompt")
        mark = _MARK.search(text)
        column = _COLUMN.search(text)
        if mark:
            yield recipe.note(
                place,
                f"`{mark[0]}` in the system prompt belongs to a chat template, which adds its special tokens itself.",
                "Leave it out.",
            )
        elif column:
            yield recipe.note(
                place,
                f"`{column[0]}` is not replaced in the system prompt, because that is the same for every row.",
                "Use columns in `question` and `answer`.",
            )
        word_count = len(text.split())
        where, length = recipe.longest_row(home)
        if length and word_count >= length:
            yield recipe.problem(
                where,
                f"The system prompt alone has {word_count:,} words, and rows of more than {length:,} tokens are left out. No row would remain.",
                "Raise `sequence_len`, or shorten `system_prompt`.",
            )


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
        if not isinstance(value, str):
            continue
        if path in recipe.document.origins or place.line > len(lines):
            continue
        line = lines[place.line - 1]
        start = place.column - 1
        cut = re.match(r"\s+(#[^\s#]\S*)", line[start + place.width :])
        if cut and "\n" not in value and line.startswith(value, start):
            yield recipe.note(
                path,
                f"The text ends before `{cut[1]}`, because YAML reads ` #` as the start of a comment.",
                "Put the whole text in quotes. If you want a comment, write a space after the #.",
            )
        if value[:1] in _QUOTES:
            yield recipe.note(
                path,
                f"`{value[0]}` is a typographic quotation mark, which becomes part of the text.",
                "Use straight quotes, `\"` or `'`, or none.",
            )


# Notes on values that are valid, but probably not intended.
UNUSUAL: tuple[Rule, ...] = (starters.demo, answers, cut_texts, prompts, adapters)
RULES: tuple[Rule, ...] = (
    *(known_model, custom_code, chat_template),
    *sources.RULES,
    *(memory_sizes, limits_can_be_meant, advanced_settings),
    contradictions(
        __file__,
        advised=advised_precision,
        or_precision=_or_precision,
        disk_of_pods=disk_of_pods,
        similar_gpus=similar_gpus,
        # also if the schema refused the section
        on_pods=lambda recipe: "openshift" in recipe.settings,
    ),
    *UNUSUAL,
)
# Rules that read files of this machine.
FILE_RULES: tuple[Rule, ...] = (
    as_locked,
    folder_behind_packaged_model,
    *sources.FILE_RULES,
    own_engine_file,
)
