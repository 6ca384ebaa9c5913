"""Fetches a model from the Hugging Face hub into its cache on this machine.

As a program it fetches one for a node, which ends it by closing its standard input, and tells on
standard output what `hub_fetch_io` reads: `python -m swarm.weights.hub_io NAME all|local|PART,...`.

Everything that the `huggingface_hub` library knows holds: HF_ENDPOINT, HF_HOME, HF_TOKEN,
HF_HUB_OFFLINE, resumed downloads, and locks between processes that want the same file.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import sys
import threading
import time
from collections.abc import Callable, Container, Iterator
from pathlib import Path
from typing import Any

from huggingface_hub import (
    HfApi,
    constants,
    hf_hub_download,
    try_to_load_from_cache,
)
from huggingface_hub.errors import (  # type: ignore[attr-defined]
    GatedRepoError,
    HfHubHTTPError,
    HFValidationError,
    HTTPError,  # of whichever HTTP library this version of the hub's uses
    LocalEntryNotFoundError,
    RepositoryNotFoundError,
    RevisionNotFoundError,
)
from huggingface_hub.utils import tqdm  # type: ignore[attr-defined]

from swarm.errors import ConfigError
from swarm.weights.hub import (
    ALL,
    INDEX_NAME,
    LOCAL,
    SINGLE_NAME,
    HubName,
    files_of,
    files_with,
    hub_name,
    weight_files,
)

RESERVE_BYTES = 1 << 30
"""Left free on the disk."""
UNAUTHORIZED = (401, 403)
SERVER_ERROR = 500
LATER = (408, 425, 429)
"""It is busy, or too much was asked of it."""

TOLD_INTERVAL_S = 0.5
"""Between two lines that tell a node how much has come."""

Say = Callable[[str], None]


class NotHere(ConfigError):
    """Nor can it be had now; later it may be."""


@contextlib.contextmanager
def _in_words(name: HubName) -> Iterator[None]:
    """Raises ConfigError, in one sentence, for whatever the library raises."""
    try:
        yield
    except (RepositoryNotFoundError, HFValidationError) as error:
        raise ConfigError(
            f"there is no {name.repo} here, and none that may be read at {constants.ENDPOINT}"
            " (a private model needs HF_TOKEN)"
        ) from error
    except RevisionNotFoundError as error:
        raise ConfigError(f"{name.repo} has no revision {name.revision} on the hub") from error
    except HfHubHTTPError as error:
        status = error.response.status_code
        kind = NotHere if status >= SERVER_ERROR or status in LATER else ConfigError
        raise kind(_refusal(name, error)) from error
    except (HTTPError, LocalEntryNotFoundError) as error:
        raise NotHere(
            f"{name} is not here, and {constants.ENDPOINT} cannot be reached: {error}"
        ) from error
    except OSError as error:
        reason = error.strerror or error
        raise ConfigError(f"{name} cannot be kept in {constants.HF_HUB_CACHE}: {reason}") from error


def fetch_files(name: HubName, parts: Container[str], bar: type[tqdm] | None = None) -> list[Path]:
    """Only the weight files that hold tensors of these parts. Raises ConfigError, as `fetch`."""
    if constants.HF_HUB_OFFLINE:
        raise NotHere("HF_HUB_OFFLINE is set")
    with _in_words(name):
        if name.file is not None:
            files = [name.file]
        else:
            known = HfApi().model_info(name.repo, revision=name.revision).siblings or ()
            index = None
            if any(file.rfilename == INDEX_NAME for file in known):
                at = hf_hub_download(name.repo, INDEX_NAME, revision=name.revision)
                index = Path(at).read_bytes()
            files = files_with(parts, index)
        return [
            Path(hf_hub_download(name.repo, file, revision=name.revision, tqdm_class=bar))
            for file in files
        ]


def fetch(name: HubName, say: Say, bar: type[tqdm] | None = None) -> Path:
    """The folder (of a GGUF file: the file) where the model lies now, all of it.

    say  told one line before anything is downloaded
    bar  shows how much of a file has come
    Raises ConfigError, in one sentence, when it cannot be had.
    """
    with _in_words(name):
        return cached(name) if constants.HF_HUB_OFFLINE else _fetched(name, say, bar)


def _refusal(name: HubName, error: HfHubHTTPError) -> str:
    status = error.response.status_code
    if isinstance(error, GatedRepoError) or status in UNAUTHORIZED:
        return f"{name.repo} is given out by the hub only to those it knows: set HF_TOKEN"
    return f"the hub at {constants.ENDPOINT} answered {status} for {name.repo}"


def _fetched(name: HubName, say: Say, bar: type[tqdm] | None) -> Path:
    info = HfApi().model_info(name.repo, revision=name.revision, files_metadata=True)
    sizes = {file.rfilename: file.size or 0 for file in info.siblings or ()}
    commit = info.sha or name.revision
    files = files_of(name, sizes)
    if INDEX_NAME in files:
        index = hf_hub_download(name.repo, INDEX_NAME, revision=commit)
        files += weight_files(name, Path(index).read_bytes(), sizes)
    lacking = [file for file in files if _in_cache(name, file, commit) is None]
    if lacking:
        needed = sum(sizes[file] for file in lacking)
        _check_room(name, needed)
        say(f"fetching {name} from {constants.ENDPOINT}: {needed / 1e6:,.1f} MB")
    paths = [
        Path(hf_hub_download(name.repo, file, revision=commit, tqdm_class=bar)) for file in files
    ]
    if lacking:
        # Without a commit's hash: so the cache learns which commit this name stands for now.
        hf_hub_download(name.repo, files[0], revision=name.revision)
    return paths[0] if name.file is not None else paths[0].parent


def cached(name: HubName) -> Path:
    """The same without asking the hub. Raises ConfigError when not all of it is here."""
    found = _in_cache(name, name.file or "config.json", name.revision)
    if found is None or not _is_whole(name, found):
        raise ConfigError(
            f"{name} is neither here nor in the hub's cache on this machine, and HF_HUB_OFFLINE"
            " is set"
        )
    return found if name.file is not None else found.parent


def _is_whole(name: HubName, found: Path) -> bool:
    """Whether the weights are there too."""
    if name.file is not None:
        return True
    index = found.parent / INDEX_NAME
    if not index.exists():
        return (found.parent / SINGLE_NAME).exists()
    here = {path.name: 0 for path in found.parent.iterdir()}
    try:
        weight_files(name, index.read_bytes(), here)
    except ConfigError:
        return False
    return True


def _in_cache(name: HubName, file: str, revision: str | None) -> Path | None:
    found = try_to_load_from_cache(name.repo, file, revision=revision)
    return Path(found) if isinstance(found, str) else None


def _check_room(name: HubName, needed: int) -> None:
    cache = Path(constants.HF_HUB_CACHE)
    cache.mkdir(parents=True, exist_ok=True)
    free = shutil.disk_usage(cache).free
    if needed + RESERVE_BYTES > free:
        raise ConfigError(
            f"{name} needs {needed >> 20} MiB on the disk of {cache}, where {free >> 20} MiB are"
            f" free and {RESERVE_BYTES >> 20} MiB stay free"
        )


# -------------------------------------------------------------------- as a program


class _Told(tqdm):
    """A progress bar that shows nothing and tells the node."""

    total_bytes = 0
    told_at = 0.0

    def __init__(self, *arguments: Any, **keywords: Any) -> None:
        keywords["disable"] = True
        super().__init__(*arguments, **keywords)  # type: ignore[no-untyped-call]

    def update(self, n: float | None = 1) -> bool | None:
        _Told.total_bytes += int(n or 0)
        now = time.monotonic()
        if now - _Told.told_at >= TOLD_INTERVAL_S:
            _Told.told_at = now
            _tell(done=_Told.total_bytes)
        return None


def _tell(**fields: object) -> None:
    sys.stdout.write(json.dumps(fields) + "\n")
    sys.stdout.flush()


def _end_with_parent() -> None:
    sys.stdin.buffer.read()
    os._exit(1)


def main(text: str, wanted: str) -> None:
    threading.Thread(target=_end_with_parent, daemon=True).start()
    name = hub_name(text)
    assert name is not None, text
    try:
        if wanted == LOCAL:
            paths = [cached(name)]
        elif wanted == ALL:
            paths = [fetch(name, lambda line: _tell(said=line), _Told)]
        else:
            paths = fetch_files(name, set(wanted.split(",")), _Told)
    except ConfigError as error:
        _tell(failed=str(error), is_final=not isinstance(error, NotHere))
    else:
        _tell(paths=[str(path) for path in paths])


if __name__ == "__main__":
    main(*sys.argv[1:])
