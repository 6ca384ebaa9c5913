"""What an owner may say of several devices, and which layers go where."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from swarm.config import MIB, ShardConfig
from swarm.devices import device_names, workers_of
from swarm.errors import ConfigError
from swarm.spread import Berth, fit_count, spread
from swarm.terms import LayerRange


def config(device: str = "cpu", memory: str = "", memory_bytes: int = 0, threads: int = 0) -> (
    ShardConfig
):  # fmt: skip
    return ShardConfig(
        device=device, device_memory=memory, memory_bytes=memory_bytes, threads=threads
    )


@pytest.mark.parametrize(
    ("given", "told"),
    [
        (config(), [("cpu", 0, 0)]),
        (config("cuda:1", memory_bytes=5), [("cuda:1", 5, 0)]),
        (config("cpu,cpu"), [("cpu", 300, 4), ("cpu", 300, 4)]),
        (config("cpu,cpu", threads=1), [("cpu", 300, 1), ("cpu", 300, 1)]),
        (config("cuda:0, cuda:1"), [("cuda:0", 0, 0), ("cuda:1", 0, 0)]),
        (config("cuda:0,cpu", memory_bytes=7), [("cuda:0", 7, 0), ("cpu", 7, 8)]),
        (config("cuda,cpu", "2MiB,1MiB"), [("cuda", 2 * MIB, 0), ("cpu", MIB, 8)]),
        (config("cpu,cpu", "1MiB", 9), [("cpu", MIB, 4), ("cpu", MIB, 4)]),
        (config("cpu,cpu,cpu", threads=0), [("cpu", 200, 2)] * 3),
    ],
)
def test_each_worker_gets_its_share(given: ShardConfig, told: list[tuple[str, int, int]]) -> None:
    workers = workers_of(given, 600, 8)
    assert [(w.device, w.memory_bytes, w.threads) for w in workers] == told
    rest = [replace(w, device="", memory_bytes=0, threads=0) for w in (given, *workers)]
    assert all(one == rest[0] for one in rest)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (config("gpu"), "'gpu' is not a device"),
        (config("cpu,"), "'' is not a device"),
        (config(""), "'' is not a device"),
        (config("cuda:0,cuda:0"), "cuda:0 was named twice"),
        (config("cuda,cuda:0"), "cuda:0 was named twice"),
        (config("mps,mps"), "mps was named twice"),
        (config(",".join(["cpu"] * 17)), "17 devices were named"),
        (config("cpu,cpu", "1GiB,1GiB,1GiB"), "3 sizes for 2 devices"),
        (config("cpu", "1GiB,1GiB"), "2 sizes for 1 device;"),
        (config("cpu,cpu", "1GiB,8"), "with its unit"),
        (config("cpu,cpu", "1GiB,"), "a size is given as"),
    ],
)
def test_what_cannot_be_is_said_in_one_sentence(given: ShardConfig, said: str) -> None:
    with pytest.raises(ConfigError) as caught:
        workers_of(given, 600, 8)
    assert said in str(caught.value) and "\n" not in str(caught.value)


def test_names_in_the_order_of_the_owner() -> None:
    assert device_names(config("cuda:1,cuda:0,cpu")) == ("cuda:1", "cuda:0", "cpu")


# -------------------------------------------------------------------- layers on devices


def berth(weights: int, room: int | None = None, *, spills: bool = False) -> Berth:
    """A layer weighs 10, embedding and head 20 each."""
    return Berth(weights, weights if room is None else room, 10, 20, 20, 1, spills)


@pytest.mark.parametrize(
    ("layers", "berths", "told"),
    [
        ((0, 6), [berth(100)], ["0:6"]),
        ((0, 7), [berth(100)], None),
        ((0, 8), [berth(100), berth(100)], ["0:4", "4:8"]),
        ((0, 16), [berth(100), berth(100)], ["0:8", "8:16"]),
        ((0, 17), [berth(100), berth(100)], None),
        ((3, 13), [berth(100), berth(100)], ["3:8", "8:13"]),
        ((0, 9), [berth(100), berth(40)], ["0:8", "8:9"]),
        ((3, 6), [berth(200), berth(50)], ["3:5", "5:6"]),
        ((0, 8), [berth(100), berth(11), berth(100)], ["0:4", None, "4:8"]),
        ((0, 8), [berth(100), berth(15), berth(100)], ["0:4", "4:5", "5:8"]),
        ((0, 2), [berth(100), berth(60), berth(100)], ["0:1", None, "1:2"]),
        ((0, 6), [berth(100), berth(900, spills=True)], ["0:6", None]),
        ((0, 9), [berth(100), berth(900, spills=True)], ["0:8", "8:9"]),
        ((0, 9), [berth(900, spills=True), berth(100)], ["0:1", "1:9"]),
        ((0, 12), [berth(70), berth(900, spills=True), berth(70)], ["0:5", "5:7", "7:12"]),
        ((0, 16), [berth(100), berth(100), berth(90, spills=True)], ["0:8", "8:16", None]),
        ((0, 4), [berth(100, 200), berth(100, 1000)], ["0:1", "1:4"]),
    ],
)
def test_layers_go_where_there_is_room(
    layers: tuple[int, int], berths: list[Berth], told: list[str | None] | None
) -> None:
    embed, head = layers[0] == 0, layers[0] == 0
    parts = spread(LayerRange(*layers), berths, embed=embed, head=head)
    assert (parts and [part and str(part) for part in parts]) == told


sizes = st.integers(0, 400)
berth_lists = st.lists(
    st.builds(
        Berth, sizes, sizes, st.integers(1, 40), st.integers(0, 60), st.integers(0, 60),
        st.integers(0, 5), st.booleans(),
    ),
    min_size=1, max_size=5,
)  # fmt: skip


@given(berths=berth_lists, start=st.integers(0, 3), data=st.data())
def test_no_device_is_ever_over_its_room(
    berths: list[Berth], start: int, data: st.DataObject
) -> None:
    """What is said to fit in all is dealt out, in order, whole, each part within its device."""
    most = fit_count(berths)
    assert spread(LayerRange(start, start + most + 1), berths, embed=True, head=True) is None
    if not most:
        return
    count = data.draw(st.integers(1, most))
    parts = spread(LayerRange(start, start + count), berths, embed=True, head=True)
    if parts is None:
        assert count < len(berths)  # embedding, head and one layer may need two devices
        return
    used = [(berth, part) for berth, part in zip(berths, parts, strict=True) if part is not None]
    assert used[0][1].start == start and used[-1][1].stop == start + count
    assert all(a[1].stop == b[1].start for a, b in zip(used, used[1:], strict=False))
    for berth, part in used:
        fixed = (berth.embed if part.start == start else 0) + (
            berth.head if part.stop == start + count else 0
        )
        assert fixed + len(part) * berth.layer <= berth.weight_room
