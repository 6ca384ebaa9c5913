"""What every node of the swarm ran for every other, by the word of those it ran for. Pure.

A node that served passes the receipts it holds on to its peers, and they pass on what was news to
them: in the end all hold the same sums, each with the signature of the node that consumed, so that
owners of machines can settle without trusting who tells them.
"""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from operator import itemgetter

from swarm.access.receipts import NODE_ACCOUNTS_MAX
from swarm.messages import RECEIPTS_MAX, Receipt, Receipts, ServedReceipt
from swarm.terms import ModelId, NodeId


@dataclass(frozen=True, slots=True)
class Entry:
    """What a sum belongs to: `server` ran it for `origin`."""

    day: int
    server: NodeId
    origin: NodeId
    model_id: ModelId


class Ledger:
    """The newest receipt of each entry.

    Bounded: no more than `entries_max`, nor than a share of that for one origin. A member that
    signs with made-up keys can fill it all the same, for a week: members are trusted that far.
    """

    def __init__(self, entries_max: int) -> None:
        self._entries_max = entries_max
        self._receipts: dict[Entry, tuple[int, Receipt]] = {}
        """Each with its number, which rises with every change."""
        self._of_origin: Counter[NodeId] = Counter()
        self._number = 0
        self._told: dict[NodeId, dict[Entry, int]] = {}
        """Per peer and entry the newest number of all when it was told."""
        self._unsaved: dict[Entry, None] = {}

    def receipts(self) -> dict[Entry, Receipt]:
        return {entry: receipt for entry, (_, receipt) in self._receipts.items()}

    def is_news(self, entry: Entry, layer_tokens: int) -> bool:
        known = self._receipts.get(entry)
        if known is not None:
            return layer_tokens > known[1].layer_tokens
        of_origin = self._of_origin[entry.origin]
        return len(self._receipts) < self._entries_max and of_origin < NODE_ACCOUNTS_MAX

    def learn(self, entry: Entry, receipt: Receipt, *, is_saved: bool = False) -> None:
        """A checked receipt; nothing where it is no news."""
        if not self.is_news(entry, receipt.layer_tokens):
            return
        if self._receipts.pop(entry, None) is None:
            self._of_origin[entry.origin] += 1
        self._number += 1
        self._receipts[entry] = (self._number, receipt)
        if not is_saved:
            self._unsaved[entry] = None

    def untold(self, peer: NodeId) -> Receipts | None:
        """What this peer may not know yet, as much as one message takes: first what it was never
        told, the newest before the others, then what it was told longest ago."""
        told = self._told.setdefault(peer, {})
        due = [
            (told.get(entry, 0), -number, entry)
            for entry, (number, _) in self._receipts.items()
            if told.get(entry, 0) < number and peer not in (entry.server, entry.origin)
        ]
        batch = [entry for _, _, entry in heapq.nsmallest(RECEIPTS_MAX, due, key=itemgetter(0, 1))]
        for entry in batch:
            told[entry] = self._number
        entries = (ServedReceipt(entry.server, self._receipts[entry][1]) for entry in batch)
        return Receipts(tuple(entries)) if batch else None

    def forget_peers(self, linked: Iterable[NodeId]) -> None:
        """Others than these are told everything when they are back: they may have lost it."""
        here = set(linked)
        self._told = {peer: told for peer, told in self._told.items() if peer in here}

    def take_unsaved(self) -> dict[Entry, Receipt]:
        unsaved, self._unsaved = self._unsaved, {}
        return {entry: self._receipts[entry][1] for entry in unsaved if entry in self._receipts}

    def put_back(self, entries: Iterable[Entry]) -> None:
        self._unsaved = dict.fromkeys(entries) | self._unsaved

    @property
    def has_unsaved(self) -> bool:
        return bool(self._unsaved)

    def forget_before(self, day: int) -> None:
        """Older days stay on disk alone, as soon as they are there."""
        old = [e for e in self._receipts if e.day < day and e not in self._unsaved]
        for entry in old:
            del self._receipts[entry]
            self._of_origin[entry.origin] -= 1
            for told in self._told.values():
                told.pop(entry, None)
        self._of_origin = +self._of_origin
