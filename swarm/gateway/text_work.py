"""What the helper process does: read big bodies, load tokenizers, turn prompts into ids. Pure.

A question and its answer are each a JSON object and some bytes. Also the client's half of both,
so that either side of the pipe is written once.
"""

from __future__ import annotations

import itertools
from array import array
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from datetime import datetime
from typing import Any

from swarm.config import GatewayConfig
from swarm.errors import CapacityError, LocalProtocolError, RequestError, ShardError
from swarm.gateway import calls, dialects, token_table, tool_guides
from swarm.gateway.calls import Call, Endpoint, Prompt
from swarm.gateway.sampling_fields import AskedGuide
from swarm.gateway.text import ModelText, TextUnusable
from swarm.guides import GuideError, Matcher, Vocabulary, begun
from swarm.messages import BANNED_IDS_MAX
from swarm.terms import Guide, ModelId, ModelSpec

Json = dict[str, Any]
Parcel = tuple[Json, bytes]


class UnknownModel(Exception):
    """The helper has not loaded this model (any more)."""


class TextWork:
    """The texts that a helper holds. Safe to use from several threads."""

    def __init__(
        self,
        config: GatewayConfig,
        make: Callable[[Vocabulary, Guide], Matcher] = begun,
    ) -> None:
        """`make`: compiles a guide, within a time where others wait."""
        self._config = config
        self._make = make
        self._texts: dict[str, ModelText] = {}
        self._special: dict[str, dict[str, int]] = {}
        self._vocabularies: dict[str, Vocabulary] = {}

    def answer(self, question: Json, body: bytes) -> Parcel:
        """Do what is asked; errors that belong to a request become part of the answer."""
        try:
            match question["do"]:
                case "parse":
                    return {"call": calls.call_json(self._parse(question, body))}, b""
                case "load":
                    return self._load(question, body)
                case "forget":
                    self._texts.pop(question["model"], None)
                    self._special.pop(question["model"], None)
                    self._vocabularies.pop(question["model"], None)
                    return {}, b""
                case "words":
                    return {"banned": self._banned(question)}, b""
                case _:
                    return self._encode(question, body)
        except RequestError as error:
            fields = {"status": error.status, "param": error.param, "code": error.code}
            return {"refused": str(error), **fields}, b""
        except TextUnusable as error:
            return {"failed": str(error)}, b""
        except CapacityError as error:
            return {"busy": str(error)}, b""
        except UnknownModel:
            return {"unknown_model": True}, b""

    def _parse(self, question: Json, body: bytes) -> Call:
        return dialects.parse(Endpoint(question["endpoint"]), body, self._config)

    def _load(self, question: Json, body: bytes) -> Parcel:
        files, at = {}, 0
        for name, size in question["files"]:
            files[name] = body[at : at + size]
            at += size
        text = ModelText(files)
        header, packed = text.packed_table()
        self._special[question["model"]] = token_table.unpack(header, packed).special_ids()
        self._texts[question["model"]] = text
        return header | {"tool_family": text.tool_family}, packed

    def _encode(self, question: Json, body: bytes) -> Parcel:
        spec = ModelSpec(**question["spec"])
        text = self._texts.get(spec.model_id)
        if spec.has_text and text is None:
            raise UnknownModel
        call = self._parse(question, body)
        prompts = prompt_ids(call, spec, text, datetime.fromisoformat(question["now"]))
        if text is not None:
            call = tool_guides.guided(call, text.tool_family, self._special[spec.model_id])
        calls.orders_of(call, spec, prompts, [0] * len(prompts), self._config)
        if call.guide is not None and text is not None:
            self._check_guide(call.guide, spec, text)
        joined = array("I", itertools.chain.from_iterable(prompts))
        return {"lengths": [len(ids) for ids in prompts]}, joined.tobytes()

    def _check_guide(self, asked: AskedGuide, spec: ModelSpec, text: ModelText) -> None:
        """Compile it, as a head will. Raises RequestError."""
        try:
            vocabulary = self._vocabularies.get(spec.model_id)
            if vocabulary is None:
                table = token_table.unpack(*text.packed_table())
                vocabulary = Vocabulary(table, spec.vocab_size, spec.eos_ids)
                self._vocabularies[spec.model_id] = vocabulary
            self._make(vocabulary, asked.guide)
        except GuideError as error:
            raise RequestError(
                f"{asked.param} cannot be followed: {error}",
                param=asked.param,
                code="invalid_guide",
            ) from error

    def _banned(self, question: Json) -> list[tuple[int, ...]]:
        """Each word as it is, and as it is after a space, in ids. Raises RequestError."""
        text = self._texts.get(question["model"])
        if text is None:
            raise UnknownModel
        words = question["words"]
        forms = dict.fromkeys(form for word in words for form in (word, f" {word.lstrip(' ')}"))
        banned = dict.fromkeys(text.encode(form, special=False) for form in forms)
        found = [ids for ids in banned if ids]
        if sum(map(len, found)) > BANNED_IDS_MAX:
            raise RequestError(
                f"bad_words come to more than {BANNED_IDS_MAX} tokens together", param="bad_words"
            )
        return found


