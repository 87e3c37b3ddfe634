"""Energy-based fine-tuning: what a recipe may say of it, what Axolotl gets, and what a plan counts."""

from dataclasses import replace
from types import SimpleNamespace

import pytest

from runner import scenarios
from runner.check.validate import examine, load
from runner.parts.planner import memory
from runner.parts.planner.state import held
from runner.parts.planner.workload import from_stage
from runner.recipe.overrides import from_options
from runner.recipe.recipe import CONVERSATIONS, PROMPTS, TEXT
from runner.render import place
from tests.scenarios.test_combinations import written


def work(path, *options: str):
    recipe = load(path, from_options(options))[0]
    stage = scenarios.translate(recipe, place(recipe)).stage("train")
    return from_stage(stage, recipe.facts), stage.config


@pytest.mark.parametrize(
    ("rows", "option", "said"),
    [
        (PROMPTS, "ebft.stride=4", "conversations and text"),
        (PROMPTS, "train.eval_batch_size=6", "no multiple of the 8 answers"),
        (PROMPTS, "train.vllm_server=there:8000", "only for a vLLM server"),
        (PROMPTS, "rewards.exact.weight=1", "rewards have no effect"),
        (PROMPTS, "train.objective=grpo", "only for energy-based fine-tuning"),
        (CONVERSATIONS, "train.packing=pack", "rows cannot be joined"),
        (CONVERSATIONS, "train.cross_entropy=fused", "computes its own loss"),
        (CONVERSATIONS, "train.neftune_noise=5", "Noise in the embeddings"),
        (CONVERSATIONS, "ebft.n_samples_per_prompt=1", "least"),
        (CONVERSATIONS, "machines.gpus_per_node=2", "on one GPU alone"),
        (TEXT, "ebft.generate_max_len=4096", "rows have at most"),
        (TEXT, "ebft.embed_method=concat", "concat"),
        (TEXT, "ebft.rl_coef=0", "only the next token is learned"),
        (TEXT, "ebft.min_completion_prefix=4", "It is for conversations"),
        (TEXT, "speed.compile=default", "compiled again"),
    ],
)
def test_what_makes_no_sense_is_refused(rows, option, said, tmp_path):
    path = written(tmp_path, "lora", rows, features=True)
    found = [problem for problem in examine(path, from_options([option])) if problem.severity == "error"]
    assert found and any(said in f"{problem.message} {problem.hint}" for problem in found), found


def test_a_server_of_vllm_writes_the_answers(tmp_path):
    path = written(tmp_path, "lora", PROMPTS, features=True)
    _, config = work(path, "train.generator=vllm-server", "train.vllm_server=gpu-2:8001")
    trl = config["trl"]
    assert (trl["vllm_mode"], trl["vllm_server_host"], trl["vllm_server_port"]) == ("server", "gpu-2", 8001)
    assert "vllm" not in config and "generation_batch_size" not in trl


@pytest.mark.parametrize("rows", [PROMPTS, CONVERSATIONS, TEXT])
def test_the_plan_counts_the_copy_of_the_model_that_features_come_from(rows, tmp_path):
    path = written(tmp_path, "full", rows, features=True)
    compared, _ = work(path)
    plain = held(compared).weights - held(of_the_next_token(compared)).weights
    assert plain >= 2 * 360_000_000
    lora = written(tmp_path, "lora", rows, features=True)
    adapted, _ = work(lora)
    assert held(adapted).weights < 1.2 * 2 * 362_000_000
    assert memory.estimate(adapted).total < memory.estimate(compared).total


def of_the_next_token(workload):
    """The same training of the next token."""
    return replace(workload, objective="sft", passes=0, samples=1, generated=0)


def test_continuations_make_rows_longer_and_more(tmp_path):
    path = written(tmp_path, "lora", TEXT, features=True)
    usual, config = work(path)
    length = config["sequence_len"]
    assert usual.sequence_len == length + ((length - 16) // 8 + 1) * 8 and usual.answers == 4
    wide, _ = work(path, "ebft.stride=64")
    more, _ = work(path, "ebft.n_samples_per_prompt=8")
    taken = [memory.estimate(one).total for one in (wide, usual, more)]
    assert taken == sorted(taken) and len({*taken}) == 3


def test_each_token_has_its_own_blocks_probability_and_worth():
    """A model whose every token follows from the one before it in its block is certain of its own continuations."""
    torch = pytest.importorskip("torch")
    from runner.trainer.features import StridedTrainer

    words, stride, steps, width = 50, 4, 3, 16
    seen = []

    class Next(torch.nn.Module):
        """Says that each token is the sum of the one before it and 1, and nothing else."""

        def __init__(self):
            super().__init__()
            self.scale = torch.nn.Parameter(torch.tensor(50.0))

        def forward(self, ids, logits_to_keep, **_):
            following = torch.nn.functional.one_hot((ids + 1) % words, words).float() * self.scale
            return SimpleNamespace(logits=following[:, logits_to_keep])

    def generated(model, ids, blocks, anchor_offset):
        before, made = ids[:, [anchor_offset - 1 + stride * block for block in range(blocks)]], [ids]
        for step in range(1, steps + 1):
            made.append((before + step) % words)
        return torch.cat(made, 1)

    def rewards(whole, mask, positions, ids, blocks, rows, samples, anchor_offset):
        seen.append(blocks)
        return torch.arange(rows * samples * blocks, dtype=torch.float).view(rows, samples, blocks)

    trainer = object.__new__(StridedTrainer)
    settings = {"generate_max_len": steps, "stride": stride, "n_samples": 2, "context_length": 4, "rl_coef": 1.0}
    settings |= {"min_completion_prefix": 0, "ce_coef": 0.0, "advantage_estimator": "reinforce"}
    for name, value in settings.items():
        setattr(trainer, f"ebft_{name}", value)
    trainer.worth, trainer._generate_strided_blocks, trainer._compute_block_rewards = [], generated, rewards
    trainer._build_strided_mask = lambda length, *_, **__: (None, torch.zeros(1, length))
    ids = torch.randint(0, words, (1, width), generator=torch.Generator().manual_seed(1))
    batch = {"input_ids": ids, "labels": ids, "attention_mask": torch.ones_like(ids)}
    loss = trainer.compute_loss(Next(), batch)
    assert seen == [3] and float(loss) < 1e-6 and loss.requires_grad
    assert trainer.worth == [2.5]
    # The last block ends in the padding, so it counts no more.
    batch["attention_mask"] = torch.tensor([[1] * (width - 2) + [0] * 2])
    trainer.compute_loss(Next(), batch)
    assert trainer.worth[-1] == 2.0
