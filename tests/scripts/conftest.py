"""Scripts in Python are imported as they are run: from the root of the tree."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
