"""What a launcher of ranks starts, to be run as one: evidence and proof are those of rank 0 in a world of its own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence

ENVIRONMENT = {
    "RANK": "0",
    "LOCAL_RANK": "0",
    "GROUP_RANK": "0",
    "WORLD_SIZE": "1",
    "LOCAL_WORLD_SIZE": "1",
    "MASTER_ADDR": "127.0.0.1",
    "MASTER_PORT": "0",
}
"""What torchrun tells a rank. The store of a world of one takes any free port (torch 2.13; tests/fix/test_ranks.py)."""
# In a process of its own: nothing in fix/ imports torch, whose parser alone knows which words are torchrun's.
_PARSE = """
import json, sys
from torch.distributed.run import get_args_parser
given = get_args_parser().parse_args(sys.argv[1:])
print(json.dumps([bool(given.no_python), bool(given.module), given.training_script, given.training_script_args]))
"""


def of_one_rank(words: Sequence[str]) -> list[str] | None:
    """Return the words of the program that torchrun would start in each rank; None if it is not torchrun's line."""
    if list(words[:2]) != ["-m", "torch.distributed.run"] and os.path.basename(words[0]) != "torchrun":
        return None
    given = words[2 if words[0] == "-m" else 1 :]
    parsed = subprocess.run(
        [sys.executable, "-c", _PARSE, *given], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, check=False
    )
    if parsed.returncode:
        return None
    no_python, is_module, script, arguments = json.loads(parsed.stdout.splitlines()[-1])
    if no_python:
        return None
    return [*(["-m"] if is_module else []), script, *arguments]
