"""Processor cores of this machine that computing may use."""

from __future__ import annotations

import os

import psutil


def usable_cores() -> int:
    """Physical ones that this process may use."""
    count = psutil.cpu_count(logical=False) or 1
    if hasattr(os, "sched_getaffinity"):
        count = min(count, len(os.sched_getaffinity(0)))
    return count
