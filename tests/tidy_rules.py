"""The rules of the house as functions over source text: each returns what it found, one line each.

`test_tidy.py` runs them over the tree, and over bad snippets to show that they can fail.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import PurePosixPath

FILE_LINES_MAX = 500
FUNCTION_LINES_MAX = 60
LINE_WIDTH_MAX = 100
PARAMETERS_MAX = 6

LEAVES = (
    "asks",
    "channel_messages",
    "config",
    "effects",
    "fetch_facts",
    "flags",
    "key_messages",
    "message_base",
    "messages",
    "moves_config",
    "node_port",
    "notes",
    "options",
    "owner_config",
    "relay_messages",
    "shapes",
    "snapshot",
    "session_messages",
    "weight_messages",
    "weights_config",
    "worker_messages",
)
RANKS: dict[str, int] = {
    "terms": 0,
    "errors": 0,
    **dict.fromkeys(LEAVES, 1),
    "gossip.records": 1,
    **dict.fromkeys(("kernels", "link", "discovery", "gossip", "routing"), 2),
    "shard.checkpoint": 2,  # hashes and names only: a node hands out and checks text files by them
    "shard.gguf_head": 2,  # integers only: a node finds by it what it hands out
    "shard.kv_blocks": 2,  # integers only: a node admits by the sums its worker allocates by
    "gateway.token_table": 2,  # which bytes a token stands for: heads ask that too
    "devices": 1,
    "cores_io": 2,
    "part_sums": 2,
    "spread": 2,
    "crew": 3,
    "hosted": 2,
    "choosing": 3,
    "hosted_shards": 3,
    "stay_keeper": 3,
    "status_line": 2,
    "waiting_io": 2,
    "wishes": 2,
    "access": 3,
    "weights": 3,
    "console_io": 3,
    "home_io": 3,
    "key_desk_io": 4,
    "swarm_key_io": 4,
    "guides": 3,
    "guides_io": 5,
    "hosting": 4,
    "model_files_io": 3,
    "adoption": 5,
    "departure": 5,
    "yielding": 6,
    "owner": 2,
    "owner_io": 3,
    "departure_io": 3,
    "battery": 2,
    "battery_io": 4,
    "hub_wants": 5,
    "mover": 5,
    "unloading": 5,
    "node_view": 5,
    "node_picture": 6,
    "node_worker": 7,
    "shard": 6,
    "node_ways": 6,
    "node": 8,
    "disk_io": 9,
    "node_links_io": 7,
    "node_streams_io": 7,
    "node_weights_io": 9,
    "worker_desk_io": 7,
    "node_io": 10,
    "gateway": 10,
    "sims": 11,
    "daemon": 11,
    "commands": 12,
    "cli": 13,
    "__main__": 14,
}
"""Arrows go from a higher rank to a lower one, and inside one package or rank 0 and 1."""
SHARED_RANK_MAX = 1

TORCH_PACKAGES = ("swarm/shard/", "swarm/kernels/")
TORCH_FREE = (
    "history.py", "kv_blocks.py", "scheduler.py", "checkpoint.py", "worker_client_io.py",
    "gguf_head.py",
)  # fmt: skip
TORCH_MODULES = {"torch", "transformers", "accelerate", "safetensors", "gguf"}

SHELL_NAMES = {"daemon.py", "cli.py", "__main__.py"}
WORLD_MODULES = {
    "asyncio",
    "concurrent",
    "ctypes",
    "fcntl",
    "http",
    "mmap",
    "multiprocessing",
    "os",
    "queue",
    "secrets",
    "select",
    "selectors",
    "shutil",
    "signal",
    "socket",
    "ssl",
    "subprocess",
    "sys",
    "tempfile",
    "threading",
    "time",
    "urllib",
    "uuid",
}
FILE_METHODS = {
    "exists",
    "glob",
    "is_dir",
    "is_file",
    "iterdir",
    "mkdir",
    "read_bytes",
    "read_text",
    "rglob",
    "stat",
    "unlink",
    "write_bytes",
    "write_text",
}
UNSTABLE_ASYNCIO = {"wait", "as_completed", "TaskGroup"}
"""They iterate sets in address order, so a seeded run could not be repeated."""


@dataclass(frozen=True, slots=True)
class Source:
    """One Python file: its path from the repository root, its text and its tree."""

    path: PurePosixPath
    text: str
    tree: ast.Module

    @property
    def is_shell(self) -> bool:
        return self.path.name.endswith("_io.py") or self.path.name in SHELL_NAMES


def parse(path: str, text: str) -> Source:
    return Source(PurePosixPath(path), text, ast.parse(text))


def imports(source: Source) -> Iterator[tuple[int, str]]:
    """Every imported module by its full name, `from a import b` also as `a.b`."""
    for node in ast.walk(source.tree):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = "." * node.level + (node.module or "")
            yield node.lineno, base
            yield from ((node.lineno, f"{base}.{alias.name}") for alias in node.names)


def place(module: str) -> str | None:
    """The key of RANKS that a module of the project belongs to; None for foreign modules."""
    parts = module.split(".")
    if parts[0] == "sims":
        return "sims"
    if parts[0] != "swarm" or len(parts) < 2:
        return None
    two = ".".join(parts[1:3])
    return two if two in RANKS else parts[1]


def arrows(source: Source) -> list[str]:
    """Imports that go up or sideways; modules without a place in RANKS."""
    own = place(".".join(source.path.with_suffix("").parts))
    if own is None or own == "__init__":
        return []
    if own not in RANKS:
        return [f"{source.path}: {own!r} has no place in tidy_rules.RANKS"]
    found = []
    for line, module in imports(source):
        if module.startswith("."):
            found.append(f"{source.path}:{line}: relative import")
        target = place(module)
        if target is None or target == own or module == "swarm":
            continue
        rank = RANKS.get(target)
        if rank is None:
            found.append(f"{source.path}:{line}: {module} has no place in tidy_rules.RANKS")
        elif rank > RANKS[own] or (rank == RANKS[own] and rank > SHARED_RANK_MAX):
            found.append(f"{source.path}:{line}: {own} must not import {module}")
    return found


def torch_imports(source: Source) -> list[str]:
    """torch and what loads it, outside the worker's packages or in their integer files."""
    inside = str(source.path).startswith(TORCH_PACKAGES)
    if inside and source.path.name not in TORCH_FREE:
        return []
    return [
        f"{source.path}:{line}: imports {module}"
        for line, module in imports(source)
        if module.split(".")[0] in TORCH_MODULES
    ]


