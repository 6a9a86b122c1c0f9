"""The report as HTML: a page of its own, or a part of a notebook. It loads nothing from elsewhere."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from html import escape
from itertools import groupby

from noclobber.model.finding import Finding
from noclobber.model.ledger import Ledger
from noclobber.model.report import Report
from noclobber.model.units import size
from noclobber.render.ledger import living_anyway, place_of, table
from noclobber.render.snippet import Row
from noclobber.render.text import one_line, shown_path, typed, visible

WIDTH, HEIGHT = 1000, 480
"""The size of the ledger's picture, in its own units."""
_RED, _AMBER, _BLUE, _TEAL, _GREEN = "#d3302f", "#a86400", "#3b78c9", "#0a857c", "#2e8540"
"""They can be read on white and on black: a notebook does not say which it has."""
_DARK = {_RED: "#ff8a80", _AMBER: "#f2b84b", _BLUE: "#8fbcff", _TEAL: "#5ad1c8", _GREEN: "#7fd694"}
"""What a page has instead where it is dark."""
_NAMES = {_RED: "red", _AMBER: "amber", _BLUE: "blue", _TEAL: "teal", _GREEN: "green"}
_COLOR = re.compile("#[0-9a-f]{6}")
_SEVERITY = {"error": f"color:{_RED};font-weight:bold", "warning": f"color:{_AMBER};font-weight:bold"}
_SEVERITY["hint"] = f"color:{_TEAL};font-weight:bold"
_STYLES = {
    "headline": "font-weight:bold",
    "gutter": f"color:{_BLUE}",
    "secondary": f"color:{_BLUE}",
    "note": "font-weight:bold",
    "help": f"color:{_TEAL};font-weight:bold",
    "removed": f"color:{_RED}",
    "added": f"color:{_GREEN}",
}


def html(report: Report, *, color: bool = False, width: int | None = None) -> str:
    """A page that a browser shows without a network, in light and dark, and that a screen reader can read.

    It has everything of the report, so `color` and `width` change nothing.
    """
    from noclobber.render import layout

    findings = "".join(_folding(one, report) for one in report.findings)
    footer = _painted(layout.footer(report, None), _on_page(_STYLES))
    title = escape(_title(report))
    body = (
        f"<main><h1>{title}</h1><div>{escape(_surroundings(report))}</div>{_filters(report)}"
        f"<div id='findings'>{findings}</div><pre class='words'>{footer}</pre>{_ledger(report.ledger)}</main>"
    )
    head = (
        f"<meta charset='utf-8'><meta name='viewport' content='width=device-width'><title>{title}</title>"
        f"<meta http-equiv='Content-Security-Policy' content=\"{_POLICY}\">{_STYLE}"
    )
    script = f"<script>{_FILTERING}</script>" if report.findings else ""
    return f"<!doctype html>\n<html lang='en'><head>{head}</head><body>{body}{script}</body></html>\n"


def part(report: Report) -> str:
    """Return the findings and the footer for the output of a notebook's cell: no scripts, and styles at each word."""
    from noclobber.render import layout

    parts = [_painted(layout.rows(one, None), _styles(one)) for one in report.findings]
    parts.append(_painted(layout.footer(report, None), _STYLES))
    if report.ledger is not None:
        parts.append(escape(table(report.ledger)))
    return "".join(f"<pre>{one}</pre>" for one in parts)


def preformatted(text: str) -> str:
    """Return a text for the output of a notebook's cell, with the lines that it has."""
    return f"<pre>{escape(text)}</pre>"


def _folding(finding: Finding, report: Report) -> str:
    """A finding below its headline, which folds and unfolds it."""
    from noclobber.render import layout

    styles = _on_page(_styles(finding))
    title = _painted(layout.headline(finding, None), styles).rstrip()
    parts = groupby(layout.details(finding, None), _is_words)
    details = "".join(
        f"<pre class='{'words' if words else 'window'}'>{_painted(rows, styles)}</pre>" for words, rows in parts
    )
    about = {
        "code": visible(finding.code),
        "file": _file(finding),
        "process": "\n".join(_processes(finding, report)),
    }
    data = "".join(f" data-{name}='{escape(value)}'" for name, value in about.items())
    return f"<details open{data}><summary><code>{title}</code></summary><div class='box'>{details}</div></details>"


