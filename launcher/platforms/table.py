"""The platforms there are."""

from __future__ import annotations

from collections.abc import Sequence

from mydist.launcher.job_spec import JobSpec
from mydist.launcher.placement import RankPlacement
from mydist.launcher.platforms.direct import DirectPlatform
from mydist.launcher.platforms.mpi import MpiPlatform
from mydist.launcher.platforms.platform import Platform

# Asked in this order; the first that serves a job starts it.
PLATFORMS: tuple[type[Platform], ...] = (MpiPlatform, DirectPlatform)


def platform_for(spec: JobSpec, ranks: Sequence[RankPlacement]) -> type[Platform]:
    """The platform that starts this job."""
    return next(platform for platform in PLATFORMS if platform.serves(spec, ranks))
