"""The fixtures of the launcher's tests."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from running_job import Mydistrun


@pytest.fixture
def mydistrun(tmp_path: Path) -> Iterator[Mydistrun]:
    run = Mydistrun(tmp_path)
    yield run
    for launched in run.running:
        if launched.popen.poll() is None:
            launched.popen.kill()
        launched.popen.communicate()


@pytest.fixture
def fake_ssh(mydistrun: Mydistrun, tmp_path: Path) -> Path:
    """An `ssh` first on PATH that runs the remote command here, with a login's bare environment
    and a talkative login shell. It writes its arguments to ssh.log."""
    place = tmp_path / "bin"
    place.mkdir()
    log = tmp_path / "ssh.log"
    program = place / "ssh"
    program.write_text(
        f"""#!/bin/sh
printf '%s\\n' "$*" >> '{log}'
while [ "$1" != "--" ]; do shift; done
shift
if [ "$1" = refused.example ]; then
  echo "ssh: connect to host $1 port 22: Connection refused" >&2; exit 255
fi
if [ "$1" = silent.example ]; then echo "debug: connecting" >&2; exec cat >heard; fi
echo "Welcome to $1! $(head -c 5000 /dev/zero | tr '\\0' x)"
shift
exec env -i PATH=/usr/bin:/bin HOME="$HOME" PYTHONPATH="$PYTHONPATH" sh -c "$*"
"""
    )
    program.chmod(0o755)
    mydistrun.env["PATH"] = f"{place}:{mydistrun.env['PATH']}"
    return log
