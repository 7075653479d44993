"""Servers of a job: where they run, and that they start before its ranks and end after them."""

from __future__ import annotations

import os
import re
import signal
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import server_stand_in
from running_job import Mydistrun, numbers, wait_gone

from mydist.launcher import check_build, stop_sequence
from mydist.launcher.children import children_of
from mydist.launcher.endpoints import listening_address
from mydist.launcher.errors import LaunchError
from mydist.launcher.flags import parse_flags
from mydist.launcher.hosts import Host
from mydist.launcher.job import run_job
from mydist.launcher.job_spec import JobSpec
from mydist.launcher.report import ChildEnd, exit_code, find_cause, format_failure
from mydist.launcher.server_addresses import ServerAddress, join_addresses, parse_address
from mydist.launcher.settings import make_job_spec

A, B = Host("a", 2), Host("b", 2)
# Ends server 0, whose socket is named by its pid, by the signal of the argument; prints how that
# is told, and waits.
ENDS_A_SERVER = """
import os, re, signal, sys, time
pid = int(re.search(r"pid-([0-9]+)", os.environ["MYDIST_SERVER_ADDRESSES"])[1])
if os.environ["MYDIST_RANK"] == "0":
    os.kill(pid, int(sys.argv[1]))
    fd, entry = int(os.environ["MYDIST_JOB_ENDS_FD"]), int(os.environ["MYDIST_SIZE"])
    while not (told := os.pread(fd, 2, 2 * entry)).strip(b"\\0"):
        time.sleep(0.01)
    print("told", *told, flush=True)
signal.pause()
"""


def make(*arguments: str, env: dict[str, str] | None = None) -> JobSpec:
    parsed = parse_flags([*arguments, "train.py"])
    return make_job_spec(parsed.values, parsed.command, env or {})


@pytest.fixture
def installed(mydistrun: Mydistrun, tmp_path: Path) -> Mydistrun:
    """mydistrun of an installation whose server program is the stand-in."""
    place = server_stand_in.install(tmp_path)
    mydistrun.env["PYTHONPATH"] = f"{place}:{mydistrun.env.get('PYTHONPATH', '')}"
    return mydistrun


def events(run: Mydistrun) -> list[str]:
    return (run.directory / "events").read_text().splitlines()


def placed(*arguments: str) -> list[str]:
    return [server.host.name for server in children_of(make(*arguments)).servers]


def test_servers_are_spread_over_the_hosts_in_turn() -> None:
    assert placed("-np", "2", "--servers", "2") == ["localhost", "localhost"]
    # A host without ranks is none of the job.
    assert placed("-np", "3", "-H", "a:2,b:2,c:2", "--servers", "3") == ["a", "b", "a"]
    named = ["-H", "a:2,b:2", "--server-hosts", "[fe80::1],b"]
    assert placed(*named, "--servers", "3") == ["fe80::1", "b", "fe80::1"]
    assert placed(*named) == ["fe80::1", "b"]
    assert children_of(make(*named)).servers[1].host == B


def test_servers_leave_the_ranks_as_they_are() -> None:
    without, with_them = (children_of(make("-H", "a:2,b:2", *more)) for more in
                          ([], ["--servers", "3"]))  # fmt: skip
    assert with_them.ranks == without.ranks
    children = with_them
    assert (list(children.of_ranks), list(children.of_servers)) == ([0, 1, 2, 3], [4, 5, 6])
    assert children.by_host(children.everyone) == {A: [0, 1, 4, 6], B: [2, 3, 5]}
    assert [children.name(child) for child in (3, 5)] == ["rank 3", "server 1"]
    assert [children.mark(child) for child in (3, 5)] == ["3", "s1"]


@pytest.mark.parametrize(
    ("arguments", "count"),
    [
        ([], 0),
        (["--servers", "2"], 2),
        (["--server-hosts", "a,b"], 2),
        (["--server-hosts", "a,b", "--servers", "5"], 5),
        (["--mpi"], 0),
    ],
)
def test_flags_alone_start_servers(arguments: list[str], count: int) -> None:
    """The variable is for threads of the ranks."""
    spec = make("-np", "1", *arguments, env={"MYDIST_SERVERS": "3"})
    assert (spec.servers, spec.tunables) == (count, {})


