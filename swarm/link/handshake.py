"""The handshake of a connection: Noise_XXpsk0_25519_ChaChaPoly_BLAKE2s and what it carries.

    -> psk, e            Hello: protocol range, ciphers
    <- e, ee, s, es      Proof: identity, signature over the static key, protocol range, ...
    -> s, se             Proof, with the lane and, on a data lane, the binding to its control lane

Sans-IO and pure. Whoever lacks the swarm key fails at the first message, at the cost of one AEAD
check and no Diffie-Hellman. The handshake's own cipher is fixed, since message 1 must use one
before anything is agreed; the frames afterwards use AES-GCM when both sides have it in hardware
(docs/decisions/007-link-handshake.md). Protocol ranges travel in both directions before either
side judges them, so that both can name both.
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import lru_cache

from swarm import shapes
from swarm.errors import HandshakeFailed, RemoteProtocolError
from swarm.link.identity import Identity, SwarmKey, node_id_of
from swarm.link.instances import are_two_starts, is_fit
from swarm.link.noise import KEY_BYTES, Cipher, NoiseKeys
from swarm.link.suite import NOISE, HandshakeState, Suite
from swarm.messages import PROTOCOL_MAX, PROTOCOL_MIN, Lane
from swarm.terms import INCARNATION_LIMIT, Incarnation, NodeId

HANDSHAKE_LIMIT = 1024
"""Bytes of one handshake message; real ones have less than 400."""
BINDING_BYTES = 32
_MAGIC = b"swarm link 1\0"
_DOMAIN = b"link static key"
_RANDOM_BYTES = 16

Entropy = Callable[[int], bytes]
IsFresh = Callable[[bytes], bool]


@dataclass(frozen=True, slots=True)
class ProtocolRange:
    low: int = PROTOCOL_MIN
    high: int = PROTOCOL_MAX

    def __str__(self) -> str:
        return f"{self.low}-{self.high}" if self.low != self.high else str(self.low)


@dataclass(frozen=True, slots=True)
class Credentials:
    """What a node brings to all its handshakes."""

    identity: Identity
    swarm_key: SwarmKey
    incarnation: Incarnation
    listening_port: int = 0
    """0: this node takes no connections."""
    aes: bool = True
    """Whether AES-GCM runs in hardware here."""
    protocol: ProtocolRange = field(default_factory=ProtocolRange)
    instance: bytes = b""
    """Of this start (see `instances`); b"": none is shown."""
    suite: Suite = NOISE
    older_keys: tuple[SwarmKey, ...] = ()
    """Of the same swarm, accepted beside its key."""
    revoked: frozenset[NodeId] = frozenset()
    """Nodes that get no link, whatever key they hold."""


@dataclass(frozen=True, slots=True)
class Hello:
    """Payload of message 1. `random` makes it differ even under a broken ephemeral generator."""

    random: bytes
    protocol_min: int
    protocol_max: int
    aes: bool


@dataclass(frozen=True, slots=True)
class Proof:
    """Payload of messages 2 and 3. `lane` and `binding` mean something in message 3 only."""

    public_key: bytes
    signature: bytes
    incarnation: Incarnation
    protocol_min: int
    protocol_max: int
    aes: bool
    listening_port: int
    lane: Lane
    binding: bytes
    instance: bytes = b""


@dataclass(frozen=True, slots=True)
class Established:
    """What a finished handshake gave. `is_self`: the other side is this very node; `is_copy`: it
    holds this node's key, but it is another start."""

    node: NodeId
    public_key: bytes
    incarnation: Incarnation
    listening_port: int
    protocol: int
    lane: Lane
    binding: bytes
    """A control lane: the value that its other lanes must show. Another lane: the value shown."""
    cipher: Cipher
    send_key: bytes = field(repr=False)
    receive_key: bytes = field(repr=False)
    is_self: bool
    is_copy: bool = False
    instance: bytes = b""
    suite: Suite = NOISE


@dataclass(frozen=True, slots=True)
class Reply:
    """What to do after a message: send `answer`, then use `established` or give up on `failure`."""

    answer: bytes | None = None
    established: Established | None = None
    failure: HandshakeFailed | None = None


