"""Compare right and faulty compiled engines of six families with their references, and tabulate what the reports say.

    python benchmarks/compiled_engines/run.py --device cuda --candidates 1000
    python benchmarks/compiled_engines/run.py --device cpu --quick --families dot,pair --json out.json

A right pair passes if it is AGREE, and a faulty one if it is DIVERGE in an acceptable stage. `plain` is the time of two warm runs
of both engines, and `ratio` that of a comparison over it. `compiled` is the number of graphs that torch compiled before the
comparison and during it.
"""

import argparse
import json
import os
import re
import sys
import time
import traceback
from collections import Counter
from pathlib import Path

PHRASES = ("exactly", "other slots", "not deterministic", "confirmed")
"""Words of sentences that a person must judge."""
CORRUPTIONS = 9


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--candidates", type=int, default=1000)
    parser.add_argument("--quick", action="store_true", help="200 candidates, and offsets of 3 and 30 bounds only")
    parser.add_argument("--families", default="", help="names, separated by commas; all if not given")
    parser.add_argument("--variants", default="", help="names, separated by commas; all if not given")
    parser.add_argument("--only", choices=("right", "faults", "offsets"), help="one kind of pairs")
    parser.add_argument("--bound", type=float, help="bound of the scores; that of the report if not given")
    parser.add_argument("--fresh", action="store_true", help="give classes to kgverify, not warm engines")
    parser.add_argument("--json", type=Path, help="a file for all results")
    parser.add_argument("--texts", type=Path, help="a folder for the text of each report")
    return parser.parse_args()


ARGUMENTS = parse_arguments()
os.environ["KGVERIFY_DEVICE"] = ARGUMENTS.device
if ARGUMENTS.device == "cpu":
    os.environ.setdefault("OMP_NUM_THREADS", "1")

import torch  # noqa: E402
from engines import (  # noqa: E402
    FAMILIES,
    LIMITS,
    list_variants,
    make_engine_class,
    make_reference_class,
)
from faults import FACTORS, Offset, Temperature, list_faults  # noqa: E402
from graph import make_graph  # noqa: E402
from truth import compare_calls, draw, list_calls, measure_rounding  # noqa: E402

import kgverify as kv  # noqa: E402


def find_bound(report) -> float | None:
    """Return the bound that a report states for the scores of the engine under test; None if it states none."""
    for path in ("rounding.actual.bound", "rounding.bound", "score_bound"):
        value = report
        for name in path.split("."):
            value = getattr(value, name, None)
        if isinstance(value, float):
            return value
    return None


