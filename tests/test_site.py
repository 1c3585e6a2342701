"""The documentation builds without a warning, holds every public name, and needs nothing from other
hosts.
"""

import importlib.util
import os
import re
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest
from chromium import open_browser

import kqljax
from kqljax import features, rounds, theory

ROOT = Path(__file__).parent.parent
NEEDED = ("mkdocs", "material", "mkdocstrings")

pytestmark = pytest.mark.skipif(
    any(importlib.util.find_spec(name) is None for name in NEEDED),
    reason="no mkdocs here: pip install 'kqljax[docs]'",
)


class Seen(HTMLParser):
    """What a page loads, where it leads and which anchors it has."""

    def __init__(self, text):
        super().__init__()
        self.loads, self.links, self.anchors = [], [], set()
        self.feed(text)

    def handle_starttag(self, tag, attributes):
        given = dict(attributes)
        self.anchors.add(given.get("id"))
        if tag == "a" and "href" in given:
            self.links.append(given["href"])
        elif tag == "link" and given.get("rel") not in ("canonical", "next", "prev"):
            self.loads.append(given["href"])
        elif given.get("src"):
            self.loads.append(given["src"])


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    target = tmp_path_factory.mktemp("site")
    done = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(target)],
        cwd=ROOT,
        env={**os.environ, "NO_MKDOCS_2_WARNING": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "WARNING" not in done.stderr
    return target


@pytest.fixture(scope="module")
def pages(site):
    return {
        path: Seen(path.read_text()) for path in site.rglob("*.html") if path.name != "404.html"
    }


def test_every_page_is_there(site, pages):
    written = {
        path.relative_to(ROOT / "docs").with_suffix(".html")
        for path in (ROOT / "docs").rglob("*.md")
    }
    assert {path.relative_to(site) for path in pages} == written | {Path("index.html")}
    home = {unquote(urlsplit(link).path) for link in pages[site / "index.html"].links}
    assert {str(path) for path in written} <= home, "the navigation leads to every page"


def test_links_and_pictures_are_there(pages):
    for page, seen in pages.items():
        for target in seen.links + seen.loads:
            address = urlsplit(target)
            if address.scheme:
                continue
            path = (page.parent / unquote(address.path)).resolve() if address.path else page
            path = path / "index.html" if path.is_dir() else path
            assert path.is_file(), f"{page.name} leads to {target}"
            if address.fragment and path in pages and address.fragment != "__skip":
                assert unquote(address.fragment) in pages[path].anchors, (
                    f"{page.name} leads to {target}"
                )


def test_nothing_comes_from_other_hosts(site, pages):
    for page, seen in pages.items():
        assert not [
            target for target in seen.loads if urlsplit(target).scheme in ("http", "https")
        ], page.name
    for path in site.rglob("*.css"):
        assert not re.findall(r"url\([\"']?https?://|@import", path.read_text()), path.name


def test_the_reference_has_every_public_name(pages):
    anchors = set().union(*(seen.anchors for seen in pages.values()))
    for package in (kqljax, features, rounds, theory):
        for name in package.__all__:
            # DEFAULT is in the text about Recipe; the others are packages with pages of their own.
            if name not in ("DEFAULT", "features", "regression", "rounds", "theory"):
                # The site knows a function by its module where both have one name:
                # kqljax.rounds.fit.fit.
                path = f"{package.__name__}.{name}"
                assert {path, f"{path}.{name}"} & anchors, path


def test_pages_load_in_a_browser(site):
    with open_browser() as page:
        for name in ("index.html", "concepts.html", "api/agent.html"):
            page.open(site / name)
            assert page.ask("document.querySelector('article h1').innerText.length > 0")
            assert page.ask("[...document.images].every(image => image.naturalWidth > 0)"), (
                f"a picture of {name} is missing"
            )
            assert page.ask("document.documentElement.scrollWidth <= innerWidth"), (
                f"{name} is too wide"
            )
        assert all(url.startswith(("file:", "data:", "blob:")) for url in page.requests)
        assert not page.messages


def test_links_are_translated():
    from docs_hooks import linked_files, translate

    text = "[a](../README.md) [b](../benchmarks/x.png) [c](faq.md#d)\n\n```\n[e](../f)\n```\n[g](https://h.i/j)"
    on_site = "[a](index.md) [b](benchmarks/x.png) [c](faq.md#d)\n\n```\n[e](../f)\n```\n[g](https://h.i/j)"
    assert translate(text, "theory.md") == on_site
    assert (
        translate("[a](docs/faq.md) [b](benchmarks/x.png)", "index.md")
        == "[a](faq.md) [b](benchmarks/x.png)"
    )
    assert (
        translate("[a](../../README.md) [b](../faq.md)", "api/agent.md")
        == "[a](../index.md) [b](../faq.md)"
    )
    assert linked_files(
        "[a](../README.md) [b](../Makefile) [c](faq.md) [d](../none)", "theory.md"
    ) == {"Makefile"}


def test_a_page_that_nobody_named_gets_a_place(monkeypatch, tmp_path):
    import docs_hooks

    (tmp_path / "docs").mkdir()
    for name in ("known.md", "new.md"):
        (tmp_path / "docs" / name).touch()
    monkeypatch.setattr(docs_hooks, "ROOT", tmp_path)

    class Config:
        nav = [{"Home": "index.md"}, {"Background": [{"Known": "known.md"}]}]  # noqa: RUF012

    assert docs_hooks.on_config(Config).nav[1]["Background"] == [{"Known": "known.md"}, "new.md"]
