"""The pytest plugin: test an engine against the reference and against the laws (docs/pytest.md).

Every pytest run in an environment with kgverify loads it, so nothing heavy is imported before it is needed.
"""

import re
import sys
from collections.abc import Callable, Generator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import pytest

from kgverify.escaping import make_visible

if TYPE_CHECKING:
    from kgverify.conformance import Conformance
    from kgverify.environments.report import EnvironmentReport
    from kgverify.graphs.graph import KnowledgeGraph
    from kgverify.program.limits import Dialect
    from kgverify.report.report import Report
    from kgverify.runs.engine_makers import AnyEngine, EngineSpec
    from kgverify.runs.run import Run
    from kgverify.testing.problems.problem import Problem

FOLDER: Final = "kgverify-failures"
"""The folder beside the test file for failing problems, unless a corpus is given."""

_OPTIONS: Final = (
    ("engine", str, "", "the engine under test, as module:factory or file.py:factory; or compiled, or reference"),
    ("reference", str, "", "the engine to compare with, given in the same way; or search or model"),
    ("examples", int, "300", "number of generated problems in each check"),
    ("seed", int, "0", "seed of these problems"),
    ("seconds", float, "60", "the time of each check, in seconds"),
    ("corpus", str, "", "folder of failing problems, which are checked first; new ones are saved there"),
    (
        "minimum",
        str,
        "proved=1,rules=1,choices=1",
        "the exercise that is required: candidates proved, rules used, steps with more than one resolvent; or none",
    ),
    ("dialect", str, "", "a TOML file of the dialect of the engine"),
    ("mode", str, "eager", "mode of the engine `compiled`: eager, plain, native, or a mode of torch.compile"),
)
_REPRODUCER: Final = pytest.StashKey[Path]()
_FIRST_CAUSE: Final = pytest.StashKey[str]()
_CALLED: Final = pytest.StashKey[dict[str, bool]]()
"""The fixtures that a test takes; True for those that it called."""


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add every option to the command line, and an ini value of the same name with underscores."""
    group = parser.getgroup("kgverify", "kgverify: provers checked against a reference and against laws")
    for name, _, default, text in _OPTIONS:
        group.addoption(f"--kgverify-{name}", default=None, help=text, metavar=name.upper())
        parser.addini(f"kgverify_{name}", help=text, default=default)
    group.addoption("--kgverify-update", action="store_true", help="write the golden files again, then compare")


def pytest_configure(config: pytest.Config) -> None:
    """Register the marker."""
    config.addinivalue_line(
        "markers",
        "kgverify(examples=..., seed=..., seconds=..., minimum=...): how much assert_equivalent checks in this test",
    )


def read_option(config: pytest.Config, name: str, marker: pytest.Mark | None = None) -> Any:
    """Return an option from the command line, else from the marker, else from the ini file. UsageError for a wrong value."""
    kind = next(kind for each, kind, _, _ in _OPTIONS if each == name)
    value = config.getoption(f"--kgverify-{name}")
    if value is None and marker is not None:
        value = marker.kwargs.get(name)
    if value is None:
        value = config.getini(f"kgverify_{name}")
    if isinstance(value, Mapping):
        return value
    try:
        return kind(value)
    except ValueError:
        wanted = "a whole number" if kind is int else "a number"
        raise pytest.UsageError(make_visible(f"--kgverify-{name}: expected {wanted}, found {value!r}")) from None


@pytest.fixture(scope="session")
def kgverify_engine(pytestconfig: pytest.Config) -> Callable[..., Any]:
    """Return the factory of the engine under test. Override it in a conftest.py, or name an engine."""
    spec = read_option(pytestconfig, "engine")
    if not spec:
        raise pytest.UsageError(
            "no engine is named. fix: give --kgverify-engine module:factory, set kgverify_engine in the ini file, or"
            " override the fixture kgverify_engine in a conftest.py"
        )
    return load_engine(spec, read_option(pytestconfig, "mode"))


@pytest.fixture(scope="session")
def kgverify_reference(pytestconfig: pytest.Config) -> "AnyEngine":
    """Return the engine to compare with: by default the one that fits. Override it in a conftest.py, or name an engine."""
    spec: str = read_option(pytestconfig, "reference")
    if spec in ("", "reference", "search", "model"):
        return spec
    if spec == "compiled":
        from kgverify.runs.engine_makers import EngineSpec

        # A bare function would not show that kgverify's semantics, and so its laws, hold for it.
        return EngineSpec(spec, read_option(pytestconfig, "mode"))
    return load_engine(spec, read_option(pytestconfig, "mode"), "--kgverify-reference")


def load_engine(spec: str, mode: str, option: str = "--kgverify-engine") -> Callable[..., Any]:
    """Return the factory that `module:factory` names, or that of `compiled` or `reference`. UsageError for other names."""
    from kgverify.engines.load_engine import load_factory
    from kgverify.engines.table import COMPILED, REFERENCE
    from kgverify.errors import UserError
    from kgverify.runs.engine_makers import compiled_maker

    if spec == COMPILED:
        return compiled_maker(mode=mode)
    if spec == REFERENCE:
        from kgverify.engines.reference.engine import ReferenceEngine

        return ReferenceEngine
    if ":" not in spec:
        raise pytest.UsageError(make_visible(f"{option}: expected module:factory, found {spec!r}"))
    try:
        factory: Callable[..., Any] = load_factory(spec, option)
    except UserError as error:
        why = f"{option}: cannot load {spec!r}: {error.message}. fix: {error.fix}"
        raise pytest.UsageError(make_visible(why)) from None
    return factory


@pytest.fixture
def assert_equivalent(request: pytest.FixtureRequest) -> Callable[..., "Conformance | None"]:
    """Return a function that checks an engine, and raises an AssertionError whose text is the report.

    assert_equivalent()                     the engine of the fixture `kgverify_engine`, on decoded problems
    assert_equivalent(engine)               another engine: a factory of engines, or a maker of pipelines
    assert_equivalent(reference=engine)     against another engine than that of the fixture `kgverify_reference`
    assert_equivalent(problems=[...])       on your own problems
    assert_equivalent(graph="countries")    on parts of a graph, and on the graph: a name, a folder or a `KnowledgeGraph`
    assert_equivalent(run=Run(...))         on a run
    assert_equivalent(seconds=10)           within another time than that of the option
    assert_equivalent(minimum={})           without requiring a proved candidate, a used rule or a choice
    assert_equivalent(dialect=Dialect(...)) in another dialect than that of the option or the engine's attribute
    """
    marker = request.node.get_closest_marker("kgverify")
    request.node.stash.setdefault(_CALLED, {})["assert_equivalent"] = False

    def check(
        engine: Callable[..., Any] | None = None,
        *,
        reference: "AnyEngine | None" = None,
        problems: "Sequence[Problem] | None" = None,
        graph: "KnowledgeGraph | str | Path | None" = None,
        run: "Run | None" = None,
        laws: bool = True,
        seconds: float | None = None,
        minimum: str | Mapping[str, int] | None = None,
        dialect: "Dialect | None" = None,
    ) -> "Conformance | None":
        request.node.stash[_CALLED]["assert_equivalent"] = True
        factory = engine if engine is not None else request.getfixturevalue("kgverify_engine")
        expected = reference if reference is not None else request.getfixturevalue("kgverify_reference")
        required = read_option(request.config, "minimum", marker) if minimum is None else minimum
        own = dialect or _read_dialect(request.config)
        given: dict[str, Any] = {
            "reference": expected or None,
            "dialect": own,
            "seconds": read_option(request.config, "seconds", marker) if seconds is None else seconds,
        }

        def note(text: str, report: "Conformance | None") -> None:
            """Keep the first cause for the section of the test, and save the problem that shows it."""
            request.node.stash[_FIRST_CAUSE] = _first_line(text)
            if report is not None and report.problem is not None:
                tested = _write_down(request, factory, "engine" if engine is None else "")
                other = _write_down(request, expected or report.reference, "reference" if reference is None else "")
                request.node.stash[_REPRODUCER] = _save(request, report, tested, other)

        if graph is not None or run is not None:
            import kgverify as kv

            if graph is not None and run is not None:
                raise kv.UserError("expected a graph or a run", where="assert_equivalent", fix="give one of them")
            on = graph if run is None else run
            try:
                kv.assert_equivalent(factory, on, minimum=required, **given)
            except kv.NotConforming as error:
                note(str(error), error.report)
                raise
            return None
        from kgverify.conformance import check_engine

        report = check_engine(
            factory,
            examples=read_option(request.config, "examples", marker) if problems is None else None,
            seed=read_option(request.config, "seed", marker),
            problems=_read_corpus(request) if problems is None else problems,
            laws=None if laws else (),
            minimum=required,
            **given,
        )
        if report.is_conforming:
            report.raise_if_broken()
            return report
        note(str(report), report)
        report.raise_if_broken()
        return None

    return check


@pytest.fixture
def assert_golden(request: pytest.FixtureRequest) -> "Callable[..., Report]":
    """Return a function that compares an engine with a golden file, and raises an AssertionError whose text is the report.

    assert_golden("tests/family.golden")                          the engine of the fixture `kgverify_engine`
    assert_golden("tests/family.golden", engine)                  another engine
    assert_golden("tests/family.golden", engine, graph="family")  with arguments of `kgverify.golden`

    The path starts from pytest's root folder. The test also fails if the file was missing: then it is written. The option
    --kgverify-update writes it again.
    """
    request.node.stash.setdefault(_CALLED, {})["assert_golden"] = False

    def check(path: str | Path, engine: "AnyEngine | None" = None, **options: Any) -> "Report":
        request.node.stash[_CALLED]["assert_golden"] = True
        import kgverify as kv
        from kgverify.conformance import NotConforming

        factory = request.getfixturevalue("kgverify_engine") if engine is None else engine
        options.setdefault("reference", request.getfixturevalue("kgverify_reference") or None)
        if (own := _read_dialect(request.config)) is not None:
            options.setdefault("limits", kv.DeclaredLimits(dialect=own))
        minimum = read_option(request.config, "minimum", request.node.get_closest_marker("kgverify"))
        options.setdefault("equality", kv.Equality(minimum=minimum))
        update = bool(request.config.getoption("--kgverify-update"))
        report = kv.golden(request.config.rootpath / path, factory, update=update, **options)
        if report.verdict is not kv.Verdict.AGREE:
            request.node.stash[_FIRST_CAUSE] = next(iter(report.reasons), _first_line(str(report)))
            raise NotConforming(str(report))
        return report

    return check


@pytest.fixture
def assert_environments_agree(request: pytest.FixtureRequest) -> "Callable[..., EnvironmentReport]":
    """Return a function that compares two environments, and raises an AssertionError whose text is the report.

    assert_environments_agree(make_single, make_batched)        two environments, as for `kgverify.verify_env`
    assert_environments_agree("tests/cartpole.h5", "gymnasium:CartPole-v1")   a recorded one, from pytest's root folder
    assert_environments_agree(first, second, slots=4, steps=50) with arguments of `kgverify.verify_env`
    """
    request.node.stash.setdefault(_CALLED, {})["assert_environments_agree"] = False

    def check(expected: Any, actual: Any, **options: Any) -> "EnvironmentReport":
        request.node.stash[_CALLED]["assert_environments_agree"] = True
        import kgverify as kv
        from kgverify.conformance import NotConforming

        sides = [
            request.config.rootpath / each if isinstance(each, str) and each.endswith(".h5") else each
            for each in (expected, actual)
        ]
        report = kv.verify_env(*sides, **options)
        if report.verdict is not kv.Verdict.AGREE:
            request.node.stash[_FIRST_CAUSE] = next(iter(report.reasons), _first_line(str(report)))
            raise NotConforming(str(report))
        return report

    return check


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Show the user's lines, not kgverify's, and add a section with the first cause. Fail a test that checks nothing."""
    if call.excinfo is not None and not item.config.getoption("fulltrace"):
        # A test that used none of kgverify does not load it here.
        names = (("kgverify.conformance", "NotConforming"), ("kgverify.errors", "UserError"))
        kinds = tuple(getattr(sys.modules[module], name) for module, name in names if module in sys.modules)
        if isinstance(error := call.excinfo.value, kinds):
            from kgverify.errors import keep_users_frames

            call.excinfo = pytest.ExceptionInfo.from_exception(keep_users_frames(error))
    report = yield
    idle = [name for name, is_called in item.stash.get(_CALLED, {}).items() if not is_called]
    if report.when == "call" and report.passed and idle:
        report.outcome = "failed"
        report.longrepr = f"inconclusive: nothing was checked, since the test never calls {' and '.join(idle)}"
    if report.when == "call" and report.failed and _FIRST_CAUSE in item.stash:
        lines = [item.stash[_FIRST_CAUSE]]
        if _REPRODUCER in item.stash:
            lines.append(make_visible(f"the problem: {item.stash[_REPRODUCER]}"))
        report.sections.append(("kgverify", "\n".join(lines)))
    return report


