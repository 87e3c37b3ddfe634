"""Together: what all processes of a training decide as one, and where they wait for each other."""

import torch


def several() -> bool:
    """Whether there are other processes."""
    return bool(torch.distributed.is_initialized() and torch.distributed.get_world_size() > 1)


def any_of(here: bool, device: torch.device) -> bool:
    """Whether any process says so, on all of them alike: one number of four bytes, sent where all of them pass by."""
    if not several():
        return here
    flag = torch.tensor([float(here)], device=device)
    torch.distributed.all_reduce(flag, op=torch.distributed.ReduceOp.MAX)
    return bool(flag.item())


def wait() -> None:
    """Until every process has come here."""
    if several():
        torch.distributed.barrier()
