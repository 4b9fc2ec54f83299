"""Generated inputs: faults that must be found, steps, dialects, and sound evaluations."""

import gc
import importlib.util
import itertools
import json
import math
import random
import re
import statistics
import sys
import time
import zlib
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any, Final

import kgverify as kv
from benchmarks import ROOT, Task, make_parser, print_header, print_row, run_tasks

sys.path.extend(str(ROOT / "tests" / folder) for folder in ("dialects", "testing"))

from fault_search import REPLICAS, ProblemStream, find_breakers
from random_dialects import random_dialect
from second_engine import SecondEngine

from kgverify.laws.catalogue import LAWS
from kgverify.program.limits import OURS, Dialect
from kgverify.prover.faults.plant import FAULTS
from kgverify.runs.engine_makers import compiled_maker
from stepaudit.audited_function import Subject
from stepaudit.environment import read_cpu_seconds
from stepaudit.ladder.climb import Judge, climb, compiling_without_caches, keeping_caches
from stepaudit.ladder.culprit import find_culprit
from stepaudit.minimize import minimize
from stepaudit.options import RUNGS, AuditOptions

# Faults


def hunt_all(num_seeds: int, faults: Sequence[str]) -> None:
    """Print the examples that each fault takes with each seed, and how many are found within how many."""
    streams = [ProblemStream(seed) for seed in range(num_seeds)]
    taken: dict[str, list[int]] = {}
    print_header("fault", *(f"seed {seed}" for seed in range(num_seeds)), "median")
    for name in faults:
        hunts = [stream.search_fault(name) for stream in streams]
        taken[name] = [each.examples if each.is_found else sys.maxsize for each in hunts]
        print_row(name, *map(render_examples, [*taken[name], statistics.median(taken[name])]))
    medians, worst = ([choose(each) for each in taken.values()] for choose in (statistics.median, max))
    print()
    print_header("within", "by median", "by worst", "of")
    for limit in (1, 5, 10, 20, 50, 100, 200, 500, 1000, 2000):
        print_row(f"{limit:,}", *(sum(each <= limit for each in counts) for counts in (medians, worst)), len(taken))
    found = sum(each < sys.maxsize for examples in taken.values() for each in examples)
    median = render_examples(statistics.median(medians))
    print(f"\nfound: {found} of {len(taken) * num_seeds} searches; median of the medians {median}")


def render_examples(examples: float) -> str:
    """The number, or a dash where the fault is not found."""
    return "-" if examples >= sys.maxsize else f"{examples:,.0f}"


def print_power(faults: Sequence[str]) -> None:
    """Print the laws that each fault breaks, with the number of problems that it took."""
    caught = without_replica = 0
    print_header("fault", "laws", "others")
    for fault in faults:
        breakers = find_breakers(compiled_maker(faults=[fault]), list(LAWS.values()))
        names = sorted(breakers, key=lambda name: (name in REPLICAS, breakers[name]))
        caught += bool(names)
        without_replica += any(name not in REPLICAS for name in names)
        shown = ", ".join(f"{name} ({breakers[name]})" for name in names[:4]) or "-"
        print_row(fault, shown, max(0, len(names) - 4))
    print(f"{caught} of {len(faults)} faults caught; {without_replica} without the laws that compute anything again")


def run_hunt(words: list[str]) -> None:
    """Plant every fault of the catalogue, and count the generated problems up to the first that fails.

        python -m benchmarks hunt --seeds 5

    The figures do not depend on a clock. `--laws` looks for broken laws instead, which need no reference; those that
    compute resolvents or scores again are counted apart.
    """
    parser = make_parser(run_hunt)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--laws", action="store_true", help="search for the laws that each fault breaks")
    parser.add_argument("--fault", action="append", help="a fault to find; repeatable; all if not given")
    arguments = parser.parse_args(words)
    # Many small tuples and no cycles.
    gc.disable()
    faults = arguments.fault or list(FAULTS)
    if arguments.laws:
        print_power(faults)
    else:
        hunt_all(arguments.seeds, faults)


# Steps


