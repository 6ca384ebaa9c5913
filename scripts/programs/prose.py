"""Real English prose to measure quality on: the Debian Administrator's Handbook, from its package.

It is fetched by `apt-get download` into the benches' cache; nothing of it is kept in the tree.
"""

from __future__ import annotations

import html.parser
import shutil
import subprocess
import tempfile
from pathlib import Path

from llama_cpp import cache_dir

PACKAGE = "debian-handbook"
PAGES = f"usr/share/doc/{PACKAGE}/html/en-US"
BLOCK_TAGS = frozenset({"p", "div", "li", "dd", "dt", "h1", "h2", "h3", "h4", "td"})
SKIPPED_TAGS = frozenset({"pre", "script", "style", "head", "table"})
VOID_TAGS = frozenset({"br", "hr", "img", "link", "meta", "input"})
WORDS_MIN = 12
"""Shorter pieces are headings, links and captions, not prose."""


class _Prose(html.parser.HTMLParser):
    """Collects the text of blocks; code and tables are left out."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks: list[str] = []
        self._text: list[str] = []
        self._skipping: list[str] = []

    def handle_starttag(self, tag: str, attrs: object) -> None:
        if tag in SKIPPED_TAGS or (self._skipping and tag not in VOID_TAGS):
            self._skipping.append(tag)
        elif tag in BLOCK_TAGS:
            self._flush()

    def handle_endtag(self, tag: str) -> None:
        if self._skipping:
            while self._skipping and self._skipping.pop() != tag:
                pass
        elif tag in BLOCK_TAGS:
            self._flush()

    def handle_data(self, data: str) -> None:
        if not self._skipping:
            self._text.append(data)

    def close(self) -> None:
        super().close()
        self._flush()

    def _flush(self) -> None:
        words = "".join(self._text).split()
        self._text.clear()
        if len(words) >= WORDS_MIN:
            self.blocks.append(" ".join(words))


def paragraphs(page: str) -> list[str]:
    """The prose of an HTML page, a paragraph each."""
    reader = _Prose()
    reader.feed(page)
    reader.close()
    return reader.blocks


def handbook() -> str:
    """The whole text, its pages in order of their names."""
    kept = cache_dir() / f"{PACKAGE}.txt"
    if not kept.exists():
        kept.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=kept.parent) as temporary:
            partial = Path(temporary) / "text"
            partial.write_text(_fetch(Path(temporary)))
            shutil.move(partial, kept)
    return kept.read_text()


def _fetch(folder: Path) -> str:
    try:
        subprocess.run(
            ["apt-get", "download", "-qq", PACKAGE],
            cwd=folder,
            check=True,
            stderr=subprocess.DEVNULL,
        )
        (package,) = folder.glob("*.deb")
        subprocess.run(["dpkg", "-x", package, folder / "unpacked"], check=True)
    except (OSError, subprocess.CalledProcessError, ValueError) as error:
        raise SystemExit(
            f"{PACKAGE} could not be fetched; name a text by --text ({error})"
        ) from error
    pages = sorted((folder / "unpacked" / PAGES).glob("*.html"))
    return "\n\n".join(p for page in pages for p in paragraphs(page.read_text()))
