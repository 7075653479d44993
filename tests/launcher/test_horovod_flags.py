"""`mydistrun --horovod`: horovodrun's flags and config file, and `import horovod` in the ranks."""

from __future__ import annotations

from pathlib import Path

import pytest
from running_job import Mydistrun

from mydist.job import horovod_path
from mydist.launcher.errors import UsageError
from mydist.launcher.flags import parse_flags
from mydist.launcher.horovod_flags import translated

# What horovodrun takes, and what mydistrun makes of it, by key.
SAME = [
    ("-np 2 -H a:1,b:1 -p 22", {"num-proc": 2, "hosts": "a:1,b:1", "ssh-port": 22}),
    ("-np 2 -hostfile f", {"num-proc": 2, "hostfile": "f"}),
    ("--network-interface lo", {"network-interfaces": ("lo",)}),
    ("--disable-cache", {"cache-capacity": 0}),
    ("--no-stall-check", {"stall-check-warning-time-seconds": 0.0}),
    ("--gloo-timeout-seconds 9 --gloo", {"x": ["MYDIST_TIMEOUT_SECONDS=9"], "gloo": True}),
    ("--log-level FATAL", {"log-level": "error"}),
    ("--cycle-time-ms 3 --autotune --thread-affinity 1 --tcp --binding-args x --verbose",
     {"verbose": True}),
    ("--fusion_threshold_mb=32 -prefix-timestamp",
     {"fusion-threshold-mb": 32.0, "prefix-output-with-timestamp": True}),
]  # fmt: skip


@pytest.mark.parametrize(("given", "expected"), SAME)
def test_horovodruns_flags_become_ours(given: str, expected: dict[str, object]) -> None:
    arguments = ["--horovod", *given.split(), "python", "train.py", "--horovod", "-v"]
    ours, environment = translated(arguments, {"PYTHONPATH": "/mine", "HOROVOD_CYCLE_TIME": "1"})
    parsed = parse_flags(ours)
    assert parsed.command == ("python", "train.py", "--horovod", "-v")
    exported = parsed.values.pop("x")
    assert isinstance(exported, list)
    assert exported[-2:] == ["PYTHONPATH", "HOROVOD_CYCLE_TIME"]
    if exported[:-2]:
        parsed.values["x"] = exported[:-2]
    assert parsed.values == expected
    folder, rest = environment["PYTHONPATH"].split(":")
    assert rest == "/mine" and (Path(folder) / "horovod" / "__init__.py").is_file()


# The flags of horovodrun 0.28.1, with values; but for --jsrun.
ALL = """
-h,--help,-v,--version,-np 2,--num-proc 2,-cb,--check-build,--disable-cache,--start-timeout 3
--network-interfaces lo,--network-interface lo,--output-filename o,--verbose
-p 22,--ssh-port 22,-i k,--ssh-identity-file k,--fusion-threshold-mb 1,--cycle-time-ms 0.5
--cache-capacity 3,--hierarchical-allreduce,--no-hierarchical-allreduce,--hierarchical-allgather
--no-hierarchical-allgather,--torus-allreduce,--no-torus-allreduce,--autotune,--no-autotune
--autotune-log-file f,--autotune-warmup-samples 3,--autotune-steps-per-sample 3
--autotune-bayes-opt-max-samples 3,--autotune-gaussian-process-noise 0.5,--timeline-filename t
--timeline-mark-cycles,--no-timeline-mark-cycles,--no-stall-check,--stall-check
--stall-check-warning-time-seconds 3,--stall-check-shutdown-time-seconds 3,--mpi-threads-disable
--no-mpi-threads-disable,--mpi-args=-x,--tcp,--binding-args b,--num-nccl-streams 3
--thread-affinity 3,--gloo-timeout-seconds 3,--log-level TRACE,--log-with-timestamp
--log-without-timestamp,-prefix-timestamp,--prefix-output-with-timestamp,--log-hide-timestamp
--no-log-hide-timestamp,-H a:1,--hosts a:1,-hostfile h,--hostfile h,--gloo,--mpi
--min-np 1,--min-num-proc 1,--max-np 2,--max-num-proc 2,--slots-per-host 2,--elastic-timeout 9
--reset-limit 3,--blacklist-cooldown-range 1 9,--host-discovery-script ./h.sh
"""


