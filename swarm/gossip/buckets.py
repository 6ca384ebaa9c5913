"""Nodes fall into buckets by their ids; two stores compare a hash per bucket, then only those.

In a large swarm some record is always on its way, so that hashes of everything hardly ever agree.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable
from functools import cache, reduce
from operator import or_, xor

from swarm.errors import RemoteProtocolError
from swarm.terms import NodeId

BUCKETS_MAX = 256
"""The finest division: a summary of 1 KiB. More tell single records apart, and cost more each."""
NODES_PER_BUCKET = 4
HASH_BYTES = 4
MASK_BYTES = BUCKETS_MAX // 8


def bucket_of(node: NodeId) -> int:
    """In the finest division."""
    return zlib.crc32(node.encode()) % BUCKETS_MAX


def division(node_count: int) -> int:
    """How many buckets a summary of so many nodes has: a power of two."""
    wanted = max(1, min(BUCKETS_MAX, node_count // NODES_PER_BUCKET))
    return 1 << (wanted.bit_length() - 1)


def coarsened(fine: list[int], count: int) -> bytes:
    """The hashes (64-bit integers, joined by exclusive or) of `count` buckets, packed."""
    joined = [reduce(xor, fine[bucket::count]) for bucket in range(count)]
    return b"".join((value >> 32).to_bytes(HASH_BYTES, "big") for value in joined)


def count_of(hashes: bytes) -> int:
    """How many buckets a received summary has, or RemoteProtocolError."""
    count, rest = divmod(len(hashes), HASH_BYTES)
    if rest or not 1 <= count <= BUCKETS_MAX or count & (count - 1):
        raise RemoteProtocolError("a malformed summary")
    return count


def differing(ours: bytes, theirs: bytes) -> bytes:
    """The mask, in the finest division, of the buckets whose hashes differ; b"" where none does.

    Both are of one division.
    """
    count = count_of(theirs)
    unlike = {
        bucket
        for bucket in range(count)
        if ours[HASH_BYTES * bucket : HASH_BYTES * (bucket + 1)]
        != theirs[HASH_BYTES * bucket : HASH_BYTES * (bucket + 1)]
    }
    if not unlike:
        return b""
    return reduce(or_, (_finest(bucket, count) for bucket in unlike)).to_bytes(MASK_BYTES, "little")


@cache
def _finest(bucket: int, count: int) -> int:
    """The bits of those buckets of the finest division that one of `count` joins."""
    return reduce(or_, (1 << fine for fine in range(bucket, BUCKETS_MAX, count)))


def mask_of(buckets: Iterable[int]) -> bytes:
    bits = 0
    for bucket in buckets:
        bits |= 1 << bucket
    return bits.to_bytes(MASK_BYTES, "little")


def check_mask(mask: bytes) -> None:
    if len(mask) not in (0, MASK_BYTES):
        raise RemoteProtocolError("a malformed set of buckets")


def holds(mask: bytes, bucket: int) -> bool:
    """Whether a digest over `mask` speaks of the bucket; an empty mask speaks of all."""
    return not mask or bool(mask[bucket >> 3] >> (bucket & 7) & 1)
