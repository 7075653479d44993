"""The GPU check without a GPU: pieces and packages, words for results, what is run and what not."""

from __future__ import annotations

import importlib.util
import json
import os
import re
import shutil
import subprocess
import sys
import time
import zipfile
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

SCRIPT = Path(__file__).resolve().parents[2] / "scripts" / "gpu_check.py"


@pytest.fixture(scope="module")
def check() -> ModuleType:
    spec = importlib.util.spec_from_file_location("gpu_check", SCRIPT)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["gpu_check"] = module
    spec.loader.exec_module(module)
    return module


def python(code: str) -> list[str]:
    return [sys.executable, "-c", code]


def run(check: Any, results: Path, steps: list[Any], no_gpu: str = "", seconds: float = 60) -> Any:
    return check.run_steps(steps, no_gpu, results, time.monotonic() + seconds)


def test_pieces_become_the_file_they_were(check: Any, tmp_path: Path) -> None:
    whole = bytes(range(256)) * 41
    (tmp_path / "whole").write_bytes(whole)
    subprocess.run(
        ["split", "-b", "900", "-d", "whole", "a.whl.part"], cwd=tmp_path, check=True, timeout=60
    )
    (tmp_path / "whole").unlink()
    (tmp_path / "b.deb").write_bytes(b"")
    assert len(list(tmp_path.glob("a.whl.part*"))) > 10
    assert check.join_pieces(tmp_path) == [tmp_path / "a.whl", tmp_path / "b.deb"]
    assert (tmp_path / "a.whl").read_bytes() == whole


def test_wheels_and_packages_are_unpacked(check: Any, tmp_path: Path) -> None:
    wheel = tmp_path / "one-1.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr("nvidia/nccl/lib/libnccl.so.2", "library")
    folder = tmp_path / "package" / "usr" / "include"
    folder.mkdir(parents=True)
    (folder / "one.h").write_text("header")
    control = tmp_path / "package" / "DEBIAN"
    control.mkdir()
    (control / "control").write_text(
        "Package: one\nVersion: 1\nArchitecture: all\nMaintainer: nobody\nDescription: none\n"
    )
    deb = tmp_path / "one.deb"
    subprocess.run(["dpkg-deb", "-b", str(control.parent), str(deb)], check=True, timeout=60)
    other = tmp_path / "notes.txt"
    other.write_text("no package")
    names = check.unpack([deb, wheel, other], tmp_path / "root", tmp_path / "site")
    assert names == ["one.deb", "one-1.whl"]
    assert (tmp_path / "root/usr/include/one.h").read_text() == "header"
    assert (tmp_path / "site/nvidia/nccl/lib/libnccl.so.2").read_text() == "library"


def test_what_needs_a_gpu_is_skipped_with_the_reason(check: Any, tmp_path: Path) -> None:
    steps = [
        check.Step("build", python("print('built')"), needs_gpu=False),
        check.Step("tests", python("raise SystemExit('must not run')")),
    ]
    built, skipped = run(check, tmp_path, steps, no_gpu="no NVIDIA driver")
    assert (built.verdict, skipped.verdict) == (check.PASSED, check.SKIPPED)
    assert skipped.detail == "no NVIDIA driver"
    assert check.show({}, [built, skipped])


def test_a_failure_is_told_and_the_rest_goes_on(check: Any, tmp_path: Path) -> None:
    steps = [
        check.Step("tests", python("print('lost'); raise SystemExit(3)")),
        check.Step("more", python("print('42 things')"), reads=lambda output: output.strip()),
        check.Step("gone", ["/nowhere/compute-sanitizer"]),
    ]
    failed, passed, gone = run(check, tmp_path, steps)
    assert (failed.verdict, failed.detail) == (check.FAILED, "exit code 3; see 0.log")
    assert (tmp_path / "0.log").read_text() == "lost\n"
    assert (passed.verdict, passed.detail) == (check.PASSED, "42 things")
    assert gone.verdict == check.NOT_RUN and "compute-sanitizer" in gone.detail
    assert check.show({}, [passed])
    assert not check.show({}, [passed, failed])
    assert not check.show({}, [passed, gone])


