"""Prompts of many shapes: prose, code, lists, other scripts, one word, long."""

from __future__ import annotations

PROMPTS = [
    "The capital of France is",
    "Once upon a time, in a small house by the sea,",
    "def fibonacci(n):\n    ",
    "Q: What is 17 + 25?\nA:",
    "Water boils at",
    "1, 1, 2, 3, 5, 8, 13,",
    "Die drei wichtigsten Flüsse Europas sind",
    "The quick brown fox",
    "Dear Sir or Madam,\n\nI am writing to",
    "import numpy as np\n\nx = np.",
    "In the year 1969, two people",
    "A recipe for bread:\n1.",
    "SELECT name, age FROM",
    "«Bonjour», dit-il en",
    "The difference between a list and a tuple in Python is that",
    "Rain",
    "Breaking news: scientists have found that",
    "\n\n# Installation\n\n",
    "She opened the letter, read it twice, and",
    "東京は日本の",
]

_STORY = (
    "The lighthouse keeper counted the ships each evening and wrote their number in a book. "
    "On clear days he saw as far as the islands; in fog he saw nothing and wrote a question mark. "
    "His daughter learned to read from that book, number by number, year by year. "
)


def long_prompt(repeats: int, number: int) -> str:
    """A text of about 52 tokens per repeat; `number` makes each one different."""
    chapters = (f"Chapter {number + i}. {_STORY}" for i in range(repeats))
    return "".join(chapters) + "One evening"
