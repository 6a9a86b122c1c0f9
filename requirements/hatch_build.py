"""Tags a wheel that brings the native part with the platform that it was built on."""

import platform
from pathlib import Path
from typing import Any

from hatchling.builders.config import BuilderConfig
from hatchling.builders.hooks.plugin.interface import BuildHookInterface

BUILT = Path("src", "noclobber", "observe", "native", "built")


class Native(BuildHookInterface[BuilderConfig]):
    """`requirements/wheels.py` puts what it compiles into BUILT; without that the wheel is for every system."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Take what was compiled into the wheel."""
        if version == "editable" or not Path(self.root, BUILT).exists():
            return
        name, release = platform.libc_ver()
        assert name == "glibc", f"the native part is built against glibc, and this is {name}"
        build_data["tag"] = f"py3-none-manylinux_{release.replace('.', '_')}_{platform.machine()}"
        build_data["pure_python"] = False
        build_data["artifacts"].append(f"{BUILT}/**/*.so")