FLOATS: Final = ("a", "b", "STATE", "MEMORY.value")
INTEGERS: Final = ("i", "j", "COUNTS")
STATEMENTS: Final = (
    "{f} = {f}.clone()",
    "{f}[:] = {g}[:]",
    "{f}.copy_({g})",
    "{f}[1:] = {f}[:-1].clone()",
    "{f}[1:] = {g}[:-1]",
    "{f}[::2] = {g}[::2]",
    "{f}.add_({g})",
    "{f}.add_({g}.flip(0))",
    "{f}.mul_(2)",
    "{f}.t().add_({g})",
    "{f}.t().copy_({g})",
    "{f}.view(-1)[3:7] = {g}.view(-1)[1:5]",
    "{f}.index_put_(({i} % 6,), {g})",
    "{f}.index_copy_(0, torch.arange(5, -1, -1), {g})",
    "{f}.index_add_(0, {i} % 6, {g})",
    "{f}.scatter_(0, ({i} % 6)[None].expand(1, 6), {g}[:1])",
    "{f}[{i} % 6] = {g}[{j} % 6]",
    "{f}.masked_fill_({g} > 2, 7.0)",
    "{f}[{g} > 3] = 1.0",
    "{f} = torch.where(({i} > 2)[:, None], {f}, {g})",
    "{f} = {g}.index_select(0, {i} % 6)",
    "{f} = torch.slice_scatter({f}, {g}[1:3], 0, 2, 4)",
    "{f} = torch.select_scatter({f}, {g}[1], 0, 2)",
    "{f} = torch.cat([{f}[3:], {g}[:3]])",
    "{f} = {f}.roll(1, 0)",
    "{f} = {f}.cummax(0).values",
    "{f} = torch.stack(({f}, {g})).amax(0)",
    "{f} = {f}[{f}.sum(1).argsort(stable=True)]",
    "{f}, {g} = {g}, {f}",
    "torch._foreach_add_([{f}, {g}], 1.0)",
    "{i}.add_(1)",
    "{i}.copy_({j})",
    "{i}[1:] = {i}[:-1].clone()",
    "{i} = {i} * 2654435761 >> 7",
    "{i} = (torch.arange(6) * 40503 + {j}) >> 3",
    "{i} = {i} ^ ({j} << 5)",
    "{i} = {i} // 3 - {j} % 5",
    "{i} = torch.where({i} > {j}, {i}, -{j})",
    "{i} = {i}.to(torch.int32).to(torch.int64)",
    "{i} = ({i} % 7).to(torch.int8).cumsum(0)",
    "{i} = ({f} > {g}).to(torch.int8).argmax(1)",
    "{i} = ({f} > {g}).sum(1)",
    "{i} = {f}.argmax(1)",
    "{i} = {f}.t().argmin(1)",
    "{i} = torch.searchsorted({i}.sort().values, {j})",
    "{i} = ({i} % 6).scatter(0, {j} % 6, {i})",
    "{i} = torch.bitwise_and({i}, {j}).abs()",
    "{f}.put_({i} % 36, {g}[0])",
    "{f}.masked_scatter_({g} > 0, {g}.flip(1))",
    "{f}.scatter_reduce_(0, ({i} % 6)[None].expand(6, 6), {g}, 'amax')",
    "{f}.index_reduce_(0, {i} % 6, {g}, 'amin')",
    "{f}.index_fill_(1, {i} % 6, 2.0)",
    "{f}.fill_diagonal_(3.0)",
    "{f}.diagonal().copy_({g}[0])",
    "{f}.unfold(0, 2, 2)[0].mul_(3)",
    "{f}.addcmul_({g}.t(), {g})",
    "{f}.sub_({f}.roll(1, 1))",
    "{f}.lerp_({g}.flip(1), 0.5)",
    "{f}[:, 1:].add_({f}[:, :-1])",
    "{f}[{i} % 6, {j} % 6] += 1",
    "{f}[-1].copy_({f}[0])",
    "{f}.swapaxes(0, 1)[2].zero_()",
    "{f} = {f}.as_strided((6, 6), (1, 6)).clone()",
    "{f} = {f}.gather(1, ({i} % 6)[:, None].expand(6, 6))",
    "{f} = {f}.topk(6, 1).values",
    "{f} = {f}.sort(dim=1, descending=True, stable=True).values",
    "{f} = {f}.cumsum(1).flip(1)",
    "{f} = {f}.tril() + {g}.triu(1)",
    "{f} = torch.diagonal_scatter({f}, {g}[2])",
    "{f} = torch.masked_fill({f}, {f} == {f}.amax(1, keepdim=True), -torch.inf).nan_to_num(neginf=-9)",
    "{f} = {f}.to(torch.int8).to(torch.float32)",
    "{f} = {f}.remainder(5) - {g}.fmod(3)",
    "{f} = {f}.round().div(2, rounding_mode='floor')",
    "{f} = {f}.half().add({g}.half()).float()",
    "{f} = {f}.bfloat16().amax(0).float() + {g}",
    "{f} = {f}.view(torch.int32).bitwise_and(-65536).view(torch.float32)",
    "{f} = {f}.unflatten(0, (2, 3)).transpose(0, 1).flatten(0, 1)",
    "{f} = torch.nn.functional.pad({f}[1:, 1:], (1, 0, 0, 1), value=2.0)",
    "{f} = torch.nn.functional.one_hot({i} % 6, 6) * {f}",
    "{f} = torch.nn.functional.embedding({i} % 6, {f})",
    "{f}, {i} = {f}.amax(1, keepdim=True).expand(6, 6).clone(), {f}.max(1).indices",
    "torch._foreach_mul_([{f}, {g}], [2.0, 3.0])",
    "torch._foreach_copy_([{f}, {g}], [{g}.clone(), {f}.clone()])",
    "torch._foreach_sub_([{f}, {g}], [{g}, {f}])",
    "{i}[{j} % 6] = {i}.clone()",
    "{i}.scatter_add_(0, {j} % 6, {i}.clone())",
    "{i}.bitwise_xor_({j}.flip(0))",
    "{i} = {i}.to(torch.int32) * 65537 * 65537 + {j}",
    "{i} = {i}.to(torch.uint8) - {j}.to(torch.uint8) + {i}",
    "{i} = ({i}.to(torch.int16) << 12).to(torch.int64) >> 3",
    "{i} = {i}.remainder(-5) + torch.fmod({j}, 3)",
    "{i} = {i}.clamp(2, 5).cumprod(0) - {j}",
    "{i} = torch.div({i}, -4, rounding_mode='trunc')",
    "{i} = {i}.argsort(stable=True, descending=True)",
    "{i} = torch.bucketize({i}, {j}.sort().values, right=True)",
    "{i} = {i}.unique_consecutive().sum() + {j}",
    "{i} = ({i} == {j}).logical_not().long() | {j}",
    "{i} = ({i}[:, None] == {j}).any(1) * {i} + ({i}[:, None] < {j}).sum(1)",
    "{i} = ({i}[:, None] == {j}).int().argmax(1)",
    "{i} = torch.arange(5, -1, -1)[{i} % 6] * {j}",
    "{i} = torch.repeat_interleave({i} % 6, 2)[1:7]",
    "{i} = {f}.long().amin(1) - {f}.bool().sum(1)",
    "{i} = ({f} == {f}.amax()).flatten().nonzero().sum() + {j}",
    "{i} = torch.where({i} % 2 == 0, {i} >> 1, 3 * {j} + 1)",
    "{i} = {i}.roll(2) ^ ({i} >> ({j} & 7))",
    "r = Pair({f}, {i}); {f} = r._replace(value={g}).value",
    "r = Pair({f}, {i}); {g}.copy_(r.value.flip(0)); {i} = r.rows + 1",
    "MEMORY.value = {f}.clone()",
    "MEMORY.value[:2] = {f}[2:4]",
    "MEMORY.count += 1; {f} = {f} + MEMORY.count",
)
_NUMBERS: Final = itertools.count()
STEP_HEAD: Final = '''"""A step that torch compiles wrongly, drawn by `python -m benchmarks steps`, seed {seed}."""

from typing import NamedTuple

import torch

STATE = torch.arange(36.0).reshape(6, 6) % 7
COUNTS = torch.arange(6)


class Pair(NamedTuple):
    value: torch.Tensor
    rows: torch.Tensor


class Memory:
    def __init__(self):
        self.value = torch.ones(6, 6)
        self.count = 0


MEMORY = Memory()


def make(call):
    draw = torch.Generator().manual_seed(call)
    floats = [torch.randint(-4, 5, (6, 6), generator=draw).float() for _ in range(2)]
    return *floats, *(torch.randint(0, 9, (6,), generator=draw) for _ in range(2))


def step(a, b, i, j):
    global STATE, COUNTS
    {body}
    return a, b, i, j
'''


