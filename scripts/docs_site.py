"""What the documentation site adds to docs/: pages of the root, the decisions, linked sources.

MkDocs and Griffe call these hooks (mkdocs.yml). README.md, CONTRIBUTING.md and CHANGELOG.md become
pages. A link to a source file leads to a copy of the file in the site's folder `source`.
"""

from __future__ import annotations

import posixpath
import re
from pathlib import Path
from typing import Any

import griffe
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files

ROOT = Path(__file__).resolve().parents[1]
# Page of the site → file of the repository.
PAGES = {
    "index.md": "README.md",
    "contributing.md": "CONTRIBUTING.md",
    "changelog.md": "CHANGELOG.md",
}
_PAGE_OF = {file: page for page, file in PAGES.items()}
_LINK = re.compile(r"(?<=\]\()(?![a-z]+:|#)([^)#\s]+)(?=[)#])")


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Lists the decisions under `Develop`, in their order."""
    nav: list[Any] = config.nav or []
    decisions = sorted((ROOT / "docs" / "decisions").glob("*.md"))
    entries = [f"decisions/{path.name}" for path in decisions]
    for section in nav:
        for entry in section.get("Develop", []):
            if "Decisions" in entry:
                entry["Decisions"] = entries
    return config


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Adds the pages of the root, and each source file that a page links to."""
    for uri, name in PAGES.items():
        text = (ROOT / name).read_text(encoding="utf-8")
        files.append(File.generated(config, uri, content=_moved(text, name, uri)))
    for file in list(files):
        if not file.is_documentation_page() or file.src_uri in PAGES:
            continue
        page = f"docs/{file.src_uri}"
        file.content_string = _moved(file.content_string, page, file.src_uri)
    for name in sorted(_sources):
        content = (ROOT / name).read_text(encoding="utf-8")
        files.append(File.generated(config, f"source/{name}.txt", content=content))
    return files


class Forms(griffe.Extension):
    """Shows the forms of a collective with the parameters that the decorator form_of() gives."""

    def on_function(self, *, func: griffe.Function, **_: Any) -> None:
        """Called for each function, after those above it."""
        for decorator in func.decorators:
            call = decorator.value
            if decorator.callable_path.endswith("form_of") and isinstance(call, griffe.ExprCall):
                assert func.parent is not None
                func.parameters = func.parent[str(call.arguments[0])].parameters


_sources: set[str] = set()


def _moved(text: str, name: str, uri: str) -> str:
    """The page's text, with links that hold where it is in the site.

    `name` is its file in the repository, `uri` its page in the site.
    """

    def replace(match: re.Match[str]) -> str:
        target = posixpath.normpath(posixpath.join(posixpath.dirname(name), match[1]))
        if inside := sorted((ROOT / target).glob("*.md")):  # A folder of pages: its first one.
            target = inside[0].relative_to(ROOT).as_posix()
        if target in _PAGE_OF:
            found = _PAGE_OF[target]
        elif target.startswith("docs/") or not (ROOT / target).is_file():
            found = target.removeprefix("docs/")
        else:
            _sources.add(target)
            found = f"source/{target}.txt"
        return posixpath.relpath(found, posixpath.dirname(uri) or ".")

    return _LINK.sub(replace, text)
