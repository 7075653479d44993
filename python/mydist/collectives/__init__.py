"""Every collective operation, and the handles of the asynchronous ones."""

# ruff: noqa: F403  (each module lists its public names)
from .allgather_calls import *
from .allreduce_calls import *
from .alltoall_calls import *
from .barrier_call import *
from .broadcast_calls import *
from .handles import *
from .join_call import *
from .point_to_point import *
from .reducescatter_calls import *
from .rooted import *
