"""Builds the C++ kernels for this machine at first use, and loads them once per process.

The library is kept under a hash of all that it depends on: sources, flags, the compiler's own
macros (its version, and the instruction set that `-march=native` stands for here) and torch. It is
built aside and renamed, by one process at a time: the others wait for it and take what it made.
Without a compiler, or when the build fails, the plain torch reference runs and `problem` says why.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import platform
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import torch

from swarm.kernels import fakes

SOURCE_DIR = Path(__file__).parent / "native"
BUILD_LIMIT_S = 100.0
"""A build takes some ten seconds on an idle machine; after this it is ended and the reference runs.
Below `ShardConfig.load_quiet_s`, after which a daemon gives a silent worker up."""
_LOCK_PAUSE_S = 0.2
_PROBE_LIMIT_S = 20.0
_TEXT_CHARACTERS = 200
_ARM = ("aarch64", "arm64")


@dataclass(frozen=True, slots=True)
class Native:
    """What became of the native kernels in this process."""

    instruction_set: str = ""
    """Empty when they are not there."""
    problem: str = ""
    """Why they are not there, as one sentence."""

    @property
    def available(self) -> bool:
        return bool(self.instruction_set)


class NativeBuildError(Exception):
    """The kernels could not be built or loaded here; the reference runs instead."""


_chosen: list[Native] = []


def start_native(cache_dir: Path | None = None, compiler: str | None = None) -> Native:
    """Build (or find) and load the kernels. Only the first call of a process decides.

    cache_dir  where built libraries are kept; None: `default_cache_dir()`
    compiler   a C++ compiler's name or path; None: `default_compiler()`
    """
    if not _chosen:
        try:
            torch.ops.load_library(str(build(cache_dir or default_cache_dir(), compiler)))
            fakes.register()
            _chosen.append(Native(instruction_set=torch.ops.swarm.instruction_set()))
        except (NativeBuildError, OSError, RuntimeError) as error:
            _chosen.append(Native(problem=_one_line(str(error))))
    return _chosen[0]


def native_available() -> bool:
    """Whether `start_native` has loaded the kernels in this process."""
    return bool(_chosen) and _chosen[0].available


def default_cache_dir() -> Path:
    base = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    return Path(base) / "swarm" / "kernels"


def default_compiler() -> str | None:
    """$CXX, else the first known name on PATH."""
    asked = os.environ.get("CXX")
    if asked:
        return asked
    return next((name for name in ("g++", "c++", "clang++") if shutil.which(name)), None)


def build(cache_dir: Path, compiler: str | None = None) -> Path:
    """The library's path, building it when it is not in `cache_dir`. Raises NativeBuildError."""
    name = compiler or default_compiler()
    found = shutil.which(name) if name else None
    if found is None:
        raise NativeBuildError(f"no C++ compiler was found ({name or 'g++, c++, clang++'})")
    flags = _flags()
    target = cache_dir / f"swarm-{_key(found, flags)}.so"
    if target.exists():
        return target
    try:
        cache_dir.mkdir(parents=True, exist_ok=True)
        deadline = time.monotonic() + BUILD_LIMIT_S
        with (
            _only_builder(cache_dir / "lock", deadline),
            tempfile.TemporaryDirectory(dir=cache_dir, prefix="build-") as folder,
        ):
            if not target.exists():
                _compile(found, flags, Path(folder), deadline).replace(target)
    except OSError as error:
        raise NativeBuildError(f"{cache_dir} cannot hold the built kernels: {error}") from error
    return target


def _flags() -> list[str]:
    """No contraction and no fast-math: each float operation rounds as it is written."""
    here = "-mcpu=native" if platform.machine() in _ARM else "-march=native"
    flags = ["-O3", here, "-std=c++20", "-fPIC", "-ffp-contract=off", "-fno-math-errno", "-w"]
    flags += ["-fvisibility=hidden"]
    if sys.platform == "linux" and torch.backends.openmp.is_available():
        flags.append("-fopenmp")
    include = Path(torch.__file__).parent / "include"
    return [*flags, f"-I{include}", f"-I{include / 'torch' / 'csrc' / 'api' / 'include'}"]


