"""One file a format: a Report in, a string out."""
