"""How large a model's KV pool is made, and what a node tells of its room."""

from __future__ import annotations

from dataclasses import replace

import pytest
from node_world import World, quick_config
from test_hosting import (
    CONFIG,
    LAYER,
    OTHER,
    SPEC,
    hosting,
    inspected,
    inspected_other,
    loaded,
    to_worker,
    two,
)

from swarm.config import MIB
from swarm.hosted import POOL_BLOCKS_MAX
from swarm.hosting import Budget, Hosting, Wish
from swarm.messages import KV_BLOCK_TOKENS, Load, Loaded
from swarm.terms import LayerRange, NodeId, PoolKind

LAYERS = LayerRange(4, 8)
BLOCK_BYTES = KV_BLOCK_TOKENS * 4 * 100


def paged(blocks: int = 50) -> Loaded:
    return replace(loaded(LAYERS), kv_blocks=blocks, prefix_unit=64, reuses_generated=True)


def served(message: Loaded) -> Hosting:
    made = hosting(LAYERS)
    made.worker_message(inspected(), 0.0)
    made.worker_message(message, 1.0)
    return made


def test_a_pool_is_as_large_as_the_worker_made_it() -> None:
    (shape,) = served(paged()).pools()
    assert (shape.capacity, shape.block_bytes, shape.load) == (50, BLOCK_BYTES, 1)
    assert shape.kind == PoolKind(is_paged=True, prefix_unit=64, reuses_generated=True)


def test_without_a_pool_in_the_worker_memory_is_counted_by_the_same_blocks() -> None:
    (shape,) = served(loaded(LAYERS)).pools()
    assert (shape.capacity, shape.kind) == (60 * MIB // BLOCK_BYTES, PoolKind())


def test_prefixes_are_kept_only_where_the_owner_wants_it() -> None:
    config = replace(CONFIG, enable_prefix_caching=False)
    wish = Wish("/models/model", "model", LAYERS)
    made = Hosting(NodeId("me"), [wish], Budget.of(100 * MIB, config), config, "/cache")
    made.start()
    made.worker_message(inspected(), 0.0)
    made.worker_message(paged(), 1.0)
    assert made.pools()[0].kind.prefix_unit == 0


def test_a_unit_that_ends_within_a_block_is_of_no_use() -> None:
    odd = replace(paged(), prefix_unit=KV_BLOCK_TOKENS + 1)
    assert served(odd).pools()[0].kind.prefix_unit == 0


def test_the_pool_of_a_new_worker_is_another_one() -> None:
    made = served(paged())
    made.worker_lost("crash", 2.0)
    assert made.pools() == ()
    made.tick({}, 4.0)
    made.worker_message(inspected(), 4.0)
    made.worker_message(paged(), 5.0)
    assert made.pools()[0].load == 2


def asked_for(made: Hosting) -> list[int]:
    return [m.kv_blocks for m in to_worker(made) if isinstance(m, Load)]


def test_two_models_share_what_is_left() -> None:
    made = two(LAYERS, 100 * MIB)
    made.worker_message(inspected(), 0.0)
    made.worker_message(inspected_other(), 0.0)
    first, second = asked_for(made)
    assert first == 30 * MIB // 2 // BLOCK_BYTES  # the other's weights were not known yet
    assert second == (100 * MIB - 8 * LAYER - first * BLOCK_BYTES) // BLOCK_BYTES
    made.worker_message(loaded(LAYERS), 1.0)
    made.worker_message(replace(loaded(LAYERS), model_id=OTHER.model_id), 1.0)
    equal = (100 * MIB - 8 * LAYER) // 2 // BLOCK_BYTES
    assert [shape.capacity for shape in made.pools()] == [equal, equal]  # of sums alone
    made.worker_lost("crash", 2.0)
    made.tick({}, 4.0)
    made.worker_message(inspected(), 4.0)
    made.worker_message(inspected_other(), 4.0)
    assert sum(asked_for(made)) <= 2 * equal


def test_models_without_a_pool_have_what_the_others_leave() -> None:
    made = two(LAYERS, 100 * MIB)
    made.worker_message(inspected(), 0.0)
    made.worker_message(inspected_other(), 0.0)
    made.worker_message(paged(50), 1.0)
    made.worker_message(replace(loaded(LAYERS), model_id=OTHER.model_id), 1.0)
    left = 100 * MIB - 8 * LAYER - 50 * BLOCK_BYTES
    assert [shape.capacity for shape in made.pools()] == [50, left // BLOCK_BYTES]


@pytest.mark.parametrize(
    ("memory", "blocks"), [(40 * MIB + BLOCK_BYTES + 8, 1), (4096 * MIB, POOL_BLOCKS_MAX)]
)
def test_a_pool_has_its_limits(memory: int, blocks: int) -> None:
    made = hosting(LAYERS, memory)
    made.worker_message(inspected(), 0.0)
    assert asked_for(made) == [blocks]


def test_no_kv_at_all_is_no_division_by_zero() -> None:
    made = hosting(LAYERS)
    made.worker_message(replace(inspected(), kv_bytes_per_token_layer=0), 0.0)
    assert asked_for(made) == [POOL_BLOCKS_MAX]


def test_the_context_that_clients_see_ends_where_the_owner_says() -> None:
    config = quick_config()
    world = World(1, replace(config, shard=replace(config.shard, max_model_len=123)))
    node = world.add((0, 12))
    world.settle()
    (view,) = node.core.models(world.now)
    assert (view.spec.context_length, view.covered) == (123, True)
    assert node.core.snapshot(world.now).kv_used_bytes == 0
    assert SPEC.context_length > 123
