"""The models that came from peers, on disk: shared by all nodes of a host.

    <cache>/<ModelId>/manifest.json, pieces.bin, config.json, tokenizer.json, ...
                      layer-0012.safetensors ...     whole files only
                      .layer-0012.safetensors.part   with the pieces that have come so far
                      model.safetensors.index.json   of the whole files
                      swarm.json                     {"name": what people call it}
                      .lock                          shared by nodes that use it; whoever removes
                                                     the model must have it alone
                      .index.lock                    held while the index is written anew

A piece is written once it is proven. What a `.part` holds after a restart is proven again by its
hashes, so nothing on disk has to be believed. Two nodes that fetch one file write the same bytes.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
import shutil
import threading
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import swarm.shard.checkpoint as rules
from swarm.config import WeightsConfig
from swarm.errors import CapacityError, ShardError
from swarm.shard.checkpoint import Manifest
from swarm.terms import ModelId
from swarm.weights.layout import FilePlan, PieceSpec, index_json

INDEX_NAME = "model.safetensors.index.json"
SINGLE_NAME = "model.safetensors"
ABOUT_NAME = "swarm.json"
LOCK_NAME = ".lock"
INDEX_LOCK_NAME = ".index.lock"
GONE_PREFIX = ".gone-"
"""Of the folder of a model that is being removed: nobody looks into it any more."""
HOLD_TRIES = 8
"""Times that a model is removed just while it is being held; more than once is chance."""
PART_SUFFIX = ".part"
CACHE_PATH = ".cache/swarm/models"
HALF = 2
BLOCK_BYTES = 512
"""What `st_blocks` counts, whatever the file system's blocks are."""
_MODEL_ID = re.compile(r"[0-9a-f]{32}")


@dataclass(frozen=True, slots=True)
class Stored:
    """A model in the cache."""

    model_id: ModelId
    name: str
    path: Path
    byte_count: int
    used_at: float
    layers: tuple[int, ...]
    in_use: bool


def models_store(config: WeightsConfig) -> ModelStore:
    """The one that the config names."""
    folder = Path(config.cache_dir).expanduser() if config.cache_dir else Path.home() / CACHE_PATH
    return ModelStore(folder, config.cache_bytes_max, config.disk_reserve_bytes)


def cached_models(store: ModelStore) -> tuple[tuple[ModelId, str], ...]:
    """Ids and names of the models of which weights are here, the one used last first."""
    try:
        models = [model for model in store.models() if model.layers]
    except OSError:
        return ()
    models.sort(key=lambda model: -model.used_at)
    return tuple((model.model_id, model.name) for model in models)


