"""Code blocks of the pages: `sh` commands run, `console` ones name real things, Python compiles."""

from __future__ import annotations

import itertools
import re
import shlex
import subprocess
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import pytest

import mydist as md
from mydist import ps
from mydist.launcher.errors import UsageError
from mydist.launcher.flags import parse_flags

ROOT = Path(__file__).resolve().parents[2]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
LANGUAGES = {"sh", "console", "python", "cpp", "text", "yaml", "json", "make"}
_BLOCK = re.compile(r"^( *)```(\S*)[^\n]*\n(.*?)^ *```$", re.MULTILINE | re.DOTALL)
_OURS = re.compile(r"(?:examples|scripts|tests|benchmarks|csrc|docs|build)/\S+")


def layout_errors(text: str) -> list[str]:
    """What a reader sees broken: long lines, and lists that MkDocs takes for text."""
    wrong = []
    lines = _BLOCK.sub("", text).splitlines()
    for before, line in zip(["", *lines], lines, strict=False):
        if len(line) > 100 and not line.startswith(("|", "![")):
            wrong.append(f"longer than 100 columns: {line}")
        if line.startswith("- ") and before and not before.startswith(("- ", "  ")):
            wrong.append(f"needs an empty line before it: {line}")
        if line.startswith("|") and re.search(r"`[^`|]*\\\|", line):
            wrong.append(f"the site shows the backslash: {line}")
    return wrong + [f"code inside a list: {code[2]}" for code in _BLOCK.findall(text) if code[0]]


def blocks(page: Path, *languages: str) -> Iterator[str]:
    for _, language, text in _BLOCK.findall(page.read_text(encoding="utf-8")):
        if language in languages:
            yield text


def commands(page: Path, language: str) -> list[str]:
    """One a line; a line that ends in a backslash goes on in the next."""
    lines = "\n".join(blocks(page, language)).replace("\\\n", " ").splitlines()
    return [line for line in lines if shlex.split(line, comments=True)]


def of_all_pages(language: str) -> list[object]:
    return [
        pytest.param(command, id=f"{page.name}: {command}")
        for page in PAGES
        for command in commands(page, language)
    ]


def why_wrong(command: str, targets: set[str]) -> str:
    """Empty where everything of ours that the command names is there."""
    words = shlex.split(command, comments=True)
    while words and re.fullmatch(r"[A-Z_]+=.*", words[0]):
        words.pop(0)
    if words[:1] == ["mydistrun"]:
        try:
            parse_flags(words[1:])
        except UsageError as error:
            return str(error)
    if words[:1] == ["make"]:
        asked = {word for word in words[1:] if "=" not in word and not word.startswith("-")}
        if unknown := asked - targets:
            return f"make has no target {', '.join(sorted(unknown))}"
    for flag, module in itertools.pairwise(words):
        if flag == "-m" and re.match(r"(?:mydist|benchmarks)\b", module) and not find_spec(module):
            return f"there is no module {module}"
    for word in words:
        # What is built, and patterns, need not be there.
        if _OURS.fullmatch(word) and not re.match(r"build/|.*[*<…]", word):
            path = word.partition("::")[0]
            if not (ROOT / path).exists():
                return f"there is no {path}"
    return ""


@pytest.fixture(scope="module")
def targets() -> set[str]:
    """Of make."""
    text = (ROOT / "Makefile").read_text(encoding="utf-8")
    return set(re.findall(r"^([a-z-]+):", text, re.MULTILINE))


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_block_has_a_language_and_python_compiles(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    assert len(re.findall(r"^ *```", text, re.MULTILINE)) == 2 * len(_BLOCK.findall(text))
    assert {language for _, language, _ in _BLOCK.findall(text)} <= LANGUAGES
    plain = _BLOCK.sub("", text)
    indented = re.findall(r"\n\n {4}(?! *[-*\d|])\S.*", plain)
    assert not indented, "code is in fenced blocks that name their language"
    for code in blocks(page, "python"):
        compile(code, str(page), "exec")


@pytest.mark.parametrize("page", [*PAGES, ROOT / "CHANGELOG.md"], ids=lambda page: page.name)
def test_a_page_reads_well_in_an_editor_and_on_the_site(page: Path) -> None:
    assert layout_errors(page.read_text(encoding="utf-8")) == []


def test_a_broken_layout_is_found() -> None:
    assert layout_errors("a\n- b\n" + "c" * 101) == [
        "needs an empty line before it: - b",
        "longer than 100 columns: " + "c" * 101,
    ]
    assert layout_errors("- a\n\n  ```text\n  b\n  ```\n") == ["code inside a list:   b\n"]
    assert layout_errors("| `a \\| b` |\n") == ["the site shows the backslash: | `a \\| b` |"]
    assert layout_errors("a\n\n- b\n  c\n- d\n\n```text\n" + "e" * 101 + "\n```\n") == []


@pytest.mark.parametrize("command", of_all_pages("console"))
def test_what_an_illustration_names_is_there(command: str, targets: set[str]) -> None:
    assert not why_wrong(command, targets)


@pytest.mark.parametrize(
    ("command", "reason"),
    [
        ("mydistrun -np 2 --no-such-flag python a.py", "no-such-flag"),
        ("make no-such-target", "no-such-target"),
        ("OMP_NUM_THREADS=1 python examples/none.py", "examples/none.py"),
        ("mydistrun -np 2 python -m mydist.none", "mydist.none"),
        ("mydistrun -np 2 python examples/allreduce.py  # a comment", ""),
    ],
)
def test_a_wrong_command_is_found(command: str, reason: str, targets: set[str]) -> None:
    found = why_wrong(command, targets)
    assert reason in found if reason else not found


@pytest.mark.parametrize("command", of_all_pages("sh"))
def test_a_command_of_the_pages_runs(command: str) -> None:
    """As it stands, in the repository's root."""
    ran = subprocess.run(
        ["scripts/in_environment.sh", "bash", "-c", command],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert ran.returncode == 0, f"{ran.stdout}\n{ran.stderr}"


def test_some_pages_have_commands_of_each_kind() -> None:
    """Else the tests above would be skipped without a word."""
    assert of_all_pages("sh") and of_all_pages("console")


def test_the_api_page_has_every_public_name() -> None:
    page = (ROOT / "docs" / "api.md").read_text(encoding="utf-8")
    named = re.findall(r"^::: mydist\.(\w+)$", page, re.MULTILINE)
    assert sorted(named) == sorted(set(md.__all__) - {"__version__"})
    assert sorted(re.findall(r"^::: mydist\.ps\.(\w+)$", page, re.MULTILINE)) == sorted(ps.__all__)
