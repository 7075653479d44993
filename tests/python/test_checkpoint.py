"""Checkpoint in one process: what is stored, what a kill or a full disk leaves, what is refused."""

from __future__ import annotations

import os
import pickle
import random
import resource
import signal
import stat
import subprocess
import threading
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import mydist as md

pytestmark = pytest.mark.usefixtures("job")
RunPython = Callable[[str], subprocess.CompletedProcess[str]]


class Counter:
    """The smallest thing that can be saved."""

    def __init__(self, value: Any = 0) -> None:
        self.value = value

    def state_dict(self) -> dict[str, Any]:
        return {"value": self.value}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.value = state["value"]


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def saved(folder: Path, *steps: int) -> None:
    """Saves a Counter that holds the step, at each step."""
    with md.Checkpoint(folder, keep=None, resume=None, counter=Counter()) as checkpoint:
        for step in steps:
            checkpoint._objects["counter"].value = step
            checkpoint.save(step)


def restored(folder: Path, resume: Any = "auto") -> tuple[int, Any]:
    counter = Counter()
    with md.Checkpoint(folder, resume=resume, counter=counter) as checkpoint:
        return checkpoint.step, counter.value


def test_state_comes_back(tmp_path: Path) -> None:
    model = torch.nn.Sequential(torch.nn.Linear(3, 2), torch.nn.BatchNorm1d(2))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.1)
    scheduler = torch.optim.lr_scheduler.OneCycleLR(optimizer, 1.0, total_steps=10)
    for _ in range(3):
        model(torch.rand(4, 3)).sum().backward()
        optimizer.step()
        scheduler.step()
    first = md.Checkpoint(
        tmp_path, resume=None, model=model, optimizer=optimizer, scheduler=scheduler
    )
    extras = {"best": 0.25, "names": ["a", None], "tensor": torch.arange(3, dtype=torch.bfloat16)}
    path = first.save(3, extras)
    assert path == tmp_path / "step-000000003.pt" and first.step == 3

    other = torch.nn.Sequential(torch.nn.Linear(3, 2), torch.nn.BatchNorm1d(2))
    other_optimizer = md.DistributedOptimizer(
        torch.optim.Adam(other.parameters()), named_parameters=other.named_parameters()
    )
    other_scheduler = torch.optim.lr_scheduler.OneCycleLR(other_optimizer, 1.0, total_steps=10)
    second = md.Checkpoint(
        tmp_path, model=other, optimizer=other_optimizer, scheduler=other_scheduler
    )
    assert second.step == 3
    assert second.extras["best"] == 0.25 and second.extras["names"] == ["a", None]
    assert torch.equal(second.extras["tensor"], extras["tensor"])  # type: ignore[arg-type]
    for name, tensor in model.state_dict().items():
        assert torch.equal(tensor, other.state_dict()[name]), name
    assert other_scheduler.state_dict() == scheduler.state_dict()
    for index, state in optimizer.state_dict()["state"].items():
        for key, tensor in state.items():
            assert torch.equal(tensor, other_optimizer.state_dict()["state"][index][key]), key
    first.close()
    second.close()


def test_random_generators_go_on_where_they_were(tmp_path: Path) -> None:
    numpy = pytest.importorskip("numpy")

    def draws() -> list[float]:
        return [random.random(), random.gauss(), float(torch.randn(())), numpy.random.rand()]

    random.gauss()  # leaves a second value behind in the generator
    with md.Checkpoint(tmp_path, resume=None, counter=Counter()) as checkpoint:
        checkpoint.save(1)
        wanted = draws()
        assert draws() != wanted
        assert checkpoint.restore() == 1
        assert draws() == wanted


