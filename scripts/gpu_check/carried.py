"""Packages and wheels that were brought along: put together, unpacked, and made to be found."""

from __future__ import annotations

import os
import re
import subprocess
import zipfile
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

# Libraries that every program here uses already, in another version.
_OF_THE_SYSTEM = re.compile(r"(libc6|libc-bin|libgcc-s1|libstdc\+\+6)(-dev)?_")
_MULTIARCH = "x86_64-linux-gnu"
# Of an Open MPI that is installed, too.
_AS_ROOT = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
_OF_OPEN_MPI = {
    "OMPI_MCA_plm": "isolated",  # It insists on ssh otherwise, be it for one machine.
    # Of parts for networks that are not here.
    "OMPI_MCA_mca_base_component_show_load_errors": "0",
}


@dataclass(frozen=True)
class Carried:
    """Where it was unpacked: `root` is laid out as /, `site` as Python's site-packages."""

    root: Path
    site: Path

    def gtest(self) -> Path | None:
        """The folder of GoogleTest's CMake package, brought or installed, with GoogleMock's."""
        for prefix in (self.root / "usr", Path("/usr/local"), Path("/usr")):
            for pattern in ("lib/cmake/GTest", "lib/*/cmake/GTest"):
                for found in prefix.glob(f"{pattern}/GTestConfig.cmake"):
                    if _has_gmock(found.parent):
                        return found.parent
        return None

    def has_mpi(self) -> bool:
        """Whether an Open MPI was brought."""
        return (self.root / "usr/bin/mpirun").exists()

    def has_gloo(self) -> bool:
        """Whether a Gloo was brought."""
        return any(self.root.rglob("libgloo*"))

    def nccl(self) -> Path | None:
        """The library of the NCCL that was brought."""
        library = self.site / "nvidia" / "nccl" / "lib" / "libnccl.so.2"
        return library if library.exists() else None

    def environment(self) -> dict[str, str]:
        """Has programs find all this, to build with it and to run what was built."""
        library = self.root / "usr/lib" / _MULTIARCH
        folders = (library, self.root / "lib" / _MULTIARCH, self.root / "usr/lib")
        paths = [str(folder) for folder in folders if any(folder.glob("*.so*"))]
        variables = {
            "PYTHONPATH": _before(os.environ, "PYTHONPATH", [str(self.site)]),
            "LD_LIBRARY_PATH": _before(os.environ, "LD_LIBRARY_PATH", paths),
        }
        variables |= _AS_ROOT if os.geteuid() == 0 else {}
        if self.has_mpi():
            variables["PATH"] = _before(os.environ, "PATH", [str(self.root / "usr/bin")])
            variables |= _OF_OPEN_MPI
            # It looks for its parts where it was made to lie.
            variables["OPAL_PREFIX"] = str(self.root / "usr")
            variables["OPAL_SYSCONFDIR"] = str(self.root / "etc/openmpi")
            variables["PMIX_MCA_mca_base_component_path"] = str(library / "pmix2/lib/pmix")
        return {name: value for name, value in variables.items() if value}


def _before(environment: Mapping[str, str], name: str, paths: list[str]) -> str:
    return os.pathsep.join([*paths, *filter(None, [environment.get(name)])])


def _has_gmock(folder: Path) -> bool:
    """Debian has it in another package, in files of its own."""
    targets = (folder / "GMockTargets.cmake", folder / "GTestTargets.cmake")
    return any(path.exists() and "GTest::gmock_main" in path.read_text() for path in targets)


def take(folder: Path, carried: Carried, joined: Path) -> tuple[list[str], list[str]]:
    """Unpacks what is in the folder, where nothing is written; pieces become files in `joined`.

    Returns the names of what was unpacked or refused, and of what is broken, which costs no other.
    """
    names, broken = [], []
    for name, pieces in sorted(_files_of(folder).items()):
        try:
            path = pieces[0] if pieces[0].name == name else _join(pieces, joined / name)
            names += _unpack(path, carried)
        except Exception as error:  # Whatever is wrong with it, the others may be right.
            broken.append(f"{name} (broken: {_reason_of(error)})")
    _name_as_installed(carried.root)
    return names, broken


def _files_of(folder: Path) -> dict[str, list[Path]]:
    """Each file, or its pieces in order, by its name."""
    files: dict[str, list[Path]] = {}
    for path in sorted(folder.iterdir()):
        files.setdefault(re.sub(r"\.part\d+$", "", path.name), []).append(path)
    return files


def _join(pieces: Iterable[Path], whole: Path) -> Path:
    """Puts a file together.

    Raises:
        ValueError: a piece is missing.
    """
    whole.parent.mkdir(parents=True, exist_ok=True)
    last = -1
    with whole.open("wb") as target:
        for piece in pieces:
            number = int(piece.name.rpartition(".part")[2])
            if number != last + 1 and (last, number) != (89, 9000):  # So `split -d` goes on.
                raise ValueError(f"part{last + 1:02} is missing")
            target.write(piece.read_bytes())
            last = number
    return whole


def _unpack(path: Path, carried: Carried) -> list[str]:
    """Its name, unless it is neither a package nor a wheel. Of a broken one nothing is unpacked."""
    if path.suffix == ".deb":
        if _OF_THE_SYSTEM.match(path.name):
            return [f"{path.name} (refused: the system has its own)"]
        carried.root.mkdir(parents=True, exist_ok=True)
        for arguments in (["-c", str(path)], ["-x", str(path), str(carried.root)]):
            subprocess.run(["dpkg-deb", *arguments], check=True, capture_output=True, text=True)
    elif path.suffix == ".whl":
        with zipfile.ZipFile(path) as wheel:
            if damaged := wheel.testzip():
                raise ValueError(f"{damaged} is damaged")
            wheel.extractall(carried.site)
    else:
        return []
    return [path.name]


def _reason_of(error: Exception) -> str:
    told = error.stderr if isinstance(error, subprocess.CalledProcessError) else str(error)
    lines = told.strip().splitlines()
    return lines[-1] if lines else type(error).__name__


def _name_as_installed(root: Path) -> None:
    """Debian names Open MPI's programs so when it is installed."""
    for program in root.glob("usr/bin/*.openmpi"):
        plain = program.with_suffix("")
        if not os.path.lexists(plain):
            plain.symlink_to(program.name)
