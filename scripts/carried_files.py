"""Debian packages and wheels from a folder: unpacked beside the system, found by programs."""

from __future__ import annotations

import os
import re
import subprocess
import zipfile
from pathlib import Path

# Every program uses these libraries of the system; another version of them breaks it.
_OF_THE_SYSTEM = re.compile(r"(libc6|libc-bin|libgcc-s1|libstdc\+\+6)(-dev)?_")
_LIBRARY = "usr/lib/x86_64-linux-gnu"


def unpack(folder: Path, tree: Path) -> tuple[list[str], list[str]]:
    """Unpacks packages to `tree`/root, laid out as /, and wheels to `tree`/site.

    Returns the names of files it used or refused, and of broken files with the reason. Nothing of
    a broken file is unpacked, and the other files are.
    """
    pieces_of: dict[str, list[Path]] = {}
    for path in sorted(folder.iterdir()):
        pieces_of.setdefault(re.sub(r"\.part\d+$", "", path.name), []).append(path)
    names, broken = [], []
    for name, pieces in sorted(pieces_of.items()):
        if not name.endswith((".deb", ".whl")):
            continue
        if _OF_THE_SYSTEM.match(name):
            names.append(f"{name} (refused: the system has its own)")
            continue
        try:
            whole = pieces[0]
            if whole.name != name:
                whole = tree / name  # The folder may be read-only.
                whole.write_bytes(b"".join(piece.read_bytes() for piece in pieces))
            _unpack(whole, tree)
            names.append(name)
        except Exception as error:  # A broken file may raise anything.
            told = getattr(error, "stderr", None) or str(error) or type(error).__name__
            broken.append(f"{name} (broken: {told.strip().splitlines()[-1]})")
    for program in tree.glob("root/usr/bin/*.openmpi"):  # Its installation makes the plain names.
        if not os.path.lexists(program.with_suffix("")):
            program.with_suffix("").symlink_to(program.name)
    return names, broken


def _unpack(path: Path, tree: Path) -> None:
    if path.suffix == ".deb":
        (tree / "root").mkdir(exist_ok=True)
        for arguments in (["-c", str(path)], ["-x", str(path), str(tree / "root")]):
            subprocess.run(["dpkg-deb", *arguments], check=True, capture_output=True, text=True)
        return
    with zipfile.ZipFile(path) as wheel:
        if damaged := wheel.testzip():
            raise ValueError(f"{damaged} is damaged")
        wheel.extractall(tree / "site")


def find_variables(tree: Path) -> dict[str, str]:
    """The variables with which programs are built and run."""
    root = tree / "root"
    folders = [root / _LIBRARY, root / "lib/x86_64-linux-gnu", root / "usr/lib"]
    libraries = [folder for folder in folders if any(folder.glob("*.so*"))]
    variables = {"LD_LIBRARY_PATH": _before("LD_LIBRARY_PATH", *libraries)} if libraries else {}
    variables |= {
        "PYTHONPATH": _before("PYTHONPATH", tree, tree / "site"),
        "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",  # Installed plugins may be for another pytest.
        "TEST_DEEP": "1",  # Runs on a GPU are few, so each takes all cases.
        # The loopback interface may be the only network; neither NCCL nor Gloo takes it by itself.
        "NCCL_SOCKET_IFNAME": "lo",
        "NCCL_IB_DISABLE": "1",
        "MYDIST_NETWORK_INTERFACES": "lo",
    }
    if (nccl := tree / "site/nvidia/nccl/lib/libnccl.so.2").exists():
        variables["MYDIST_NCCL_LIBRARY"] = str(nccl)  # Otherwise torch's is used.
    if os.geteuid() == 0:  # An installed Open MPI needs these, too.
        variables |= {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
    if (root / "usr/bin/mpirun").exists():
        variables |= {
            "PATH": _before("PATH", root / "usr/bin"),
            "OMPI_MCA_plm": "isolated",  # Otherwise Open MPI needs ssh, even on one machine.
            # Open MPI has parts for networks whose libraries are absent.
            "OMPI_MCA_mca_base_component_show_load_errors": "0",
            # Open MPI looks for its parts below the folder it was configured for.
            "OPAL_PREFIX": str(root / "usr"),
            "OPAL_SYSCONFDIR": str(root / "etc/openmpi"),
            "PMIX_MCA_mca_base_component_path": str(root / _LIBRARY / "pmix2/lib/pmix"),
        }
    return variables


def _before(name: str, *paths: Path) -> str:
    return os.pathsep.join([*map(str, paths), *filter(None, [os.environ.get(name)])])
