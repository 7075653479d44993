"""The extensions of examples/ as docs/extending.md builds and starts them, in jobs of two ranks."""

from __future__ import annotations

import importlib
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from mydist.optim.strategies.simulation import SimulatedWorker, Simulation

# Slow: a run of the whole suite has half of these, the next one the other half.
pytestmark = pytest.mark.turns(2)

ROOT = Path(__file__).resolve().parents[2]
SCRIPT = """
import torch
import mydist as md

md.init()
mine = torch.arange(1000, dtype=torch.float64) * (md.rank() + 1)
total = md.allreduce(mine, op=md.Sum)
assert torch.equal(total, torch.arange(1000, dtype=torch.float64) * 3), total
gathered = md.allgather(torch.tensor([md.rank()]))
assert gathered.tolist() == [0, 1]
if md.rank() == 0:
    for topic, fact in md.explain().facts.items():
        print(topic, "=", fact.choice)
md.shutdown()
"""


def _documented_command() -> list[str]:
    text = (ROOT / "docs" / "extending.md").read_text()
    found = re.search(r"^(c\+\+ .*)$", text, re.MULTILINE)
    assert found is not None, "docs/extending.md shows no compiler command"
    return shlex.split(found.group(1))


@pytest.fixture(scope="module")
def libraries(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Both examples, compiled with the command of the page; by name of the source."""
    folder = tmp_path_factory.mktemp("extensions")
    command = _documented_command()
    running = {}
    for name in ("star_allreduce", "socket_transport"):
        words = [word.replace("star_allreduce", name) for word in command]
        words[words.index("-o") + 1] = str(folder / f"lib{name}.so")
        running[name] = subprocess.Popen(words, cwd=ROOT, stderr=subprocess.PIPE, text=True)
    for name, process in running.items():
        _, errors = process.communicate()
        assert process.returncode == 0, f"{name}: {errors}"
    return {name: folder / f"lib{name}.so" for name in running}


def _run(script: Path, *flags: str, **variables: str) -> subprocess.CompletedProcess[str]:
    launcher = [sys.executable, "-m", "mydist.launcher", "-np", "2", *flags]
    return subprocess.run(
        [*launcher, sys.executable, str(script)],
        env={**os.environ, **variables},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


@pytest.fixture
def script(tmp_path: Path) -> Path:
    file = tmp_path / "job.py"
    file.write_text(SCRIPT)
    return file


def test_algorithm_and_transport_of_others_carry_a_job(
    libraries: dict[str, Path], script: Path
) -> None:
    plugins = ":".join(map(str, libraries.values()))
    done = _run(
        script,
        *("--plugins", plugins, "--algorithm", "star", "--no-shared-memory"),
        MYDIST_CONTROLLER="sockets",
        MYDIST_STAR_CENTRE="1",
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "algorithm = star" in done.stdout
    assert "backend = sockets" in done.stdout


def test_a_setting_that_differs_between_ranks_is_refused(
    libraries: dict[str, Path], tmp_path: Path
) -> None:
    file = tmp_path / "differs.py"
    file.write_text(
        "import os\nos.environ['MYDIST_STAR_CENTRE'] = os.environ['MYDIST_RANK']\n" + SCRIPT
    )
    done = _run(file, "--plugins", str(libraries["star_allreduce"]), "--algorithm", "star")
    assert done.returncode != 0
    assert "MYDIST_STAR_CENTRE" in done.stderr + done.stdout


def test_a_wrong_name_says_what_there_is(libraries: dict[str, Path], script: Path) -> None:
    done = _run(script, "--plugins", str(libraries["star_allreduce"]), "--algorithm", "tree")
    assert done.returncode != 0
    assert (
        "MYDIST_ALGORITHM='tree' is not valid: expected auto, shared_memory, hierarchical, flat "
        "or star" in done.stderr + done.stdout
    )


def test_the_build_report_lists_transports_of_others(libraries: dict[str, Path]) -> None:
    def report(plugins: Path) -> str:
        return subprocess.run(
            [sys.executable, "-m", "mydist.launcher", "--check-build"],
            env={**os.environ, "MYDIST_PLUGINS": str(plugins)},
            capture_output=True,
            text=True,
            timeout=60,
            check=True,
        ).stdout

    assert re.search(r"\[x\] sockets ", report(libraries["socket_transport"]))
    missing = report(libraries["socket_transport"].with_name("none.so"))
    assert re.search(r"\[ \] settings +MYDIST_PLUGINS: .*none\.so cannot be loaded", missing)


@pytest.fixture
def strategy_of_the_page(monkeypatch: pytest.MonkeyPatch) -> Any:
    """PowersOfTwo of examples/extensions."""
    monkeypatch.syspath_prepend(str(ROOT / "examples" / "extensions"))
    return importlib.import_module("powers_of_two").PowersOfTwo


def test_the_page_shows_the_strategy_of_the_file() -> None:
    page = (ROOT / "docs" / "extending.md").read_text()
    block = re.search(r"```python\n(.*?)```", page, re.DOTALL)
    file = (ROOT / "examples" / "extensions" / "powers_of_two.py").read_text()
    assert block and file.endswith("\n\n" + block[1])


def test_a_strategy_of_ones_own_follows_its_rule(strategy_of_the_page: Any) -> None:
    """Worker r draws its weight to r; rounds follow steps 1, 2, 4, 8, 16 and 24."""

    def train(worker: SimulatedWorker) -> tuple[list[float], int]:
        weight = torch.nn.Parameter(torch.tensor([8.0], dtype=torch.float64))
        strategy = strategy_of_the_page(longest=8)
        optimizer = worker.optimizer(torch.optim.SGD([weight], lr=0.25), strategy)
        seen = []
        for _ in range(27):
            weight.grad = weight.detach() - worker.rank
            optimizer.step()
            seen.append(weight.item())
        optimizer.finish()
        return [*seen, weight.item()], optimizer.state_dict()["communication"]["rounds"]

    expected, now = [], [8.0, 8.0, 8.0]
    for step in range(1, 28):
        now = [value - 0.25 * (value - rank) for rank, value in enumerate(now)]
        if step in (1, 2, 4, 8, 16, 24):
            now = [sum(now) / 3] * 3
        expected.append(now)
    expected.append([sum(now) / 3] * 3)
    for rank, (seen, rounds) in enumerate(Simulation(3).run(train)):
        assert seen == pytest.approx([values[rank] for values in expected], abs=1e-12)
        assert rounds == 7
    with pytest.raises(ValueError, match="longest is 12, expected a power of two"):
        strategy_of_the_page(longest=12)


STRATEGY_SCRIPT = """
import torch
import mydist as md
from powers_of_two import PowersOfTwo

md.init()
model = torch.nn.Linear(3, 2)
optimizer = md.DistributedOptimizer(
    torch.optim.SGD(model.parameters(), lr=0.1),
    named_parameters=model.named_parameters(),
    communication=PowersOfTwo(longest=4),
)
md.broadcast_parameters(model.state_dict(), root_rank=0)
for step in range(1, 11):
    optimizer.zero_grad()
    model(torch.full((1, 3), 1.0 + md.rank())).square().sum().backward()
    optimizer.step()
optimizer.finish()
md.check_consistency(model)
if md.rank() == 0:
    print("rounds:", md.stats()["strategy_rounds"])
    print(md.explain().facts["communication"].choice)
md.shutdown()
"""


def test_a_strategy_of_ones_own_trains_real_ranks(tmp_path: Path) -> None:
    file = tmp_path / "job.py"
    file.write_text(STRATEGY_SCRIPT)
    path = f"{ROOT / 'examples' / 'extensions'}{os.pathsep}{os.environ.get('PYTHONPATH', '')}"
    done = _run(file, PYTHONPATH=path)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "rounds: 5" in done.stdout, "after steps 1, 2, 4 and 8, and in finish()"
    assert "PowersOfTwo(longest=4)" in done.stdout