class Evaluation:
    """The pairs of the families, on one graph."""

    def __init__(self, arguments):
        self.arguments = arguments
        num_candidates = 200 if arguments.quick else arguments.candidates
        self.graph = make_graph()
        self.num_queries = max(1, num_candidates // (2 * (1 + CORRUPTIONS)))
        self.policy, self.candidates = draw(self.graph, LIMITS, self.num_queries, CORRUPTIONS)
        self.rows, self.sentences = [], []

    def run(self):
        names = self.arguments.families.split(",") if self.arguments.families else list(FAMILIES)
        print(f"{self.candidates.num_candidates} candidates on {self.arguments.device}, torch {torch.__version__}")
        print(self.describe_header(), flush=True)
        self.warm_up()
        bounds = {}
        for kind, judge in (("right", self.judge_right), ("faults", self.judge_faults)):
            for family in names:
                try:
                    judge(family, bounds)
                except Exception:
                    self.fail({"kind": kind, "family": family, "variant": "all"})
        self.summarise()

    def warm_up(self):
        """Compare an engine with itself and with a faulty one, so that kgverify's own tests are done."""
        began = time.perf_counter()
        for fault in (None, Temperature()):
            engines = make_reference_class("dot"), make_engine_class("dot", "eager", fault)
            kv.verify(self.graph, engines[1], reference=engines[0], queries=2, corruptions=2, limits=LIMITS)
        print(f"warm-up of kgverify: {time.perf_counter() - began:.1f} s", flush=True)

    def make(self, engine_class):
        return engine_class(self.graph.program, LIMITS, self.policy)

    def judge_right(self, family, bounds):
        """Compare the variants of a family with its reference."""
        reference = self.make(make_reference_class(family))
        for variant in list_variants(family, self.arguments.device):
            # The first variant also gives the bound of the offsets.
            is_needed = self.arguments.only != "faults" and self.arguments.bound is None and variant == "default"
            if self.is_skipped("right", variant) and not is_needed:
                continue
            try:
                engine_class = make_engine_class(family, variant)
                engine = self.make(engine_class)
                row = {"kind": "right", "family": family, "variant": variant, "stages": ()}
                report = self.compare(row, reference, engine, engine_class)
                if variant == "default":
                    bounds[family] = find_bound(report)
            except Exception:
                self.fail({"kind": "right", "family": family, "variant": variant})

    def is_skipped(self, kind, variant=""):
        arguments = self.arguments
        return (arguments.only or kind) != kind or (arguments.variants and variant not in arguments.variants.split(","))

    def judge_faults(self, family, bounds):
        """Compare the compiled step of a family, with each fault, with its reference."""
        if self.arguments.only == "right":
            return
        reference, eager = self.make(make_reference_class(family)), self.make(make_engine_class(family))
        calls = list_calls(eager, self.candidates)
        # One compilation serves all faults.
        compiled = self.make(make_engine_class(family, "default"))
        rounding = measure_rounding(eager, compiled, calls)
        bound = self.arguments.bound or bounds.get(family) or 8 * rounding
        source = (
            "given" if self.arguments.bound else "the report's" if bounds.get(family) else "8 times the rounding seen"
        )
        print(f"{family}: bound {bound:.3g} ({source}); eager against compiled {rounding:.3g}", flush=True)
        makers = [] if self.is_skipped("faults") else list_faults(family, eager.gives_choice)
        factors = () if self.is_skipped("offsets") else (3, 30) if self.arguments.quick else FACTORS
        for maker in (*makers, *(lambda factor=factor: Offset(bound, factor) for factor in factors)):
            fault = maker()
            row = {"kind": "fault", "family": family, "variant": fault.name, "stages": fault.stages}
            row |= {"shows_in": fault.shows_in}
            if isinstance(fault, Offset):
                row |= {"kind": "offset", "factor": fault.factor, "bound": bound}
            try:
                # The truth and the comparison have engines of their own: some faults remember calls.
                truth = compare_calls(eager, self.make(make_engine_class(family, "eager", maker())), calls)
                row |= {"truth": truth._asdict()}
                if not truth.is_observable and not isinstance(fault, Offset):
                    print(f"{family:10}{fault.name:18}unobservable here: {truth}", flush=True)
                    self.rows.append({**row, "verdict": "unobservable"})
                    continue
                engine_class = make_engine_class(family, "default", fault)
                self.compare(row, reference, self.make(engine_class), engine_class)
            except Exception:
                self.fail(row)

    def compare(self, row, reference, engine, engine_class):
        """Warm both engines up, verify, and keep the result."""
        plain = [self.time(lambda: [each.prove(self.candidates) for each in (reference, engine)]) for _ in range(4)]
        before = count_compilations()
        began = time.perf_counter()
        fresh = self.arguments.fresh
        report = kv.verify(
            self.graph,
            engine_class if fresh else engine,
            reference=type(reference) if fresh else reference,
            queries=self.num_queries,
            corruptions=CORRUPTIONS,
            limits=LIMITS,
        )
        seconds = time.perf_counter() - began
        first = report.first_divergence
        row |= {
            "verdict": report.verdict.value,
            "reasons": report.reasons,
            "near_ties": len(report.near_ties),
            "seconds": seconds,
            "plain_seconds": 2 * min(plain[1:]),
            "compiled_before": before,
            "compiled": count_compilations() - before,
            "stage": first.stage if first else "",
            "difference": first.kind.value if first else "",
            "evidence": first.evidence if first else "",
            "confidence": first.confidence if first else 0,
            "causes": [f"{cause.stage} {cause.kind}: {cause.condition}" for cause in report.causes],
            "bound_of_report": find_bound(report),
        }
        row["ratio"] = seconds / row["plain_seconds"]
        text = str(report)
        found = find_sentences(report, text)
        self.sentences += [(row["family"], row["variant"], sentence) for sentence in found]
        if self.arguments.texts:
            self.arguments.texts.mkdir(parents=True, exist_ok=True)
            (self.arguments.texts / f"{row['family']}-{row['variant']}.txt").write_text(text)
        self.rows.append(row)
        print(self.describe(row), flush=True)
        return report

    def time(self, call):
        began = time.perf_counter()
        call()
        return time.perf_counter() - began

    def describe_header(self):
        return (
            f"{'family':10}{'variant':18}{'passes':8}{'verdict':14}{'ties':>5}{'seconds':>9}{'plain':>7}{'ratio':>7}"
            f"{'compiled':>12}  first divergence"
        )

    def describe(self, row):
        compiled = f"{row['compiled_before']} + {row['compiled']}"
        return (
            f"{row['family']:10}{row['variant']:18}{'yes' if is_passed(row) else 'NO':8}{row['verdict']:14}{row['near_ties']:5}"
            f"{row['seconds']:9.2f}{row['plain_seconds']:7.2f}{row['ratio']:7.1f}{compiled:>12}  {row['stage']} {row['evidence']}"
        )

    def fail(self, row):
        error = sys.exc_info()[1]
        print(f"{row['family']:10}{row['variant']:18}NO      {type(error).__name__}: {error}", flush=True)
        traceback.print_exc(limit=-3)
        self.rows.append({**row, "verdict": f"error: {type(error).__name__}: {error}"})

    def summarise(self):
        """Print the totals and the sentences to judge."""
        print()
        rights = [row for row in self.rows if row["kind"] == "right"]
        print("right pairs:", dict(Counter(row["verdict"] for row in rights)))
        for shows_in in ("scores", "lists"):
            some = [row for row in self.rows if row["kind"] == "fault" and row.get("shows_in") == shows_in]
            print(f"faults in {shows_in}:", count_found(some))
            for row in some:
                if row["verdict"] != "unobservable" and not is_passed(row):
                    stages = " or ".join(row["stages"])
                    print(f"  {row['family']} {row['variant']}: {row['verdict']} {row.get('stage')}, expected {stages}")
        for factor in FACTORS:
            some = [row for row in self.rows if row.get("factor") == factor]
            if some:
                print(f"offset of {factor:g} bounds:", count_found(some))
        ratios = sorted(row["ratio"] for row in rights if "ratio" in row)
        if ratios:
            print(f"ratio of right pairs: median {ratios[len(ratios) // 2]:.1f}, highest {ratios[-1]:.1f}")
        print("compilations during comparisons:", sum(row.get("compiled", 0) for row in self.rows))
        print(f"\nsentences to judge: {len(self.sentences)}")
        for sentence, count in Counter(sentence for _, _, sentence in self.sentences).most_common():
            pairs = [f"{family} {variant}" for family, variant, other in self.sentences if other == sentence]
            print(f"- {sentence}\n    {count}: {', '.join(pairs[:6])}{' ...' if len(pairs) > 6 else ''}")
        if self.arguments.json:
            results = {"rows": self.rows, "sentences": self.sentences}
            self.arguments.json.write_text(json.dumps(results, indent=1, default=str))


def count_compilations():
    """Return the number of graphs that torch compiled in this process."""
    return torch._dynamo.utils.counters["stats"]["unique_graphs"]


def is_passed(row):
    """Return whether a report is right about a pair."""
    if row["kind"] == "right":
        return row["verdict"] == "AGREE"
    return row["verdict"] == "DIVERGE" and (row["stage"] in row["stages"] or is_named_by_proof(row))


def is_named_by_proof(row):
    """Return whether a fault of lists is named `close`, as docs/verdicts.md says of a proof that one side lacks."""
    is_proof = row.get("difference") in ("proof_lost", "false_proof") and row["stage"] == "close"
    return is_proof and row.get("shows_in") == "lists" and "recycle" not in row["stages"]


def count_found(rows):
    judged = [row for row in rows if row["verdict"] != "unobservable"]
    found = sum(row["verdict"] == "DIVERGE" for row in judged)
    parts = [f"found {found} of {len(judged)}, stage right {sum(map(is_passed, judged))}"]
    by_proof = sum(map(is_named_by_proof, judged))
    if by_proof:
        parts.append(f"{by_proof} of these as `close` since a proof is lost or false")
    if len(judged) < len(rows):
        parts.append(f"{len(rows) - len(judged)} unobservable")
    return "; ".join(parts)


def find_sentences(report, text):
    """Return the sentences of a report with one of the `PHRASES`, each once."""
    parts = [*report.reasons, *report.notes]
    parts += [each.evidence for each in report.divergences] + [cause.condition for cause in report.causes]
    sentences = list(dict.fromkeys(each for part in parts for each in split_sentences(part)))
    # The text wraps the same sentences, some of them in columns.
    for paragraph in text.split("\n\n"):
        printed = " ".join(paragraph.split())
        if not any(each in printed for each in sentences) and "causes #" not in printed:
            sentences += split_sentences(printed)
    return sentences


def split_sentences(text):
    return [each for each in re.split(r"(?<=[.;]) ", text) if any(phrase in each for phrase in PHRASES)]


if __name__ == "__main__":
    if ARGUMENTS.device == "cpu":
        torch.set_num_threads(1)
    # Faults and variants are engines of their own, with one compiled step.
    torch._dynamo.config.recompile_limit = 64
    Evaluation(ARGUMENTS).run()
