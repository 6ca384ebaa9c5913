"""Figures of streamed answers: what is counted, how it is summed up and shown. Pure."""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from random import Random
from typing import Any

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from swarm.errors import ConfigError, LinkError

Json = dict[str, Any]
QUANTILES = (0.5, 0.95, 0.99)
CONCURRENCY_MAX = 1024
WORDS = (
    "river", "stone", "window", "garden", "paper", "winter", "market", "ladder", "engine",
    "copper", "silver", "candle", "harbour", "bridge", "forest", "mirror", "basket", "hammer",
    "pocket", "thunder", "island", "letter", "summer", "valley", "kitchen",
)  # fmt: skip
ERRORS_SHOWN = 3


@dataclass(frozen=True, slots=True)
class Chunk:
    """One line of an event stream. `tokens`: all of the answer, where the server counts them."""

    has_text: bool = False
    tokens: int | None = None
    is_end: bool = False


@dataclass(frozen=True, slots=True)
class Sample:
    """One request. Times in seconds since it was sent; `texts_s`: of each chunk with text."""

    texts_s: tuple[float, ...]
    end_s: float
    tokens: int
    error: str = ""

    @property
    def ttft_s(self) -> float:
        return self.texts_s[0]

    @property
    def gaps_s(self) -> list[float]:
        """Between chunks of text; a token each, where the server sends one a chunk."""
        return [b - a for a, b in zip(self.texts_s, self.texts_s[1:], strict=False)]

    @property
    def tpot_s(self) -> float | None:
        """Time per token after the first."""
        if self.tokens < 2:
            return None
        return (self.texts_s[-1] - self.texts_s[0]) / (self.tokens - 1)


@dataclass(frozen=True, slots=True)
class Level:
    """All requests at one concurrency."""

    concurrency: int
    wall_s: float
    samples: tuple[Sample, ...]

    @property
    def good(self) -> list[Sample]:
        return [sample for sample in self.samples if not sample.error and sample.texts_s]

    @property
    def errors(self) -> list[str]:
        return [s.error or "the answer had no text" for s in self.samples
                if s.error or not s.texts_s]  # fmt: skip


def parse_levels(text: str) -> tuple[int, ...]:
    """`1,4,16`. Raises ConfigError."""
    parts = [part.strip() for part in text.split(",")]
    if not all(part.isascii() and part.isdigit() and len(part) < 6 for part in parts):
        raise ConfigError(f"concurrency is given as numbers such as 1,4,16, not {text!r}")
    levels = tuple(int(part) for part in parts)
    if not all(1 <= level <= CONCURRENCY_MAX for level in levels):
        raise ConfigError(f"concurrency is from 1 to {CONCURRENCY_MAX}, not {text!r}")
    return levels


def prompt(rng: Random, words: int) -> str:
    """Different each time, so that no server answers from what it kept of another."""
    story = " ".join(rng.choice(WORDS) for _ in range(words))
    return f"Continue this list of words with many more words, none of them twice: {story}"


def read_chunk(line: bytes) -> Chunk | None:
    """What a line of the stream says; None for a comment, a blank or another field.

    Raises LinkError for an error event, or a line that makes no sense.
    """
    line = line.strip()
    if not line.startswith(b"data:"):
        return None
    data = line[len(b"data:") :].strip()
    if data == b"[DONE]":
        return Chunk(is_end=True)
    try:
        fields = json.loads(data)
        if fields.get("error"):
            raise LinkError(str(fields["error"].get("message", fields["error"])))
        usage = fields.get("usage") or {}
        choice = (fields.get("choices") or [{}])[0]
        delta = choice.get("delta") or {}
        said = delta.get("content") or delta.get("reasoning_content") or choice.get("text")
        return Chunk(bool(said), usage.get("completion_tokens"))
    except (ValueError, LookupError, AttributeError, TypeError) as error:
        raise LinkError("the server sent something that is no streamed answer") from error


def quantile(values: Sequence[float], share: float) -> float | None:
    """The smallest value that `share` of all do not exceed."""
    if not values:
        return None
    ordered = sorted(values)
    return ordered[max(0, math.ceil(share * len(ordered)) - 1)]


# -------------------------------------------------------------------- shown


def level_json(level: Level) -> Json:
    good = level.good
    tokens = sum(sample.tokens for sample in good)
    rates = [s.tpot_s for s in good if s.tpot_s is not None]
    return {
        "concurrency": level.concurrency,
        "requests": len(level.samples),
        "failed": len(level.errors),
        "wall_s": round(level.wall_s, 3),
        "tokens": tokens,
        "tokens_per_s": round(tokens / level.wall_s, 2) if level.wall_s > 0 else None,
        "requests_per_s": round(len(good) / level.wall_s, 3) if level.wall_s > 0 else None,
        "ttft_ms": _spread([sample.ttft_s for sample in good]),
        "itl_ms": _spread([gap for sample in good for gap in sample.gaps_s]),
        "tpot_ms": _spread(rates),
        "errors": dict(Counter(level.errors)),
    }


def _spread(values: list[float]) -> Json:
    shown = {f"p{round(share * 100)}": quantile(values, share) for share in QUANTILES}
    mean = sum(values) / len(values) if values else None
    return {
        k: None if v is None else round(v * 1000, 2) for k, v in (shown | {"mean": mean}).items()
    }


def bench_view(levels: list[Json], about: str) -> RenderableType:
    """`levels`: of `level_json`. Milliseconds as half / 95 % / 99 % of all."""
    table = Table(box=None, pad_edge=False, header_style="dim", padding=(0, 2, 0, 0))
    for column in ("at once", "answers", "failed", "tokens/s", "TTFT ms", "ITL ms", "TPOT ms"):
        table.add_column(column, justify="right")
    for level in levels:
        table.add_row(
            str(level["concurrency"]),
            str(level["requests"] - level["failed"]),
            str(level["failed"]),
            "-" if level["tokens_per_s"] is None else f"{level['tokens_per_s']:.1f}",
            *(_cell(level[name]) for name in ("ttft_ms", "itl_ms", "tpot_ms")),
        )
    errors: Counter[str] = Counter()
    for level in levels:
        errors.update(level["errors"])
    told = [
        Text(f"{count} times: {text}", style="red")
        for text, count in errors.most_common(ERRORS_SHOWN)
    ]
    legend = Text("Times: half / 95 % / 99 % of all are at most that.", style="dim")
    return Group(Text(about, style="bold"), table, legend, *told)


def _cell(spread: Json) -> str:
    values = [spread[f"p{round(share * 100)}"] for share in QUANTILES]
    return " / ".join("-" if value is None else f"{value:.0f}" for value in values)