def test_without_a_build_there_is_nothing_to_run(check: Any, tmp_path: Path) -> None:
    steps = [
        check.Step("build", python("raise SystemExit(1)"), needs_gpu=False),
        check.Step("tests", python("")),
    ]
    _, tests = run(check, tmp_path, steps)
    assert (tests.verdict, tests.detail) == (check.NOT_RUN, "build failed")


def test_time_that_runs_out(check: Any, tmp_path: Path) -> None:
    endless = "import sys, threading; print('begun', flush=True); threading.Event().wait()"
    steps = [check.Step("endless", python(endless)), check.Step("late", python(""))]
    ended, late = run(check, tmp_path, steps, seconds=2)
    assert (ended.verdict, ended.detail) == (check.FAILED, "not over in 2 s; see 0.log")
    assert (tmp_path / "0.log").read_text().startswith("begun\n")
    assert (late.verdict, late.detail) == (check.NOT_RUN, "time ran out")


def test_tests_are_counted(check: Any, tmp_path: Path) -> None:
    report = tmp_path / "tests.xml"
    report.write_text('<testsuite tests="37" failures="1" disabled="0" skipped="6"></testsuite>')
    assert check.count_tests(report) == "30 passed, 1 failed, 6 skipped"


TABLE = """161 tensors, 25,557,032 numbers
                               chunk  blk   copy µs   ours µs     GB/s     GB/s   ratio  host µs
pack                               0    0      70.1      72.0     2900     2800    {ratio}     4.20
pack, close together               0    0      70.1      99.0     2900     2000    0.70     4.20
pack, × 1/8                        0    0      70.1      71.0     2900     2850    0.99     4.20
pack to float16, × 1/8             0    0      70.1      71.0     2900     2850    {scaled}     4.20
"""


@pytest.mark.parametrize(
    ("plain", "scaled", "said"),
    [
        ("0.97", "0.98", "0.97 of the copy rate (pack), target 0.90: met"),
        ("0.97", "0.90", "0.90 of the copy rate (pack to float16, × 1/8), target 0.90: met"),
        ("0.71", "0.90", "0.71 of the copy rate (pack), target 0.90: missed"),
        ("0.97", "0.89", "0.89 of the copy rate (pack to float16, × 1/8), target 0.90: missed"),
    ],
)
def test_the_slowest_of_packing_scaling_casting_is_judged(
    check: Any, plain: str, scaled: str, said: str
) -> None:
    assert check.read_packing(TABLE.format(ratio=plain, scaled=scaled)) == f"G1: {said}"
    with pytest.raises(ValueError, match="no row 'pack'"):
        check.read_packing("bench_convert: skipped")


def test_every_process_that_was_checked_counts(check: Any, tmp_path: Path) -> None:
    clean, dirty = "===== ERROR SUMMARY: 0 errors", "===== RACECHECK SUMMARY: 2 hazards displayed"
    steps = [
        check.Step("none", python("print('no GPU was used')"), reads=check.read_sanitizer),
        check.Step("clean", python(f"print('{clean}\\n{clean}')"), reads=check.read_sanitizer),
        check.Step("dirty", python(f"print('{clean}\\n{dirty}')"), reads=check.read_sanitizer),
    ]
    none, passed, failed = run(check, tmp_path, steps)
    assert (none.verdict, none.detail) == (
        check.FAILED,
        "ValueError: 0 errors in 0 processes; see 0.log",
    )
    assert (passed.verdict, passed.detail) == (check.PASSED, "no error in 2 processes")
    assert (failed.verdict, failed.detail) == (
        check.FAILED,
        "ValueError: 2 errors in 2 processes; see 2.log",
    )


