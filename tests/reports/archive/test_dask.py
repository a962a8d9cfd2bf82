"""The same work on a real Dask cluster: a scheduler and two worker processes, one of them killed midway."""

import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import polars as pl
import pytest

from trace_analyze import cli

pytest.importorskip("distributed", reason="the dask extra is not installed: pip install 'trace-analyze[dask]'")

CAPTURES = Path(__file__).parents[3] / "fixtures" / "captures"
ENV = os.environ | {"DASK_DISTRIBUTED__WORKER__DAEMON": "False", "DASK_DISTRIBUTED__SCHEDULER__ALLOWED_FAILURES": "5"}


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


def start(module, *words):
    return subprocess.Popen(
        [sys.executable, "-m", f"distributed.cli.{module}", *words],
        env=ENV, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True,
    )  # fmt: skip


@pytest.fixture
def cluster(tmp_path):
    """Address of a scheduler, its two workers (without nannies, so that a kill is a loss), and itself."""
    port = free_port()
    address = f"tcp://127.0.0.1:{port}"
    processes = [start("dask_scheduler", "--host", "127.0.0.1", "--port", str(port), "--no-dashboard", "--no-show")]
    common = ("--nthreads", "1", "--nworkers", "1", "--no-nanny", "--no-dashboard", "--host", "127.0.0.1")
    processes += [start("dask_worker", address, *common, "--local-directory", str(tmp_path / f"w{i}")) for i in (0, 1)]
    try:
        from distributed import Client

        with Client(address, timeout="60s") as client:
            client.wait_for_workers(2, timeout=60)
        yield address, processes[1:], processes[0]
    finally:
        for process in processes:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def start_batch(archive, out, address, **settings):
    words = [sys.executable, "-m", "trace_analyze.cli", "batch", str(archive), "-o", str(out), "--quiet", "--dask"]
    return subprocess.Popen([*words, address], env=ENV | settings, stderr=subprocess.PIPE, text=True)


def archive_of(folder, copies):
    """An archive with every shipped capture so many times."""
    folder.mkdir()
    for copy in range(copies):
        for path in sorted(CAPTURES.glob("*.sqlite")):
            shutil.copy(path, folder / f"{copy}-{path.name}")
    return folder


def wait_for_a_row(out, run):
    deadline = time.monotonic() + 120
    while not list(out.glob(".rows/*.json")) and time.monotonic() < deadline and run.poll() is None:
        time.sleep(0.05)
    assert run.poll() is None, "the batch ended before anything could be killed: the test shows nothing"


def test_one_worker_killed_loses_nothing_and_repeats_nothing(cluster, tmp_path):
    address, workers, _ = cluster
    archive, out = archive_of(tmp_path / "archive", 3), tmp_path / "cluster"
    assert cli.main(["batch", str(archive), "--quiet", "-o", str(tmp_path / "local")]) == 0

    run = start_batch(archive, out, address)
    wait_for_a_row(out, run)
    os.killpg(workers[0].pid, signal.SIGKILL)
    assert run.wait(timeout=240) == 0

    frames = [pl.read_parquet(tmp_path / name / "runs.parquet") for name in ("local", "cluster")]
    assert frames[0].equals(frames[1])
    assert len(frames[1]) == 9
    assert frames[1]["file"].n_unique() == 9
    assert len(list((out / "reports").glob("*.html"))) == 9


@pytest.mark.parametrize("lost", ["scheduler", "workers", "scheduler stands still"])
def test_a_lost_cluster_ends_the_batch_with_a_message_and_keeps_what_is_finished(cluster, tmp_path, lost):
    address, workers, scheduler = cluster
    archive, out = archive_of(tmp_path / "archive", 4), tmp_path / "out"
    run = start_batch(archive, out, address, DASK_DISTRIBUTED__SCHEDULER__NO_WORKERS_TIMEOUT="3s")
    wait_for_a_row(out, run)
    for process in workers if lost == "workers" else [scheduler]:
        os.killpg(process.pid, signal.SIGSTOP if lost.endswith("still") else signal.SIGKILL)
    said = run.communicate(timeout=90)[1]
    assert run.returncode == 3
    assert said.startswith(f"trace-analyze: --dask {address}: ")
    assert said.count("\n") == 1
    expected = {"workers": ("no worker for 3 s",), "scheduler stands still": ("does not answer",)}
    assert any(words in said for words in expected.get(lost, ("connection to the scheduler", "does not answer")))
    assert list(out.glob(".rows/*.json"))
    assert not (out / "runs.parquet").exists()
    assert cli.main(["batch", str(archive), "--quiet", "-o", str(out), "--resume"]) == 0


def test_no_scheduler_is_a_usage_error(tmp_path, capsys):
    path = next(iter(sorted(CAPTURES.glob("*.sqlite"))))
    assert cli.main(["batch", str(path), "-o", str(tmp_path), "--dask", f"tcp://127.0.0.1:{free_port()}"]) == 2
    assert "--dask" in capsys.readouterr().err
