"""HostMemory: memory that all ranks of one host map, for one copy of the parameters.

It is a file in /dev/shm, which has a name only until all ranks of the host have opened it. What a
killed job leaves in that moment is removed by later jobs, as their own memory is.
"""

from __future__ import annotations

import mmap
import os
import secrets
import warnings
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from ...collectives.objects import allgather_object
from ...job.process_set import ProcessSet
from .layout import LINE_BYTES

if TYPE_CHECKING:
    from .slices import HeldBucket

DIRECTORY = "/dev/shm"


class HostMemory:
    """Of one optimizer. Its making and its calls are collective.

    Attributes:
        place: of this rank among the ranks of its host, which are `ranks`: indices in the set.
        others: the indices of the ranks on other hosts.
    """

    def __init__(self, process_set: ProcessSet) -> None:
        self._process_set = process_set
        own = process_set.rank()
        hosts = allgather_object(_host(), "sharded.hosts", process_set)
        self.ranks = [index for index, host in enumerate(hosts) if host == hosts[own]]
        self.place = self.ranks.index(own)
        self.others = [index for index in range(len(hosts)) if index not in self.ranks]

    def allocate(self, size: int, fill: Callable[[mmap.mmap], None]) -> mmap.mmap | None:
        """Memory of this many bytes, which one rank of the host has filled. Collective.

        None, and a warning, where there is no room, or a rank alone on its host.
        """
        made: mmap.mmap | None = None
        path, failure = "", ""
        if self.place == 0 and len(self.ranks) > 1:
            path = f"{DIRECTORY}/mydist-{secrets.token_hex(16)}"
            try:
                made = _opened(path, size, os.O_CREAT | os.O_EXCL)
                fill(made)
            except OSError as error:
                failure = f"{error.strerror}: {_needed_and_free(size)}"
        try:
            paths = allgather_object((path, failure), "sharded.host_memory", self._process_set)
            path_here, failure_here = paths[self.ranks[0]]
            if path_here and not failure_here and made is None:
                try:
                    made = _opened(path_here, size)
                except OSError as error:
                    failure = f"a rank cannot open it: {error.strerror}"
            failures = allgather_object(failure, "sharded.host_memory.opened", self._process_set)
        finally:
            if path:
                Path(path).unlink(missing_ok=True)
        reasons = [failures[index] for index in self.ranks if failures[index]]
        if not reasons:
            return made
        warnings.warn(
            f"ShardedOptimizer: share_parameters=True found no memory in {DIRECTORY} "
            f"({reasons[0]}); each rank of this host keeps its own copy of the parameters",
            stacklevel=2,
        )
        return None


def move_parameters(buckets: Sequence[HeldBucket], host: HostMemory) -> None:
    """The parameters of these buckets move to memory of the host, if it has room. Collective."""
    places, size = [], 0
    for bucket in buckets:
        places.append(size)
        length = bucket.plan.padded_length * bucket.plan.dtype.itemsize
        size += -(-length // LINE_BYTES) * LINE_BYTES

    def views(memory: mmap.mmap) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        """Each parameter, and its place. Each has a storage of its own, as programs expect."""
        for bucket, place in zip(buckets, places, strict=True):
            dtype = bucket.plan.dtype
            for parameter, start, count in bucket.members():
                at = place + start * dtype.itemsize
                flat = torch.frombuffer(memory, dtype=dtype, count=count, offset=at)
                yield parameter, flat.view(parameter.shape)

    def fill(memory: mmap.mmap) -> None:
        for parameter, view in views(memory):
            view.copy_(parameter.detach())

    memory = host.allocate(size, fill) if buckets else None
    if memory is None:
        return
    for parameter, view in views(memory):
        parameter.data = view
    for bucket, place in zip(buckets, places, strict=True):
        bucket.shared = torch.frombuffer(
            memory, dtype=bucket.plan.dtype, count=bucket.plan.padded_length, offset=place
        )
        for piece in bucket.own:
            piece.follow()


def _opened(path: str, size: int, flags: int = 0) -> mmap.mmap:
    """The file, mapped; with `flags` it is made and has its memory."""
    descriptor = os.open(path, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC | flags, 0o600)
    try:
        if flags:
            # Else a full /dev/shm would be a signal at the first write.
            os.posix_fallocate(descriptor, 0, size)
        return mmap.mmap(descriptor, size)
    finally:
        os.close(descriptor)


def _needed_and_free(size: int) -> str:
    try:
        found = os.statvfs(DIRECTORY)
    except OSError:
        return f"{size} bytes are needed"
    free = found.f_bavail * found.f_frsize
    return f"{size} bytes are needed, {free} are free; in a container, enlarge it with --shm-size"


def _host() -> tuple[str, str, int]:
    """Equal on ranks that see the same /dev/shm."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        device = os.stat(DIRECTORY).st_dev
    except OSError:
        boot, device = "", 0
    return os.environ.get("MYDIST_HOST_ID", "") or os.uname().nodename, boot, device