def test_an_nccl_that_was_brought_is_the_one_that_is_used(check: Any, tmp_path: Path) -> None:
    def nccl_of_python() -> str | None:
        steps = check.plan(tmp_path, True, tmp_path / "root", tmp_path / "site")
        (step,) = [step for step in steps if step.name == "ranks that share the GPU"]
        return step.environment.get("MYDIST_NCCL_LIBRARY")

    assert nccl_of_python() is None
    library = tmp_path / "site" / "nvidia" / "nccl" / "lib" / "libnccl.so.2"
    library.parent.mkdir(parents=True)
    library.write_text("library")
    assert nccl_of_python() == str(library)


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
    check: Any, tmp_path: Path
) -> None:
    root = tmp_path / "root"
    if not installed_open_mpi(root):
        pytest.skip("Open MPI's packages are not installed")
    assert not (root / "usr/bin/mpirun").exists()
    check.name_as_installed(root)
    environment = {**os.environ, **check.environments(root, tmp_path / "site")[0]}
    (tmp_path / "CMakeLists.txt").write_text(FIND_MPI)
    configure = ["cmake", "-S", str(tmp_path), "-B", str(tmp_path / "build")]
    configure.append(f"-DCMAKE_PREFIX_PATH={root / 'usr'}")
    told = subprocess.run(
        configure, env=environment, capture_output=True, text=True, check=True, timeout=120
    ).stdout
    found = re.findall(r"found (/.+)", told)
    assert len(found) >= 4, told
    assert all(path.startswith(str(root)) for path in found), found
    command = ["mpirun", "--oversubscribe", "-np", "2", "sh", "-c", "echo $OMPI_COMM_WORLD_RANK"]
    ran = subprocess.run(
        command, env=environment, capture_output=True, text=True, check=True, timeout=60
    )
    assert sorted(ran.stdout.split()) == ["0", "1"]
    steps = check.build(environment, False, root)
    assert "-DMYDIST_WITH_MPI=ON" in steps[0].command


def test_what_was_not_brought_may_be_missing(check: Any, tmp_path: Path) -> None:
    (configure, *_) = check.build({}, False, tmp_path)
    assert not [word for word in configure.command if word.startswith("-DMYDIST_WITH_MPI")]
    library = tmp_path / "usr/lib/x86_64-linux-gnu/libgloo.so.0"
    library.parent.mkdir(parents=True)
    library.write_text("library")
    (configure, *_) = check.build({}, False, tmp_path)
    assert "-DMYDIST_WITH_GLOO=ON" in configure.command


def test_what_a_program_says_of_itself_is_a_line(check: Any) -> None:
    assert check.first_line(python("print('release 13.0, V13'); print('more')")) == (
        "release 13.0, V13"
    )
    assert check.first_line(python("print('a b c')"), r"b.*") == "b c"
    assert check.first_line(python("print('x'); raise SystemExit(1)")) == ""
    assert check.first_line(["/nowhere/nvcc"]) == ""


def test_the_help_names_what_has_to_be_brought() -> None:
    command = [sys.executable, str(SCRIPT), "--help"]
    told = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True).stdout
    for name in (
        "python3-dev",
        "libgtest-dev",
        "libgloo-dev",
        "openmpi-bin",
        "nvidia-nccl-cu13",
        "--minutes",
    ):
        assert name in told


def test_the_package_is_put_together_as_installed(check: Any, tmp_path: Path) -> None:
    check.copy_package(SCRIPT.parents[1], tmp_path)
    assert (tmp_path / "mydist" / "optimizer.py").exists()
    assert (tmp_path / "mydist" / "launcher" / "check_build.py").exists()
    assert not list(tmp_path.rglob("*.so"))


def test_a_step_has_a_limit_of_its_own(check: Any, tmp_path: Path) -> None:
    wait = "import threading; threading.Event().wait()"
    child = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {wait!r}])"
    steps = [check.Step("endless", python(child), limit_s=1), check.Step("next", python(""))]
    start = time.monotonic()
    ended, after = run(check, tmp_path, steps)
    assert time.monotonic() - start < 30  # What it had started has let go of its output.
    assert (ended.verdict, ended.detail) == (check.FAILED, "not over in 1 s; see 0.log")
    assert after.verdict == check.PASSED


