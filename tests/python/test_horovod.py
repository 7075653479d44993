"""`mydist.horovod` without other ranks: names, arguments, variables, and `import horovod`."""

from __future__ import annotations

import importlib
import inspect
import os
import subprocess
import sys
from pathlib import Path

import pytest

import mydist.horovod
import mydist.horovod.torch as hvd
from mydist.horovod.common import util
from mydist.horovod.environment import adopt_launched, settings, with_import_path
from mydist.horovod.torch import compression, functions, mpi_ops, optimizer, sync_batch_norm

# Names and positional arguments of horovod.torch 0.28.1.
SIGNATURES = {
    "allreduce": "tensor average name compression op prescale_factor postscale_factor process_set",
    "allreduce_": "tensor average name op prescale_factor postscale_factor process_set",
    "allreduce_async": "tensor average name op prescale_factor postscale_factor process_set",
    "allreduce_async_": "tensor average name op prescale_factor postscale_factor process_set",
    "grouped_allreduce": "tensors average name compression op prescale_factor postscale_factor "
    "process_set",
    "grouped_allreduce_": "tensors average name op prescale_factor postscale_factor process_set",
    "grouped_allreduce_async": "tensors average name op prescale_factor postscale_factor "
    "process_set",
    "grouped_allreduce_async_": "tensors average name op prescale_factor postscale_factor "
    "process_set",
    "sparse_allreduce_async": "tensor name op process_set",
    "allgather": "tensor name process_set",
    "allgather_async": "tensor name process_set",
    "grouped_allgather": "tensors name process_set",
    "grouped_allgather_async": "tensors name process_set",
    "broadcast": "tensor root_rank name process_set",
    "broadcast_": "tensor root_rank name process_set",
    "broadcast_async": "tensor root_rank name process_set",
    "broadcast_async_": "tensor root_rank name process_set",
    "alltoall": "tensor splits name process_set",
    "alltoall_async": "tensor splits name process_set",
    "reducescatter": "tensor name compression op process_set prescale_factor postscale_factor",
    "reducescatter_async": "tensor name op process_set prescale_factor postscale_factor",
    "grouped_reducescatter": "tensors name compression op process_set prescale_factor "
    "postscale_factor",
    "grouped_reducescatter_async": "tensors name op process_set prescale_factor postscale_factor",
    "join": "device",
    "barrier": "process_set",
    "poll": "handle",
    "synchronize": "handle",
    "init": "comm process_sets",
    "start_timeline": "file_path mark_cycles",
    "add_process_set": "process_set",
    "remove_process_set": "process_set",
    "check_extension": "ext_name ext_env_var pkg_path args",
    "broadcast_parameters": "params root_rank",
    "broadcast_optimizer_state": "optimizer root_rank model",
    "broadcast_object": "obj root_rank name process_set",
    "allgather_object": "obj name",
    "DistributedOptimizer": "optimizer named_parameters compression backward_passes_per_step op "
    "gradient_predivide_factor num_groups groups sparse_as_dense process_set",
    "SyncBatchNorm": "num_features eps momentum affine track_running_stats",
}
OTHERS = (
    "Adasum Average Compression HorovodInternalError Max Min ProcessSet Product Sum ccl_built "
    "cross_rank cross_size cuda_built ddl_built elastic global_process_set gloo_built gloo_enabled "
    "is_homogeneous is_initialized local_rank local_size mpi_built mpi_enabled "
    "mpi_threads_supported nccl_built rank rocm_built shutdown size stop_timeline"
)
RUN = (
    "func args kwargs num_proc min_num_proc max_num_proc slots reset_limit cooldown_range hosts "
    "hostfile host_discovery_script start_timeout ssh_port ssh_identity_file disable_cache "
    "output_filename verbose use_gloo use_mpi mpi_args network_interface network_interfaces "
    "executable np min_np max_np"
)


def test_names_and_arguments_are_horovods() -> None:
    for name, expected in SIGNATURES.items():
        taken = inspect.signature(getattr(hvd, name)).parameters
        assert " ".join(taken) == expected, name
    assert set(hvd.__all__) == {*SIGNATURES, *OTHERS.split()}
    assert " ".join(inspect.signature(mydist.horovod.run).parameters) == RUN
    assert mydist.horovod.__version__ == "0.28.1"
    assert (hvd.Average, hvd.Sum, hvd.Adasum, hvd.Min, hvd.Max, hvd.Product) == tuple(range(6))


