"""What a hop takes from others: `Open` and `Step` against what an honest sender may say. Pure.

Three kinds of fault, by who must answer for it:
* a message that is wrong by itself: its sender's (RemoteProtocolError, the link closes);
* an `Open` that cannot be met here: nobody's, views lag (`refusals`);
* a step that does not fit the session's `Open`: its sender's only where that is the origin. Other
  feeders send what the origin told them, and it may have told them something else.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace

from swarm.errors import RemoteProtocolError
from swarm.messages import (
    BANNED_IDS_MAX,
    BIAS_MAX,
    KV_BLOCK_TOKENS,
    PAYLOAD_LIMIT,
    PREFIX_HASH_BYTES,
    STOP_IDS_MAX,
    Open,
    Release,
    Resume,
    RowType,
    Step,
    StepKind,
)
from swarm.routing.outbox import DECODE_BUNDLE, Rows
from swarm.terms import NodeId, Sampling

STEP_ROWS_MAX = 4096
"""Rows of one step, whatever their size; `prefill_chunk_tokens` is far below."""
LOGPROBS_MAX = 128
"""Alternatives per token: with more, the tokens of a bundle would not fit one message's head."""
ID_BYTES = 4
FACTOR_MAX = 1e6
"""Of a penalty or bias: far above any use, far below where logits would become infinite."""

_SESSION_ID = re.compile(r"[0-9a-f]{16}")


def check_open(order: Open, origin: NodeId, me: NodeId) -> None:
    """Raises RemoteProtocolError for what no origin that keeps the rules sends."""
    problem = (
        _place_problem(order, origin, me)
        or _size_problem(order)
        or _sampling_problem(order.sampling)
    )
    if problem is not None:
        raise RemoteProtocolError(f"open of a session: {problem}")


def _place_problem(order: Open, origin: NodeId, me: NodeId) -> str | None:
    """A node has one place in a route, and an origin may have one too: then it is a neighbour."""
    if order.embed != (order.layers.start == 0):
        return f"layers {order.layers} {'with' if order.embed else 'without'} an embedding"
    if order.previous != origin if order.embed else order.previous == me:
        return "fed by a node that cannot feed it"
    if order.next != origin if order.head else order.next == me:
        return "feeds a node that it cannot feed"
    return None


def _size_problem(order: Open) -> str | None:
    if not _SESSION_ID.fullmatch(order.session):
        return "an id that is not 16 hex digits"
    if order.epoch < 1:
        return f"epoch {order.epoch}"
    if not 1 <= order.prompt_count <= order.position_limit:
        return f"a prompt of {order.prompt_count} in {order.position_limit} positions"
    if not 0 <= order.length <= order.position_limit or order.hop_count < 1:
        return f"{order.length} positions so far, {order.hop_count} hops"
    return _chain_problem(order.prefix, max(order.prompt_count, order.length) - 1)


def _chain_problem(chain: bytes, positions: int) -> str | None:
    """Hashes of whole blocks within `positions`; the last row of a sequence is always run."""
    count, rest = divmod(len(chain), PREFIX_HASH_BYTES)
    if rest or count * KV_BLOCK_TOKENS > positions:
        return f"{len(chain)} bytes of hashes for {positions} positions"
    return None


def _sampling_problem(sampling: Sampling) -> str | None:
    """Numbers are finite by the codec."""
    if sampling.temperature < 0 or not 0 < sampling.top_p <= 1 or sampling.top_k < 0:
        return f"no such sampling: {sampling}"
    if sampling.logprobs is not None and not 0 <= sampling.logprobs <= LOGPROBS_MAX:
        return f"{sampling.logprobs} logprobs"
    if not 0 <= sampling.min_p <= 1 or sampling.min_tokens < 0:
        return f"min_p {sampling.min_p}, {sampling.min_tokens} tokens at least"
    if not 1 / FACTOR_MAX <= sampling.repetition_penalty <= FACTOR_MAX:
        return f"a repetition penalty of {sampling.repetition_penalty}"
    if any(abs(value) > FACTOR_MAX for value in _summands(sampling)):
        return "a penalty or bias that leaves no numbers to compare"
    if len(sampling.bias) > BIAS_MAX or len(sampling.stop_ids) > STOP_IDS_MAX:
        return f"{len(sampling.bias)} biases, {len(sampling.stop_ids)} stop ids"
    if not all(sampling.banned) or sum(map(len, sampling.banned)) > BANNED_IDS_MAX:
        return "banned sequences that are empty, or too many"
    return None


def _summands(sampling: Sampling) -> Iterator[float]:
    yield sampling.presence_penalty
    yield sampling.frequency_penalty
    yield from (bias.bias for bias in sampling.bias)


def is_same_work(known: Open, order: Open) -> bool:
    """Whether rows computed under `known` are those of `order`: only the route may differ."""
    moved = replace(
        known,
        epoch=order.epoch,
        previous=order.previous,
        next=order.next,
        hop_count=order.hop_count,
        prefix=order.prefix,
        length=order.length,
        standby=order.standby,
    )
    return moved == order


def check_step(step: Step) -> None:
    """Raises RemoteProtocolError for a step that is not whole rows of a possible number."""
    if not 1 <= step.count <= STEP_ROWS_MAX or step.position < 0:
        raise RemoteProtocolError(f"a step of {step.count} rows at {step.position}")
    width = ID_BYTES if step.row_type is RowType.IDS else len(step.payload) // step.count
    if not width or len(step.payload) != step.count * width:
        raise RemoteProtocolError(f"{len(step.payload)} bytes are not {step.count} whole rows")


def step_problem(step: Step, order: Open, row_bytes: int) -> str | None:
    """Why a well-formed step cannot be right in its session. `row_bytes`: of one output row.

    What passes gives a `Ran` that fits the wire: at most a bundle of sampled tokens, since of a
    prompt only the last row is sampled, and rows of at most PAYLOAD_LIMIT bytes.
    """
    stop = step.position + step.count
    if stop > order.position_limit:
        return f"rows up to {stop}, {order.position_limit} positions are reserved"
    if (step.row_type is RowType.IDS) is not order.embed:
        return f"{step.row_type.name} rows where the session does not take them"
    if step.kind is StepKind.PREFILL and stop > order.prompt_count:
        return f"prompt rows up to {stop}, the prompt has {order.prompt_count}"
    if step.kind is StepKind.DECODE and step.position < order.prompt_count:
        return f"a generated row at {step.position}, inside the prompt"
    if step.kind is StepKind.DECODE and step.count > DECODE_BUNDLE:
        return f"a bundle of {step.count} rows"
    if not order.head and step.count * row_bytes > PAYLOAD_LIMIT:
        return f"{step.count} rows whose results do not fit one step"
    return None


def check_resume(message: Resume, order: Open) -> None:
    """Raises RemoteProtocolError for positions that no session has."""
    if message.kv_length < 0 or not 0 <= message.send_from <= order.position_limit:
        raise RemoteProtocolError(f"resume at {message.kv_length} from {message.send_from}")


def check_release(message: Release, order: Open) -> None:
    """Raises RemoteProtocolError for hashes of more than the session may be long."""
    problem = _chain_problem(message.prefix, order.position_limit)
    if problem is not None:
        raise RemoteProtocolError(f"release of a session: {problem}")


def unanswered_max(credit_steps: int) -> int:
    """Steps of one epoch that a feeder may have under way.

    Single decode rows need no credit; in a rebuild one may stand between two bundles.
    """
    return 2 * credit_steps + 2


def rows_of(step: Step) -> Rows:
    return Rows(step.position, step.count, step.kind, step.row_type, step.payload)
