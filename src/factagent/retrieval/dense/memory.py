"""How much memory a device has free."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch

GIB = 1 << 30
_MEMINFO = Path("/proc/meminfo")


def free_bytes(device: torch.device | None = None) -> int:
    """Memory that can be had without pushing anything out: of a GPU, else of the machine.

    Where the system does not tell (no /proc/meminfo), the physically free pages count.
    """
    if device is not None and device.type == "cuda":
        import torch

        return int(torch.cuda.mem_get_info(device)[0])
    if _MEMINFO.is_file():
        fields = dict(line.split(":", 1) for line in _MEMINFO.read_text("ascii").splitlines())
        return int(fields["MemAvailable"].split()[0]) * 1024
    import os

    return os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
