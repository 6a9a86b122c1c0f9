"""`python -m noclobber`."""

import sys

from noclobber.cli import main

if __name__ == "__main__":
    sys.exit(main())
