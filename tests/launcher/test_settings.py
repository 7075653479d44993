"""Flags, environment, config file and defaults become one JobSpec, in the right precedence."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest

from mydist.job import rank_record
from mydist.launcher import rank_ends, server_addresses
from mydist.launcher.environment import (
    BUILD_VARIABLES,
    RESERVED_VARIABLES,
    Endpoints,
    identity_environment,
    inherited_environment,
    server_environment,
    worker_environment,
)
from mydist.launcher.errors import UsageError
from mydist.launcher.failure_record import TAG_VARIABLE
from mydist.launcher.flags import FLAGS, REMOVED_FLAGS, Flag, format_help, parse_flags
from mydist.launcher.hosts import Host
from mydist.launcher.job_spec import JobSpec
from mydist.launcher.placement import ServerPlacement, place_ranks
from mydist.launcher.settings import (
    SETTINGS,
    check_setting,
    default_num_proc,
    make_job_spec,
)

ROOT = Path(__file__).resolve().parents[2]


def make(*arguments: str, env: dict[str, str] | None = None) -> JobSpec:
    parsed = parse_flags([*arguments, "train.py", "--lr", "-np", "9"])
    return make_job_spec(parsed.values, parsed.command, env or {})


def test_ranks_inherit_every_variable_that_has_a_flag() -> None:
    variables = {flag.variable: "x" for flag in FLAGS if flag.variable is not None}
    assert len(variables) > 10
    assert inherited_environment(variables) == variables
    left_by_another_job = {"MYDIST_CROSS_RANK": "1", "MYDIST_LOCAL_SIZE": "2", "PMI_RANK": "0"}
    assert inherited_environment(left_by_another_job) == {}


def test_command_is_taken_verbatim() -> None:
    spec = make("-np", "2")
    assert spec.command == ("train.py", "--lr", "-np", "9")
    assert spec.num_proc == 2
    assert spec.hosts == (Host("localhost", 2),)


def test_double_dash_ends_the_flags() -> None:
    assert parse_flags(["-np", "2", "--", "--odd", "x"]).command == ("--odd", "x")


def test_module_ends_the_flags() -> None:
    parsed = parse_flags(["-np", "1", "-m", "pkg.mod", "--verbose"])
    assert (parsed.values["m"], parsed.command) == ("pkg.mod", ("--verbose",))
    assert "verbose" not in parsed.values


@pytest.mark.parametrize("flag", FLAGS, ids=lambda flag: flag.key)
def test_both_spellings_of_every_flag(flag: Flag) -> None:
    samples = {"num-proc": "3", "ssh-port": "22", "start-timeout": "5", "log-level": "info"}
    samples |= {"fusion-threshold-mb": "1", "cache-capacity": "2", "simd": "avx2"}
    samples |= {"cross-memory-attach": "off"}
    for name in flag.names:
        value = [] if flag.convert is None else [samples.get(flag.key, "7")]
        dashed = parse_flags([name, *value]).values
        if name.startswith("--"):
            spelled = "--" + name[2:].replace("-", "_")
            assert parse_flags([spelled, *value]).values == dashed
            if value:
                assert parse_flags([f"{spelled}={value[0]}"]).values == dashed
        assert list(dashed) == [flag.key]


@pytest.mark.parametrize("flag", REMOVED_FLAGS, ids=lambda flag: flag.key)
def test_a_removed_flag_is_one_warning(flag: Flag, tmp_path: Path) -> None:
    pytest.importorskip("yaml")
    name = flag.names[0]
    spec = make(name, "on", name.replace("-", "_").replace("__", "--") + "=on")
    assert spec.warnings == (f"{name} has been removed: {flag.help}",)
    assert spec.tunables == {}
    assert spec.command[0] == "train.py"
    file = tmp_path / "job.yaml"
    file.write_text(f"{flag.key}: on\nnum-proc: 3\n")
    assert make("--config-file", str(file)).warnings == spec.warnings
    assert name not in format_help()
    assert make("-np", "1").warnings == ()


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("MYDIST_WANDB_KEY", "MYDIST_WANDB_KEY is set, but mydist has no such setting"),
        (
            "MYDIST_CACHE_CAPACTY",
            "MYDIST_CACHE_CAPACTY is set, but mydist has no such setting; "
            "did you mean MYDIST_CACHE_CAPACITY?",
        ),
        (
            "MYDIST_GPU_IPC",
            "MYDIST_GPU_IPC is set but has been removed: tensors on GPUs are reduced over NCCL or "
            "through host memory",
        ),
    ],
)
def test_a_variable_that_is_no_setting_is_one_warning(name: str, text: str) -> None:
    assert make("-np", "1", env={name: "1"}).warnings == (text,)
    assert make("-np", "1", "-x", f"{name}=1").warnings == (text,)
    # What an extension adds is known to the ranks alone.
    assert make("-np", "1", env={name: "1", "MYDIST_PLUGINS": "mine.so"}).warnings == ()
    assert make("-np", "1", "--plugins", "mine.so", env={name: "1"}).warnings == ()


def test_settings_and_variables_of_launcher_and_build_cause_no_warning() -> None:
    values = {"MYDIST_SIMD": "avx2", "OTHER": "1"}
    values |= dict.fromkeys((*RESERVED_VARIABLES, *BUILD_VARIABLES), "1")
    assert make("-np", "1", env=values).warnings == ()


def listed_in_the_core(name: str) -> list[str]:
    """The variables in an array of csrc/config/config.cc."""
    text = (ROOT / "csrc" / "config" / "config.cc").read_text(encoding="utf-8")
    return re.findall(r'"(MYDIST_\w+)"', text.partition(f"{name} = {{")[2].partition("}")[0])


def test_the_variables_of_the_build_are_those_that_its_files_read() -> None:
    cmake = [ROOT / "CMakeLists.txt", *(ROOT / "cmake").glob("*.cmake")]
    scripts = [ROOT / "setup.py", ROOT / "Makefile"]
    scripts += [path for path in (ROOT / "scripts").iterdir() if path.suffix in (".py", ".sh")]
    options = r"(?:^option\(|^ *set\((?=\S+ .*CACHE ))(MYDIST_\w+)(\$\{_backend\})?"
    reads = r"\$\{(MYDIST_\w+):?[-?]|environ(?:\.get\(|\[)f?\"(MYDIST_\w+)\""
    found: set[str] = set()
    for path in cmake:
        for name, backend in re.findall(options, path.read_text(), re.MULTILINE):
            found |= {name + kind for kind in ("MPI", "GLOO", "CUDA")} if backend else {name}
    for path in scripts:
        for names in re.findall(reads, path.read_text()):
            found.update(name for name in names if name)
    assert {name for name in found if name not in SETTINGS} == set(BUILD_VARIABLES)
    assert listed_in_the_core("kBuildVariables") == list(BUILD_VARIABLES)


def test_help_names_every_flag() -> None:
    text = format_help()
    for flag in FLAGS:
        assert all(name in text.replace("[no-]", "") for name in flag.names)


def test_only_given_tunables_are_set() -> None:
    assert make("-np", "1").tunables == {}
    spec = make("--fusion-threshold-mb", "8", "--no-hierarchical-allreduce", "--no-shared-memory",
                "--bucket-size-mb", "0.5", "--timeline_filename",
                "t.json", "--stall-check-warning-time-seconds", "2.5", "--timeline-mark-cycles",
                "--flight-recorder-dir", "recorder", "--stall-stack", "--check-finite",
                "--network-interfaces", "eth0,eth1")  # fmt: skip
    assert spec.tunables == {
        "MYDIST_FUSION_THRESHOLD_MB": "8",
        "MYDIST_BUCKET_SIZE_MB": "0.5",
        "MYDIST_HIERARCHICAL_ALLREDUCE": "0",
        "MYDIST_SHARED_MEMORY": "0",
        "MYDIST_TIMELINE": os.path.abspath("t.json"),
        "MYDIST_TIMELINE_MARK_CYCLES": "1",
        "MYDIST_FLIGHT_RECORDER_DIR": os.path.abspath("recorder"),
        "MYDIST_STALL_STACK": "1",
        "MYDIST_CHECK_FINITE": "1",
        "MYDIST_STALL_WARNING_SECONDS": "2.5",
        "MYDIST_NETWORK_INTERFACES": "eth0,eth1",
    }
    assert spec.network_interfaces == ("eth0", "eth1")


def test_precedence(tmp_path: Path) -> None:
    pytest.importorskip("yaml")
    file = tmp_path / "job.yaml"
    file.write_text("cache_capacity: 10\nlog-level: debug\nfusion-threshold-mb: 4\nnum-proc: 3\n"
                    "mpi: true\n")  # fmt: skip
    env = {"MYDIST_LOG_LEVEL": "info", "MYDIST_FUSION_THRESHOLD_MB": "5"}
    spec = make("--config-file", str(file), "--fusion-threshold-mb", "6", env=env)
    # flag beats environment, environment (which ranks inherit) beats file, file beats default
    assert spec.tunables == {"MYDIST_CACHE_CAPACITY": "10", "MYDIST_FUSION_THRESHOLD_MB": "6"}
    assert (spec.num_proc, spec.controller) == (3, "mpi")
    assert make("--config-file", str(file), "--gloo").controller == "gloo"
    assert make("--config-file", str(file), env={"MYDIST_CONTROLLER": "auto"}).controller is None


@pytest.mark.parametrize("variable", ["MYDIST_TIMELINE", "MYDIST_FLIGHT_RECORDER_DIR"])
def test_a_path_of_the_environment_becomes_absolute(variable: str) -> None:
    spec = make(env={variable: "x/t.json"})
    assert spec.tunables[variable] == os.path.abspath("x/t.json")


def documented_settings() -> dict[str, str]:
    """Variable → what is allowed, of every row of docs/configuration.md that a user may set."""
    page = Path(__file__).parents[2] / "docs" / "configuration.md"
    rows = [line.split("|") for line in page.read_text(encoding="utf-8").splitlines()]
    allowed = {row[1].strip(" `"): row[4].strip() for row in rows if len(row) == 7}
    known = {name: text for name, text in allowed.items() if name.startswith("MYDIST_")}
    return {name: text for name, text in known.items() if name not in RESERVED_VARIABLES}


def test_the_page_names_the_flags_of_every_setting() -> None:
    page = Path(__file__).parents[2] / "docs" / "configuration.md"
    rows = [line.split("|") for line in page.read_text(encoding="utf-8").splitlines()]
    cells = {row[1].strip(" `"): row[2] for row in rows if row[1:] and "MYDIST_" in row[1]}
    named = {
        v: {n.replace("[no-]", "") for n in re.findall(r"`(--[^`]+)`", cell)}
        for v, cell in cells.items()
    }
    flags = {name for flag in FLAGS for name in flag.names}
    assert set().union(*named.values()) <= flags
    for flag in FLAGS:
        assert flag.variable is None or set(flag.names) & named[flag.variable], flag.names


def test_the_core_and_the_launcher_reserve_the_same_variables() -> None:
    reserved = {name for name in RESERVED_VARIABLES if name.startswith("MYDIST_")}
    rank = place_ranks((Host("a", 1),), 1)[0]
    given = {*identity_environment(rank, Endpoints("a", 1, "a:2", "job")), TAG_VARIABLE}
    given |= {"MYDIST_JOB_KEY_FD", rank_ends.VARIABLE, rank_record._VARIABLE}
    given |= server_environment(ServerPlacement(0, Host("a", 1)), "b", "job").keys()
    given |= worker_environment(0, Host("a", 1), 0, Endpoints("a", 1, "a:2", "job")).keys()
    given |= {server_addresses.FD_VARIABLE, server_addresses.VARIABLE}
    assert reserved == {name for name in given if name.startswith("MYDIST_")}
    # For the core the host is a setting.
    assert set(listed_in_the_core("kLauncherVariables")) == reserved - {"MYDIST_HOST_ID"}


def test_what_a_launcher_around_this_one_has_set_reaches_no_rank() -> None:
    assert inherited_environment(dict.fromkeys(RESERVED_VARIABLES, "stale")) == {}


def test_what_an_mpirun_around_this_one_has_set_reaches_no_rank() -> None:
    by_user = {"OMPI_MCA_btl": "self,tcp", "OMPI_ALLOW_RUN_AS_ROOT": "1"}
    by_mpirun = {"OMPI_MCA_orte_hnp_uri": "1.0;tcp://a:1", "OMPI_MCA_ess_base_jobid": "1"}
    by_mpirun |= {"OMPI_MCA_osc_sm_backing_directory": "/x", "OMPI_COMMAND": "a", "PMIX_ID": "1"}
    ranks = {"OMPI_COMM_WORLD_RANK": "0", "OMPI_COMM_WORLD_SIZE": "2"}
    assert inherited_environment({**by_user, **by_mpirun, **ranks}) == by_user
    chosen = {"OMPI_MCA_orte_tmpdir_base": "/of/the/user"}
    assert inherited_environment(chosen) == chosen


def test_mydistrun_allows_what_the_page_says_of_every_setting() -> None:
    """The core compares its own table with the page: documentation_test.cc."""
    told = {}
    for variable in SETTINGS:
        # No setting takes it.
        with pytest.raises(UsageError, match=f"^{variable}: got ") as refused:
            check_setting(variable, "/" * 5000 + ":", variable, False)
        told[variable] = str(refused.value).partition(", expected ")[2].replace(" of seconds", "")
    # Without an extension there are no other rows.
    added = re.compile(r", (\w+) or the name of an extension's \w+$")
    allowed = {name: added.sub(r" or \1", text) for name, text in documented_settings().items()}
    assert told == allowed


@pytest.mark.parametrize("odd", ["{} ", " {}", "{}\n", "+{}", "{}_0", "{}\u0663", "0x{}"])
def test_numbers_are_refused_as_the_ranks_refuse_them(odd: str) -> None:
    numbers = [name for name, text in documented_settings().items() if "number" in text]
    integers = [name for name, text in documented_settings().items() if "integer" in text]
    assert len(numbers) > 4 and len(integers) > 3
    for variable in numbers + integers:
        check_setting(variable, "4", variable, False)
        with pytest.raises(UsageError, match=f"^{variable}: got "):
            check_setting(variable, odd.format(4), variable, False)
    for variable in numbers:
        for text in ("2.5", "2.", "2e0", "2e-1"):
            check_setting(variable, text, variable, False)


def test_an_extension_may_add_rows(tmp_path: Path) -> None:
    mine = tmp_path / "mine.so"
    mine.touch()
    env = {"MYDIST_PLUGINS": str(mine), "MYDIST_ALGORITHM": "mine", "MYDIST_MINE": "any thing"}
    assert make(env=env).tunables == {}
    assert make("--plugins", str(mine), "--algorithm", "mine").tunables["MYDIST_ALGORITHM"]


def test_slots_give_the_size_without_np() -> None:
    assert make("-H", "a:2,b:3").num_proc == 5


def test_gpus_count_when_there_is_nvidia_smi(tmp_path: Path) -> None:
    program = tmp_path / "nvidia-smi"
    program.write_text("#!/bin/sh\necho 'GPU 0: A'\necho 'GPU 1: B'\necho 'GPU 2: C'\n")
    program.chmod(0o755)
    assert default_num_proc({"PATH": str(tmp_path)}) == 3
    program.write_text("#!/bin/sh\necho 'no devices'; exit 9\n")
    assert default_num_proc({"PATH": str(tmp_path)}) == len(os.sched_getaffinity(0))


def test_exported_variables() -> None:
    spec = make("-x", "A=1=2", "-x", "B", env={"B": "b"})
    assert spec.exported == {"A": "1=2", "B": None}
