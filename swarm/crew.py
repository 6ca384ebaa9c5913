"""Several workers of one node as one: each holds a part of every shard, rows pass them in turn.

    order of the core ──► Crew ──► orders to workers          one `Run` to the first of the chain
    word of a worker  ──► Crew ──► `Run` for the next worker, or one word to the core

To all other nodes a shard is one hop, on however many devices its layers lie. Block numbers mean
the same on every device: a block has the positions of all layers, each device its own layers' part
of it. A worker does what takes long, and the runs of one session, in the order given. Pure.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field, replace

from swarm.messages import (
    Begin,
    End,
    Inspect,
    Inspected,
    Load,
    Loaded,
    Message,
    Ran,
    Recall,
    Run,
    RunFailed,
    SpeedReport,
    Unload,
    WorkerFailed,
)
from swarm.part_sums import whole_loaded, whole_speed
from swarm.terms import LayerRange, ModelId, Parts, SessionId, ShardSpeed


@dataclass(frozen=True, slots=True)
class Surveyed:
    """What each worker says of one checkpoint, in the order of the devices."""

    found: tuple[Inspected, ...]


Told = Message | Surveyed


@dataclass(slots=True)
class Deal:
    """What follows from an order or a word: orders to workers, by device, and words to the core."""

    orders: list[tuple[int, Message]] = field(default_factory=list)
    told: list[Told] = field(default_factory=list)


@dataclass(slots=True)
class _Survey:
    order: Inspect
    found: list[Inspected] = field(default_factory=list)


@dataclass(slots=True)
class _Group:
    """A shard: the order for all of it, and for each device its part of that."""

    load: Load
    parts: dict[int, Load]
    loaded: dict[int, Loaded] = field(default_factory=dict)
    reports: dict[int, SpeedReport] = field(default_factory=dict)

    @property
    def is_whole(self) -> bool:
        return len(self.loaded) == len(self.parts)

    def speed_on(self, device: int) -> ShardSpeed | None:
        report, loaded = self.reports.get(device), self.loaded.get(device)
        return report.speed if report else loaded.speed if loaded else None


@dataclass(slots=True)
class _Session:
    begin: Begin
    chain: tuple[int, ...]
    """Its devices, in the order of their layers."""
    under_way: tuple[deque[Run], ...]
    """For each of these the runs that it has."""
    spent: tuple[deque[float], ...]
    """Seconds that earlier devices of the chain took for them."""
    is_over: bool = False


class Crew:
    def __init__(self, names: tuple[str, ...], parts_of: Callable[[ModelId], Parts]) -> None:
        """`names`: of the devices, for people. `parts_of`: where a model's layers are to lie."""
        self._names = names
        self._parts_of = parts_of
        self._surveys: dict[str, _Survey] = {}
        self._groups: dict[ModelId, _Group] = {}
        self._sessions: dict[SessionId, _Session] = {}
        self._asked: list[deque[Inspect | Load]] = [deque() for _ in names]
        """Per device what takes long and has had no answer."""
        self._wanted: list[dict[ModelId, Load]] = [{} for _ in names]
        """What each device has when it has done all that it was told."""
        self._held: list[dict[ModelId, Loaded]] = [{} for _ in names]

    # ------------------------------------------------------------ views

    def speed_of(self, device: int, model_id: ModelId) -> ShardSpeed | None:
        group = self._groups.get(model_id)
        return None if group is None else group.speed_on(device)

    def served_on(self, device: int) -> Loaded | None:
        """A part that the device should be able to run now."""
        wholes = [group for group in self._groups.values() if group.is_whole]
        return next((group.loaded[device] for group in wholes if device in group.loaded), None)

    # ------------------------------------------------------------ orders of the core

    def order(self, message: Message) -> Deal:
        deal = Deal()
        match message:
            case Inspect():
                self._surveys[message.path] = _Survey(message)
                self._ask(0, message, deal)
            case Load():
                self._load(message, deal)
            case Unload():
                self._groups.pop(message.model_id, None)
                for device in range(len(self._names)):
                    self._empty(device, message.model_id, deal)
            case Begin():
                self._begin(message, deal)
            case Recall():
                self._recall(message, deal)
            case Run():
                self._run(message, deal)
            case End():
                s = self._sessions.pop(message.session, None)
                deal.orders += [(device, message) for device in s.chain] if s else []
            case _:
                raise AssertionError(f"{type(message).__name__} is no order to a worker")
        return deal

    def _ask(self, device: int, order: Inspect | Load, deal: Deal) -> None:
        self._asked[device].append(order)
        deal.orders.append((device, order))

    def _load(self, order: Load, deal: Deal) -> None:
        """Devices that have their part already, since only another one was lost, keep it."""
        where = self._parts_of(order.model_id)
        ranges = {device: layers for device, layers in enumerate(where) if layers is not None}
        assert ranges, "a shard is loaded somewhere"
        first, last = min(ranges), max(ranges)
        group = self._groups[order.model_id] = _Group(order, {
            device: replace(order, layers=layers, embed=order.embed and device == first,
                            head=order.head and device == last)
            for device, layers in ranges.items()
        })  # fmt: skip
        if all(self._has(device, part) for device, part in group.parts.items()):
            self._held[last].pop(order.model_id)  # somebody must answer
            self._wanted[last].pop(order.model_id)
        for device in range(len(self._names)):
            part = group.parts.get(device)
            if part is None:
                self._empty(device, order.model_id, deal)
            elif self._has(device, part):
                group.loaded[device] = self._held[device][order.model_id]
            elif self._wanted[device].get(order.model_id) == part:
                group.parts[device] = self._wanted[device][order.model_id]  # it is at it
            else:
                self._held[device].pop(order.model_id, None)
                self._wanted[device][order.model_id] = part
                self._ask(device, part, deal)

    def _has(self, device: int, part: Load) -> bool:
        is_wanted = self._wanted[device].get(part.model_id) == part
        return is_wanted and part.model_id in self._held[device]

    def _empty(self, device: int, model_id: ModelId, deal: Deal) -> None:
        """What the device has of a model, it has no more."""
        self._held[device].pop(model_id, None)
        if self._wanted[device].pop(model_id, None) is not None:
            deal.orders.append((device, Unload(model_id)))

    # ------------------------------------------------------------ sessions

    def _begin(self, begin: Begin, deal: Deal) -> None:
        old = self._sessions.pop(begin.session, None)
        group = self._groups.get(begin.model_id)
        shares = _shares(begin.layers, group.parts) if group is not None else {}
        gone = set(old.chain) - set(shares) if old is not None else set()
        deal.orders += [(device, End(begin.session)) for device in sorted(gone)]
        chain = tuple(shares)
        if not chain or group is None:
            return  # its shard is gone, and whoever asked is told so by other means
        queues = tuple(deque[Run]() for _ in chain)
        spent = tuple(deque[float]() for _ in chain)
        self._sessions[begin.session] = _Session(begin, chain, queues, spent)
        for place, (device, layers) in enumerate(shares.items()):
            part = replace(
                begin,
                layers=layers,
                embed=begin.embed and place == 0,
                head=begin.head and place == len(chain) - 1,
                hop_count=begin.hop_count + len(chain) - 1,
                blocks=begin.blocks if self._is_paged(group, device) else b"",
            )
            deal.orders.append((device, part))

    def _is_paged(self, group: _Group, device: int) -> bool:
        loaded = group.loaded.get(device)
        return loaded is not None and loaded.kv_blocks > 0

    def _recall(self, message: Recall, deal: Deal) -> None:
        """Only a head depends on what was generated before."""
        s = self._sessions.get(message.session)
        if s is not None and s.begin.head:
            deal.orders.append((s.chain[-1], message))

    def _run(self, run: Run, deal: Deal) -> None:
        s = self._sessions.get(run.session)
        if s is not None and not s.is_over and run.generation == s.begin.generation:
            self._pass_on(s, 0, run, 0.0, deal)

    def _pass_on(self, s: _Session, place: int, run: Run, spent_s: float, deal: Deal) -> None:
        s.under_way[place].append(replace(run, payload=b""))
        s.spent[place].append(spent_s)
        device, group = s.chain[place], self._groups.get(s.begin.model_id)
        if run.blocks and (group is None or not self._is_paged(group, device)):
            run = replace(run, blocks=b"")
        deal.orders.append((device, run))

    # ------------------------------------------------------------ words of workers

    def answered(self, device: int, message: Message) -> Deal:
        deal = Deal()
        match message:
            case Ran():
                self._ran(device, message, deal)
            case RunFailed():
                s = self._sessions.get(message.session)
                if s is not None and not s.is_over and message.generation == s.begin.generation:
                    s.is_over = True
                    deal.told.append(message)
            case Inspected():
                if self._asked[device]:
                    self._inspected(device, self._asked[device].popleft(), message, deal)
            case Loaded():
                if self._asked[device]:
                    self._loaded(device, self._asked[device].popleft(), message, deal)
            case WorkerFailed():
                if self._asked[device]:
                    self._failed(device, self._asked[device].popleft(), message, deal)
            case SpeedReport():
                self._measured(device, message, deal)
            case _:
                deal.told.append(message)
        return deal

    def lost(self, device: int) -> None:
        """The worker ended, and all it had with it. What the others have they keep."""
        self._asked[device].clear()
        self._wanted[device].clear()
        self._held[device].clear()
        self._surveys.clear()
        for model_id, group in list(self._groups.items()):
            if device in group.parts:
                del self._groups[model_id]
        for s in self._sessions.values():
            s.is_over = s.is_over or device in s.chain

    def _inspected(self, device: int, order: Message, found: Inspected, deal: Deal) -> None:
        """One after the other: the first names the checkpoint, which can take long, and leaves that
        on the disk for the next."""
        survey = self._surveys.get(found.path)
        if survey is None or survey.order is not order or device != len(survey.found):
            return
        survey.found.append(found)
        if found.spec.model_id != survey.found[0].spec.model_id:
            del self._surveys[found.path]
            deal.told.append(WorkerFailed(found.path, "its files changed while they were read"))
        elif len(survey.found) < len(self._names):
            self._ask(len(survey.found), survey.order, deal)
        else:
            del self._surveys[found.path]
            deal.told.append(Surveyed(tuple(survey.found)))

    def _loaded(self, device: int, order: Message, loaded: Loaded, deal: Deal) -> None:
        if self._wanted[device].get(loaded.model_id) is not order:
            return
        self._held[device][loaded.model_id] = loaded
        group = self._groups.get(loaded.model_id)
        if group is None or group.parts.get(device) is not order:
            return
        group.loaded[device] = loaded
        if group.is_whole:
            parts = [group.loaded[device] for device in sorted(group.loaded)]
            deal.told.append(whole_loaded(group.load, parts))

    def _failed(self, device: int, order: Message, failed: WorkerFailed, deal: Deal) -> None:
        """One device that cannot do its part ends the whole."""
        told = replace(failed, detail=f"{self._names[device]}: {failed.detail}")
        if isinstance(order, Inspect):
            survey = self._surveys.get(order.path)
            if survey is not None and survey.order is order:
                del self._surveys[order.path]
                deal.told.append(told)
            return
        assert isinstance(order, Load)
        if self._wanted[device].get(order.model_id) is order:
            del self._wanted[device][order.model_id]
        group = self._groups.get(order.model_id)
        if group is not None and group.parts.get(device) is order:
            del self._groups[order.model_id]
            for other in group.parts:
                self._empty(other, order.model_id, deal)
            deal.told.append(told)

    def _measured(self, device: int, report: SpeedReport, deal: Deal) -> None:
        group = self._groups.get(report.speed.model_id)
        if group is None or device not in group.parts:
            return
        group.reports[device] = report
        known = {d: speed for d in sorted(group.parts) if (speed := group.speed_on(d)) is not None}
        if len(known) < len(group.parts):
            return
        counts = [len(group.parts[d].layers) for d in known]
        deal.told.append(SpeedReport(
            whole_speed(list(known.values()), counts),
            sum(report.kv_used_bytes for report in group.reports.values()),
            max(report.session_count for report in group.reports.values()),
        ))  # fmt: skip

    def _ran(self, device: int, result: Ran, deal: Deal) -> None:
        """To the next device, or, from the last, to the core."""
        s = self._sessions.get(result.session)
        if s is None or s.is_over or result.generation != s.begin.generation:
            return
        if device not in s.chain:
            return
        place = s.chain.index(device)
        run, spent_s = s.under_way[place].popleft(), s.spent[place].popleft()
        spent_s += result.compute_s
        if place == len(s.chain) - 1:
            deal.told.append(replace(result, compute_s=spent_s))
            return
        run = replace(run, row_type=result.row_type, payload=result.payload)
        self._pass_on(s, place + 1, run, spent_s, deal)


def _shares(layers: LayerRange, parts: dict[int, Load]) -> dict[int, LayerRange]:
    """Of these layers, what each device runs."""
    return {
        device: LayerRange(max(layers.start, part.layers.start), min(layers.stop, part.layers.stop))
        for device, part in sorted(parts.items())
        if layers.overlaps(part.layers)
    }
