"""The command `noclobber`, also as `python -m noclobber`. It imports nothing before it can catch a Ctrl-C."""

import sys


def main() -> int:
    """Carry out the command line; return the exit status, which is 130 if Ctrl-C comes while noclobber is imported."""
    try:
        from noclobber import cli
    except KeyboardInterrupt:
        return 130
    return cli.main()


if __name__ == "__main__":
    sys.exit(main())