class ModelStore:
    """All of it. Every method reads or writes the disk, so a loop calls them in a thread."""

    def __init__(self, folder: Path, bytes_max: int, reserve_bytes: int) -> None:
        self.folder = folder
        self._bytes_max = bytes_max
        self._reserve_bytes = reserve_bytes
        self._held: dict[ModelId, int] = {}

    def path_of(self, model_id: ModelId) -> Path:
        """Raises ShardError for an id that is none: such names come from peers."""
        if not _MODEL_ID.fullmatch(model_id):
            raise ShardError(f"{model_id[:40]!r} is no model id")
        return self.folder / model_id

    # ------------------------------------------------------------ taking in

    def begin(self, model_id: ModelId, name: str, files: Mapping[str, bytes]) -> Path:
        """Keep the manifest and the texts of a model, and hold it against removal."""
        path = self.path_of(model_id)
        self._hold(model_id)
        about = json.dumps({"name": name}).encode()
        for text, content in {**files, ABOUT_NAME: about}.items():
            _write_whole(path / text, content)
        return path

    def make_room(self, model_id: ModelId, plans: Sequence[FilePlan]) -> None:
        """For files that are not here yet. Raises CapacityError when there is no room to be had."""
        path = self.path_of(model_id)
        needed = sum(_lacking_bytes(path / plan.name, plan) for plan in plans)
        present = sum(_stored_bytes(p) for p in self._models())
        free = shutil.disk_usage(self.folder).free
        limit = self._bytes_max or present + free // HALF
        over = max(present + needed - limit, needed - (free - self._reserve_bytes))
        others = [m for m in self.models() if not m.in_use and m.model_id != model_id]
        lacking = over - sum(model.byte_count for model in others)
        for model in sorted(others, key=lambda model: model.used_at):
            if over <= 0 or lacking > 0:
                break  # it fits, or would not with all of them gone
            if self.remove(model.model_id):
                over -= model.byte_count
        if over > 0:
            raise CapacityError(
                f"{needed >> 20} MiB of weights do not fit into {self.folder}: "
                f"{max(over, lacking) >> 20} MiB are lacking "
                "(weights.cache_bytes_max, or the disk is full)"
            )

    def have(self, model_id: ModelId, plan: FilePlan, pieces: Sequence[PieceSpec]) -> list[bool]:
        """Which pieces of a file are here, proven by their hashes. Makes the part file."""
        whole = self.path_of(model_id) / plan.name
        state = _state(whole)
        if state is not None and state.st_size == plan.byte_count:
            return [True] * len(pieces)
        part = _part_of(whole)
        is_new = not part.exists()
        # Another node of this host may make it, or make the whole file of it, at this moment.
        with os.fdopen(os.open(part, os.O_RDWR | os.O_CREAT, 0o644), "r+b") as stream:
            stream.truncate(plan.byte_count)
            stream.write(plan.head)
            if is_new:
                return [False] * len(pieces)
            return [_is_proven(stream.fileno(), piece) for piece in pieces]

    def put(self, model_id: ModelId, piece: PieceSpec, data: bytes | bytearray) -> bool:
        """Write a piece if its bytes are the model's; whether they were. Raises ShardError when its
        file was removed meanwhile."""
        if len(data) != piece.byte_count or hashlib.sha256(data).digest() != piece.digest:
            return False
        whole = self.path_of(model_id) / piece.file
        try:
            handle = os.open(_part_of(whole), os.O_WRONLY)
        except FileNotFoundError:
            if whole.exists():
                return True  # another node of this host was faster
            raise ShardError(f"{whole} was removed while it was fetched") from None
        try:
            os.pwrite(handle, data, piece.start)
        finally:
            os.close(handle)
        return True

    def finish(self, model_id: ModelId, plan: FilePlan) -> None:
        """All pieces of a file are here: it becomes part of the model."""
        whole = self.path_of(model_id) / plan.name
        part = _part_of(whole)
        with contextlib.suppress(FileNotFoundError):
            with part.open("r+b") as stream:
                os.fsync(stream.fileno())
            os.replace(part, whole)
        if not whole.exists():
            raise ShardError(f"{whole} was removed while it was fetched")
        self._write_index(model_id)

    def _write_index(self, model_id: ModelId) -> None:
        path = self.path_of(model_id)
        with _locked(path / INDEX_LOCK_NAME):
            files = {f.name: _tensor_names(f) for f in sorted(path.glob("*.safetensors"))}
            _write_whole(path / INDEX_NAME, index_json(files))

    # ------------------------------------------------------------ what is here

    def models(self) -> tuple[Stored, ...]:
        found = []
        for path in self._models():
            with contextlib.suppress(FileNotFoundError):  # it was removed at this moment
                found.append(self._stored(path))
        return tuple(sorted(found, key=lambda model: (model.name, model.model_id)))

    def remembered(self, model_id: ModelId) -> dict[str, bytes] | None:
        """Manifest, piece hashes and texts of a model, if all are here and as they should be."""
        path = self.path_of(model_id)
        try:
            files = {n: (path / n).read_bytes() for n in (rules.MANIFEST_NAME, rules.PIECES_NAME)}
            manifest = rules.parse_manifest(files[rules.MANIFEST_NAME])
            files |= {name: (path / name).read_bytes() for name in manifest.texts}
            check_texts(model_id, files)
        except (OSError, ShardError):
            return None
        return files

    def verify(self, model_id: ModelId) -> list[str]:
        """What is wrong with a model's files, one sentence each; damaged weight files go."""
        path = self.path_of(model_id)
        files = self.remembered(model_id)
        if files is None:
            return [f"{path}: the manifest or a text file is damaged"]
        manifest = rules.parse_manifest(files[rules.MANIFEST_NAME])
        hashes = rules.piece_hashes(manifest, files[rules.PIECES_NAME])
        wrong = []
        for file in sorted(path.glob("*.safetensors")):
            if not _is_whole(file, manifest, hashes):
                wrong.append(f"{file}: not what the model's manifest says; removed")
                file.unlink()
        if wrong:
            self._write_index(model_id)
        return wrong

    def remove(self, model_id: ModelId) -> bool:
        """Whether it is gone: a model that a node uses stays."""
        path = self.path_of(model_id)
        handle = _alone(path)
        if handle is None:
            return False
        gone = path.with_name(f"{GONE_PREFIX}{path.name}-{os.getpid()}-{threading.get_ident()}")
        try:
            if not _is_same(handle, path / LOCK_NAME):
                return False  # another was faster
            os.rename(path, gone)
        finally:
            os.close(handle)
        for left in self.folder.glob(f"{GONE_PREFIX}*"):
            shutil.rmtree(left, ignore_errors=True)  # whoever removes it too may be faster
        return True

    def release(self, model_id: ModelId) -> None:
        """A model is no longer held."""
        if (handle := self._held.pop(model_id, None)) is not None:
            os.close(handle)

    def close(self) -> None:
        """Models are no longer held."""
        for handle in self._held.values():
            os.close(handle)
        self._held.clear()

    # ------------------------------------------------------------ inside

    def _hold(self, model_id: ModelId) -> None:
        """Waits while others look whether it is held, or remove it."""
        path = self.path_of(model_id)
        for _ in range(HOLD_TRIES):
            path.mkdir(parents=True, exist_ok=True)
            if model_id in self._held and _is_same(self._held[model_id], path / LOCK_NAME):
                os.utime(path / LOCK_NAME)
                return
            if (before := self._held.pop(model_id, None)) is not None:
                os.close(before)
            with contextlib.suppress(FileNotFoundError):
                self._held[model_id] = _shared(path / LOCK_NAME)
        raise ShardError(f"{path} is removed again and again")

    def _models(self) -> Iterator[Path]:
        self.folder.mkdir(parents=True, exist_ok=True)
        for path in sorted(self.folder.iterdir()):
            if _MODEL_ID.fullmatch(path.name) and (path / rules.MANIFEST_NAME).is_file():
                yield path

    def _stored(self, path: Path) -> Stored:
        about = _about(path)
        lock = _state(path / LOCK_NAME)
        free = _alone(path)
        if free is not None:
            os.close(free)
        return Stored(
            model_id=ModelId(path.name),
            name=about,
            path=path,
            byte_count=_stored_bytes(path),
            used_at=lock.st_mtime if lock else 0.0,
            layers=tuple(
                int(file.name[len("layer-") : -len(".safetensors")])
                for file in sorted(path.glob("layer-*.safetensors"))
            ),
            in_use=free is None,
        )


