"""The build's answers to bad options and missing parts: what was got, expected, and what to do."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]

# Options without -DMYDIST_ in front, and below them what CMake says.
BAD_OPTIONS = """
WITH_MPI=perhaps
    MYDIST_WITH_MPI is 'perhaps' | AUTO, ON, OFF or LATER
SANITIZE=memory
    MYDIST_SANITIZE is 'memory' | 'thread', 'address'
WITH_CUDA=ON SANITIZE=thread
    MYDIST_WITH_CUDA=ON | MYDIST_SANITIZE leaves CUDA out | AUTO or OFF
WITH_CUDA=ON NVCC=/nowhere/nvcc
    MYDIST_WITH_CUDA=ON | no nvcc was found on PATH, in CUDA_HOME
WITH_CUDA=ON NVCC=/bin/false
    MYDIST_WITH_CUDA=ON | /bin/false was found but cannot compile | CUDAHOSTCXX
WITH_MPI=ON -DCMAKE_DISABLE_FIND_PACKAGE_MPI=ON
    MYDIST_WITH_MPI=ON | no MPI was found | libopenmpi-dev
WITH_GLOO=ON -DCMAKE_IGNORE_PATH=/usr/include WITH_MPI=OFF
    MYDIST_WITH_GLOO=ON | gloo/context.h was not found | libgloo-dev
THREAD_SAFETY=ON -DCMAKE_CXX_COMPILER=g++
    MYDIST_THREAD_SAFETY=ON needs clang, got GNU
