"""What mkdocs needs to know of this repository: pages are written for a code host, and work on the
site as they are.

* The home page is the README.
* A page may link to any file of the repository (`../benchmarks/results/seeds.png`); the site gets a
  copy of it.
* A page that the navigation does not name goes to the end of its section Background.
* Pages of the reference begin with the lines that the examples of all docstrings count on.
"""

from __future__ import annotations

import posixpath
import re
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File

ROOT = Path(__file__).resolve().parent.parent
HOME = "index.md"
BACKGROUND = "Background"

PREPARED = """
Made from the docstrings. Examples begin where these lines end:

```python
import jax, jax.numpy as jnp, numpy as np
import kqljax
from kqljax import features, theory

jax.config.update("jax_enable_x64", True)
```
"""

_LINK = re.compile(r"\]\(([^)#\s]+)(#[^)\s]*)?\)")
_FENCED = re.compile(r"(^```.*?^```)", re.MULTILINE | re.DOTALL)


def _in_repository(source: str, target: str) -> str:
    """The path from the repository's root of what a page `source` (a path in it) links to."""
    return posixpath.normpath(posixpath.join(posixpath.dirname(source), target))


def _on_site(path: str) -> str:
    """Where a file of the repository is on the site."""
    return HOME if path == "README.md" else path.removeprefix("docs/")


def _source(page: str) -> str:
    """The file of the repository that a page of the site is made from."""
    return "README.md" if page == HOME else f"docs/{page}"


def translate(text: str, page: str) -> str:
    """The text of a page with links as the site has them."""

    def moved(link: re.Match[str]) -> str:
        if "://" in link[1]:
            return link[0]
        target = _on_site(_in_repository(_source(page), link[1]))
        return f"]({posixpath.relpath(target, posixpath.dirname(page) or '.')}{link[2] or ''})"

    # Every second part is a block of code, in which brackets are brackets.
    parts = _FENCED.split(text)
    return "".join(part if i % 2 else _LINK.sub(moved, part) for i, part in enumerate(parts))


def linked_files(text: str, page: str) -> set[str]:
    """Files of the repository outside of docs/ that a page links to."""
    targets = {
        link[1]
        for part in _FENCED.split(text)[::2]
        for link in _LINK.finditer(part)
        if "://" not in link[1]
    }
    found = {_in_repository(_source(page), target) for target in targets}
    return {
        path
        for path in found
        if not path.startswith("docs/") and path != "README.md" and (ROOT / path).is_file()
    }


def on_config(config: Any) -> Any:
    named = set(re.findall(r"[\w/]+\.md", str(config.nav)))
    others = sorted(path.name for path in (ROOT / "docs").glob("*.md") if path.name not in named)
    next(entry[BACKGROUND] for entry in config.nav if BACKGROUND in entry).extend(others)
    return config


def on_files(files: Any, *, config: Any) -> Any:
    files.append(File.generated(config, HOME, content=(ROOT / "README.md").read_text()))
    linked = set().union(
        *(linked_files(file.content_string, file.src_uri) for file in files.documentation_pages())
    )
    for path in sorted(linked):
        files.append(File.generated(config, path, abs_src_path=str(ROOT / path)))
    return files


def on_page_markdown(markdown: str, *, page: Any, **_: Any) -> str:
    name = page.file.src_uri
    if name.startswith("api/"):
        title, _, rest = markdown.partition("\n")
        markdown = f"{title}\n{PREPARED}{rest}"
    return translate(markdown, name)
