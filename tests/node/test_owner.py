"""When a node gives way to its machine's owner, and when it comes back."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import replace

import psutil
import pytest

from swarm.asks import ComeBack, GiveWay
from swarm.owner import Memory, Owner, Reading
from swarm.owner_config import OwnerConfig
from swarm.owner_io import Cards, Machine

CONFIG = OwnerConfig()
GIB = 1 << 30
CALM = Reading(0.05, (Memory("memory", 8 * GIB, 16 * GIB, own=2 * GIB),))
BUSY = replace(CALM, others_share=0.8)
SHORT = replace(CALM, memories=(Memory("memory", GIB // 2, 16 * GIB),))


def card(free: int, own: int) -> Memory:
    return Memory("the memory of GPU 1", free, 8 * GIB, own, is_card=True)


def seen(owner: Owner, reading: Reading, start_s: int, stop_s: int) -> list[tuple[int, object]]:
    """What is ordered while every look shows the same."""
    orders = [(at, owner.see(reading, float(at))) for at in range(start_s, stop_s, 2)]
    return [(at, order) for at, order in orders if order is not None]


def test_other_programs_must_take_the_processors_for_a_while() -> None:
    owner = Owner(CONFIG)
    assert seen(owner, BUSY, 0, 8) == []
    assert seen(owner, CALM, 8, 10) == []
    ((at, order),) = seen(owner, BUSY, 10, 60)
    assert at == 20 and isinstance(order, GiveWay) and "80%" in order.reason


@pytest.mark.parametrize(
    "memories",
    [SHORT.memories, (*CALM.memories, card(free=GIB // 4, own=4 * GIB))],
)
def test_memory_is_given_up_sooner(memories: tuple[Memory, ...]) -> None:
    ((at, order),) = seen(Owner(CONFIG), replace(CALM, memories=memories), 0, 60)
    assert at == 4 and isinstance(order, GiveWay)
    assert memories[-1].name in order.reason


def test_it_comes_back_when_it_is_left_alone_and_finds_room() -> None:
    owner = Owner(CONFIG)
    seen(owner, BUSY, 0, 12)
    assert seen(owner, replace(CALM, others_share=0.3), 12, 400) == [], "still half of it"
    tight = replace(CALM, memories=(Memory("memory", 3 * GIB, 16 * GIB),))
    assert seen(owner, tight, 400, 800) == [], "what it had would not fit"
    assert seen(owner, CALM, 800, 910) == []
    assert seen(owner, BUSY, 910, 912) == []
    assert seen(owner, CALM, 912, 1100) == [(1032, ComeBack())]


def test_each_time_that_did_not_last_makes_it_wait_longer() -> None:
    owner = Owner(CONFIG)
    now, waits = 0, []
    for _ in range(6):
        (given,) = seen(owner, BUSY, now, now + 12)
        (back,) = seen(owner, CALM, given[0] + 2, given[0] + 4000)
        waits.append(back[0] - given[0] - 2)
        now = back[0] + 2
    assert waits == [120, 240, 480, 960, 1800, 1800]
    now += int(CONFIG.lasting_s)
    (given,) = seen(owner, BUSY, now, now + 12)
    (back,) = seen(owner, CALM, given[0] + 2, given[0] + 4000)
    assert back[0] - given[0] - 2 == 120, "it was left alone for long enough since"


def test_a_node_that_fills_a_card_by_itself_stays() -> None:
    full = replace(CALM, memories=(*CALM.memories, card(free=GIB // 8, own=7 * GIB + 3 * GIB // 4)))
    assert seen(Owner(CONFIG), full, 0, 600) == []


@pytest.mark.parametrize("own_gib", [1, 8, 13, 15, 20])
def test_a_machine_that_is_left_alone_is_taken_again(own_gib: int) -> None:
    """However much of it the node had: pages that processes share count more than once."""
    owner = Owner(CONFIG)
    had = Memory("memory", GIB // 2, 16 * GIB, own=own_gib * GIB)
    seen(owner, Reading(0.8, (had,)), 0, 12)
    ((_, order),) = seen(owner, Reading(0.0, (Memory("memory", 15 * GIB, 16 * GIB),)), 12, 200)
    assert order == ComeBack()


def test_cards_count_from_when_this_node_is_seen_on_them() -> None:
    memories = "0, GPU-a, 10, 8192\n1, GPU-b, 24000, 24576\n2, GPU-c, [N/A], [N/A]\nno device\n"
    cards, mine = Cards(), frozenset((7, 8))
    assert cards.told(memories, "GPU-a, 99, 8000\n", mine) == ()
    owners = "GPU-a, 99, 8000\nGPU-b, 7, 100\nGPU-b, 8, [N/A]\nGPU-c, 8, 50\n"
    (found,) = cards.told(memories, owners, mine)
    assert found == Memory(
        "the memory of GPU 1", 24000 << 20, 24576 << 20, own=100 << 20, is_card=True
    )
    (later,) = cards.told(memories, "", mine)
    assert later == replace(found, own=0), "it gave way, and is to come back there"
    assert cards.told("", owners, mine) == ()


def burn(share_s: float) -> None:
    began = os.times().user
    while os.times().user - began < share_s:
        sum(range(1000))


@pytest.mark.skipif(os.nice(0) > 0, reason="runs at low priority, which counts for nobody")
def test_what_others_take_is_told_from_what_this_node_takes() -> None:
    program = "import sys; sys.stdin.read()"
    with subprocess.Popen([sys.executable, "-c", program], stdin=subprocess.PIPE) as other:
        of_another, own = Machine(other.pid), Machine(os.getpid())
        burn(0.5)
        taken, mine = of_another.read(), own.read()
        assert other.stdin is not None
        other.stdin.close()
    assert 0.0 < taken.others_share <= 1.0
    assert mine.others_share < taken.others_share, "this process has burned it"
    memory = psutil.virtual_memory()
    assert taken.memories[0].total == memory.total
    assert 0 < taken.memories[0].own < mine.memories[0].own


def test_a_node_whose_process_is_gone_has_nothing() -> None:
    with subprocess.Popen([sys.executable, "-c", ""]) as gone:
        machine = Machine(gone.pid)
        gone.wait()
    assert machine.read().memories[0].own == 0 and not machine.pids()
