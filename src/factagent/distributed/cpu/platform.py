"""The CPU as a platform of verl: gloo between ranks, and memory calls that do nothing. Imports verl."""

from __future__ import annotations

import contextlib
import types
from collections.abc import Iterator
from typing import Any

import torch
from verl.plugin.platform.platform_base import PlatformBase
from verl.plugin.platform.platform_manager import PlatformRegistry


class _Accelerator(types.ModuleType):
    """What verl asks of `torch.cuda`, answered for the CPU: no memory of its own, nothing to wait for."""

    Stream = torch.cpu.Stream

    def __getattr__(self, name: str) -> Any:
        """A call that does nothing, for whatever verl may want to synchronise, empty or reset."""
        if name.startswith("__"):
            raise AttributeError(name)
        return lambda *args, **kwargs: None

    def is_available(self) -> bool:
        return True

    def device_count(self) -> int:
        return 1

    def current_device(self) -> int:
        return 0

    def memory_allocated(self, *_: object) -> int:
        return 0

    memory_reserved = max_memory_allocated = max_memory_reserved = memory_allocated

    def mem_get_info(self, *_: object) -> tuple[int, int]:
        return 0, 1

    def get_device_name(self, *_: object) -> str:
        return "cpu"

    def get_rng_state(self, *_: object) -> torch.Tensor:
        return torch.get_rng_state()

    def set_rng_state(self, state: torch.Tensor, *_: object) -> None:
        torch.set_rng_state(state)

    def manual_seed(self, seed: int) -> None:
        torch.manual_seed(seed)

    manual_seed_all = manual_seed

    def current_stream(self, *_: object) -> torch.cpu.Stream:
        return torch.cpu.current_stream()

    def stream(self, stream: torch.cpu.Stream) -> Any:
        return torch.cpu.stream(stream)


_ACCELERATOR = _Accelerator("factagent_cpu_accelerator")


@PlatformRegistry.register(platform="cpu")
class CpuPlatform(PlatformBase):  # type: ignore[misc]
    """Chosen by `VERL_PLATFORM=cpu` alone, never found by itself."""

    device_name = "cpu"
    vendor_name = "cpu"
    device_module = _ACCELERATOR

    def is_available(self) -> bool:
        return True

    def is_platform_available(self, use_smi_check: bool = False) -> bool:
        return False

    def current_device(self) -> torch.device:
        # verl passes this on as the target of `.to`; an index would mean a GPU there.
        return torch.device("cpu")

    def device_count(self) -> int:
        return 1

    def set_device(self, device_index: int) -> None:
        return None

    def synchronize(self, device_index: int | None = None) -> None:
        return None

    def manual_seed(self, seed: int) -> None:
        torch.manual_seed(seed)

    manual_seed_all = manual_seed

    def set_allocator_settings(self, settings: str) -> None:
        return None

    def empty_cache(self) -> None:
        return None

    def get_device_capability(self, device_index: int = 0) -> tuple[None, None]:
        return None, None

    def communication_backend_name(self) -> str:
        return "gloo"

    def visible_devices_envvar(self) -> str:
        return "CPU_VISIBLE_DEVICES"

    @contextlib.contextmanager
    def nvtx_range(self, msg: str) -> Iterator[None]:
        yield

    def profiler_start(self) -> None:
        return None

    def profiler_stop(self) -> None:
        return None

    def ray_resource_name(self) -> str:
        # verl's resource pools count this one; the run declares as many as it has ranks.
        return "GPU"

    def ray_noset_envvars(self) -> list[str]:
        return []

    def is_ipc_supported(self) -> bool:
        return False

    def cudart(self) -> None:
        return None
