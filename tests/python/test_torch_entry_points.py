"""torch finds the backend "mydist" by its name, and nothing of mydist can spoil `import torch`."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

import mydist

RunPython = Callable[..., subprocess.CompletedProcess[str]]

ROOT = Path(__file__).resolve().parents[2]
GROUP = 'dist.init_process_group("{}", store=dist.HashStore(), rank=0, world_size=1)\n'


@pytest.fixture(scope="session")
def installed(tmp_path_factory: pytest.TempPathFactory) -> str:
    """PYTHONPATH with what an installation adds to the package: its metadata."""
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "setup.py", "-q", "dist_info", "--output-dir", str(folder)]
    subprocess.run(command, cwd=ROOT, check=True, capture_output=True, timeout=120)
    assert mydist.__file__
    return os.pathsep.join([str(folder), str(Path(mydist.__file__).parents[1])])


def with_path(installed: str) -> str:
    return os.pathsep.join(filter(None, [installed, os.environ.get("PYTHONPATH")]))


def expect(done: subprocess.CompletedProcess[str], said: str) -> None:
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == said, done.stdout


def test_the_name_is_enough(installed: str, run_python: RunPython) -> None:
    code = """
import sys, warnings
warnings.simplefilter("error")
import torch, torch.distributed as dist
assert "mydist_autoload" in sys.modules and "mydist" not in sys.modules
for string in ("mydist", "cpu:mydist", "cpu:mydist,cuda:mydist", "MYDIST"):
    dist.init_process_group(string, store=dist.HashStore(), rank=0, world_size=1)
    tensor = torch.ones(3)
    dist.all_reduce(tensor)
    dist.new_group([0], backend="cpu:mydist")
    assert dist.group.WORLD._get_backend(torch.device("cpu")).name() == "mydist", string
    dist.destroy_process_group()
print("all strings", dist.is_backend_available("mydist"))
"""
    expect(run_python(code, PYTHONPATH=with_path(installed)), "all strings True")


def test_other_programs_see_no_difference(installed: str, run_python: RunPython) -> None:
    code = """
import torch, torch.distributed as dist
dist.init_process_group("cpu:gloo", store=dist.HashStore(), rank=0, world_size=1)
print(dist.group.WORLD.name(), "MYDIST" in dist.Backend._plugins)
"""
    expect(run_python(code, PYTHONPATH=with_path(installed)), "gloo False")


def test_the_entry_point_of_torch_2_14(installed: str, run_python: RunPython) -> None:
    code = """
import importlib.metadata as metadata
import torch, torch.distributed as dist
assert "mydist" not in dist.Backend.backend_list
(entry,) = metadata.entry_points(group="torch.distributed.backends", name="mydist")
entry.load()()
entry.load()()
dist.init_process_group("mydist", store=dist.HashStore(), rank=0, world_size=1)
print(dist.get_backend())
"""
    path = with_path(installed)
    done = run_python(code, PYTHONPATH=path, TORCH_DEVICE_BACKEND_AUTOLOAD="0")
    expect(done, "mydist")


def test_torch_that_looks_names_up_itself_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    import mydist_autoload
    from torch.distributed import Backend

    plain = Backend.__new__
    monkeypatch.setattr(Backend, "_ensure_backend_registered", lambda name: None, raising=False)
    mydist_autoload.watch_names()
    assert Backend.__new__ is plain


def test_a_broken_mydist_spoils_no_import_of_torch(
    installed: str, run_python: RunPython, tmp_path: Path
) -> None:
    (tmp_path / "mydist").mkdir()
    (tmp_path / "mydist" / "__init__.py").write_text("raise OSError('half of it is gone')")
    code = f"""
import torch, torch.distributed as dist
print("imported")
try:
    {GROUP.format("mydist")}
except OSError as error:
    print(error)
"""
    path = os.pathsep.join([str(tmp_path), with_path(installed)])
    expect(run_python(code, PYTHONPATH=path), "imported\nhalf of it is gone")


@pytest.mark.parametrize(
    ("before", "text"),
    [
        (
            "sys.modules['mydist._c10d'] = None",
            'the backend "mydist" was not built for this Python: it has no mydist._c10d. Compile',
        ),
        (
            "import mydist._torch_version as versions; versions.built_for = lambda: '1.5.0'",
            'the backend "mydist" cannot be loaded: mydist was compiled for torch 1.5.0, and this',
        ),
    ],
    ids=["not built", "for another torch"],
)
def test_a_missing_module_is_an_error_with_the_reason(
    before: str, text: str, run_python: RunPython
) -> None:
    code = f"""
import sys
{before}
import torch.distributed as dist, mydist.c10d
try:
    {GROUP.format("mydist")}
except dist.DistBackendError as error:
    print(error)
"""
    done = run_python(code)
    assert done.returncode == 0, done.stderr
    assert text in done.stdout


def test_tensors_on_gpus_are_refused(run_python: RunPython) -> None:
    code = f"""
import torch, torch.distributed as dist, mydist.c10d
try:
    {GROUP.format("cpu:gloo,cuda:mydist")}
except dist.DistBackendError as error:
    print(error)
store = dist.HashStore()
dist.init_process_group("cpu:mydist", store=store, rank=0, world_size=1)
backend = dist.group.WORLD._get_backend(torch.device("cpu"))
try:
    backend.allreduce([torch.ones(2, device="meta")]).wait()
except ValueError as error:
    print(error)
"""
    done = run_python(code)
    assert done.returncode == 0, done.stderr
    assert (
        'was asked to serve cuda. Write init_process_group("cpu:mydist,cuda:nccl")' in done.stdout
    )
    assert "all_reduce got a tensor on meta" in done.stdout
