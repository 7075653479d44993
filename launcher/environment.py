"""The environment of each child: its identity, the tunables, and what is forwarded to other hosts.

A local child inherits the launcher's environment as any child does. To another host only an
allow-list travels, and nothing whose name looks like a secret unless `-x NAME` asks for it.
"""

from __future__ import annotations

import fnmatch
import functools
from collections.abc import Mapping
from dataclasses import dataclass

from mydist.launcher import server_addresses
from mydist.launcher.failure_record import TAG_VARIABLE
from mydist.launcher.hosts import Host
from mydist.launcher.job_spec import JobSpec
from mydist.launcher.placement import RankPlacement, ServerPlacement

FORWARDED = ("PATH", "LD_LIBRARY_PATH", "PYTHON*", "OMP_*", "NCCL_*", "MYDIST_*")
SECRET = ("*KEY*", "*TOKEN*", "*SECRET*", "*PASS*")
# The launcher gives them to each child, or a rank to its children; a user's value would break the
# job.
RESERVED_VARIABLES = (
    "RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "NODE_RANK", "MASTER_ADDR",
    "MASTER_PORT", "MYDIST_RANK", "MYDIST_SIZE", "MYDIST_LOCAL_RANK", "MYDIST_LOCAL_SIZE",
    "MYDIST_CROSS_RANK", "MYDIST_CROSS_SIZE", "MYDIST_HOST_ID", "MYDIST_JOB_ID",
    "MYDIST_RENDEZVOUS", "MYDIST_JOB_KEY_FD", "MYDIST_JOB_ENDS_FD", "MYDIST_JOB_PARENT",
    "MYDIST_JOB_WORKER", "MYDIST_SERVER", "MYDIST_SERVER_BIND", server_addresses.FD_VARIABLE,
    server_addresses.VARIABLE, TAG_VARIABLE,
)  # fmt: skip
# Read by the build, as csrc/config/config.cc lists them, too.
BUILD_VARIABLES = (
    "MYDIST_BUILD_BENCHMARKS", "MYDIST_BUILD_DIR", "MYDIST_BUILD_TESTS", "MYDIST_BUILD_TORCH",
    "MYDIST_CLANG", "MYDIST_CLANG_FORMAT", "MYDIST_FAILPOINTS", "MYDIST_PYTHON",
    "MYDIST_SANITIZE", "MYDIST_SANITIZE_LOOPS", "MYDIST_THREAD_SAFETY",
    "MYDIST_TORCH_REQUIREMENT", "MYDIST_UNITY", "MYDIST_WITH_CUDA", "MYDIST_WITH_GLOO",
    "MYDIST_WITH_MPI", "MYDIST_WITH_PS",
)  # fmt: skip
# Left behind by a launcher that this one may itself run under; they would contradict ours.
_STALE = (
    *RESERVED_VARIABLES, "MYDIST_JOB_*", "GROUP_RANK", "ROLE_RANK", "TORCHELASTIC_*",
    "OMPI_COMM_WORLD_*", "OMPI_UNIVERSE_SIZE", "PMI_*", "PMIX_*",
)  # fmt: skip
# The same of Open MPI's mpirun. Outside of its ranks a user may have set some of them.
_STALE_OF_MPIRUN = (
    "OMPI_APP_CTX_NUM_PROCS", "OMPI_ARGV", "OMPI_COMMAND", "OMPI_FILE_LOCATION", "OMPI_FIRST_RANKS",
    "OMPI_NUM_APP_CTX", "OMPI_MCA_ESS", "OMPI_MCA_ESS_BASE_*", "OMPI_MCA_HWLOC_BASE_BINDING_POLICY",
    "OMPI_MCA_INITIAL_WDIR", "OMPI_MCA_MPI_OVERSUBSCRIBE", "OMPI_MCA_ORTE_*", "OMPI_MCA_PMIX",
    "OMPI_MCA_RMAPS_BASE_MAPPING_POLICY", "OMPI_MCA_SHMEM_RUNTIME_QUERY_HINT",
    "OMPI_MCA_*_BACKING_DIRECTORY",
)  # fmt: skip


