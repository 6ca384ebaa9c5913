"""Where the `swarm` command and `python -m swarm` begin: Ctrl-C ends them without a traceback,
also while Python still reads the rest."""

from __future__ import annotations

import sys

INTERRUPTED = 130


def main() -> int:
    """Run the command line; the exit status."""
    try:
        from swarm import cli

        return cli.main()
    except KeyboardInterrupt:
        return INTERRUPTED


if __name__ == "__main__":
    sys.exit(main())