def test_names_stand_where_programs_import_them() -> None:
    assert hvd.allreduce is mpi_ops.allreduce
    assert hvd.DistributedOptimizer is optimizer.DistributedOptimizer
    assert hvd.Compression is compression.Compression
    assert hvd.broadcast_parameters is functions.broadcast_parameters
    assert hvd.SyncBatchNorm is sync_batch_norm.SyncBatchNorm
    assert issubclass(hvd.HorovodInternalError, RuntimeError)


def test_average_is_an_older_op() -> None:
    with pytest.warns(DeprecationWarning, match="`average` has been replaced with `op`"):
        assert mpi_ops.handle_average_backwards_compatibility(None, False) == hvd.Sum
    assert mpi_ops.handle_average_backwards_compatibility(None, None) == hvd.Average
    with pytest.raises(ValueError, match="op parameter supersedes average"):
        mpi_ops.handle_average_backwards_compatibility(hvd.Sum, True)


def test_wrong_arguments_before_init() -> None:
    with pytest.raises(ValueError, match="list of process ranks or an mpi4py Comm"):
        hvd.ProcessSet(["0"])
    with pytest.raises(ValueError, match="Invalid type of argument comm"):
        hvd.init(comm=5)


class Communicator:
    """What init() uses of an mpi4py communicator."""

    def Get_size(self) -> int:
        return 1


def test_the_global_set_knows_the_communicator_of_the_job() -> None:
    for comm in (Communicator(), None):
        hvd.init(comm)
        assert hvd.global_process_set.mpi_comm is comm
        hvd.shutdown()


def test_sets_change_only_where_the_variable_allows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOROVOD_DYNAMIC_PROCESS_SETS", "0")
    hvd.init()
    try:
        with pytest.raises(ValueError, match="Set HOROVOD_DYNAMIC_PROCESS_SETS=1 to allow adding"):
            hvd.add_process_set([0, 1])
    finally:
        hvd.shutdown()


@pytest.mark.parametrize(
    ("name", "instead"),
    [
        ("tensorflow", "use horovod.torch"),
        ("keras", "use horovod.torch"),
        ("mxnet", "use horovod.torch"),
        ("spark", "mydistrun, or call mydist.run"),
        ("ray", "mydistrun, or call mydist.run"),
    ],
)
def test_parts_for_others_say_what_to_use(name: str, instead: str) -> None:
    with pytest.raises(ImportError, match=rf"horovod\.{name} is not in mydist.*{instead}"):
        importlib.import_module(f"mydist.horovod.{name}")


def test_arguments_of_run_that_contradict_each_other() -> None:
    with pytest.raises(ValueError, match="hosts and hostfile only allow one"):
        mydist.horovod.run(print, hosts="a:1", hostfile="b")
    with pytest.raises(ValueError, match="use_gloo and use_mpi only allow one"):
        mydist.horovod.run(print, use_gloo=True, use_mpi=True)


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({"HOROVOD_FUSION_THRESHOLD": str(3 << 19)}, {"MYDIST_FUSION_THRESHOLD_MB": "1.5"}),
        ({"HOROVOD_STALL_CHECK_DISABLE": "1", "HOROVOD_STALL_CHECK_TIME_SECONDS": "7"},
         {"MYDIST_STALL_WARNING_SECONDS": "0"}),
        ({"HOROVOD_STALL_CHECK_DISABLE": "0", "HOROVOD_STALL_CHECK_TIME_SECONDS": "7"},
         {"MYDIST_STALL_WARNING_SECONDS": "7"}),
        ({"HOROVOD_TIMELINE": "DYNAMIC", "HOROVOD_LOG_LEVEL": "FATAL"},
         {"MYDIST_LOG_LEVEL": "error"}),
        ({"HOROVOD_TIMELINE": "a.json", "MYDIST_TIMELINE": "b.json"}, {}),
        ({"HOROVOD_CONTROLLER": "gloo", "HOROVOD_GLOO_TIMEOUT_SECONDS": "9"},
         {"MYDIST_CONTROLLER": "gloo", "MYDIST_TIMEOUT_SECONDS": "9"}),
    ],
)  # fmt: skip
def test_horovods_variables_are_read(given: dict[str, str], expected: dict[str, str]) -> None:
    assert dict(settings(given)) == expected


