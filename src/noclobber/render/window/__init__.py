"""A finding as rustc draws it: the rows of its window, measured in cells."""
