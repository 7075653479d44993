from datetime import timedelta
from typing import Any

# A c10d::Backend for the ranks that call it. Raises torch.distributed.DistBackendError.
def open_group(store: Any, rank: int, size: int, timeout: timedelta, name: str) -> object: ...
