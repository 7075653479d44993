"""What mydistrun says of the ranks that it still waits for when others have ended. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

# Then after twice, four … times that.
FIRST_LINE_SECONDS = 10.0
MAX_NAMED = 8


@dataclass(frozen=True)
class AwaitedRank:
    """A rank that has not ended. `stopped`: those of its processes that are known to be stopped."""

    rank: int
    host: str
    pid: int = 0
    stopped: tuple[int, ...] = ()

    def describe(self) -> str:
        """Which one it is, and how to resume it."""
        facts = [f"pid {self.pid}"] if self.pid else []
        if self.stopped:
            pid = self.stopped[0]
            which = "it" if pid == self.pid else f"its process {pid}"
            facts.append(
                f"a signal or a debugger has stopped {which}: kill -CONT {pid} resumes it, "
                f"kill -KILL {pid} ends it"
            )
        return f"rank {self.rank} on host {self.host}" + (f" ({'; '.join(facts)})" if facts else "")


def wait_line(awaited: Sequence[AwaitedRank], ended: int, seconds: float) -> str:
    """One line. `ended`: how many ranks have ended, the last of them `seconds` ago."""
    named = ", ".join(rank.describe() for rank in awaited[:MAX_NAMED])
    more = f" and {len(awaited) - MAX_NAMED} more" if len(awaited) > MAX_NAMED else ""
    others = "the other rank" if ended == 1 else f"the last of the other {ended} ranks"
    return f"mydistrun: still waits for {named}{more}; {others} ended {seconds:.0f} s ago"
