"""The commands that README and docs name, as a reader would type them."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
DOCUMENTS = [
    ROOT / "README.md",
    *sorted(path for path in (ROOT / "docs").glob("*.md") if path.name != "plan.md"),
    *sorted((ROOT / "docs" / "ops").glob("*.md")),
]
"""For people who use it, or judge it by its figures."""


def commands() -> dict[str, str]:
    """Each command, and the document that names it first.

    Those are the lines of shell blocks, without their comments, and in running text whatever begins
    as a command of ours does and has at least one word more.
    """
    found: dict[str, str] = {}
    for document in DOCUMENTS:
        text, name = document.read_text(), str(document.relative_to(ROOT))
        for block in re.findall(r"```sh\n(.*?)```", text, re.DOTALL):
            for line in block.replace("\\\n", "").splitlines():
                typed = re.sub(r" +", " ", re.split(r"\s{2,}#", line)[0]).strip()
                if typed:
                    found.setdefault(typed, name)
        for span in re.findall(r"`([^`\n]+)`", re.sub(r"```.*?```", "", text, flags=re.DOTALL)):
            if re.match(r"swarm [a-z]+|scripts/\w+", span):
                found.setdefault(span, name)
    return found
