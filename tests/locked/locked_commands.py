"""The table of whole commands. What they have to do stands in stated.toml, under the same names.

They run in a folder with the files of inputs/, traces/ and examples/. A word that names a key of `MADE` stands for what that
command makes, once for all cases. Files that a command writes are read and removed. `< FILE` is standard input.
"""

from collections.abc import Callable
from pathlib import Path

from foreign_folder import FOLDER

SMALL = "--queries 2 --corruptions 5"
TINY = "--queries 1 --corruptions 2"
CPU = "--device cpu --slots 8"
EAGER = f"--mode eager {CPU}"
NATIVE = f"--mode native {CPU}"
ONCE = "--no-determinism"
JSON = "--json result.json"
FUZZ = "fuzz --jobs 1 --corpus found"
ANN = "--graph family_of_ann --queries 3 --corruptions 2"


def write_foreign(graph: str, engine: str, kind: str, path: str) -> None:
    """Write recorded steps of a foreign prover as a trace."""
    import sys

    sys.path.insert(0, "examples")
    from recorded_steps import write_trace

    write_trace(FOLDER, graph, engine, kind, Path(path))


def damage(source: str, path: str) -> None:
    """Copy a trace with 8 wrong bytes in its middle."""
    content = bytearray(Path(source).read_bytes())
    middle = len(content) // 2
    content[middle : middle + 8] = bytes(255 - byte for byte in content[middle : middle + 8])
    Path(path).write_bytes(content)


class Made:
    """A call that makes a file: `Made(function, *arguments)`; `reads` names what has to be made before."""

    def __init__(self, make: Callable[..., None], *arguments: str, reads: tuple[str, ...] = ()) -> None:
        self.make, self.arguments, self.reads = make, arguments, reads

    def __call__(self) -> None:
        self.make(*self.arguments)


MADE = {
    "expected.h5": f"record --engine reference {SMALL} -o expected.h5",
    "actual.h5": f"record --engine compiled {EAGER} {SMALL} -o actual.h5",
    "faulty.h5": f"record --engine compiled {EAGER} {SMALL} --fault fact-cap -o faulty.h5",
    "deep.h5": f"record --engine reference {SMALL} --level deep -o deep.h5",
    "compact.h5": f"record --engine reference {SMALL} --level compact -o compact.h5",
    "faulty_deep.h5": (
        f"record --engine compiled {EAGER} {SMALL} --fault rest-not-substituted --level deep -o faulty_deep.h5"
    ),
    "seeded.h5": f"record --engine reference {SMALL} --seed 1 -o seeded.h5",
    "sets.h5": f"record --engine reference {SMALL} --dialect sets.toml -o sets.h5",
    "network.h5": f"record --engine reference {SMALL} --policy two_tower -o network.h5",
    "shards": f"record --engine reference {SMALL} --shard-steps 100 -o shards",
    "damaged.h5": Made(damage, "expected.h5", "damaged.h5", reads=("expected.h5",)),
    "mine.h5": "trace import steps.jsonl -o mine.h5",
    "wrong.h5": "trace import wrong_steps.jsonl -o wrong.h5",
    "run": f"diff {SMALL} {EAGER} --fault fact-cap --save run",
    "agreeing": f"diff {SMALL} {NATIVE} --save agreeing",
    "stepwise": f"diff {TINY} {EAGER} --fault fact-cap --fault last-argmax --lockstep --save stepwise",
    "smallest.kg": "shrink run -o smallest.kg --seconds 600",
    **{
        f"{graph}.{engine}.{kind}.h5": Made(write_foreign, graph, engine, kind, f"{graph}.{engine}.{kind}.h5")
        for graph in ("countries_s3", "family")
        for engine in ("eager", "compiled_first", "compiled_later")
        for kind in ("free", "forced")
    },
}

