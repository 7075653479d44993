"""`python -m mydist.launcher` is the same as `mydistrun`."""

import sys

from mydist.launcher.cli import main

if __name__ == "__main__":
    sys.exit(main())
