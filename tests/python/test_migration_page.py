"""What docs/migration.md says about names, arguments, flags and variables is so."""

from __future__ import annotations

import ast
import inspect
import os
import re
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
from multiproc.checks import horovod_rows

import mydist as md
import mydist.horovod
import mydist.horovod.torch as hvd
from mydist.launcher.flags import FLAGS

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "migration.md").read_text(encoding="utf-8")

# The names that horovod.torch 0.28 offers to scripts, modules aside.
_LISTED = """
    init shutdown is_initialized rank size local_rank local_size cross_rank cross_size
    is_homogeneous
    mpi_threads_supported mpi_enabled mpi_built gloo_enabled gloo_built
    nccl_built ddl_built ccl_built cuda_built rocm_built start_timeline stop_timeline
    allreduce allreduce_async allreduce_ allreduce_async_
    grouped_allreduce grouped_allreduce_async grouped_allreduce_ grouped_allreduce_async_
    sparse_allreduce_async allgather allgather_async grouped_allgather grouped_allgather_async
    broadcast broadcast_async broadcast_ broadcast_async_ alltoall alltoall_async
    reducescatter reducescatter_async grouped_reducescatter grouped_reducescatter_async
    join barrier poll synchronize Average Sum Min Max Product Adasum
    ProcessSet global_process_set add_process_set remove_process_set
    Compression DistributedOptimizer SyncBatchNorm HorovodInternalError
    broadcast_parameters broadcast_optimizer_state broadcast_object allgather_object elastic
"""
HOROVOD = _LISTED.split()


def quoted(cell: str) -> list[str]:
    return re.findall(r"`([^`]+)`", cell)


def tables(heading: str) -> list[tuple[list[str], str, list[str]]]:
    """The rows of the table whose first column is called so: what is old, new (as text, quoted)."""
    found = []
    lines = iter(PAGE.splitlines())
    for line in lines:
        if line.startswith(f"| {heading} |"):
            next(lines)  # The rule below the heading.
            for row in lines:
                if not row.startswith("|"):
                    return found
                old, new = row.split("|")[1:3]
                found.append((quoted(old), new.strip(), quoted(new)))
    raise AssertionError(f"the page has no table that begins with {heading!r}")


def known_flags() -> set[str]:
    return {name for flag in FLAGS for name in flag.names}


def known_variables() -> set[str]:
    configuration = (ROOT / "docs" / "configuration.md").read_text(encoding="utf-8")
    building = (ROOT / "setup.py").read_text(encoding="utf-8")
    return set(re.findall(r"MYDIST_[A-Z_]+", configuration + building))


def test_every_name_of_horovod_is_on_the_page_once() -> None:
    listed = [name for old, _, _ in tables("`horovod.torch`") for name in old]
    assert sorted(listed) == sorted([*HOROVOD, "horovod.run"])


@pytest.mark.parametrize("name", HOROVOD)
def test_a_name_is_there_if_the_page_says_so(name: str) -> None:
    new = next(new for old, new, _ in tables("`horovod.torch`") if name in old)
    assert new in ("same", "–")
    assert hasattr(md, name) == (new == "same")


def before_init(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ValueError, match="mydist has not been initialized"):
        md.allreduce(torch.ones(2))
    for call in (lambda: hvd.allreduce(torch.ones(2)), hvd.join, lambda: hvd.allgather_object(1)):
        with pytest.raises(hvd.HorovodInternalError, match="Horovod has not been initialized"):
            call()
    for question in (hvd.rank, hvd.global_process_set.size, hvd.ProcessSet([0]).included):
        with pytest.raises(ValueError, match="Horovod has not been initialized"):
            question()


