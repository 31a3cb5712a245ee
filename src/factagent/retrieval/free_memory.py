"""How much memory this process may still take: of the machine, of its control group, of a GPU."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

GIB = 1 << 30


def free_memory(root: Path = Path("/")) -> int:
    """Bytes that can be had without swapping: the machine's available memory, or less where a control group (a
    container, a batch job) is allowed less. Page cache counts as free.
    """
    return max(0, min([_available(root), *_group_rooms(root)]))


def free_gpu_memory() -> dict[int, int]:
    """Free bytes of each GPU that torch sees; empty where there is none or torch is not installed."""
    try:
        import torch
    except ImportError:
        return {}
    if not torch.cuda.is_available():
        return {}
    return {number: int(torch.cuda.mem_get_info(number)[0]) for number in range(torch.cuda.device_count())}


def _available(root: Path) -> int:
    meminfo = root / "proc/meminfo"
    if meminfo.is_file():
        for line in meminfo.read_text("ascii").splitlines():
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) * 1024
    return os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def _group_rooms(root: Path) -> Iterator[int]:
    """What each control group above this process still allows (cgroup v2 and v1)."""
    for directory in _group_directories(root):
        for limit_name, used_name in (
            ("memory.max", "memory.current"),
            ("memory.limit_in_bytes", "memory.usage_in_bytes"),
        ):
            limit, used = _number(directory / limit_name), _number(directory / used_name)
            if limit is not None and used is not None:
                yield limit - used + _reclaimable(directory / "memory.stat")


def _group_directories(root: Path) -> Iterator[Path]:
    """The group's own directory and those above it. In a container its path may not be visible: then only the top."""
    groups = root / "proc/self/cgroup"
    if not groups.is_file():
        return
    for line in groups.read_text("utf-8", "replace").splitlines():
        _, controllers, path = line.split(":", 2)
        if controllers and "memory" not in controllers.split(","):
            continue
        top = root / "sys/fs/cgroup" / ("memory" if controllers else "")
        place = top / path.lstrip("/")
        while place != top and top in place.parents:
            yield place
            place = place.parent
        yield top


def _number(path: Path) -> int | None:
    """The number in a file; None where there is no file or no limit ("max")."""
    try:
        return int(path.read_text("ascii"))
    except (OSError, ValueError):
        return None


def _reclaimable(path: Path) -> int:
    """Page cache that the group could give back, out of `memory.stat`."""
    try:
        fields = dict(line.split() for line in path.read_text("ascii").splitlines())
        return int(fields.get("total_inactive_file", fields.get("inactive_file", "0")))
    except (OSError, ValueError):
        return 0
