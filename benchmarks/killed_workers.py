"""Measure a campaign whose processes are killed: problems lost, wrong results, and growth of memory.

    python benchmarks/killed_workers.py --seconds 1800 --every 60 --jobs 2
    python benchmarks/killed_workers.py --seconds 480 --every 20 --settled 180 --mode fused --device cuda

Blocks that were in work when a process was killed are tried again here, undisturbed, and must have the same result.
"""

import argparse
import multiprocessing
import tempfile
import time
from collections.abc import Iterable
from pathlib import Path
from statistics import median

import msgspec

from kgverify.runs.engine_makers import EngineSpec, Sides
from kgverify.testing.campaigns.campaign import BLOCK_SIZE, Campaign, run_campaign, try_block
from kgverify.testing.campaigns.result import Block, Identity, Tally

WINDOW = 30.0
"""Seconds of samples of which the median is taken."""


def read_blocks(corpus: Path) -> list[Block]:
    lines = [line for path in corpus.glob("*.jsonl") for line in path.read_bytes().splitlines(keepends=True)[1:]]
    return [msgspec.json.decode(line, type=Block) for line in lines if line.endswith(b"\n")]


def read_memory(process: str | int) -> int:
    """Return the resident bytes of a process; 0 if it has ended."""
    try:
        lines = Path(f"/proc/{process}/status").read_text().splitlines()
    except OSError:
        return 0
    return next((int(line.split()[1]) << 10 for line in lines if line.startswith("VmRSS:")), 0)


class Killer:
    """A watch that kills one process after the other, and samples the memory of all."""

    def __init__(self, corpus: Path, jobs: int, every: float) -> None:
        self.corpus, self.jobs, self.every = corpus, jobs, every
        self.started = self.killed_at = time.monotonic()
        self.num_killed = 0
        self.in_work: set[int] = set()
        self.samples: list[tuple[float, int, int]] = []

    def __call__(self, tally: Tally) -> None:
        """Sample, and kill a process when it is time."""
        now = time.monotonic()
        processes = multiprocessing.active_children()
        largest = max((read_memory(each.pid or 0) for each in processes), default=0)
        self.samples.append((now - self.started, read_memory("self"), largest))
        if tally.phase != "try" or now - self.killed_at < self.every or not processes:
            return
        done = {block.number for block in read_blocks(self.corpus)}
        unfinished = [number for number in range(len(done) + self.jobs) if number not in done]
        self.in_work.update(unfinished[: self.jobs])
        processes[self.num_killed % len(processes)].kill()
        self.killed_at, self.num_killed = now, self.num_killed + 1

    def describe_memory(self, settled: float) -> Iterable[str]:
        """Yield the memory of this process and of the largest other one, when it had settled and at the end."""
        end = self.samples[-1][0]
        for title, index in (("this process", 1), ("largest worker", 2)):
            first, last = (
                median([each[index] for each in self.samples if begin <= each[0] <= begin + WINDOW])
                for begin in (min(settled, end - WINDOW), end - WINDOW)
            )
            yield f"{title}: {first / 1e6:.1f} MB after {settled:.0f} s, {last / 1e6:.1f} MB at the end, {last / first - 1:+.1%}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=1800.0)
    parser.add_argument("--every", type=float, default=60.0)
    parser.add_argument("--settled", type=float, default=300.0, help="seconds after which memory must not grow")
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--check", type=int, default=10, help="blocks to try again undisturbed, at most")
    parser.add_argument("--mode", default="eager")
    parser.add_argument("--device", default="cpu")
    options = parser.parse_args()
    sides = Sides(EngineSpec(mode=options.mode, device=options.device))
    with tempfile.TemporaryDirectory() as folder:
        corpus = Path(folder)
        killer = Killer(corpus, options.jobs, options.every)
        campaign = Campaign(engine=sides.engine, corpus=corpus, seconds=options.seconds, jobs=options.jobs)
        result = run_campaign(campaign, watch=killer)
        blocks = read_blocks(corpus)
    numbers = sorted(block.number for block in blocks)
    num_lost = sum(block.num_left + BLOCK_SIZE - block.num_problems for block in blocks)
    num_lost += BLOCK_SIZE * len(set(range(max(numbers) + 1)) - set(numbers))
    print(f"{result.num_problems:,} problems in {result.seconds:.0f} s, {killer.num_killed} processes killed")
    print(f"problems lost: {num_lost:,}; blocks counted twice: {len(numbers) - len(set(numbers))}")
    print(f"divergences reported: {len(result.divergences)}")
    chosen = [block for block in blocks if block.number in killer.in_work][: options.check]
    work = Identity(
        engine=sides.engine, reference=sides.reference, lockstep=False, seed=campaign.seed, block_size=BLOCK_SIZE
    )
    wrong = [block.number for block in chosen if try_block(work, block.number, block.num_problems) != block]
    print(
        f"wrong results: {len(wrong)} of {len(chosen)} blocks that were in work when a process was killed {wrong or ''}"
    )
    for line in killer.describe_memory(options.settled):
        print(line)


if __name__ == "__main__":
    main()
