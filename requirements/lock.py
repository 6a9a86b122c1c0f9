"""Writes dev.lock: installs what pyproject.toml asks for into a new environment and writes down what came.

It uses pip alone, as `make` does, so that the lock holds what pip chooses where it runs. A local version such as
`2.13.0+cpu` is written without its local part, which another place may not have.
"""

import subprocess
import sys
import tempfile
import tomllib
import venv
from pathlib import Path

HERE = Path(__file__).resolve().parent
HEADER = "# Written by `make lock` with Python {}.{}: everything that development needs, exact versions.\n"


def main() -> None:
    """Resolve, install, freeze."""
    project = tomllib.loads((HERE.parent / "pyproject.toml").read_text())
    wanted = project["project"]["dependencies"] + project["dependency-groups"]["dev"]
    with tempfile.TemporaryDirectory() as folder:
        venv.create(folder, with_pip=True)
        pip = [str(Path(folder, "bin", "python")), "-m", "pip"]
        subprocess.run([*pip, "install", "-qq", *wanted], check=True)
        frozen = subprocess.run(
            [*pip, "freeze", "--all", "--exclude", "pip"], check=True, stdout=subprocess.PIPE, text=True
        ).stdout
    lines = [line.partition("+")[0] for line in frozen.splitlines()]
    HERE.joinpath("dev.lock").write_text(HEADER.format(*sys.version_info) + "\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