def is_ids(prompt: Prompt) -> bool:
    return isinstance(prompt, tuple) and not any(isinstance(item, dict) for item in prompt)


def prompt_ids(
    call: Call, spec: ModelSpec, text: ModelText | None, now: datetime
) -> list[tuple[int, ...]]:
    """Ids of a call's prompts. Raises RequestError when the model cannot take such a prompt."""
    if text is None and call.needs_tokenizer:
        param = call.guide.param if call.guide is not None else "bad_words"
        raise RequestError(f"{param} needs a tokenizer, and {spec.name} has none", param=param)
    return [_ids(call, prompt, spec, text, now) for prompt in call.prompts]


def _ids(
    call: Call, prompt: Prompt, spec: ModelSpec, text: ModelText | None, now: datetime
) -> tuple[int, ...]:
    if isinstance(prompt, tuple) and is_ids(prompt):
        return tuple(item for item in prompt if isinstance(item, int))
    if text is None:
        raise RequestError(
            f"{spec.name} has no tokenizer: send the prompt of a completion as token ids",
            param=call.endpoint.prompt_field,
        )
    if isinstance(prompt, str):
        return text.encode(prompt, special=True)
    messages = [item for item in prompt if isinstance(item, dict)]
    return text.encode_chat(messages, now, call.rendering)


# -------------------------------------------------------------------- the client's half


def parse_question(endpoint: Endpoint) -> Json:
    return {"do": "parse", "endpoint": endpoint.value}


def load_question(model_id: ModelId, files: Mapping[str, bytes]) -> Parcel:
    sizes = [[name, len(content)] for name, content in files.items()]
    return {"do": "load", "model": model_id, "files": sizes}, b"".join(files.values())


def forget_question(model_id: ModelId) -> Json:
    return {"do": "forget", "model": model_id}


def words_question(model_id: ModelId, words: Sequence[str]) -> Json:
    return {"do": "words", "model": model_id, "words": list(words)}


def encode_question(endpoint: Endpoint, spec: ModelSpec, now: datetime) -> Json:
    return {
        "do": "encode",
        "endpoint": endpoint.value,
        "spec": asdict(spec),
        "now": now.isoformat(),
    }


def broken(error: BaseException) -> Parcel:
    """The answer to a question that nobody foresaw. Nothing of the text may be in it."""
    return {"broke": f"{type(error).__name__} while the prompt was made ready"}, b""


def check(answer: Json) -> None:
    """Raise the error that an answer carries, if any."""
    if "refused" in answer:
        raise RequestError(
            answer["refused"], status=answer["status"], param=answer["param"], code=answer["code"]
        )
    if "failed" in answer:
        raise ShardError(answer["failed"])
    if "busy" in answer:
        raise CapacityError(answer["busy"])
    if "broke" in answer:
        raise LocalProtocolError(answer["broke"])
    if "unknown_model" in answer:
        raise UnknownModel


def ids_of(answer: Json, body: bytes) -> list[tuple[int, ...]]:
    """The prompts of an answer to `encode_question`."""
    joined = array("I")
    joined.frombytes(body)
    lengths = answer["lengths"]
    ends = itertools.accumulate(lengths)
    return [tuple(joined[end - size : end]) for end, size in zip(ends, lengths, strict=True)]
