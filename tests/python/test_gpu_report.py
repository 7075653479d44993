"""What mydist says of GPUs and of NCCL, and that it asks for neither before it is asked."""

from __future__ import annotations

import ctypes
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

import mydist as md

# Slow: a run of the whole suite has half of these, the next one the other half.
pytestmark = pytest.mark.turns(2)

RunPython = Callable[..., subprocess.CompletedProcess[str]]

NCCL_FUNCTIONS = """
    GetErrorString GetUniqueId CommInitRankConfig CommFinalize CommDestroy CommAbort
    CommGetAsyncError GroupStart GroupEnd AllReduce Reduce Broadcast AllGather ReduceScatter
    Send Recv RedOpCreatePreMulSum RedOpDestroy
""".split()  # noqa: SIM905


def has_driver() -> bool:
    """Whether this machine has an NVIDIA driver."""
    try:
        ctypes.CDLL("libcuda.so.1")
    except OSError:
        return False
    return True


@pytest.fixture(scope="module")
def library_like_nccl(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of packages with a libnccl.so.2 that has NCCL's functions and the version 2.31.2."""
    compiler = shutil.which("cc")
    if compiler is None:
        pytest.skip("no C compiler here")
    site = tmp_path_factory.mktemp("site")
    folder = site / "nvidia" / "nccl" / "lib"
    folder.mkdir(parents=True)
    source = folder / "nccl.c"
    functions = "".join(f"int nccl{name}(void) {{ return 3; }}\n" for name in NCCL_FUNCTIONS)
    source.write_text("int ncclGetVersion(int* v) { *v = 23102; return 0; }\n" + functions)
    command = [compiler, "-shared", "-fPIC", "-o", str(folder / "libnccl.so.2"), str(source)]
    subprocess.run(command, check=True)
    return site


def test_cuda_built_says_whether_the_plugin_is_there() -> None:
    library = Path(md.__file__).parent / "lib" / "libmydist_nccl.so"
    assert md.cuda_built() == library.exists()


def test_training_on_the_cpu_loads_no_plugin(run_python: RunPython) -> None:
    """Nor the driver, which a torch for GPUs may have loaded by itself."""
    program = """
import torch

def loaded():
    maps = open("/proc/self/maps").read()
    return {name for name in ("libmydist_nccl", "libcuda.so") if name in maps}

before = loaded()
import mydist as md
md.init()
model = torch.nn.Linear(4, 1)
optimizer = md.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1))
model(torch.ones(2, 4)).sum().backward()
optimizer.step()
md.mpi_built(), md.gloo_enabled(), md.cuda_built()
md.shutdown()
print(sorted(loaded() - before))
"""
    assert run_python(program).stdout == "[]\n"


def test_nccl_is_found_among_packages(run_python: RunPython, library_like_nccl: Path) -> None:
    if not md.cuda_built():
        pytest.skip("mydist was built without CUDA")
    if torch.version.cuda is not None:
        pytest.skip("torch has an NCCL of its own, which comes first")
    program = f"import sys, mydist as md; sys.path.append({str(library_like_nccl)!r})\n"
    assert run_python(program + "print(md.nccl_built())").stdout == "23102\n"


def test_nccl_is_found_where_the_variable_says(
    run_python: RunPython, library_like_nccl: Path
) -> None:
    if not md.cuda_built():
        pytest.skip("mydist was built without CUDA")
    file = library_like_nccl / "nvidia" / "nccl" / "lib" / "libnccl.so.2"
    program = "import mydist as md; print(md.nccl_built())"
    assert run_python(program, MYDIST_NCCL_LIBRARY=str(file)).stdout == "23102\n"
    assert run_python(program, MYDIST_NCCL_LIBRARY="/nowhere/libnccl.so.2").stdout == "0\n"


def test_check_build_says_why_there_is_no_nccl(run_python: RunPython) -> None:
    program = "from mydist.launcher.check_build import check_build; check_build(print)"
    row = next(line for line in run_python(program).stdout.splitlines() if " nccl " in line)
    if not md.cuda_built():
        assert row.startswith("  [ ] nccl   not built: ")
    elif not has_driver():
        assert row == "  [ ] nccl   no NVIDIA driver found (libcuda.so.1)"
    elif md.nccl_built() or torch.version.cuda is not None:
        assert row.startswith("  [x] nccl   NCCL 2.")
    else:
        assert row.startswith("  [ ] nccl   ") and len(row) > len("  [ ] nccl   ")
