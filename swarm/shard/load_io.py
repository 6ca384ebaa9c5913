"""Loads a shard from disk by transformers, reading only the tensors it holds."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
import transformers
from huggingface_hub.errors import StrictDataclassError
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING

from swarm.errors import ConfigError, ShardError
from swarm.shard.cut import Part, cut_class, drop_spent_embedding
from swarm.shard.gguf_part_io import as_loaded
from swarm.shard.gguf_weights_io import gguf_source
from swarm.shard.glue import install_glue
from swarm.shard.quantized import quantize_model
from swarm.shard.stage import ROW_TYPES, Stage

_DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


LOAD_ERRORS = (
    OSError,
    ValueError,
    RuntimeError,
    ImportError,
    LookupError,
    AttributeError,
    TypeError,
    ArithmeticError,
    AssertionError,
    StrictDataclassError,
)
"""What transformers and torch raise for a config or a checkpoint of anybody's that they cannot
build: torch asserts what it is given."""


def quiet_transformers() -> None:
    """No progress bars, no advice: a worker's stderr is one line per event."""
    transformers.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()


def read_config(path: Path) -> Any:
    """The checkpoint's config with defaults filled in.

    Raises ShardError when it is broken, of a kind transformers does not know, or needs its own
    code, which is never run.
    """
    if not path.exists():  # transformers would take the name for one to fetch
        raise ShardError(f"there is no model at {path}")
    positional, keywords = _location(path)
    try:
        config = transformers.AutoConfig.from_pretrained(
            *positional, **keywords, trust_remote_code=False, local_files_only=True
        )
    except LOAD_ERRORS as error:
        raise ShardError(f"the config of {path} is not usable: {_first_line(error)}") from error
    if type(config) not in MODEL_FOR_CAUSAL_LM_MAPPING:
        raise ShardError(f"{path} is of kind {config.model_type!r}, which generates no text")
    return config


def load_stage(
    path: Path,
    part: Part,
    dtype: torch.dtype,
    device: torch.device,
    quantization: str = "none",
) -> Stage:
    """Raises ShardError when the checkpoint cannot be cut so, or lacks tensors.

    quantization  of the weights: `none`, or one of `quantized.QUANTIZATIONS`
    """
    with as_loaded(path) as shown:
        return _loaded_stage(shown, part, dtype, device, quantization)


def _loaded_stage(
    path: Path, part: Part, dtype: torch.dtype, device: torch.device, quantization: str
) -> Stage:
    config = read_config(path)
    base = MODEL_FOR_CAUSAL_LM_MAPPING[type(config)]
    base = base[0] if isinstance(base, tuple) else base
    positional, keywords = _location(path)
    if "gguf_file" in keywords:
        keywords["quantization_config"] = transformers.GgufConfig(dequantize=True)
    try:
        model, report = cut_class(base, part).from_pretrained(
            *positional,
            **keywords,
            trust_remote_code=False,
            dtype=dtype,
            device_map={"": device},
            local_files_only=True,
            output_loading_info=True,
        )
    except LOAD_ERRORS as error:
        raise ShardError(f"{path} could not be loaded: {_first_line(error)}") from error
    lacking = sorted(report["missing_keys"])
    if lacking:
        raise ShardError(f"{path} lacks {len(lacking)} tensors, first {lacking[0]}")
    source = None
    if path.is_file() and quantization != "none":
        source = gguf_source(path, config.get_text_config(decoder=True), quantization)
    quantize_model(model, quantization, source)
    if device.type == "cpu":
        _leave_file(model)
    model.eval()
    glue = install_glue(model)
    stage = Stage(model, part, device)
    stage.quantization, stage.glue = quantization, glue
    if not part.embed:
        drop_spent_embedding(model)
    return stage


def _leave_file(model: Any) -> None:
    """Copy the floats that are left: they keep the whole checkpoint mapped, and resident."""
    for parameter in model.parameters():
        parameter.data = parameter.data.clone()


def _location(path: Path) -> tuple[tuple[Path], dict[str, Any]]:
    """How transformers wants a folder, or a GGUF file, to be named."""
    return ((path.parent,), {"gguf_file": path.name}) if path.is_file() else ((path,), {})


def _first_line(error: Exception) -> str:
    text = str(error).strip()
    return text.splitlines()[0] if text else type(error).__name__


def choose_device(name: str) -> torch.device:
    """Raises ConfigError when this machine has no such device."""
    try:
        device = torch.device(name)
    except RuntimeError as error:
        raise ConfigError(f"{name!r} is not a device; use cpu, cuda:N or mps") from error
    if device.type == "cuda" and (device.index or 0) >= torch.cuda.device_count():
        raise ConfigError(f"this machine has {torch.cuda.device_count()} CUDA devices, no {name}")
    if device.type == "mps" and not torch.backends.mps.is_available():
        raise ConfigError("this machine has no MPS device")
    if device.type not in ("cpu", "cuda", "mps"):
        raise ConfigError(f"{name!r} is not a device that can be used; use cpu, cuda:N or mps")
    return device


def choose_dtype(asked: str, own: torch.dtype | None, device: torch.device) -> torch.dtype:
    """`auto` is the checkpoint's own, or float32 where the device would crawl in that one."""
    if asked != "auto":
        if asked not in _DTYPES:
            raise ConfigError(f"{asked!r} is not a dtype; use auto, {', '.join(_DTYPES)}")
        return _DTYPES[asked]
    if own not in ROW_TYPES:
        return torch.float32
    if device.type == "cpu" and not _cpu_is_fast_in(own):
        return torch.float32
    if own is torch.bfloat16 and device.type == "cuda" and not torch.cuda.is_bf16_supported():
        return torch.float16
    return own


def _cpu_is_fast_in(dtype: torch.dtype) -> bool:
    if dtype is torch.bfloat16:
        return bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())
    if dtype is torch.float16:
        return bool(torch.ops.mkldnn._is_mkldnn_fp16_supported())
    return True