def _link_flags() -> list[str]:
    library = Path(torch.__file__).parent / "lib"
    flags = ["-shared", f"-L{library}", "-ltorch_cpu", "-lc10"]
    return [*flags, "-undefined", "dynamic_lookup"] if sys.platform == "darwin" else flags


def _key(compiler: str, flags: Sequence[str]) -> str:
    digest = hashlib.blake2b(digest_size=12)
    for source in sorted(SOURCE_DIR.iterdir()):
        if source.suffix in (".cpp", ".h"):
            digest.update(source.name.encode() + b"\0" + source.read_bytes() + b"\0")
    macros = [compiler, *flags, "-dM", "-E", "-x", "c++", os.devnull]
    digest.update(_run(macros, _PROBE_LIMIT_S))
    options = [flag for flag in [*flags, *_link_flags()] if not flag.startswith(("-I", "-L"))]
    digest.update("\0".join([*options, torch.__version__]).encode())
    return digest.hexdigest()


@contextmanager
def _only_builder(lock: Path, deadline: float) -> Iterator[None]:
    """Wait until no other process builds; one that dies lets go of its lock."""
    with lock.open("w") as file:
        while True:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError as error:
                if time.monotonic() > deadline:
                    raise NativeBuildError("another process builds the kernels") from error
                time.sleep(_LOCK_PAUSE_S)
        yield


def _compile(compiler: str, flags: Sequence[str], folder: Path, deadline: float) -> Path:
    """Every source to an object, as many at a time as there are cores, then one library."""
    sources = sorted(SOURCE_DIR.glob("*.cpp"))
    objects = [folder / f"{source.stem}.o" for source in sources]
    commands = [
        [compiler, *flags, "-c", str(source), "-o", str(target)]
        for source, target in zip(sources, objects, strict=True)
    ]
    running: list[subprocess.Popen[bytes]] = []
    try:
        for index, command in enumerate(commands):
            if index >= (os.cpu_count() or 1):
                _finish(running[index - (os.cpu_count() or 1)], deadline)
            running.append(_started(command))
        for process in running:
            _finish(process, deadline)
    finally:
        for process in running:
            _end(process)
    made = folder / "library.so"
    link = [compiler, *flags, *map(str, objects), *_link_flags(), "-o", str(made)]
    _finish(_started(link), deadline)
    return made


def _started(command: Sequence[str]) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    )


def _finish(process: subprocess.Popen[bytes], deadline: float) -> bytes:
    """Its output. Raises NativeBuildError when it failed or took too long."""
    try:
        output, _ = process.communicate(timeout=max(0.0, deadline - time.monotonic()))
    except subprocess.TimeoutExpired as error:
        _end(process)
        raise NativeBuildError(f"building took more than {BUILD_LIMIT_S:.0f} s") from error
    if process.returncode != 0:
        lines = output.decode(errors="replace").splitlines()
        shown = next((line for line in lines if "error" in line), "".join(lines[:1]))
        what = shown or f"it ended with {process.returncode}"
        raise NativeBuildError(f"the C++ compiler failed: {what}")
    return output


def _end(process: subprocess.Popen[bytes]) -> None:
    """Nothing of it is left: neither the process nor the pipe to it."""
    if process.poll() is None:
        process.kill()
    process.wait()
    if process.stdout is not None:
        process.stdout.close()


def _run(command: Sequence[str], limit_s: float) -> bytes:
    return _finish(_started(command), time.monotonic() + limit_s)


def _one_line(text: str) -> str:
    lines = text.strip().splitlines()
    return lines[0][:_TEXT_CHARACTERS] if lines else "the native kernels could not be loaded"