def check_texts(model_id: ModelId, files: Mapping[str, bytes]) -> Manifest:
    """The manifest, if all files that came with it are the model's. Raises ShardError."""
    data = files[rules.MANIFEST_NAME]
    if rules.model_id_of(data) != model_id:
        raise ShardError("the manifest is another model's")
    manifest = rules.parse_manifest(data)
    rules.piece_hashes(manifest, files[rules.PIECES_NAME])
    for name, digest in manifest.texts.items():
        if hashlib.sha256(files[name]).hexdigest() != digest:
            raise ShardError(f"{name} is not the model's")
    return manifest


def _is_proven(handle: int, piece: PieceSpec) -> bool:
    data = os.pread(handle, piece.byte_count, piece.start)
    return hashlib.sha256(data).digest() == piece.digest


def _is_whole(file: Path, manifest: Manifest, hashes: Mapping[str, bytes]) -> bool:
    size = rules.HASH_BYTES
    try:
        spans = tensor_spans(file)
        with file.open("rb") as stream:
            for span in spans:
                entry = manifest.tensors[span.name]
                if (entry.dtype, entry.shape) != (span.dtype, span.shape):
                    return False
                stream.seek(span.start)
                for index in range(rules.piece_count(entry.byte_count)):
                    left = entry.byte_count - index * rules.PIECE_BYTES
                    data = stream.read(min(rules.PIECE_BYTES, left))
                    expected = hashes[span.name][index * size : (index + 1) * size]
                    if hashlib.sha256(data).digest() != expected:
                        return False
    except (OSError, ShardError, KeyError):
        return False
    return True


