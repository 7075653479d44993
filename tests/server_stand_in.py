"""An installation of mydist whose `mydist-server` is a script that keeps the launcher's contract.

It is the package of the tests, made of links, with a program of its own: so what finds the program
is tested as well.
"""

from __future__ import annotations

import sys
from pathlib import Path

import mydist
import mydist.launcher

# $STANDIN says what it does wrong. Its socket is named by its pid, for tests that end it.
PROGRAM = """#!%s -IS
import os, signal, sys
mode, number = os.environ.get("STANDIN"), os.environ["MYDIST_SERVER"]

def note(text):
    with open("events", "a") as file:
        file.write(f"server {number} {text}\\n")

def end(signum, frame):
    note("ends")
    os._exit(5 if mode == "ends badly" else 0)

signal.signal(signal.SIGTERM, signal.SIG_IGN if mode == "stays" else end)
note("starts")
if mode == "fails":
    sys.exit("no room for tables")
if mode == "waits":
    open("gate").read()
address_fd = int(os.environ["MYDIST_SERVER_ADDRESS_FD"])
host, port = os.environ["MYDIST_SERVER_BIND"], 4000 + int(number)
line = "hello" if mode == "mumbles" else f"{number} {host} {port} pid-{os.getpid()}"
if mode != "is silent":
    os.write(address_fd, f"{line}\\n".encode())
    os.close(address_fd)
key = os.pread(int(os.environ["MYDIST_JOB_KEY_FD"]), 32, 0)
names = ("MYDIST_JOB_ID", "MYDIST_HOST_ID", "MYDIST_RANK")
print(len(key), *(os.environ.get(name) for name in names), flush=True)
while True:
    signal.pause()
"""


def install(folder: Path, has_program: bool = True) -> Path:
    """Makes it in `folder`, and returns what belongs at the front of PYTHONPATH."""
    package = folder / "installation" / "mydist"
    (package / "bin").mkdir(parents=True)
    for entry in Path(mydist.__path__[0]).iterdir():
        if entry.name not in ("bin", "launcher"):
            (package / entry.name).symlink_to(entry)
    (package / "launcher").symlink_to(Path(mydist.launcher.__path__[0]).absolute())
    if has_program:
        program = package / "bin" / "mydist-server"
        program.write_text(PROGRAM % sys.executable)
        program.chmod(0o755)
    return package.parent
