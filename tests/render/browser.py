"""A real browser, headless, where there is one."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
# fmt: off
QUIET = ["--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-sync",
         "--disable-background-networking", "--disable-component-update", "--virtual-time-budget=2000", "--dump-dom"]
# fmt: on


def shown(page: str, folder: Path, act: str = "") -> str:
    """The page as a browser has it after its own script, and then `act`, have run."""
    path = folder / "page.html"
    path.write_text(page.replace("</body>", f"<script>{act}</script></body>"), encoding="utf-8")
    command = [str(CHROMIUM), *QUIET, f"--user-data-dir={folder / 'profile'}", path.as_uri()]
    environ = {**os.environ, "HOME": str(folder)}
    done = subprocess.run(command, capture_output=True, text=True, env=environ)
    assert done.returncode == 0, done.stderr
    return done.stdout
