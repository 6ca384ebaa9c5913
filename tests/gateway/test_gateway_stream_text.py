"""Whole characters only, blanks kept, stop strings cut wherever they are split."""

from __future__ import annotations

from typing import Any

import pytest
import tiny_text
from hypothesis import given, settings
from hypothesis import strategies as st

from swarm.gateway.stream_text import BROKEN, PENDING_TOKENS_MAX, Detokenizer, StopMatcher
from swarm.gateway.text import ModelText

BYTE_LEVEL = ModelText(tiny_text.files(tiny_text.byte_level()))
BYTE_FALLBACK = ModelText(tiny_text.files(tiny_text.byte_fallback()))
BOTH = pytest.mark.parametrize("text", [BYTE_LEVEL, BYTE_FALLBACK], ids=["level", "fallback"])
WORDS = st.text(st.sampled_from("the dogü😀日 \n"), max_size=24)


def stream(text: ModelText, prompt: tuple[int, ...], ids: tuple[int, ...]) -> list[str]:
    detokenizer = Detokenizer(text, prompt)
    return [detokenizer.push(i) for i in ids] + [detokenizer.flush()]


@BOTH
@settings(max_examples=150, deadline=None)
@given(content=WORDS, data=st.data())
def test_pieces_join_to_the_decoded_whole_from_any_cut(
    text: ModelText, content: str, data: Any
) -> None:
    ids = text.encode("x" + content, special=False)
    cut = data.draw(st.integers(1, len(ids)))
    whole = next(k for k in range(cut, -1, -1) if not text.decode(ids[:k]).endswith(BROKEN))
    before = text.decode(ids[:whole])
    pieces = stream(text, ids[:cut], ids[cut:])
    assert before + "".join(pieces) == text.decode(ids)
    assert not any(BROKEN in piece for piece in pieces)


@BOTH
def test_the_blank_before_the_first_word_is_kept_after_a_prompt(text: ModelText) -> None:
    ids = text.encode("the dog", special=False)
    head = len(text.encode("the", special=False))
    assert "".join(stream(text, ids[:head], ids[head:])) == " dog"


@BOTH
def test_a_character_comes_whole_with_its_last_byte(text: ModelText) -> None:
    ids = text.encode("o😀o", special=False)
    pieces = stream(text, (), ids)
    assert "".join(pieces) == "o😀o"
    assert all(piece in {"", "o", "😀", "😀o"} for piece in pieces)


@BOTH
def test_a_half_character_at_the_end_is_not_shown(text: ModelText) -> None:
    ids = text.encode("o😀", special=False)
    assert "".join(stream(text, (), ids[:-1])) == "o"


@BOTH
def test_special_and_unknown_tokens_are_silent(text: ModelText) -> None:
    end = text.encode("<|end|>", special=False)[-1]
    ids = text.encode("the dog", special=False)
    mixed = (*ids[:1], end, 10**6, *ids[1:], end)
    assert "".join(stream(text, (), mixed)) == "the dog"


def test_bytes_that_never_make_a_character_do_not_pile_up() -> None:
    broken = BYTE_FALLBACK.encode("ü", special=False)[-2]
    detokenizer = Detokenizer(BYTE_FALLBACK, ())
    pieces = [detokenizer.push(broken) for _ in range(5 * PENDING_TOKENS_MAX)]
    assert set("".join(pieces)) == {BROKEN}
    assert len(detokenizer._window) <= 2 * PENDING_TOKENS_MAX


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
