"""The text files of a GGUF checkpoint, in the form every node reads: made by transformers."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Mapping
from pathlib import Path

import transformers

from swarm.errors import ShardError
from swarm.shard import checkpoint as rules
from swarm.shard.gguf_head import gguf_head

HEAD_BYTES_READ = 16 << 20
HEAD_BYTES_MAX = 256 << 20
"""Tokenizers of large vocabularies take some ten megabytes."""


def gguf_texts(path: Path) -> Mapping[str, bytes]:
    """config.json, generation_config.json, tokenizer files, chat template and the file's head, as
    bytes by name.

    Raises ShardError when transformers does not know the architecture or the tokenizer.
    """
    try:
        where = {"gguf_file": path.name, "local_files_only": True}
        config = transformers.AutoConfig.from_pretrained(path.parent, **where)
        tokenizer = transformers.AutoTokenizer.from_pretrained(path.parent, **where)
    except (ValueError, KeyError, OSError, TypeError, NotImplementedError) as error:
        raise ShardError(f"{path} is of a kind that cannot be read: {error}") from error
    with tempfile.TemporaryDirectory() as folder:
        tokenizer.save_pretrained(folder)
        files = {name: Path(folder, name) for name in rules.TEXT_NAMES}
        texts = {name: file.read_bytes() for name, file in files.items() if file.exists()}
    texts[rules.CONFIG_NAME] = _json(_plain(config.to_dict()))
    ids = {"bos_token_id": tokenizer.bos_token_id, "eos_token_id": tokenizer.eos_token_id}
    texts[rules.GENERATION_CONFIG_NAME] = _json(ids)
    texts[rules.GGUF_HEAD_NAME] = _head(path)
    return texts


def _head(path: Path) -> bytes:
    """Of unknown length: more is read until all of it is there."""
    count = HEAD_BYTES_READ
    while True:
        with path.open("rb") as stream:
            data = stream.read(count)
        try:
            return data[: gguf_head(data).byte_count]
        except ShardError:
            if len(data) < count or count >= HEAD_BYTES_MAX:
                raise
            count *= 4


def _plain(config: Mapping[str, object]) -> dict[str, object]:
    """Without what depends on who converted it: two nodes must come to the same identity."""
    passing = {"transformers_version", "_name_or_path", "_model_name_or_path"}
    return {key: value for key, value in config.items() if key not in passing}


def _json(table: Mapping[str, object]) -> bytes:
    return (json.dumps(table, indent=2, sort_keys=True, default=str) + "\n").encode()
