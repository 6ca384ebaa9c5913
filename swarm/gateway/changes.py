"""What changed between two states of a node, and how a reader keeps up with it. Pure.

A state is the body of `GET /swarm/state`. A change is small JSON: entries that are new or moved,
with the fields that did (all of them for a new one); keys of entries that are gone; and values
that stand beside the lists.

    {"changed": {"sessions": [{"id": "…", "position": 18}]},
     "gone": {"hops": [{"origin": "…", "session": "…"}]},
     "values": {"kv_used_bytes": 4096}}
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

Json = dict[str, Any]

LISTS: dict[str, tuple[str, ...]] = {
    "nodes": ("id",),
    "models": ("id",),
    "links": ("node", "peer"),
    "sessions": ("id",),
    "recent": ("id",),
    "hops": ("origin", "session"),
}
"""The lists of a state, and what tells their entries apart."""
AGES = frozenset({"penalty_s", "probe_age_s", "ended_age_s"})
"""They move by themselves all the time: alone they make no change."""


def difference(old: Json, new: Json) -> Json | None:
    """What makes `new` of `old`; None where a reader would see nothing new."""
    changed: Json = {}
    gone: Json = {}
    for name, keys in LISTS.items():
        before, after = _by_key(old[name], keys), _by_key(new[name], keys)
        moved = [_moved(before.get(key), entry, keys) for key, entry in after.items()]
        if news := [entry for entry in moved if entry]:
            changed[name] = news
        if lost := [dict(zip(keys, key, strict=True)) for key in before if key not in after]:
            gone[name] = lost
    values = {key: new[key] for key in new if key not in LISTS and old.get(key) != new[key]}
    change = {"changed": changed, "gone": gone, "values": values}
    return {key: part for key, part in change.items() if part} or None


def apply(state: Json, change: Json) -> Json:
    """The state after a change, which must be the one that follows it. New entries come last."""
    result = {**state, **change.get("values", {})}
    for name, keys in LISTS.items():
        entries = _by_key(state[name], keys)
        for key in change.get("gone", {}).get(name, ()):
            entries.pop(_key(key, keys), None)
        for entry in change.get("changed", {}).get(name, ()):
            key = _key(entry, keys)
            entries[key] = entries.get(key, {}) | entry
        result[name] = list(entries.values())
    return result


def _by_key(entries: list[Json], keys: tuple[str, ...]) -> dict[tuple[Any, ...], Json]:
    return {_key(entry, keys): entry for entry in entries}


def _key(entry: Mapping[str, Any], keys: tuple[str, ...]) -> tuple[Any, ...]:
    return tuple(entry[key] for key in keys)


def _moved(old: Json | None, new: Json, keys: tuple[str, ...]) -> Json | None:
    """The fields that differ, with the key; None when only ages do."""
    if old is None:
        return new
    fields = {name: value for name, value in new.items() if old.get(name) != value}
    if fields.keys() <= AGES:
        return None
    return {key: new[key] for key in keys} | fields
