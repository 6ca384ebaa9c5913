"""`python -m sims` is `scripts/sim`."""

import sys

from sims.cli import main

if __name__ == "__main__":
    sys.exit(main())
