"""A process that forks while its threads save, write and release leaves each child whole tables and free locks."""

import subprocess
import sys
from textwrap import dedent

FORKS = 20


def test_forks_under_load(either: dict[str, str]) -> None:
    script = f"""
        import os, signal, sys, threading, torch, noclobber
        torch.set_num_threads(1)
        sys.setswitchinterval(1e-5)

        def graph():
            h = torch.ones(4, requires_grad=True) * 2
            for _ in range(20):
                h = h.sigmoid().neg().add_(1)
            return h

        def train(over):
            kept = []
            while not over.is_set():
                kept.append(graph())
                del kept[:-3]

        def child(held):
            signal.alarm(60)  # where a lock is held for ever
            held.clear()  # takes the saves of the parent out of the tables
            leaf = torch.ones(3, requires_grad=True)
            h = leaf.exp()
            h.sum().backward()
            graph().sum().backward()
            os._exit(0 if leaf.grad.equal(h.detach()) else 1)

        over, ended = threading.Event(), []
        with noclobber.watch(contents=True):
            held = [graph() for _ in range(3)]
            threads = [threading.Thread(target=noclobber.watch()(train), args=(over,)) for _ in range(3)]
            for one in threads:
                one.start()
            for _ in range({FORKS}):
                pid = os.fork()
                if pid == 0:
                    child(held)
                ended.append(os.waitpid(pid, 0)[1])
            over.set()
            for one in threads:
                one.join()
        print(sum(ended))
    """
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", dedent(script)], env=either, capture_output=True, text=True
    )
    assert (done.returncode, done.stdout) == (0, "0\n"), done.stderr