""".strip().splitlines()


@pytest.mark.parametrize(
    ("options", "messages"), list(zip(BAD_OPTIONS[::2], BAD_OPTIONS[1::2], strict=True))
)
def test_configure_stops_on_a_bad_option(options: str, messages: str, tmp_path: Path) -> None:
    command = ["cmake", "-G", "Ninja", "-S", str(ROOT), "-B", str(tmp_path / "build")]
    command += ["-DMYDIST_BUILD_TORCH=OFF", "-DMYDIST_BUILD_TESTS=OFF"]
    command += [o if o.startswith("-") else f"-DMYDIST_{o}" for o in options.split()]
    result = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    text = " ".join((result.stdout + result.stderr).split())
    assert result.returncode != 0, text
    assert [m for m in messages.strip().split(" | ") if m not in text] == [], text


def test_setup_without_torch_says_what_to_do(tmp_path: Path) -> None:
    program = (
        "import importlib.util as util, runpy, sys\n"
        "find = util.find_spec\n"
        "util.find_spec = lambda name, *rest: None if name == 'torch' else find(name, *rest)\n"
        "sys.argv = ['setup.py', '-q', 'build_ext', '--build-lib', sys.argv[1]]\n"
        "runpy.run_path('setup.py', run_name='__main__')\n"
    )
    environment = os.environ | {"MYDIST_BUILD_DIR": str(tmp_path / "build")}
    result = subprocess.run(
        [sys.executable, "-c", program, str(tmp_path / "lib")],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert result.returncode != 0
    assert "building needs torch" in result.stderr
    assert "pip install --no-build-isolation ." in result.stderr
    assert not (tmp_path / "build").exists()


def write_program(path: Path, text: str) -> None:
    """An executable shell script."""
    path.write_text("#!/bin/sh\n" + text)
    path.chmod(0o755)


@pytest.fixture
def fake_debian(tmp_path: Path) -> Path:
    """A tree with setup.sh whose apt-get writes a log and whose dpkg-query knows only cmake."""
    (tmp_path / "scripts").mkdir()
    for name in ("setup.sh", "environment.sh"):
        shutil.copy(ROOT / "scripts" / name, tmp_path / "scripts" / name)
    (tmp_path / "scripts" / "debian_packages.txt").write_text(
        "# comment\n[base]\ncmake\nninja-build\n\n[check]\nshellcheck\n\n[ci]\niproute2\n"
    )
    (tmp_path / "scripts" / "requirements.txt").write_text("-r requirements-run.txt\n")
    (tmp_path / "scripts" / "requirements-run.txt").write_text("numpy\n")
    programs = tmp_path / "bin"
    programs.mkdir()
    write_program(
        programs / "dpkg-query",
        'for last; do :; done\n[ "$last" = cmake ] && echo "install ok installed"\n',
    )
    write_program(programs / "apt-get", f'echo "$@" >> {tmp_path}/apt.log\n')
    write_program(programs / "sudo", f'echo sudo >> {tmp_path}/apt.log\nexec "$@"\n')
    # Plays an interpreter that has torch and lets pip succeed.
    write_program(programs / "python-with-torch", f'echo "$@" >> {tmp_path}/python.log\n')
    return tmp_path


def run_setup(tree: Path, user_id: int, *groups: str) -> subprocess.CompletedProcess[str]:
    """Run the fake tree's setup.sh as if by the given user."""
    write_program(tree / "bin" / "id", f"echo {user_id}\n")
    environment = {
        "PATH": f"{tree / 'bin'}:{os.environ['PATH']}",
        "MYDIST_PYTHON": str(tree / "bin" / "python-with-torch"),
    }
    return subprocess.run(
        ["bash", str(tree / "scripts" / "setup.sh"), *groups],
        env=environment,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def test_setup_installs_only_what_is_missing_and_once(fake_debian: Path) -> None:
    first = run_setup(fake_debian, 0, "check")
    assert first.returncode == 0, first.stderr
    assert (fake_debian / "apt.log").read_text() == (
        "update -q\ninstall -qy --no-install-recommends ninja-build shellcheck\n"
    )
    log = (fake_debian / "python.log").read_text()
    installs = [line for line in log.splitlines() if "pip install" in line]
    assert installs == ["-m pip install -q -r scripts/requirements.txt"]

    (fake_debian / "python.log").unlink()
    second = run_setup(fake_debian, 0)
    assert second.returncode == 0, second.stderr
    assert "pip" not in (fake_debian / "python.log").read_text()


def test_setup_uses_sudo_when_not_root(fake_debian: Path) -> None:
    result = run_setup(fake_debian, 1000)
    assert result.returncode == 0, result.stderr
    assert (fake_debian / "apt.log").read_text().splitlines()[:2] == ["sudo", "update -q"]


def test_setup_names_a_python_that_does_not_exist(fake_debian: Path) -> None:
    (fake_debian / "bin" / "python-with-torch").unlink()
    result = run_setup(fake_debian, 0)
    assert result.returncode != 0
    assert "MYDIST_PYTHON is" in result.stderr
    assert "Name a Python 3.11 or newer" in result.stderr


# Plays a pip that has the wheel; what it holds is what its name says.
PIP_WITH_NCCL = """echo "$@" >> {tree}/python.log
case "$*" in
  *'pip download'*)
    while [ "$1" != -d ]; do shift; done
    exec {python} -c 'import sys, zipfile
with zipfile.ZipFile(sys.argv[1] + "/nccl.whl", "w") as wheel:
    wheel.writestr("nvidia/nccl/include/nccl.h", sys.argv[2])
    wheel.writestr("nvidia/nccl/lib/libnccl.so.2", "large")' "$2" "$3" ;;
  *zipfile*) exec {python} "$@" ;;
esac
"""


def test_setup_fetches_the_header_of_nccl_once(fake_debian: Path) -> None:
    python = fake_debian / "bin" / "python-with-torch"
    write_program(fake_debian / "bin" / "nvcc", "exit 0\n")
    write_program(python, PIP_WITH_NCCL.format(tree=fake_debian, python=sys.executable))
    header = fake_debian / "build" / "nccl_header" / "nccl.h"
    for groups in (["ci"], ["ci"], ["check"]):
        result = run_setup(fake_debian, 0, *groups)
        assert result.returncode == 0, result.stderr
        assert header.read_text().startswith("nvidia-nccl-cu13==")
    assert (fake_debian / "python.log").read_text().count("pip download") == 1
    assert sorted(path.name for path in header.parent.iterdir()) == ["nccl.h"]
    assert not list((fake_debian / "build").glob("tmp.*"))


def test_setup_goes_on_where_there_is_no_header_of_nccl(fake_debian: Path) -> None:
    write_program(fake_debian / "bin" / "nvcc", "exit 0\n")
    write_program(
        fake_debian / "bin" / "python-with-torch", 'case "$*" in *download*) exit 1 ;; esac\n'
    )
    result = run_setup(fake_debian, 0, "ci")
    assert result.returncode == 0, result.stderr
    assert "No nccl.h: the test" in result.stdout
    assert not (fake_debian / "build" / "nccl_header" / "nccl.h").exists()
