"""The documentation site: it builds without a warning, and the blocks of its first pages do what the text says."""

import importlib.util
import json
import re
import subprocess
import sys
import urllib.request
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread

import pytest
import yaml
from browser import Browser, find_chromium
from warm_commands import run_shell

import kgverify as kv
from kgverify.conditions.features import read_features
from kgverify.laws import LAWS
from kgverify.prover.faults.plant import COMPOSITES, FAULTS

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"
SITE = yaml.safe_load((ROOT / "mkdocs.yml").read_text(encoding="utf-8"))
BLOCK = re.compile(r"```(\w+)\n(.*?)```", re.DOTALL)


def blocks_of(page: str) -> list[tuple[str, str]]:
    return BLOCK.findall((DOCS / page).read_text(encoding="utf-8"))


def squash(text: str) -> str:
    return re.sub(r"\s+", " ", text).strip()


def run_page(page: str, folder: Path) -> str:
    """Run the commands of a page in order, and return all that they print."""
    printed = []
    for kind, text in blocks_of(page):
        if kind == "console":
            done = run_shell(text, folder)
            assert done.returncode == 0, (text, done.stdout + done.stderr)
            printed.append(done.stdout)
    return squash(" ".join(printed))


def list_pages(entries: list) -> list[str]:
    values = [value for entry in entries for value in entry.values()]
    return [page for value in values for page in ([value] if isinstance(value, str) else list_pages(value))]


def test_every_page_is_in_the_navigation_once():
    assert sorted(list_pages(SITE["nav"])) == sorted(path.name for path in DOCS.glob("*.md"))


def test_every_public_name_is_in_the_reference():
    named = re.findall(r"^::: kgverify\.(\w+)$", (DOCS / "reference.md").read_text(encoding="utf-8"), re.MULTILINE)
    assert sorted(named) == kv.__all__


def test_tables_of_laws_features_faults_and_fields_are_made_from_the_code():
    source = importlib.util.spec_from_file_location("hooks", DOCS / "site" / "hooks.py")
    hooks = importlib.util.module_from_spec(source)
    source.loader.exec_module(hooks)
    page = hooks.write_tables((DOCS / "reference.md").read_text("utf-8"))
    titles = ("Laws", "Features of conditions", "Faults", "Report schema")
    laws, conditions, faults, schema = (page.partition(f"\n## {title}\n")[2].partition("\n## ")[0] for title in titles)
    rows = [line for line in laws.splitlines() if line.startswith("| `")]
    assert rows == [f"| `{law.name}` | {law.statement} |" for law in LAWS.values()]
    table = conditions.partition("| feature |")[2].splitlines()[2:]
    assert [line.split(" | ")[0] for line in table if line] == [f"| {feature.name}" for feature in read_features()]
    assert "| is PROVED | yes or no | candidate | advance, corrupt, finish, rank, recycle |" in table
    assert set(re.findall(r"^\| `([\w-]+)` \|", faults, re.MULTILINE)) == {*FAULTS, *COMPOSITES}
    definitions = json.loads((DOCS / "report.schema.json").read_text("utf-8"))["$defs"]
    assert re.findall(r"^### (\w+) {", schema, re.MULTILINE) == list(definitions)
    fields = [field for each in definitions.values() for field in each.get("properties", {})]
    assert re.findall(r"^\| `(\w+)` \|", schema, re.MULTILINE) == fields
    assert "| `lockstep` | boolean | whether every step was compared separately, from the expected goal |" in schema


@pytest.mark.parametrize("page", sorted(path.name for path in DOCS.glob("*.md")))
def test_a_page_says_first_who_needs_it(page):
    paragraph = (DOCS / page).read_text(encoding="utf-8").split("\n\n")[1]
    assert re.match(r"This (page|site) is for ", paragraph)


