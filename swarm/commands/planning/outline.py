"""What a model is made of, as `swarm.shard.outline_io` tells it, and what that weighs. Pure."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import Any

from swarm.commands.planning.machines import GB, TERA, PlannedDevice, PlannedNode
from swarm.errors import ConfigError
from swarm.messages import Inspected, Load, Loaded, RowType
from swarm.part_sums import whole_loaded
from swarm.terms import ModelId, ModelSpec, NumericClass, Parts, ShardSpeed

ELEMENT_BYTES = {"float32": 4.0, "bfloat16": 2.0, "float16": 2.0}
PACKED_BYTES = {"int8": 1.0625, "int4": 0.625}
"""Per weight of a linear, with the scales of its group of 32."""
MODEL_ID = ModelId("0" * 32)
BATCH_COST = 1.3
"""A step of eight sessions against one of one: the same weights are read."""


@dataclass(frozen=True, slots=True)
class Outline:
    name: str
    layer_count: int
    hidden_size: int
    vocab_size: int
    context_length: int
    element_bytes: int
    """Of the checkpoint's own dtype."""
    largest_layer_elements: int
    layers_elements: int
    """All layers together; `layers_linear_elements` of them in matrices."""
    layers_linear_elements: int
    layers_active_elements: int
    """What one token passes: less than all where there are experts."""
    embed_elements: int
    head_elements: int
    kv_elements_per_token_layer: int

    @staticmethod
    def read(told: dict[str, Any]) -> Outline:
        """Raises ConfigError for a model that cannot be outlined."""
        if "problem" in told:
            raise ConfigError(str(told["problem"]))
        try:
            return Outline(**{field.name: told[field.name] for field in fields(Outline)})
        except KeyError as error:
            raise ConfigError("the model could not be outlined") from error

    @property
    def spec(self) -> ModelSpec:
        return ModelSpec(
            MODEL_ID, self.name, self.layer_count, self.hidden_size, self.vocab_size,
            self.context_length, (), False,
        )  # fmt: skip

    @property
    def elements(self) -> int:
        return self.layers_elements + self.embed_elements + self.head_elements


@dataclass(frozen=True, slots=True)
class Form:
    """How weights and KV are kept: bytes per element, and of the packed linears."""

    element_bytes: float
    linear_bytes: float
    kv_bytes: float

    @staticmethod
    def of(outline: Outline, dtype: str, quantization: str) -> Form:
        """Raises ConfigError for words that are not known."""
        if dtype not in ("auto", *ELEMENT_BYTES):
            raise ConfigError(f"{dtype!r} is not a dtype; use auto, {', '.join(ELEMENT_BYTES)}")
        if quantization not in ("none", *PACKED_BYTES):
            raise ConfigError(f"{quantization!r} is not a quantization; use none, int8, int4")
        element = ELEMENT_BYTES.get(dtype, float(outline.element_bytes))
        kept = element if quantization == "none" else min(element, ELEMENT_BYTES["float16"])
        return Form(element, PACKED_BYTES.get(quantization, element), kept)

    def layer_read_bytes(self, outline: Outline) -> float:
        """Of one layer, on average, for one token."""
        share = outline.layers_linear_elements / max(1, outline.layers_elements)
        per_element = share * self.linear_bytes + (1 - share) * self.element_bytes
        return per_element * outline.layers_active_elements / outline.layer_count


def inspected(outline: Outline, form: Form) -> Inspected:
    """As a worker would report the checkpoint: weights are counted before they are packed."""
    size = form.element_bytes
    return Inspected(
        spec=outline.spec,
        layer_weight_bytes=int(outline.largest_layer_elements * size),
        embed_weight_bytes=int(outline.embed_elements * size),
        head_weight_bytes=int(outline.head_elements * size),
        kv_bytes_per_token_layer=int(outline.kv_elements_per_token_layer * form.kv_bytes),
        manifest_path="",
        path=outline.name,
    )


def loaded(outline: Outline, form: Form, machine: PlannedNode, parts: Parts, order: Load) -> Loaded:
    """As a worker would report its layers, or the workers of several devices together."""
    found = [
        Loaded(
            model_id=MODEL_ID,
            layers=layers,
            numeric_class=NumericClass(device.name),
            kv_bytes_per_token_layer=int(outline.kv_elements_per_token_layer * form.kv_bytes),
            row_type=RowType.FLOAT32,
            row_bytes=int(outline.hidden_size * form.element_bytes),
            speed=speed(outline, form, device),
            device=device.name,
            kv_blocks=order.kv_blocks,
        )
        for device, layers in zip(machine.devices, parts, strict=True)
        if layers is not None
    ]
    whole = whole_loaded(order, found)
    head_s = found[-1].speed.head_s  # each reckons with one, the last has it
    return replace(whole, speed=replace(whole.speed, head_s=head_s))


def speed(outline: Outline, form: Form, device: PlannedDevice) -> ShardSpeed:
    """What the device is expected to measure of itself."""
    pace = device.pace
    decode_s = pace.layer_s + form.layer_read_bytes(outline) / (pace.gb_s * GB)
    sums = 2.0 * outline.layers_active_elements / outline.layer_count
    return ShardSpeed(
        model_id=MODEL_ID,
        decode_s_per_layer=decode_s,
        decode8_s_per_layer=BATCH_COST * decode_s,
        prefill_s_per_token_layer=sums / (pace.tflops * TERA),
        head_s=outline.head_elements * form.linear_bytes / (pace.gb_s * GB),
        queue_s=0.0,
        kv_free_bytes=0,
    )
