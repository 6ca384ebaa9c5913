"""The page at `/` in one piece, and the policy that lets nothing else run or load. Pure."""

from __future__ import annotations

import base64
import hashlib

CSS_MARK, JS_MARK = "/*css*/", "/*js*/"


def assembled(html: str, css: str, js: str) -> str:
    """One document without outside requests: style and script stand where the marks were."""
    for mark, text in ((CSS_MARK, css), (JS_MARK, js)):
        before, found, after = html.partition(mark)
        if not found or "</" + ("style" if mark == CSS_MARK else "script") in text:
            raise ValueError(f"the page has no place for what belongs at {mark}")
        html = before + text + after
    return html


def policy(css: str, js: str) -> str:
    """Content-Security-Policy: this style and this script by their hashes, and this gateway."""
    return "; ".join(
        [
            "default-src 'none'",
            f"style-src '{_hash(css)}'",
            f"script-src '{_hash(js)}'",
            "connect-src 'self'",
            "img-src data:",
            "base-uri 'none'",
            "form-action 'none'",
            "frame-ancestors 'none'",
        ]
    )


def _hash(text: str) -> str:
    digest = hashlib.sha256(text.encode()).digest()
    return f"sha256-{base64.b64encode(digest).decode()}"
