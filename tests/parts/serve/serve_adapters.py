"""Answers of vLLM, in a Python that has it: `serve_adapters.py FOLDER`, with a folder that has
`base` and adapters, and `tokens.json`, a prompt in tokens. Writes `answers.json` beside
them."""

import json
import os
import sys
from pathlib import Path

# A processor without a GPU, and as many threads as the machine has.
os.environ |= {"VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_CPU_OMP_THREADS_BIND": "nobind"}


def main() -> None:
    from vllm import LLM, SamplingParams
    from vllm.lora.request import LoRARequest

    folder = Path(sys.argv[1])
    prompt = json.loads((folder / "tokens.json").read_text("utf-8"))
    adapters = ["ours", "of the class for text"]
    server = LLM(
        model=str(folder / "base"),
        dtype="float32",
        enable_lora=True,
        max_lora_rank=8,
        max_loras=len(adapters),
        max_model_len=128,
        enforce_eager=True,
        limit_mm_per_prompt={"image": 0},
    )
    options = SamplingParams(temperature=0, max_tokens=12, ignore_eos=True)
    answers = {}
    for number, name in enumerate(["base", *adapters]):
        adapter = LoRARequest(name, number, str(folder / name)) if number else None
        prompts = [{"prompt_token_ids": prompt}]
        (answer,) = server.generate(prompts, options, lora_request=adapter, use_tqdm=False)
        answers[name] = list(answer.outputs[0].token_ids)
    (folder / "answers.json").write_text(json.dumps(answers), "utf-8")


if __name__ == "__main__":
    main()
