"""`kgverify.bisect`: the commit at which an engine in the user's git repository began to diverge."""

import hashlib
import multiprocessing
import os
import sys
import warnings
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from enum import IntEnum
from functools import partial
from multiprocessing.connection import Connection
from pathlib import Path
from time import perf_counter
from typing import Any, Final, TypeAlias

import msgspec

from kgverify.api.compare import compare
from kgverify.api.inputs import names_trace
from kgverify.api.verify import verify_job
from kgverify.arguments import checked
from kgverify.comparison.result import Cause, Divergence, Verdict
from kgverify.engines.load_engine import describe_raised, load_factory
from kgverify.engines.policy import POLICY_NAMES
from kgverify.errors import UserError, count_of, first_line
from kgverify.escaping import ShownAsText, make_visible
from kgverify.files.code_identity import hash_file, identify_own_code
from kgverify.files.repository import Commit, Repository
from kgverify.files.writing import check_folder, locked_folder, remove_tree
from kgverify.report.report import Report
from kgverify.runs.engine_makers import EngineSpec
from kgverify.runs.job import Engines, Job, Source, encode_job
from kgverify.runs.ledger import Ledger, WorkIdentity
from kgverify.runs.pool import Processes, describe_end, end_with_parent
from kgverify.verification.judgement import UNEXPLAINED
from kgverify.verification.save import read_run
from kgverify.verification.verify import verify

ANY: Final = "any"
"""The cause that stands for any divergence."""
TIMEOUT: Final = 600.0
"""The default time limit for the judgement of a commit, in seconds."""
_unexplained: Final = partial(verify, effort=UNEXPLAINED)
_NOT_OF_USER: Final = ("kgverify", "kgreference", "__main__", "__mp_main__", *sys.stdlib_module_names)


_ORDER: Final = {"match_rules": 0, "match_facts": 0, "resolve": 1, "score": 3, "choose": 4} | dict.fromkeys(
    ("prune", "rename", "revisit", "close", "limit"), 2
)
"""The order of the stages of a step in every dialect."""


class Likeness(IntEnum):
    """The likeness of a commit's divergences to the one that is sought.

    NONE: other causes, or no divergence; UNCLEAR: other causes in each of its steps, which may hide it; CAUSE: its stage
    and class in other steps; STEP: the same step goes wrong in the same way
    """

    NONE = 0
    UNCLEAR = 1
    CAUSE = 2
    STEP = 3


Place: TypeAlias = tuple[str, str, int]
"""A step: the atom and the side of its candidate, and its number."""


class Sought(msgspec.Struct, frozen=True):
    """The divergence whose first commit is sought: the first one of its cause in the bad commit.

    cause:       its stage and class
    first:       the step
    wrong:       the items that differ there, of both sides
    places:      the steps of the bad commit that show the cause, in lockstep if it shows there
    in_lockstep: whether it shows in lockstep, where no other cause hides it from the following steps
    """

    cause: tuple[str, str]
    first: Place
    wrong: str
    places: tuple[Place, ...] = ()
    in_lockstep: bool = True

    def list_places(self, report: Report) -> tuple[Place, ...]:
        """Return the steps of a report that show the cause."""
        return tuple(dict.fromkeys(_place(each) for each in report.divergences if self._has_cause(each, report)))

    def compare(self, report: Report) -> Likeness:
        """Return the largest likeness of a report's divergences."""
        best, hiding = Likeness.NONE, set()
        for each in report.divergences:
            if self._has_cause(each, report):
                is_same = (_place(each), _items(each)) == (self.first, self.wrong)
                best = max(best, Likeness.STEP if is_same else Likeness.CAUSE)
            elif not each.is_replayed or _ORDER.get(self.cause[0], 9) >= _ORDER.get(each.stage, 0):
                # Else the stage of the cause was compared before this one, and was right.
                hiding.add(_place(each))
        return Likeness.UNCLEAR if best is Likeness.NONE and hiding.issuperset(self.places) else best

    def _has_cause(self, each: Divergence, report: Report) -> bool:
        cause = report.causes[each.cause]
        return (cause.stage, str(cause.kind)) == self.cause


def _place(each: Divergence) -> Place:
    return each.atom, each.side, each.step


def _items(each: Divergence) -> str:
    return f"{each.expected} -> {each.actual}"


