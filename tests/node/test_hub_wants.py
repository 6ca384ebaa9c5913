"""Several nodes want one model of the hub: one fetches it there, the others wait for that one."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from swarm.asks import WantOfHub
from swarm.config import MIB, ShardConfig, WeightsConfig
from swarm.effects import DropModel, Effect, FetchHub, FetchModel, StopHub, Tell
from swarm.fetch_facts import FetchFailed, HubFailed, HubFetched, HubProgress, ModelFetched
from swarm.hosting import Budget, Hosting
from swarm.hub_wants import HubWants
from swarm.messages import Inspected
from swarm.terms import HubShare, ModelId, ModelSpec, NodeId

CONFIG = ShardConfig(activation_bytes=0, later_fraction=0.0)
WEIGHTS = WeightsConfig()
HUB = "some/model"
SPEC = ModelSpec(ModelId("a" * 32), HUB, 12, 64, 100, 1000, (), True)
PATH = "/hub/some/model"


class OneNode:
    def __init__(self, name: str) -> None:
        self.id = NodeId(name)
        self.hosting = Hosting(self.id, [], Budget.of(1000 * MIB, CONFIG), CONFIG, "/cache")
        self.wants = HubWants(self.id, self.hosting, WEIGHTS, CONFIG.settle_s)
        self.orders: list[Effect] = []
        self.is_fetching = False
        self.events: list[str] = []

    def take(self) -> None:
        for effect in self.wants.take_effects():
            if isinstance(effect, Tell):
                self.events.append(effect.note.event)
                continue
            self.orders.append(effect)
            if isinstance(effect, FetchHub):
                self.is_fetching = effect.may_download
            elif isinstance(effect, StopHub):
                self.is_fetching = False


class Site:
    """Nodes that see each other's records at once, as long as they live."""

    def __init__(self, *names: str) -> None:
        self.now = 0.0
        self.nodes = {name: OneNode(name) for name in names}
        for node in self.nodes.values():
            node.wants.want(WantOfHub(HUB, HUB, None), self.now)
            node.wants.fact(HubFailed(HUB, "it is not here", is_final=True), self.now)

    def __iter__(self) -> Iterator[OneNode]:
        return iter(self.nodes.values())

    def __getitem__(self, name: str) -> OneNode:
        return self.nodes[name]

    def settle(self) -> None:
        """Until nobody has anything more to say."""
        while True:
            said = [node.hosting.hub_shares for node in self]
            for node in self:
                shares: dict[NodeId, tuple[HubShare, ...]] = {
                    other.id: other.hosting.hub_shares for other in self if other is not node
                }
                node.wants.news(self.now)
                node.wants.tick(shares, self.now)
                node.take()
            if said == [node.hosting.hub_shares for node in self]:
                return

    def wait(self, seconds: float) -> None:
        until = self.now + seconds
        while self.now < until:
            due = [d for node in self if (d := node.wants.next_deadline()) is not None]
            self.now = min([until, *(moment for moment in due if moment > self.now)])
            self.settle()

    def fetching(self) -> list[str]:
        return [node.id for node in self if node.is_fetching]

    def comes(self, name: str, done_bytes: int) -> None:
        self.now += WEIGHTS.hub_progress_s
        self[name].wants.fact(HubProgress(HUB, done_bytes), self.now)
        self.settle()

    def whole(self, name: str) -> None:
        """All of it has come to a node, and its worker has looked at it."""
        node = self[name]
        node.is_fetching = False
        node.wants.fact(HubFetched(HUB, PATH), self.now)
        self.settle()
        told = Inspected(SPEC, MIB, MIB, MIB, 100, f"{PATH}/manifest.json", PATH, 0)
        node.hosting.worker_message(told, self.now)
        self.settle()


@pytest.fixture
def site() -> Site:
    found = Site("b", "a", "c")
    found.settle()
    assert found.fetching() == [], "first they listen"
    found.wait(CONFIG.settle_s)
    assert found.fetching() == ["a"]
    return found


def adopts(node: OneNode) -> bool:
    return FetchModel(SPEC.model_id, HUB) in node.orders


def test_one_fetches_and_the_others_take_it_from_that_one(site: Site) -> None:
    for done in range(20):
        site.comes("a", done)
    assert site.fetching() == ["a"] and not adopts(site["b"])
    site.whole("a")
    assert [node.id for node in site if adopts(node)] == ["b", "c"]
    every = frozenset(range(12))
    for name in "bc":
        site[name].wants.fact(ModelFetched(SPEC.model_id, "/models/a", every), site.now)
    site.wait(1000.0)
    assert site.fetching() == []
    assert {share.model_id for node in site for share in node.hosting.hub_shares} == {SPEC.model_id}
    (hosted,) = site["b"].hosting.all()
    assert hosted.wish.fetched_id == SPEC.model_id


