"""Whether what a record says can be: every value is within bounds that its users rely on.

The signature says who speaks, the decoder that the shape fits. Planner, placement and views then
divide by these numbers and count up to them, and people read the names on their terminals.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable

from swarm.errors import RemoteProtocolError
from swarm.gossip.records import DynamicRecord, StaticRecord
from swarm.terms import (
    CONTEXT_MAX,
    EOS_IDS_MAX,
    HIDDEN_MAX,
    LAYERS_MAX,
    VOCAB_MAX,
    Address,
    LinkSpeed,
    ModelSpec,
    ShardInfo,
    ShardSpeed,
)

MODELS_MAX = 64
"""Of one node; as many shards and shard speeds."""
ADDRESSES_MAX = 64
COPIES_MAX = 64
CUTS_MAX = 64
LINKS_MAX = 512
TEXT_MAX = 512
"""Letters of a name, an id or a numeric class."""
BYTES_MAX = 1 << 60
ROW_BYTES_MAX = HIDDEN_MAX * 8
VERSION_MAX = 1 << 16
SECONDS_MIN = 1e-12
"""A speed of zero would make a node win every comparison, and one below it overflow some."""
SECONDS_MAX = 1e6
GOODPUT_MIN_BYTES_S = 1.0
GOODPUT_MAX_BYTES_S = 1e15
HEALTH_MAX = 1 << 16


def check_content(content: StaticRecord | DynamicRecord) -> None:
    """Raise RemoteProtocolError, naming the field, unless every value is within its bounds."""
    if isinstance(content, StaticRecord):
        _check_static(content)
    else:
        _check_dynamic(content)


def _check_static(record: StaticRecord) -> None:
    _text("name", record.name)
    _text("version", record.version)
    _text("device", record.device)
    _within("protocol_min", record.protocol_min, 0, VERSION_MAX)
    _within("protocol_max", record.protocol_max, record.protocol_min, VERSION_MAX)
    _within("memory_bytes", record.memory_bytes, 0, BYTES_MAX)
    _within("departs_in_s", record.departs_in_s, 0.0, SECONDS_MAX)
    _within("addresses", len(record.addresses), 0, ADDRESSES_MAX)
    for address in record.addresses:
        _check_address(address)
    _once("models", (spec.model_id for spec in record.models), MODELS_MAX)
    for spec in record.models:
        _check_spec(spec)
    _once("shards", (shard.model_id for shard in record.shards), MODELS_MAX)
    layer_counts = {spec.model_id: spec.layer_count for spec in record.models}
    for shard in record.shards:
        _check_shard(shard, layer_counts.get(shard.model_id, LAYERS_MAX))
    _once("hub models", (share.name for share in record.hub), MODELS_MAX)
    for share in record.hub:
        _text("hub name", share.name)
        _text("model_id", share.model_id)
        _within("done_bytes", share.done_bytes, 0, BYTES_MAX)


def _check_dynamic(record: DynamicRecord) -> None:
    _within("local_health", record.local_health, 0, HEALTH_MAX)
    _once("speeds", (speed.model_id for speed in record.speeds), MODELS_MAX)
    for speed in record.speeds:
        _check_speed(speed)
    _once("links", (link.peer for link in record.links), LINKS_MAX)
    for link in record.links:
        _check_link(link)


def _check_address(address: Address) -> None:
    _text("host", address.host)
    if not address.host or any(letter.isspace() for letter in address.host):
        raise RemoteProtocolError("a record's host is not one")
    _within("port", address.port, 1, (1 << 16) - 1)


def _check_spec(spec: ModelSpec) -> None:
    _text("model_id", spec.model_id)
    _text("model name", spec.name)
    _within("layer_count", spec.layer_count, 1, LAYERS_MAX)
    _within("hidden_size", spec.hidden_size, 1, HIDDEN_MAX)
    _within("vocab_size", spec.vocab_size, 1, VOCAB_MAX)
    _within("context_length", spec.context_length, 1, CONTEXT_MAX)
    _within("eos_ids", len(spec.eos_ids), 0, EOS_IDS_MAX)
    for token_id in spec.eos_ids:
        _within("eos_ids", token_id, 0, VOCAB_MAX)


def _check_shard(shard: ShardInfo, layer_count: int) -> None:
    _text("model_id", shard.model_id)
    _text("numeric_class", shard.numeric_class)
    _within("layers", shard.layers.stop, 1, layer_count)
    _within("kv_bytes_per_token_layer", shard.kv_bytes_per_token_layer, 0, BYTES_MAX)
    _within("kv_capacity_bytes", shard.kv_capacity_bytes, 0, BYTES_MAX)
    _within("row_bytes", shard.row_bytes, 1, ROW_BYTES_MAX)
    if shard.next is not None:
        _within("next layers", shard.next.stop, 1, layer_count)
    _within("room_layers", shard.room_layers, 0, LAYERS_MAX)
    _within("load_s", shard.load_s, 0.0, SECONDS_MAX)
    _within("copies", shard.copies, 0, COPIES_MAX)
    _within("cuts count", len(shard.cuts), 0, CUTS_MAX)
    least = shard.layers.start + 1
    for cut in shard.cuts:
        _within("cut", cut, least, shard.layers.stop - 1)
        least = cut + 1


def _check_speed(speed: ShardSpeed) -> None:
    _text("model_id", speed.model_id)
    _within("decode_s_per_layer", speed.decode_s_per_layer, SECONDS_MIN, SECONDS_MAX)
    _within("decode8_s_per_layer", speed.decode8_s_per_layer, SECONDS_MIN, SECONDS_MAX)
    _within("prefill_s_per_token_layer", speed.prefill_s_per_token_layer, SECONDS_MIN, SECONDS_MAX)
    _within("head_s", speed.head_s, 0.0, SECONDS_MAX)
    _within("queue_s", speed.queue_s, 0.0, SECONDS_MAX)
    _within("kv_free_bytes", speed.kv_free_bytes, 0, BYTES_MAX)


def _check_link(link: LinkSpeed) -> None:
    _text("peer", link.peer)
    _within("rtt_s", link.rtt_s, 0.0, SECONDS_MAX)
    _within("goodput_bytes_s", link.goodput_bytes_s, GOODPUT_MIN_BYTES_S, GOODPUT_MAX_BYTES_S)


def _within(what: str, value: float, low: float, high: float) -> None:
    """NaN is within nothing."""
    if not low <= value <= high:
        raise RemoteProtocolError(f"a record's {what} of {value:.6g}")


def _text(what: str, value: str) -> None:
    _within(f"{what} length", len(value), 0, TEXT_MAX)
    if not value.isprintable():
        raise RemoteProtocolError(f"a record's {what} with unprintable letters")


def _once(what: str, keys: Iterable[Hashable], count_max: int) -> None:
    """Bounded in number, and none twice."""
    found = list(keys)
    _within(f"{what} count", len(found), 0, count_max)
    if len(set(found)) != len(found):
        raise RemoteProtocolError(f"a record's {what} name one twice")
