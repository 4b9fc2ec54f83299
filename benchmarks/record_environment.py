"""The slow-down of a training loop whose environment is recorded on the GPU."""

import argparse
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import numpy as np
import torch
from torch import Tensor, nn

import kgverify as kv
from benchmarks import make_parser, print_header, print_row, time_in_turn
from kgverify.environments.recording import read_recording

OBSERVED: Final = 64
ACTIONS: Final = 16
HIDDEN: Final = 256


class Loop:
    """A policy of 3 x 256 in a batched environment of tensors, which starts the next episode in the step that ends one.

    rounds: the layers of the environment's dynamics, which set the time of a step
    """

    def __init__(self, slots: int, rounds: int, device: str, *, is_captured: bool) -> None:
        torch.manual_seed(0)
        self.device, self.rounds = torch.device(device), rounds
        with self.device:
            layers: list[nn.Module] = []
            for width in (OBSERVED, HIDDEN, HIDDEN):
                layers += [nn.Linear(width, HIDDEN), nn.Tanh()]
            self.policy = nn.Sequential(*layers, nn.Linear(HIDDEN, ACTIONS + 1))
            self.weights = torch.randn(HIDDEN, HIDDEN) * 1.2 / HIDDEN**0.5
            self.moves = torch.randn(ACTIONS, HIDDEN)
            self.state = torch.randn(slots, HIDDEN)
            self.count = torch.randint(0, 100, (slots,))
        self.mask = self.find_mask()
        self.run = self.step
        if is_captured:
            self.capture()

    def find_mask(self) -> Tensor:
        mask = self.state[:, :ACTIONS] > -0.5
        mask[:, 0] = True
        return mask

    def step(self) -> dict[str, Tensor]:
        """Choose an action and take it in every slot."""
        found = self.policy(self.state[:, :OBSERVED])
        logits = torch.where(self.mask, found[:, :-1], -1e9).log_softmax(1)
        action = (logits - torch.rand_like(logits).log().neg().log()).argmax(1)
        state = self.state + self.moves[action]
        for _ in range(self.rounds):
            state = torch.tanh(state @ self.weights)
        reward = state[:, 0].clone()
        terminated = reward > 0.95
        truncated = self.count >= 100
        ends = terminated | truncated
        self.state.copy_(torch.where(ends[:, None], torch.randn_like(state), state))
        self.count.copy_(torch.where(ends, 0, self.count + 1))
        self.mask.copy_(self.find_mask())
        return {
            "action": action,
            "observation": self.state[:, :OBSERVED],
            "reward": reward,
            "terminated": terminated,
            "truncated": truncated,
            "mask": self.mask,
            "final": state[:, :OBSERVED],
            "log_probability": logits.gather(1, action[:, None])[:, 0],
            "value": found[:, -1],
        }

    def capture(self) -> None:
        """Capture the step in a CUDA graph, which returns the same buffers each time."""
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for _ in range(3):
                self.step()
        torch.cuda.current_stream().wait_stream(side)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            outputs = self.step()

        def replay() -> dict[str, Tensor]:
            graph.replay()
            return outputs

        self.run = replay

    @torch.no_grad()
    def take(self, steps: int, record: Callable[..., object] | None = None) -> None:
        """Take some steps, and wait for the device."""
        for _ in range(steps):
            found = self.run()
            if record is not None:
                record(**found)
        if self.device.type == "cuda":
            torch.cuda.synchronize()


def seconds_of(run: Callable[[], object]) -> float:
    began = time.perf_counter()
    run()
    return time.perf_counter() - began


@torch.no_grad()
def measure(options: argparse.Namespace, name: str, folder: Path) -> None:
    """Print the times of one loop, with and without recording."""
    device = options.device
    rounds, milliseconds = 8, 0.0
    while milliseconds < options.milliseconds:
        loop = Loop(options.slots, rounds, device, is_captured=name == "captured")
        loop.take(100)
        milliseconds = min(10 * seconds_of(lambda: loop.take(100)) for _ in range(3))  # noqa: B023 - called at once
        rounds = int(rounds * min(4.0, max(1.05, 1.02 * options.milliseconds / milliseconds))) + 1
    path = folder / f"{name}.h5"
    with kv.record_env(path, share=options.share) as recorder:
        recorder.reset(loop.state[:, :OBSERVED], loop.mask)
        loop.take(100, recorder.step)
    # Reading compares the digests of the device with the columns.
    read_recording(path)
    recorder = kv.record_env(path, share=options.share)
    recorder.reset(loop.state[:, :OBSERVED], loop.mask)
    loop.take(300, recorder.step)
    recorder.flush()
    sides: dict[str, Callable[[], Any]] = {
        "plain": lambda: loop.take(options.block),
        "again": lambda: loop.take(options.block),
        "recorded": lambda: loop.take(options.block, recorder.step),
    }
    seconds = time_in_turn(sides, options.repeats, clean=recorder.flush)
    recorder.close()
    long = options.block * 8
    plain = seconds_of(lambda: loop.take(long))

    other = kv.record_env(path, share=options.share)
    other.reset(loop.state[:, :OBSERVED], loop.mask)
    whole = seconds_of(lambda: loop.take(long, other.step)) / plain - 1
    closing = seconds_of(other.close)
    written = sum(each.stat().st_size for each in folder.rglob("*.h5")) / long
    slower, noise = (
        np.array([new / old - 1 for old, new in zip(seconds["plain"], seconds[side], strict=True)])
        for side in ("recorded", "again")
    )
    times = [1e3 * statistics.median(seconds[side]) / options.block for side in ("plain", "recorded")]
    print_row(
        f"{name}, {device}", f"{options.slots:,}", f"{times[0]:.2f}", f"{times[1]:.2f}",
        f"{np.median(slower):.1%}", f"{np.quantile(slower, 0.95):.1%}",
        f"{np.median(noise):.1%} / {np.quantile(noise, 0.95):.1%}", f"{whole:.1%}", f"{closing:.1f}", f"{written / 1e3:,.0f}",
    )  # fmt: skip


def run_record_environment(words: list[str]) -> None:
    """The slow-down of a training loop whose environment is recorded, against the same loop; blocks of steps run in turn.

        python -m benchmarks record-environment
        python -m benchmarks record-environment --device cpu --slots 256 --repeats 3

    The policy has 3 x 256 units; an observation has 64 numbers and a mask of 16 actions. The loop is eager, or captured in
    a CUDA graph. The column of noise compares the plain loop with itself. One recording is eight blocks, and then closed.
    """
    parser = make_parser(run_record_environment)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--slots", type=int, default=4096)
    parser.add_argument("--share", type=float, default=1 / 16)
    parser.add_argument("--milliseconds", type=float, default=2.0, help="minimum time of a step without recording")
    parser.add_argument("--block", type=int, default=500, help="steps after which the sides change")
    parser.add_argument("--repeats", type=int, default=20)
    options = parser.parse_args(words)
    print_header(
        "loop", "slots", "plain step, ms", "recorded step, ms", "slow-down, median", "p95", "noise, median / p95",
        "slow-down, one recording", "closing, s", "written, kB a step",
    )  # fmt: skip
    for name in ("eager", "captured") if options.device == "cuda" else ("eager",):
        with tempfile.TemporaryDirectory() as folder:
            measure(options, name, Path(folder))