def test_a_variable_that_is_no_number_is_named() -> None:
    with pytest.raises(ValueError, match=r"HOROVOD_FUSION_THRESHOLD is '64MB', expected a whole"):
        list(settings({"HOROVOD_FUSION_THRESHOLD": "64MB"}))


def test_programs_find_their_rank_in_horovods_variables() -> None:
    environment = {"MYDIST_RANK": "3", "MYDIST_SIZE": "4", "HOROVOD_SIZE": "9"}
    adopt_launched(environment)
    assert environment["HOROVOD_RANK"] == "3"
    assert environment["HOROVOD_SIZE"] == "4"


SCRIPT = """
import sys
import torch
import horovod, horovod.torch as hvd
from horovod.torch.mpi_ops import allreduce
from horovod.common.exceptions import HorovodInternalError
from horovod.common.util import split_list
import mydist.horovod.torch
assert hvd is mydist.horovod.torch is sys.modules["horovod.torch"]
assert hvd.allreduce is allreduce and hvd.HorovodInternalError is HorovodInternalError
try:
    import horovod.tensorflow.keras
except ImportError as error:
    print(error)
class Data(torch.utils.data.Dataset):
    def __len__(self):
        return 1
    def __getitem__(self, index):
        import horovod
        return horovod.__name__
if __name__ == "__main__":
    hvd.init()
    for kind in ("fork", "spawn"):
        loader = torch.utils.data.DataLoader(Data(), num_workers=1, multiprocessing_context=kind)
        print(kind, "worker has", list(loader), sys.argv[1:])
"""


@pytest.mark.parametrize("by", ["module", "path"])
def test_import_horovod_gives_this_package(tmp_path: Path, by: str) -> None:
    """Also in the workers of a DataLoader, and where another Horovod is installed."""
    script = tmp_path / "unedited.py"
    script.write_text(SCRIPT)
    installed = tmp_path / "installed" / "horovod"
    installed.mkdir(parents=True)
    (installed / "__init__.py").write_text("print('the installed one')")
    path = os.pathsep.join([str(installed.parent), os.environ.get("PYTHONPATH", "")])
    environment = {**os.environ, "PYTHONPATH": path}
    alone = [sys.executable, "-c", "import mydist.horovod, horovod"]
    done = subprocess.run(alone, env=environment, capture_output=True, text=True, timeout=300)
    assert done.stdout == "the installed one\n"
    command = [sys.executable, "-m", "mydist.horovod"]
    if by == "path":
        environment, command = with_import_path(environment), [sys.executable]
    done = subprocess.run(
        [*command, str(script), "--epochs"],
        env=environment,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    assert "the installed one" not in done.stdout
    assert "horovod.tensorflow is not in mydist, which is for PyTorch" in done.stdout
    for kind in ("fork", "spawn"):
        assert f"{kind} worker has [['mydist.horovod']] ['--epochs']" in done.stdout


def test_the_module_needs_a_script() -> None:
    for arguments, text in (
        ([], "usage: python -m"),
        (["/no/such.py"], "No such file or directory"),
    ):
        command = [sys.executable, "-m", "mydist.horovod", *arguments]
        done = subprocess.run(command, capture_output=True, text=True, timeout=300)
        assert (done.returncode, text in done.stderr) == (2, True), done.stderr


def test_functions_that_programs_call() -> None:
    assert util.split_list(list("abcde"), 3) == [["a", "b"], ["c", "d"], ["e"]]
    assert [util.num_rank_is_power_2(n) for n in (0, 1, 2, 3, 4)] == [
        False,
        True,
        True,
        False,
        True,
    ]
    assert util.is_version_greater_equal_than("2.13.0", "2.9.1")
    with pytest.raises(ValueError, match=r"major\.minor\.patch"):
        util.is_version_greater_equal_than("2.13.0", "2.9")
    with util.env(MYDIST_TEST_OF_UTIL="1", OTHER=None):
        assert os.environ["MYDIST_TEST_OF_UTIL"] == "1"
    assert "MYDIST_TEST_OF_UTIL" not in os.environ
    with pytest.raises(ImportError, match="Extension tensorflow has not been built"):
        util.check_extension("tensorflow", "HOROVOD_WITH_TENSORFLOW", __file__, "mpi_lib")
