"""Memory for weights on the system's large pages (2 MiB where Linux has them).

A step reads all weights once. On pages of 4 KiB the processor looks up an address every 4 KiB, in a
virtual machine through two page tables, and a core waits for that longer than for the weights.
"""

from __future__ import annotations

import contextlib
import mmap

import torch

CHUNK_BYTES = 64 << 20
"""What is asked of the system at a time. What is not written takes no memory."""
PAGE_BYTES = 2 << 20
_ALIGN_BYTES = 64
"""A line of the caches, and a vector register."""


class LargePages:
    """Copies tensors side by side into chunks, which live as long as one of these copies.

    Where the system gives no large pages the chunks are ordinary memory.
    """

    def __init__(self) -> None:
        self._left = torch.empty(0, dtype=torch.uint8)

    def copy(self, tensor: torch.Tensor) -> torch.Tensor:
        """A contiguous copy on the CPU, of the same shape and dtype."""
        size = tensor.numel() * tensor.element_size()
        if size == 0:
            return tensor.clone()
        if size > len(self._left):
            self._left = _chunk(max(size, CHUNK_BYTES))
        made = self._left[:size].view(tensor.dtype).view(tensor.shape)
        self._left = self._left[size + -size % _ALIGN_BYTES :]
        return made.copy_(tensor)

    def move(self, module: torch.nn.Module) -> None:
        """All buffers of a module, in place."""
        for part in module.modules():
            for name, buffer in list(part.named_buffers(recurse=False)):
                setattr(part, name, self.copy(buffer))


def _chunk(size: int) -> torch.Tensor:
    """[size] bytes from the start of a large page on."""
    memory = mmap.mmap(-1, size + PAGE_BYTES, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    advice = getattr(mmap, "MADV_HUGEPAGE", None)
    if advice is not None:
        with contextlib.suppress(OSError):  # a kernel without them
            memory.madvise(advice)
    whole = torch.frombuffer(memory, dtype=torch.uint8)
    return whole[-whole.data_ptr() % PAGE_BYTES :][:size]