def test_addresses() -> None:
    plain = parse_address(b"0 127.0.0.1 4000 mydist-1", 0)
    assert plain == ServerAddress(0, "127.0.0.1", 4000, "mydist-1")
    texts = [plain, parse_address(b"2 fe80::1%eth0 65535", 2), parse_address(b"1 a.b 1 ", 1)]
    expected = "0=127.0.0.1:4000/mydist-1,1=a.b:1/,2=[fe80::1%eth0]:65535/"
    assert join_addresses(texts) == expected


@pytest.mark.parametrize(
    "line",
    [b"", b"1 a 4000 x", b"0 a 0 x", b"0 a 65536 x", b"0 a,b 1 x", b"0 a 1 x,y", b"0 a 1 x y",
     b"0 a -1 x", b"0 a 1 \xff", b"0  1 x"],
)  # fmt: skip
def test_a_line_that_is_no_address_is_refused(line: bytes) -> None:
    with pytest.raises(ValueError, match="^'0 HOST PORT LOCAL'"):
        parse_address(line, 0)


def test_a_remote_server_listens_where_its_host_is_reached() -> None:
    there = {"lo": "127.0.0.1", "data0": "10.0.0.2"}
    hello = {"ssh_connection": "10.9.0.1 40000 10.9.0.2 22", "interfaces": there}
    assert listening_address("b", hello, ()) == "10.9.0.2"
    assert listening_address("b", hello, ("ib0", "data0")) == "10.0.0.2"
    assert listening_address("b", {}, ()) == "b"
    with pytest.raises(LaunchError, match="host 'b' has no such interface .* it has lo, data0$"):
        listening_address("b", hello, ("ib0",))


def end(child: int, status: int, **more: object) -> ChildEnd:
    name = f"server {child - 2}" if child >= 2 else ""
    return ChildEnd(child, "h1", 100 + child, status, 1.25, name, **more)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("of_server", "code", "words"),
    [
        (end(2, 0, early=True), 1, "exited with code 0 after 1.2 s, while the job still needed it"),
        (end(2, 3, early=True), 3, "exited with code 3 after 1.2 s"),
        (end(2, -9, early=True), 137, "was killed by SIGKILL (signal 9) after 1.2 s"),
        (end(2, 5), 5, "exited with code 5 after 1.2 s"),
        (end(2, -9, overdue=True), 137,
         "was killed by mydistrun, because SIGTERM did not end it, after 1.2 s"),
        (end(2, 1, lost="ssh exited with 255"), 1, "was lost: ssh exited with 255 after 1.2 s"),
    ],
)  # fmt: skip
def test_the_report_names_a_server(of_server: ChildEnd, code: int, words: str) -> None:
    ends = [of_server, end(0, -15, stopped=True), end(3, 0)]
    cause = find_cause(ends, {})
    assert cause == of_server
    assert exit_code(cause, ends) == code
    assert format_failure(cause, ends, {2: ["no memory"]}, {}).splitlines() == [
        f"mydistrun: server 0 on host h1 (pid 102) {words}",
        "  last lines of its error output:",
        "    | no memory",
        "  stopped by mydistrun: rank 0",
    ]


def test_a_server_that_fails_after_a_rank_is_named_after_it() -> None:
    ends = [end(0, 4), end(1, 0), end(2, 5)]
    cause = find_cause(ends, {})
    assert cause == ends[0]
    assert format_failure(cause, ends, {}, {}).endswith(
        "  then server 0 on host h1 (pid 102) exited with code 5"
    )


def test_servers_start_before_the_ranks_and_end_after_them(installed: Mydistrun) -> None:
    script = installed.script(
        "import os\n"
        "open('events', 'a').write('a rank runs\\n')\n"
        "print(os.environ['MYDIST_SERVER_ADDRESSES'], os.environ['MYDIST_SIZE'],\n"
        "      os.environ['MYDIST_JOB_ID'])\n"
    )
    arguments = ["-np", "2", "--servers", "2", "--output-filename", "logs", "--verbose"]
    code, out, err = installed.run(*arguments, script)
    assert code == 0, err
    happened = events(installed)
    assert sorted(happened[:2]) == ["server 0 starts", "server 1 starts"]
    assert happened[2:4] == ["a rank runs"] * 2
    assert sorted(happened[4:]) == ["server 0 ends", "server 1 ends"]
    shown = sorted(out.decode().splitlines())
    pids = [int(pid) for pid in re.findall(r"pid-([0-9]+)", shown[0])]
    addresses = ",".join(f"{n}=127.0.0.1:400{n}/pid-{pids[n]}" for n in (0, 1))
    job_id = shown[0].split()[-1]
    ranks = [f"[{rank}]<stdout>:{addresses} 2 {job_id}" for rank in (0, 1)]
    servers = [f"[s{n}]<stdout>:32 {job_id} localhost None" for n in (0, 1)]
    assert shown == ranks + servers
    written = installed.directory / "logs" / "server.1" / "stdout"
    assert written.read_text() == f"32 {job_id} localhost None\n"
    assert f"mydistrun: server 1 on localhost: pid {pids[1]}\n" in err


