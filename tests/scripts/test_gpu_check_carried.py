"""The GPU check and what was brought along: pieces, packages, wheels, and that they are used."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import zipfile
from pathlib import Path

import pytest

import scripts.gpu_check
from scripts.gpu_check.carried import Carried, take
from scripts.gpu_check.plan import Scene, plan


@pytest.fixture
def carried(tmp_path: Path) -> Carried:
    return Carried(tmp_path / "root", tmp_path / "site")


@pytest.fixture
def files(tmp_path: Path) -> Path:
    """The folder that is brought."""
    folder = tmp_path / "files"
    folder.mkdir()
    return folder


def make_wheel(path: Path, name: str = "nvidia/nccl/lib/libnccl.so.2", size: int = 0) -> None:
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr(name, os.urandom(size) or b"library")


def split(path: Path, piece: int) -> list[Path]:
    command = ["split", "-b", str(piece), "-d", path.name, f"{path.name}.part"]
    subprocess.run(command, cwd=path.parent, check=True, timeout=60)
    path.unlink()
    return sorted(path.parent.glob(f"{path.name}.part*"))


@pytest.mark.parametrize("piece", [900, 90])
def test_pieces_become_the_file_they_were(
    tmp_path: Path, files: Path, carried: Carried, piece: int
) -> None:
    """More than 90 of them, too."""
    whole = files / "a.whl"
    make_wheel(whole, size=9000)
    content = whole.read_bytes()
    assert len(split(whole, piece)) > 10
    before = sorted(files.iterdir())
    assert take(files, carried, tmp_path / "joined") == (["a.whl"], [])
    assert (tmp_path / "joined/a.whl").read_bytes() == content
    assert sorted(files.iterdir()) == before  # It may be read-only.
    assert carried.nccl()


@pytest.mark.parametrize("lost", [0, 3])
def test_a_piece_that_is_missing_is_named(
    tmp_path: Path, files: Path, carried: Carried, lost: int
) -> None:
    whole = files / "a.whl"
    make_wheel(whole, size=9000)
    split(whole, 900)[lost].unlink()
    make_wheel(files / "b.whl", "b.py")
    expected = f"a.whl (broken: part{lost:02} is missing)"
    assert take(files, carried, tmp_path / "joined") == (["b.whl"], [expected])


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


def test_wheels_and_packages_are_unpacked(tmp_path: Path, files: Path, carried: Carried) -> None:
    make_wheel(files / "one-1.whl")
    make_package(files, "one")
    make_package(files, "libc6")
    (files / "notes.txt").write_text("no package")
    assert carried.nccl() is None
    names = ["libc6_1_all.deb (refused: the system has its own)", "one-1.whl", "one_1_all.deb"]
    assert take(files, carried, tmp_path / "joined") == (names, [])
    assert [path.name for path in (carried.root / "usr/include").iterdir()] == ["one.h"]
    assert carried.nccl() == carried.site / "nvidia/nccl/lib/libnccl.so.2"


def test_a_broken_file_costs_no_other_and_leaves_nothing(
    tmp_path: Path, files: Path, carried: Carried, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_wheel(files / "damaged.whl", size=5000)
    content = bytearray((files / "damaged.whl").read_bytes())
    content[1000] ^= 1
    (files / "damaged.whl").write_bytes(content)
    make_wheel(files / "truncated.whl", size=5000)
    (files / "truncated.whl").write_bytes((files / "truncated.whl").read_bytes()[:3000])
    package = make_package(files, "short")
    package.write_bytes(package.read_bytes()[:-40])
    make_wheel(files / "whole.whl", "whole.py")
    make_package(files, "whole")
    names, broken = take(files, carried, tmp_path / "joined")
    assert names == ["whole.whl", "whole_1_all.deb"]
    told = [name.partition(" (broken: ")[0] for name in broken]
    assert told == ["damaged.whl", "short_1_all.deb", "truncated.whl"]
    assert not [name for name in broken if name.endswith((": )", "None)"))]
    assert carried.nccl() is None
    assert [path.name for path in (carried.root / "usr/include").iterdir()] == ["whole.h"]
    monkeypatch.setenv("PATH", "")
    names, broken = take(files, carried, tmp_path / "joined")
    assert names == ["whole.whl"]
    assert "dpkg-deb" in broken[-1]


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
    listed = re.search(r"openmpi-bin, [^:]*", scripts.gpu_check.__doc__ or "")
    assert listed is not None
    for package in re.findall(r"[\w.-]+", listed[0]):
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
    (tmp_path / "nothing").mkdir()
    take(tmp_path / "nothing", carried, tmp_path / "joined")
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
