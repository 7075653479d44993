"""Every collective operation, and the handles of the asynchronous ones."""

# ruff: noqa: F403  (each module lists its public names)
from .handles import *
from .moves import *
from .point_to_point import *
from .reductions import *
from .waits import *
