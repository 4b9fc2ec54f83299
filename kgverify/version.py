"""The version of kgverify, and the time at which it was imported."""

import time

__version__ = "0.1.0"

IMPORTED_AT = time.time()
"""The time before any other module of kgverify was imported."""