def test_a_file_is_what_torch_reads_and_follows_the_umask(tmp_path: Path) -> None:
    before = os.umask(0o027)
    try:
        saved(tmp_path / "new" / "folder", 7)
    finally:
        os.umask(before)
    path = tmp_path / "new" / "folder" / "step-000000007.pt"
    assert stat.S_IMODE(path.stat().st_mode) == 0o640
    content = torch.load(path, weights_only=True)
    assert content["step"] == 7 and content["objects"] == {"counter": {"value": 7}}


def test_keep_removes_the_oldest_only(tmp_path: Path) -> None:
    saved(tmp_path, 1, 2, 30)
    (tmp_path / "notes.txt").write_text("mine")
    with md.Checkpoint(tmp_path, keep=2, resume=None, counter=Counter()) as checkpoint:
        checkpoint.save(10)
        # 30 is of a later time than what was saved: not older, so not removed.
        assert names(tmp_path) == [
            "notes.txt", "step-000000002.pt", "step-000000010.pt", "step-000000030.pt"
        ]  # fmt: skip
        checkpoint.save(40)
        assert names(tmp_path) == ["notes.txt", "step-000000030.pt", "step-000000040.pt"]


def test_steps_are_numbers_and_not_texts(tmp_path: Path) -> None:
    saved(tmp_path, 999_999_999, 1_000_000_000, 5)
    assert restored(tmp_path) == (1_000_000_000, 1_000_000_000)


def test_nothing_there_is_step_0(tmp_path: Path) -> None:
    assert restored(tmp_path) == (0, 0)
    assert restored(tmp_path / "not there yet") == (0, 0)
    assert not (tmp_path / "not there yet").exists()


def test_resume_by_path_and_by_folder_and_none(tmp_path: Path) -> None:
    saved(tmp_path / "a", 1, 2)
    assert restored(tmp_path / "b", tmp_path / "a" / "step-000000001.pt") == (1, 1)
    assert restored(tmp_path / "b", str(tmp_path / "a")) == (2, 2)
    assert restored(tmp_path / "a", None) == (0, 0)


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-100])


def flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[data.index(b"mydist.checkpoint")] ^= 0x40
    path.write_bytes(data)


def empty(path: Path) -> None:
    path.write_bytes(b"")


def foreign(path: Path) -> None:
    torch.save({"step": 3}, path)


def newer(path: Path) -> None:
    torch.save({**torch.load(path), "version": 2}, path)


DAMAGE = [
    (cut, "it is cut off or damaged"),
    (flip, "damaged"),
    (empty, "it is cut off or damaged"),
    (foreign, "it was not written by mydist.Checkpoint"),
    (newer, "its format version is 2, expected 1; use the mydist that wrote it"),
]


@pytest.mark.parametrize(("damage", "text"), DAMAGE)
def test_a_damaged_newest_is_skipped_with_a_warning(
    tmp_path: Path, damage: Callable[[Path], None], text: str
) -> None:
    saved(tmp_path, 1, 2, 3)
    damage(tmp_path / "step-000000003.pt")
    with pytest.warns(UserWarning) as caught:
        assert restored(tmp_path) == (2, 2)
    message = str(caught[0].message)
    assert f"checkpoint '{tmp_path}/step-000000003.pt' is skipped: " in message and text in message
    with pytest.raises(ValueError, match=f"resume='{tmp_path}/step-000000003.pt': .*"):
        restored(tmp_path, tmp_path / "step-000000003.pt")


def test_a_flipped_bit_of_a_tensor_is_noticed(tmp_path: Path) -> None:
    counter = Counter(torch.full((1000,), 3.0))
    with md.Checkpoint(tmp_path, resume=None, counter=counter) as checkpoint:
        path = checkpoint.save(1)
    data = bytearray(path.read_bytes())
    data[data.index(torch.full((10,), 3.0).numpy().tobytes()) + 20] ^= 1
    path.write_bytes(data)
    assert torch.load(path)["step"] == 1, "torch alone does not see it"
    with pytest.raises(ValueError, match=r"it is damaged \(the CRC-32 of its part '.*' is wrong\)"):
        restored(tmp_path, path)