def test_every_flag_of_horovodrun_is_taken() -> None:
    for flag in ALL.strip().replace("\n", ",").split(","):
        parsed = parse_flags(translated(["--horovod", *flag.split(), "python", "t.py"], {})[0])
        assert parsed.command == ("python", "t.py"), flag


def test_ranks_of_an_elastic_job_know_that_it_is_one() -> None:
    given = ["--horovod", "--min-num-proc", "1", "--blacklist-cooldown-range", "2", "9", "true"]
    values = parse_flags(translated(given, {})[0]).values
    assert values["min-np"] == 1
    assert values["blacklist-cooldown-range"] == (2.0, 9.0)
    assert "HOROVOD_ELASTIC=1" in values["x"]  # type: ignore[operator]
    assert values["x"] != parse_flags(translated(["--horovod", "true"], {})[0]).values["x"]


@pytest.mark.parametrize("flag", ["--jsrun"])
def test_what_cannot_be_served_is_said(flag: str) -> None:
    with pytest.raises(UsageError, match=f"--horovod: {flag.split()[0]} .*leave it out"):
        translated(["--horovod", "-np", "2", *flag.split(), "true"], {})


def test_a_path_that_pythonpath_cannot_name_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(horovod_path, "PATH", Path("/opt/my:dist/horovod/path"))
    with pytest.raises(UsageError, match="^--horovod: /opt/my:dist/.* PYTHONPATH cannot name it$"):
        translated(["--horovod", "-np", "2", "true"], {})


def test_without_the_flag_all_stays() -> None:
    arguments, environment = ["-np", "2", "python", "--horovod"], {"A": "1"}
    assert translated(arguments, environment) == (arguments, environment)


def test_the_config_file_is_nested(tmp_path: Path) -> None:
    file = tmp_path / "config.yaml"
    file.write_text(
        "verbose: true\ncontroller: MPI\n"
        "params:\n  fusion_threshold_mb: 32\n  cycle_time_ms: 1\n  hierarchical_allreduce: false\n"
        "timeline:\n  filename: t.json\n  mark_cycles: true\n"
        "stall_check:\n  enabled: false\n  warning_time_seconds: 5\n"
        "logging:\n  level: INFO\n"
    )
    given = ["--horovod", "--config-file", str(file), "--fusion-threshold-mb", "8"]
    values = parse_flags(translated([*given, "true"], {})[0]).values
    values.pop("x")
    assert values == {
        "mpi": True,
        "fusion-threshold-mb": 8.0,
        "hierarchical-allreduce": False,
        "timeline-filename": "t.json",
        "timeline-mark-cycles": True,
        "stall-check-warning-time-seconds": 0.0,
        "log-level": "info",
    }

    chosen = parse_flags(translated([*given, "--gloo", "true"], {})[0]).values
    assert "mpi" not in chosen and chosen["gloo"]
    file.write_text("controller: jsrun\n")
    with pytest.raises(UsageError, match="controller is 'jsrun', expected gloo or mpi"):
        translated([*given, "true"], {})


def test_ranks_import_horovod(mydistrun: Mydistrun) -> None:
    script = mydistrun.script(
        "import os, horovod\n"
        "print('rank', os.environ['HOROVOD_RANK'], horovod.__version__, horovod.__name__)\n"
    )
    job = mydistrun.start("--horovod", "-np", "2", "--cycle-time-ms", "1", "python", script)
    lines = sorted(job.read_until(b"rank", 2))
    assert [line.split(b"rank ")[1] for line in lines] == [
        f"{rank} 0.28.1 mydist.horovod".encode() for rank in range(2)
    ]
    assert job.finish()[0] == 0
