"""The part of a model that a shard holds, and one forward pass of it (or of a part of it).

Legend: `S` sessions, `T` tokens, `E` hidden size, `V` vocabulary.
"""

from __future__ import annotations

import inspect
from typing import Any

import torch

from swarm.errors import ShardError
from swarm.messages import RowType
from swarm.shard.cut import Part, cut_problem, install_gates, text_core
from swarm.shard.kv_cache import SessionCache

ROW_TYPES = {
    torch.float32: RowType.FLOAT32,
    torch.bfloat16: RowType.BFLOAT16,
    torch.float16: RowType.FLOAT16,
}
ELEMENT_TYPES = {row_type: dtype for dtype, row_type in ROW_TYPES.items()}


class Stage:
    """A loaded shard. Not for two threads: a call switches layers on and off in place."""

    def __init__(self, model: Any, part: Part, device: torch.device) -> None:
        """`model`: a causal model of transformers, cut to `part`, with its weights."""
        self.part = part
        self.device = device
        self.dtype: torch.dtype = model.dtype
        self.config = model.config.get_text_config(decoder=True)
        self._model = model
        self._core = text_core(model)
        is_whole = part.is_whole(self.config.num_hidden_layers)
        self._cut_problem = cut_problem(model) if is_whole else None
        self._border = install_gates(model, part.layers)
        self._names = frozenset(inspect.signature(self._core.forward).parameters)

    @property
    def hidden_size(self) -> int:
        return int(self.config.hidden_size)

    @property
    def vocab_size(self) -> int:
        return int(self.config.vocab_size)

    @property
    def row_type(self) -> RowType:
        return ROW_TYPES[self.dtype]

    @property
    def row_bytes(self) -> int:
        return self.hidden_size * int(self.dtype.itemsize)

    @property
    def parameter_bytes(self) -> int:
        """Bytes of all distinct parameters held."""
        held = {p.data_ptr(): p.numel() * p.itemsize for p in self._model.parameters()}
        return sum(held.values())

    def new_cache(self, part: Part, position_limit: int) -> SessionCache:
        """An empty KV for a session that uses `part` of this stage.

        Raises ShardError when the stage does not hold it, or cannot be used in part.
        """
        if not self.part.covers(part):
            raise ShardError(
                f"layers {part.layers} are not (all) held here: {self.part.layers} are"
            )
        if part != self.part and self._cut_problem is not None:
            raise ShardError(self._cut_problem)
        return SessionCache(self.config, part, position_limit)

    @torch.inference_mode()  # type: ignore[untyped-decorator]
    def forward(
        self,
        rows: torch.Tensor,
        position: int,
        cache: SessionCache,
        logit_rows: tuple[int, ...] = (),
    ) -> torch.Tensor:
        """Run positions [position, position + T) of a session and append them to its KV.

        rows        [S, T] int64 ids where the cache's part embeds, else [S, T, E] hidden states
        position    must be the cache's length
        logit_rows  for a head: indices into T whose logits are wanted
        returns     [S, T, E] in the stage's dtype, or for a head [S, len(logit_rows), V]
        """
        if position != cache.length:
            raise ShardError(f"rows start at {position}, the KV holds {cache.length} positions")
        part, count = cache.part, rows.shape[1]
        if position + count > cache.position_limit:
            raise ShardError(
                f"position {position + count} is above the {cache.position_limit} reserved"
            )
        self._border.layers = part.layers
        self._border.rows_in = None if part.embed else rows
        try:
            output = self._run(rows, position, cache, logit_rows)
        finally:
            self._border.rows_in = self._border.rows_out = None
        cache.advance(count)
        return output

    def _run(
        self, rows: torch.Tensor, position: int, cache: SessionCache, logit_rows: tuple[int, ...]
    ) -> torch.Tensor:
        arguments: dict[str, Any] = {
            "input_ids" if cache.part.embed else "inputs_embeds": rows,
            "cache": cache,
            "use_cache": True,
        }
        if "position_ids" in self._names:
            stop = position + rows.shape[1]
            arguments["position_ids"] = torch.arange(position, stop, device=self.device)[None]
        if cache.part.head and logit_rows:
            keep = torch.tensor(logit_rows, device=self.device)
            return self._model(**arguments, logits_to_keep=keep).logits
        self._core(**arguments)
        if cache.part.head:
            return torch.empty((rows.shape[0], 0, self.vocab_size), device=self.device)
        if self._border.rows_out is None:
            raise ShardError("the layers gave no rows")
        return self._border.rows_out
