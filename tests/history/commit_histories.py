"""Git histories of small engines with planted and repaired faults, made from a seed, each with the right answer.

Nothing here knows how kgverify searches: the answer follows from what the script planted.
"""

import os
import random
import shutil
import subprocess
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

LENGTH = 30
PADDED = Path(__file__).resolve().parents[2] / "examples" / "padded_engine"
GIT = {
    "GIT_CONFIG_GLOBAL": os.devnull,
    "GIT_CONFIG_SYSTEM": os.devnull,
    **{
        f"GIT_{role}_{what}": value
        for role in ("AUTHOR", "COMMITTER")
        for what, value in (("NAME", "Ann"), ("EMAIL", "a@b.c"))
    },
}


GRAPH = {
    "train.txt": "".join(
        [f"near(p{i},p{(i + d) % 30}).\n" for i in range(30) for d in (1, 29, 7)]
        + [f"located(p{i},r{i // 5}).\n" for i in range(30) if i % 3]
        + [f"within(r{i},c{i // 3}).\n" for i in range(6)]
    ),
    "test.txt": "".join(f"located(p{i},{place}).\n" for i, place in ((3, "r0"), (27, "r5"), (6, "c0"), (12, "r2"))),
    "rules.txt": """\
located(X,Z) :- near(X,Y), located(Y,Z).
located(X,Z) :- located(X,Y), within(Y,Z).
located(X,Z) :- near(X,Y), near(Y,W), located(W,Z).
""",
}
"""A graph of places, which is beside the commits."""


class Fault(NamedTuple):
    """A fault: the lines that plant it in an engine, its stage, and a pattern of its condition."""

    place: str
    code: str
    stage: str
    condition: str = ""


FAULTS = {
    "cap": Fault("clauses", "facts = facts[:50]", "match_facts", "position 50 or later"),
    "one-rule": Fault("clauses", "rules = [each for each in rules if each.origin != 0]", "match_rules", "the index 0"),
    "order": Fault("clauses", "rules = rules[::-1]", "match_rules", ""),
    "backwards": Fault("atoms", "atoms = body[::-1] + rest", "resolve", ""),
    "drops-atom": Fault("atoms", "atoms = atoms[:1]", "resolve", ""),
    "no-prune": Fault(
        "methods", "def prune(self, resolvents, excluded):\n        return resolvents", "prune", "pruning deletes"
    ),
    "revisits": Fault(
        "methods",
        "def revisit(self, resolvents, visited):\n        return resolvents",
        "revisit",
        "a goal visited before",
    ),
    "short-list": Fault(
        "methods",
        "def limit(self, resolvents):\n        return super().limit(resolvents[:2])",
        "limit",
        "position 2 or later",
    ),
    "long-first": Fault(
        "methods",
        "def score(self, goal, resolvents):\n        return [-each for each in super().score(goal, resolvents)]",
        "score",
        "negative scores",
    ),
}
"""The faults of the engines in plain Python and NumPy."""

PADDED_FAULTS = {
    "padded-cap": Fault(
        "        fits = self.unifies(goals[state], self.facts[fact])",
        "        state, fact = state[fact < 60], fact[fact < 60]\n        fits = self.unifies(goals[state], self.facts[fact])",
        "match_facts",
        # The graph has 90 facts of one predicate first: both words describe the same facts.
        "the index 60 or more|29 or less before the end",
    ),
    "padded-rule": Fault(
        "        fits = self.unifies(goals[state], heads[rule])\n        return state[fits], rule[fits]",
        "        fits = self.unifies(goals[state], heads[rule]) & (rule > 0)\n        return state[fits], rule[fits]",
        "match_rules",
        "the index 0",
    ),
}

UNIFY = """\
def rename(atom):
    return atom[0], *(term if term >= 0 else term - 1000 for term in atom[1:])


def bind(atom, bound):
    terms = atom[1:]
    while any(term in bound for term in terms):
        terms = tuple(bound.get(term, term) for term in terms)
    return atom[0], *terms


def unify(left, right):
    bound = {}
    for i in (1, 2):
        a, b = bind(left, bound)[i], bind(right, bound)[i]
        if a != b and min(a, b) >= 0:
            return None
        if a != b:
            bound[min(a, b)] = max(a, b)
    return bound
"""

