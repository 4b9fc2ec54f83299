"""What must be settled before anything imports Triton: whether its kernels are interpreted."""

import os
from pathlib import Path

if not Path("/dev/nvidiactl").exists():
    os.environ.setdefault("TRITON_INTERPRET", "1")
