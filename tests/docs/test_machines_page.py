"""The recipes for several machines: the page's commands run here, the job without Slurm; the manifests are well-formed."""

import re
import shutil
from pathlib import Path

import pytest
import yaml
from warm_commands import run_shell

ROOT = Path(__file__).resolve().parents[2]
PAGE = (
    (ROOT / "docs" / "evaluating.md")
    .read_text(encoding="utf-8")
    .partition("## Several machines")[2]
    .partition("\n## ")[0]
)
KEYS, START = re.findall(r"```console\n(.*?)```", PAGE, re.DOTALL)
SETTINGS, SCRIPT, MANIFESTS = (
    (ROOT / "examples" / "machines" / name).read_text(encoding="utf-8")
    for name in ("machines.yaml", "slurm.sh", "kubernetes.yaml")
)
SMALL = "--engine reference --queries 4 --corruptions 5"
OTHERS = f"""\
kgverify record {SMALL} --scheduler "$address" -o there.h5
kgverify fuzz --engine reference --examples 16 --minimum none --scheduler "$address"
"""
"""Other commands of the page that workers share."""
LISTENING = """\
python -c '
import psutil, sys
for process in psutil.Process(int(sys.argv[1])).children(recursive=True):
    for each in process.net_connections(kind="inet"):
        if each.status == psutil.CONN_LISTEN:
            print("listens on", each.laddr.ip)
' $$
"""
"""Prints the address of each socket on which the processes of this shell listen."""
ALONE = f"""\
kgverify evaluate {SMALL} --part-size 8 --check 8 --minimum none --save here
cmp here/part-000000.npz there/part-000000.npz
kgverify record {SMALL} -o here.h5
kgverify diff here.h5 there.h5
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    pytest.importorskip("distributed", reason="kgverify[distributed] is not installed")
    if shutil.which("openssl") is None:
        pytest.skip("openssl is not installed")
    (tmp_path / "machines.yaml").write_text(SETTINGS)
    return tmp_path


@pytest.mark.deep
def test_the_commands_run_on_this_machine_only_and_give_the_results_of_one_process(folder: Path) -> None:
    printed = ""
    for text in (KEYS, START.replace("kill $(jobs -p)", f"{OTHERS}{LISTENING}kill $(jobs -p)"), ALONE):
        # Workers are processes of their own, and import kgverify themselves.
        done = run_shell(f"trap 'kill $(jobs -p) 2>/dev/null || true' EXIT\n{text}", folder)
        assert done.returncode == 0, (text, done.stdout + done.stderr)
        printed += done.stdout
    assert "AGREE" in printed
    assert "NOTHING NEW" in printed
    addresses = re.findall(r"listens on (\S+)", printed)
    assert len(addresses) >= 5, "a scheduler and two workers"
    assert {*addresses} == {"127.0.0.1"}
    srun = 'srun() { shift; "$@"; }\nhostname() { echo 127.0.0.1; }\n'
    done = run_shell(srun + SCRIPT.replace("exit $status", "wait\nexit $status"), folder)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.startswith("EVALUATED")
    assert (folder / "slurm" / "part-000000.npz").exists()


def test_the_recipes_are_encrypted_and_private() -> None:
    for text in (SCRIPT, MANIFESTS, START):
        commands = re.findall(r"dask,? (?:scheduler|worker)\b.*", text)
        assert all(re.search(r'--dashboard-address,? "?127\.0\.0\.1:0', command) for command in commands)
    comm = yaml.safe_load(SETTINGS)["distributed"]["comm"]
    assert comm["require-encryption"] is True
    assert set(comm["tls"]) == {"ca-file", "scheduler", "worker", "client"}
    scheduler, service, workers = yaml.safe_load_all(MANIFESTS)
    assert service["spec"]["type"] == "ClusterIP"
    for deployment in (scheduler, workers):
        assert deployment["spec"]["selector"]["matchLabels"] == deployment["spec"]["template"]["metadata"]["labels"]
        (container,) = deployment["spec"]["template"]["spec"]["containers"]
        assert any("tls" in word for word in container["command"])
        assert "--no-dashboard" in container["command"]