def test_one_that_dies_is_followed_by_another(site: Site) -> None:
    site.comes("a", 5)
    del site.nodes["a"]
    site.settle()
    assert site.fetching() == ["b"]


def test_one_that_stands_still_is_passed_over_and_gives_way(site: Site) -> None:
    site.comes("a", 5)
    site.wait(WEIGHTS.hub_stall_s - 1.0)
    assert site.fetching() == ["a"]
    site.wait(1.5)
    assert site.fetching() == ["b"]
    for done in range(20):
        site.comes("b", done)
    assert site.fetching() == ["b"], "nor does it begin again"
    site.whole("b")
    assert adopts(site["a"]) and adopts(site["c"])


def test_who_stands_still_alone_goes_on() -> None:
    site = Site("a")
    site.wait(10 * WEIGHTS.hub_stall_s)
    assert site.fetching() == ["a"]
    assert sum(isinstance(order, FetchHub) for order in site["a"].orders) == 2


def test_of_two_that_begin_at_once_the_larger_id_gives_way() -> None:
    sites = [Site("a"), Site("b")]
    for site in sites:
        site.wait(CONFIG.settle_s)
        assert len(site.fetching()) == 1
    both, other = sites
    both.nodes |= other.nodes
    both.settle()
    assert both.fetching() == ["a"]
    assert StopHub(HUB) in both["b"].orders


def test_who_joins_later_waits_whatever_its_id(site: Site) -> None:
    newcomer = Site("0")
    newcomer.now = site.now
    site.nodes |= newcomer.nodes
    site.wait(10.0)
    assert site.fetching() == ["a"]


def test_whoever_cannot_reach_the_hub_takes_it_from_another(site: Site) -> None:
    for name in "ab":
        assert site.fetching() == [name]
        site[name].is_fetching = False
        site[name].wants.fact(HubFailed(HUB, "no way there", is_final=True), site.now)
        site.settle()
    assert site.fetching() == ["c"]
    site.whole("c")
    site.wait(WEIGHTS.retry_min_s)
    assert adopts(site["a"]) and adopts(site["b"])


def test_what_nobody_can_get_is_said(site: Site) -> None:
    for name in "abc":
        site[name].wants.fact(HubFailed(HUB, "there is none", is_final=True), site.now)
        site.settle()
    site.wait(WEIGHTS.retry_min_s)
    assert all(node.events[-1] == "shard.failed" for node in site)
    assert all(node.hosting.hub_shares == () for node in site)


def test_a_passing_failure_is_tried_again_a_few_times() -> None:
    site = Site("a")
    site.wait(CONFIG.settle_s)
    for _ in range(WEIGHTS.hub_tries_max):
        assert site.fetching() == ["a"]
        site["a"].is_fetching = False
        site["a"].wants.fact(HubFailed(HUB, "it answered 503", is_final=False), site.now)
        site.wait(WEIGHTS.unfit_rest_max_s)
    assert site.fetching() == []
    assert site["a"].events[-1] == "shard.failed"


def test_when_its_holder_goes_the_hub_is_asked_again(site: Site) -> None:
    """Before the manifest has come, and after."""
    site.whole("a")
    del site.nodes["a"]
    for name in "bc":
        failed = FetchFailed(SPEC.model_id, "no peer could hand out the manifest", is_final=False)
        site[name].wants.fact(failed, site.now)
    site.wait(WEIGHTS.retry_min_s)
    assert site.fetching() == ["b"]


def test_what_is_wanted_no_more_is_fetched_no_more(site: Site) -> None:
    assert site["a"].wants.cancel(HUB)
    site.settle()
    assert site.fetching() == ["b"]
    assert not site["a"].wants.cancel(HUB)
    assert site["a"].hosting.hub_shares == ()


def test_a_node_that_gives_way_leaves_the_download_to_others_and_may_want_it_again(
    site: Site,
) -> None:
    (ask,) = site["a"].wants.withdraw()
    site.settle()
    assert ask == WantOfHub(HUB, HUB, None) and site["a"].hosting.hub_shares == ()
    site.wait(WEIGHTS.hub_stall_s)
    (other,) = site.fetching()
    site.whole(other)
    site["a"].wants.want(ask, site.now)
    site["a"].wants.fact(HubFailed(HUB, "it is not here", is_final=True), site.now)
    site.settle()
    site.wait(CONFIG.settle_s)
    assert FetchModel(SPEC.model_id, HUB) in site["a"].orders
    assert site["a"].wants.withdraw() == (ask,)
    site["a"].take()
    assert DropModel(SPEC.model_id) in site["a"].orders
