"""Makes the drawing helpers of the trace tests importable here."""

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).parents[1] / "trace"))
