"""Whole characters only, blanks kept, stop strings cut wherever they are split."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest
import tiny_text
from hypothesis import example, given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer

from swarm.gateway import token_table
from swarm.gateway.stream_text import BROKEN, PENDING_TOKENS_MAX, StopMatcher, detokenizer
from swarm.gateway.text import ModelText
from swarm.gateway.token_table import TokenTable


@dataclass(frozen=True)
class Kind:
    """A tokenizer and its table."""

    text: ModelText = field(repr=False)
    table: TokenTable = field(repr=False)

    def encode(self, text: str) -> tuple[int, ...]:
        return self.text.encode(text, special=False)

    def stream(self, prompt: tuple[int, ...], ids: tuple[int, ...]) -> list[str]:
        """What each of `ids` shows, and what comes at the end."""
        pieces = detokenizer(self.table, prompt)
        return [pieces.push(i) for i in ids] + [pieces.flush()]


def kind(tokenizer: Tokenizer) -> Kind:
    text = ModelText(tiny_text.files(tokenizer))
    return Kind(text, token_table.unpack(*text.packed_table()))


LEVEL = kind(tiny_text.byte_level())
FALLBACK = kind(tiny_text.byte_fallback())
BOTH = pytest.mark.parametrize("kind", [LEVEL, FALLBACK], ids=["level", "fallback"])
WORDS = st.text(st.sampled_from("the dogü😀日本 \n"), max_size=24)


def prompt_text(kind: Kind, ids: tuple[int, ...]) -> str:
    """The whole characters of a prompt; a run of byte tokens is spoiled by its last, half one."""
    whole = next(k for k in range(len(ids), -1, -1) if BROKEN not in kind.table.decode(ids[:k]))
    return max(kind.table.decode(ids[:whole]), kind.table.decode(ids).rstrip(BROKEN), key=len)


@BOTH
@settings(max_examples=400, deadline=None)
@example(content="😀😀", cut=9)
@example(content="üü", cut=3)
@example(content="日日", cut=3)
@given(content=WORDS, cut=st.integers(1, 99))
def test_pieces_join_to_the_decoded_whole_from_any_cut(kind: Kind, content: str, cut: int) -> None:
    ids = kind.encode("x" + content)
    cut = min(cut, len(ids))
    pieces = kind.stream(ids[:cut], ids[cut:])
    assert prompt_text(kind, ids[:cut]) + "".join(pieces) == kind.table.decode(ids)
    assert not any(BROKEN in piece for piece in pieces)


@BOTH
def test_the_blank_before_the_first_word_is_kept_after_a_prompt(kind: Kind) -> None:
    ids = kind.encode("the dog")
    head = len(kind.encode("the"))
    assert "".join(kind.stream(ids[:head], ids[head:])) == " dog"


@BOTH
def test_a_character_comes_whole_with_its_last_byte(kind: Kind) -> None:
    ids = kind.encode("o😀o")
    pieces = kind.stream((), ids)
    assert "".join(pieces) == "o😀o"
    assert all(piece in {"", "o", "😀", "😀o"} for piece in pieces)


@BOTH
def test_a_half_character_at_the_end_is_not_shown(kind: Kind) -> None:
    ids = kind.encode("o😀")
    assert "".join(kind.stream((), ids[:-1])) == "o"


@BOTH
def test_special_and_unknown_tokens_are_silent(kind: Kind) -> None:
    end = kind.encode("<|end|>")[-1]
    ids = kind.encode("the dog")
    mixed = (*ids[:1], end, 10**6, *ids[1:], end)
    assert "".join(kind.stream((), mixed)) == "the dog"


@BOTH
def test_bytes_that_never_make_a_character_do_not_pile_up(kind: Kind) -> None:
    broken = kind.encode("€")[-1:]
    *pieces, last = kind.stream((), broken * 5 * PENDING_TOKENS_MAX)
    assert set("".join(pieces)) == {BROKEN} and len(last) <= PENDING_TOKENS_MAX


def run(stops: tuple[str, ...], pieces: list[str]) -> tuple[str, bool]:
    matcher = StopMatcher(stops)
    text = ""
    for piece in pieces:
        text += matcher.push(piece)
        if matcher.stopped:
            return text, True
    return text + matcher.flush(), False


@pytest.mark.parametrize(
    ("stops", "pieces", "text", "stopped"),
    [
        ((), ["a", "b"], "ab", False),
        (("STOP",), ["go ST", "OP on"], "go ", True),
        (("STOP",), ["go ST", "AY"], "go STAY", False),
        (("STOP",), ["go S", "T", "O"], "go STO", False),
        (("aab",), ["a", "a", "a", "b"], "a", True),
        (("abcd", "bc"), ["abcd"], "a", True),
        (("abcd", "bc"), ["a", "b", "c", "d"], "a", True),
        (("\n\n", "END"), ["x\n", "\ny"], "x", True),
        (("日本",), ["x日", "本y"], "x", True),
        (("STOP",), ["STOP"], "", True),
    ],
)
def test_stop_strings(stops: tuple[str, ...], pieces: list[str], text: str, stopped: bool) -> None:
    assert run(stops, pieces) == (text, stopped)


@settings(max_examples=300, deadline=None)
@given(
    text=st.text("ab", max_size=16),
    stops=st.lists(st.text("ab", min_size=1, max_size=4), max_size=3),
    cuts=st.lists(st.integers(0, 16), max_size=4),
)
def test_the_way_text_is_cut_changes_nothing(text: str, stops: list[str], cuts: list[int]) -> None:
    at = sorted({0, len(text), *(min(cut, len(text)) for cut in cuts)})
    pieces = [text[a:b] for a, b in zip(at, at[1:], strict=False)]
    assert run(tuple(stops), pieces) == run(tuple(stops), list(text))


def test_nothing_comes_after_the_stop() -> None:
    matcher = StopMatcher(("x",))
    assert matcher.push("axb") == "a"
    assert matcher.push("more") == "" and matcher.flush() == ""
