"""Which models a client may name, and which one it means. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from swarm.errors import RequestError
from swarm.gateway.responses import not_covered
from swarm.snapshot import ModelView
from swarm.terms import short

LATEST = ":latest"
"""What Ollama's clients put behind a name without a tag."""
NAME_SHOWN_MAX = 64


def listed(views: Sequence[ModelView]) -> list[tuple[str, ModelView]]:
    """The covered models under the names clients use: the plain one where it is unique."""
    covered = [view for view in views if view.covered]
    counts = Counter(view.spec.name for view in covered)
    return [
        (view.spec.name if counts[view.spec.name] == 1 else _full_name(view), view)
        for view in covered
    ]


def find(views: Sequence[ModelView], name: str) -> ModelView:
    """The covered model that `name` means: a listed name, `name@id` or a whole model id.

    Raises RequestError (404 unknown, 400 ambiguous) or NoRoute (known, not covered).
    """
    known = _known(views, name) or _known(views, name.removesuffix(LATEST))
    covered = [view for view in known if view.covered]
    if len(covered) == 1:
        return covered[0]
    if covered:
        names = ", ".join(_full_name(view) for view in covered)
        raise RequestError(f"{name} names several models; say which: {names}", param="model")
    if known:
        raise not_covered(known[0])
    offered = ", ".join(label for label, _ in listed(views)) or "none at present"
    raise RequestError(
        f"there is no model {shortened(name)!r} here; covered now: {offered}",
        status=404,
        param="model",
        code="model_not_found",
    )


def shortened(name: str) -> str:
    """For a message: whoever asked knows what it was."""
    return name if len(name) <= NAME_SHOWN_MAX else f"{name[:NAME_SHOWN_MAX]}…"


def wanted(views: Sequence[ModelView], name: str | None) -> ModelView:
    """The same, where None means the only covered model. Raises as `find`, and 400 for several."""
    if name is not None:
        return find(views, name)
    covered = listed(views)
    if len(covered) == 1:
        return covered[0][1]
    if covered:
        names = ", ".join(label for label, _ in covered)
        raise RequestError(f"several models are covered, say which: {names}", param="model")
    if views:
        raise not_covered(views[0])
    raise RequestError("no model is known here; let a node join with --model DIR", status=404)


def _known(views: Sequence[ModelView], name: str) -> list[ModelView]:
    return [v for v in views if name in (v.spec.name, _full_name(v), v.spec.model_id)]


def _full_name(view: ModelView) -> str:
    return f"{view.spec.name}@{short(view.spec.model_id)}"
