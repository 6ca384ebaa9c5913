"""What transformers itself generates, greedy in float32: the ids that a swarm must give as well.

As a program it reads one JSON request on stdin and writes the ids on stdout. `reference` runs it
in a process of its own, since torch must not be loaded beside the tests, and keeps the answer.
"""

from __future__ import annotations

import hashlib
import json
import subprocess
import sys
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any


@dataclass(frozen=True, slots=True)
class Reference:
    prompt_ids: list[int]
    ids: list[int]


def reference(model: Path, prompts: list[str], max_tokens: int, cache_dir: Path) -> list[Reference]:
    """`max_tokens` ids after each prompt, end-of-sequence ignored; cached in `cache_dir`."""
    request = {"model": str(model), "prompts": prompts, "max_tokens": max_tokens}
    facts = [request, version("torch"), version("transformers"), _fingerprint(model)]
    key = hashlib.sha256(json.dumps(facts).encode()).hexdigest()[:24]
    file = cache_dir / f"{key}.json"
    if not file.exists():
        ran = subprocess.run(
            [sys.executable, __file__],
            input=json.dumps(request),
            capture_output=True,
            text=True,
            check=False,
        )
        assert ran.returncode == 0, ran.stderr
        cache_dir.mkdir(parents=True, exist_ok=True)
        file.write_text(ran.stdout.splitlines()[-1])
    return [Reference(**row) for row in json.loads(file.read_text())]


def _fingerprint(model: Path) -> list[Any]:
    weights = model / "model.safetensors"
    return [weights.stat().st_size, (model / "config.json").read_text()]


def _generate(request: dict[str, Any]) -> list[dict[str, list[int]]]:
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    torch.set_num_threads(2)
    model = AutoModelForCausalLM.from_pretrained(request["model"], dtype=torch.float32)
    model.generation_config.eos_token_id = None
    model.generation_config.pad_token_id = 0
    tokenizer = AutoTokenizer.from_pretrained(request["model"])
    rows = []
    for prompt in request["prompts"]:
        ids = tokenizer(prompt, return_tensors="pt").input_ids
        with torch.inference_mode():
            whole = model.generate(
                ids,
                attention_mask=torch.ones_like(ids),
                max_new_tokens=request["max_tokens"],
                do_sample=False,
            )[0].tolist()
        count = ids.shape[1]
        rows.append({"prompt_ids": whole[:count], "ids": whole[count:]})
    return rows


if __name__ == "__main__":
    sys.stdout.write(json.dumps(_generate(json.loads(sys.stdin.read()))) + "\n")
