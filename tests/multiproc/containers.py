"""What containers do to a job, by namespaces: other file systems on /dev/shm, and other pids.

Mount and pid namespaces are allowed to whoever may make a user namespace.
"""

from __future__ import annotations

import functools
import os
import shlex
import subprocess
from collections.abc import Sequence
from pathlib import Path

import pytest

# Their arguments: the command to run.
_SMALL = 'mount -t tmpfs -o "$1" tmpfs /dev/shm && shift && exec "$@"'
_MISSING = """
mount -t tmpfs tmpfs "$1" &&
for name in null zero random urandom; do
    touch "$1/$name" && mount --bind "/dev/$name" "$1/$name" || exit
done &&
mount --rbind "$1" /dev && shift && exec "$@"
"""
# $1: an empty folder, in which host N has the file system of /dev/shm that its two ranks share.
_HOSTS = """
for host in 0 1; do
    mkdir "$1/$host" && mount -t tmpfs -o "$2" tmpfs "$1/$host" || exit
    folder=$1; shift 2; set -- "$folder" "$@"
done
shift && exec "$@"
"""
_ON_ITS_HOST = """
host=$((MYDIST_RANK / 2)); export MYDIST_HOST_ID=host$host
mount --bind "$1/$host" /dev/shm && shift && exec "$@"
"""
# The first process of a pid namespace is deaf to signals, so this is not the rank.
_FIRST = '"$@"; exit $?'
_LISTING = '"$@"; code=$?; echo "LEFT [$(ls -A /dev/shm)]"; exit $code'
_LATER = 'echo "CODE $?"; touch -c -d "2 minutes ago" /dev/shm/mydist-*;'


def with_shm(options: str, *command: str) -> list[str]:
    """The command, with a tmpfs of its own and these mount options on /dev/shm."""
    return _inside("--mount", _SMALL, options, *command)


def without_shm(folder: Path, *command: str) -> list[str]:
    """The command, in a /dev without /dev/shm; it is put together in the empty folder."""
    return _inside("--mount", _MISSING, str(folder), *command)


def with_two_hosts(folder: Path, options: tuple[str, str], *command: str) -> list[str]:
    """The command of a job; `options` are for the /dev/shm of each host, made in the folder."""
    return _inside("--mount", _HOSTS, str(folder), *options, *command)


def on_its_host(folder: Path, *command: str) -> list[str]:
    """The command of a rank of such a job: of host 0 are ranks 0 and 1, of host 1 ranks 2 and 3."""
    # Without a user namespace of its own: ranks of a host reach each other's files.
    return ["unshare", "--mount", "sh", "-c", _ON_ITS_HOST, "sh", str(folder), *command]


def with_own_pids(*command: str) -> list[str]:
    """The command, which sees no processes but those that it starts."""
    return _inside("--pid --fork --mount-proc", _FIRST, *command)


def with_listing(*command: str) -> list[str]:
    """The command, and `LEFT [NAMES]` after it: what lies in /dev/shm then."""
    return ["sh", "-c", _LISTING, "sh", *command]


def two_minutes_apart(first: Sequence[str], second: Sequence[str]) -> list[str]:
    """Both commands, and `CODE N` of the first; what lies in /dev/shm is older for the second."""
    return ["sh", "-c", f"{shlex.join(first)}; {_LATER} {shlex.join(second)}"]


def _inside(namespaces: str, script: str, *arguments: str) -> list[str]:
    made = ["unshare", "--user", "--map-root-user", *namespaces.split()]
    return [*made, "sh", "-c", script, "sh", *arguments]


@functools.cache
def _why_not() -> str:
    command = with_shm("size=1m", *with_own_pids("true"))
    tried = subprocess.run(command, capture_output=True, text=True, check=False)
    return "" if tried.returncode == 0 else tried.stderr.strip() or f"code {tried.returncode}"


def need_namespaces() -> None:
    """Skips the test where they are denied; fails it where TEST_REQUIRED says they are not."""
    if not _why_not():
        return
    text = f"no mount and pid namespaces here: {_why_not()}"
    if "namespaces" in os.environ.get("TEST_REQUIRED", "").split(","):
        pytest.fail(text)
    pytest.skip(text)
