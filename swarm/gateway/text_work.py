"""What the helper process does: read big bodies, load tokenizers, turn prompts into ids. Pure.

A question and its answer are each a JSON object and some bytes. Also the client's half of both,
so that either side of the pipe is written once.
"""

from __future__ import annotations

from array import array
from collections.abc import Mapping
from dataclasses import asdict, replace
from datetime import datetime
from typing import Any

from swarm.config import GatewayConfig
from swarm.errors import RequestError, ShardError
from swarm.gateway import openai
from swarm.gateway.openai import Call, Endpoint
from swarm.gateway.text import ModelText, TextUnusable
from swarm.terms import ModelId, ModelSpec, Sampling

Json = dict[str, Any]
Parcel = tuple[Json, bytes]

TOKEN_ID_LIMIT = 1 << 32
"""Ids travel as 32-bit numbers."""


class UnknownModel(Exception):
    """The helper has not loaded this model (any more)."""


class TextWork:
    """The texts that a helper holds. Safe to use from several threads."""

    def __init__(self, config: GatewayConfig) -> None:
        self._config = config
        self._texts: dict[str, ModelText] = {}

    def answer(self, question: Json, body: bytes) -> Parcel:
        """Do what is asked; errors that belong to a request become part of the answer."""
        try:
            match question["do"]:
                case "parse":
                    return {"call": _call_json(self._parse(question, body))}, b""
                case "load":
                    return self._load(question, body)
                case "forget":
                    self._texts.pop(question["model"], None)
                    return {}, b""
                case _:
                    return {}, self._encode(question, body)
        except RequestError as error:
            fields = {"status": error.status, "param": error.param, "code": error.code}
            return {"refused": str(error), **fields}, b""
        except TextUnusable as error:
            return {"failed": str(error)}, b""
        except UnknownModel:
            return {"unknown_model": True}, b""

    def _parse(self, question: Json, body: bytes) -> Call:
        return openai.parse(Endpoint(question["endpoint"]), body, self._config)

    def _load(self, question: Json, body: bytes) -> Parcel:
        files, at = {}, 0
        for name, size in question["files"]:
            files[name] = body[at : at + size]
            at += size
        text = ModelText(files)
        self._texts[question["model"]] = text
        return text.packed_table()

    def _encode(self, question: Json, body: bytes) -> bytes:
        spec = ModelSpec(**question["spec"])
        text = self._texts.get(spec.model_id)
        if spec.has_text and text is None:
            raise UnknownModel
        call = self._parse(question, body)
        ids = prompt_ids(call, spec, text, datetime.fromisoformat(question["now"]))
        openai.token_limit(call, spec, ids, self._config)
        return array("I", ids).tobytes()


def prompt_ids(
    call: Call, spec: ModelSpec, text: ModelText | None, now: datetime
) -> tuple[int, ...]:
    """Ids of a call's prompt. Raises RequestError when the model cannot take such a prompt."""
    prompt = call.prompt
    if call.endpoint is Endpoint.COMPLETION and isinstance(prompt, tuple):
        return tuple(item for item in prompt if isinstance(item, int))
    if text is None:
        raise RequestError(
            f"{spec.name} has no tokenizer: send the prompt of a completion as token ids",
            param="messages" if call.endpoint is Endpoint.CHAT else "prompt",
        )
    if isinstance(prompt, str):
        return text.encode(prompt, special=True)
    return text.encode_chat([item for item in prompt if isinstance(item, dict)], now)


# -------------------------------------------------------------------- the client's half


def parse_question(endpoint: Endpoint) -> Json:
    return {"do": "parse", "endpoint": endpoint.value}


def load_question(model_id: ModelId, files: Mapping[str, bytes]) -> Parcel:
    sizes = [[name, len(content)] for name, content in files.items()]
    return {"do": "load", "model": model_id, "files": sizes}, b"".join(files.values())


def forget_question(model_id: ModelId) -> Json:
    return {"do": "forget", "model": model_id}


def encode_question(endpoint: Endpoint, spec: ModelSpec, now: datetime) -> Json:
    return {
        "do": "encode",
        "endpoint": endpoint.value,
        "spec": asdict(spec),
        "now": now.isoformat(),
    }


def check(answer: Json) -> None:
    """Raise the error that an answer carries, if any."""
    if "refused" in answer:
        raise RequestError(
            answer["refused"], status=answer["status"], param=answer["param"], code=answer["code"]
        )
    if "failed" in answer:
        raise ShardError(answer["failed"])
    if "unknown_model" in answer:
        raise UnknownModel


def call_of(answer: Json) -> Call:
    """The call of a parsed body, without its prompt."""
    fields = answer["call"]
    return Call(
        **fields
        | {
            "endpoint": Endpoint(fields["endpoint"]),
            "prompt": "",
            "sampling": Sampling(**fields["sampling"]),
            "stop": tuple(fields["stop"]),
        }
    )


def ids_of(body: bytes) -> tuple[int, ...]:
    ids = array("I")
    ids.frombytes(body)
    return tuple(ids)


def _call_json(call: Call) -> Json:
    return asdict(replace(call, prompt="")) | {"endpoint": call.endpoint.value}
