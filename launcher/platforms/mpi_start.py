"""What mpirun needs before it starts ranks."""

from __future__ import annotations

import resource
import shutil

from mydist.launcher.errors import LaunchError

# Open MPI 4.1 takes 36 files for 2 ranks of a host, at most 64 for 8 and 96 for 16. Without them it
# stops without a word.
_FILES_OF_MPIRUN = 32
_FILES_OF_A_RANK = 5
_SEGMENT_OF_A_RANK = 16 << 20


def files_needed(ranks: int) -> int:
    """How many files mpirun opens, at most, for so many ranks of this host."""
    return _FILES_OF_MPIRUN + _FILES_OF_A_RANK * ranks


def make_room_for_files(ranks: int) -> None:
    """Raises the limit of open files where mpirun needs more, and the administrator allows it.

    Raises:
        LaunchError: the administrator does not.
    """
    needed = files_needed(ranks)
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY or soft >= needed:
        return
    if hard != resource.RLIM_INFINITY and hard < needed:
        raise LaunchError(
            f"--mpi: mpirun needs {needed} open files for {ranks} ranks, and the limit is {hard}. "
            f"Raise it (ulimit -n {needed}), or leave --mpi out"
        )
    resource.setrlimit(resource.RLIMIT_NOFILE, (needed, hard))


def fits_in(folder: str, ranks: int) -> bool:
    """Whether the ranks' shared memory for MPI finds room there."""
    try:
        return shutil.disk_usage(folder).free >= ranks * _SEGMENT_OF_A_RANK
    except OSError:
        return False
