"""mydist.run: a function on several ranks, its results and its errors."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from deep import deep

import mydist as md
from multiproc.job import job_environment


class Trouble(Exception):
    """An error of the function under test."""


class Touchy:
    """A result that the caller cannot rebuild."""

    def __reduce__(self) -> tuple[Any, ...]:
        return _refuse, ()


def _refuse() -> None:
    raise KeyError("not here")


def rank_and_sum(factor: int, offset: int = 0) -> tuple[int, int]:
    import torch

    md.init()
    total = md.allreduce(torch.tensor([factor * md.rank() + offset]), op=md.Sum)
    result = (md.rank(), int(total))
    md.shutdown()
    return result


def fail_on_last() -> None:
    import torch

    md.init()
    if md.rank() == md.size() - 1:
        raise Trouble("rank is bad", md.rank())
    md.allreduce(torch.ones(1), name="never complete")


def leave_without_result() -> None:
    os._exit(5)


def setting(name: str) -> str:
    return os.environ[name]


@pytest.fixture(autouse=True)
def environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in job_environment().items():
        monkeypatch.setenv(name, value)


@pytest.mark.parametrize("backend", ["gloo", deep("mpi")])
def test_results_in_rank_order(backend: str, monkeypatch: pytest.MonkeyPatch) -> None:
    # Below a rank of another job, whose children the new ranks are not.
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("WORLD_SIZE", "1")
    md.init()
    results = md.run(rank_and_sum, (10,), {"offset": 1}, num_proc=3, backend=backend)
    md.shutdown()
    assert results == [(0, 33), (1, 33), (2, 33)]


def test_one_rank_and_environment() -> None:
    assert md.run(setting, ("MARK",), env={"MARK": "a b'$c"}) == ["a b'$c"]


def test_a_function_without_a_name_and_a_result_that_cannot_be_rebuilt() -> None:
    with pytest.raises(md.MydistError, match="the Touchy that rank 0 returned: KeyError"):
        md.run(lambda kind: kind(), (Touchy,))


def test_the_first_error_is_raised_with_its_traceback() -> None:
    with pytest.raises(Trouble) as caught:
        md.run(fail_on_last, num_proc=2, backend="gloo")
    assert caught.value.args == ("rank is bad", 1)
    notes = "\n".join(caught.value.__notes__)
    assert "raised on rank 1" in notes and "fail_on_last" in notes


def test_a_rank_that_dies_is_an_error() -> None:
    with pytest.raises(md.MydistError, match=r"exit code 5 .*ranks \[0\]"):
        md.run(leave_without_result)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"num_proc": 0}, "num_proc is 0"),
        ({"num_proc": True}, "num_proc is True"),
        ({"backend": "nccl"}, "backend is 'nccl'"),
        ({"args": ((n for n in range(3)),)}, "cannot be pickled"),
    ],
)
def test_bad_arguments(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        md.run(setting, **arguments)


def test_a_function_of_a_script(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(
        "import mydist as md\n"
        "def double(x):\n"
        "    return 2 * x\n"
        "if __name__ == '__main__':\n"
        "    print('RESULTS', md.run(double, (21,), num_proc=2))\n"
    )
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    done = subprocess.run(
        [sys.executable, str(script)],
        env=os.environ | {"TMPDIR": str(temporary)},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "RESULTS [42, 42]" in done.stdout
    assert os.listdir(temporary) == []
