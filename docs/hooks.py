"""MkDocs hooks: pages and files of the repository that lie outside docs/ become part of the site, and links to them follow."""

from __future__ import annotations

import os
import re
from pathlib import Path, PurePosixPath
from typing import Any

from mkdocs.structure.files import File, Files

ROOT = Path(__file__).parents[1]
PAGES = {
    "README.md": "readme.md",
    "CONTRIBUTING.md": "contributing/index.md",
    "RELEASE.md": "contributing/release.md",
    "SECURITY.md": "contributing/security.md",
    "CHANGELOG.md": "contributing/changelog.md",
    "examples/README.md": "guides/examples.md",
    "benchmarks/RESULTS.md": "evidence/speed.md",
}
ATTACHED = "files"
_LINK = re.compile(r"\]\(([^)\s#]+)(#[^)\s]*)?\)")


def on_files(files: Files, config: Any) -> Files:
    """Add the pages of `PAGES`, and every other file that a page links to."""
    for source, uri in PAGES.items():
        files.append(File.generated(config, uri, content=(ROOT / source).read_text("utf-8")))
    origins = [*PAGES, *(p.relative_to(ROOT).as_posix() for p in (ROOT / "docs").rglob("*.md"))]
    for path in sorted(_attachments(origins)):
        attached = File.generated(config, f"{ATTACHED}/{path}", content=(ROOT / path).read_bytes())
        files.append(attached)
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Point links from and to files outside docs/ at their places on the site."""
    uri = page.file.src_uri
    elsewhere = uri.removeprefix(f"{ATTACHED}/") if uri.startswith(ATTACHED) else f"docs/{uri}"
    origin = next((source for source, u in PAGES.items() if u == uri), elsewhere)
    return _LINK.sub(lambda m: f"]({_on_site(m[1], origin, uri)}{m[2] or ''})", markdown)


def _on_site(target: str, origin: str, uri: str) -> str:
    path = _in_repository(target, origin)
    if path is None:
        return target
    place = path.removeprefix("docs/") if path.startswith("docs/") else _place(path)
    return os.path.relpath(place, PurePosixPath(uri).parent)


def _place(path: str) -> str:
    return PAGES.get(path, f"{ATTACHED}/{path}")


def _in_repository(target: str, origin: str) -> str | None:
    """The path of a linked file from the repository's root; None for addresses of the web."""
    if "://" in target or target.startswith("mailto:"):
        return None
    return os.path.normpath(PurePosixPath(origin).parent / target)


def _attachments(origins: list[str]) -> set[str]:
    """Files outside docs/ that the pages link to, and that those link to if they are pages."""
    waiting, attached = list(origins), set()
    while waiting:
        origin = waiting.pop()
        for match in _LINK.finditer((ROOT / origin).read_text("utf-8")):
            path = _in_repository(match[1], origin)
            if not path or path.startswith("docs/") or path in {*PAGES, *attached}:
                continue
            if (ROOT / path).is_file():
                attached.add(path)
                waiting += [path] if path.endswith(".md") else []
    return attached
