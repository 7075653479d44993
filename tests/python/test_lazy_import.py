"""`import mydist` is cheap: torch and the extension are loaded by the first name that needs it."""

from __future__ import annotations

import ast
import importlib
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import mydist as md

RunPython = Callable[[str], subprocess.CompletedProcess[str]]

LOADED = "import sys; print(sorted({'torch', 'mydist._C'} & set(sys.modules)))"


@pytest.mark.parametrize(
    "statement",
    [
        "import mydist",
        "import mydist.launcher",
        "import mydist.launcher.cli",
        "import mydist; mydist.__version__",
        "import mydist; dir(mydist)",
        "import mydist; hasattr(mydist, 'no_such_name')",
    ],
)
def test_loads_neither_torch_nor_the_extension(run_python: RunPython, statement: str) -> None:
    done = run_python(f"{statement}\n{LOADED}")
    assert done.stdout.strip() == "[]", done.stderr


def test_the_first_use_loads_both(run_python: RunPython) -> None:
    done = run_python(f"import mydist; mydist.Sum; mydist.init; {LOADED}")
    assert done.stdout.strip() == "['mydist._C', 'torch']", done.stderr


@pytest.mark.parametrize("name", md.__all__)
def test_every_public_name_is_there(name: str) -> None:
    assert getattr(md, name) is getattr(md, name)
    assert name in dir(md)


@pytest.mark.parametrize(
    "name",
    [n for n in md.__all__ if callable(getattr(md, n)) and not n[0].isupper()],
)
def test_every_public_function_is_documented(name: str) -> None:
    text = getattr(md, name).__doc__
    assert text is not None and len(text) > 20


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="module 'mydist' has no attribute 'allredcue'"):
        md.allredcue  # type: ignore[attr-defined]  # noqa: B018


def names_for_type_checkers() -> Iterator[tuple[str, str]]:
    """Each name that `if TYPE_CHECKING:` imports, and the module of its import."""
    tree = ast.parse(Path(md.__file__).read_text())
    (block,) = [node for node in tree.body if isinstance(node, ast.If)]
    assert ast.unparse(block.test) == "TYPE_CHECKING"
    for node in block.body:
        if isinstance(node, ast.ImportFrom) and node.module is not None:
            names = [alias.name for alias in node.names]
            if names == ["*"]:
                names = importlib.import_module(f"mydist.{node.module}").__all__
            yield from ((name, node.module) for name in names)
        else:
            assert ast.unparse(node) == "__version__: str"


def test_the_type_checker_sees_the_names_of_the_table() -> None:
    seen = list(names_for_type_checkers())
    assert len(dict(seen)) == len(seen)
    assert dict(seen) == md._MODULE_OF
    assert sorted(["__version__", *dict(seen)]) == md.__all__


def test_the_version_is_the_compiled_one() -> None:
    from mydist import _C

    assert md.__version__ == _C.version()


def test_run_is_a_function_even_after_its_module_was_imported(run_python: RunPython) -> None:
    done = run_python("import mydist, mydist.collectives; print(callable(mydist.run))")
    assert done.stdout.strip() == "True", done.stderr
