"""What this process has in memory, by the kernel."""

from __future__ import annotations


def bytes_in(file: str, field: str) -> int:
    """A field of /proc/self/FILE, such as VmRSS of status, in bytes."""
    with open(f"/proc/self/{file}", encoding="ascii") as lines:
        return next(1024 * int(line.split()[1]) for line in lines if line.startswith(f"{field}:"))


def forget_peak() -> None:
    """VmHWM of status counts from now on."""
    with open("/proc/self/clear_refs", "w", encoding="ascii") as clear:
        clear.write("5")