@dataclass(frozen=True)
class Endpoints:
    """Where the ranks of a job meet. `rendezvous` is `host:port` of the launcher's server."""

    master_address: str
    master_port: int
    rendezvous: str
    job_id: str


@functools.cache
def matches(name: str, patterns: tuple[str, ...]) -> bool:
    """Whether a variable name fits one of the shell-like patterns (case counts not)."""
    return any(fnmatch.fnmatchcase(name.upper(), pattern) for pattern in patterns)


def inherited_environment(environment: Mapping[str, str]) -> dict[str, str]:
    """What a local child, or mpirun, keeps of the launcher's own environment."""
    stale = _STALE + (_STALE_OF_MPIRUN if "OMPI_COMM_WORLD_RANK" in environment else ())
    return {k: v for k, v in environment.items() if not matches(k, stale)}


def forwarded_environment(environment: Mapping[str, str]) -> dict[str, str]:
    """What travels to another host without being asked for."""
    return {
        name: value
        for name, value in inherited_environment(environment).items()
        if matches(name, FORWARDED) and not matches(name, SECRET)
    }


def requested_environment(spec: JobSpec, environment: Mapping[str, str]) -> dict[str, str]:
    """What flags ask for in every child: tunables, the controller, `-x`, unbuffered Python."""
    requested = dict(spec.tunables)
    if spec.controller is not None:
        requested["MYDIST_CONTROLLER"] = spec.controller
    if spec.failure_tag:
        requested[TAG_VARIABLE] = spec.failure_tag
    if "PYTHONUNBUFFERED" not in environment:
        requested["PYTHONUNBUFFERED"] = "1"
    for name, value in spec.exported.items():
        requested[name] = environment[name] if value is None else value
    return requested


def environment_here(spec: JobSpec, environment: Mapping[str, str]) -> dict[str, str]:
    """Of mpirun, or of a child on this host but for its identity."""
    return {**inherited_environment(environment), **requested_environment(spec, environment)}


def environment_there(spec: JobSpec, environment: Mapping[str, str]) -> dict[str, str]:
    """Of a child on another host but for its identity."""
    return {**forwarded_environment(environment), **requested_environment(spec, environment)}


def identity_environment(placement: RankPlacement, endpoints: Endpoints) -> dict[str, str]:
    """The numbers of the rank, for mydist and for torch.distributed code in the same script."""
    return {
        "RANK": str(placement.rank),
        "LOCAL_RANK": str(placement.local_rank),
        "WORLD_SIZE": str(placement.size),
        "LOCAL_WORLD_SIZE": str(placement.local_size),
        "NODE_RANK": str(placement.node_rank),
        "MASTER_ADDR": endpoints.master_address,
        "MASTER_PORT": str(endpoints.master_port),
        "MYDIST_RANK": str(placement.rank),
        "MYDIST_SIZE": str(placement.size),
        "MYDIST_LOCAL_RANK": str(placement.local_rank),
        "MYDIST_LOCAL_SIZE": str(placement.local_size),
        "MYDIST_CROSS_RANK": str(placement.cross_rank),
        "MYDIST_CROSS_SIZE": str(placement.cross_size),
        "MYDIST_HOST_ID": placement.host.name,
        "MYDIST_JOB_ID": endpoints.job_id,
        "MYDIST_RENDEZVOUS": endpoints.rendezvous,
    }


def worker_environment(worker: int, host: Host, slot: int, endpoints: Endpoints) -> dict[str, str]:
    """The number of a worker of an elastic job, and of its slot on the host, which stays: so it may
    choose a GPU. Its rank is told with each epoch."""
    return {
        "LOCAL_RANK": str(slot),
        "MYDIST_JOB_WORKER": str(worker),
        "MYDIST_HOST_ID": host.name,
        "MYDIST_JOB_ID": endpoints.job_id,
        "MYDIST_RENDEZVOUS": endpoints.rendezvous,
    }


def server_environment(placement: ServerPlacement, bind: str, job_id: str) -> dict[str, str]:
    """The number of the server, and the address that it listens on."""
    return {
        "MYDIST_SERVER": str(placement.number),
        "MYDIST_SERVER_BIND": bind,
        "MYDIST_HOST_ID": placement.host.name,
        "MYDIST_JOB_ID": job_id,
    }
