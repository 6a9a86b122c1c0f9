"""What a signal handler raises while the native part asks Python reaches the program."""

import subprocess
import sys
from textwrap import dedent


def test_an_interrupt_of_a_question_reaches_the_program(native: dict[str, str]) -> None:
    script = """
        import weakref, torch, noclobber
        from noclobber.observe.recorder import CONTEXT
        class Asked:
            '''Stands for a save.'''
        def interrupted(self, key):
            raise KeyboardInterrupt
        with noclobber.preserve():
            assert CONTEXT.native is not None
            live, written = CONTEXT.live, torch.ones(3)
            native, asked = type(live).at, Asked()
            live.unsorted.append(weakref.ref(asked))
            type(live).at = interrupted
            try:
                written.add_(1)
            except KeyboardInterrupt:
                print("heard", written.tolist())
            finally:
                type(live).at = native
                live.unsorted.clear()
            written.add_(1)
            print(written.tolist())
    """
    done = subprocess.run([sys.executable, "-c", dedent(script)], env=native, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == ["heard [1.0, 1.0, 1.0]", "[2.0, 2.0, 2.0]"]
