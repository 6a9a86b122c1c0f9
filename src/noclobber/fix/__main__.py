"""The process that a program is tried in, or that forks such ones: `python .../__main__.py FOLDER SCRIPT ARGS...`.

Started by its path and not by `-m`, which would look for modules in the current folder first.
"""

import os
import sys

_ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
if not sys.flags.safe_path and _ROOT not in sys.path[1:]:
    sys.path[0] = _ROOT  # taken away before the program begins


def main() -> None:
    """Carry out the order in a folder, or those in the folders that stdin will name, or join a trial under way."""
    from noclobber.fix.proof.fork_server import serve
    from noclobber.fix.proof.trials.job import ORDER, Order
    from noclobber.fix.proof.trials.trial import JOIN, TrialProcess, join_script

    what, *words = sys.argv[1:]
    if what == JOIN:
        join_script(words)
    if not os.path.exists(os.path.join(what, ORDER)):
        serve(what, words)
    TrialProcess(what, Order.read(what)).carry_out(words)


if __name__ == "__main__":
    main()