def _read_dialect(config: pytest.Config) -> "Dialect | None":
    """Read the dialect of the option; None if it is not given. UsageError for an invalid file."""
    file = read_option(config, "dialect")
    if not file:
        return None
    from kgverify.errors import UserError
    from kgverify.program.limits import read_dialect

    try:
        return read_dialect(config.rootpath / file)
    except UserError as error:
        raise pytest.UsageError(make_visible(f"--kgverify-dialect: {error}")) from None


def _first_line(text: str) -> str:
    """Return the line of a report that names the first cause."""
    causes = ("first divergence:", "law broken:", "crash:")
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return next((line for line in lines if line.startswith(causes)), lines[0])


def _read_corpus(request: pytest.FixtureRequest) -> "list[Problem]":
    """Read the problems that were saved in the corpus before."""
    corpus = read_option(request.config, "corpus")
    if not corpus:
        return []
    from kgverify.testing.reproducers.text_format import SUFFIX, read_reproducer

    return [read_reproducer(path).problem for path in sorted((request.config.rootpath / corpus).glob(f"*{SUFFIX}"))]


def _write_down(request: pytest.FixtureRequest, engine: "AnyEngine", option: str) -> "EngineSpec":
    """Return the specification of an engine, by the option's name if an option names it."""
    from kgverify.runs.engine_makers import EngineSpec

    if isinstance(engine, EngineSpec):
        return engine
    name = read_option(request.config, option) if option else ""
    if isinstance(engine, str):
        name = engine
    elif not name:
        # The fixture is overridden, or the test gives the engine.
        name = f"{getattr(engine, '__module__', '?')}:{getattr(engine, '__qualname__', type(engine).__name__)}"
    return EngineSpec(name, read_option(request.config, "mode"))


def _save(request: pytest.FixtureRequest, report: "Conformance", engine: "EngineSpec", reference: "EngineSpec") -> Path:
    """Save the failing problem under the test's name, beside the test's file or in the corpus."""
    from kgverify.conformance import save_reproducer
    from kgverify.testing.reproducers.text_format import SUFFIX

    corpus = read_option(request.config, "corpus")
    folder = request.config.rootpath / corpus if corpus else request.path.parent / FOLDER
    name = re.sub(r"[^\w.-]+", "-", f"{request.path.stem}-{request.node.name}").strip("-")
    path: Path = folder / f"{name}{SUFFIX}"
    save_reproducer(report, path, engine, reference=reference)
    return path
