"""Names of models on the Hugging Face hub, and which of a repository's files make a model. Pure."""

from __future__ import annotations

import json
import re
from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass

from swarm.errors import ConfigError
from swarm.shard.checkpoint import TEXT_NAMES
from swarm.weights.layout import file_of

INDEX_NAME = "model.safetensors.index.json"
SINGLE_NAME = "model.safetensors"
GGUF_SUFFIX = ".gguf"
NAMES_SHOWN = 5
ALL, LOCAL = "all", "local"
"""What a process is told that fetches for a node, where it is not some parts alone."""

_WORD = r"[A-Za-z0-9][\w.-]*"
_NAME = re.compile(
    rf"(?P<repo>{_WORD}/{_WORD})(?:/(?P<file>[\w./-]+\.gguf))?(?:@(?P<revision>[\w./-]+))?"
)


@dataclass(frozen=True, slots=True)
class HubName:
    """`ORG/NAME`, `ORG/NAME/FILE.gguf`, each with `@REVISION` where it is not the main one."""

    repo: str
    file: str | None
    revision: str | None

    def __str__(self) -> str:
        return self.repo if self.file is None else f"{self.repo}/{self.file}"


def hub_name(text: str) -> HubName | None:
    """None where it cannot be one: more likely a path."""
    match = _NAME.fullmatch(text)
    if match is None:
        return None
    return HubName(match["repo"], match["file"], match["revision"])


def files_of(name: HubName, sizes: Mapping[str, int]) -> list[str]:
    """What to fetch of a repository for its texts and to find its weights.

    sizes  bytes of each file of the repository
    Raises ConfigError where it holds nothing that can be served.
    """
    if name.file is not None:
        if name.file not in sizes:
            raise ConfigError(f"{name.repo} has no file {name.file} on the hub{_ggufs(sizes)}")
        return [name.file]
    if "config.json" not in sizes or not {INDEX_NAME, SINGLE_NAME} & sizes.keys():
        lacks = "config.json" if "config.json" not in sizes else "weights as safetensors"
        raise ConfigError(f"{name.repo} on the hub has no {lacks}{_ggufs(sizes)}")
    index = [INDEX_NAME] if INDEX_NAME in sizes else [SINGLE_NAME]
    return [text for text in TEXT_NAMES if text in sizes] + index


def weight_files(name: HubName, index: bytes, sizes: Mapping[str, int]) -> list[str]:
    """The weight files that an index names. Raises ConfigError for one that is broken."""
    try:
        named = set(json.loads(index)["weight_map"].values())
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ConfigError(f"{name.repo}: {INDEX_NAME} of the hub cannot be read") from error
    missing = sorted(file for file in named if file not in sizes)
    if missing:
        raise ConfigError(f"{name.repo} on the hub lacks {_listed(missing)}, which its index names")
    return sorted(named)


def files_with(parts: Container[str], index: bytes | None) -> list[str]:
    """The weight files of a repository that hold tensors of these `parts`, files of a model's part
    as `layout` names them. `index` None: there is but one. Raises ConfigError."""
    if index is None:
        return [SINGLE_NAME]
    try:
        weight_map = json.loads(index)["weight_map"]
        return sorted({file for tensor, file in weight_map.items() if file_of(tensor) in parts})
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ConfigError(f"{INDEX_NAME} of the hub cannot be read") from error


def _ggufs(sizes: Mapping[str, int]) -> str:
    found = sorted(file for file in sizes if file.endswith(GGUF_SUFFIX))
    return f"; it has {_listed(found)}" if found else ""


def _listed(names: Sequence[str]) -> str:
    more = len(names) - NAMES_SHOWN
    return ", ".join(names[:NAMES_SHOWN]) + (f" and {more} more" if more > 0 else "")
