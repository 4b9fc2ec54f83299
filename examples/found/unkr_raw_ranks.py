"""unKR 1.0.3: raw ranks of both sides cannot be computed."""

import runpy
import sys
from importlib.metadata import distribution
from types import SimpleNamespace

import torch

path = distribution("unKR").locate_file("unKR/eval_task/link_prediction.py")  # the whole package needs more packages
rank = runpy.run_path(str(path))["link_predict_raw"]
label = torch.eye(1, 3)
batch = {"positive_sample": torch.tensor([[0, 0, 1, 0.9]]), "head_label": label, "tail_label": label}
model = SimpleNamespace(get_score=lambda batch, mode: torch.tensor([[0.0, 1.0, 2.0]]))
print("expected:", *(rank(batch, model, 0.5, side).tolist() for side in ("tail", "head")))
try:
    print("found:", rank(batch, model, 0.5, "all").tolist())
except TypeError as error:
    sys.exit(print("found:", repr(error)) or 1)
