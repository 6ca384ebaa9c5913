"""The helper process for text: `python -m swarm.gateway.text_helper_io CONFIG`.

Loading a tokenizer holds the interpreter for up to seconds and reading a body of megabytes for
tenths, in any thread; the daemon must not stand still for so long. Questions come on standard
input and answers go to standard output, each as two lengths, JSON and bytes. The process ends when
its standard input does, that is with its daemon, however that ends.
"""

from __future__ import annotations

import json
import os
import struct
import sys
import threading
import traceback
from concurrent.futures import ThreadPoolExecutor
from typing import BinaryIO

from swarm.config import GatewayConfig
from swarm.gateway.text_work import Json, Parcel, TextWork, broken
from swarm.guides_io import GuideMaking

LENGTHS = struct.Struct(">QII")
"""Number of the question, bytes of JSON, bytes of body."""
THREADS = 2
"""Encoding lets other threads run, so a short prompt need not wait for a long one."""


def pack(number: int, parcel: Parcel) -> list[bytes]:
    head = json.dumps(parcel[0]).encode()
    return [LENGTHS.pack(number, len(head), len(parcel[1])) + head, parcel[1]]


class Desk:
    """Gives each question its answer, from whatever thread."""

    def __init__(self, work: TextWork, guides: GuideMaking) -> None:
        self._work = work
        self._guides = guides
        self._lock = threading.Lock()
        self._open = 0

    def taken(self) -> None:
        with self._lock:
            self._open += 1

    def answer(self, number: int, question: Json, body: bytes) -> None:
        """What nobody foresaw fails this question alone. A guide that was given up and goes on is
        ended with the process, once nobody waits for an answer: it is started anew when needed."""
        try:
            parcel = self._work.answer(question, body)
        except BaseException as error:  # noqa: BLE001 - the root of a question; libraries may panic
            # Where, but not the error's own text: that may quote the prompt.
            sys.stderr.write(f"{type(error).__name__} at\n")
            traceback.print_tb(error.__traceback__)
            parcel = broken(error)
        try:
            with self._lock:
                sys.stdout.buffer.writelines(pack(number, parcel))
                sys.stdout.buffer.flush()
                self._open -= 1
                if self._open == 0 and self._guides.is_worn:
                    os._exit(0)
        except OSError:
            os._exit(1)


def main() -> None:
    config = GatewayConfig(**json.loads(sys.argv[1]))
    guides = GuideMaking(config.guide_timeout_s)
    desk = Desk(TextWork(config, guides.make), guides)
    with ThreadPoolExecutor(THREADS) as threads:
        while (lengths := _read(sys.stdin.buffer, LENGTHS.size)) is not None:
            number, head_size, body_size = LENGTHS.unpack(lengths)
            head, body = _read(sys.stdin.buffer, head_size), _read(sys.stdin.buffer, body_size)
            if head is None or body is None:
                break
            desk.taken()
            threads.submit(desk.answer, number, json.loads(head), body)
        # The daemon is gone: nobody waits for what the threads still do.
        os._exit(0)


def _read(source: BinaryIO, size: int) -> bytes | None:
    data = source.read(size)
    return data if len(data) == size else None


if __name__ == "__main__":
    main()
