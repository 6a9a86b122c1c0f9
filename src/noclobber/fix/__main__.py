"""The process that a program is tried in, or that forks such processes: `python .../fix/__main__.py FOLDER SCRIPT...`.

Started by its path and not by `-m`, which would look for modules in the current folder first.
"""

import os
import sys

_ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
if not sys.flags.safe_path and _ROOT not in sys.path[1:]:
    sys.path[0] = _ROOT  # taken away before the program begins


def main() -> None:
    """Carry out the order in a folder. If there is none, carry out those in the folders that stdin will name."""
    from noclobber.fix.proof.fork_server import serve
    from noclobber.fix.proof.job import Order
    from noclobber.fix.proof.trial import TrialProcess

    folder, *words = sys.argv[1:]
    path = os.path.join(folder, "order.json")
    if not os.path.exists(path):
        serve(folder, words)
    with open(path, encoding="utf-8") as file:
        order = Order.from_json(file.read())
    TrialProcess(folder, order).carry_out(words)


if __name__ == "__main__":
    main()
