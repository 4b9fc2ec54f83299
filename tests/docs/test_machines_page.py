"""The recipes for several machines: the page's commands run here, the job without Slurm; the manifests are well-formed."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from warm_commands import run_shell

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "evaluating.md").read_text(encoding="utf-8").partition("## Several machines")[2]
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
ALONE = f"""\
kgverify evaluate {SMALL} --part-size 8 --check 8 --minimum none --save here
cmp here/part-000000.npz there/part-000000.npz
kgverify record {SMALL} -o here.h5
kgverify diff here.h5 there.h5
"""


@pytest.mark.deep
def test_the_commands_run_and_give_the_results_of_one_process(tmp_path: Path) -> None:
    pytest.importorskip("distributed", reason="kgverify[distributed] is not installed")
    if shutil.which("openssl") is None:
        pytest.skip("openssl is not installed")
    (tmp_path / "machines.yaml").write_text(SETTINGS)
    printed = ""
    for text in (KEYS, START.replace("kill $(jobs -p)", f"{OTHERS}kill $(jobs -p)"), ALONE):
        # Workers are processes of their own, and import kgverify themselves.
        done = run_shell(f"trap 'kill $(jobs -p) 2>/dev/null || true' EXIT\n{text}", tmp_path)
        assert done.returncode == 0, (text, done.stdout + done.stderr)
        printed += done.stdout
    assert "AGREE" in printed
    assert "NOTHING NEW" in printed
    srun = 'srun() { shift; "$@"; }\nhostname() { echo 127.0.0.1; }\n'
    done = run_shell(srun + SCRIPT.replace("exit $status", "wait\nexit $status"), tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.startswith("EVALUATED")
    assert (tmp_path / "slurm" / "part-000000.npz").exists()


@pytest.mark.deep
def test_the_scheduler_and_the_workers_listen_on_this_machine_only(tmp_path: Path) -> None:
    psutil = pytest.importorskip("psutil", reason="kgverify[distributed] is not installed")
    if shutil.which("openssl") is None:
        pytest.skip("openssl is not installed")
    (tmp_path / "machines.yaml").write_text(SETTINGS)
    start, _, _ = START.partition("kgverify evaluate")
    script = f"trap 'kill $(jobs -p)' EXIT\n{KEYS}\n{start}\nsleep 5\necho started\nsleep 600"
    programs = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    with subprocess.Popen(
        ["bash", "-c", script], cwd=tmp_path, stdout=subprocess.PIPE, text=True, env=os.environ | {"PATH": programs}
    ) as shell:
        assert shell.stdout is not None
        is_started = "started\n" in iter(shell.stdout.readline, "")
        processes = psutil.Process(shell.pid).children(recursive=True)
        sockets = [
            each.laddr.ip
            for process in processes
            for each in process.net_connections(kind="inet")
            if each.status == psutil.CONN_LISTEN
        ]
        for process in (*processes, shell):
            process.terminate()
    assert is_started
    assert len(sockets) >= 5, "a scheduler and two workers"
    assert {*sockets} == {"127.0.0.1"}


@pytest.mark.parametrize("text", [SCRIPT, MANIFESTS, START])
def test_no_recipe_starts_a_web_server_beyond_the_machine(text: str) -> None:
    commands = re.findall(r"dask,? (?:scheduler|worker)\b.*", text)
    assert all(re.search(r'--dashboard-address,? "?127\.0\.0\.1:0', command) for command in commands)


def test_the_settings_require_encryption_and_the_service_is_private() -> None:
    settings = yaml.safe_load(SETTINGS)["distributed"]
    assert settings["comm"]["require-encryption"] is True
    assert set(settings["comm"]["tls"]) == {"ca-file", "scheduler", "worker", "client"}
    scheduler, service, workers = yaml.safe_load_all(MANIFESTS)
    assert service["spec"]["type"] == "ClusterIP"
    for deployment in (scheduler, workers):
        assert deployment["spec"]["selector"]["matchLabels"] == deployment["spec"]["template"]["metadata"]["labels"]
        (container,) = deployment["spec"]["template"]["spec"]["containers"]
        assert any("tls" in word for word in container["command"])
        assert "--no-dashboard" in container["command"]