ENGINE = '''\
class Mine(kv.StagedEngine):
    """A prover, one clause after the other."""

    def resolve(self, goal, excluded):
        clauses = self.clauses_for(goal, excluded)
        rules, facts = [each for each in clauses if each.body], [each for each in clauses if not each.body]
CLAUSES
        for clause in [*rules, *select(goal, facts)]:
            bound = unify(goal[0], rename(clause.head))
            if bound is not None:
                body, rest = [bind(rename(atom), bound) for atom in clause.body], [bind(atom, bound) for atom in goal[1:]]
                atoms = body + rest
ATOMS
                yield clause, atoms

METHODS
'''

SELECT = '''

def select(goal, facts):
    """Return the facts that agree with the goal in every constant."""
    return [each for each in facts if all(a < 0 or a == b for a, b in zip(goal[0], each.head))]
'''

SELECT_ARRAY = '''

def select(goal, facts):
    """Return the facts that agree with the goal in every constant."""
    table = np.array([each.head for each in facts], np.int64).reshape(-1, 3)
    atom = np.array(goal[0])
    return [facts[i] for i in np.flatnonzero(((table == atom) | (atom < 0)).all(1))]
'''


@dataclass
class State:
    """The content of a commit: the style of the engine, the planted faults, how it is broken, and harmless changes."""

    style: str
    faults: set[str] = field(default_factory=set)
    broken: str = ""
    number: int = 0
    is_renamed: bool = False
    is_split: bool = False

    def render(self) -> dict[str, str]:
        """Return the files of the commit."""
        lines = {"import": "import nowhere", "syntax": "def (", "exit": "import os\n\nos._exit(0)", "raise": "1 / 0"}
        before = f"{lines[self.broken]}\n" if self.broken in lines else ""
        if self.style == "torch":
            files = {path.name: path.read_text() for path in PADDED.glob("*.py")}
            for name in self.faults:
                assert files["prover.py"].count(PADDED_FAULTS[name].place) == 1
                files["prover.py"] = files["prover.py"].replace(PADDED_FAULTS[name].place, PADDED_FAULTS[name].code)
            files["prover.py"] = before + files["prover.py"] + f"\n# version {self.number}\n"
            return files
        code = {"clauses": [], "atoms": [], "methods": []}
        for name in sorted(self.faults):
            code[FAULTS[name].place].append(FAULTS[name].code)
        if self.broken == "crash":
            code["clauses"].append("raise ValueError('not finished')")
        is_numpy = self.style == "numpy"
        engine = ENGINE
        for place, indent in (("clauses", 8), ("atoms", 16), ("methods", 4)):
            text = "\n\n".join(code[place]) if place == "methods" else "\n".join(code[place])
            engine = engine.replace(
                place.upper(), "\n".join(" " * indent + line for line in text.split("\n")) if text else ""
            )
        unify = UNIFY.replace("bound", "binding") if self.is_renamed else UNIFY
        unify += SELECT_ARRAY if is_numpy else SELECT
        numpy = "import numpy as np\n\n" * is_numpy
        version = f"\n# version {self.number}\n"
        names = "bind, rename, select, unify"
        if self.style == "package":
            return {
                "kinship/__init__.py": f'"""A prover."""\n{version}',
                "kinship/terms.py": unify,
                "kinship/engine.py": f"{before}import kgverify as kv\n\nfrom kinship.terms import {names}\n\n\n{engine}",
            }
        if self.is_split:
            return {
                "mine_terms.py": numpy + unify,
                "mine.py": f"{before}import kgverify as kv\nfrom mine_terms import {names}\n\n\n{engine}{version}",
            }
        return {"mine.py": f"{before}{numpy}import kgverify as kv\n\n\n{unify}\n\n{engine}{version}"}


class History(NamedTuple):
    """A history, and the right answer.

    words:      the options of the comparison
    good, bad:  its ends
    answers:    the commits that may be named as the first; one, unless the same fault was planted twice
    candidates: the commits of which one is the first, if the commits that are broken leave several
    stage:      the stage of the sought fault
    condition:  a pattern that the condition must contain
    commits:    all commits, in order
    """

    kind: str
    style: str
    words: list[str]
    good: str
    bad: str
    answers: list[str]
    candidates: set[str]
    stage: str
    condition: str
    commits: list[str]


KINDS = (
    "one", "repaired", "two", "again", "broken", "hidden", "merge", "undecided", "same stage", "one",
)  # fmt: skip


def git(folder: Path, *words: str) -> str:
    """Return what git prints."""
    done = subprocess.run(["git", *words], cwd=folder, env=os.environ | GIT, capture_output=True, text=True, check=True)
    return done.stdout.strip()


