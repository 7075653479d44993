"""Asks the host discovery script which hosts may be used now."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from collections.abc import Sequence

from mydist.launcher.errors import UsageError, shown
from mydist.launcher.hosts import Host, parse_hostfile_text

EVERY_SECONDS = 1.0
# A script that takes longer is ended, and has failed.
LONGEST_SECONDS = 30.0
_MOST_BYTES = 1 << 20


class DiscoveryError(RuntimeError):
    """The script failed; the text says why."""


async def discover(command: Sequence[str], slots_per_host: int) -> tuple[Host, ...]:
    """The hosts that the script prints, `name:slots`, `name slots=N` or `name`, one a line.

    No line means no host. Raises DiscoveryError.
    """
    try:
        process = await asyncio.create_subprocess_exec(
            *command,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            start_new_session=True,
        )
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise DiscoveryError(f"cannot run {command[0]!r}: {reason}") from None
    try:
        async with asyncio.timeout(LONGEST_SECONDS):
            out, err = await process.communicate()
    except TimeoutError:
        raise DiscoveryError(f"it took longer than {LONGEST_SECONDS:g} s") from None
    finally:
        if process.returncode is None:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(process.pid, signal.SIGKILL)
    if process.returncode:
        lines = err.decode("utf-8", "backslashreplace").strip().splitlines()
        code = process.returncode
        how = f"it exited with code {code}" if code > 0 else f"signal {-code} ended it"
        raise DiscoveryError(f"{how}{f': {lines[-1]}' if lines else ''}")
    return parse_hosts(out, slots_per_host)


def parse_hosts(output: bytes, slots_per_host: int) -> tuple[Host, ...]:
    """The hosts in the output of a script. Raises DiscoveryError."""
    if len(output) > _MOST_BYTES:
        raise DiscoveryError(f"it printed {len(output)} bytes, at most {_MOST_BYTES} are allowed")
    try:
        return parse_hostfile_text(output.decode(), "its output", slots_per_host)
    except UnicodeDecodeError:
        raise DiscoveryError(f"it printed {shown(repr(output))}, expected text in UTF-8") from None
    except UsageError as error:
        raise DiscoveryError(str(error)) from None
