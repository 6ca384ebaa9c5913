"""The composition root: builds the real parts of one node, runs them, takes them down.

Nothing else builds a transport, a clock, a worker client or a gateway (the simulator builds its
own). `run` is what `swarm join` calls.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import os
import random
import secrets
import signal
import socket
import sys
import time
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from typing import Any

import psutil

from swarm.access.keys_io import KeyStore
from swarm.access.receipts import Seal
from swarm.access.receipts_io import ReceiptDesk, ReceiptLinks, ReceiptStore
from swarm.access.usage_io import UsageStore
from swarm.asks import TakePart, WantOfHub
from swarm.battery_io import watch_battery
from swarm.config import Config, load_config
from swarm.console_io import Console
from swarm.cores_io import usable_cores
from swarm.devices import workers_of
from swarm.discovery.announcement import Announcement
from swarm.discovery.interfaces import Interface, announced_addresses
from swarm.discovery.interfaces_io import InterfaceWatch
from swarm.discovery.mdns_io import Mdns
from swarm.disk_io import LocalCheckpoints, NodeDisk, check_model_path
from swarm.errors import ConfigError
from swarm.gateway.http_io import Gateway
from swarm.gateway.sources import Sources
from swarm.gossip.sealing import Signer
from swarm.home_io import Home
from swarm.hosted import node_budget
from swarm.hosting import Hosting, Wish
from swarm.key_desk_io import KeyDesk, KeyPorts
from swarm.link.handshake import Credentials
from swarm.link.identity import Identity, node_id_of, verify
from swarm.link.instances import draw_instance
from swarm.link.keyring import KeyRing
from swarm.link.link_io import Peer
from swarm.link.sockets_io import aes_in_hardware
from swarm.link.tcp_io import Surroundings, TcpLinks
from swarm.link.webrtc_io import find_maker
from swarm.messages import PROTOCOL_MAX, PROTOCOL_MIN, KeyNotice, Message, Receipt, Receipts
from swarm.node import About, NodeCore
from swarm.node_io import NodeIo, Parts
from swarm.notes import Level, Note, note, printable
from swarm.options import JoinOptions
from swarm.owner_io import watch_owner
from swarm.shard.worker_client_io import WorkerClient
from swarm.status_line import Pace, status_line
from swarm.swarm_key_io import swarm_keys
from swarm.terms import Address, Incarnation, NodeId, short
from swarm.waiting_io import end, first_of
from swarm.weights.store_io import cached_models, models_store
from swarm.wishes import Wishes
from swarm.worker_desk_io import OneOfMany

RECORD_DOMAIN = b"gossip record"
CHOICES = {
    "dtype": ("auto", "float32", "bfloat16", "float16"),
    "quantization": ("none", "int8", "int4"),
    "kv_cache_dtype": ("auto", "int8", "fp8"),
}
"""Of the fields of `ShardConfig` that take one of a few words."""
MEMORY_SHARE = 0.7
"""Of the memory free at start, where the owner sets no `--memory`."""
NAME_LETTERS_MAX = 128
"""Of a node's or a model's name as others see it."""
WORKER_LINE_SHOWN = 500
START_LETTERS = 8
"""Of a start's instance, in the names of its mDNS entries."""
LISTEN_ANY = "::"
"""Every interface, IPv4 and IPv6."""
STATUS_S = 1.0
"""Between two looks for the line at the bottom of the terminal."""


def run(options: JoinOptions) -> int:
    """Run a node until it is told to leave; the exit status. Raises ConfigError before it runs."""
    _check(options)
    home = Home(options.home)
    config = _config(home, options)
    lock = home.lock()
    console = Console(as_json_lines=options.log_json)
    try:
        with asyncio.Runner(loop_factory=_loop_factory()) as runner:
            return runner.run(_main(options, home, config, console))
    finally:
        console.close()
        os.close(lock)


def _check(options: JoinOptions) -> None:
    """What can be seen to be wrong before anything starts."""
    for path in options.model:
        check_model_path(Path(path))
    given = (*options.model, *options.hub)
    if options.gateway_only and given:
        raise ConfigError("--gateway-only serves no layers, so it takes no --model")
    if options.layers is not None and not given:
        raise ConfigError("--layers says which part of a model to serve, but there is no --model")
    if len(options.served_model_name) > len(options.model):
        raise ConfigError("--served-model-name was given more often than --model")
    for peer in options.peers:
        if peer.port == 0:
            raise ConfigError(f"--peer {peer} names no port; `swarm join` prints the one it uses")


def _loop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    if sys.platform == "win32":
        return None
    import uvloop

    def new_loop() -> asyncio.AbstractEventLoop:
        loop: asyncio.AbstractEventLoop = uvloop.new_event_loop()
        return loop

    return new_loop


