"""The machine's free memory, and the time that it takes for a piece of work."""

from __future__ import annotations

import ctypes
import os
import time
from collections.abc import Callable
from functools import cache
from pathlib import Path

import torch

try:
    import resource
except ImportError:  # Windows
    resource = None

MEMORY = Path("/proc/meminfo")
STATM = Path("/proc/self/statm")
CGROUP = Path("/sys/fs/cgroup")
SHARE = 0.75
"""The part of the free memory that may be taken; the rest is for what happens beside."""
GIB = 2**30
KEPT = 31 * 2**20
"""Bytes of the largest piece of memory that is kept when it is freed: a little less than GNU's limit."""


@cache
def keep_freed_memory() -> None:
    """Have the C library keep the memory that this process frees, for who asks for some next.

    GNU's gives large pieces back to the system as soon as they are free, and the system clears every page
    of them when they are next in use: for matrices that are made again and again, a third of the time.
    Once a large piece has been freed, it keeps all that are no larger. This one takes no memory: nothing
    is written to it. Other libraries have rules of their own, which it does not change.
    """
    torch.empty(KEPT, dtype=torch.uint8)


def free_bytes(device: torch.device) -> int | None:
    """Return the bytes that a process can still take on a device; None where that is unknown.

    For a GPU, memory that PyTorch holds but does not use counts as free. For a CPU it is the least of what
    the machine, the control group and the limit of the process (ulimit -v) have left.
    """
    if device.type == "cuda":
        idle = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
        return torch.cuda.mem_get_info(device)[0] + idle
    if device.type != "cpu":
        return None
    known = [left for left in (_of_machine(), _of_group(), _of_process()) if left is not None]
    return max(0, min(known)) if known else None


def total_bytes() -> int | None:
    """Return the bytes of memory that the machine or its control group has; None where that is unknown."""
    asked = _told_by_windows()
    known = [_pages("SC_PHYS_PAGES") if asked is None else asked[0], _number(CGROUP / "memory.max")]
    return min((total for total in known if total is not None), default=None)


def _of_machine() -> int | None:
    """The memory that is available without swapping; half of all of it where the system does not tell."""
    available, asked = _named(MEMORY).get("MemAvailable:"), _told_by_windows()
    if available is not None:
        return 1024 * available
    if asked is not None:
        return asked[1]
    free = _pages("SC_AVPHYS_PAGES")
    if free is not None:
        return free
    total = _pages("SC_PHYS_PAGES")  # macOS knows this number alone
    return None if total is None else total // 2


def _pages(name: str) -> int | None:
    """The bytes of a number of pages that POSIX systems tell; None where this one does not."""
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf(name)
    except (AttributeError, ValueError, OSError):
        return None


def _told_by_windows() -> tuple[int, int] | None:
    """The bytes of all memory and of what is available, as Windows tells them; None elsewhere."""
    library = getattr(ctypes, "windll", None)
    if library is None:
        return None
    status = (ctypes.c_uint64 * 8)(64)  # MEMORYSTATUSEX, which begins with its own size in bytes
    if not library.kernel32.GlobalMemoryStatusEx(ctypes.byref(status)):
        return None
    return status[1], status[2]


def _of_group() -> int | None:
    """Return what is left of the limit of the control group, of version 2 or 1; None where it has none.

    Files that were read lately count as used, although their memory is given back when it is needed.
    """
    version1 = CGROUP / "memory"
    for limit, used, stat, idle in (
        (CGROUP / "memory.max", CGROUP / "memory.current", CGROUP / "memory.stat", "inactive_file"),
        (
            version1 / "memory.limit_in_bytes",
            version1 / "memory.usage_in_bytes",
            version1 / "memory.stat",
            "total_inactive_file",
        ),
    ):
        most, taken = _number(limit), _number(used)
        if most is not None and taken is not None:
            return most - taken + _named(stat).get(idle, 0)
    return None


def _of_process() -> int | None:
    """Return what is left of the limit of this process's address space; None where it has none."""
    if resource is None:
        return None
    most, pages = resource.getrlimit(resource.RLIMIT_AS)[0], _first_number(STATM)
    if most == resource.RLIM_INFINITY or pages is None:
        return None
    return most - pages * resource.getpagesize()


def _first_number(path: Path) -> int | None:
    """The whole number that a file begins with; None where there is no file."""
    try:
        return int(path.read_text(encoding="ascii").split()[0])
    except (OSError, UnicodeError, ValueError, IndexError):
        return None


def _number(path: Path) -> int | None:
    """The whole number in a file; None where there is no file, or no number in it."""
    try:
        text = path.read_text(encoding="ascii").strip()
    except (OSError, UnicodeError):
        return None
    return int(text) if text.isdigit() else None


def _named(path: Path) -> dict[str, int]:
    """The numbers in a file whose lines begin with a name and a number; empty without a file."""
    try:
        lines = path.read_text(encoding="ascii").splitlines()
    except (OSError, UnicodeError):
        return {}
    pairs = (line.split() for line in lines)
    return {pair[0]: int(pair[1]) for pair in pairs if len(pair) > 1 and pair[1].isdigit()}


def refuse_above_free(needed: int, device: torch.device, what: str, instead: str) -> None:
    """Raise a MemoryError, which says what to do `instead`, if work needs over `SHARE` of what is free."""
    free = free_bytes(device)
    if free is not None and needed > SHARE * free:
        raise MemoryError(
            f"{what} needs {needed / GIB:,.3g} GiB on {device}, of which {free / GIB:.3g} GiB are free and "
            f"{SHARE:.0%} of that may be taken. To go on, {instead}"
        )


def seconds_of(work: Callable[[], object], device: torch.device) -> float:
    """Measure the least time of three calls, after one that is not measured."""

    def taken() -> float:
        start = time.perf_counter()
        work()
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        return time.perf_counter() - start

    taken()
    return min(taken() for _ in range(3))
