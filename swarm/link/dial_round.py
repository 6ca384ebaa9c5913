"""One dial of several addresses at once: which answered first, and when it has failed. Pure."""

from __future__ import annotations

from dataclasses import dataclass, field

from swarm.terms import Address, LinkKind, NodeId


@dataclass(slots=True)
class DialRound:
    """One `dial`: several addresses at once. It ends linked, or failed when all came to nothing."""

    addresses: tuple[Address, ...]
    expected: NodeId | None
    open: list[Address]
    failures: list[str] = field(default_factory=list)
    chosen: Address | None = None
    over: bool = False
    via: NodeId | None = None
    """The node by way of which `expected` is dialled; its id stands for the one address."""
    kind: LinkKind = LinkKind.DIRECT

    @staticmethod
    def start(addresses: tuple[Address, ...], expected: NodeId | None) -> DialRound:
        return DialRound(addresses, expected, list(addresses))

    @staticmethod
    def by_way_of(via: NodeId, target: NodeId) -> DialRound:
        address = Address(via, 0)
        return DialRound((address,), target, [address], via=via, kind=LinkKind.RELAYED)

    @staticmethod
    def by_channel(via: NodeId, target: NodeId) -> DialRound:
        address = Address(via, 0)
        return DialRound((address,), target, [address], via=via, kind=LinkKind.WEBRTC)

    def is_stranger(self, node: NodeId) -> bool:
        """Whether a node that answered is not the one this round looks for."""
        return self.expected is not None and node != self.expected

    def reached(self, address: Address) -> bool:
        """An address authenticated as a node looked for. False when another one was faster."""
        if self.chosen is None and not self.over:
            self.chosen = address
        return self.chosen == address

    def failed(self, address: Address, reason: str) -> bool:
        """An address came to nothing. True when by that the whole round has failed."""
        if self.over or address not in self.open:
            return False
        self.open.remove(address)
        self.failures.append(f"{address}: {reason}")
        self.over = address == self.chosen or not self.open
        return self.over

    def linked(self, address: Address) -> None:
        """The link through this address is up."""
        self.over = self.over or address == self.chosen

    @property
    def reason(self) -> str:
        return "; ".join(self.failures)
