from datetime import timedelta
from typing import Any

# A c10d::Backend for the ranks that call it. Raises torch.distributed.DistBackendError.
def open_group(
    store: Any,
    rank: int,
    world_ranks: list[int],
    world_size: int,
    prefers_mpi: bool,
    rank_ends: int,
    timeout: timedelta,
    name: str,
) -> object: ...

class MpiMeeting:
    def __init__(self, rank: int, size: int) -> None: ...
    def gather(self, mine: bytes) -> list[bytes]: ...
    def address(self, is_one_host: bool) -> str: ...
    def host(self) -> str: ...
    def close(self) -> None: ...
