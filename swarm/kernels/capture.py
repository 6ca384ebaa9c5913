"""Runs of a model without the model: recorded calls of operators, made again.

Most of a small decode step is Python: modules, views, argument checks. The first run of a shape is
recorded below Python, at torch's dispatcher; some runs later the same operators are called in the
same order by native code. They are the same calls, so the bits are the same ones. A model that
looks at values is refused and goes on without. The runs after the first are made both ways and
compared, on other rows than the first: one that keeps something between runs is found out there.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Hashable, Sequence
from enum import Enum, auto
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from swarm.kernels.native_io import native_available

PROGRAMS_MAX = 128
"""Shapes kept: decode batches up to some size, and pieces of prompts. A program of a hundred layers
takes about a megabyte."""


_READS = frozenset({"tolist", "numpy", "__array__", "data_ptr", "__dlpack__", "untyped_storage"})
"""Ways for Python to see a tensor's values that no dispatcher sees."""
PROOFS = 2
"""Runs made both ways before a program is trusted."""


class _State(Enum):
    RECORDED = auto()
    PROVEN = auto()
    REFUSED = auto()


class _Entry:
    def __init__(self, program: Any) -> None:
        self.program = program
        self.state = _State.RECORDED
        self.proofs = 0


class _Watch(TorchFunctionMode):  # type: ignore[misc]
    """Notes when the model reads values in Python while it is recorded."""

    problem = ""

    def __torch_function__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        name = getattr(func, "__name__", "")
        if name in _READS:
            self.problem = f"the model reads values by {name}"
        return func(*args, **(kwargs or {}))


class Capture:
    """Programs by shape. What a key names must fix all but the values of the inputs, and the sizes
    that only attention sees."""

    def __init__(self, *, enabled: bool = True) -> None:
        self._enabled = enabled and native_available()
        self._entries: OrderedDict[Hashable, _Entry] = OrderedDict()
        self.refusals: list[str] = []
        """Why shapes run without a program, one sentence each."""

    @property
    def proven_count(self) -> int:
        return sum(entry.state is _State.PROVEN for entry in self._entries.values())

    def run(
        self, key: Hashable, inputs: Sequence[torch.Tensor], eager: Callable[[], torch.Tensor]
    ) -> torch.Tensor:
        """What `eager` gives, by the program of `key` where there is one.

        inputs  all tensors that differ from call to call and that `eager` reads
        """
        if not self._enabled:
            return eager()
        entry = self._entries.get(key)
        if entry is None:
            return self._record(key, list(inputs), eager)
        self._entries.move_to_end(key)
        if entry.state is _State.PROVEN:
            return entry.program.run(list(inputs))[0]
        if entry.state is _State.REFUSED:
            return eager()
        return self._prove(entry, list(inputs), eager)

    def _record(
        self, key: Hashable, inputs: list[torch.Tensor], eager: Callable[[], torch.Tensor]
    ) -> torch.Tensor:
        program = torch.classes.swarm.Program()
        program.begin(inputs)
        is_whole = False
        try:
            with _Watch() as watch:
                output = eager()
            is_whole = True
        finally:
            if not is_whole:
                program.drop()
        problem = program.end([output]) or watch.problem
        self._entries[key] = _Entry(program)
        if problem:
            self._refuse(self._entries[key], problem)
        while len(self._entries) > PROGRAMS_MAX:
            self._entries.popitem(last=False)
        return output

    def _prove(
        self, entry: _Entry, inputs: list[torch.Tensor], eager: Callable[[], torch.Tensor]
    ) -> torch.Tensor:
        output = eager()
        try:
            given = entry.program.run(inputs)[0]
        except RuntimeError as error:
            self._refuse(entry, str(error))
            return output
        if not _same_bits(given, output):
            self._refuse(entry, "the recorded calls gave another result than the model")
            return output
        entry.proofs += 1
        if entry.proofs == PROOFS:
            entry.state = _State.PROVEN
        return output

    def _refuse(self, entry: _Entry, reason: str) -> None:
        entry.program, entry.state = None, _State.REFUSED
        if reason not in self.refusals:
            self.refusals.append(reason)


def _same_bits(one: torch.Tensor, other: torch.Tensor) -> bool:
    if one.shape != other.shape or one.dtype is not other.dtype:
        return False
    first, second = (tensor.contiguous().view(torch.uint8) for tensor in (one, other))
    return bool(torch.equal(first, second))
