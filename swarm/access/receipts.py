"""Layer-tokens: what one node computed for another, told by signed receipts. Pure.

A layer-token is one position run through one layer. The origin counts what it consumed, by serving
node, model and UTC day, from the routes its sessions took; it signs the sums and sends them to the
nodes that served it. A receipt replaces the one before it, so a lost one costs nothing, and the
serving node's owner holds the origin's word for it, and passes it on to the others (`ledger`).
Nothing is decided by them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from swarm import shapes
from swarm.effects import Generated, SessionEvent, Started
from swarm.errors import RemoteProtocolError
from swarm.messages import Receipt
from swarm.terms import LayerRange, ModelId, NodeId

DOMAIN = b"usage receipt 1"
LAYER_TOKENS_LIMIT = 1 << 53
DAY_PAST_MAX = 7
"""Receipts for older days are refused; younger ones may come late, when a link is back."""
DAY_AHEAD_MAX = 1
"""Clocks differ; a day that has not begun anywhere cannot have been served."""
NODE_ACCOUNTS_MAX = 128
"""Days and models that one node may have signed for: a dozen models each day, and no more, so that
nobody fills the book with models that there are not."""
PUBLIC_KEY_BYTES = 32
MODEL_LETTERS = 32
NODE_LETTERS = 32


@dataclass(frozen=True, slots=True)
class Account:
    """What a sum belongs to. `node`: who served, or, at the one who served, for whom."""

    day: int
    node: NodeId
    model_id: ModelId


Sums = dict[Account, int]


class Consumption:
    """Counts one session's layer-tokens as its events come.

    A node that is new to the route, or serves other layers than before, runs all that came before;
    what a hop had cached of the prompt is not known here, and counted as run.
    """

    def __init__(self, prompt_count: int) -> None:
        self._length = prompt_count
        self._hops: dict[NodeId, LayerRange] = {}

    def of(self, event: SessionEvent) -> dict[NodeId, int]:
        """Layer-tokens by the node that ran them."""
        match event:
            case Started():
                before, self._hops = self._hops, {h.node: h.layers for h in event.route.hops}
                return {
                    node: len(layers) * self._length
                    for node, layers in self._hops.items()
                    if before.get(node) != layers
                }
            case Generated():
                self._length += 1
                return {node: len(layers) for node, layers in self._hops.items()}
            case _:
                return {}


@dataclass(frozen=True, slots=True)
class _Signed:
    """What a receipt's signature covers."""

    swarm_tag: str
    server: NodeId
    model_id: ModelId
    day: int
    layer_tokens: int


@dataclass(frozen=True, slots=True)
class Seal:
    """This node's name and key, and the way to check everybody's, for one swarm.

    sign        (domain, data) -> signature
    verify      (public key, domain, data, signature) -> whether it fits; never raises
    node_id_of  the NodeId of a public key
    """

    me: NodeId
    swarm_tag: str
    public_key: bytes
    sign: Callable[[bytes, bytes], bytes]
    verify: Callable[[bytes, bytes, bytes, bytes], bool]
    node_id_of: Callable[[bytes], NodeId]

    def receipt(self, account: Account, layer_tokens: int) -> Receipt:
        """This node's word that `account.node` ran so much for it."""
        signed = _Signed(self.swarm_tag, account.node, account.model_id, account.day, layer_tokens)
        signature = self.sign(DOMAIN, shapes.pack(signed))
        return Receipt(self.public_key, account.model_id, account.day, layer_tokens, signature)

    def check(self, origin: NodeId, receipt: Receipt, today: int) -> Account:
        """What a receipt from `origin` for this node is about.

        Raises RemoteProtocolError for what no honest node sends.
        """
        if self.origin_of(receipt) != origin:
            raise RemoteProtocolError("a receipt in the name of another node")
        self.check_for(self.me, receipt, today)
        return Account(receipt.day, origin, receipt.model_id)

    def origin_of(self, receipt: Receipt) -> NodeId:
        """Who would have signed it. Raises RemoteProtocolError for what is no key."""
        if len(receipt.public_key) != PUBLIC_KEY_BYTES:
            raise RemoteProtocolError("a receipt with a malformed key")
        return self.node_id_of(receipt.public_key)

    def check_for(self, server: NodeId, receipt: Receipt, today: int) -> None:
        """Raises RemoteProtocolError unless its origin signed it for `server`, whoever tells."""
        if len(server) != NODE_LETTERS or not server.isalnum():
            raise RemoteProtocolError("a receipt for what is no node")
        if len(receipt.model_id) > MODEL_LETTERS or not receipt.model_id.isalnum():
            raise RemoteProtocolError("a receipt for what is no model")
        if not 0 < receipt.layer_tokens < LAYER_TOKENS_LIMIT:
            raise RemoteProtocolError("a receipt over a count out of range")
        if not today - DAY_PAST_MAX <= receipt.day <= today + DAY_AHEAD_MAX:
            raise RemoteProtocolError("a receipt for a day out of range")
        signed = _Signed(
            self.swarm_tag, server, receipt.model_id, receipt.day, receipt.layer_tokens
        )
        data = shapes.pack(signed)
        if not self.verify(receipt.public_key, DOMAIN, data, receipt.signature):
            raise RemoteProtocolError("a receipt with a forged signature")


