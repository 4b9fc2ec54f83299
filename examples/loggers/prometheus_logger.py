"""Count the divergences of a watched engine in a text file of Prometheus: `python prometheus_logger.py`.

The node exporter reads such files: `node_exporter --collector.textfile.directory=.`
"""

import os
from collections import Counter
from pathlib import Path

import kgverify as kv


class PrometheusFile:
    """Give it to `kv.watch` as `on_divergence`."""

    def __init__(self, path: str) -> None:
        self.path, self.counts = Path(path), Counter()

    def __call__(self, found: kv.WatchedDivergence) -> None:
        """Write the number of divergences of each cause."""
        self.counts[found.stage or "unknown", found.kind] = found.num
        lines = ["# TYPE kgverify_divergences counter"]
        lines += [
            f'kgverify_divergences{{stage="{stage}",kind="{kind}"}} {num}' for (stage, kind), num in self.counts.items()
        ]
        new = self.path.with_suffix(".new")
        new.write_text("\n".join(lines) + "\n", encoding="utf-8")
        # The exporter never reads half a file.
        os.replace(new, self.path)


if __name__ == "__main__":
    engine = kv.Evaluator(mode="plain", faults="fact-cap")
    with kv.watch(engine, share=1, save=None, on_divergence=PrometheusFile("kgverify.prom")) as watched:
        kv.evaluate("countries", watched, queries=1, corruptions=5, options=kv.EvaluationOptions(check=0, minimum={}))
    print(Path("kgverify.prom").read_text(encoding="utf-8"))
