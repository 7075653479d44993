"""Horovod to the letter: `mydist.horovod.torch` behaves as `horovod.torch` of Horovod 0.28.1 does.

    import mydist.horovod.torch as hvd

`mydistrun --horovod -np 4 python train.py` and `python -m mydist.horovod train.py` run a script as
it is: `import horovod` gives this package there. docs/migration.md lists where `mydist` itself
differs, and in what this package goes further than Horovod.
"""

from __future__ import annotations

from .environment import adopt_launched
from .runner import run

__all__ = ["run"]
__version__ = "0.28.1"

adopt_launched()
