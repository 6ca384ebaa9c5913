"""Structured output and penalties while nodes die: three nodes, any two of which hold the model, of
which one is killed and started again every few seconds. What a schema, a choice or a regular
expression was asked for must conform to it, and all answers must have the ids that they had on a
swarm that nobody disturbed: a reroute neither loses nor doubles what a head knows of the tokens
before.
"""

from __future__ import annotations

import argparse
import random
import re
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError
from rig import console, end_orderly, print_table, spread
from prompts import PROMPTS
from soak import Tally, killer
from soak_load import MEMORY, Found, judge, request
from streams import Json, Streamed, ask_all
from swarm_procs import SMOLLM2, Node, NodePlan, Swarm


NODES = {"a": "0:20", "b": "10:30", "c": "0:30"}
READY_S = 600.0
"""On a machine that does much else beside, a node needs minutes."""


class Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)


class Person(Strict):
    name: Annotated[str, Field(min_length=1, max_length=16)]
    age: Annotated[int, Field(ge=0, le=120)]
    trade: Literal["baker", "smith", "tailor"]
    tools: Annotated[list[Annotated[str, Field(max_length=10)]], Field(min_length=1, max_length=3)]


class Place(Strict):
    city: Annotated[str, Field(max_length=16)]
    inhabitants: Annotated[int, Field(ge=1, le=99_999_999)]
    is_capital: bool


SIZE = r"[0-9]{1,3}x[0-9]{1,3} (mm|cm|m)"
COLOURS = ("red", "green", "blue as the sea")


@dataclass(frozen=True, slots=True)
class Kind:
    """One sort of request, and what its text must be."""

    name: str
    fields: Json
    check: Callable[[str], bool]


def _is(kind: type[BaseModel]) -> Callable[[str], bool]:
    def check(text: str) -> bool:
        try:
            kind.model_validate_json(text)
        except ValidationError:
            return False
        return True

    return check


def _asked(kind: type[BaseModel]) -> Json:
    described = {"name": kind.__name__, "schema": kind.model_json_schema(), "strict": True}
    return {"response_format": {"type": "json_schema", "json_schema": described}}


SCHEMAS = (
    Kind("schema", _asked(Person), _is(Person)),
    Kind("schema", _asked(Place), _is(Place)),
)
OTHERS = (
    Kind("regex", {"guided_regex": SIZE}, lambda text: re.fullmatch(SIZE, text) is not None),
    Kind("choice", {"structured_outputs": {"choice": list(COLOURS)}}, COLOURS.__contains__),
    Kind(
        "penalties",
        {"presence_penalty": 0.6, "frequency_penalty": 0.4, "repetition_penalty": 1.1},
        bool,
    ),
)


def bodies(kinds: Sequence[Kind], count: int, tokens: int) -> list[tuple[Kind, Json]]:
    """Requests of these kinds in turn, every other one sampled."""
    asked = []
    for number in range(count):
        kind = kinds[number % len(kinds)]
        sampling = {"temperature": 0.8, "seed": number} if number % 2 else {"temperature": 0}
        body = request(PROMPTS[number % len(PROMPTS)], sampling) | {"max_tokens": tokens}
        asked.append((kind, body | {"ignore_eos": kind.name == "penalties"} | kind.fields))
    return asked


def text_problem(number: int, kind: Kind, answer: Streamed) -> str | None:
    if answer.error is None and not kind.check(answer.text):
        return f"answer {number} is no {kind.name}: {answer.text[:200]!r}"
    return None


@dataclass(slots=True)
class Counts:
    """Answers that could be judged by their text alone, under kills."""

    schemas: int = 0
    valid: int = 0