def _config(home: Home, options: JoinOptions) -> Config:
    shard: dict[str, Any] = {}
    for name in ("device", "dtype", "threads", "memory_bytes"):
        value = getattr(options, name)
        if value is not None:
            shard[name] = value
    if options.memory_bytes is not None or options.device_memory is not None:
        shard["device_memory"] = options.device_memory or ""
    engine = dataclasses.asdict(options.engine)
    shard.update({name: value for name, value in engine.items() if value is not None})
    flags: dict[str, dict[str, Any]] = {"shard": shard, "discovery": {}, "weights": {}}
    if options.gateway_only:
        flags["weights"]["take_part"] = False
    flags["owner"] = {"yield_to_owner": True} if options.yield_to_owner else {}
    if not options.mdns:
        flags["discovery"]["mdns"] = False
    flags["gateway"] = {"auth": "off"} if options.no_auth else {}
    if options.allow_origin:
        flags["gateway"]["allow_origins"] = ",".join(options.allow_origin)
    config = load_config(home.config_text, os.environ, flags)
    if find_maker(config.link) is None:
        # So that nothing is tried that cannot come about.
        config = dataclasses.replace(config, link=dataclasses.replace(config.link, webrtc="off"))
    for name, known in CHOICES.items():
        value = getattr(config.shard, name)
        if value not in known:
            raise ConfigError(f"{value!r} is not a {name}; use {', '.join(known)}")
    workers_of(config.shard, 0, 1)
    return config


async def _main(options: JoinOptions, home: Home, config: Config, console: Console) -> int:
    ring = await swarm_keys(options, home, config, console)
    asked = _asked_to_leave()
    while True:
        node = _Node(options, home, config, console, ring)
        await node.start()
        try:
            await node.until_its_end(asked)
        finally:
            await node.stop()
        if node.is_hopeless and not asked.is_set():
            raise ConfigError("nothing that --model names can be served here, so the node ended")
        if asked.is_set() or node.keeper is None:
            return 0
        _take_new_identity(home, console, node.id, node.keeper)
        ring = ring if ring.key.is_open else home.key_ring() or ring


def _asked_to_leave() -> asyncio.Event:
    """Set by the first Ctrl-C or termination signal."""
    asked = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        with contextlib.suppress(NotImplementedError):
            asyncio.get_running_loop().add_signal_handler(number, asked.set)
    return asked


def _take_new_identity(home: Home, console: Console, old: NodeId, keeper: Address) -> None:
    try:
        kept = home.renew_node_seed(short(old), secrets.token_bytes)
    except ConfigError as error:
        raise ConfigError(
            f"this machine's identity is also in use at {keeper} (a copied home folder?), and a new"
            f" one cannot be stored here: {error}"
        ) from error
    fresh = Identity(home.node_seed(secrets.token_bytes)).node_id
    console.note(note("node.renewed", Level.WARNING, node=short(fresh), kept=str(kept)))


# -------------------------------------------------------------------- the node


