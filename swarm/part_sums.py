"""What the parts of a shard on several devices are together, as others see it. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from hashlib import blake2b
from math import lcm

from swarm.messages import Load, Loaded
from swarm.terms import NumericClass, ShardSpeed

TEXT_MAX = 512
"""Letters of a device or a numeric class in a node's record."""
DIGEST_BYTES = 16


def whole_loaded(order: Load, parts: Sequence[Loaded]) -> Loaded:
    """`parts`: in the order of their layers.

    The pool is as large as the smallest device's; devices whose sessions keep caches of their own
    limit it by nothing, but no session starts from a prefix then.
    """
    first, last = parts[0], parts[-1]
    if len(parts) == 1:
        return first
    pools = [part.kv_blocks for part in parts if part.kv_blocks]
    units = [part.prefix_unit for part in parts]
    has_prefixes = len(pools) == len(parts) and all(units)
    return Loaded(
        model_id=order.model_id,
        layers=order.layers,
        numeric_class=whole_class(parts),
        kv_bytes_per_token_layer=max(part.kv_bytes_per_token_layer for part in parts),
        row_type=last.row_type,
        row_bytes=last.row_bytes,
        speed=whole_speed([part.speed for part in parts], [len(part.layers) for part in parts]),
        device=whole_device([part.device for part in parts]),
        kv_blocks=min(pools, default=0),
        prefix_unit=lcm(*units) if has_prefixes else 0,
        reuses_generated=all(part.reuses_generated for part in parts),
        guides=last.guides,
    )


def whole_class(parts: Sequence[Loaded]) -> NumericClass:
    """That of all parts where they are of one; else it names which layers are of which."""
    classes = list(dict.fromkeys(part.numeric_class for part in parts))
    if len(classes) == 1:
        return classes[0]
    text = "+".join(f"{part.numeric_class}@{part.layers}" for part in parts)
    if len(text) <= TEXT_MAX:
        return NumericClass(text)
    digest = blake2b(text.encode(), digest_size=DIGEST_BYTES).hexdigest()
    return NumericClass(f"{len(parts)} devices/{digest}")


def whole_device(names: Sequence[str]) -> str:
    """For people: equal ones are counted."""
    counted = Counter(names)
    text = " + ".join(f"{n} x {name}" if n > 1 else name for name, n in counted.items())
    return text if len(text) <= TEXT_MAX else f"{len(names)} devices"


def whole_speed(speeds: Sequence[ShardSpeed], layer_counts: Sequence[int]) -> ShardSpeed:
    """Per layer the mean over all layers: right for sessions that use all of them. What waits on
    any device is waited for."""
    total = sum(layer_counts)

    def mean(of: Callable[[ShardSpeed], float]) -> float:
        return sum(of(s) * n for s, n in zip(speeds, layer_counts, strict=True)) / total

    return ShardSpeed(
        model_id=speeds[0].model_id,
        decode_s_per_layer=mean(lambda s: s.decode_s_per_layer),
        decode8_s_per_layer=mean(lambda s: s.decode8_s_per_layer),
        prefill_s_per_token_layer=mean(lambda s: s.prefill_s_per_token_layer),
        head_s=sum(s.head_s for s in speeds),
        queue_s=sum(s.queue_s for s in speeds),
        kv_free_bytes=min(s.kv_free_bytes for s in speeds),
    )
