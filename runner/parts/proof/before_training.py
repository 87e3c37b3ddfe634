"""Proof: before the first step of a run, what is about to be trained is judged and shown."""

from __future__ import annotations

import json
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from axolotl.utils.dict import DictDefault

from runner.parts.proof.prove import Prover
from runner.trainer import progress_lines
from runner.trainer.proof_record import Proof
from runner.trainer.settings import RunSettings


def prove(cfg: DictDefault, trainer: Any, settings: RunSettings) -> Proof:
    """Judges rows and batches in every process alike, because some of the engine's figures are made by all together; the first
    one leaves `proof.json` and says so. Models on GPUs may be in parts by now, and are not asked."""
    demo, blocks = settings.demo, settings.blocks
    sharded = cfg.deepspeed or cfg.fsdp or cfg.fsdp_config
    proof = Prover(
        cfg,
        trainer,
        asks_later=[*(demo.questions if demo and demo.chat else ()), *_questions(settings.proof.questions)],
        turn_end=demo.turn_end if demo else None,
        first=blocks.first_step * settings.effective_batch_size if blocks else 0,
        with_model=not torch.cuda.is_available() and not sharded,
        show=settings.proof.show,
        planned_attention=settings.proof.planned,
    ).prove()
    if not proof.attention and settings.proof.prepared and (earlier := Proof.read(Path(settings.proof.prepared))):
        names = ("joined", "attention", "logits_moved", "loss_at_once", "loss_accumulated")
        proof = replace(proof, **{name: getattr(earlier, name) for name in names})
    if int(os.environ.get("RANK", "0")) == 0:
        folder = Path(settings.run_dir)
        proof.write(folder)
        print(progress_lines.write({"event": "proof", "folder": str(folder)}), flush=True)
    return proof


def _questions(file: str | None) -> list[str]:
    if file is None:
        return []
    return [json.loads(line)["question"] for line in Path(file).read_text("utf-8").splitlines() if line.strip()]