def write_graph(folder: Path) -> None:
    """Write the graph into a folder of a repository that ignores it."""
    (folder / ".git/info/exclude").write_text("kin\n")
    (folder / "kin").mkdir()
    for name, text in GRAPH.items():
        (folder / "kin" / name).write_text(text)


def make_history(folder: Path, seed: int) -> History:
    """Make the history of a seed in a folder."""
    draw = random.Random(seed)
    kind = KINDS[seed % len(KINDS)]
    style = ("file", "package", "numpy", "file", "package", "torch")[seed // len(KINDS) % 6]
    state = State(style)
    pool = [*(PADDED_FAULTS if style == "torch" else FAULTS)]
    if kind == "same stage" and style != "torch":
        pool = ["backwards", "drops-atom"]
    draw.shuffle(pool)
    sought, other = pool[:2]
    git(folder, "init", "-q", "-b", "main")
    write_graph(folder)
    # Commit numbers, from 0: 0 is good, the last one bad.
    at = draw.randrange(14, LENGTH - 4)
    plan: dict[int, list[tuple[str, str]]] = {at: [("plant", sought)]}

    def add(number: int, what: str, name: str) -> None:
        plan.setdefault(number, []).append((what, name))

    early = draw.randrange(2, 6)
    if kind in ("repaired", "same stage"):
        add(early, "plant", other)
        add(draw.randrange(early + 1, at), "repair", other)
    if kind == "two":
        add(draw.choice([early, at + 2]), "plant", other)
    if kind == "hidden":
        add(at - draw.randrange(1, 6), "plant", other)
        add(at + draw.randrange(1, 4), "repair", other)
    if kind == "again":
        add(early, "plant", sought)
        add(draw.randrange(early + 1, at), "repair", sought)
    broken = {}
    if kind in ("broken", "undecided") or draw.random() < 0.3:
        first = at - 3 if kind == "undecided" else draw.choice([draw.randrange(2, at - 4), at + 1])
        how = draw.choice(["import", "syntax", "exit", "raise"] + ["crash"] * (style != "torch"))
        broken = dict.fromkeys(range(first, first + 3), how)
    commits: list[str] = []
    side = range(at - 2, at + 2) if kind == "merge" else range(0)
    answers = []
    for number in range(LENGTH):
        if side and number == side.start:
            fork = commits[-1]
            git(folder, "checkout", "-qb", "side")
        for what, name in plan.get(number, []):
            (state.faults.add if what == "plant" else state.faults.discard)(name)
        state.number, state.broken = number, broken.get(number, "")
        if draw.random() < 0.2:
            state.is_renamed = not state.is_renamed
        if draw.random() < 0.1:
            state.is_split = not state.is_split
        for path in folder.iterdir():
            if path.name not in (".git", "kin"):
                shutil.rmtree(path) if path.is_dir() else path.unlink()
        for name, text in state.render().items():
            (folder / name).parent.mkdir(exist_ok=True)
            (folder / name).write_text(text)
        git(folder, "add", "-A")
        git(folder, "commit", "-qm", f"Change {number}")
        commits.append(git(folder, "rev-parse", "HEAD"))
        if ("plant", sought) in plan.get(number, []):
            answers.append(commits[-1])
        if side and number == side[-1]:
            git(folder, "checkout", "-q", "main")
            assert git(folder, "rev-parse", "HEAD") == fork
            (folder / "notes.txt").write_text("On the main branch.\n")
            git(folder, "add", "-A")
            git(folder, "commit", "-qm", "Add notes")
            git(folder, "merge", "-qm", "Merge side", "side")
    candidates = set()
    if kind == "undecided":
        # Planted by the commit after three that are broken: any of them may have planted it.
        candidates = set(commits[at - 3 : at + 1])
    fault = (PADDED_FAULTS if style == "torch" else FAULTS)[sought]
    engines = {
        "torch": ["--engine", "fast.py:Fast", "--reference", "slow.py:Slow"],
        "package": ["--engine", "kinship.engine:Mine"],
    }.get(style, ["--engine", "mine.py:Mine"])
    words = [*engines, "--graph", "kin", "--corruptions", "3"]
    if kind in ("two", "hidden", "repaired", "same stage"):
        words += ["--cause", fault.stage]
    return History(
        kind,
        style,
        words,
        commits[0],
        git(folder, "rev-parse", "HEAD"),
        answers,
        candidates,
        fault.stage,
        fault.condition,
        commits,
    )