class JudgedCommit(msgspec.Struct, frozen=True, kw_only=True):
    """A commit, and the result of the comparison of its engine.

    verdict:   AGREE or DIVERGE; empty if the commit is skipped
    reason:    why it is skipped
    causes:    the stage and the class of each cause
    likeness:  that of its divergences to the one that is sought
    is_hidden: whether that one shows only in lockstep, since others come first
    sought:    the divergence to seek in other commits; only of the bad commit
    """

    commit: str = ""
    verdict: str = ""
    reason: str = ""
    causes: tuple[str, ...] = ()
    likeness: Likeness = Likeness.NONE
    is_hidden: bool = False
    sought: Sought | None = None
    seconds: float = 0.0

    def is_bad(self, at_least: Likeness) -> bool | None:
        """Return whether the commit has the cause in this likeness; None if it is skipped."""
        return None if self.reason else self.likeness >= at_least

    def __str__(self) -> str:
        """Return the result in words."""
        return f"skipped: {self.reason}" if self.reason else f"{self.verdict} {'; '.join(self.causes)}".strip()


class Bisection(msgspec.Struct, ShownAsText, frozen=True, kw_only=True, tag_field="format", tag="kgverify bisection 1"):
    """The result of a search for the commit at which an engine began to diverge.

    commit:     the full name of the first commit with the divergence; empty if skipped commits leave several
    candidates: the commits of which one is the first
    cause:      the cause, with its condition; None if any divergence was sought
    judged:     the judged and the skipped commits, in order
    notes:      further remarks, such as a later commit since which other steps go wrong
    report:     the report of the commit, or that of the bad commit if there are several
    """

    commit: str
    candidates: tuple[Commit, ...]
    cause: Cause | None
    judged: tuple[JudgedCommit, ...]
    notes: tuple[str, ...]
    report: Report

    def __str__(self) -> str:
        """Return the commit, the cause and the skipped commits, as lines."""
        lines = [f"first commit with this divergence: {self.candidates[0]}"]
        if not self.commit:
            lines = [f"the first commit with this divergence is one of {len(self.candidates)}:"]
            lines += [f"  {each}" for each in self.candidates]
        if self.cause is not None:
            lines.append(f"  {self.cause.stage}, {self.cause.kind}: {self.cause.condition.partition(': ')[0]}")
        skipped = [each for each in self.judged if each.reason]
        lines.append(f"  {count_of(len(self.judged), 'commit')} judged, {len(skipped)} of them skipped")
        lines += [f"    {each.commit[:10]} {each}" for each in skipped] + [f"  note: {each}" for each in self.notes]
        return "\n".join(map(make_visible, lines))


@checked
def bisect(
    job: Job,
    good: str,
    bad: str = "HEAD",
    *,
    cause: str = "",
    timeout: float = TIMEOUT,
    save: str | Path | None = None,
    watch: Callable[[str], None] | None = None,
) -> Bisection:
    """Find the commit at which an engine in the git repository of the current folder began to diverge.

    The files of each commit are written into a folder in `.git`, and judged as by `kgverify.verify` in a new process, whose
    current folder is the corresponding one there. The engine, and a reference in the repository, are those of the commit; the
    graph, the policy and the limits are those of now. A commit without a verdict is skipped. An interrupted search resumes.

    Args:
        job: The comparison. The engine is named as `"module:name"` or `"file.py:name"`; the reference may also be the path of a
            recorded trace.
        good: A commit, tag or branch at which the engine does not diverge: an ancestor of `bad`.
        bad: A commit at which it diverges.
        cause: The cause that is sought. If not given, that of the bad commit's first divergence; or a stage, such as
            `"match_facts"`, for the first cause there; or `"any"` divergence.
        timeout: The time limit for the judgement of a commit, in seconds; a slower commit is skipped.
        save: A folder for the traces and the report of the commit.
        watch: A function that takes a line for each judged commit.

    Returns:
        The result: `.commit`, `.cause`, `.report`. `print(result)` prints it.

    Raises:
        UserError: If the good commit diverges, the bad one does not, or one of them has no verdict.

    Example:
        >>> import kgverify as kv
        >>> try:
        ...     kv.bisect(kv.Job(), "v1")
        ... except kv.UserError as error:
        ...     print(error.fix)
        give MODULE:NAME, or FILE.py:NAME
    """
    engine = job.engines.engine
    if not isinstance(engine, str) or EngineSpec(engine).is_own:
        raise UserError("expected an engine in the repository", where="engine", fix="give MODULE:NAME, or FILE.py:NAME")
    repository = Repository()
    good, bad = repository.find_commit(good, "the good commit"), repository.find_commit(bad, "the bad commit")
    if good == bad or not repository.is_ancestor(good, bad):
        raise UserError(
            f"is no ancestor of {bad[:10]}", where=f"the good commit {good[:10]}", fix="give an earlier one"
        )
    if save is not None:
        check_folder(Path(save))
    job, files = _anchor(job, repository)
    code = identify_own_code() | {name: hash_file(Path(name)) for name in files if Path(name).is_file()}
    question = msgspec.json.encode((encode_job(job), good, bad, cause, str(repository.inside)))
    folder = repository.common / "kgverify"
    with locked_folder(folder, "a search in this repository", fix="wait until it ends"):
        path = folder / f"bisect-{hashlib.sha256(question).hexdigest()[:16]}.jsonl"
        ledger = Ledger(path, WorkIdentity(code=code), JudgedCommit, title="list of judged commits")
        try:
            remove_tree(folder / "index")
            with Processes(1) as workers:
                search = _Search(repository, job, folder, cause, timeout, ledger, workers, watch)
                found = search.run(good, bad, save)
            remove_tree(path)
        except UserError:
            remove_tree(path)
            raise
        finally:
            for name in ("tree", "index", "index.lock", "run"):
                remove_tree(folder / name)
    return found


