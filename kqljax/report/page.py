"""A report as one HTML page that needs nothing but itself: pictures and data are inside, and no script is.

Light or dark as the reader's system is. On a narrow screen tables scroll sideways and figures come in one column.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Iterable, Sequence
from html import escape
from typing import Any, NamedTuple

import kqljax
from kqljax.report import style


class Section(NamedTuple):
    """A part of the page.

    Attributes:
      name: its id, for links.
      title: its heading.
      html: what is in it.
    """

    name: str
    title: str
    html: str


# Nothing may be fetched: whoever opens the page tells no one.
_POLICY = "default-src 'none'; img-src data:; style-src 'unsafe-inline'"

_STYLE = """
:root { color-scheme: light dark; --paper: #fbfbfa; --card: #ffffff; --ink: #1c1c1c; --quiet: #5f6368; --line: #dddddd;
  --accent: #0b63a5; }
@media (prefers-color-scheme: dark) { :root { --paper: #15171a; --card: #1e2125; --ink: #e8e8e6; --quiet: #a2a7ad;
  --line: #363b41; --accent: #7ab8ea; } }
* { box-sizing: border-box; }
body { margin: 0; background: var(--paper); color: var(--ink); font: 16px/1.55 system-ui, sans-serif; }
main, header, footer { max-width: 76rem; margin: 0 auto; padding: 0 1.5rem; }
header { padding-top: 2.5rem; }
h1 { font-size: 1.9rem; line-height: 1.2; margin: 0 0 .5rem; }
h2 { font-size: 1.25rem; margin: 2.5rem 0 .75rem; }
p { max-width: 46rem; }
a { color: var(--accent); }
nav { display: flex; flex-wrap: wrap; gap: .25rem 1.25rem; margin: 1rem 0 0; font-size: .95rem; }
.scroll { overflow-x: auto; background: var(--card); border: 1px solid var(--line); border-radius: 8px; }
table { border-collapse: collapse; width: 100%; font-size: .92rem; font-variant-numeric: tabular-nums; }
th, td { padding: .5rem .85rem; text-align: right; white-space: nowrap; vertical-align: top;
  border-bottom: 1px solid var(--line); }
th:first-child, td:first-child { text-align: left; position: sticky; left: 0; background: var(--card); }
tr:last-child > * { border-bottom: 0; }
thead th { color: var(--quiet); font-weight: 600; }
td b { font-size: 1.05rem; }
td small, .quiet { color: var(--quiet); }
.text td { text-align: left; white-space: normal; overflow-wrap: anywhere; }
.text td:first-child { color: var(--quiet); white-space: nowrap; }
figure { margin: 0 0 1.5rem; }
figure img { width: 100%; height: auto; display: block; background: #fff; border: 1px solid var(--line); border-radius: 8px; }
figure.small img { max-width: 34rem; }
figcaption { color: var(--quiet); font-size: .92rem; margin-top: .4rem; max-width: 46rem; }
pre { overflow-x: auto; background: var(--card); border: 1px solid var(--line); border-radius: 8px; padding: .85rem 1rem; }
pre, code { font: .88rem/1.5 ui-monospace, monospace; }
details { margin: 1rem 0; }
summary { cursor: pointer; color: var(--accent); }
.narrow { display: none; }
.warning { border-left: 4px solid #d98200; background: var(--card); padding: .6rem 1rem; }
footer { color: var(--quiet); font-size: .88rem; padding-top: 2rem; padding-bottom: 3rem; }
@media (max-width: 40rem) { body { font-size: 15px; } main, header, footer { padding-left: 1rem; padding-right: 1rem; }
  .narrow { display: block; } header { padding-top: 1.5rem; } h1 { font-size: 1.5rem; } th, td { padding: .45rem .6rem; } }
@media print { .scroll { overflow: visible; } }
"""


def make_page(title: str, lead: str, sections: Sequence[Section], data: Any) -> str:
    """The page, with `data` as JSON inside for programs, and to be saved by people.

    Args:
      lead: HTML under the title.
    """
    text = json.dumps(data, allow_nan=False)
    links = "".join(f'<a href="#{section.name}">{escape(section.title)}</a>' for section in sections)
    body = "".join(
        f'<section id="{section.name}"><h2>{escape(section.title)}</h2>{section.html}</section>' for section in sections
    )
    saved = base64.b64encode(text.encode()).decode()
    # In a script element the text ends at the first "</": JSON may write the slash another way.
    inside = text.replace("</", "<\\/")
    return (
        "<!doctype html>\n"
        f'<html lang="en"><head><meta charset="utf-8"><title>{escape(title)}</title>'
        f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}">'
        '<meta name="viewport" content="width=device-width, initial-scale=1"><link rel="icon" href="data:,">'
        f"<style>{_STYLE}</style></head><body>"
        f"<header><h1>{escape(title)}</h1>{lead}<nav>{links}</nav></header><main>{body}</main>"
        f'<footer>Made by kqljax {escape(kqljax.__version__)}. <a download="data.json" '
        f'href="data:application/json;base64,{saved}">Save the data of this page (JSON)</a></footer>'
        f'<script type="application/json" id="data">{inside}</script></body></html>\n'
    )


def table(head: Sequence[str], rows: Iterable[Sequence[str]], kind: str = "") -> str:
    """A table of HTML cells that scrolls sideways where the screen is narrow."""
    top = f"<thead><tr>{''.join(f'<th>{cell}</th>' for cell in head)}</tr></thead>" if head else ""
    lines = "".join(f"<tr>{''.join(f'<td>{cell}</td>' for cell in row)}</tr>" for row in rows)
    return f'<div class="scroll" tabindex="0"><table class="{kind}">{top}<tbody>{lines}</tbody></table></div>'


def pairs(rows: dict[str, Any]) -> str:
    """A table of names and what they are."""
    return table((), ((escape(name), escape(_words(value))) for name, value in rows.items()), "text")


def _words(value: Any) -> str:
    if isinstance(value, (list, tuple)):
        return ", ".join(map(str, value))
    return f"{value:.6g}" if isinstance(value, float) else str(value)


def picture(data: bytes, alt: str, caption: str = "", narrow: bytes | None = None, kind: str = "png", css: str = "") -> str:
    """An image inside the page; `narrow` is shown in its place on a narrow screen."""
    source = ""
    if narrow is not None:
        source = f'<source media="(max-width: 40rem)" srcset="{_inline(narrow, kind)}">'
    words = f"<figcaption>{escape(caption)}</figcaption>" if caption else ""
    image = f'<picture>{source}<img alt="{escape(alt)}" src="{_inline(data, kind)}"></picture>'
    return f'<figure class="{css}">{image}{words}</figure>'


def drawn(draw: Callable[..., Any], alt: str, caption: str, columns: int) -> str:
    """A figure that `draw(columns=)` draws, for wide screens and for narrow ones."""
    return picture(style.png(draw(columns=columns)), alt, caption, style.png(draw(columns=1)))


def _inline(data: bytes, kind: str) -> str:
    return f"data:image/{kind};base64,{base64.b64encode(data).decode()}"
