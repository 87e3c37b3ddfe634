"""Live: how many bytes of tensors are alive while code runs on fake tensors."""

from __future__ import annotations

import weakref

import torch
from torch.distributed.tensor import DTensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

# PyTorch's allocator for GPUs hands out multiples of this (c10/cuda/CUDACachingAllocator.cpp, kMinBlockSize).
BLOCK = 512


class Live(TorchDispatchMode):
    """Counts the storages that are alive, in bytes. peak: the most since the last `reset`; at: the operation there."""

    def __init__(self) -> None:
        super().__init__()
        self.bytes = self.peak = 0
        self.at = ""
        self._seen: weakref.WeakSet = weakref.WeakSet()

    def reset(self) -> None:
        self.peak, self.at = self.bytes, ""

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        result = function(*args, **(kwargs or {}))
        before = self.peak
        for leaf in tree_leaves(result):
            # A DTensor's own storage is as large as the whole; its local part is seen where it is made.
            if isinstance(leaf, torch.Tensor) and not isinstance(leaf, DTensor):
                self._add(leaf.untyped_storage())
        if self.peak > before:
            self.at = function.overloadpacket.__name__
        return result

    def _add(self, storage: torch.UntypedStorage) -> None:
        if storage in self._seen:
            return
        self._seen.add(storage)
        size = -(-storage.nbytes() // BLOCK) * BLOCK
        self.bytes += size
        self.peak = max(self.peak, self.bytes)
        weakref.finalize(storage, self._gone, size)

    def _gone(self, size: int) -> None:
        self.bytes -= size
