"""verl's worker with a process group that exists on a CPU. Imports verl."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

import ray
import torch.distributed
from verl.workers.engine_workers import ActorRolloutRefWorker


class CpuWorker(ActorRolloutRefWorker):  # type: ignore[misc]
    """The worker as it is; verl names one backend for the CPU and one for the device, which here is the same."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        if not torch.distributed.is_initialized():
            rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
            torch.distributed.init_process_group("gloo", rank=rank, world_size=size)
        super().__init__(*args, **kwargs)


def on_cpu(workers: Mapping[Any, Any]) -> dict[Any, Any]:
    """The roles with their worker replaced by `CpuWorker`, where it is verl's."""
    return {
        role: ray.remote(CpuWorker) if getattr(worker, "__ray_actor_class__", None) is ActorRolloutRefWorker else worker
        for role, worker in workers.items()
    }