def test_checksums_are_written_even_if_torch_was_told_not_to(tmp_path: Path) -> None:
    torch.serialization.set_crc32_options(False)
    try:
        saved(tmp_path, 1)
        assert not torch.serialization.get_crc32_options()
    finally:
        torch.serialization.set_crc32_options(True)
    assert restored(tmp_path) == (1, 1)


def test_only_damaged_ones_are_an_error(tmp_path: Path) -> None:
    saved(tmp_path, 1, 2)
    cut(tmp_path / "step-000000001.pt")
    empty(tmp_path / "step-000000002.pt")
    with warnings.catch_warnings(), pytest.raises(md.MydistError) as caught:
        warnings.simplefilter("ignore")
        restored(tmp_path)
    assert f"no checkpoint in '{tmp_path}' can be restored" in str(caught.value)
    assert "step-000000001.pt" in str(caught.value) and "Move them away" in str(caught.value)


class Exploit:
    """Pickled, it is a command; unpickled without care, it runs."""

    def __init__(self, target: Path) -> None:
        self._target = target

    def __reduce__(self) -> Any:
        return os.system, (f"touch {self._target}",)


def test_a_malicious_file_runs_nothing(tmp_path: Path) -> None:
    target = tmp_path / "owned"
    path = tmp_path / "step-000000009.pt"
    content = {"format": "mydist.checkpoint", "version": 1, "objects": Exploit(target)}
    torch.save(content, path)
    with pytest.raises(ValueError, match="cannot be loaded with weights_only=True .*system"):
        restored(tmp_path, path)
    path.write_bytes(pickle.dumps(Exploit(target)))
    with pytest.raises(ValueError, match="cut off or damaged"):
        restored(tmp_path, path)
    assert not target.exists()


KILLED_AT = {
    "before the rename": "os.replace = lambda *_: os.kill(os.getpid(), signal.SIGKILL)",
    "while writing": """
real = os.write
def write(descriptor, data):
    real(descriptor, bytes(data)[:10])
    os.kill(os.getpid(), signal.SIGKILL)
os.write = write""",
}


@pytest.mark.parametrize("moment", KILLED_AT)
def test_a_kill_leaves_the_checkpoint_before(
    tmp_path: Path, run_python: RunPython, moment: str
) -> None:
    saved(tmp_path, 1)
    done = run_python(
        "import os, signal, torch, mydist as md\n"
        "md.init()\n"
        f"c = md.Checkpoint({str(tmp_path)!r}, resume=None, counter=torch.nn.Linear(50, 50))\n"
        f"{KILLED_AT[moment]}\n"
        "c.save(2)"
    )
    assert done.returncode == -signal.SIGKILL, done.stderr
    left = names(tmp_path)
    assert len(left) == 2 and left[0].endswith(".tmp") and left[1] == "step-000000001.pt"
    assert restored(tmp_path) == (1, 1)
    saved(tmp_path, 3)
    assert names(tmp_path) == ["step-000000001.pt", "step-000000003.pt"], "a leftover stayed"


def test_a_full_disk_names_the_file_and_keeps_the_others(tmp_path: Path) -> None:
    saved(tmp_path, 1)
    large = Counter(torch.zeros(200_000))
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, before[1]))  # the kernel's own refusal
    try:
        with (
            md.Checkpoint(tmp_path, keep=1, resume=None, counter=large) as checkpoint,
            pytest.raises(OSError, match="File too large") as caught,
        ):
            checkpoint.save(2)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    text = str(caught.value)
    assert f"checkpoint '{tmp_path}/step-000000002.pt' could not be written" in text
    assert "saved before are untouched" in text
    assert names(tmp_path) == ["step-000000001.pt"] and restored(tmp_path) == (1, 1)