def test_links_to_files_of_the_repository_lead_somewhere():
    """The build checks links between pages alone."""
    for path in (*DOCS.glob("*.md"), *ROOT.glob("*.md")):
        text = re.sub(r"```.*?```", "", path.read_text(encoding="utf-8"), flags=re.DOTALL)
        links = re.findall(r"\]\((?!https?:)([^)#\s]+)(#[^)\s]*)?\)", text)
        assert [link for link, _ in links if not (path.parent / link).exists()] == [], path


@pytest.mark.deep
def test_the_tutorial_finds_both_bugs(tmp_path):
    blocks = blocks_of("tutorial.md")
    engine, repair = (text for kind, text in blocks if kind == "python")
    (tmp_path / "my_engine.py").write_text(engine)
    printed = run_page("tutorial.md", tmp_path)
    for kind, text in blocks:
        if kind == "text":
            assert squash(text) in printed, text
    for line in dict(blocks_of("index.md"))["text"].splitlines():
        assert squash(line) in printed, line
    (tmp_path / "my_engine.py").write_text(re.sub(r"def bind\(.*?\n\n\n", repair + "\n\n", engine, flags=re.DOTALL))
    repaired = run_shell("kgverify fuzz --engine my_engine.py:my_engine --examples 64 --jobs 1", tmp_path)
    assert repaired.returncode == 0, repaired.stdout


@pytest.mark.deep
def test_the_commands_of_short_pages_run(tmp_path):
    assert "kgverify" in run_page("install.md", tmp_path)
    assert "AGREE" in run_page("ci.md", tmp_path)
    assert (tmp_path / "junit.xml").exists()
    printed = run_page("reference.md", tmp_path)
    assert "DIVERGE" in printed
    assert printed.endswith("AGREE")


@pytest.mark.deep
def test_the_files_for_ci_are_yaml_and_run_commands_that_exist():
    workflow, hook = (yaml.safe_load(text) for kind, text in blocks_of("ci.md") if kind == "yaml")
    steps = [step["run"] for step in workflow["jobs"]["agree"]["steps"] if "run" in step]
    commands = [step for step in [*steps, hook["repos"][0]["hooks"][0]["entry"]] if step.startswith("kgverify")]
    assert len(commands) == 3
    for command in commands:
        options = re.findall(r" (--[\w-]+)", command)
        shown = run_shell(f"COLUMNS=200 kgverify {command.split()[1]} --help", ROOT).stdout
        assert set(options) <= set(re.findall(r"--[\w-]+", shown)), command


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """The address of the site, built without a warning and served on this machine."""
    pytest.importorskip("material", reason="kgverify[docs] is not installed")
    folder = tmp_path_factory.mktemp("site")
    words = [sys.executable, "-m", "mkdocs", "build", "--strict", "-q", "-d", str(folder)]
    done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert len(list(folder.glob("**/index.html"))) == len(list_pages(SITE["nav"]))
    handler = partial(QuietHandler, directory=str(folder))
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


class QuietHandler(SimpleHTTPRequestHandler):
    def log_message(self, *_):
        pass


@pytest.mark.deep
def test_the_site_shows_what_is_made_from_the_code(site):
    with urllib.request.urlopen(f"{site}/reference/index.html") as opened:
        page = opened.read().decode("utf-8")
    for text in ("kgverify shrink", "assert_agrees", "changes no derivation"):
        assert text in page


@pytest.mark.deep
def test_the_search_of_the_site_finds_a_page(site, tmp_path):
    chromium = find_chromium()
    if chromium is None:
        pytest.skip("no chromium is installed")
    with Browser(chromium, tmp_path) as browser:
        browser.open(f"{site}/index.html")
        browser.evaluate("document.querySelector('.md-search__input').focus()")
        browser.type("modulo duplicates")
        browser.wait_for("document.querySelectorAll('.md-search-result__item').length > 0")
        found = browser.evaluate("document.querySelector('.md-search-result__link').href")
        assert found.startswith(f"{site}/verdicts/")
        browser.open(found)
        assert browser.evaluate("document.querySelector('h1').innerText").startswith("What a verdict means")
