from datetime import timedelta
from typing import Any

# A c10d::Backend for the ranks that call it. Raises torch.distributed.DistBackendError.
def open_group(
    store: Any,
    rank: int,
    world_ranks: list[int],
    world_size: int,
    timeout: timedelta,
    name: str,
) -> object: ...
def stats() -> dict[str, dict[str, int]]: ...
def last_failure() -> dict[str, Any]: ...