def test_a_folder_that_cannot_be_made(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with (
        md.Checkpoint(tmp_path / "file" / "x", resume=None, counter=Counter()) as checkpoint,
        pytest.raises(NotADirectoryError, match="could not be written: Not a directory"),
    ):
        checkpoint.save(1)


def test_state_that_could_not_be_loaded_again_is_refused(tmp_path: Path) -> None:
    counter = Counter({"list": [1, Exploit(tmp_path)]})
    with (
        md.Checkpoint(tmp_path, resume=None, counter=counter) as checkpoint,
        pytest.raises(TypeError) as caught,
    ):
        checkpoint.save(1)
    assert "checkpoint: objects.counter.value.list[1] (a " in str(caught.value)
    assert "cannot be loaded with weights_only=True" in str(caught.value)
    assert names(tmp_path) == []


def test_objects_must_be_those_that_were_saved(tmp_path: Path) -> None:
    saved(tmp_path, 1)
    with pytest.raises(ValueError) as caught, md.Checkpoint(tmp_path, model=Counter()):
        pass
    assert "has no state of 'model', but only of 'counter'" in str(caught.value)
    both = {"counter": Counter(), "second": Counter()}
    with md.Checkpoint(tmp_path, resume=None, **both) as checkpoint:
        checkpoint.save(2)
    with pytest.warns(UserWarning, match="also has the state of 'second'.*it is ignored"):
        assert restored(tmp_path) == (2, 0)


WRONG: list[tuple[dict[str, Any], type[Exception], str]] = [
    ({"directory": 3}, TypeError, "directory is 3 (int), expected a str or path"),
    ({"directory": ""}, ValueError, "directory is '', expected the path of a folder"),
    ({"keep": 0}, ValueError, "keep is 0, expected at least 1, or None to keep all"),
    ({"keep": "3"}, TypeError, "keep is '3' (str), expected an int or None to keep all"),
    ({"keep": True}, TypeError, "keep is True (bool), expected an int or None"),
    ({"resume": True}, TypeError, "resume is True (bool), expected a str or path"),
    ({"resume": ""}, ValueError, "resume is '', expected 'auto', the path of a file or folder"),
    ({"model": 5}, TypeError, "model is int, which has no state_dict(); save plain values"),
    ({"model": torch.nn.Linear}, TypeError, "model is type, which has no state_dict()"),
    ({"process_set": [0]}, TypeError, "process_set is [0]"),
]


@pytest.mark.parametrize(("arguments", "kind", "text"), WRONG, ids=range(len(WRONG)))
def test_wrong_arguments(
    tmp_path: Path, arguments: dict[str, Any], kind: type[Exception], text: str
) -> None:
    handler = signal.getsignal(signal.SIGTERM)
    with pytest.raises(kind) as caught:
        md.Checkpoint(**{"directory": tmp_path, "counter": Counter(), **arguments})
    assert str(caught.value).startswith("Checkpoint: ") and text in str(caught.value)
    assert signal.getsignal(signal.SIGTERM) is handler and names(tmp_path) == []


def test_nothing_to_save(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="got nothing to save; pass model=…"):
        md.Checkpoint(tmp_path)


@pytest.mark.parametrize(
    ("arguments", "kind", "text"),
    [
        ((-1,), ValueError, "step is -1, expected the number of steps made so far"),
        ((2**63,), ValueError, "expected the number of steps"),
        ((1.0,), TypeError, r"step is 1.0 \(float\), expected an int"),
        ((1, [2]), TypeError, "extras is list, expected a dict"),
    ],
)
def test_wrong_arguments_of_save(
    tmp_path: Path, arguments: tuple[Any, ...], kind: type[Exception], text: str
) -> None:
    with md.Checkpoint(tmp_path, counter=Counter()) as checkpoint:
        with pytest.raises(kind, match=text):
            checkpoint.save(*arguments)
        if len(arguments) == 1:
            with pytest.raises(kind, match=text):
                checkpoint.should_stop(arguments[0])
    assert names(tmp_path) == []


def test_resume_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="there is no such file; pass resume='auto'"):
        restored(tmp_path, tmp_path / "step-000000001.pt")
    with pytest.raises(FileNotFoundError, match="the folder has no checkpoint"):
        restored(tmp_path, tmp_path)


