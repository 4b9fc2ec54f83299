"""The documentation site: it builds without a warning, and shows what is made from the code; the files to copy."""

import importlib.util
import json
import re
import runpy
import subprocess
import sys
import urllib.request
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread

import jsonschema
import pytest
import yaml
from invoked_commands import invoke

import kgverify as kv
from kgverify.laws import LAWS

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"
SITE = yaml.safe_load((ROOT / "mkdocs.yml").read_text(encoding="utf-8"))


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
    assert "| is PROVED | yes or no | candidate | advance, corrupt, finish, rank, recycle |" in conditions
    catalogue = invoke("diff --fault list", COLUMNS="200").stdout
    assert all(name in catalogue for name in re.findall(r"^\| `([\w-]+)` \|", faults, re.MULTILINE))
    definitions = json.loads((DOCS / "report.schema.json").read_text("utf-8"))["$defs"]
    assert re.findall(r"^### (\w+) {", schema, re.MULTILINE) == list(definitions)
    fields = [field for each in definitions.values() for field in each.get("properties", {})]
    assert re.findall(r"^\| `(\w+)` \|", schema, re.MULTILINE) == fields
    assert "| `lockstep` | boolean | whether every step was compared separately, from the expected goal |" in schema


def test_the_published_schema_is_that_of_the_report():
    schema = runpy.run_path(str(ROOT / "tools" / "write_schema.py"))["make_schema"]()
    current = json.dumps(schema, indent=2) + "\n"
    assert (DOCS / "report.schema.json").read_text("utf-8") == current, "run python tools/write_schema.py"
    jsonschema.Draft202012Validator.check_schema(schema)


def test_a_page_says_first_who_needs_it():
    for path in DOCS.glob("*.md"):
        paragraph = path.read_text(encoding="utf-8").split("\n\n")[1]
        assert re.match(r"This (page|site) is for ", paragraph), path.name


def test_links_to_files_of_the_repository_lead_somewhere():
    """The build checks links between pages alone."""
    for path in (*DOCS.glob("*.md"), *ROOT.glob("*.md")):
        text = re.sub(r"```.*?```", "", path.read_text(encoding="utf-8"), flags=re.DOTALL)
        links = re.findall(r"\]\((?!https?:)([^)#\s]+)(#[^)\s]*)?\)", text)
        assert [link for link, _ in links if not (path.parent / link).exists()] == [], path


def test_the_container_is_the_one_of_the_dockerfile():
    container = json.loads((ROOT / ".devcontainer" / "devcontainer.json").read_text(encoding="utf-8"))
    assert (ROOT / ".devcontainer" / container["build"]["dockerfile"]).resolve() == ROOT / "Dockerfile"
    assert "pip install --no-cache-dir -e '.[test]'" in (ROOT / "Dockerfile").read_text(encoding="utf-8")


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
