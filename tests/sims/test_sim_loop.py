"""The event loop on virtual time: order, clocks, what befalls processes, and what it refuses."""

from __future__ import annotations

import asyncio

import pytest

from sims.loop import Deadlock, Livelock, SimLoop
from sims.machine import SECOND_NS, Machine, Process


def host(loop: SimLoop, number: int = 1) -> Process:
    return loop.process(Machine(number, f"m{number}", (f"10.0.0.{number}",)))


def test_time_jumps_to_the_next_timer() -> None:
    loop = SimLoop(1, start_s=0.0)
    seen: list[float] = []

    async def naps() -> None:
        for _ in range(3):
            await asyncio.sleep(3600)
            seen.append(asyncio.get_running_loop().time())

    loop.run_until_complete(naps())
    assert seen == [3600.0, 7200.0, 10800.0]


def test_callbacks_of_one_process_keep_their_order() -> None:
    for seed in range(20):
        loop = SimLoop(seed)
        order: list[tuple[int, int]] = []
        for process in (host(loop, 1), host(loop, 2)):
            for index in range(5):
                loop.post(loop.now_ns, process, order.append, (process.number, index))
        loop.run_for(1.0)
        for number in (1, 2):
            assert [index for n, index in order if n == number] == list(range(5))


def test_which_process_goes_first_is_drawn_from_the_seed() -> None:
    def first(seed: int, *, fifo: bool) -> int:
        loop = SimLoop(seed, fifo=fifo)
        order: list[int] = []
        for process in (host(loop, 1), host(loop, 2)):
            loop.post(loop.now_ns, process, order.append, process.number)
        loop.run_for(1.0)
        return order[0]

    assert {first(seed, fifo=False) for seed in range(20)} == {1, 2}
    assert {first(seed, fifo=True) for seed in range(20)} == {1}


def test_a_seed_gives_one_trace() -> None:
    def trace(seed: int) -> str:
        loop = SimLoop(seed)

        async def chatter() -> None:
            rng = loop.random("chatter")
            for _ in range(50):
                await asyncio.sleep(rng.random())

        for number in range(3):
            loop.spawn(host(loop, number), chatter())
        loop.run_for(100.0)
        return loop.trace_hash

    assert trace(7) == trace(7)
    assert trace(7) != trace(8)


def test_sockets_speak_before_overdue_timers_after_a_stall() -> None:
    loop = SimLoop(3, fifo=True)
    process, order = host(loop), []

    async def timer() -> None:
        await asyncio.sleep(0.1)
        order.append("timer")

    loop.spawn(process, timer())
    loop.run_for(0.05)
    loop.stall(process, 1.0)
    loop.post(loop.now_ns + SECOND_NS // 2, process, order.append, "socket")
    loop.run_for(0.9)
    assert order == []
    loop.run_for(0.2)
    assert order == ["socket", "timer"]


def test_the_clock_of_a_sleeping_machine_stands_still() -> None:
    loop = SimLoop(1, start_s=0.0)
    process, woke = host(loop), []

    async def nap() -> None:
        await asyncio.sleep(10.0)
        woke.append((loop.now_s, asyncio.get_running_loop().time()))

    loop.spawn(process, nap())
    loop.run_for(4.0)
    loop.sleep_machine(process.machine)
    loop.run_for(1000.0)
    loop.wake_machine(process.machine, [process])
    loop.run_for(10.0)
    assert woke == [(1010.0, 10.0)]


def test_a_clock_may_run_fast() -> None:
    loop = SimLoop(1, start_s=0.0)
    process, woke = host(loop), []
    process.machine.set_drift(100_000.0, loop.now_ns)

    async def nap() -> None:
        await asyncio.sleep(11.0)
        woke.append(round(loop.now_s, 6))

    loop.spawn(process, nap())
    loop.run_for(20.0)
    assert woke == [10.0]


def test_a_killed_process_runs_nothing_more_not_even_finally() -> None:
    loop = SimLoop(1)
    process, said = host(loop), []

    async def life() -> None:
        try:
            while True:
                await asyncio.sleep(0.1)
                said.append("alive")
        finally:
            said.append("finally")

    loop.spawn(process, life())
    loop.run_for(0.25)
    loop.kill(process)
    loop.run_for(1.0)
    assert said == ["alive", "alive"]
    loop.close()


def test_a_deadlock_is_told_with_the_place() -> None:
    loop = SimLoop(1)

    async def never() -> None:
        await asyncio.Event().wait()

    with pytest.raises(Deadlock, match=r"waiting: line \d+ of .*test_sim_loop"):
        loop.run_until_complete(never())
    loop.close()


def test_a_livelock_is_told() -> None:
    loop = SimLoop(1)

    def again() -> None:
        loop.call_soon(again)

    loop.call_soon(again)
    with pytest.raises(Livelock):
        loop.run_for(1.0)


def test_timers_that_never_move_time_on_are_a_livelock_too() -> None:
    loop = SimLoop(1)

    def again() -> None:
        loop.post(loop.now_ns, loop.world, again)

    again()
    with pytest.raises(Livelock):
        loop.run_until(lambda: False)


def test_sets_of_tasks_have_one_order() -> None:
    def order() -> list[str]:
        loop = SimLoop(1)

        async def nothing() -> None:
            """Ends at once."""

        async def names() -> list[str]:
            tasks = {loop.create_task(nothing(), name=f"t{i}") for i in range(50)}
            named = [task.get_name() for task in tasks]
            await asyncio.gather(*tasks)
            return named

        found: list[str] = loop.run_until_complete(names())
        return found

    assert order() == order()


def test_exceptions_that_nobody_caught_are_kept() -> None:
    loop = SimLoop(1)
    loop.post(loop.now_ns, host(loop), lambda: 1 / 0)
    loop.run_for(1.0)
    assert isinstance(loop.faults[0]["exception"], ZeroDivisionError)


def test_timeouts_and_queues_of_asyncio_work() -> None:
    loop = SimLoop(1, start_s=0.0)

    async def use() -> tuple[float, int]:
        queue: asyncio.Queue[int] = asyncio.Queue()
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(2.0):
                await queue.get()
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(queue.get(), 3.0)
        queue.put_nowait(5)
        return loop.time(), await queue.get()

    assert loop.run_until_complete(use()) == (5.0, 5)
