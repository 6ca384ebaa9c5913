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
from swarm.gateway.text_work import Json, Parcel, TextWork

LENGTHS = struct.Struct(">QII")
"""Number of the question, bytes of JSON, bytes of body."""
THREADS = 2
"""Encoding lets other threads run, so a short prompt need not wait for a long one."""


def pack(number: int, parcel: Parcel) -> list[bytes]:
    head = json.dumps(parcel[0]).encode()
    return [LENGTHS.pack(number, len(head), len(parcel[1])) + head, parcel[1]]


def main() -> None:
    work = TextWork(GatewayConfig(**json.loads(sys.argv[1])))
    lock = threading.Lock()

    def answer(number: int, question: Json, body: bytes) -> None:
        try:
            parts = pack(number, work.answer(question, body))
            with lock:
                sys.stdout.buffer.writelines(parts)
                sys.stdout.buffer.flush()
        except Exception:  # noqa: BLE001 - the root of a thread: end, which the daemon hears
            traceback.print_exc()
            os._exit(1)

    with ThreadPoolExecutor(THREADS) as threads:
        while (lengths := _read(sys.stdin.buffer, LENGTHS.size)) is not None:
            number, head_size, body_size = LENGTHS.unpack(lengths)
            head, body = _read(sys.stdin.buffer, head_size), _read(sys.stdin.buffer, body_size)
            if head is None or body is None:
                break
            threads.submit(answer, number, json.loads(head), body)
        # The daemon is gone: nobody waits for what the threads still do.
        os._exit(0)


def _read(source: BinaryIO, size: int) -> bytes | None:
    data = source.read(size)
    return data if len(data) == size else None


if __name__ == "__main__":
    main()
