"""One program in one process, watched: what it is, when its torch is there, what is found."""
