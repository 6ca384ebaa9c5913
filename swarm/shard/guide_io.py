"""Compiles guides beside the worker's one thread: tokenizers take up to seconds, guides tenths."""

from __future__ import annotations

import socket
from collections import OrderedDict, deque
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from swarm.errors import CapacityError
from swarm.guides import GuideError, Matcher, Vocabulary, table_of
from swarm.guides_io import GuideMaking
from swarm.shard.choice import GuideMaker
from swarm.terms import Guide, ModelId, SessionId

KEPT_MAX = 16
"""Compiled guides that are kept for sessions to come, the last used ones: some MB each at most."""
LIMIT_S = 20.0
"""For one guide, which its gateway has compiled within its own limit; this machine may be slower.
Sessions with other guides wait so long behind it."""


@dataclass(frozen=True, slots=True)
class Lexicon:
    """What a model's vocabulary is made of, when it is first needed."""

    tokenizer: Path
    vocab_size: int
    eos_ids: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Made:
    """A guide that a session waits for, or why there is none."""

    session: SessionId
    generation: int
    matcher: Matcher | GuideError


class GuideBench:
    """One thread that compiles in turn. `bell` is readable when something was made."""

    def __init__(self) -> None:
        self._thread = ThreadPoolExecutor(1, "guides")
        self._making = GuideMaking(LIMIT_S)
        self._lexicons: dict[ModelId, Lexicon] = {}
        self._vocabularies: dict[ModelId, Vocabulary] = {}
        self._kept: OrderedDict[tuple[ModelId, Guide], Matcher] = OrderedDict()
        self._made: deque[Made] = deque()
        self.bell, self._ring = socket.socketpair()
        self._ring.setblocking(False)
        self.bell.setblocking(False)

    def close(self) -> None:
        """Nothing is compiled any more."""
        self._thread.shutdown(cancel_futures=True)
        self.bell.close()
        self._ring.close()

    def know(self, model_id: ModelId, lexicon: Lexicon) -> None:
        """Guides for this model are made with that."""
        self.forget(model_id)
        if lexicon.eos_ids:
            self._lexicons[model_id] = lexicon

    def forget(self, model_id: ModelId) -> None:
        self._vocabularies.pop(model_id, None)
        self._lexicons.pop(model_id, None)

    def maker(self, model_id: ModelId) -> GuideMaker | None:
        """What has guides for this model compiled; None where they cannot be."""
        return partial(self._order, model_id) if model_id in self._lexicons else None

    def _order(self, model_id: ModelId, session: SessionId, generation: int, guide: Guide) -> None:
        self._thread.submit(partial(self._make, model_id, session, generation, guide))

    def take(self) -> list[Made]:
        """What was made since the last call."""
        with suppress(BlockingIOError):
            while self.bell.recv(4096):
                pass
        return [self._made.popleft() for _ in range(len(self._made))]

    # ------------------------------------------------------------ in the thread

    def _make(self, model_id: ModelId, session: SessionId, generation: int, guide: Guide) -> None:
        try:
            matcher: Matcher | GuideError = self._matcher(model_id, guide).copy()
        except GuideError as error:
            matcher = error
        except CapacityError as error:
            matcher = GuideError(str(error))
        except (RuntimeError, MemoryError) as error:
            matcher = GuideError(f"the guide could not be compiled: {error}")
        self._made.append(Made(session, generation, matcher))
        with suppress(BlockingIOError):  # the bell rings already
            self._ring.send(b"!")

    def _matcher(self, model_id: ModelId, guide: Guide) -> Matcher:
        key = (model_id, guide)
        if key not in self._kept:
            self._kept[key] = self._making.make(self._vocabulary(model_id), guide)
        self._kept.move_to_end(key)
        while len(self._kept) > KEPT_MAX:
            self._kept.popitem(last=False)
        return self._kept[key]

    def _vocabulary(self, model_id: ModelId) -> Vocabulary:
        lexicon = self._lexicons.get(model_id)
        if lexicon is None:
            raise GuideError("this node has no tokenizer for the model")
        if model_id not in self._vocabularies:
            try:
                tokenizer = lexicon.tokenizer.read_bytes()
            except OSError as error:
                raise GuideError("the model's tokenizer is gone from this node") from error
            made = Vocabulary(table_of(tokenizer), lexicon.vocab_size, lexicon.eos_ids)
            self._vocabularies[model_id] = made
        return self._vocabularies[model_id]