def purity(source: Source) -> list[str]:
    """A core that touches the world: clocks, files, sockets, loops, threads, randomness."""
    if source.is_shell:
        return []
    roots = dict.fromkeys((line, module.split(".")[0]) for line, module in imports(source))
    found = [
        f"{source.path}:{line}: a core imports {root}"
        for line, root in roots
        if root in WORLD_MODULES
    ]
    for node in ast.walk(source.tree):
        if isinstance(node, ast.Call) and (what := _worldly_call(node)):
            found.append(f"{source.path}:{node.lineno}: a core calls {what}")
    return found + _random_imports(source)


def _worldly_call(node: ast.Call) -> str | None:
    if isinstance(node.func, ast.Name):
        if node.func.id in {"open", "input"}:
            return f"{node.func.id}()"
        return "Random() without a seed" if node.func.id == "Random" and not node.args else None
    if not isinstance(node.func, ast.Attribute):
        return None
    name, owner = node.func.attr, ast.unparse(node.func.value)
    if owner == "random" and (name != "Random" or not node.args):
        return f"random.{name}()"
    if owner.split(".")[-1] in {"datetime", "date"} and name in {"now", "utcnow", "today"}:
        return f"{owner}.{name}()"
    return f".{name}()" if name in FILE_METHODS else None


def _random_imports(source: Source) -> list[str]:
    return [
        f"{source.path}:{line}: a core imports {module}"
        for line, module in imports(source)
        if module.startswith("random.") and module != "random.Random"
    ]


def unstable_asyncio(source: Source) -> list[str]:
    names = {f"asyncio.{name}" for name in UNSTABLE_ASYNCIO}
    found = [
        f"{source.path}:{line}: {module}" for line, module in imports(source) if module in names
    ]
    for node in ast.walk(source.tree):
        if isinstance(node, ast.Attribute) and ast.unparse(node) in names:
            found.append(f"{source.path}:{node.lineno}: {ast.unparse(node)}")
    return found