def test_a_server_that_leaves_early_fails_the_job(installed: Mydistrun) -> None:
    script = installed.script(ENDS_A_SERVER)
    command = [script, str(int(signal.SIGTERM))]
    code, out, err = installed.run("-np", "2", "--servers", "2", *command)
    assert code == 1, err
    assert b"[0]<stdout>:told 1 0\n" in out
    first, *rest = err.splitlines()
    assert re.fullmatch(
        r"mydistrun: server 0 on host localhost \(pid [0-9]+\) exited with code 0 after .* s, "
        "while the job still needed it",
        first,
    )
    assert rest == [
        "  it printed nothing to its error output",
        "  stopped by mydistrun: ranks 0, 1",
    ]
    assert events(installed)[-1] == "server 1 ends"


@pytest.mark.parametrize(
    ("mode", "flags", "code", "lines"),
    [
        ("fails", [], 1, [
            r"\[s0\]<stderr>:no room for tables",
            r"mydistrun: server 0 on host localhost \(pid \d+\) exited with code 1 after .* s",
            "  last lines of its error output:",
            r"    \| no room for tables",
        ]),
        ("is silent", ["--start-timeout", "0.3"], 1, [
            r"mydistrun: server 0 on host localhost \(pid \d+\) did not report an address "
            r"within 0.3 s \(--start-timeout\)",
        ]),
        ("mumbles", [], 1, [
            r"mydistrun: server 0 on host localhost \(pid \d+\) reported 'hello', "
            "expected '0 HOST PORT LOCAL'",
        ]),
        ("ends badly", [], 5, [
            r"mydistrun: server 0 on host localhost \(pid \d+\) exited with code 5 after .* s",
            "  it printed nothing to its error output",
        ]),
    ],
)  # fmt: skip
def test_a_server_that_fails(
    installed: Mydistrun, mode: str, flags: list[str], code: int, lines: list[str]
) -> None:
    installed.env["STANDIN"] = mode
    got, _, err = installed.run("-np", "1", "--servers", "1", *flags, "touch", "ran")
    assert got == code, err
    assert len(err.splitlines()) == len(lines), err
    for line, pattern in zip(err.splitlines(), lines, strict=True):
        assert re.fullmatch(pattern, line), line
    assert (installed.directory / "ran").exists() == (mode == "ends badly")


def test_a_server_that_does_not_end_is_killed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    package = server_stand_in.install(tmp_path) / "mydist"
    library: Callable[[], Path] = lambda: package / "lib" / "libmydist.so"  # noqa: E731
    monkeypatch.setattr(check_build, "library_path", library)
    steps = ((0.0, signal.SIGTERM), (0.1, signal.SIGKILL))
    monkeypatch.setattr(stop_sequence, "AFTER_RANKS", steps)
    monkeypatch.chdir(tmp_path)
    spec = JobSpec(("true",), 1, (Host("localhost", 1),), servers=1)
    assert run_job(spec, {**os.environ, "STANDIN": "stays"}) == 137
    assert " was killed by mydistrun, because SIGTERM did not end it, " in capfd.readouterr().err


@pytest.mark.parametrize("where", ["localhost", "127.0.0.2"])
def test_a_missing_program_is_one_line(
    mydistrun: Mydistrun, fake_ssh: Path, tmp_path: Path, where: str
) -> None:
    place = server_stand_in.install(tmp_path, has_program=False)
    mydistrun.env["PYTHONPATH"] = f"{place}:{mydistrun.env.get('PYTHONPATH', '')}"
    code, out, err = mydistrun.run("--ssh-local", "-np", "1", "--server-hosts", where, "true")
    host = "" if where == "localhost" else "host '127.0.0.2': "
    program = place / "mydist" / "bin" / "mydist-server"
    assert (code, out, err) == (
        2,
        b"",
        f"mydistrun: {host}--servers: this mydist was built without the parameter server: there is "
        f"no program {str(program)!r}. In a checkout run make build, where Asio and libcrypto are "
        "installed\n",
    )


