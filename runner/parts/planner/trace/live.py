"""Live: how many bytes of tensors are alive while code runs on fake tensors."""

import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

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
        self._sizes: weakref.WeakKeyDictionary[torch.UntypedStorage, list[int]] = weakref.WeakKeyDictionary()

    def reset(self) -> None:
        self.peak, self.at = self.bytes, ""

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if function is torch.ops.aten._local_scalar_dense.default and args[0].dtype == torch.bool:
            # A fake tensor has no number to judge by: what is done on a condition (a layer dropped by chance, a mask that hides
            # nothing) is not done.
            return False
        result = function(*args, **(kwargs or {}))
        before = self.peak
        for leaf in tree_leaves(result):
            if isinstance(leaf, torch.Tensor):
                # A DTensor's own storage would be as large as the whole.
                held = leaf._local_tensor if isinstance(leaf, DTensor) else leaf
                self._add(held.untyped_storage())
        if self.peak > before:
            self.at = function.overloadpacket.__name__
        return result

    def _add(self, storage: torch.UntypedStorage) -> None:
        if storage in self._sizes:
            return
        # A list, because a storage may be resized and must take away what it then has.
        self._sizes[storage] = size = [0]
        weakref.finalize(storage, self._gone, size)
        self._resize(storage, size)

    def _resize(self, storage: torch.UntypedStorage, size: list[int]) -> None:
        now = -(-storage.nbytes() // BLOCK) * BLOCK
        self.bytes += now - size[0]
        size[0] = now
        self.peak = max(self.peak, self.bytes)

    def _gone(self, size: list[int]) -> None:
        self.bytes -= size[0]

    @contextmanager
    def resizing(self) -> Iterator[None]:
        """Sees FSDP2 free gathered weights and take them back, which it does by resizing, past every operation."""
        from torch.distributed.fsdp._fully_shard import _fsdp_param, _fsdp_param_group

        kept = {
            (module, name): getattr(module, name)
            for module in (_fsdp_param, _fsdp_param_group)
            for name in ("alloc_storage", "free_storage")
            if hasattr(module, name)
        }
        for (module, name), function in kept.items():
            setattr(module, name, self._seeing(function))
        try:
            yield
        finally:
            for (module, name), function in kept.items():
                setattr(module, name, function)

    def _seeing(self, function: Callable[[torch.Tensor], None]) -> Callable[[torch.Tensor], None]:
        def resize(tensor: torch.Tensor) -> None:
            function(tensor)
            storage = tensor.untyped_storage()
            if storage in self._sizes:
                self._resize(storage, self._sizes[storage])
            else:
                self._add(storage)

        return resize
