"""`swarm plan`: the layouts, what they say, and how machines are named."""

from __future__ import annotations

import io
import json
import re
from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console

from swarm import daemon
from swarm.cli import main
from swarm.commands.planning import machines, report
from swarm.commands.planning.layout import Aim, Layout, lay_out
from swarm.commands.planning.machines import parse_nodes
from swarm.commands.planning.outline import Form, Outline, inspected, speed
from swarm.config import Config
from swarm.errors import ConfigError
from swarm.hosted import Budget, weight_bytes
from swarm.routing.cost import Wire
from swarm.terms import LayerRange

SEVEN = Outline(
    name="seven", layer_count=32, hidden_size=4096, vocab_size=32_000, context_length=8192,
    element_bytes=2, largest_layer_elements=202_000_000, layers_elements=32 * 202_000_000,
    layers_linear_elements=32 * 201_900_000, layers_active_elements=32 * 202_000_000,
    embed_elements=131_000_000, head_elements=131_000_000, kv_elements_per_token_layer=2048,
)  # fmt: skip
EXPERTS = replace(SEVEN, name="experts", layers_active_elements=SEVEN.layers_elements // 8)
CONFIG = Config()
AIM = Aim(512, 256, Wire(0.0005, 1.25e8), CONFIG.shard, CONFIG.routing)
FORM = Form.of(SEVEN, "auto", "none")


def plan(*nodes: str, outline: Outline = SEVEN, form: Form = FORM, aim: Aim = AIM) -> Layout:
    return lay_out(outline, form, parse_nodes(list(nodes)), aim)


def ranges(layout: Layout) -> list[str]:
    return [str(one.layers) for one in layout.placed]


def text_of(layout: Layout) -> str:
    shown = io.StringIO()
    Console(file=shown, width=160).print(report.as_text(layout, AIM))
    return shown.getvalue()


def test_one_machine_that_holds_all_needs_no_other() -> None:
    layout = plan("48GB:cuda", "8GB:cpu")
    assert layout.fits and ranges(layout)[0] == "0:32"
    assert len(layout.routes[0].hops) == 1 and layout.routes[0].hops[0].node == "0" * 31 + "1"
    gone, other = layout.losses
    assert gone.missing and gone.best is None and not gone.would_fit_anew
    assert other.best is not None and not other.missing


def test_machines_share_what_none_of_them_holds() -> None:
    layout = plan("16GB:cuda", "16GB:cuda", "16GB:cpu")
    assert layout.fits and layout.missing == ()
    first, second, _ = layout.placed
    assert first.layers is not None and second.layers is not None
    assert first.layers.start == 0 and second.layers.stop == 32
    for one in layout.placed:
        budget = Budget.of(one.machine.devices[0].taken_bytes, CONFIG.shard)
        assert one.layers is not None
        assert one.weight_bytes == weight_bytes(inspected(SEVEN, FORM), one.layers)
        assert one.weight_bytes <= budget.weights and one.kv_tokens > 0
    assert [loss.best is None for loss in layout.losses].count(False) >= 1


def test_what_does_not_fit_is_told_with_what_would_help() -> None:
    layout = plan("8GB:cuda", "8GB:cpu")
    assert not layout.fits and layout.missing
    bigger = plan("8GB:cuda", "8GB:cpu", f"{layout.needed_bytes}:cpu")
    assert bigger.fits
    assert "It does not fit: nobody has room for layers" in text_of(layout)
    assert report.as_json(layout, AIM)["needed_bytes"] == layout.needed_bytes


def test_a_machine_too_small_for_one_layer_takes_nothing_and_says_why() -> None:
    layout = plan("48GB:cuda", "500MB:cpu")
    assert layout.placed[1].layers is None
    assert "2-cpu takes nothing: not one layer fits" in text_of(layout)


def test_a_loss_that_the_rest_could_make_up_for_says_so() -> None:
    layout = plan("48GB:cpu", "48GB:cpu", "16GB:cuda")
    texts = report.losses(layout)
    assert all("answers go on" in text for text in texts)
    halves = plan("16GB:cuda", "24GB:cuda", "16GB:cuda")
    assert halves.fits
    lost = next(loss for loss in halves.losses if loss.missing)
    assert lost.would_fit_anew
    text = next(t for t in report.losses(halves) if f"without {lost.machine.name}" in t)
    assert "are gone until 3-cuda takes 0:17; then first token" in text
    assert lost.repaired is not None and lost.moves[0][1] == LayerRange(0, 17)


def test_no_room_for_the_answers_kv_is_not_called_a_gap() -> None:
    layout = plan("32GB:cuda", aim=replace(AIM, prompt_tokens=10_000_000))
    assert not layout.fits and not layout.missing
    assert "no room for the KV" in text_of(layout)


@pytest.mark.parametrize(
    ("faster", "slower"),
    [("24GB:rtx4090", "24GB:cuda"), ("24GB:cuda", "24GB:cpu"), ("24GB:cpu:80GB/s", "24GB:cpu")],
)
def test_faster_memory_gives_faster_tokens(faster: str, slower: str) -> None:
    (one,), (other,) = parse_nodes([faster]), parse_nodes([slower])
    here, there = (speed(SEVEN, FORM, machine.devices[0]) for machine in (one, other))
    assert here.decode_s_per_layer < there.decode_s_per_layer
    assert here.head_s < there.head_s


def test_packed_weights_and_experts_are_read_faster() -> None:
    (device,) = parse_nodes(["24GB:cpu"])[0].devices
    plain = speed(SEVEN, FORM, device).decode_s_per_layer
    packed = speed(SEVEN, Form.of(SEVEN, "auto", "int4"), device).decode_s_per_layer
    chosen = speed(EXPERTS, FORM, device).decode_s_per_layer
    assert packed < plain / 2 and chosen < plain / 5
    sums = speed(EXPERTS, FORM, device).prefill_s_per_token_layer
    assert sums == pytest.approx(speed(SEVEN, FORM, device).prefill_s_per_token_layer / 8)


def test_the_devices_of_one_machine_hold_together_what_none_of_them_does() -> None:
    layout = plan("16GB:cuda+16GB:cuda+16GB:cpu")
    (one,) = layout.placed
    assert layout.fits and one.layers == LayerRange(0, 32)
    parts = [part for part in one.parts if part is not None]
    for device, part in zip(one.machine.devices, one.parts, strict=True):
        budget = Budget.of(device.taken_bytes, CONFIG.shard)
        assert part is None or weight_bytes(inspected(SEVEN, FORM), part) <= budget.weights
    shown = text_of(layout)
    assert all(f"{part} cuda" in shown or f"{part} cpu" in shown for part in parts)
    told = report.as_json(layout, AIM)["nodes"][0]
    assert told["device"] == "cuda+cuda+cpu" and len(told["devices"]) == 3


def test_a_cpu_beside_a_gpu_is_left_idle_where_the_gpu_suffices() -> None:
    alone, beside = plan("48GB:cuda").placed[0], plan("48GB:cuda+64GB:cpu").placed[0]
    assert beside.parts == (LayerRange(0, 32), None)
    assert alone.candidate is not None and beside.candidate is not None
    assert alone.candidate.speed == beside.candidate.speed


def test_a_slow_network_costs_tokens() -> None:
    nodes = ("16GB:cuda", "24GB:cuda")
    near, far = plan(*nodes), plan(*nodes, aim=replace(AIM, wire=Wire(0.02, 1e6)))
    rates = [layout.routes[0].route.predicted_token_s for layout in (near, far)]
    assert rates[1] > rates[0] + 0.02


def test_the_share_of_memory_is_that_of_join() -> None:
    assert machines.MEMORY_SHARE == daemon.MEMORY_SHARE


@pytest.mark.parametrize(
    ("nodes", "says"),
    [
        ([], "--node 24GB:cuda"),
        (["lots"], "a size is given as"),
        (["24GB:abacus"], "'abacus' is not a device"),
        (["24GB:cuda:fast"], "MEMORY:DEVICE:BANDWIDTH"),
        (["24GB:cuda:0GB/s"], "above 0"),
        (["24GB:cuda:9999999GB/s"], "at most"),
        (["24GB:cuda:1:2"], "MEMORY:DEVICE"),
    ],
)
def test_what_names_no_machine(nodes: list[str], says: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(says)):
        parse_nodes(nodes)


def test_words_that_name_no_form() -> None:
    with pytest.raises(ConfigError, match="dtype"):
        Form.of(SEVEN, "int9", "none")
    with pytest.raises(ConfigError, match="quantization"):
        Form.of(SEVEN, "auto", "int2")
    assert Form.of(SEVEN, "float32", "none").element_bytes == 4


def test_an_outline_that_failed_is_a_sentence() -> None:
    with pytest.raises(ConfigError, match="no config"):
        Outline.read({"problem": "it has no config"})
    with pytest.raises(ConfigError, match="could not be outlined"):
        Outline.read({"name": "x"})


def test_the_command_reads_a_config_alone(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Of Llama-2-7B, as its makers publish it: no weights are there."""
    file = tmp_path / "llama7.json"
    config = {
        "model_type": "llama", "hidden_size": 4096, "intermediate_size": 11008,
        "num_hidden_layers": 32, "num_attention_heads": 32, "num_key_value_heads": 32,
        "vocab_size": 32000, "max_position_embeddings": 4096, "torch_dtype": "float16",
    }  # fmt: skip
    file.write_text(json.dumps(config))
    assert main(["plan", str(file), "--node", "32GB:rtx5090", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["model"] == "llama7" and told["layers"] == 32 and told["fits"]
    assert told["parameters"] == 6_738_411_520
    assert main(["plan", str(tmp_path / "none"), "--node", "8GB:cpu"]) == 1
    assert "there is no model at" in capsys.readouterr().err