def sizes(source: Source) -> list[str]:
    """Files, functions, lines and parameter lists that are too long."""
    lines = source.text.splitlines()
    found = [
        f"{source.path}:{number}: {len(line)} columns"
        for number, line in enumerate(lines, 1)
        if len(line) > LINE_WIDTH_MAX
    ]
    if len(lines) > FILE_LINES_MAX:
        found.append(f"{source.path}: {len(lines)} lines")
    for node in ast.walk(source.tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            found += [f"{source.path}:{node.lineno}: {what}" for what in _function_size(node)]
    return found


def _function_size(node: ast.FunctionDef | ast.AsyncFunctionDef) -> Iterator[str]:
    length = (node.end_lineno or node.lineno) - node.lineno + 1
    if length > FUNCTION_LINES_MAX:
        yield f"{node.name} has {length} lines"
    names = [a.arg for a in node.args.posonlyargs + node.args.args + node.args.kwonlyargs]
    count = len(names) - (bool(names) and names[0] in {"self", "cls"})
    if count > PARAMETERS_MAX and not _is_command(node):
        yield f"{node.name} has {count} parameters"


def _is_command(node: ast.FunctionDef | ast.AsyncFunctionDef) -> bool:
    """A command of the command line: its parameters are the flags that people type."""
    return any(ast.unparse(mark).startswith("app.command(") for mark in node.decorator_list)


def broad_except(source: Source) -> list[str]:
    """Handlers of everything that do not raise it again nor give a reason by `noqa: BLE001`."""
    lines = source.text.splitlines()
    found = []
    for node in ast.walk(source.tree):
        if not isinstance(node, ast.ExceptHandler):
            continue
        caught = "bare" if node.type is None else ast.unparse(node.type)
        names = set(re.findall(r"\w+", caught))
        line = lines[node.lineno - 1]
        last = node.body[-1]
        passed_on = isinstance(last, ast.Raise) and last.exc is None
        reasoned = re.search(r"noqa: BLE001\W+\w+\s+\w+", line)
        if names & {"bare", "Exception", "BaseException"} and not (reasoned or passed_on):
            found.append(f"{source.path}:{node.lineno}: except {caught}")
    return found


def package_init(source: Source) -> list[str]:
    if source.path.name == "__init__.py" and source.text.strip():
        return [f"{source.path}: must be empty"]
    return []


def pickle_use(source: Source) -> list[str]:
    """pickle, or anything that reads it."""
    banned = {"pickle", "cloudpickle", "dill", "shelve", "marshal", "joblib"}
    found = [
        f"{source.path}:{line}: {module}"
        for line, module in imports(source)
        if module.split(".")[0] in banned
    ]
    for node in ast.walk(source.tree):
        if isinstance(node, ast.Call) and ast.unparse(node.func) in {"torch.load", "torch.save"}:
            found.append(f"{source.path}:{node.lineno}: {ast.unparse(node.func)}")
    return found


def sleeping_test(source: Source) -> list[str]:
    """A test that waits for time to pass instead of for what it wants; simulated time is free."""
    found = []
    simulated = str(source.path).startswith("tests/sims/")
    for node in ast.walk(source.tree):
        if not isinstance(node, ast.Call):
            continue
        called = ast.unparse(node.func)
        yields_only = called == "asyncio.sleep" and [ast.unparse(a) for a in node.args] == ["0"]
        if called == "asyncio.sleep" and (yields_only or simulated):
            continue
        if called in {"time.sleep", "asyncio.sleep", "sleep"}:
            found.append(f"{source.path}:{node.lineno}: {called}")
    return found


UNFINISHED = re.compile(r"\b(TO" + r"DO|FIX" + r"ME|XX" + r"X|HA" + r"CK)\b")
MACHINE_PATH = re.compile(r"(?<![\w.:~])/(?:work|root|home/\w+|Users/\w+|opt/\w+)(?=[/\s\"'`])")
OUTSIDE_TALK = re.compile(
    r"(?i)\b(issue|ticket) (number|no\.?|#) ?\d|\bAI assistant\b|\bthe lead\b"
)


def unfinished(path: str, text: str) -> list[str]:
    return _lines_with(UNFINISHED, path, text)


def outside_talk(path: str, text: str) -> list[str]:
    """Paths of one machine, and talk about how the project is made: it speaks of itself alone."""
    return _lines_with(MACHINE_PATH, path, text) + _lines_with(OUTSIDE_TALK, path, text)


def _lines_with(pattern: re.Pattern[str], path: str, text: str) -> list[str]:
    return [
        f"{path}:{number}: {match.group(0)}"
        for number, line in enumerate(text.splitlines(), 1)
        if (match := pattern.search(line))
    ]
