"""Whether the long forms of the tests run: `make soak`."""

import os

SOAK = os.environ.get("OAKLEAF_SOAK") == "1"
