"""One rank of many, whose neighbours are not there."""