def _is_words(row: Row) -> bool:
    """Return True for a line of a note or of help, which may be broken; a line of a window may not."""
    return bool(row) and row[0][0] != "gutter"


def _title(report: Report) -> str:
    """Return what the page is about: the program, where the report has it."""
    words = report.program.get("argv")
    if not isinstance(words, list) or not words or not all(isinstance(one, str) for one in words):
        return "noclobber"
    return f"noclobber: {typed(words)}"


def _surroundings(report: Report) -> str:
    """Return the versions and the exit status that the report has: "torch 2.13.0, Python 3.11.7, exit status 1"."""
    named = {"torch": "torch", "python": "Python", "status": "exit status"}
    known = {words: report.program.get(name) for name, words in named.items()}
    return ", ".join(f"{words} {one_line(str(one))}" for words, one in known.items() if isinstance(one, (str, int)))


def _filters(report: Report) -> str:
    """What chooses findings by code, file and process, where there is something to choose."""
    choices = {
        "code": dict.fromkeys(visible(one.code) for one in report.findings),
        "file": dict.fromkeys(_file(one) for one in report.findings),
        "process": dict.fromkeys(name for one in report.findings for name in _processes(one, report)),
    }
    fields = []
    for name, values in choices.items():
        if len(values) > 1:
            options = "".join(f"<option value='{escape(one)}'>{escape(one)}</option>" for one in values)
            fields.append(
                f"<label>{name} <select name='{name}'><option value=''>all</option>{options}</select></label>"
            )
    if len(report.findings) > 1:
        fields.append("<button type='button' id='fold'>fold all</button>")
    # Without scripts it can do nothing, and is not shown.
    shown = "<output id='shown' aria-live='polite'></output>"
    return f"<form id='filters' hidden>{''.join(fields)}{shown}</form>" if fields else ""


def _file(finding: Finding) -> str:
    return shown_path(finding.primary.span.path) if finding.primary else ""


def _processes(finding: Finding, report: Report) -> Iterable[str]:
    return [one_line(one.described()) for one in report.processes if one.id in finding.processes]


def _on_page(styles: dict[str, str]) -> dict[str, str]:
    """Return styles whose colours are lighter where the page is dark."""
    return {name: _COLOR.sub(lambda found: f"var(--{_NAMES[found[0]]})", style) for name, style in styles.items()}


def _styles(finding: Finding) -> dict[str, str]:
    return {**_STYLES, **_SEVERITY, "primary": _SEVERITY.get(finding.severity, _SEVERITY["error"])}


def _painted(rows: Iterable[Row], styles: dict[str, str]) -> str:
    """Rows as lines of HTML. All that the program wrote is escaped here."""
    return "".join(f"{''.join(_span(text, styles.get(style, '')) for style, text in row).rstrip()}\n" for row in rows)


def _span(text: str, style: str) -> str:
    return f"<span style='{style}'>{escape(text)}</span>" if style and text.strip() else escape(text)