class Handshake:
    """One side. `start()` (dialler only) and every `receive()` say what to do next.

    `receive` raises HandshakeFailed or RemoteProtocolError where nothing may be answered.
    """

    def __init__(
        self, credentials: Credentials, noise: HandshakeState, hello_random: bytes
    ) -> None:
        self._credentials = credentials
        self._noise = noise
        self._hello_random = hello_random
        self._lane: Lane | None = None
        self._binding = b""
        self._is_fresh: IsFresh = lambda _: True
        self._is_greeted = False
        self._others: list[Credentials] = []
        self._entropy: Entropy | None = None
        self._peer_range = ProtocolRange()
        self._peer_aes = False

    @staticmethod
    def dialler(
        credentials: Credentials, entropy: Entropy, lane: Lane, binding: bytes = b""
    ) -> Handshake:
        """`binding`: for a data lane, what `Established.binding` of the control lane is."""
        handshake = Handshake._new(credentials, entropy, initiator=True)
        handshake._lane = lane
        handshake._binding = binding
        return handshake

    @staticmethod
    def accepter(credentials: Credentials, entropy: Entropy, is_fresh: IsFresh) -> Handshake:
        """`is_fresh` is asked once with the dialler's ephemeral key; False for a replay."""
        handshake = Handshake._new(credentials, entropy, initiator=False)
        handshake._is_fresh = is_fresh
        handshake._others = [
            replace(credentials, swarm_key=older) for older in credentials.older_keys
        ]
        handshake._entropy = entropy
        return handshake

    @staticmethod
    def _new(credentials: Credentials, entropy: Entropy, *, initiator: bool) -> Handshake:
        keys = NoiseKeys(
            static=credentials.identity.noise_private,
            ephemeral=entropy(KEY_BYTES),
            prologue=_MAGIC + credentials.swarm_key.tag.encode(),
            psk=credentials.swarm_key.psk,
        )
        noise = credentials.suite.handshake(keys, initiator=initiator)
        return Handshake(credentials, noise, entropy(_RANDOM_BYTES))

    def _read_first(self, message: bytes) -> bytes:
        """An accepter's: of the keys that are accepted, the first that opens it."""
        while True:
            try:
                return self._noise.read(message)
            except HandshakeFailed:
                if not self._others or self._entropy is None:
                    raise
            other = Handshake._new(self._others.pop(0), self._entropy, initiator=False)
            self._noise, self._credentials = other._noise, other._credentials

    @property
    def peer_range(self) -> ProtocolRange:
        """What the other side speaks, once it has said so."""
        return self._peer_range

    @property
    def dials(self) -> bool:
        return self._lane is not None

    @property
    def lane(self) -> Lane | None:
        """The dialler's; an accepter is told in the last message."""
        return self._lane

    def start(self) -> bytes:
        """The dialler's first message."""
        ours = self._credentials
        hello = Hello(self._hello_random, ours.protocol.low, ours.protocol.high, ours.aes)
        return self._noise.write(shapes.pack(hello))

    def receive(self, message: bytes) -> Reply:
        if self.dials:
            return self._on_answer(shapes.unpack(Proof, self._noise.read(message)))
        if not self._is_greeted:
            payload = self._read_first(message)
            self._is_greeted = True
            return self._on_hello(shapes.unpack(Hello, payload))
        payload = self._noise.read(message)
        proof = shapes.unpack(Proof, payload)
        self._check(proof)
        return Reply(established=self._established(proof))

    def _on_hello(self, hello: Hello) -> Reply:
        if not self._is_fresh(self._noise.remote_ephemeral):
            raise HandshakeFailed("a repeated first message")
        self._peer_range = ProtocolRange(hello.protocol_min, hello.protocol_max)
        self._peer_aes = hello.aes
        answer = self._noise.write(self._proof(Lane.CONTROL, b""))
        try:
            self._agree(self._peer_range)
        except HandshakeFailed as failure:
            return Reply(answer, failure=failure)
        return Reply(answer)

    def _on_answer(self, proof: Proof) -> Reply:
        assert self._lane is not None
        self._peer_range = ProtocolRange(proof.protocol_min, proof.protocol_max)
        self._peer_aes = proof.aes
        self._agree(self._peer_range)
        self._check(proof)
        answer = self._noise.write(self._proof(self._lane, self._binding))
        return Reply(answer, self._established(proof))

    def _proof(self, lane: Lane, binding: bytes) -> bytes:
        ours = self._credentials
        signature = _vouched(ours.identity, ours.swarm_key.tag)
        return shapes.pack(
            Proof(
                public_key=ours.identity.public_key,
                signature=signature,
                incarnation=ours.incarnation,
                protocol_min=ours.protocol.low,
                protocol_max=ours.protocol.high,
                aes=ours.aes,
                listening_port=ours.listening_port,
                lane=lane,
                binding=binding,
                instance=ours.instance,
            )
        )

    def _agree(self, theirs: ProtocolRange) -> int:
        """The highest version that both speak. Raises HandshakeFailed with both ranges."""
        ours = self._credentials.protocol
        version = min(ours.high, theirs.high)
        if version < max(ours.low, theirs.low):
            raise HandshakeFailed(f"peer speaks protocol {theirs}, we speak {ours}")
        return version

    def _check(self, proof: Proof) -> None:
        signed = _signed(self._credentials.swarm_key.tag, self._noise.remote_static)
        suite = self._credentials.suite
        if not suite.verify(proof.public_key, _DOMAIN, signed, proof.signature):
            raise HandshakeFailed("the peer's identity does not vouch for its static key")
        if not 0 <= proof.listening_port < 1 << 16:
            raise RemoteProtocolError("a listening port out of range")
        if not 1 <= proof.incarnation < INCARNATION_LIMIT:
            raise RemoteProtocolError("an incarnation out of range")
        if len(proof.binding) not in (0, BINDING_BYTES):
            raise RemoteProtocolError("a lane binding of wrong length")
        if not is_fit(proof.instance):
            raise RemoteProtocolError("an instance of wrong length")

    def _established(self, proof: Proof) -> Established:
        lane = proof.lane if self._lane is None else self._lane
        shown = proof.binding if self._lane is None else self._binding
        forward, backward = self._noise.split()
        send, receive = (forward, backward) if self.dials else (backward, forward)
        ours = self._credentials
        cipher = Cipher.AES_GCM if ours.aes and self._peer_aes else Cipher.CHACHA_POLY
        is_own_key = proof.public_key == ours.identity.public_key
        is_copy = is_own_key and are_two_starts(ours.instance, proof.instance)
        return Established(
            node=node_id_of(proof.public_key),
            public_key=proof.public_key,
            incarnation=proof.incarnation,
            listening_port=proof.listening_port,
            protocol=self._agree(self._peer_range),
            lane=lane,
            binding=_binding(self._noise.handshake_hash) if lane is Lane.CONTROL else shown,
            cipher=cipher,
            send_key=_frame_key(send, cipher),
            receive_key=_frame_key(receive, cipher),
            is_self=is_own_key and not is_copy,
            is_copy=is_copy,
            instance=proof.instance,
            suite=ours.suite,
        )


def _signed(swarm_tag: str, noise_public: bytes) -> bytes:
    return swarm_tag.encode() + noise_public


@lru_cache(maxsize=1024)
def _vouched(identity: Identity, swarm_tag: str) -> bytes:
    """The identity's signature over its static key, the same in every handshake of a node."""
    return identity.sign(_DOMAIN, _signed(swarm_tag, identity.noise_public))


def _binding(handshake_hash: bytes) -> bytes:
    """What ties a data lane to the control lane that has this handshake hash."""
    return hashlib.blake2s(handshake_hash, person=b"datalane", digest_size=BINDING_BYTES).digest()


def _frame_key(split_key: bytes, cipher: Cipher) -> bytes:
    """One more derivation keeps a key from ever being used with two ciphers."""
    return hmac.digest(split_key, b"swarm frames " + cipher.value.encode(), "blake2s")
