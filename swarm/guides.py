"""Structured output: from a guide and the generated ids to the ids that may come next.

llguidance does the work. What comes of it is a pure function of (tokenizer, guide, ids): a matcher
that is made anew and told the same ids allows the same ones next. Its limits bound what a guide may
cost: to compile, and for one token. https://github.com/guidance-ai/llguidance
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import llguidance
from llguidance.gbnf_to_lark import any_to_lark

from swarm.errors import ShardError
from swarm.gateway.token_table import TokenTable, pack, unpack
from swarm.terms import Guide, GuideKind

LIMITS = llguidance.LLParserLimits(
    max_items_in_row=2000,
    initial_lexer_fuel=1_000_000,
    step_lexer_fuel=200_000,
    step_max_items=50_000,
    max_lexer_states=50_000,
    max_grammar_size=500_000,
    verbose_errors=False,
)
"""Of one guide. Fuel: tens of milliseconds to begin with, and up to 15 for one token, which others
on the same worker wait for. States: some tens of MB at most. Errors quote nothing of the answer."""
PATTERN_PROPERTIES_MAX = 32
COMMON_PATTERNS_MAX = 4
"""In one schema, and in one `allOf`: patterns are compared with each other, pair by pair or all at
once, before any of the limits above counts. 400 took two minutes; these take parts of a second."""
PROBLEM_CHARACTERS = 300
_PLACE = re.compile(r"^at 1\(\d+\): ")
"""In a grammar of one line that the client did not write."""
_WHITE_SPACE = r"( |\r?\n[ \t]{0,20})"
"""Between two parts of JSON: as programs lay it out, in one line or indented."""
_NO_FORCING = '%llguidance {"no_forcing": true}'


class GuideError(ShardError):
    """The guide cannot be compiled or followed; the text says why, for the client."""


class Vocabulary:
    """The tokens of one model, as guides need them. Tens of MB; made in up to a second."""

    def __init__(self, table: TokenTable, vocab_size: int, eos_ids: Sequence[int]) -> None:
        """Raises GuideError for a model without end."""
        if not eos_ids:
            raise GuideError("the model has no token that ends an answer")
        self.vocab_size = vocab_size
        known = len(table.flags)
        self.tokenizer = llguidance.LLTokenizer(
            _Tokens(table, eos_ids), n_vocab=max(known, vocab_size), eos_token=list(eos_ids)
        )


class _Tokens(llguidance.TokenizerWrapper):
    """What llguidance asks of a tokenizer: it never has to turn text into ids here."""

    def __init__(self, table: TokenTable, eos_ids: Sequence[int]) -> None:
        count = len(table.flags)
        self.is_tokenizer_wrapper = True
        self.bos_token_id = None
        self.eos_token_id = eos_ids[0]
        self.tokens = [table.token_bytes(i) for i in range(count)]
        self.special_token_ids = [i for i in range(count) if table.is_silent(i)]

    def __call__(self, s: str) -> list[int]:
        raise NotImplementedError


class Matcher:
    """Follows one guide along one answer."""

    def __init__(self, vocabulary: Vocabulary, guide: Guide) -> None:
        """Raises GuideError for a guide that is none, or is too much."""
        try:
            grammar = _grammar(guide)
        except (ValueError, RecursionError) as error:
            raise GuideError(_line(str(error))) from error
        self._inner = llguidance.LLMatcher(
            vocabulary.tokenizer, grammar, log_level=0, limits=LIMITS
        )
        self._consumed = 0
        self._check()

    def copy(self) -> Matcher:
        """For another answer; from its beginning, without compiling again."""
        made = object.__new__(Matcher)
        made._inner, made._consumed = self._inner.deep_copy(), self._consumed
        return made

    def allowed(self, generated: Sequence[int]) -> bytes:
        """A bit for each id, the lowest first: what may come after exactly these ids.

        Where the guide is fulfilled and nothing more may come, these are the ids that end an
        answer. Raises GuideError when the ids do not follow the guide, or it got too much.
        """
        if len(generated) < self._consumed:
            self._inner.reset()
            self._consumed = 0
        rest = list(generated[self._consumed :])
        if rest and not self._inner.consume_tokens(rest):
            self._check()
            raise GuideError("the answer does not follow its guide")
        self._consumed = len(generated)
        mask: bytes = self._inner.compute_bitmask()
        self._check()
        return mask

    def _check(self) -> None:
        if self._inner.is_error():
            raise GuideError(_line(self._inner.get_error()))


def begun(vocabulary: Vocabulary, guide: Guide) -> Matcher:
    """A matcher that is ready for its first token. Raises GuideError."""
    matcher = Matcher(vocabulary, guide)
    matcher.allowed(())
    return matcher


def _grammar(guide: Guide) -> str:
    """In the one language that can say that no text is forced: where only one text may come,
    the model still chooses in which tokens, and nobody has to turn text into ids."""
    match guide.kind:
        case GuideKind.JSON_SCHEMA:
            schema = json.loads(guide.source)
            _check_patterns(schema)
            body = f"start: %json {json.dumps(_bounded(schema))}"
        case GuideKind.REGEX:
            body = f"start: /{llguidance.regex_to_lark(guide.source)}/"
        case GuideKind.LARK:
            body = any_to_lark(guide.source)
    return llguidance.LLMatcher.grammar_from_lark(f"{body}\n{_NO_FORCING}\n")


def _check_patterns(schema: Any) -> None:
    """Raises ValueError for patterns that take too long to be told apart."""
    if _count(schema, lambda part: len(_mapping(part.get("patternProperties")))) > (
        PATTERN_PROPERTIES_MAX
    ):
        raise ValueError(f"a schema may have at most {PATTERN_PROPERTIES_MAX} patternProperties")
    for part in _parts(schema):
        common = _count(part.get("allOf"), lambda below: int("pattern" in below))
        if common > COMMON_PATTERNS_MAX:
            raise ValueError(f"at most {COMMON_PATTERNS_MAX} patterns may stand in one allOf")


def _parts(schema: Any) -> Iterator[dict[str, Any]]:
    """Every object in a schema, itself included."""
    waiting = [schema]
    while waiting:
        part = waiting.pop()
        if isinstance(part, dict):
            yield part
            waiting += part.values()
        elif isinstance(part, list):
            waiting += part


def _count(schema: Any, of: Callable[[dict[str, Any]], int]) -> int:
    return sum(of(part) for part in _parts(schema))


def _mapping(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def _bounded(schema: Any) -> Any:
    """The schema with bounds to white space between its parts, where it says nothing of that
    itself: small models like to write blanks until their tokens run out."""
    if not isinstance(schema, dict):
        return schema
    return {"x-guidance": {"whitespace_pattern": _WHITE_SPACE}} | schema


def table_of(tokenizer: bytes) -> TokenTable:
    """The tokens in a tokenizer.json. Raises GuideError when it cannot be read."""
    try:
        return _table(json.loads(tokenizer))
    except (ValueError, LookupError, TypeError, AttributeError) as error:
        raise GuideError("tokenizer.json cannot be read") from error


def _table(tokenizer: dict[str, Any]) -> TokenTable:
    vocabulary = tokenizer["model"]["vocab"]
    if isinstance(vocabulary, dict):
        tokens = {i: token for token, i in vocabulary.items()}
    else:  # a unigram model lists tokens with their scores
        tokens = {i: entry[0] for i, entry in enumerate(vocabulary)}
    added = {entry["id"]: entry for entry in tokenizer.get("added_tokens") or ()}
    tokens |= {i: entry["content"] for i, entry in added.items()}
    special = frozenset(i for i, entry in added.items() if entry.get("special"))
    decoder = json.dumps(tokenizer.get("decoder"))
    return unpack(*pack(tokens, special, frozenset(added), decoder))


def _line(text: str) -> str:
    line = next((line for line in text.splitlines() if line.strip()), "no reason given")
    return _PLACE.sub("", line.strip())[:PROBLEM_CHARACTERS]