def _anchor(job: Job, repository: Repository) -> tuple[Job, list[str]]:
    """Return the job with a loaded graph, and with names that have the same meaning in every folder; and the named files.

    The file of an engine in the repository is named from the current folder.
    """
    engine, reference, policy = job.engines.engine, job.engines.reference, job.proofs.policy
    files = []
    if isinstance(reference, str) and names_trace(reference):
        files.append(reference := str(Path(reference).absolute()))
    if isinstance(policy, str) and policy not in (*POLICY_NAMES, "trained") and Path(policy).exists():
        files.append(policy := str(Path(policy).absolute()))
    names = [engine, reference]
    for i, name in enumerate(names):
        file, _, attribute = name.rpartition(":") if isinstance(name, str) else ("", "", "")
        if os.path.isabs(file) and Path(file).is_relative_to(repository.root):
            names[i] = f"{os.path.relpath(file)}:{attribute}"
    source, proofs = Source(job.source.load()), replace(job.proofs, policy=policy)
    return replace(job, source=source, engines=Engines(*names), proofs=proofs), files  # type: ignore[arg-type]  # names of both


@dataclass
class _Search:
    """A search for the first commit with a divergence. records: the judged commits by name."""

    repository: Repository
    job: Job
    folder: Path
    cause: str
    timeout: float
    ledger: Ledger[JudgedCommit]
    workers: Processes
    watch: Callable[[str], None] | None
    sought: Sought | None = None
    records: dict[str, JudgedCommit] = field(default_factory=dict)

    def run(self, good: str, bad: str, save: str | Path | None) -> Bisection:
        """Return the result. UserError if the two commits are not as expected."""
        self.records = {each.commit: each for each in self.ledger.records}
        for commit, is_bad in ((bad, True), (good, False)):
            where, judged = f"the {'bad' if is_bad else 'good'} commit {commit[:10]}", self.judge(commit)
            if judged.reason:
                raise UserError(f"has no verdict: {judged.reason}", where=where, fix="give a commit that can be judged")
            if judged.is_bad(Likeness.CAUSE) != is_bad:
                fix = "give a later commit, or options with which it diverges" if is_bad else "give an earlier commit"
                raise UserError(str(judged), where=where, fix=fix)
            self.sought = self.sought or judged.sought
        candidates = latest = self.find(good, bad, Likeness.STEP)
        notes = []
        # If the cause already showed in other steps, it is older than its present form.
        while older := next(filter(self._has_cause, self._list_before(candidates)), None):
            if self.repository.is_ancestor(older, good):
                notes.append(f"{self.repository.describe(older)}, before the good commit, has this divergence as well")
                break
            candidates = self.find(good, older, Likeness.CAUSE)
        if candidates != latest:
            notes.append(f"other steps go wrong since {self.repository.describe(latest[0])}")
        is_found = len(candidates) == 1
        report = self._explain(candidates[0] if is_found else bad, save)
        found = [each for each in report.causes if self.sought and each.stage == self.sought.cause[0]]
        found.sort(key=lambda each: self.sought is not None and str(each.kind) != self.sought.cause[1])
        return Bisection(
            commit=candidates[0] if is_found else "",
            candidates=tuple(map(self.repository.describe, candidates)),
            cause=found[0] if found else None,
            judged=tuple(self.records.values()),
            notes=tuple(notes),
            report=report,
        )

    def find(self, good: str, bad: str, likeness: Likeness) -> list[str]:
        """Return the first commit that is bad, after it skipped ones that may be bad before it."""
        while True:
            known = [name for name, each in self.records.items() if each.is_bad(likeness) is False]
            known = [each for each in known if not self.repository.is_ancestor(bad, each)]
            listed = self.repository.list_between([good, *known], bad)
            fresh = [each for each in listed if each not in self.records]
            skipped = [each for each in listed if each in self.records and each != bad]
            if not fresh:
                return [bad, *skipped]
            # The neighbours of a skipped commit are often broken in the same way: go far from it.
            index = 0 if listed[0] == fresh[0] else len(skipped) ** 2 % len(fresh)
            if self.judge(fresh[index], f" ({len(fresh) - 1} left)").is_bad(likeness):
                bad = fresh[index]

    def judge(self, commit: str, left: str = "") -> JudgedCommit:
        """Return the judgement of a commit, from the list or from a new process."""
        if commit not in self.records:
            started = perf_counter()
            judged = self._ask(commit, self.job)
            judged = msgspec.structs.replace(judged, commit=commit, seconds=round(perf_counter() - started, 2))
            self.ledger.add(judged)
            self.records[commit] = judged
            if self.watch is not None:
                self.watch(make_visible(f"{self.repository.describe(commit)}: {judged}{left}"))
        return self.records[commit]

    def _has_cause(self, commit: str) -> bool:
        return self.judge(commit).is_bad(Likeness.CAUSE) is True

    def _list_before(self, commits: list[str]) -> list[str]:
        parents = [each for name in commits for each in self.repository.list_parents(name)]
        return [each for each in parents if each not in commits]

    def _explain(self, commit: str, save: str | Path | None) -> Report:
        """Return the report of a commit with its conditions, and save the run. UserError if it cannot be judged again."""
        folder = self.folder / "run" if save is None else Path(save).absolute()
        job = self.job
        if self.judge(commit).is_hidden:
            job = replace(job, equality=replace(job.equality, lockstep=True))
        judged = self._ask(commit, job, str(folder))
        if judged.reason:
            raise UserError(f"could not be judged again: {judged.reason}", where=commit[:10], fix="run it again")
        run = read_run(folder)
        return run.report.with_traces(run)

    def _ask(self, commit: str, job: Job, save: str | None = None) -> JudgedCommit:
        """Judge a commit in a new process. save: the folder in which to save the run, with its divergences explained."""
        tree = self.repository.check_out(commit, self.folder)
        place = Checkout(self.repository.root, tree, self.repository.inside)
        return self.workers.submit(judge_apart, self.timeout, job, place, self.cause, self.sought, save).result()