def tensor_spans(file: Path) -> tuple[rules.TensorSpan, ...]:
    """Where the file keeps its tensors. Raises ShardError."""
    with file.open("rb") as stream:
        length = rules.header_length(stream.read(8), str(file))
        stream.seek(0)
        head = stream.read(8 + length)
        return rules.parse_safetensors_header(head, file.stat().st_size, str(file))


def tensor_places(folder: Path) -> dict[str, tuple[Path, int, int]]:
    """Per tensor in a model's safetensors files: file, first byte, bytes. Raises ShardError."""
    if not folder.is_dir():
        return {}
    return {
        span.name: (file, span.start, span.stop - span.start)
        for file in _weight_files(folder)
        for span in tensor_spans(file)
    }


def _weight_files(folder: Path) -> list[Path]:
    """What belongs to the model: others may lie beside it."""
    try:
        named = set(json.loads((folder / INDEX_NAME).read_bytes())["weight_map"].values())
    except FileNotFoundError:
        single = folder / SINGLE_NAME
        return [single] if single.is_file() else []
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ShardError(f"{folder / INDEX_NAME} is damaged") from error
    return [file for file in sorted(folder.glob("*.safetensors")) if file.name in named]


def _tensor_names(file: Path) -> list[str]:
    return [span.name for span in tensor_spans(file)]


def _stored_bytes(path: Path) -> int:
    """On the disk: a part file's holes do not count."""
    total = 0
    with contextlib.suppress(FileNotFoundError):  # it was removed at this moment
        for file in path.iterdir():
            with contextlib.suppress(FileNotFoundError):
                state = file.stat()
                total += min(state.st_size, state.st_blocks * BLOCK_BYTES)
    return total


def _lacking_bytes(whole: Path, plan: FilePlan) -> int:
    """What a file will take on the disk beyond what has come of it."""
    part = _state(_part_of(whole))
    if whole.exists():  # looked at last: a part that is gone has become the whole file
        return 0
    return plan.byte_count - (min(plan.byte_count, part.st_blocks * BLOCK_BYTES) if part else 0)


def _about(path: Path) -> str:
    try:
        name = json.loads((path / ABOUT_NAME).read_bytes())["name"]
    except (OSError, ValueError, KeyError, TypeError):
        return path.name
    return str(name)


def _part_of(whole: Path) -> Path:
    return whole.with_name(f".{whole.name}{PART_SUFFIX}")


def _write_whole(path: Path, content: bytes) -> None:
    """Atomic, and only when the content differs."""
    state = _state(path)
    if state is not None and state.st_size == len(content) and path.read_bytes() == content:
        return
    part = path.with_name(f".{path.name}.{os.getpid()}.{threading.get_ident()}")
    try:
        part.write_bytes(content)
        os.replace(part, path)
    finally:
        part.unlink(missing_ok=True)


def _alone(path: Path) -> int | None:
    """The open lock file of a model's folder, held alone; None when it cannot be."""
    import fcntl

    try:
        handle = os.open(path / LOCK_NAME, os.O_RDWR | os.O_CREAT, 0o644)
    except FileNotFoundError:
        return None
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(handle)
        return None
    return handle


def _shared(lock: Path) -> int:
    """The open lock file, shared. Waits for those that have it alone: never for long."""
    import fcntl

    handle = os.open(lock, os.O_RDWR | os.O_CREAT, 0o644)
    fcntl.flock(handle, fcntl.LOCK_SH)
    return handle


@contextlib.contextmanager
def _locked(file: Path) -> Iterator[None]:
    """Hold a lock file alone, against other threads and other nodes of this host."""
    import fcntl

    handle = os.open(file, os.O_RDWR | os.O_CREAT, 0o644)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield
    finally:
        os.close(handle)


def _is_same(handle: int, file: Path) -> bool:
    """Whether an open file is still the one of this name."""
    state = _state(file)
    return state is not None and os.path.samestat(os.fstat(handle), state)


def _state(file: Path) -> os.stat_result | None:
    """In one look: between two, another node of this host may finish or remove the file."""
    try:
        return file.stat()
    except FileNotFoundError:
        return None