def terminate() -> None:
    """Sends SIGTERM to this process and returns when Python has run the handler."""
    os.kill(os.getpid(), signal.SIGTERM)
    deadline = time.monotonic() + 10
    while signal.SIGTERM in signal.sigpending() and time.monotonic() < deadline:
        pass


def test_sigterm_saves_and_stops(tmp_path: Path) -> None:
    before = signal.getsignal(signal.SIGTERM)
    with md.Checkpoint(tmp_path, counter=Counter()) as checkpoint:
        assert not checkpoint.should_stop(4)
        assert names(tmp_path) == []
        terminate()
        assert checkpoint.should_stop() and names(tmp_path) == []
        assert checkpoint.should_stop(5) and names(tmp_path) == ["step-000000005.pt"]
    assert signal.getsignal(signal.SIGTERM) is before


def test_a_step_that_was_just_saved_is_not_saved_again(tmp_path: Path) -> None:
    with md.Checkpoint(tmp_path, counter=Counter()) as checkpoint:
        path = checkpoint.save(5)
        written = path.stat().st_ino
        checkpoint.request_stop()
        assert checkpoint.should_stop(5) and path.stat().st_ino == written
        assert checkpoint.should_stop(6) and len(names(tmp_path)) == 2


def test_the_handler_before_runs_too_and_comes_back(tmp_path: Path) -> None:
    calls: list[int] = []

    def handler(signum: int, frame: object) -> None:
        calls.append(signum)

    before = signal.signal(signal.SIGTERM, handler)
    try:
        outer = md.Checkpoint(tmp_path, counter=Counter())
        inner = md.Checkpoint(tmp_path, counter=Counter())
        terminate()
        assert calls == [signal.SIGTERM] and outer.should_stop() and inner.should_stop()
        inner.close()
        outer.close()
        assert signal.getsignal(signal.SIGTERM) is handler
    finally:
        signal.signal(signal.SIGTERM, before)


@pytest.mark.parametrize("order", ["inner first", "outer first"])
def test_after_close_sigterm_ends_the_process_again(
    tmp_path: Path, run_python: RunPython, order: str
) -> None:
    done = run_python(
        "import os, signal, torch, mydist as md\n"
        "md.init()\n"
        f"make = lambda: md.Checkpoint({str(tmp_path)!r}, model=torch.nn.Linear(1, 1))\n"
        "outer, inner = make(), make()\n"
        f"for c in {'(inner, outer)' if order == 'inner first' else '(outer, inner)'}: c.close()\n"
        "os.kill(os.getpid(), signal.SIGTERM)\n"
        "print('still here')"
    )
    assert done.returncode == -signal.SIGTERM, done.stdout + done.stderr


def test_on_sigterm_false_leaves_the_handler(tmp_path: Path) -> None:
    before = signal.getsignal(signal.SIGTERM)
    checkpoint = md.Checkpoint(tmp_path, on_sigterm=False, counter=Counter())
    assert signal.getsignal(signal.SIGTERM) is before and not checkpoint.should_stop()


def test_another_thread_needs_on_sigterm_false(tmp_path: Path) -> None:
    caught: list[Exception] = []

    def make() -> None:
        try:
            md.Checkpoint(tmp_path, counter=Counter())
        except ValueError as error:
            caught.append(error)
        md.Checkpoint(tmp_path, on_sigterm=False, counter=Counter()).save(1)

    thread = threading.Thread(target=make, name="trainer")
    thread.start()
    thread.join()
    assert "made in thread 'trainer'" in str(caught[0]) and "on_sigterm=False" in str(caught[0])
    assert names(tmp_path) == ["step-000000001.pt"]
