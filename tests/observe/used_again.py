"""Addresses that are used again: Python and torch hand out the memory of what has gone."""

MOST = 1000


def until_used_again(make, address, was):
    """Things that `make()` makes, the last of which has the address that another had."""
    made = []
    while not made or address(made[-1]) != was:
        assert len(made) < MOST, "the address was not used again"
        made.append(make())
    return made.pop()
