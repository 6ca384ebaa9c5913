"""The part of a model that a shard holds, and one forward pass of it (or of a part of it).

Legend: `S` sessions, `T` tokens, `E` hidden size, `V` vocabulary.
"""

from __future__ import annotations

import inspect
from typing import Any

import torch

from swarm.errors import ShardError
from swarm.kernels.capture import Capture
from swarm.kernels.float_linear import FloatProduct
from swarm.kernels.tiles import Company
from swarm.messages import RowType
from swarm.shard.batch import Batch
from swarm.shard.cut import HeadGate, Part, cut_problem, install_gates, install_head_gate, text_core
from swarm.shard.kv_cache import SessionCache
from swarm.shard.paged import (
    PAGED,
    PAGED_LOOSE,
    PROBE,
    TILED_EXPERTS,
    Call,
    EmptyCache,
    LayerKind,
    probing,
    running,
)
from swarm.shard.paged_kv import PROBE_ERRORS, PagedKv, missing_layers

ROW_TYPES = {
    torch.float32: RowType.FLOAT32,
    torch.bfloat16: RowType.BFLOAT16,
    torch.float16: RowType.FLOAT16,
}
HEAD_STEP = 4
"""Rows of a step with prompts that a head samples come in multiples of it: few shapes are known
better than many (`kernels/capture.py`)."""
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
        self._head: HeadGate | None = install_head_gate(model) if part.head else None
        self.plain_attention: str = self.config._attn_implementation or "eager"
        self._plain_experts = self.config._experts_implementation
        self._attention = self.plain_attention
        self.quantization = "none"
        """Of the weights."""
        self.glue: tuple[str, ...] = ()
        """What one native call does in place of the model's many."""
        self.kv: PagedKv | None = None
        """The blocks, where the shard has been found to work on them."""
        self.company = Company.NONE
        """What has been found of decode rows over blocks."""
        self.is_row_invariant = False
        """A prompt's rows have the same bits in pieces of any size, and as decode rows."""
        self.capture = Capture(enabled=False)
        """Passes over the present blocks, recorded; a new one for new blocks."""
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
        """Bytes of all distinct parameters and packed weights held."""
        tensors = self._model.state_dict().values()
        held = {tensor.data_ptr(): tensor.numel() * tensor.itemsize for tensor in tensors}
        return sum(held.values())

    @property
    def has_float_products(self) -> bool:
        """Whether any matrix but the embedding's is one of floats that torch multiplies by."""
        if any(isinstance(m, FloatProduct) and m.is_read for m in self._model.modules()):
            return True
        return any(
            parameter.dim() > 1 and parameter.is_floating_point()
            for module in self._model.modules()
            if not isinstance(module, torch.nn.Embedding)
            for parameter in module.parameters(recurse=False)
        )

    def new_cache(self, part: Part, position_limit: int) -> SessionCache:
        """An empty KV for a session that uses `part` of this stage.

        Raises ShardError when the stage does not hold it, or cannot be used in part.
        """
        self.check_part(part)
        return SessionCache(self.config, part, position_limit)

    def check_part(self, part: Part) -> None:
        """Raises ShardError when the stage does not hold it, or cannot be used in part."""
        if not self.part.covers(part):
            raise ShardError(
                f"layers {part.layers} are not (all) held here: {self.part.layers} are"
            )
        if part != self.part and self._cut_problem is not None:
            raise ShardError(self._cut_problem)

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
        self._attend_by(self.plain_attention)
        if position + count > cache.position_limit:
            raise ShardError(
                f"position {position + count} is above the {cache.position_limit} reserved"
            )
        positions = torch.arange(position, position + count, device=self.device)[None]
        arguments = self._arguments(part, rows, positions, cache)
        with self._border.using(part.layers, None if part.embed else rows):
            if part.head and logit_rows:
                keep = torch.tensor(logit_rows, device=self.device)
                output = self._model(**arguments, logits_to_keep=keep).logits
            else:
                self._core(**arguments)
                output = self._last_rows()
                if part.head:
                    output = output.new_empty((len(rows), 0, self.vocab_size))
        cache.advance(count)
        return output

    def _arguments(
        self, part: Part, rows: torch.Tensor, positions: torch.Tensor, cache: Any
    ) -> dict[str, Any]:
        arguments: dict[str, Any] = {
            "input_ids" if part.embed else "inputs_embeds": rows,
            "cache": cache,
            "use_cache": True,
        }
        if "position_ids" in self._names:
            arguments["position_ids"] = positions
        return arguments

    def _last_rows(self) -> torch.Tensor:
        """[S, T, E] that the last layer gave."""
        if self._border.rows_out is None:
            raise ShardError("the layers gave no rows")
        return self._border.rows_out

    def _attend_by(self, name: str) -> None:
        if self._attention != name:
            experts = TILED_EXPERTS if name == PAGED else self._plain_experts
            for config in (self._model.config, self.config):
                config._attn_implementation = name
                config._experts_implementation = experts
            self._attention = name

    # ------------------------------------------------------------ paged

    @torch.inference_mode()  # type: ignore[untyped-decorator]
    def probe(self) -> dict[int, LayerKind]:
        """What each layer keeps of a position. Raises ShardError when that is not all it keeps, or
        when how a row is turned depends on how long the longest sequence of its batch is."""
        if kind := _rope_by_length(self.config):
            raise ShardError(f"its {kind} rotary embedding depends on the sequence's length")
        part, count = self.part, 2
        positions = torch.arange(count, device=self.device)[None]
        shape = (1, count) if part.embed else (1, count, self.hidden_size)
        dtype = torch.int64 if part.embed else self.dtype
        rows = torch.zeros(shape, dtype=dtype, device=self.device)
        self._attend_by(PROBE)
        try:
            with probing() as found, self._border.using(part.layers, None if part.embed else rows):
                self._core(**self._arguments(part, rows, positions, EmptyCache()))
        except PROBE_ERRORS as error:
            raise ShardError(f"its layers need a cache of their own: {error}") from error
        finally:
            self._attend_by(self.plain_attention)
        if missing := missing_layers(found, part):
            raise ShardError(f"layer {missing[0]} keeps something else than keys and values")
        return found

    @torch.inference_mode()  # type: ignore[untyped-decorator]
    def run(self, batch: Batch, part: Part, rows: torch.Tensor, picked: list[int]) -> torch.Tensor:
        """Run rows of any sessions over the blocks of `kv`, which gets their keys and values.

        rows     [R, 1] or [1, R] int64 ids where the part embeds, else [R, 1, E] or [1, R, E]
        picked   for a head: indices of the rows, in order, whose logits are wanted
        returns  [R, E] in the stage's dtype, or for a head [len(picked), V]
        """
        assert self.kv is not None
        self._attend_by(PAGED_LOOSE if self.company is Company.NONE else PAGED)
        padded = self._padded(picked, batch.shape.rows)
        wanted = torch.tensor(padded, dtype=torch.int64).to(self.device)
        places = batch.places
        # Which rows are real is something that only experts ask, and free classes have none.
        real = None if self.is_row_invariant else (batch.real.start, batch.real.stop)
        given = self.capture.run(
            (part, self.company, batch.shape, real, len(wanted)),
            (
                rows, batch.positions, wanted,
                places.table, places.owner, places.context, places.slots,
            ),
            lambda: self._pass(batch, part, rows, wanted),
        )  # fmt: skip
        if part.head and not picked:
            return given.new_empty((0, self.vocab_size))
        return given[: len(picked)] if part.head else given

    def _padded(self, picked: list[int], rows: int) -> list[int]:
        """Heads run in passes like decode rows, the last one filled up with the first row; of
        several among others their number is one of a few."""
        step = HEAD_STEP if 1 < len(picked) < rows else 1
        return picked + picked[:1] * (-len(picked) % max(step, self.company.padding))

    def _pass(
        self, batch: Batch, part: Part, rows: torch.Tensor, wanted: torch.Tensor
    ) -> torch.Tensor:
        """[R, E], or for a head that wants some [wanted, V]"""
        assert self.kv is not None
        pools, kinds = self.kv.pools, self.kv.kinds
        layers = {index: (pools[index], kinds[index].rule) for index in pools}
        arguments = self._arguments(part, rows, batch.positions, EmptyCache())
        call = Call(batch.places, layers, batch.real)
        with running(call), self._border.using(part.layers, None if part.embed else rows):
            if not part.head or not len(wanted):
                self._core(**arguments)
                return self._last_rows().flatten(0, 1)
            assert self._head is not None
            with self._head.picking(wanted, self.company.rows_max or len(wanted)):
                return self._model(**arguments).logits.flatten(0, 1)


def _rope_by_length(config: Any) -> str | None:
    """The kind of rotary embedding whose angles change with a sequence's length, if it is one:
    transformers takes the length from the whole batch."""
    found = getattr(config, "rope_parameters", None) or getattr(config, "rope_scaling", None) or {}
    parameters = [found, *(each for each in found.values() if isinstance(each, dict))]
    kinds = [str(each.get("rope_type", each.get("type", ""))) for each in parameters]
    return next((kind for kind in kinds if kind == "longrope" or "dynamic" in kind), None)