def one_round(
    url: str,
    asked: Sequence[tuple[Kind, Json]],
    wanted: Sequence[list[int]],
    found: Found,
    counts: Counts,
) -> None:
    answers = ask_all(url, [body for _, body in asked])
    for number, ((kind, _), answer) in enumerate(zip(asked, answers, strict=True)):
        found.answers += 1
        found.reroutes += answer.swarm.get("reroutes", 0)
        found.stalls_ms += answer.swarm.get("stall_ms", [])
        problem = text_problem(number, kind, answer)
        counts.schemas += kind.name == "schema"
        counts.valid += kind.name == "schema" and problem is None and answer.error is None
        problem = problem or judge(number, answer, wanted[number])
        if problem is not None:
            found.wrong.append(problem)


def start_three(swarm: Swarm) -> Node:
    """A gateway and the three; returns the gateway."""
    origin = swarm.start(NodePlan("gateway"))
    for name, layers in NODES.items():
        swarm.start(NodePlan(name, SMOLLM2, layers, "float32", extra=MEMORY))
    swarm.await_ready(READY_S)
    return origin


def kill_one(swarm: Swarm, rng: random.Random, tally: Tally) -> None:
    """Once all serve, so that the two others hold the model."""
    swarm.await_ready(READY_S)
    victim = swarm.nodes[rng.choice(list(NODES))]
    victim.kill()
    tally.kills.append(victim.name)
    swarm.restart(victim)


def run(folder: Path, options: argparse.Namespace) -> tuple[Found, Tally, Counts, str]:
    found, tally, counts = Found(), Tally(), Counts()
    kinds = SCHEMAS if options.schemas_only else (*SCHEMAS, *OTHERS)
    asked = bodies(kinds, options.streams, options.tokens)
    with Swarm(folder) as swarm:
        url = start_three(swarm).gateway.url
        alone = ask_all(url, [body for _, body in asked])
        for number, ((kind, _), answer) in enumerate(zip(asked, alone, strict=True)):
            problem = answer.error or text_problem(number, kind, answer)
            if problem is not None:
                raise SystemExit(f"an undisturbed answer failed: {problem}\n{swarm.logs()}")
        wanted = [answer.ids for answer in alone]
        console.print(f"{len(wanted)} answers known", style="dim")
        with killer(swarm, options.kill_every, random.Random(options.seed), tally, kill_one):
            while counts.schemas < options.answers and not found.wrong:
                one_round(url, asked, wanted, found, counts)
                console.print(
                    f"{counts.valid} of {counts.schemas} with a schema are valid, "
                    f"{len(tally.kills)} kills, {found.reroutes} reroutes",
                    style="dim",
                )
        logs = swarm.logs() if found.wrong else ""
        if not found.wrong:
            swarm.await_ready(READY_S)
            swarm.await_idle()
    return found, tally, counts, logs


def main() -> int:
    parser = argparse.ArgumentParser("scripts/soak_structured", description=__doc__)
    parser.add_argument("--answers", type=int, default=200, help="with a schema, at least")
    parser.add_argument("--streams", type=int, default=10, help="at once")
    parser.add_argument("--tokens", type=int, default=200, help="of each answer, at most")
    parser.add_argument("--kill-every", type=float, default=5.0, metavar="SECONDS")
    parser.add_argument("--schemas-only", action="store_true")
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    end_orderly()
    began = time.monotonic()
    with (
        tempfile.TemporaryDirectory(prefix="swarm-soak-") as folder,
        console.status("soaking structured output"),
    ):
        found, tally, counts, logs = run(Path(folder), options)
    for line in found.wrong:
        console.print(line, style="red", markup=False)
    if logs:
        console.print(logs, markup=False)
    stalls = spread(found.stalls_ms) if found.stalls_ms else "-"
    print_table(
        f"{options.streams} answers at once, a node killed every {options.kill_every:g} s",
        ["answers", "of schemas", "valid", "kills", "reroutes", "stall ms", "wrong", "seconds"],
        [
            (
                found.answers,
                counts.schemas,
                counts.valid,
                len(tally.kills),
                found.reroutes,
                stalls,
                len(found.wrong),
                round(time.monotonic() - began),
            )
        ],
    )
    return 1 if found.wrong else 0


if __name__ == "__main__":
    raise SystemExit(main())
