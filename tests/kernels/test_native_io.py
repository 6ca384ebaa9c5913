"""Building the native kernels: kept, shared by two builders, and refused in one sentence."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import torch

from swarm.kernels import native_io
from swarm.kernels.native_io import Native, NativeBuildError, build

COUNTING = """
#include "parallel.h"
namespace swarm {
void run_parallel(int64_t n, int64_t, void (*task)(void*, int64_t, int64_t), void* context) {
  task(context, 0, n);
}
}
extern "C" int64_t counted(int64_t n) {
  int64_t sum = 0;
  swarm::parallel(n, 1, [&](int64_t begin, int64_t end) { sum += end - begin; });
  return sum;
}
"""


@pytest.fixture
def small_source(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A kernel directory that builds in a moment."""
    folder = tmp_path / "sources"
    folder.mkdir()
    (folder / "parallel.h").write_text((native_io.SOURCE_DIR / "parallel.h").read_text())
    (folder / "counting.cpp").write_text(COUNTING)
    monkeypatch.setattr(native_io, "SOURCE_DIR", folder)
    if native_io.default_compiler() is None:
        pytest.skip("no C++ compiler")
    return folder


def test_the_kernels_load_and_name_their_instruction_set(native: Native) -> None:
    assert native.instruction_set == torch.ops.swarm.instruction_set()
    assert native_io.native_available()


def test_a_built_library_is_kept_until_a_source_changes(small_source: Path, tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    first = build(cache)
    made = first.stat().st_mtime_ns
    assert build(cache) == first
    assert first.stat().st_mtime_ns == made
    (small_source / "parallel.h").write_text((small_source / "parallel.h").read_text() + "\n")
    assert build(cache) != first
    left = sorted(path.name for path in cache.iterdir() if path.suffix != ".so")
    assert left == ["lock"], "nothing else is left"
    assert len(list(cache.glob("*.so"))) == 2


def test_a_library_that_exists_is_not_built_again(
    small_source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = build(tmp_path)
    monkeypatch.setattr(native_io, "_compile", lambda *_: pytest.fail("it was built again"))
    assert build(tmp_path) == first


def test_a_compiler_error_is_one_sentence(small_source: Path, tmp_path: Path) -> None:
    (small_source / "counting.cpp").write_text("int broken(")
    with pytest.raises(NativeBuildError, match=r"^the C\+\+ compiler failed: .*error") as caught:
        build(tmp_path)
    assert "\n" not in str(caught.value)
    assert not list(tmp_path.glob("build-*")), "no debris"


def test_a_cache_that_cannot_be_written_is_said(small_source: Path, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(NativeBuildError, match="cannot hold the built kernels"):
        build(tmp_path / "file" / "cache")


def test_a_build_that_takes_too_long_is_ended(
    small_source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(native_io, "BUILD_LIMIT_S", 0.0)
    with pytest.raises(NativeBuildError, match="took more than"):
        build(tmp_path)


@pytest.mark.parametrize(
    ("compiler", "words"),
    [("/bin/false", "the C++ compiler failed"), ("no-such-compiler", "no C++ compiler was found")],
)
def test_without_a_compiler_the_reference_runs(tmp_path: Path, compiler: str, words: str) -> None:
    """In a process of its own, since the choice is made once."""
    program = (
        "from swarm.kernels.native_io import start_native, native_available\n"
        "assert not native_available()\n"
        "native = start_native()\n"
        "assert not native.available and not native_available()\n"
        "assert start_native() is native\n"
        "print(native.problem)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program],
        env={"CXX": compiler, "XDG_CACHE_HOME": str(tmp_path), "PATH": "/usr/bin:/bin"},
        cwd=Path(__file__).resolve().parents[2],
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )
    assert words in done.stdout


def test_of_two_that_build_at_once_one_does_and_both_have_the_library(
    small_source: Path, tmp_path: Path
) -> None:
    program = (
        "import sys; from pathlib import Path; from swarm.kernels import native_io\n"
        "native_io.SOURCE_DIR = Path(sys.argv[1])\n"
        "compile_all = native_io._compile\n"
        "native_io._compile = lambda *given: (print('compiles'), compile_all(*given))[1]\n"
        "print(native_io.build(Path(sys.argv[2])))\n"
    )
    command = [sys.executable, "-c", program, str(small_source), str(tmp_path / "cache")]
    root = Path(__file__).resolve().parents[2]
    both = [
        subprocess.Popen(command, cwd=root, stdout=subprocess.PIPE, text=True) for _ in range(2)
    ]
    words = [word for process in both for word in process.communicate(timeout=240)[0].split()]
    assert [process.returncode for process in both] == [0, 0]
    (library,) = (tmp_path / "cache").glob("*.so")
    assert sorted(words) == sorted(["compiles", str(library), str(library)])