class ReceiptBook:
    """The newest sums, both ways. Bounded: accounts beyond `accounts_max` a way are not opened, nor
    more than `NODE_ACCOUNTS_MAX` for one that signs."""

    def __init__(self, accounts_max: int) -> None:
        self._accounts_max = accounts_max
        self.consumed: Sums = {}
        """By the nodes that served this one."""
        self.served: Sums = {}
        """As the nodes that this one served have signed."""
        self._unsent: dict[Account, None] = {}
        self._unsaved_consumed: dict[Account, None] = {}
        self._unsaved_served: dict[Account, Receipt] = {}

    def load(self, consumed: Sums, served: Sums) -> None:
        """What was known before this start; all of it is sent again. Some may have come since."""
        for account, count in consumed.items():
            self.consumed[account] = self.consumed.get(account, 0) + count
        for account, count in served.items():
            self.served[account] = max(count, self.served.get(account, 0))
        self._unsent |= dict.fromkeys(consumed)

    @property
    def has_news(self) -> bool:
        return bool(self._unsent or self._unsaved_consumed or self._unsaved_served)

    def consume(self, account: Account, layer_tokens: int) -> None:
        if account not in self.consumed and len(self.consumed) >= self._accounts_max:
            return
        self.consumed[account] = self.consumed.get(account, 0) + layer_tokens
        self._unsent[account] = self._unsaved_consumed[account] = None

    def signed(self, account: Account, receipt: Receipt) -> bool:
        """Take a checked receipt; False for one that says less than is known, or finds no room."""
        known = self.served.get(account)
        if known is None and not self._has_room_for(account.node):
            return False
        if known is not None and receipt.layer_tokens < known:
            return False
        if receipt.layer_tokens != known:
            self.served[account] = receipt.layer_tokens
            self._unsaved_served[account] = receipt
        return True

    def _has_room_for(self, node: NodeId) -> bool:
        if len(self.served) >= self._accounts_max:
            return False
        return sum(account.node == node for account in self.served) < NODE_ACCOUNTS_MAX

    def unsent(self) -> tuple[tuple[Account, int], ...]:
        """Sums that those who served may not know yet."""
        return tuple((account, self.consumed[account]) for account in self._unsent)

    def sent(self, account: Account) -> None:
        self._unsent.pop(account, None)

    def take_unsaved(self) -> tuple[Sums, dict[Account, Receipt]]:
        consumed = {account: self.consumed[account] for account in self._unsaved_consumed}
        served, self._unsaved_served = self._unsaved_served, {}
        self._unsaved_consumed = {}
        return consumed, served

    def put_back(self, consumed: Iterable[Account], served: dict[Account, Receipt]) -> None:
        """They could not be saved; what came since counts."""
        self._unsaved_consumed |= dict.fromkeys(consumed)
        self._unsaved_served = served | self._unsaved_served

    def forget_before(self, day: int) -> None:
        """Sums of older days stay on disk alone."""
        for sums in (self.consumed, self.served):
            for account in [account for account in sums if account.day < day]:
                del sums[account]
        self._unsent = {account: None for account in self._unsent if account.day >= day}
