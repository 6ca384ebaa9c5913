"""What this machine's torch can do, as one line of JSON: `python -m swarm.shard.fitness_io`.

A process of its own, for `swarm doctor`: importing torch takes seconds, and a broken driver may
take the process down.
"""

from __future__ import annotations

import importlib
import json
import shutil
import sys
from typing import Any

Json = dict[str, Any]
TEXT_MAX = 200


def fitness() -> Json:
    """`problem`, or what there is: torch, devices, broken, flash, flash_problem, compiler."""
    try:
        import torch
        import transformers  # noqa: F401 - it must load too
    except Exception as error:  # noqa: BLE001 - whatever a broken installation raises is the answer
        return {"problem": _short(error)}
    from swarm.kernels.native_io import default_compiler

    working, broken = [], []
    for name, shown in _devices(torch):
        try:
            total = float(torch.ones(8, device=name).sum())
        except Exception as error:  # noqa: BLE001 - whatever a broken driver raises is the answer
            broken.append([name, _short(error)])
            continue
        if total == 8.0:
            working.append([name, shown])
        else:
            broken.append([name, f"a sum of eight ones gave {total}"])
    flash, flash_problem = _flash()
    compiler = default_compiler()
    return {
        "torch": torch.__version__,
        "devices": working,
        "broken": broken,
        "flash": flash,
        "flash_problem": flash_problem,
        "compiler": (shutil.which(compiler) or "") if compiler else "",
    }


def _devices(torch: Any) -> list[tuple[str, str]]:
    found = []
    if torch.cuda.is_available():
        for index in range(torch.cuda.device_count()):
            about = torch.cuda.get_device_properties(index)
            shown = f"{about.name}, {about.total_memory / (1 << 30):.0f} GiB"
            found.append((f"cuda:{index}", f"{shown}, sm{about.major}{about.minor}"))
    if torch.backends.mps.is_available():
        found.append(("mps", "Apple GPU"))
    return found


def _flash() -> tuple[str, str]:
    try:
        module = importlib.import_module("flash_attn")
    except ModuleNotFoundError:
        return "", "not installed"
    except Exception as error:  # noqa: BLE001 - a wheel for another torch fails in many ways
        return "", _short(error)
    return str(getattr(module, "__version__", "?")), ""


def _short(error: Exception) -> str:
    lines = str(error).strip().splitlines()
    return (lines[0] if lines else type(error).__name__)[:TEXT_MAX]


if __name__ == "__main__":
    sys.stdout.write(json.dumps(fitness()) + "\n")