# In the process of a commit


@dataclass(frozen=True)
class Checkout:
    """The files of a commit.

    root:   the top of the user's working tree
    tree:   the folder with the files of the commit
    inside: the current folder, relative to both
    """

    root: Path
    tree: Path
    inside: Path

    def enter(self) -> None:
        """Let this process run in the files of the commit, and find modules there that it found in the user's tree."""
        os.dup2(2, 1)
        warnings.simplefilter("ignore")
        if not (self.tree / self.inside).is_dir():
            raise UserError("the commit lacks this folder", where=str(self.inside))
        os.chdir(self.tree / self.inside)
        sys.path[:] = map(self._move, sys.path)
        if listed := os.environ.get("PYTHONPATH"):
            os.environ["PYTHONPATH"] = os.pathsep.join(map(self._move, listed.split(os.pathsep)))

    def require_code(self, engine: str) -> None:
        """Raise UserError unless the engine, and every imported module that the tree or the commit has, are of the commit."""
        load_factory(engine, "engine")
        name = engine.rpartition(":")[0]
        folders = {self.tree, self.tree / "src", Path.cwd()}
        found = {each: getattr(module, "__file__", None) or "" for each, module in list(sys.modules.items())}
        found |= {name: os.path.abspath(name)} if name.endswith(".py") else {}
        for module, file in found.items():
            top = module.partition(".")[0]
            if top in _NOT_OF_USER or not file or Path(file).resolve().is_relative_to(self.tree):
                continue
            is_copy = any((each / top / "__init__.py").is_file() or (each / f"{top}.py").is_file() for each in folders)
            if module == name or is_copy or self._is_of_user(Path(file)):
                raise UserError(
                    f"{module} is imported from {file}, and not from the commit",
                    where="engine",
                    fix="name the file of the engine, or the folder of its modules in PYTHONPATH",
                )

    def _is_of_user(self, path: Path) -> bool:
        """Return whether a path is in the user's tree, and not among installed packages there."""
        return path.is_relative_to(self.root) and not path.is_relative_to(sys.prefix)

    def _move(self, folder: str) -> str:
        path = Path(folder).absolute()
        return str(self.tree / path.relative_to(self.root)) if folder and self._is_of_user(path) else folder


