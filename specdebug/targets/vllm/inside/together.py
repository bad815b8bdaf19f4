"""vLLM's ranks, each in a process that it did not start: what tells it which one it is."""

from __future__ import annotations

import importlib
import os

BY_GLOO = "collectives through memory that a machine's ranks share: torch's over gloo, which pass a process group"


def be_rank(rank: int, world: int, port: int) -> None:
    """Be this one of so many on a CPU, which meet at a port of this machine."""
    names = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": world, "MASTER_PORT": port, "MASTER_ADDR": "127.0.0.1"}
    os.environ |= {name: str(value) for name, value in names.items()}
    communicators = importlib.import_module("vllm.distributed.device_communicators.cpu_communicator")
    # By itself vLLM asks so whether all ranks are of one machine.
    communicators.CpuCommunicator._all_group_ranks_share_shm_group_name = lambda _: False
