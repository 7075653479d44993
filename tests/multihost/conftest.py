"""The fixture of the tests with several hosts."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from multiproc.conftest import missing_backends

from multihost.cluster import Cluster, make_cluster, missing_requirement, remove_abandoned


@pytest.fixture(scope="session")
def several_hosts() -> None:
    """Skips, saying why, where network namespaces cannot be made."""
    reason = missing_requirement()
    if reason:
        pytest.skip(reason)
    remove_abandoned()


@pytest.fixture
def gloo() -> None:
    """Skips where this build has no Gloo."""
    _require("gloo")


@pytest.fixture
def mpi() -> None:
    """Skips where this build has no MPI."""
    _require("mpi")


def _require(backend: str) -> None:
    reason = missing_backends().get(backend)
    if reason is not None:
        pytest.skip(f"no {backend} backend: {reason}")


@pytest.fixture
def cluster(several_hosts: None, tmp_path: Path) -> Iterator[Cluster]:
    """Three hosts of this test alone. When it passes, nothing may run on them any more."""
    with make_cluster(tmp_path) as made:
        yield made
        made.wait_empty()