FAULTS = {
    "countries": (
        "rule-cap fact-cap no-revisit-check last-argmax stale-resolvents failure-credited chunk-boundary-dropped"
        " stream-per-chunk swapped-arguments padding-ranked no-push-down"
    ),
    "random:3": (
        "sequential-substitution any-atom-proves offset-renaming order-blind-hash dead-end-open max-atoms-off-by-one"
        " bf16-scores optimistic-ties"
    ),
}

COMMANDS = {
    # Engines that agree, and what was not enough to say so.
    "diff-agrees": f"diff {SMALL} {EAGER} {JSON}",
    "diff-native": f"diff {SMALL} {NATIVE} {JSON}",
    "diff-reference-twice": f"diff {SMALL} --engine reference --max-depth 3 {JSON}",
    "diff-lockstep": f"diff {SMALL} {NATIVE} --lockstep {JSON}",
    "diff-once": f"diff {SMALL} {NATIVE} {ONCE} {JSON}",
    "diff-quiet": f"diff {SMALL} {NATIVE} --quiet",
    "diff-json-on-standard-output": f"diff {TINY} {NATIVE} --json -",
    "diff-minimum-reached": f"diff {SMALL} {NATIVE} --minimum proved=5,rules=3 {JSON}",
    "diff-minimum-missed": f"diff {SMALL} {NATIVE} --minimum proved=6 {JSON}",
    "diff-nothing-proved": f"diff {SMALL} {NATIVE} --max-depth 1 {JSON}",
    "diff-no-minimum": f"diff {SMALL} {NATIVE} --max-depth 1 --minimum none {JSON}",
    "diff-tight-limits": f"diff {SMALL} {NATIVE} --max-depth 4 --max-atoms 2 --max-resolvents 3 {JSON}",
    "diff-query-as-fact": f"diff {SMALL} {NATIVE} --split train --no-exclude-query {JSON}",
    "diff-valid-split": f"diff {SMALL} {NATIVE} --split valid {JSON}",
    "diff-seed": f"diff {SMALL} {NATIVE} --seed 7 {JSON}",
    "diff-all-corruptions": f"diff --queries 1 --corruptions all --max-depth 3 {NATIVE} {JSON}",
    "diff-two-tower": f"diff {TINY} {EAGER} --policy two_tower {JSON}",
    "diff-trained": f"diff {TINY} {NATIVE} --policy trained {JSON}",
    "diff-score-error": f"diff {TINY} {NATIVE} --policy two_tower --score-error float16 {JSON}",
    "diff-dialect-of-compiled": f"diff {SMALL} {EAGER} --dialect sets.toml",
    "diff-dialect": f"diff {SMALL} --engine reference --dialect sets.toml {JSON}",
    "diff-random-graph": f"diff --graph random:3 {SMALL} {NATIVE} {JSON}",
    "diff-own-graph": f"diff {ANN} {NATIVE} {JSON}",
    "diff-own-rules": f"diff --rules examples/other_language/graph/rules.txt --minimum none {TINY} {NATIVE} {JSON}",
    "diff-family": f"diff --graph family --queries 1 --corruptions 3 {NATIVE} {JSON}",
    # Engines of a user.
    "diff-own-engine": f"diff {ANN} --engine users_engines.py:Plain {JSON}",
    "diff-capped-engine": f"diff {SMALL} --engine users_engines.py:Capped {JSON}",
    "diff-engine-without-pruning": f"diff {ANN} --engine users_engines.py:PrunesNothing {JSON}",
    "diff-function": f"diff {ANN} --engine users_engines.py:proves_nothing {JSON}",
    "diff-outcomes-alone": f"diff {ANN} --engine users_engines.py:KnowsFacts {JSON}",
    "diff-fickle-engine": f"diff {ANN} --engine users_engines.py:Fickle {JSON}",
    "diff-crashing-engine": f"diff {ANN} --engine users_engines.py:Crashing",
    # Planted faults.
    **{
        f"fault-{fault}": f"diff --graph {graph} {SMALL} {EAGER} {ONCE} --fault {fault} {JSON}"
        for graph, faults in FAULTS.items()
        for fault in faults.split()
    },
    "fault-lockstep": f"diff {TINY} {EAGER} --fault fact-cap --lockstep {JSON}",
    "fault-composite": f"diff {TINY} {EAGER} {ONCE} --fault first-compiled {JSON}",
    "fault-in-reference": f"diff {TINY} {EAGER} {ONCE} --engine reference --reference compiled --fault fact-cap {JSON}",
    "fault-not-met": f"diff {TINY} {EAGER} {ONCE} --fault tf32-scores {JSON}",
    "fault-benign-order": f"diff {TINY} {EAGER} {ONCE} --fault facts-before-rules --modulo order {JSON}",
    # Recorded traces.
    "record-reference": f"record --engine reference {SMALL} -o new.h5 {JSON}",
    "record-compiled": f"record --engine compiled {NATIVE} {SMALL} -o new.h5 {JSON}",
    "record-digests": f"record --engine reference {TINY} --level digests -o new.h5",
    "record-archive": f"record --engine reference {TINY} --archive -o new.h5",
    "record-shards": f"record --engine reference {SMALL} --shard-steps 100 -o new --json -",
    "record-twice": f"record --engine reference {SMALL} -o expected.h5",
    "traces-agree": f"diff expected.h5 actual.h5 {JSON}",
    "traces-diverge": f"diff expected.h5 faulty.h5 {JSON}",
    "traces-deep": f"diff deep.h5 faulty_deep.h5 {JSON}",
    "traces-of-two-levels": f"diff compact.h5 actual.h5 {JSON}",
    "traces-sharded": f"diff expected.h5 shards {JSON}",
    "traces-of-two-seeds": f"diff expected.h5 seeded.h5 {JSON}",
    "traces-of-two-dialects": f"diff expected.h5 sets.h5 {JSON}",
    "traces-dialects-allowed": f"diff expected.h5 sets.h5 --allow-dialects {JSON}",
    "traces-of-two-policies": f"diff expected.h5 network.h5 {JSON}",
    "traces-same-file": f"diff expected.h5 expected.h5 {JSON}",
    "traces-minimum-missed": f"diff expected.h5 actual.h5 --minimum proved=100 {JSON}",
    "traces-saved": "diff expected.h5 actual.h5 --save saved",
    "trace-judged": f"diff reference actual.h5 {JSON}",
    "trace-judged-wrong": f"diff reference faulty.h5 {JSON}",
    "trace-of-lines": f"diff mine.h5 wrong.h5 {JSON}",
    "trace-damaged": "diff expected.h5 damaged.h5",
    # The golden traces.
    "golden-engines": f"diff traces/countries-reference.h5 traces/countries-compiled.h5 {JSON}",
    "golden-compact": f"diff traces/countries-reference.h5 traces/countries-compact.h5 {JSON}",
    "golden-digests": f"diff traces/countries-reference.h5 traces/countries-digests.h5 {JSON}",
    "golden-archive": f"diff traces/countries-compiled.h5 traces/countries-archive.h5 {JSON}",
    "golden-deep": f"diff traces/countries-deep.h5 traces/countries-reference.h5 {JSON}",
    "golden-fault": f"diff traces/countries-reference.h5 faulty.h5 {JSON}",
    "golden-check": f"trace check traces/countries-reference.h5 {JSON}",
    "golden-show": "show traces/countries-deep.h5 --candidate 0 --step 1",
    # Foreign records.
    "foreign-right": f"diff reference countries_s3.eager.forced.h5 --dialect expand.toml {JSON}",
    "foreign-right-free": f"diff reference countries_s3.eager.free.h5 --dialect expand.toml {JSON}",
    "foreign-missing": f"diff reference countries_s3.compiled_first.forced.h5 --dialect expand.toml {JSON}",
    "foreign-missing-free": f"diff reference countries_s3.compiled_first.free.h5 --dialect expand.toml {JSON}",
    "foreign-reordered": f"diff reference countries_s3.compiled_later.forced.h5 --dialect expand.toml {JSON}",
    "foreign-order-is-benign": (
        f"diff countries_s3.eager.forced.h5 countries_s3.compiled_later.forced.h5 --modulo names,order --minimum none {JSON}"
    ),
    "foreign-other-semantics": f"diff reference countries_s3.eager.free.h5 {JSON}",
    # Traces, shown and changed.
    "show-trace": f"show expected.h5 {JSON}",
    "show-candidate": "show expected.h5 --candidate 0 --json -",
    "show-step": f"show expected.h5 --candidate 0 --step 1 {JSON}",
    "show-digests": "show traces/countries-digests.h5 --candidate 0",
    "show-shards": "show shards",
    "show-unknown-candidate": "show expected.h5 --candidate 99",
    "show-imported": "show mine.h5 --candidate 0",
    "trace-check": f"trace check expected.h5 {JSON}",
    "trace-check-shards": f"trace check shards {JSON}",
    "trace-check-damaged": f"trace check damaged.h5 {JSON}",
    "trace-repair-whole": f"trace repair expected.h5 {JSON}",
    "trace-convert": "trace convert expected.h5 new.h5 --level digests",
    "trace-convert-upwards": "trace convert compact.h5 new.h5 --level steps",
    "trace-convert-impossible": "trace convert traces/countries-digests.h5 new.h5 --level deep",
    "trace-export-lines": "trace export expected.h5 --to steps.new.jsonl --candidates 0,3",
    "trace-export-table": "trace export expected.h5 --to candidates.csv --table candidates",
    "trace-export-rankings": "trace export expected.h5 --to rankings.csv --table rankings",
    "trace-export-unknown-ending": "trace export expected.h5 --to steps.xls",
    "trace-import": "trace import steps.jsonl -o new.h5",
    "trace-import-standard-input": "trace import - -o new.h5 < steps.jsonl",
    "trace-import-malformed": "trace import misspelt_steps.jsonl -o new.h5",
    "trace-join-twice": "trace join expected.h5 actual.h5 -o new",
    # A saved run, shown, explained, reported and shrunk.
    "show-run": "show run --divergence 1",
    "show-run-keys": "show run < keys.txt",
    "show-run-last": "show run --divergence 18",
    "show-run-beyond": "show run --divergence 19",
    "explain": "show run --explain",
    "explain-one": "show run --explain --divergence 2",
    "explain-agreement": "show agreeing --explain",
    "report": f"report run {JSON}",
    "report-quiet": "report run --quiet",
    "report-agreement": f"report agreeing {JSON}",
    "report-lockstep": f"report stepwise {JSON}",
    "report-html": "report run --html page.html",
    "report-html-agreement": "report agreeing --html page.html",
    "report-index": "report run agreeing --html index.html",
    "report-junit": "report run --junit junit.xml",
    "report-junit-agreement": "report agreeing --junit junit.xml",
    "report-markdown": "report run --markdown report.md",
    "report-perfetto": "report run --perfetto timeline.json",
    "report-github": "report run --github",
    "report-several-files": "report agreeing --html page.html --junit junit.xml --markdown report.md",
    "shrink-with-test": "shrink run --divergence 2 -o new.kg --pytest test_new.py --calls 40 --seconds 600",
    "shrink-agreement": "shrink agreeing",
    "replay": "replay smallest.kg",
    "replay-without-fault": "replay smallest.kg --engine compiled",
    "replay-quiet": "replay smallest.kg --quiet",
    "replay-not-a-reproducer": "replay sets.toml",
    # Generated problems.
    "fuzz": f"{FUZZ} --examples 20 {JSON}",
    "fuzz-fault": f"{FUZZ} --examples 20 --fault last-fact-lost {JSON}",
    "fuzz-known": f"{FUZZ} --examples 20 --fault last-fact-lost --known known.toml {JSON}",
    "fuzz-minimum-missed": f"{FUZZ} --examples 4 --minimum proved=1000 {JSON}",
    "fuzz-dialect": f"{FUZZ} --examples 10 --engine reference --dialect sets.toml {JSON}",
    "fuzz-unknown-scope": f"{FUZZ} --scope tiniest",
    "dialect": f"dialect --engine reference --examples 5 -o proposed.toml {JSON}",
    "dialect-of-own-engine": f"dialect --engine users_engines.py:PrunesNothing --examples 5 {JSON}",
    # Rankings.
    "evaluate": f"evaluate --queries 2 --corruptions 5 {NATIVE} {JSON}",
    "evaluate-all-corruptions": f"evaluate --queries 1 --max-depth 3 {NATIVE} {JSON}",
    "evaluate-fault": f"evaluate --queries 2 --corruptions 5 {EAGER} --fault fact-cap {JSON}",
    "evaluate-rank-only": f"evaluate --queries 2 --corruptions 20 {EAGER} --rank-only {JSON}",
    "evaluate-nothing-checked": f"evaluate --queries 2 --corruptions 5 {NATIVE} --check 0 {JSON}",
    "evaluate-nothing-proved": f"evaluate --queries 2 --corruptions 5 {NATIVE} --max-depth 1 {JSON}",
    "evaluate-own-engine": f"evaluate {ANN} --engine users_engines.py:Plain {JSON}",
    # This installation.
    "version": "--version",
    "doctor": "doctor --json result.json",
    "faults-list": f"diff --fault list {JSON}",
    "bench": f"bench {TINY} --slots 8 --max-depth 6 --device cpu --seconds 0 --modes eager {JSON}",
    "train": f"train --rounds 1 --epochs 1 -o new.safetensors {JSON}",
    "audit-wrong-step": (
        f"audit step steps_of_torch.py:wrong --inputs steps_of_torch.py:make --rung backend-eager --calls 1 --seconds 0 {JSON}"
    ),
    # Mistakes of a user.
    "error-no-such-command": "dif",
    "error-unknown-option": "diff --querys 2",
    "error-not-a-number": "diff --queries two",
    "error-unknown-fault": f"diff {TINY} --fault fact-cup",
    "error-unknown-graph": "diff --graph countris",
    "error-unknown-policy": "diff --policy shortst",
    "error-unknown-mode": f"diff {TINY} --mode egaer",
    "error-unknown-split": f"diff --split tset {EAGER}",
    "error-unknown-engine": "record --engine referenc -o new.h5",
    "error-unknown-minimum": f"diff {TINY} {NATIVE} --minimum proofs=1",
    "error-unknown-modulo": f"diff {TINY} {NATIVE} --modulo nams",
    "error-misspelt-dialect": f"diff {TINY} --dialect misspelt.toml",
    "error-no-queries": "diff --queries 0",
    "error-fault-in-native": f"diff {TINY} {NATIVE} --fault fact-cap",
    "error-fault-in-reference": "record --engine reference --fault fact-cap -o new.h5",
    "error-malformed-triples": f"diff --graph malformed {EAGER}",
    "error-no-train": f"diff --graph no_train {EAGER}",
    "error-misspelt-rule": f"diff --graph family_of_ann --rules misspelt_rules.txt --queries 3 --corruptions 2 {NATIVE}",
    "error-missing-rules": "diff --rules none.pl",
    "error-missing-trace": "diff none.h5 actual.h5",
    "error-one-trace": "diff expected.h5",
    "error-not-a-trace": "show users_engines.py",
    "error-not-a-run": "report traces",
    "error-missing-run": "show none --explain",
    "error-lockstep-of-traces": "diff expected.h5 actual.h5 --lockstep",
    "error-step-without-candidate": "show expected.h5 --step 1",
    "error-folder-of-output": f"record --engine reference {TINY} -o none/new.h5",
    "error-missing-engine-file": "record --engine none.py:Engine -o new.h5",
    "error-missing-engine-name": "diff --engine users_engines.py:Plane",
}
