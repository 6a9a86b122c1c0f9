"""Tests of the native part need one that was built for this torch and this Python (`make native`)."""

import os

import pytest

from noclobber.observe.native.load import NotNative, library


def missing() -> str:
    """Return why no native part can be tried; empty if it can."""
    try:
        return "" if library().exists() else "the native part is not built (make native)"
    except NotNative as reason:
        return str(reason)


@pytest.fixture
def built() -> None:
    """Skip a test where there is no native part."""
    if why := missing():
        pytest.skip(why)


@pytest.fixture
def native(built: None) -> dict[str, str]:
    """The environment of a process that uses the native part."""
    return {**os.environ, "NOCLOBBER_PURE": "0"}


@pytest.fixture(params=["python", "native"])
def either(request: pytest.FixtureRequest) -> dict[str, str]:
    """The environment of a process in which Python takes all saves and writes, or the native part the usual ones."""
    if request.param == "native" and (why := missing()):
        pytest.skip(why)
    return {**os.environ, "NOCLOBBER_PURE": "0" if request.param == "native" else "1"}