class _Node:
    """All parts of one running node."""

    def __init__(
        self,
        options: JoinOptions,
        home: Home,
        config: Config,
        console: Console,
        ring: KeyRing,
    ) -> None:
        self._options = options
        self._home = home
        self._config = config
        self._console = console
        self._ring = ring
        self._key = ring.key
        self._identity = Identity(home.node_seed(secrets.token_bytes))
        self._instance = draw_instance(secrets.token_bytes, time.time())
        self._incarnation = Incarnation(home.next_incarnation())
        self._name = printable(options.name or socket.gethostname())[:NAME_LETTERS_MAX]
        self._stack = contextlib.AsyncExitStack()
        has_wishes = bool(options.model or options.hub)
        self._takes_part = config.weights.take_part and not has_wishes
        self._models = models_store(config.weights)
        self._hopeless = asyncio.Event()

    async def start(self) -> None:
        options, config = self._options, self._config
        loop = asyncio.get_running_loop()
        watch = InterfaceWatch(config.discovery.interface_rescan_s, self._interfaces_changed)
        surroundings = Surroundings(
            time.monotonic,
            secrets.token_bytes,
            self._console.note,
            wall_clock=time.time,
            make_wire=find_maker(config.link),
        )
        credentials = Credentials(
            self._identity,
            self._key,
            self._incarnation,
            aes=aes_in_hardware(),
            instance=self._instance,
        )
        events = _Late()
        self._links = TcpLinks(credentials, config.link, events, surroundings)
        self._bound = await self._listen()
        addresses = self._addresses(watch.interfaces)
        self._io = self._node_io(loop, addresses, events)
        events.target = self._io
        self._io.attach(self._links)
        keys = KeyPorts(self._links, self._links.set_keys, self._console.note)
        events.keys = KeyDesk(self.id, self._home, self._ring, keys)
        self._on_hangup(events.keys.reload)
        self._receipts = events.receipts = self._receipt_desk()
        await self._receipts.start()
        self._stack.push_async_callback(self._receipts.close)
        await self._start_gateway()
        self._io.start(options.peers, self._home.peers())
        if self._takes_part:
            self._io.asked(TakePart(await asyncio.to_thread(cached_models, self._models)))
        for hub, name in options.hub:
            self._io.asked(WantOfHub(hub, printable(name)[:NAME_LETTERS_MAX], options.layers))
        self._stack.push_async_callback(self._io.stop)
        if config.discovery.mdns:
            await self._start_mdns()
        self._watching = loop.create_task(watch.run())
        self._stack.push_async_callback(
            end, loop.create_task(watch_battery(config.owner, self._gateway.departure))
        )
        if config.owner.yield_to_owner:
            looks = watch_owner(config.owner, config.shard.device, self._io.asked)
            self._stack.push_async_callback(end, loop.create_task(looks))
        if self._console.shows_status:
            self._stack.callback(self._console.status, "")
            self._stack.push_async_callback(end, loop.create_task(self._show_status()))

    @property
    def id(self) -> NodeId:
        return self._identity.node_id

    @property
    def is_hopeless(self) -> bool:
        """Nothing that its owner named can be served here."""
        return self._hopeless.is_set()

    @property
    def keeper(self) -> Address | None:
        """Where the node lives that this node's identity belongs to from now on."""
        return self._io.keeper

    async def until_its_end(self, asked: asyncio.Event) -> None:
        """`asked` (Ctrl-C, a termination signal), `swarm leave`, the loss of its identity, or of
        the hope to serve anything."""
        await first_of(asked, self._io.left, self._io.identity_lost, self._hopeless)
        if self._io.left.is_set():
            return
        grace_s = self._config.gateway.leave_grace_s
        self._gateway.refuse_new()
        if self._io.identity_lost.is_set() and not asked.is_set():
            await self._io.hand_over(grace_s)
            return
        for number in (signal.SIGINT, signal.SIGTERM):
            with contextlib.suppress(NotImplementedError):
                asyncio.get_running_loop().remove_signal_handler(number)
        if asked.is_set():
            self._console.say("To stop at once, press Ctrl-C again.")
        await self._io.leave(grace_s)

    async def stop(self) -> None:
        self._watching.cancel()
        await asyncio.gather(self._watching, return_exceptions=True)
        self._home.forget_gateway()
        await self._stack.aclose()
        reason = "the node stops" if self.keeper is None else "the node takes a new identity"
        await self._links.close_all(reason)

    def _on_hangup(self, act: Callable[[], None]) -> None:
        """A hang-up signal, where there is one, is how other commands say: look at the home."""
        with contextlib.suppress(AttributeError, NotImplementedError):
            asyncio.get_running_loop().add_signal_handler(signal.SIGHUP, act)

    async def _show_status(self) -> None:
        """For the person at the terminal, until cancelled."""
        pace = Pace()
        while True:
            snapshot = self._io.snapshot()
            tokens_per_s = pace.look(snapshot, time.monotonic())
            self._console.status(status_line(snapshot, tokens_per_s))
            await asyncio.sleep(STATUS_S)

    # ------------------------------------------------------------ building

    def _node_io(
        self, loop: asyncio.AbstractEventLoop, addresses: tuple[Address, ...], events: _Late
    ) -> NodeIo:
        free = int(psutil.virtual_memory().available * MEMORY_SHARE)
        shards = workers_of(self._config.shard, free, usable_cores())
        memory = [shard.memory_bytes or free for shard in shards]
        paths = dict.fromkeys(Path(text).resolve() for text in self._options.model)
        given = self._options.served_model_name
        names = [*given, *(path.name for path in list(paths)[len(given) :])]
        wishes = [
            Wish(str(path), printable(name)[:NAME_LETTERS_MAX], self._options.layers)
            for path, name in zip(paths, names, strict=True)
        ]
        of_hub = [printable(name)[:NAME_LETTERS_MAX] for _, name in self._options.hub]
        self._wishes = Wishes([wish.name for wish in wishes] + of_hub)
        me = self._identity.node_id
        budget, cache = node_budget(shards, memory), str(self._home.cache)
        hosting = Hosting(me, wishes, budget, self._config.shard, cache)
        about = About(
            node=me,
            name=self._name,
            version=version("swarm"),
            swarm_tag=self._key.tag,
            is_open=self._key.is_open,
            memory_bytes=sum(memory) if wishes or of_hub or self._takes_part else 0,
            addresses=addresses,
        )
        self._disk = NodeDisk(self._home, self._links.set_incarnation, self._console.note)
        self._stack.callback(self._disk.close)
        rng = random.Random(secrets.randbits(64))
        core = NodeCore(about, self._config, self._signer(), self._incarnation, hosting, rng)
        core.stays.begin(self._home.stays(), time.time(), time.monotonic())
        files = LocalCheckpoints()
        files.core = core
        workers = [
            WorkerClient(shard, OneOfMany(events, device), self._worker_said)
            for device, shard in enumerate(shards)
        ]
        parts = Parts(
            loop=loop,
            clock=time.monotonic,
            entropy=secrets.token_bytes,
            worker=workers[0],
            store=self._disk,
            files=files,
            sink=self._noted,
            models=self._models if of_hub or self._takes_part else None,
            beside=tuple(workers[1:]),
        )
        return NodeIo(core, parts)

    def _noted(self, entry: Note) -> None:
        self._console.note(entry)
        self._wishes.note(entry)
        if self._wishes.are_hopeless:
            self._hopeless.set()

    def _worker_said(self, line: str) -> None:
        self._console.note(note("worker.log", line=line[:WORKER_LINE_SHOWN]))

    def _signer(self) -> Signer:
        return Signer(
            swarm_tag=self._key.tag.encode(),
            public_key=self._identity.public_key,
            sign=lambda data: self._identity.sign(RECORD_DOMAIN, data),
            verify=lambda public_key, data, signature: verify(
                public_key, RECORD_DOMAIN, data, signature
            ),
            node_id_of=node_id_of,
        )

    async def _listen(self) -> Address:
        wanted = self._options.listen or Address(LISTEN_ANY, 0)
        try:
            return await self._links.listen(wanted.host, wanted.port)
        except OSError as error:
            reason = os.strerror(error.errno).lower() if error.errno else error
            raise ConfigError(
                f"cannot listen for nodes on {wanted}: {reason}; choose another --listen HOST:PORT"
            ) from error

    def _addresses(self, interfaces: tuple[Interface, ...]) -> tuple[Address, ...]:
        limit = self._config.discovery.addresses_per_peer_max
        return announced_addresses(interfaces, self._bound, limit)

    def _interfaces_changed(self, interfaces: tuple[Interface, ...]) -> None:
        self._io.addresses_changed(self._addresses(interfaces))

    def _receipt_desk(self) -> ReceiptDesk:
        identity = self._identity
        seal = Seal(
            identity.node_id, self._key.tag, identity.public_key, identity.sign, verify, node_id_of
        )
        links = ReceiptLinks(lambda: [peer.node for peer in self._links.peers()], self._links.send)
        store = ReceiptStore(self._home.path)
        return ReceiptDesk(seal, store, links, time.time, self._console.note)

    async def _start_gateway(self) -> None:
        token = secrets.token_hex(16)
        keys, usage = KeyStore(self._home.path), UsageStore(self._home.path)
        sources = Sources(time.monotonic, time.time, lambda: secrets.randbits(31), keys, usage,
                          self._receipts.consumed)  # fmt: skip
        self._gateway = Gateway(self._io, self._config.gateway, sources, self._console.note, token)
        wanted = self._options.gateway
        bound = await self._gateway.start(
            wanted.host if wanted else None, wanted.port if wanted else None
        )
        self._stack.push_async_callback(self._gateway.stop)
        url = f"http://{bound}"
        self._home.save_gateway(url, token)
        here = note("node.listening", node=short(self._identity.node_id), address=str(self._bound))
        self._console.note(here)
        self._console.note(note("gateway.listening", url=url))

    async def _start_mdns(self) -> None:
        announcement = Announcement(
            node=self._identity.node_id,
            tag=self._key.tag,
            name=self._name,
            listen=self._bound,
            protocol_min=PROTOCOL_MIN,
            protocol_max=PROTOCOL_MAX,
            start=self._instance.hex()[-START_LETTERS:],
        )
        mdns = Mdns(announcement, self._config.discovery, self._io, self._console.note)
        await mdns.start()
        self._stack.push_async_callback(mdns.stop)


class _Late:
    """Stands for the node while its own parts are built; nothing happens before it is there."""

    target: NodeIo
    receipts: ReceiptDesk
    keys: KeyDesk

    def link_up(self, peer: Peer) -> None:
        self.keys.link_up(peer.node)
        self.target.link_up(peer)

    def message_received(self, peer: NodeId, message: Message) -> None:
        """Receipts and keys are between owners: the node itself decides nothing by them."""
        if isinstance(message, Receipt):
            self.target.heard(peer)
            self.receipts.received(peer, message)
        elif isinstance(message, Receipts):
            self.target.heard(peer)
            self.receipts.told(message)
        elif isinstance(message, KeyNotice):
            self.target.heard(peer)
            self.keys.received(message)
        else:
            self.target.message_received(peer, message)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.target, name)
