"""A folder as a stranger could send it: every kind of file, with code in it, beside it, or named by it."""

import io
import json
import pickle
import shutil
import zipfile
from dataclasses import replace
from pathlib import Path

import msgspec
import numpy as np

import kgverify as kv
from kgverify.runs.engine_makers import EAGER, PLAIN, EngineSpec, Sides
from kgverify.runs.ledger import Ledger
from kgverify.testing.campaigns.result import Block, Identity
from kgverify.trace.read.trace_file import read_trace
from kgverify.trace.write.writer import write_again

REPRODUCER = """% kgverify reproducer 1

p(a, b).
q(X, Y) :- p(X, Y).
?- q(a, b).

class: missing
"""
NAMES = ("strange_engine:Engine", "strange_engine.py:Engine", "./strange_engine.py:Engine", "os:system", "torch:load")
"""Engines that a stranger's files name."""

MODULES = (
    *("strange_engine", "conftest", "sitecustomize", "usercustomize", "kgverify_plugin", "engines", "toy_engine"),
    *("torch", "numpy", "h5py", "msgspec", "jinja2", "rich", "safetensors", "xxhash", "triton", "backports"),
    *("pyarrow", "distributed", "pykeen", "clingo", "hypothesis", "yaml", "gzip", "zlib", "bz2", "csv", "json"),
    *("pickle", "copyreg", "struct", "socket", "signal", "subprocess", "threading", "multiprocessing", "tempfile"),
    *("random", "queue", "shutil", "logging", "selectors", "ctypes", "hashlib", "traceback", "inspect", "ast"),
)


class Pickled:
    """Unpickled, it leaves the file."""

    def __init__(self, mark: Path) -> None:
        self._mark = mark

    def __reduce__(self):
        return exec, (f"__import__('pathlib').Path({str(self._mark)!r}).write_text('pickle ')",)


class Folder:
    """The folder. mark: the file that its code leaves behind."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.mark = path / "EXECUTED"
        self.code = f"open({str(self.mark)!r}, 'a').write(__file__ + ' ')\n"
        path.mkdir()
        self._write_modules()
        self.contents = self._make_contents()
        self.of_kind = self._make_named()

    def _write_modules(self) -> None:
        for name in MODULES:
            (self.path / f"{name}.py").write_text(self.code)
        (self.path / "evil.pth").write_text(f"import os; {self.code}")
        for name, text in {
            "pyproject.toml": "[tool.pytest.ini_options]\nkgverify_engine = 'strange_engine:Engine'\n",
            "pytest.ini": "[pytest]\nkgverify_engine = strange_engine:Engine\n",
            "matplotlibrc": "backend: module://strange_engine\n",
            ".env": "PYTHONPATH=.\n",
        }.items():
            (self.path / name).write_text(text)
        (self.path / ".git").mkdir()
        (self.path / ".git" / "config").write_text(f"[core]\n\tfsmonitor = touch {self.mark}\n")

    def _make_contents(self) -> dict[str, bytes]:
        """Return contents that execute code where a reader unpickles, evaluates, renders or formats what it reads."""
        pickled = pickle.dumps(Pickled(self.mark))
        objects = io.BytesIO()
        np.savez(objects, triples=np.array([Pickled(self.mark)], dtype=object), ranks=np.arange(3))
        zipped = io.BytesIO()
        with zipfile.ZipFile(zipped, "w") as archive:
            archive.writestr("archive/data.pkl", pickled)
            archive.writestr("archive/version", "3")
            archive.writestr("__main__.py", self.code)
        call = f"__import__('os').system('touch {self.mark}')"
        template = "{{ cycler.__init__.__globals__.os.system('x') }}"
        texts = f"!!python/object/apply:os.system ['touch {self.mark}']\n{template}\n{call}\n"
        return {
            "pickle": pickled,
            "objects": objects.getvalue(),
            "zip": zipped.getvalue(),
            "code": self.code.encode() + texts.encode(),
        }

    def _make_named(self) -> dict[str, list[str]]:
        """Write files that are valid except that they name code; return their names by the parameter that takes them."""
        path, code = self.path, Sides().identify_code()
        found: dict[str, list[str]] = {"reproducer": [], "run": []}
        for i, name in enumerate(NAMES):
            for side in ("engine", "reference"):
                file = path / f"{side}-{i}.kg"
                file.write_text(f"{REPRODUCER}{side}: {name}\n")
                found["reproducer"].append(file.name)
        saved = path / "run"
        report = kv.verify(
            "countries", kv.Evaluator(mode="eager", faults="last-fact-lost"), queries=1, corruptions=2, save=saved
        )
        assert report.job["engine"]["name"] == "compiled"
        for name in ("expected.h5", "actual.h5"):
            _rename_engine(saved / name)
        data = json.loads((saved / "report.json").read_bytes())
        data["command"] = f"kgverify diff --engine {NAMES[0]}; touch {self.mark}"
        for i, side in enumerate(("engine", "reference")):
            named = {**data, "job": {**data["job"], side: {"name": NAMES[i]}}}
            shutil.copytree(saved, path / f"run-{side}")
            (path / f"run-{side}" / "report.json").write_text(json.dumps(named))
            found["run"].append(f"run-{side}")
        found["trace"] = ["run/expected.h5", "run/actual.h5"]
        corpus = path / "corpus"
        corpus.mkdir()
        for file in path.glob("*-*.kg"):
            shutil.copy(file, corpus)
        identity = Identity(engine=EAGER, reference=PLAIN, lockstep=False, seed=0, block_size=2048, code=code)
        Ledger(corpus / "campaign-000000000000.jsonl", identity, Block, title="log")
        named = msgspec.structs.replace(identity, engine=EngineSpec(NAMES[0]))
        (corpus / "campaign-000000000001.jsonl").write_bytes(msgspec.json.encode(named) + b"\n")
        found["corpus"] = ["corpus"]
        (path / "budget.toml").write_text(f'"os.system" = 1\nmax_graph_breaks = "{NAMES[0]}"\n')
        found["toml"] = ["budget.toml"]
        line = json.dumps({"kgverify": 1, "engine": {"name": NAMES[0]}, "program": {"facts": [["p", "a", "b"]]}})
        (path / "steps.jsonl").write_text(f"{line}\n")
        found["lines"] = ["steps.jsonl"]
        return found

    def write_contents(self) -> tuple[list[str], list[str]]:
        """Write each content as a file, and as folders whose files have the names that kgverify looks for."""
        files, folders = [], []
        names = (
            *("report.json", "expected.h5", "actual.h5", "lockstep.h5", "manifest.json", "run.json", "summary.json"),
            *("train.txt", "valid.txt", "test.txt", "rules.txt", "domain2constants.txt", "entity2id.txt", "x.kg"),
            *("part-00000.npz", "0.npz", "campaign-000000000000.jsonl", "x.h5", "policy.safetensors", "strange.py"),
        )
        for title, content in self.contents.items():
            for suffix in (".txt", ".h5", ".safetensors"):
                files.append(f"{title}{suffix}")
                (self.path / files[-1]).write_bytes(content)
            folders.append(f"folder-{title}")
            (self.path / folders[-1]).mkdir()
            for name in names:
                (self.path / folders[-1] / name).write_bytes(content)
        return files, folders


def _rename_engine(path: Path) -> None:
    """Give a trace the name of a stranger's engine, and its input files names elsewhere."""
    trace = read_trace(path)
    engine = msgspec.structs.replace(trace.header.engine, name=NAMES[0])
    header = msgspec.structs.replace(trace.header, engine=engine)
    path.unlink()
    write_again(replace(trace, header=header), path)