def _ledger(ledger: Ledger | None) -> str:
    if ledger is None:
        return ""
    kept = [one for one in ledger.entries if not one.lives_anyway]
    said = f"{size(ledger.bytes)} at the peak"
    if living := living_anyway(ledger):
        said += f", and {size(ledger.parameters + ledger.buffers)} of {living}, which live anyway"
    rows = [
        {
            "bytes": one.bytes,
            "size": size(one.bytes),
            "line": place_of(one),
            "module": one_line(one.module) or "no module",
            "operator": one_line(one.op) or "not known",
            "source": one_line(one.source),
        }
        for one in kept
    ]
    cells = "".join(
        f"<tr><td>{escape(str(row['size']))}</td><td>{escape(str(row['line']))}</td><td>{escape(str(row['module']))}"
        f"</td><td>{escape(str(row['operator']))}</td><td><code>{escape(str(row['source']))}</code></td></tr>"
        for row in rows
    )
    data = json.dumps(rows).replace("<", "\\u003c").replace("&", "\\u0026")
    choices = "".join(
        f"<label><input type='radio' name='by' value='{key}'{' checked' * (key == 'line')}> {key}</label>"
        for key in ("line", "module", "operator")
    )
    head = "".join(f"<th scope='col'>{name}</th>" for name in ("bytes", "line", "module", "operator", "source"))
    return (
        f"<section aria-labelledby='kept'><h2 id='kept'>Kept for backward: {escape(said)}</h2>"
        f"<fieldset><legend>Group by</legend>{choices}</fieldset>"
        f"<svg id='map' viewBox='0 0 {WIDTH} {HEIGHT}' role='group' aria-label='Bytes kept for backward'></svg>"
        f"<p id='said' role='status' aria-live='polite'></p>"
        f"<div class='wide'><table><caption>Bytes kept at the peak, the most first</caption>"
        f"<thead><tr>{head}</tr></thead><tbody>{cells}</tbody></table></div></section>"
        f"<script type='application/json' id='rows'>{data}</script><script>{_SCRIPT}</script>"
    )