def variables(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOROVOD_CACHE_CAPACITY", "77")
    # What init() puts there is taken away after the test.
    monkeypatch.setenv("MYDIST_CACHE_CAPACITY", "")
    monkeypatch.delenv("MYDIST_CACHE_CAPACITY")
    for library, expected in ((md, None), (hvd, "77")):
        library.init()
        library.shutdown()
        assert os.environ.get("MYDIST_CACHE_CAPACITY") == expected


def elastic(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("run", "TorchState", "ElasticSampler"):
        assert getattr(hvd.elastic, name) is getattr(md.elastic, name)
    for make in (
        lambda: hvd.elastic.state.ModelStateHandler(None),
        lambda: hvd.elastic.state.get_handler_registry(),
    ):
        with pytest.raises(NotImplementedError, match="is not there: give TorchState a value"):
            make()


def number_of_ranks(monkeypatch: pytest.MonkeyPatch) -> None:
    for run, has_older in ((md.run, False), (mydist.horovod.run, True)):
        taken = set(inspect.signature(run).parameters)
        assert "num_proc" in taken
        assert ("np" in taken) == has_older
    with (
        pytest.warns(DeprecationWarning, match="np is deprecated, use num_proc instead"),
        pytest.raises(NotImplementedError, match="slots is for elastic jobs"),
    ):
        mydist.horovod.run(print, np=2, slots=2)


# The last rows on Horovod to the letter, which need no other rank.
OF_ONE_PROCESS: dict[str, Callable[[pytest.MonkeyPatch], None]] = {
    "collectives before `init()`": before_init,
    "`HOROVOD_*` variables": variables,
    "`elastic`": elastic,
    "number of ranks of `run`": number_of_ranks,
}


@pytest.mark.usefixtures("no_job")
@pytest.mark.parametrize("row", OF_ONE_PROCESS)
def test_a_row_on_horovod_to_the_letter(row: str, monkeypatch: pytest.MonkeyPatch) -> None:
    OF_ONE_PROCESS[row](monkeypatch)


def test_every_row_on_horovod_to_the_letter_has_a_test_of_both_sides() -> None:
    section = PAGE.split("### Horovod to the letter")[1].split("\n## ")[0]
    heading, *table = re.findall(r"^\| ([^|]*) \|", section.replace("| |", "|  |"), re.M)
    assert heading == ""
    assert table[-len(OF_ONE_PROCESS) :] == list(OF_ONE_PROCESS)
    assert table[: -len(OF_ONE_PROCESS)] == horovod_rows.ROWS


def test_the_arguments_of_the_optimizer_are_those_on_the_page() -> None:
    listed = {name for old, new, _ in tables("argument") for name in old if new == "same"}
    taken = set(inspect.signature(md.DistributedOptimizer).parameters)
    assert listed == taken - {"gradient_as_buffer_view", "communication", "named_buffers"}


def mentioned_names() -> Iterator[str]:
    yield from set(re.findall(r"\bmd\.([A-Za-z_][\w.]*\w)", PAGE))


@pytest.mark.parametrize("name", sorted(mentioned_names()))
def test_a_mentioned_name_exists(name: str) -> None:
    value: object = md
    for part in name.split("."):
        value = getattr(value, part)


@pytest.mark.usefixtures("job")
@pytest.mark.parametrize(
    "call",
    [
        lambda: md.allreduce(torch.ones(2), None, "x", md.Compression.fp16),
        lambda: md.grouped_allreduce([torch.ones(2)], None, "x", md.Compression.fp16),
        lambda: md.reducescatter(torch.ones(2), "x", md.Compression.fp16),
        lambda: md.grouped_reducescatter([torch.ones(2)], "x", md.Compression.fp16),
    ],
)
def test_an_argument_in_the_place_horovod_has_it_is_refused(call: Callable[[], object]) -> None:
    with pytest.raises(TypeError, match="op is .* expected mydist.Average, Sum"):
        call()


@pytest.mark.usefixtures("job")
def test_the_mentioned_methods_of_the_optimizer_exist() -> None:
    optimizer = md.DistributedOptimizer(torch.optim.SGD(torch.nn.Linear(1, 1).parameters()))
    mentioned = set(re.findall(r"`(?:with )?optimizer\.(\w+)\(", PAGE))
    assert {"no_sync", "clip_grad_norm_", "skip_synchronize"} < mentioned
    assert [name for name in mentioned if not hasattr(optimizer, name)] == []


def test_flags_are_known_if_the_page_says_so() -> None:
    for old, new, instead in tables("horovodrun"):
        if new == "same":
            assert set(old) <= known_flags()
        elif new == "–":
            assert not set(old) & known_flags(), "the page says there is none"
        else:
            assert len(instead) == 1
            assert instead[0].split()[0] in known_flags()


def test_every_flag_of_a_command_on_the_page_is_known() -> None:
    used = re.findall(r"mydistrun ((?:--?[\w-]+[^`\n]*))", PAGE)
    flags = {flag for command in used for flag in re.findall(r"(?<!\S)--?[a-z][\w-]*", command)}
    assert "-np" in flags
    assert flags <= known_flags()


def test_every_variable_on_the_page_is_known() -> None:
    mentioned = set(re.findall(r"MYDIST_[A-Z_]+", PAGE))
    assert len(mentioned) > 15
    assert mentioned <= known_variables()


def test_every_variable_of_horovod_has_an_answer() -> None:
    rows = tables("Horovod")
    assert all(name.startswith("HOROVOD_") for old, _, _ in rows for name in old)
    assert all(new == "–" or instead for _, new, instead in rows)
    assert all(len(old) == len(instead) or len(instead) <= 1 for old, _, instead in rows)


def test_links_lead_somewhere() -> None:
    headings = {
        re.sub(r"[^\w -]", "", line.lstrip("# ").lower()).replace(" ", "-")
        for line in PAGE.splitlines()
        if line.startswith("#")
    }
    for target in re.findall(r"\]\(([^)]+)\)", PAGE):
        file, _, anchor = target.partition("#")
        if file:
            assert (ROOT / "docs" / file).exists(), target
        else:
            assert anchor in headings, target


def test_the_horovod_script_differs_in_its_import_only() -> None:
    source = (ROOT / "examples" / "horovod_script.py").read_text(encoding="utf-8")
    tree = ast.parse(source)
    imports = [
        ast.unparse(node)
        for node in ast.walk(tree)
        if isinstance(node, (ast.Import, ast.ImportFrom)) and "mydist" in ast.unparse(node)
    ]
    assert imports == ["import mydist as hvd"]
    used = {
        node.attr
        for node in ast.walk(tree)
        if isinstance(node, ast.Attribute)
        and isinstance(node.value, ast.Name)
        and node.value.id == "hvd"
    }
    assert {"init", "DistributedOptimizer", "broadcast_parameters", "Adasum"} < used
    assert used <= set(HOROVOD)
    names = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)}
    assert "mydist" not in names
