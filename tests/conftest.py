"""Every test runs with the graph verified after each pass and with a program cache of its own."""

from __future__ import annotations

import os
import tempfile

# Set before the package is imported, because options are read from the environment then.
os.environ.setdefault("VERIFY_GRAPH", "1")
os.environ.setdefault("TILEWRIGHT_CACHE_DIR", tempfile.mkdtemp(prefix="tilewright-tests-"))