_LIGHT_COLORS = " ".join(f"--{name}: {color};" for color, name in _NAMES.items())
_DARK_COLORS = " ".join(f"--{_NAMES[color]}: {dark};" for color, dark in _DARK.items())
_STYLE = (
    f"""<style>
:root {{ color-scheme: light dark; {_LIGHT_COLORS} }}
@media (prefers-color-scheme: dark) {{ :root {{ {_DARK_COLORS} }} }}
"""
    + """\
body { font: 16px/1.5 system-ui, sans-serif; margin: 0; }
main { max-width: 1100px; margin: 0 auto; padding: 1rem; }
h1 { overflow-wrap: anywhere; }
.box, main > pre { padding: 1rem; border: 1px solid color-mix(in srgb, currentColor 25%, transparent); }
pre { overflow-x: auto; margin: 0; font-size: .875rem; }
pre.words { white-space: pre-wrap; overflow-wrap: break-word; }
summary { cursor: pointer; padding: .5rem 0; }
summary code { white-space: pre-wrap; font-size: 1rem; }
#filters { display: flex; flex-wrap: wrap; gap: 1rem; align-items: baseline; }
#filters[hidden] { display: none; }
fieldset { border: 0; padding: 0; margin: 0 0 .5rem; display: flex; gap: 1rem; }
legend { float: left; margin-right: 1rem; }
svg { width: 100%; height: auto; display: block; }
svg rect { stroke: Canvas; stroke-width: 2; }
svg text { fill: #111; font-size: 13px; pointer-events: none; }
svg g:focus { outline: none; }
svg g:focus rect, svg g:hover rect { stroke: CanvasText; stroke-width: 4; }
.wide { overflow-x: auto; }
table { border-collapse: collapse; width: 100%; }
caption { text-align: left; font-weight: 600; padding: 1rem 0 .25rem; }
td:first-child { white-space: nowrap; }
th, td { text-align: left; padding: .25rem .75rem .25rem 0; vertical-align: top;
  border-bottom: 1px solid color-mix(in srgb, currentColor 20%, transparent); }
@media print {
  fieldset, #said, #filters { display: none; }
  pre { overflow: visible; font-size: 7pt; }
  h2 { break-after: avoid; break-inside: avoid; }
  svg { break-inside: avoid; print-color-adjust: exact; }
  .wide { overflow: visible; font-size: 8pt; }
  tr { break-inside: avoid; }
  th, td { overflow-wrap: anywhere; }
}
</style>"""
)
_POLICY = "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'"
"""Nothing may be loaded, whatever the text of a program holds."""
_FILTERING = """
{
  const form = document.getElementById("filters"), all = [...document.querySelectorAll("details")];
  const told = document.getElementById("shown"), fold = document.getElementById("fold");
  const choices = form ? [...form.querySelectorAll("select")] : [];
  if (form) form.hidden = false;
  for (const choice of choices) choice.addEventListener("change", () => {
    for (const one of all) {
      one.hidden = choices.some(by => by.value && !one.dataset[by.name].split("\\n").includes(by.value));
    }
    const left = all.filter(one => !one.hidden).length;
    told.textContent = left < all.length ? `${left} of ${all.length} shown` : "";
  });
  if (fold) fold.addEventListener("click", () => {
    const open = fold.textContent === "unfold all";
    for (const one of all) one.open = open;
    fold.textContent = open ? "fold all" : "unfold all";
  });
  addEventListener("beforeprint", () => { for (const one of all) one.open = true; });
}
"""
_SCRIPT = """
const rows = JSON.parse(document.getElementById("rows").textContent);
const map = document.getElementById("map"), said = document.getElementById("said");
const [width, height] = [map.viewBox.baseVal.width, map.viewBox.baseVal.height];
const total = rows.reduce((sum, row) => sum + row.bytes, 0);
const SVG = "http://www.w3.org/2000/svg";
function shown(bytes) {
  const units = ["B", "kB", "MB", "GB", "TB"];
  let at = 0;
  while (bytes >= 1000 && at < 4) { bytes /= 1000; at += 1; }
  return (at ? bytes.toFixed(1) : bytes) + " " + units[at];
}
function grouped(key) {
  const sums = new Map();
  for (const row of rows) {
    const one = sums.get(row[key]) || {name: row[key], bytes: 0, source: row.source};
    one.bytes += row.bytes;
    sums.set(row[key], one);
  }
  return [...sums.values()].filter(one => one.bytes > 0).sort((a, b) => b.bytes - a.bytes);
}
function laid(items, x, y, w, h, place) {
  // Halves of equal weight, side by side along the longer side.
  if (items.length === 1) { place(items[0], x, y, w, h); return; }
  const sum = items.reduce((all, one) => all + one.bytes, 0);
  let first = 0, at = 0;
  do { first += items[at].bytes; at += 1; }
  while (at < items.length - 1 && first + items[at].bytes / 2 < sum / 2);
  const part = first / sum;
  if (w >= h) {
    laid(items.slice(0, at), x, y, w * part, h, place);
    laid(items.slice(at), x + w * part, y, w * (1 - part), h, place);
  } else {
    laid(items.slice(0, at), x, y, w, h * part, place);
    laid(items.slice(at), x, y + h * part, w, h * (1 - part), place);
  }
}
function drawn(key) {
  map.replaceChildren();
  said.textContent = "";
  const items = grouped(key);
  if (!items.length) return;
  let number = 0;
  laid(items, 0, 0, width, height, (one, x, y, w, h) => {
    const group = document.createElementNS(SVG, "g"), box = document.createElementNS(SVG, "rect");
    const label = `${one.name}: ${shown(one.bytes)}, ${(100 * one.bytes / total).toFixed(1)} %`;
    group.setAttribute("tabindex", "0");
    group.setAttribute("role", "img");
    group.setAttribute("aria-label", label);
    for (const [name, value] of Object.entries({x, y, width: w, height: h})) box.setAttribute(name, value);
    box.setAttribute("fill", `hsl(${(number * 47 + 200) % 360} 55% 72%)`);
    number += 1;
    group.append(box);
    if (w > 60 && h > 20) {
      const text = document.createElementNS(SVG, "text");
      const room = Math.floor(w / 7.5);
      text.setAttribute("x", x + 6);
      text.setAttribute("y", y + 18);
      text.textContent = one.name.length > room ? "\u2026" + one.name.slice(-room + 1) : one.name;
      group.append(text);
    }
    const tell = () => { said.textContent = label + (key === "line" && one.source ? ": " + one.source : ""); };
    group.addEventListener("focus", tell);
    group.addEventListener("mouseenter", tell);
    map.append(group);
  });
}
for (const choice of document.getElementsByName("by")) choice.addEventListener("change", () => drawn(choice.value));
drawn("line");
"""
