"""The GPU check and what was brought along: pieces, packages, wheels, and that they are used."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import zipfile
from pathlib import Path

import pytest

from scripts.gpu_check.carried import Carried, join_pieces, unpack
from scripts.gpu_check.plan import Scene, plan


@pytest.fixture
def carried(tmp_path: Path) -> Carried:
    return Carried(tmp_path / "root", tmp_path / "site")


def test_pieces_become_the_file_they_were(tmp_path: Path) -> None:
    whole = bytes(range(256)) * 41
    (tmp_path / "whole").write_bytes(whole)
    subprocess.run(
        ["split", "-b", "900", "-d", "whole", "a.whl.part"], cwd=tmp_path, check=True, timeout=60
    )
    (tmp_path / "whole").unlink()
    (tmp_path / "b.deb").write_bytes(b"")
    assert len(list(tmp_path.glob("a.whl.part*"))) > 10
    assert join_pieces(tmp_path) == [tmp_path / "a.whl", tmp_path / "b.deb"]
    assert (tmp_path / "a.whl").read_bytes() == whole


def make_package(folder: Path, name: str) -> Path:
    include = folder / name / "usr" / "include"
    include.mkdir(parents=True)
    (include / f"{name}.h").write_text("header")
    control = folder / name / "DEBIAN"
    control.mkdir()
    (control / "control").write_text(
        f"Package: {name}\nVersion: 1\nArchitecture: all\nMaintainer: nobody\nDescription: none\n"
    )
    package = folder / f"{name}_1_all.deb"
    subprocess.run(["dpkg-deb", "-b", str(folder / name), str(package)], check=True, timeout=60)
    return package


def test_wheels_and_packages_are_unpacked(tmp_path: Path, carried: Carried) -> None:
    wheel = tmp_path / "one-1.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr("nvidia/nccl/lib/libnccl.so.2", "library")
    one = make_package(tmp_path, "one")
    libc = make_package(tmp_path, "libc6")
    other = tmp_path / "notes.txt"
    other.write_text("no package")
    assert carried.nccl() is None
    assert unpack([one, libc, wheel, other], carried) == [
        "one_1_all.deb",
        "libc6_1_all.deb (refused: the system has its own)",
        "one-1.whl",
    ]
    assert [path.name for path in (carried.root / "usr/include").iterdir()] == ["one.h"]
    assert carried.nccl() == carried.site / "nvidia/nccl/lib/libnccl.so.2"


def test_only_folders_of_libraries_are_searched_for_them(carried: Carried) -> None:
    """Gloo's package has its library in /usr/lib itself."""
    folders = [carried.root / "usr/lib/x86_64-linux-gnu", carried.root / "usr/lib"]
    (folders[0] / "openmpi/lib/openmpi3").mkdir(parents=True)
    for library in ("openmpi/lib/openmpi3/mca_btl_tcp.so", "libmpi.so.40", "../libgloo.so.0"):
        (folders[0] / library).write_text("library")
    path = carried.environment()["LD_LIBRARY_PATH"].split(":")
    assert path[:2] == [str(folder) for folder in folders]
    assert not [folder for folder in path if "openmpi3" in folder]


def configure(carried: Carried) -> list[str]:
    scene = Scene(carried, carried.root.parent / "tree", carried.root, False, True)
    return list(plan(scene)[0].command)


def test_what_was_not_brought_may_be_missing(carried: Carried) -> None:
    told = configure(carried)
    assert "-DMYDIST_WITH_MPI=AUTO" in told and "-DMYDIST_WITH_GLOO=AUTO" in told
    library = carried.root / "usr/lib/x86_64-linux-gnu/libgloo.so.0"
    library.parent.mkdir(parents=True)
    library.write_text("library")
    assert "-DMYDIST_WITH_GLOO=ON" in configure(carried)


def test_a_googletest_that_was_brought_comes_before_that_of_the_system(carried: Carried) -> None:
    folder = carried.root / "usr/lib/x86_64-linux-gnu/cmake/GTest"
    folder.mkdir(parents=True)
    (folder / "GTestConfig.cmake").write_text("")
    (folder / "GTestTargets.cmake").write_text("add_library(GTest::gtest_main STATIC IMPORTED)")
    assert carried.gtest() != folder  # libgtest-dev alone.
    (folder / "GMockTargets.cmake").write_text("add_library(GTest::gmock_main STATIC IMPORTED)")
    assert carried.gtest() == folder
    assert f"-DGTest_DIR={folder}" in configure(carried)


@pytest.mark.parametrize("user", [0, 1000])
def test_root_may_run_mpi_also_one_that_was_installed(
    carried: Carried, monkeypatch: pytest.MonkeyPatch, user: int
) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: user)
    consents = {"OMPI_ALLOW_RUN_AS_ROOT", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM"}
    assert (consents <= set(carried.environment())) == (user == 0)


def installed_open_mpi(root: Path) -> bool:
    """Copies the files of Debian's packages to a folder, as they are in the packages."""
    for package in ("openmpi-bin", "openmpi-common", "libopenmpi-dev", "libopenmpi3"):
        listed = subprocess.run(
            ["dpkg", "-L", package], capture_output=True, text=True, check=False, timeout=60
        )
        if listed.returncode != 0:
            return False
        for name in listed.stdout.splitlines():
            source, target = Path(name), root / name[1:]
            if source.is_dir() and not source.is_symlink():
                continue
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(source, target, follow_symlinks=False)
    return True


FIND_MPI = """
cmake_minimum_required(VERSION 3.25)
project(finds LANGUAGES CXX)
find_package(MPI REQUIRED COMPONENTS CXX)
foreach(path IN LISTS MPI_CXX_COMPILER MPIEXEC_EXECUTABLE MPI_CXX_INCLUDE_DIRS MPI_CXX_LIBRARIES)
  message(STATUS "found ${path}")
endforeach()
"""


@pytest.mark.skipif(shutil.which("dpkg") is None, reason="no Debian")
def test_an_open_mpi_that_was_brought_is_the_one_that_is_built_with_and_runs(
    tmp_path: Path, carried: Carried
) -> None:
    root = carried.root
    if not installed_open_mpi(root):
        pytest.skip("Open MPI's packages are not installed")
    assert not carried.has_mpi()
    unpack([], carried)
    assert carried.has_mpi()
    environment = {**os.environ, **carried.environment()}
    (tmp_path / "CMakeLists.txt").write_text(FIND_MPI)
    command = ["cmake", "-S", str(tmp_path), "-B", str(tmp_path / "build")]
    command.append(f"-DCMAKE_PREFIX_PATH={root / 'usr'}")
    told = subprocess.run(
        command, env=environment, capture_output=True, text=True, check=True, timeout=120
    ).stdout
    found = re.findall(r"found (/.+)", told)
    assert len(found) >= 4, told
    assert all(path.startswith(str(root)) for path in found), found
    command = ["mpirun", "--oversubscribe", "-np", "2", "sh", "-c", "echo $OMPI_COMM_WORLD_RANK"]
    ran = subprocess.run(
        command, env=environment, capture_output=True, text=True, check=True, timeout=60
    )
    assert sorted(ran.stdout.split()) == ["0", "1"]
    assert "-DMYDIST_WITH_MPI=ON" in configure(carried)