def test_a_failure_says_what_could_be_read(check: Any, tmp_path: Path) -> None:
    missing = tmp_path / "missing.xml"
    steps = [
        check.Step("counted", python("raise SystemExit(1)"), reads=lambda _: "1 passed, 1 failed"),
        check.Step("gone", python("raise SystemExit(1)"), reads=lambda _: missing.read_text()),
        check.Step("empty", python(""), reads=lambda _: missing.read_text()),
    ]
    counted, gone, empty = run(check, tmp_path, steps)
    assert counted.detail == "exit code 1; 1 passed, 1 failed; see 0.log"
    assert gone.detail == "exit code 1; see 1.log"
    assert empty.verdict == check.FAILED and "missing.xml" in empty.detail


def test_verdicts_of_the_benchmarks_are_told_in_a_line(check: Any, tmp_path: Path) -> None:
    rows = [
        {"what": "slower by", "unit": "%", "measured": 0.5, "verdict": "met", "reason": ""},
        {"what": "launches", "unit": "", "measured": 5.0, "verdict": "missed", "reason": ""},
        {"what": "waits", "unit": "", "measured": None, "verdict": "not measured", "reason": "why"},
    ]
    document = {"verdicts": [{**row, "interval": None} for row in rows]}
    document["verdicts"][0]["interval"] = [-0.25, 0.75]
    path = tmp_path / "G.json"
    path.write_text(json.dumps(document))
    assert check.read_verdicts(path) == (
        "slower by: 0.5 % (-0.25 to 0.75), met; launches: 5, missed; waits: -, not measured (why)"
    )


def test_every_row_of_the_gpu_table_has_a_step_or_a_reason(
    check: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(SCRIPT.parents[1]))
    from benchmarks.targets import GPU_TARGETS

    assert {target.row for target in GPU_TARGETS} == set(check.BENCHMARKS)
    steps = check.plan(tmp_path, True, tmp_path, tmp_path)
    names = [step.name for step in steps]
    assert {f"benchmark {row}" for row in check.BENCHMARKS} <= set(names)
    assert all(step.limit_s <= 240 for step in steps if step.name != "build")
    # What has no figure comes last, where time may run out.
    assert names.index("benchmark G6") < names.index("compute-sanitizer memcheck, test_gpu")


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("", "1 passed, 0 failed: met"),
        ("<failure/>", "0 passed, 1 failed: missed"),
        ('<skipped message="why"/>', "0 passed, 0 failed: not measured: ['why']"),
    ],
)
def test_ranks_that_share_a_gpu_over_nccl_are_row_g7(
    check: Any, tmp_path: Path, content: str, said: str
) -> None:
    report = tmp_path / "report.xml"
    one = f'<testcase name="test_every_collective_is_right[NCCL-float32]">{content}</testcase>'
    other = '<testcase name="test_other[GPU to GPU]"><failure/></testcase>'
    suite = f'<testsuite tests="2" failures="1" skipped="0">{one}{other}</testsuite>'
    report.write_text(f"<testsuites>{suite}</testsuites>")
    assert check.read_shared_tests(report) == f"1 passed, 1 failed, 0 skipped; G7: {said}"


def test_without_nccl_on_the_way_row_g7_is_missed(check: Any, tmp_path: Path) -> None:
    """All was right, but over host memory."""
    path = "test_the_path_is_the_one_that_was_asked_for[NCCL between hosts]"
    report = tmp_path / "report.xml"
    report.write_text(
        '<testsuites><testsuite tests="2" failures="1" skipped="0">'
        '<testcase name="test_every_collective_is_right[NCCL between hosts-torch.int8]"/>'
        f'<testcase name="{path}"><failure/></testcase></testsuite></testsuites>'
    )
    assert check.read_shared_tests(report).endswith("G7: 1 passed, 1 failed: missed")


def test_results_of_pytest_are_counted(check: Any, tmp_path: Path) -> None:
    report = tmp_path / "report.xml"
    suite = '<testsuite tests="6" failures="0" errors="1" skipped="3"/>'
    report.write_text(f"<testsuites>{suite}</testsuites>")
    assert check.count_tests(report) == "2 passed, 1 failed, 3 skipped"
