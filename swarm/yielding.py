"""A node gives all its layers up while the owner needs the machine, and takes some again. Pure.

What runs through it is moved away as from a model that is unloaded; then its worker ends, so that
all of its memory is the owner's. It stays a member, and its gateway goes on.
"""

from __future__ import annotations

from contextlib import suppress

from swarm.adoption import Adoption
from swarm.asks import WantOfHub
from swarm.effects import Effect, Tell
from swarm.errors import RequestError
from swarm.hosted import Stage, Wish
from swarm.hosting import Hosting
from swarm.hub_wants import HubWants
from swarm.notes import Level, note
from swarm.unloading import LOOK_S, Unloading

REST_LOOK_S = 5.0
"""How often a node that gave way looks whether its worker has nothing to do: its owner may have
loaded a model, and unloaded it."""


class Yielding:
    def __init__(
        self, hosting: Hosting, adoption: Adoption, hub: HubWants, unloading: Unloading
    ) -> None:
        self._hosting = hosting
        self._adoption = adoption
        self._hub = hub
        self._unloading = unloading
        self._wishes: list[Wish] = []
        """What the owner named and was served when the node gave way."""
        self._of_hub: tuple[WantOfHub, ...] = ()
        self._gave_way = False
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

    def give_way(self, reason: str, now: float) -> None:
        if self._gave_way:
            return
        self._gave_way = True
        self._effects.append(Tell(note("node.gives_way", Level.WARNING, reason=reason)))
        self._adoption.pause()
        self._of_hub += self._hub.withdraw()
        of_hub = {ask.name for ask in self._of_hub}
        present = [h for h in self._hosting.all() if not h.is_retiring]
        own = [h for h in present if not h.wish.is_fetched and h.wish.name not in of_hub]
        self._wishes += [h.wish for h in own if h.stage is not Stage.FAILED]
        for h in present:
            self._unloading.begin(h.wish.name, now)
        self._due = now

    def forget(self, name: str) -> bool:
        """Its owner wants a model no more that was to be served again; False: it was not. One that
        was loaded again meanwhile is still here."""
        kept = [wish for wish in self._wishes if wish.name != name]
        asks = tuple(ask for ask in self._of_hub if ask.name != name)
        was_due = (len(kept), len(asks)) != (len(self._wishes), len(self._of_hub))
        self._wishes, self._of_hub = kept, asks
        if was_due and not self._hosting.has(name):
            self._effects.append(Tell(note("shard.unloaded", Level.INFO, model=name)))
        return was_due

    def come_back(self, now: float) -> None:
        if self._gave_way:
            self._gave_way, self._due = False, now
            self._effects.append(Tell(note("node.comes_back", Level.INFO)))

    def tick(self, now: float) -> bool:
        """True when the worker was told to end."""
        if self._due is None or now < self._due:
            return False
        if any(h.is_retiring for h in self._hosting.all()):
            self._due = now + LOOK_S
            return False
        if self._gave_way:
            self._due = now + REST_LOOK_S
            return self._hosting.rest()
        self._due = None
        wishes, self._wishes = self._wishes, []
        for wish in wishes:
            with suppress(RequestError):  # its owner loaded it meanwhile
                self._hosting.load(wish)
        asks, self._of_hub = self._of_hub, ()
        for ask in asks:
            self._hub.want(ask, now)
        self._adoption.resume(now)
        return False
