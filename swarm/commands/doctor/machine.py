"""What the facts about this machine mean: settings, node, ports, disk, memory, compute. Pure."""

from __future__ import annotations

from collections.abc import Iterator

from swarm.commands.doctor.facts import Compute, Facts, Folder, Port
from swarm.commands.doctor.findings import Finding, Grade, ok

GIB = 1 << 30
DISK_LOW_BYTES = GIB
"""Checkpoints' text files, manifests and built kernels take some tens of megabytes."""
MEMORY_LOW_BYTES = GIB
"""A worker takes some 0.4 GiB before it has loaded anything."""
FILES_MIN = 1024
"""Two per link, two per request, and what Python itself keeps open."""


def settings(facts: Facts) -> Iterator[Finding]:
    if facts.config_problem:
        yield Finding(
            Grade.PROBLEM, "settings", "bad-settings", f"The settings are wrong: "
            f"{facts.config_problem}.", "`swarm join` does not start with them.",
            "Correct config.toml or the SWARM_ variables; `swarm config` shows what is in force.",
        )  # fmt: skip
    if facts.node is None:
        yield Finding(
            Grade.NOTE, "node", "no-node", "No node runs from this home.",
            "The checks below are this command's own.",
        )  # fmt: skip
    elif facts.node.problem:
        yield Finding(
            Grade.WARNING, "node", "node-mute", f"The node of this home does not answer: "
            f"{facts.node.problem}.", "It hangs, or it ended without saying so.",
            "End its process if it still runs, and start it again with `swarm join`.",
        )  # fmt: skip
    else:
        yield ok("node", f"Node {facts.node.name} runs here; its gateway is {facts.node.url}.")


def resources(facts: Facts) -> Iterator[Finding]:
    for port in facts.machine.ports:
        yield _port(port)
    for folder in facts.machine.folders:
        yield _folder(folder)
    free, total = facts.machine.memory_free_bytes, facts.machine.memory_total_bytes
    sizes = f"{free / GIB:.1f} of {total / GIB:.1f} GiB of memory are free"
    if free < MEMORY_LOW_BYTES:
        yield Finding(
            Grade.WARNING, "memory", "memory-low", f"Only {sizes}.",
            "A node serves what fits into 70 % of that: here hardly a layer.",
            "Close other programs, or run this machine as a gateway only (without --model).",
        )  # fmt: skip
    else:
        yield ok("memory", f"{sizes}.")
    limit = facts.machine.files_max
    if 0 < limit < FILES_MIN:
        yield Finding(
            Grade.WARNING, "files", "few-files", f"A process may open {limit} files here.",
            "A node with many links and requests runs out of them and refuses more.",
            f"Raise the limit before `swarm join`: ulimit -n {FILES_MIN * 4}.",
        )  # fmt: skip
    else:
        yield ok("files", f"A process may open {limit} files." if limit else
                 "The number of open files is not limited.")  # fmt: skip


def _port(port: Port) -> Finding:
    if not port.problem:
        return ok("ports", f"Port {port.address} is free for {port.purpose}.")
    what = f"{port.address}, for {port.purpose}, cannot be had: {port.problem}"
    what += f"; {port.holder} has it." if port.holder else "."
    if not port.is_busy:
        return Finding(
            Grade.PROBLEM, "ports", "port-refused", what, "`swarm join` does not start with it.",
            "Give an address of this machine, and a port above 1023.",
        )  # fmt: skip
    if port.is_asked:
        return Finding(
            Grade.PROBLEM, "ports", "port-busy", what, "`swarm join` does not start with it.",
            "End that program, or choose another port.",
        )  # fmt: skip
    return Finding(
        Grade.WARNING, "ports", "port-busy", what,
        "The node takes the next free port, and clients that expect this one do not find it.",
        "End that program, or choose a port: swarm join --gateway HOST:PORT.",
    )  # fmt: skip


def _folder(folder: Folder) -> Finding:
    free = f"{folder.free_bytes / GIB:.1f} GiB free"
    if folder.problem:
        return Finding(
            Grade.PROBLEM, "disk", "disk-full" if folder.is_full else "disk-unwritable",
            f"{folder.path}, for {folder.purpose}, cannot be written: {folder.problem}.",
            "A node keeps its key, its counters and what it needs of models there.",
            "Free space there, or choose another folder with --home." if folder.is_full else
            "Give this user the right to write there, or choose another folder with --home.",
        )  # fmt: skip
    if folder.free_bytes < DISK_LOW_BYTES:
        return Finding(
            Grade.WARNING, "disk", "disk-low",
            f"{folder.path}, for {folder.purpose}, is nearly full: {free}.",
            "What is kept of models may not fit.", "Free space there.",
        )  # fmt: skip
    return ok("disk", f"{folder.path}, for {folder.purpose}, can be written: {free}.")


# -------------------------------------------------------------------- compute


def compute(facts: Facts) -> Iterator[Finding]:
    found = facts.compute
    if found is None:
        return
    if found.problem:
        yield Finding(
            Grade.PROBLEM, "torch", "torch-unusable", f"torch cannot be used: {found.problem}.",
            "This machine cannot serve layers; as a gateway only it works.",
            "Set up the environment again: scripts/setup.",
        )  # fmt: skip
        return
    yield ok("torch", f"torch {found.torch} works.")
    yield from _devices(found)
    if found.compiler:
        yield ok("compiler", f"C++ compiler {found.compiler}: the CPU kernels can be built.")
    else:
        yield Finding(
            Grade.WARNING, "compiler", "no-compiler", "There is no C++ compiler.",
            "The CPU kernels cannot be built: plain torch runs, several times slower on a CPU.",
            "Install one (Debian and Ubuntu: apt install g++; macOS: xcode-select --install).",
        )  # fmt: skip


def _devices(found: Compute) -> Iterator[Finding]:
    for name, shown in found.devices:
        yield ok("device", f"{name} works: {shown}.")
    for name, trouble in found.broken_devices:
        yield Finding(
            Grade.PROBLEM, "device", "device-broken", f"{name} does not compute: {trouble}.",
            "A worker on it fails.",
            "Update its driver, or serve on the CPU: swarm join --device cpu.",
        )  # fmt: skip
    names = [name for name, _ in found.devices]
    if found.has_nvidia and not any(name.startswith("cuda") for name in names):
        yield Finding(
            Grade.WARNING, "device", "gpu-unused", "There is an NVIDIA GPU, and torch cannot use "
            "it.", "Layers are computed by the CPU, many times slower.",
            "Install a torch built for CUDA and a driver that fits it.",
        )  # fmt: skip
    for asked in dict.fromkeys(name.strip() for name in found.wanted.split(",")):
        wanted = "cuda:0" if asked == "cuda" else asked
        if wanted == "cpu" or wanted in names:
            continue
        yield Finding(
            Grade.PROBLEM, "device", "device-missing", f"The settings ask for {asked}, "
            "which torch does not find.", "`swarm join` cannot serve layers with it.",
            f"Choose among cpu{''.join(', ' + name for name in names)} with --device.",
        )  # fmt: skip
    if any(name.startswith("cuda") for name in names) and not found.flash_attention:
        yield Finding(
            Grade.NOTE, "flash-attn", "no-flash-attn", f"flash-attn is not usable: "
            f"{found.flash_problem or 'not installed'}.",
            "Attention runs in plain torch on the GPU.",
            "Where a wheel for this GPU exists: pip install 'swarm[cuda]'.",
        )  # fmt: skip
