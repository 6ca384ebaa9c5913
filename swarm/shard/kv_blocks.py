"""Who holds how much KV memory. Integers only; the blocks themselves live in the worker."""

from __future__ import annotations

from swarm.errors import KvExhausted
from swarm.terms import SessionId


class KvLedger:
    """Bytes of KV memory reserved per session, out of a fixed capacity."""

    def __init__(self, capacity_bytes: int) -> None:
        if capacity_bytes < 0:
            raise ValueError(f"KV capacity of {capacity_bytes} bytes")
        self._capacity = capacity_bytes
        self._reserved: dict[SessionId, int] = {}
        self._used = 0

    @property
    def capacity_bytes(self) -> int:
        return self._capacity

    @property
    def used_bytes(self) -> int:
        return self._used

    @property
    def free_bytes(self) -> int:
        return self._capacity - self._used

    @property
    def session_count(self) -> int:
        return len(self._reserved)

    def resize(self, capacity_bytes: int) -> None:
        """Change the capacity; what is reserved stays, even where it is now too much."""
        self._capacity = capacity_bytes

    def held(self, session: SessionId) -> int:
        """Bytes reserved for a session; 0 when it has none."""
        return self._reserved.get(session, 0)

    def reserve(self, session: SessionId, byte_count: int) -> None:
        """Set a session's reservation, replacing the one it may have.

        Raises KvExhausted, and changes nothing, when it does not fit. What does not grow fits,
        even where the capacity has shrunk meanwhile.
        """
        if byte_count < 0:
            raise ValueError(f"reservation of {byte_count} bytes")
        growth = byte_count - self.held(session)
        if growth > max(0, self.free_bytes):
            raise KvExhausted(
                f"the session needs {byte_count} bytes of KV, {self.free_bytes} are free"
            )
        self._reserved[session] = byte_count
        self._used += growth

    def release(self, session: SessionId) -> int:
        """Give back what a session holds; says how much that was. Safe to repeat."""
        byte_count = self._reserved.pop(session, 0)
        self._used -= byte_count
        return byte_count
