"""The report as HTML: a page of its own, or a part of a notebook. Neither loads anything."""
