"""SIGQUIT, where the program leaves it alone: this rank prints its stacks and goes on.

The handler of the core makes the rank write its flight recorder. faulthandler lies on top: it
prints the Python stacks of all threads, also while a thread holds the GIL, and calls the core's.
"""

from __future__ import annotations

import faulthandler
import signal

from .. import _C

_STDERR = 2  # Whatever the program makes of sys.stderr.


def install() -> None:
    """Handles SIGQUIT from now on, unless the program, or its parent, has seen to it."""
    if _C.install_quit_handler():
        faulthandler.register(signal.SIGQUIT, file=_STDERR, all_threads=True, chain=True)
        _C.note_quit_handler_on_top()
