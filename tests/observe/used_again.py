"""Addresses that are used again: Python and torch hand out the memory of what has gone."""

import pytest

MOST = 1000


def until_used_again(make, address, was):
    """Things that `make()` makes, the last of which has the address that another had.

    Something else may have got that memory before, as it does now and then on Python 3.12: then there is no test.
    """
    made = []
    while not made or address(made[-1]) != was:
        if len(made) == MOST:
            pytest.skip("the address was given to something else")
        made.append(make())
    return made.pop()
