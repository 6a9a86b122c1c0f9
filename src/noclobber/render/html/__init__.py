"""The report as HTML: a page of its own, or a part of a notebook. Neither loads anything."""

from noclobber.render.html.cell import part, preformatted
from noclobber.render.html.page import html

__all__ = ["html", "part", "preformatted"]
