"""Models of the hub that a node's owner wants served: fetched there by one node of the swarm, from
that one by all others. Pure.

    LOOKING ──► WANTED ──► FETCHING ──► WHOLE ──► HELD
      on this     │  ▲        │ gave way, or failed    ▲
      machine     │  └────────┘                        │
                  └── somebody has it: ADOPTING ───────┘

The model's identity is a hash over all its tensors, so whoever fetches it for the swarm fetches all
its files; those that wait learn from it what the model is, and take no more than their own layers.
What no peer has of these any more comes from the hub, of the files that hold it alone.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from swarm.asks import WantOfHub
from swarm.config import WeightsConfig
from swarm.effects import DropModel, Effect, FetchHub, FetchModel, StopHub, Tell
from swarm.errors import RequestError
from swarm.fetch_facts import (
    Fact,
    FetchFailed,
    HubFailed,
    HubFetched,
    HubProgress,
    ModelFetched,
)
from swarm.hosted import Hosted, Stage, Wish
from swarm.hosting import Hosting
from swarm.notes import Level, note
from swarm.terms import HubShare, HubState, ModelId, NodeId, short
from swarm.weights.hub_turns import HubTurns, Shares

DOUBLINGS_MAX = 16


class Phase(Enum):
    LOOKING = "looking"
    WANTED = "wanted"
    FETCHING = "fetching"
    WHOLE = "whole"
    ADOPTING = "adopting"
    HELD = "held"


SAID = {
    Phase.LOOKING: HubState.WANTED,
    Phase.WANTED: HubState.WANTED,
    Phase.FETCHING: HubState.FETCHING,
    Phase.WHOLE: HubState.WHOLE,
    Phase.ADOPTING: HubState.PAUSED,
    Phase.HELD: HubState.HELD,
}


@dataclass(slots=True)
class _Want:
    ask: WantOfHub
    waits_until: float
    """Before that it begins nothing: others have yet to be heard of, or it failed a moment ago."""
    phase: Phase = Phase.LOOKING
    path: str = ""
    model_id: ModelId = ModelId("")
    done_bytes: int = 0
    told_bytes: int = 0
    """What others were told of `done_bytes`, and when."""
    told_at: float = 0.0
    failures: int = 0
    reason: str = ""
    is_resting: bool = False
    """It failed, or gave way: until `waits_until` it is nobody's turn to be this node's."""
    is_unable: bool = False
    """The hub does not give it to this node; another may have it yet."""
    waits_for: NodeId | None = None

    @property
    def said(self) -> HubState:
        """To others."""
        if self.phase is not Phase.WANTED:
            return SAID[self.phase]
        if self.is_unable:
            return HubState.UNABLE
        return HubState.PAUSED if self.is_resting else HubState.WANTED


class HubWants:
    def __init__(
        self, me: NodeId, hosting: Hosting, config: WeightsConfig, settle_s: float
    ) -> None:
        self._me = me
        self._hosting = hosting
        self._config = config
        self._settle_s = settle_s
        self._turns = HubTurns(config.hub_stall_s)
        self._wants: dict[str, _Want] = {}
        self._due: float | None = None
        self._effects: list[Effect] = []

    @property
    def has_effects(self) -> bool:
        return bool(self._effects)

    def take_effects(self) -> list[Effect]:
        effects, self._effects = self._effects, []
        return effects

    def next_deadline(self) -> float | None:
        return self._due

    # ------------------------------------------------------------ facts in

    def want(self, ask: WantOfHub, now: float) -> None:
        self._wants[ask.hub] = _Want(ask, now + self._settle_s)
        self._effects.append(FetchHub(ask.hub, may_download=False))
        self._say()

    def cancel(self, name: str) -> bool:
        """Its owner wants a model no more that is not here yet; False where there is none such."""
        want = next((w for w in self._wants.values() if w.ask.name == name), None)
        if want is None or want.phase in (Phase.WHOLE, Phase.HELD):
            return False
        self._stop(want)
        self._tell("shard.unloaded", want)
        self._say()
        return True

    def withdraw(self) -> tuple[WantOfHub, ...]:
        """Nothing is wanted for now; what was. What is here already is hosting's to give up."""
        asks = tuple(want.ask for want in self._wants.values())
        for want in list(self._wants.values()):
            self._stop(want)
        self._say()
        return asks

    def _stop(self, want: _Want) -> None:
        if want.phase not in (Phase.WHOLE, Phase.HELD):
            self._effects.append(StopHub(want.ask.hub))
        if want.phase is Phase.ADOPTING:
            self._effects.append(DropModel(want.model_id))
        del self._wants[want.ask.hub]

    def news(self, now: float) -> None:
        """What others say, or whether they are there, has changed, or what is hosted here."""
        if self._wants:
            self._due = now

    def fact(self, fact: Fact, now: float) -> bool:
        """Whether it was about a model that is wanted of the hub and not hosted yet."""
        match fact:
            case HubProgress() | HubFetched() | HubFailed():
                if (want := self._wants.get(fact.hub)) is not None:
                    self._hub_fact(want, fact, now)
                return True
            case ModelFetched() | FetchFailed():
                adopting = [w for w in self._wants.values() if w.phase is Phase.ADOPTING]
                want = next((w for w in adopting if w.model_id == fact.model_id), None)
                if want is None:
                    return False
                self._adopted(want, fact, now)
                return True
            case _:
                return False

    def given_up(self, model_id: ModelId, now: float) -> bool:
        """A model that came from peers is of no use here, or nobody has its weights any more;
        False where it is none of these."""
        want = next((w for w in self._wants.values() if w.model_id == model_id), None)
        if want is None:
            return False
        self._back(want, now)
        return True

    def tick(self, shares: Shares, now: float) -> None:
        if self._due is None or now < self._due:
            return
        self._turns.look({**shares, self._me: self._shares()}, now)
        for want in list(self._wants.values()):
            self._look(want, now)
        self._say()
        due = [w.waits_until for w in self._wants.values() if w.phase is Phase.WANTED]
        due += [stall] if (stall := self._turns.next_stall(now)) is not None else []
        self._due = min((moment for moment in due if moment > now), default=None)

    # ------------------------------------------------------------ inside

    def _hub_fact(
        self, want: _Want, fact: HubProgress | HubFetched | HubFailed, now: float
    ) -> None:
        if want.phase not in (Phase.LOOKING, Phase.FETCHING):
            return
        self._due = now
        match fact:
            case HubProgress():
                want.done_bytes = fact.done_bytes
                if now - want.told_at >= self._config.hub_progress_s:
                    want.told_at, want.told_bytes = now, want.done_bytes
            case HubFetched():
                self._found(want, fact.path)
            case HubFailed() if want.phase is Phase.LOOKING:
                want.phase = Phase.WANTED  # it is not on this machine
            case HubFailed():
                self._failed(want, fact, now)

    def _found(self, want: _Want, path: str) -> None:
        want.phase, want.path = Phase.WHOLE, path
        try:
            self._hosting.load(Wish(path, want.ask.name, want.ask.layers))
        except RequestError as error:
            del self._wants[want.ask.hub]
            self._tell("shard.failed", want, Level.ERROR, reason=str(error))

    def _failed(self, want: _Want, fact: HubFailed, now: float) -> None:
        want.reason = fact.reason
        self._back(want, now)
        want.is_unable = fact.is_final or want.failures >= self._config.hub_tries_max
        self._tell("hub.failed", want, Level.WARNING, reason=fact.reason)

    def _adopted(self, want: _Want, fact: ModelFetched | FetchFailed, now: float) -> None:
        if isinstance(fact, FetchFailed):
            self._tell("model.not_fetched", want, Level.WARNING, reason=fact.reason)
            self._back(want, now)
            return
        want.phase, want.path = Phase.HELD, fact.path
        self._tell("model.adopted", want)
        ask, model_id = want.ask, fact.model_id
        wish = Wish(fact.path, ask.name, ask.layers, fetched_id=model_id, hub=ask.hub)
        self._hosting.adopt(wish, None)  # what no peer has, the hub has
        self._due = now

    def _back(self, want: _Want, now: float) -> None:
        """After a pause it is to be had anew, from whoever has it, or of the hub."""
        pause_s = self._config.retry_min_s * 2 ** min(want.failures, DOUBLINGS_MAX)
        want.failures += 1
        want.phase, want.path, want.model_id = Phase.WANTED, "", ModelId("")
        want.is_resting = True
        want.waits_until = now + min(pause_s, self._config.unfit_rest_max_s)
        self._due = now

    def _look(self, want: _Want, now: float) -> None:
        match want.phase:
            case Phase.WANTED if now >= want.waits_until:
                want.is_resting = False
                self._seek(want, now)
            case Phase.FETCHING:
                held = self._turns.holder(want.ask.hub, self._me)
                if held is not None or self._turns.turn(want.ask.hub, now) != self._me:
                    self._effects.append(StopHub(want.ask.hub))
                    self._tell("hub.left_to_others", want)
                    self._back(want, now)
            case Phase.WHOLE | Phase.HELD:
                self._look_at_hosted(want)

    def _seek(self, want: _Want, now: float) -> None:
        """From whoever has it; else of the hub, or from whoever fetches it there."""
        hub = want.ask.hub
        held = self._turns.holder(hub, self._me)
        if held is not None:
            want.phase, want.model_id = Phase.ADOPTING, held
            self._effects.append(FetchModel(held, want.ask.name))
            return
        turn = self._turns.turn(hub, now)
        if turn == self._me and not want.is_unable:
            want.phase, want.done_bytes, want.told_bytes, want.told_at = Phase.FETCHING, 0, 0, now
            self._effects.append(FetchHub(hub, may_download=True))
            self._tell("hub.fetch", want)
        elif want.is_unable and self._turns.is_hopeless(hub, self._me):
            del self._wants[hub]
            self._tell("shard.failed", want, Level.ERROR, reason=want.reason)
        elif turn is not None and turn != want.waits_for:
            want.waits_for = turn
            self._tell("hub.waits", want, fetched_by=short(turn))

    def _look_at_hosted(self, want: _Want) -> None:
        h = self._hosted(want.path)
        if h is not None and h.inspected is not None:
            want.phase, want.model_id = Phase.HELD, h.inspected.spec.model_id
        elif want.phase is Phase.WHOLE and (h is None or h.stage is Stage.FAILED):
            del self._wants[want.ask.hub]  # hosting has said why
        elif want.phase is Phase.HELD and h is None:
            del self._wants[want.ask.hub]  # it was unloaded

    def _hosted(self, path: str) -> Hosted | None:
        return next((h for h in self._hosting.all() if h.wish.path == path), None)

    def _shares(self) -> tuple[HubShare, ...]:
        return tuple(
            HubShare(
                want.ask.hub,
                want.said,
                want.model_id if want.phase is Phase.HELD else ModelId(""),
                want.told_bytes if want.phase is Phase.FETCHING else 0,
            )
            for want in self._wants.values()
        )

    def _say(self) -> None:
        """Others are told what has changed."""
        if (shares := self._shares()) != self._hosting.hub_shares:
            self._hosting.hub_shares = shares
            self._hosting.changed = True

    def _tell(self, event: str, want: _Want, level: Level = Level.INFO, **fields: str) -> None:
        self._effects.append(Tell(note(event, level, model=want.ask.name, **fields)))
