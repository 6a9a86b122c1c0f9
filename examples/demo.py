"""The main job on the programs of this folder: a report on each broken one, and none on its right version.

Exit status 0 if noclobber finds the error in each broken program and none in the others, else 1.
"""

import os
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).parent
BROKEN = {"gan_digits.py": "NC103", "residual_network.py": "NC101", "carried_lstm.py": "NC103"}


def run(name: str) -> tuple[int, str]:
    """`noclobber run NAME`, showing its report; the exit status and the report."""
    print(f"\n$ noclobber run {name}", flush=True)
    colour = {"FORCE_COLOR": "1"} if sys.stderr.isatty() and "NO_COLOR" not in os.environ else {}
    done = subprocess.run(
        [sys.executable, "-m", "noclobber", "run", name],
        cwd=HERE,
        env=os.environ | colour,
        stderr=subprocess.PIPE,
        text=True,
    )
    print(done.stderr, end="", file=sys.stderr, flush=True)
    return done.returncode, done.stderr


def main() -> int:
    """Run every program, then report those with an unexpected result."""
    wrong = []
    for broken, code in BROKEN.items():
        right = broken.replace(".py", "_right.py")
        status, report = run(broken)
        if status != 1 or code not in report:
            wrong.append(f"{broken}: expected {code} and exit status 1, which was {status}")
        status, report = run(right)
        if status != 0 or "NC" in report:
            wrong.append(f"{right}: expected no finding and exit status 0, which was {status}")
    print("\n" + "\n".join(wrong or ["3 broken programs explained, 3 right ones left alone"]))
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
