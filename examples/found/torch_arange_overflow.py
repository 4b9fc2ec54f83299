"""torch 2.13.0, CPU: a compiled product of an arange that wraps around writes beyond the end of its result."""

import subprocess
import sys

import numpy as np

CODE = """
import torch
multiply = lambda x: torch.arange(257) * -7046029254386353131
print(int({}(torch.ones(1)).sum()), flush=True)
"""
expected = int((np.arange(257) * np.int64(-7046029254386353131)).sum())
for name, call in (("expected:", "multiply"), ("found:", "torch.compile(multiply)")):
    run = subprocess.run([sys.executable, "-c", CODE.format(call)], capture_output=True, text=True, check=False)
    print(name, run.stdout.strip(), f"(the process ends with {run.returncode})")
sys.exit(run.returncode != 0 or int(run.stdout) != expected)