def test_signals_are_for_the_ranks(installed: Mydistrun) -> None:
    script = installed.script(
        "import signal, sys\n"
        "signal.signal(signal.SIGUSR1, lambda *_: print('got SIGUSR1', flush=True))\n"
        "signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))\n"
        "print('ready', flush=True)\n"
        "while True: signal.pause()\n"
    )
    job = installed.start("-np", "1", "--servers", "1", script)
    job.read_until(b"ready")
    job.popen.send_signal(signal.SIGUSR1)  # It would end the server.
    job.read_until(b"got SIGUSR1")
    job.popen.send_signal(signal.SIGTERM)
    code, err = job.finish()
    assert code == 143
    assert len(err.splitlines()) == 1  # That it stops the ranks.
    assert events(installed) == ["server 0 starts", "server 0 ends"]


def test_no_server_outlives_a_killed_launcher(installed: Mydistrun) -> None:
    command = ["sh", "-c", 'echo "$MYDIST_SERVER_ADDRESSES"; exec sleep 600']
    job = installed.start("-np", "1", "--servers", "1", *command)
    (line,) = job.read_until(b"pid-")
    job.popen.kill()
    wait_gone(numbers([line.replace(b"pid-", b" ")]))


def test_servers_on_other_hosts(installed: Mydistrun, fake_ssh: Path) -> None:
    installed.script(ENDS_A_SERVER)
    hosts = ["--ssh-local", "-H", "localhost:1", "--server-hosts", "127.0.0.2,localhost"]
    shell = f"echo $MYDIST_SERVER_ADDRESSES; exec '{sys.executable}' train.py 9"
    code, out, err = installed.run(*hosts, "--servers", "3", "sh", "-c", shell)
    assert code == 137, err
    shown = sorted(out.decode().splitlines())
    bound = re.findall(r"([0-9])=([0-9.]+):([0-9]+)/pid-", shown[0])
    assert [(number, port) for number, _, port in bound] == [("0", "4000"), ("1", "4001"),
                                                             ("2", "4002")]  # fmt: skip
    assert [bound[0][1], bound[2][1]] == ["127.0.0.2"] * 2
    assert shown[1] == "[0]<stdout>:told 2 9"
    assert [line[:4] for line in shown[2:]] == ["[s0]", "[s1]", "[s2]"]
    assert [line.split()[2] for line in shown[2:]] == ["127.0.0.2", "localhost", "127.0.0.2"]
    assert "mydistrun: server 0 on host 127.0.0.2 (pid " in err
    assert sorted(events(installed)[-2:]) == ["server 1 ends", "server 2 ends"]


def test_a_host_that_is_lost_while_servers_start_is_named(
    installed: Mydistrun, fake_ssh: Path
) -> None:
    os.mkfifo(installed.directory / "gate")
    hosts = ["--ssh-local", "-H", "127.0.0.3:1", "--server-hosts", "localhost"]
    installed.env["STANDIN"] = "waits"
    job = installed.start(*hosts, "true")
    with open(installed.directory / "gate", "w"):  # The server has opened it.
        agents = [pid for pid in job.children() if b"agent" in command_line(pid)]
        os.kill(agents[0], signal.SIGKILL)
        wait_gone(agents)
    code, err = job.finish()
    assert code == 1
    assert err.splitlines() == ["mydistrun: host '127.0.0.3': ssh was killed by signal 9"]


def command_line(pid: int) -> bytes:
    return Path(f"/proc/{pid}/cmdline").read_bytes()


def test_dry_run_shows_the_servers(installed: Mydistrun, fake_ssh: Path) -> None:
    hosts = ["-H", "localhost:2", "--server-hosts", "localhost,far"]
    code, out, err = installed.run("--dry-run", *hosts, "--servers", "3", "true")
    assert (code, err) == (0, "")
    lines = out.decode().splitlines()
    found = [line for line in lines if not line.startswith("    ")]
    assert found[0] == "host localhost: directly"
    assert re.fullmatch(r"  servers 0, 2: /.*/mydist/bin/mydist-server", found[1])
    assert found[2].startswith("  server 0: MYDIST_SERVER=0")
    assert found[4] == "  ranks 0 to 1: true"
    assert found[7].startswith("host far: through: ssh ")
    assert found[8] == "  server 1: mydist-server"
    assert len(found) == 9
    assert lines.count("    MYDIST_SERVER_ADDRESSES=<chosen at start>") == 1
    assert "    MYDIST_SERVER=1" in lines
    assert lines.count("    MYDIST_SERVER_BIND=<chosen at start>") == 2
    assert not fake_ssh.exists()
