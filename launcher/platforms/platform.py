"""What every platform is to the job: it starts all children, and reports what happens to them."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar, Protocol

from mydist.launcher.children import Children
from mydist.launcher.failure_record import FailureRecord
from mydist.launcher.job_spec import JobSpec
from mydist.launcher.placement import RankPlacement
from mydist.launcher.process_group import ChildEvents
from mydist.launcher.stop_sequence import Steps


class JobEvents(ChildEvents, Protocol):
    """Receives what happens to the children of a job and their hosts, on the loop's thread."""

    def on_exited(
        self,
        child: int,
        status: int,
        *,
        is_first: bool = False,
        improper: bool = False,
        unknown: bool = False,
    ) -> None:
        """See ChildEvents. `is_first`: it ended before any rank was stopped, though told later.
        `improper`: it ended without finalizing MPI, its own status is unknown. `unknown`: its
        status is not known.

        A second end of a child has no effect.
        """

    def on_host_lost(self, children: Sequence[int], cause: str, exit_code: int) -> None:
        """A remote host is gone with all its living children."""

    def on_unnamed_failure(self, exit_code: int, text: str) -> None:
        """The job failed, and nothing says which rank is to blame."""

    def on_note(self, text: str) -> None: ...

    def failure(self, rank: int) -> FailureRecord | None:
        """What the rank has said of its own failure in the output that was passed on."""

    def has_complained(self, rank: int) -> bool:
        """Whether the rank has printed an error, or told of a failure, in that output."""


@dataclass(frozen=True)
class Launch:
    """What a platform works with: the job, the launcher's environment, the loop, the receiver."""

    spec: JobSpec
    environment: Mapping[str, str]
    loop: asyncio.AbstractEventLoop
    events: JobEvents

    def tell(self, text: str) -> None:
        """Prints a line with --verbose."""
        if self.spec.verbose:
            self.events.on_note(f"mydistrun: {text}")


class Platform(Protocol):
    """One way to start the children of a job. Owned and called by the job's loop.

    Attributes:
        after_timeout: how the other ranks are stopped when one ends after a time-out.
    """

    after_timeout: ClassVar[Steps]

    def __init__(self, launch: Launch) -> None: ...

    @staticmethod
    def serves(spec: JobSpec, ranks: Sequence[RankPlacement]) -> bool:
        """Whether it is the one for this job."""

    @staticmethod
    def describe(spec: JobSpec, environment: Mapping[str, str], children: Children) -> list[str]:
        """The lines of the dry run. Raises LaunchError as the start itself does."""

    async def connect(self, children: Children) -> None:
        """Reaches all hosts of the job. Raises LaunchError; close() follows in any case."""

    def start(self, part: range, variables: Mapping[str, str]) -> None:
        """Starts these of the children, which get these variables as well: the servers of the job,
        later its ranks. Raises LaunchError; close() follows in any case."""

    def send_signal(self, signum: int, children: range) -> None:
        """Sends the signal to the living ones of these, when it returns at the latest; SIGKILL also
        to what they started. SIGTSTP stops those, too, that do not handle it."""

    def tell_end(self, child: int, status: int) -> None:
        """Lets the living ones know how a child has ended, where there is a way to tell them."""

    def pause_output(self, paused: bool) -> None:
        """Reads no more output, so that the children wait in write() in the end, or reads on."""

    def out_of_memory(self) -> bool:
        """Whether the kernel killed a process on this host for memory; False when unknown."""

    async def close(self) -> None:
        """Kills what is left and frees everything, also after a start that failed."""
