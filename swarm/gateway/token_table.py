"""Ids to text and bytes, from a table that is made once and is cheap to hold and to hand over.

The daemon decodes with this and leaves the tokenizer itself to the helper process: loading one
holds the interpreter for up to seconds, in whatever thread it is done.
"""

from __future__ import annotations

import json
import re
from array import array
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

from tokenizers import Tokenizer
from tokenizers.decoders import Decoder

PRESENT, SPECIAL, ADDED = 1, 2, 4
"""Flags of an id: it has a token; the token never shows; the token stands for its own text."""
_SPECIAL_FLAGS = b"[" + bytes([PRESENT | SPECIAL, PRESENT | SPECIAL | ADDED]) + b"]"
"""A pattern for an id that has a special token."""


@dataclass(frozen=True, slots=True)
class TokenTable:
    """The tokens of one tokenizer. Ids beyond the table are ids without a token."""

    pieces: bytes
    """All tokens as the tokenizer spells them, UTF-8, one after the other."""
    offsets: array[int]
    """Where each begins in `pieces`, and where the last one ends."""
    flags: bytes
    """One byte per id."""
    decoder: Decoder | None
    is_byte_level: bool
    """GPT-2's way: a letter for every byte, so that a token may end inside a character."""

    def showing_special(self) -> TokenTable:
        """The same tokens, of which special ones show as any other."""
        shown = bytes(flags & ~SPECIAL for flags in range(256))
        return replace(self, flags=self.flags.translate(shown))

    def decode(self, token_ids: Sequence[int]) -> str:
        """Text of a sequence, special tokens left out, as the tokenizer itself gives it."""
        tokens = [self._spelling(i) for i in token_ids if not self.is_silent(i)]
        return str(self.decoder.decode(tokens)) if self.decoder else " ".join(tokens)

    def special_ids(self) -> dict[str, int]:
        """The special tokens by their texts."""
        found = re.finditer(_SPECIAL_FLAGS, self.flags)
        return {self._spelling(match.start()): match.start() for match in found}

    def is_silent(self, token_id: int) -> bool:
        """True for tokens that never show: special ones, and ids without a token."""
        if not 0 <= token_id < len(self.flags):
            return True
        return self.flags[token_id] & (PRESENT | SPECIAL) != PRESENT

    def token_bytes(self, token_id: int) -> bytes:
        """The bytes a token stands for, special ones included; none for an id without a token."""
        token = self._spelling(token_id)
        if not token or self.flags[token_id] & ADDED:
            return token.encode()
        if self.is_byte_level:
            letters = _byte_of_letter()
            if all(letter in letters for letter in token):
                return bytes(letters[letter] for letter in token)
            return token.encode()
        if len(token) == 6 and token.startswith("<0x") and token.endswith(">"):
            return bytes.fromhex(token[3:5])
        return token.replace("▁", " ").encode()

    def _spelling(self, token_id: int) -> str:
        if not 0 <= token_id < len(self.flags):
            return ""
        return self.pieces[self.offsets[token_id] : self.offsets[token_id + 1]].decode()


def pack(
    tokens: Mapping[int, str], special: frozenset[int], added: frozenset[int], decoder: str
) -> tuple[dict[str, Any], bytes]:
    """A table as JSON and bytes. `decoder`: the decoder's part of `tokenizer.json`, as text."""
    count = max(tokens, default=-1) + 1
    spelled = [tokens.get(i, "").encode() for i in range(count)]
    offsets = array("I", [0])
    for token in spelled:
        offsets.append(offsets[-1] + len(token))
    flags = bytes(
        PRESENT * (i in tokens) | SPECIAL * (i in special) | ADDED * (i in added)
        for i in range(count)
    )
    return {"count": count, "decoder": decoder}, offsets.tobytes() + flags + b"".join(spelled)


def unpack(header: Mapping[str, Any], body: bytes) -> TokenTable:
    """The table that `pack` made."""
    count = int(header["count"])
    offsets = array("I")
    offsets_bytes = (count + 1) * offsets.itemsize
    offsets.frombytes(body[:offsets_bytes])
    described = json.loads(header["decoder"])
    return TokenTable(
        pieces=body[offsets_bytes + count :],
        offsets=offsets,
        flags=body[offsets_bytes : offsets_bytes + count],
        decoder=_decoder(described) if described else None,
        is_byte_level=bool(described) and described.get("type") == "ByteLevel",
    )


def _decoder(described: dict[str, Any]) -> Decoder:
    """A decoder stands in a tokenizer; one without a vocabulary costs nothing."""
    parts = ("truncation", "padding", "normalizer", "pre_tokenizer", "post_processor")
    empty: dict[str, Any] = {
        "version": "1.0",
        "added_tokens": [],
        "model": {"type": "BPE", "vocab": {}, "merges": []},
        "decoder": described,
        **dict.fromkeys(parts),
    }
    decoder: Decoder = Tokenizer.from_str(json.dumps(empty)).decoder
    return decoder


@cache
def _byte_of_letter() -> dict[str, int]:
    """GPT-2's printable stand-in for each byte, turned round."""
    plain = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    table = {chr(byte): byte for byte in plain}
    others = [byte for byte in range(0x100) if byte not in set(plain)]
    return table | {chr(0x100 + index): byte for index, byte in enumerate(others)}