def judge_apart(timeout: float, *arguments: Any) -> JudgedCommit:
    """Judge a commit in a fork of this process, which has run no code of any commit. The arguments are those of `_judge`."""
    # Each fork would import this.
    import kgverify.verification.explain  # noqa: F401

    context = multiprocessing.get_context("fork")
    receiving, sending = context.Pipe(duplex=False)
    process = context.Process(target=_judge_and_send, args=(sending, *arguments))
    process.start()
    sending.close()
    try:
        if receiving.poll(timeout):
            judged: JudgedCommit = receiving.recv()
            return judged
        return JudgedCommit(reason=f"it took more than {timeout:g} seconds")
    except EOFError:
        process.join()
        return JudgedCommit(reason=f"its process ended ({describe_end(process.exitcode or 0)})")
    finally:
        process.kill()
        process.join()


def _judge_and_send(sending: Connection, *arguments: Any) -> None:
    end_with_parent()
    try:
        judged = _judge(*arguments)
    except BaseException as error:
        reason = str(error) if isinstance(error, UserError) else describe_raised(error)
        judged = JudgedCommit(reason=first_line(reason))
    sending.send(judged)


def _judge(job: Job, place: Checkout, cause: str, sought: Sought | None, save: str | None) -> JudgedCommit:
    """Judge the engine of a commit. save: the folder in which to save the run, with its divergences explained."""
    place.enter()
    engine, reference, equality = str(job.engines.engine), job.engines.reference, job.equality
    place.require_code(engine)
    if is_recorded := isinstance(reference, str) and names_trace(reference):
        report = compare(reference, engine, save=save, equality=equality, limits=job.proofs.limits)
    else:
        report = verify_job(job, save=save, judge=_unexplained if save is None else verify)
    # An engine may import further modules while it proves.
    place.require_code(engine)
    verdict = report.verdict
    if verdict is Verdict.INCONCLUSIVE:
        return JudgedCommit(reason=": ".join((verdict, *report.reasons[:1])))
    if verdict is Verdict.AGREE or cause == ANY or save is not None:
        return JudgedCommit(verdict=verdict, likeness=Likeness.NONE if verdict is Verdict.AGREE else Likeness.STEP)
    if sought is None and cause and not is_recorded and all(each.stage != cause for each in report.causes):
        report = _compare_in_lockstep(job)
    is_first, sought = sought is None, sought or _choose(report, cause)
    likeness, is_hidden = sought.compare(report), False
    if not equality.lockstep and (likeness is not Likeness.STEP or is_first):
        # Another divergence may come first in each candidate. In lockstep, none hides another.
        shown = Likeness.UNCLEAR
        if sought.in_lockstep and not is_recorded:
            stepped = _compare_in_lockstep(job)
            if stepped.lockstep and is_first:
                sought = msgspec.structs.replace(sought, places=sought.list_places(stepped) or sought.places)
            shown = sought.compare(stepped) if stepped.lockstep else shown
        is_hidden = likeness < Likeness.CAUSE
        likeness = shown if is_hidden else max(likeness, shown)
        sought = msgspec.structs.replace(sought, in_lockstep=shown >= Likeness.CAUSE)
    return JudgedCommit(
        verdict=verdict,
        reason="other divergences may hide the one that is sought" if likeness is Likeness.UNCLEAR else "",
        causes=tuple(dict.fromkeys(f"{each.stage}, {each.kind}" for each in report.causes)),
        likeness=likeness,
        is_hidden=is_hidden,
        sought=sought if is_first else None,
    )


def _compare_in_lockstep(job: Job) -> Report:
    return verify_job(replace(job, equality=replace(job.equality, lockstep=True)), judge=_unexplained)


def _choose(report: Report, cause: str) -> Sought:
    """Return the first divergence of the sought cause. UserError if there is no such cause."""
    first = report.first_divergence
    if first is None or cause not in ("", report.causes[first.cause].stage):
        first = next((report.divergences[each.first] for each in report.causes if each.stage == cause), None)
    if first is not None:
        found = report.causes[first.cause]
        sought = Sought((found.stage, str(found.kind)), _place(first), _items(first))
        return msgspec.structs.replace(sought, places=sought.list_places(report))
    stages = ", ".join(dict.fromkeys(each.stage for each in report.causes))
    raise UserError(f"no divergence in {cause}, but in {stages}", where="cause")
