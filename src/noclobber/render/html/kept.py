"""The ledger on a page: a map of tiles, which is a list of bars where it is narrow, and a table."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from html import escape

from noclobber.model.reports.ledger import Entry, Ledger, shown
from noclobber.model.units import share, size
from noclobber.render.markup import table
from noclobber.render.tables.ledger import place_of, summary
from noclobber.render.text import one_line

RATIO = 3.0
"""How many times as wide as high the map is."""
SMALLEST = 0.004
"""The part of all bytes that a tile stands for, at least: smaller ones would not be seen, and are one tile."""
Tile = tuple[float, float, float, float]
"""Left, top, width and height, in parts of the whole."""


def kept_for_backward(ledger: Ledger) -> str:
    """Return the section about what is kept, the largest first. Parameters and buffers live anyway, and are no part."""
    kept = shown(ledger)
    said = "".join(f"<p>{escape(one)}</p>" for one in summary(ledger))
    maps = _maps(kept) if ledger.bytes else ""
    return f"<section id='kept'><h2>Kept for backward</h2>{said}{maps}{_table(kept)}</section>" if kept else said


def _maps(kept: Sequence[Entry]) -> str:
    """Return a map by line, one by module and one by operator. The choice between them needs no script."""
    names = {by: Counter[str]() for by in ("line", "module", "operator")}
    for one in kept:
        words = (place_of(one), one_line(one.module) or "no module", one_line(one.op) or "not known")
        for sums, name in zip(names.values(), words, strict=True):
            sums[name] += one.bytes
    chosen = "".join(
        f"<input type='radio' name='by' id='by-{by}'{' checked' * (by == 'line')}><label for='by-{by}'>by {by}</label>"
        for by in names
    )
    return f"<div class='maps'>{chosen}{''.join(_map(by, sums) for by, sums in names.items())}</div>"


def _map(by: str, sums: Counter[str]) -> str:
    whole = sums.total()
    large = [(name, count) for name, count in sums.most_common() if count >= whole * SMALLEST]
    if rest := whole - sum(count for _, count in large):
        large.append((f"{len(sums) - len(large)} more", rest))
    most = max(count for _, count in large)
    tiles = zip(large, tiled([count for _, count in large], RATIO), strict=True)
    items = "".join(_tile(name, count, whole, count / most, tile) for (name, count), tile in tiles if count)
    return f"<ol class='map by-{by}' style='--ratio:{RATIO}'>{items}</ol>"


def _tile(name: str, count: int, whole: int, heat: float, tile: Tile) -> str:
    bounds = ";".join(f"--{side}:{100 * part:.3f}%" for side, part in zip("xywh", tile, strict=True))
    look = f"{bounds};--heat:{heat:.3f};--share:{100 * count / whole:.2f}%"
    name, said = escape(name), f"{size(count)}, {share(count, whole)}"
    text = f"<div><b><bdi>{name}</bdi></b> <span>{said}</span></div>"
    return f"<li style='{look}' title='{name}: {said}'>{text}</li>"


def tiled(sizes: Sequence[float], ratio: float) -> Iterator[Tile]:
    """Yield a tile for each size, the largest first: together they fill a rectangle that is `ratio` times as wide.

    Squarified treemaps (Bruls, Huizing and van Wijk, 2000): strips along the shorter side, each as long as its tiles
    become more like squares.
    """
    rest, left, top, width, height = list(sizes), 0.0, 0.0, ratio, 1.0
    while rest:
        side, area = min(width, height), width * height / sum(rest)
        worst = [_worst(rest[:many], side, area) for many in range(1, len(rest) + 1)]
        taken = next((many for many in range(1, len(rest)) if worst[many] > worst[many - 1]), len(rest))
        strip, rest = rest[:taken], rest[taken:]
        depth, at = sum(strip) * area / side, 0.0
        for one in strip:
            length = one * area / depth
            if width >= height:
                yield left / ratio, top + at, depth / ratio, length
            else:
                yield (left + at) / ratio, top, length / ratio, depth
            at += length
        if width >= height:
            left, width = left + depth, width - depth
        else:
            top, height = top + depth, height - depth


def _worst(strip: Sequence[float], side: float, area: float) -> float:
    """Return how many times as long as wide the narrowest tile of a strip is."""
    depth = sum(strip) * area / side
    lengths = [one * area / depth for one in strip]
    return max(depth / min(lengths), max(lengths) / depth)


def _table(kept: Sequence[Entry]) -> str:
    whole = sum(one.bytes for one in kept)
    heads = {"bytes": "n", "share": "n", "line": "", "module": "", "operator": "", "source": ""}
    rows = [
        (
            *(size(one.bytes), share(one.bytes, whole)),
            escape(place_of(one)).replace("/", "/<wbr>"),
            escape(one_line(one.module)).replace(".", ".<wbr>"),
            escape(one_line(one.op)),
            f"<code>{escape(one_line(one.source))}</code>",
        )
        for one in kept
    ]
    caption = "Each line, module and operator, the most bytes first"
    return f"<div class='wide'>{table(heads, rows, caption=caption)}</div>"