def draw_statements(seed: int) -> tuple[str, ...]:
    """Draw the statements of a step."""
    rng = random.Random(seed)
    statements = []
    for _ in range(rng.randint(2, 6)):
        f, g = rng.sample(FLOATS, 2)
        i, j = rng.sample(INTEGERS, 2)
        statements.append(rng.choice(STATEMENTS).format(f=f, g=g, i=i, j=j))
    return tuple(statements)


def draw_steps(seed: int, job: int = 0, jobs: int = 1) -> Iterator[tuple[int, tuple[str, ...]]]:
    """Yield the steps of one of several jobs, without end: the seed from which each was drawn, and its statements.

    A step that was drawn before is left out. The statements choose the job, so that no two jobs have one step.
    """
    drawn: set[tuple[str, ...]] = set()
    for number in itertools.count(seed):
        statements = draw_statements(number)
        if zlib.crc32("\n".join(statements).encode()) % jobs == job and statements not in drawn:
            drawn.add(statements)
            yield number, statements


def write_step(statements: tuple[str, ...], seed: int, path: Path) -> None:
    """Write a step as a module."""
    path.write_text(STEP_HEAD.format(seed=seed, body="\n    ".join(statements or ("pass",))), encoding="utf-8")


def load_step(path: Path) -> ModuleType:
    """Import a step anew."""
    # Dynamo keeps the module of a name that it has imported, and imports the module whose globals a step reads.
    name = f"{path.stem}_{next(_NUMBERS)}"
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = sys.modules[name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def find_rung(statements: tuple[str, ...], seed: int, path: Path, names: tuple[str, ...]) -> str:
    """Return the first of the rungs on which a step deviates; empty if none does, or if it fails in eager."""
    write_step(statements, seed, path)
    module = load_step(path)
    subject = Subject("step", module.step, module.make, calls=1)
    judge = Judge(subject, AuditOptions(repetitions=0))
    if any(each.error for each in judge.expected.values()):
        return ""
    for rung in RUNGS:
        if rung.name in names and judge.judge(judge.watch(rung))[0]:
            return rung.name
    return ""


def find_cause(statements: tuple[str, ...], seed: int, path: Path, name: str) -> str:
    """Return what the compiler must leave out on a rung, so that a step is right; empty if nothing is found in a minute."""
    write_step(statements, seed, path)
    module = load_step(path)
    options = AuditOptions(rungs=(name,), repetitions=0)
    ladder = climb(Subject("step", module.step, module.make, calls=1), options)
    items = find_culprit(ladder.judge, ladder.first).items if ladder.first is not None else ()
    return " and ".join(map(str, items))


def name_kind(statements: tuple[str, ...], rung: str) -> str:
    """Name what is left of a step by its rung and operations."""
    words = (re.sub(r"\b(a|b|i|j|STATE|COUNTS|MEMORY\.value)\b", "x", each) for each in statements)
    return f"{rung}: {'; '.join(words)}"


def search_steps(seconds: float, seed: int, folder: Path, job: int, jobs: int) -> dict[str, int]:
    """Draw, compare and shrink steps until the time is over, that of earlier searches in the folder included.

    Return the number of steps of each kind that deviate.
    """
    folder.mkdir(parents=True, exist_ok=True)
    done = folder / "done.json"
    last, num, before, kinds = json.loads(done.read_text()) if done.exists() else (seed - 1, 0, 0.0, {})
    rungs = ("backend-eager", "default")
    scratch = folder / "drawn.py"
    with keeping_caches([rung for rung in RUNGS if rung.name in rungs]), compiling_without_caches():
        for number, statements in draw_steps(seed, job, jobs):
            if number <= last:
                continue
            if (used := before + read_cpu_seconds()) > seconds:
                break
            num += 1
            if rung := find_rung(statements, number, scratch, rungs):

                def still(part: tuple[str, ...], rung: str = rung, number: int = number) -> bool:
                    return find_rung(part, number, scratch, (rung,)) == rung

                least = minimize(statements, still)
                kind = name_kind(least, rung)
                if kind not in kinds:
                    write_step(least, number, folder / f"step_{number}.py")
                    cause = find_cause(least, number, scratch, rung)
                    print(f"seed {number}: {kind} | right without {cause or '?'}", flush=True)
                kinds[kind] = kinds.get(kind, 0) + 1
            used = before + read_cpu_seconds()
            done.write_text(json.dumps((number, num, used, kinds)))
            if num % 50 == 0:
                print(f"{num} steps, {len(kinds)} kinds, {used:.0f} s", flush=True)
    print(f"{num} steps, {len(kinds)} kinds, {before + read_cpu_seconds():.0f} s", flush=True)
    return kinds


def run_steps(words: list[str]) -> None:
    """Draw small steps, and compare each with eager on the first and the last rung of the compiler.

        python -m benchmarks steps --seconds 600 --save found
        python -m benchmarks steps --seconds 600 --save found --jobs 16

    The steps are what slot-recycling code is made of: mutation of captured state and arguments, views, scatters, masks,
    integer arithmetic, records. A step that deviates is shrunk statement by statement, and saved as a file with `step`
    and `make`, for `kgverify audit step`. Steps that deviate after the same shrinking, with the same operations, count
    once, and the pass or switch without which each is right is searched. Each of several jobs takes its own steps of
    one sequence, in its own folder `job_N`; no two of them try the same step. A search that was interrupted resumes
    after its last step: the folder holds what it has done.
    """
    parser = make_parser(run_steps)
    parser.add_argument("--seconds", type=float, default=600.0, help="CPU time of each job, with its processes")
    parser.add_argument("--seed", type=int, default=0, help="the first step's")
    parser.add_argument("--save", type=Path, default=Path("found"), help="folder for the steps that deviate")
    parser.add_argument("--jobs", type=int, default=1)
    options = parser.parse_args(words)
    folders = [options.save / f"job_{job}" if options.jobs > 1 else options.save for job in range(options.jobs)]
    given = [(options.seconds, options.seed, folder, job, options.jobs) for job, folder in enumerate(folders)]
    for kinds in run_tasks([(f"job {each[3]}", search_steps, each) for each in given], dict[str, int], options.jobs):
        for kind, count in sorted(kinds.items(), key=lambda each: -each[1]):
            print(f"{count:4} {kind}")


# Dialects


BATCHED: Final = Dialect(
    unification="one_pass",
    filters=("prune", "close", "max_resolvents", "revisit", "max_atoms"),
    memory="set",
    exempts_terminal=True,
    stopping="where_no_terminal",
    ties="random",
)
"""The dialect of a batched engine in docs/semantics.md."""
PLAIN: Final = Dialect(exclusion="never", filters=("max_atoms", "max_resolvents"), memory="none")
"""The dialect of plain resolution: nothing is pruned, visited or excluded."""
SEED: Final = 21


def list_dialects(num: int) -> list[Dialect]:
    """Return the published dialects and others that are drawn at random, half of them close to the default one."""
    rng = random.Random(SEED)
    found = [OURS, BATCHED, PLAIN]
    while len(found) < num:
        drawn = random_dialect(rng, make_dialect, rng.choice((2, 13)))
        if drawn not in found:
            found.append(drawn)
    return found[:num]


def make_dialect(**switches: Any) -> Dialect:
    """Return a dialect of switches with the reference's values."""
    plain = {name: value if isinstance(value, bool) else str(value) for name, value in switches.items()}
    if "filters" in switches:
        plain["filters"] = tuple(map(str, switches["filters"]))
    return Dialect(**plain)


def count_false_alarms(dialects: list[Dialect], num_problems: int, num_for_laws: int) -> int:
    """Print and return the number of dialects in which a correct engine is called wrong."""
    print_header("dialect", "problems", "differ", "laws", "problems", "broken", "seconds")
    num_alarms = 0
    for number, dialect in enumerate(dialects):
        begun = time.monotonic()
        check = partial(kv.check_engine, SecondEngine, dialect=dialect, seed=number, seconds=math.inf)
        compared, judged = check(examples=num_problems, laws=[]), check(examples=num_for_laws)
        differs = sum(each.failure is not None for each in (compared, judged))
        broken = ", ".join(each.law for each in judged.violations)
        num_alarms += bool(differs or broken)
        laws = len(judged.laws), f"{judged.num_problems:,}", broken or 0
        print_row(dialect, f"{compared.num_problems:,}", differs, *laws, f"{time.monotonic() - begun:,.0f}")
    print(f"\nfalse alarms: {num_alarms} in {len(dialects)} dialects")
    return num_alarms


def run_dialects(words: list[str]) -> int:
    """Judge correct engines of many dialects.

        python -m benchmarks dialects --problems 10000 --laws 500

    The reference, in each dialect, is compared with an engine of the same dialect that was written apart from it
    (tests/dialects), and the laws that hold in the dialect are checked. Exit code 1 for a difference or a broken law,
    each of which is a false alarm.
    """
    parser = make_parser(run_dialects)
    parser.add_argument("--dialects", type=int, default=20)
    parser.add_argument("--problems", type=int, default=2000, help="compared in each dialect")
    parser.add_argument("--laws", type=int, default=256, help="problems on which laws are checked in each dialect")
    options = parser.parse_args(words)
    return int(count_false_alarms(list_dialects(options.dialects), options.problems, options.laws) > 0)


# False alarms


def draw_arguments(device: str, mode: str, seed: int) -> dict[str, Any]:
    """Return the arguments of one evaluation."""
    rng = random.Random(seed)
    return {
        "graph": rng.choice([f"random:{seed}", f"random:{seed}", f"random:{seed}", "countries"]),
        "queries": rng.choice([1, 2, 3, 5, 9, None]),
        "corruptions": rng.choice([0, 1, 3, 7, 20, "all"]),
        "seed": rng.choice([seed, seed + (1 << 33)]),
        "policy": rng.choice(["shortest", "two_tower"]),
        "limits": kv.Limits(
            max_depth=rng.choice([1, 2, 3, 5, 8]),
            max_atoms=rng.choice([2, 3, 6]),
            max_resolvents=rng.choice([2, 5, 20, 120]),
        ),
        "engine": kv.Evaluator(mode=mode, device=device, slots=rng.choice([None, 1, 3, 16, 64])),
        "options": kv.EvaluationOptions(
            part_size=rng.choice([None, None, 1, 10, 100]),
            rank_only=rng.random() < 0.5,
            check=rng.choice([0, 16, 256]),
            minimum={},
        ),
    }


def evaluate_seed(device: str, mode: str, seed: int) -> str:
    """Return what is wrong with one evaluation; empty if it is sound."""
    arguments = draw_arguments(device, mode, seed)
    try:
        report = kv.evaluate(**arguments)
    except kv.UserError as error:
        # Not every random graph has enough triples or constants: such a draw is refused, in words.
        return f"refused: {error}".splitlines()[0]
    except Exception as error:
        return f"seed {seed}: {arguments}: {type(error).__name__}: {error}"
    return "" if report.is_sound else f"seed {seed}: {arguments}: not sound"


def run_false_alarms(words: list[str]) -> int:
    """Evaluate many small graphs, each with its checks, and count those that are called wrong although nothing is.

        python -m benchmarks false-alarms --evaluations 1000 --jobs 2
        python -m benchmarks false-alarms --evaluations 100 --device cuda

    Graphs, numbers of corruptions, policies, limits, layouts and the ways to rank are drawn from the seed. A line names
    each evaluation that is not sound or raises; the exit code is 1 if there is one. `kgverify fuzz` is the same measure
    for generated problems. No minimum is asked for, since many of the graphs prove nothing.
    """
    parser = make_parser(run_false_alarms)
    parser.add_argument("--evaluations", type=int, default=1000)
    parser.add_argument("--first-seed", type=int, default=0)
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--mode", default="auto")
    options = parser.parse_args(words)
    seeds = range(options.first_seed, options.first_seed + options.evaluations)
    tasks: list[Task] = [(str(seed), evaluate_seed, (options.device, options.mode, seed)) for seed in seeds]
    texts = list(run_tasks(tasks, str, options.jobs))
    refused = [text for text in texts if text.startswith("refused")]
    wrong = [text for text in texts if text and not text.startswith("refused")]
    print(*wrong, *sorted(set(refused)), sep="\n")
    print(f"{len(texts) - len(refused)} evaluations, {len(wrong)} called wrong, {len(refused)} refused")
    return bool(wrong)
