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
    """Address of a scheduler, and its two workers (without nannies, so that a kill is a loss)."""
    port = free_port()
    address = f"tcp://127.0.0.1:{port}"
    processes = [start("dask_scheduler", "--host", "127.0.0.1", "--port", str(port), "--no-dashboard", "--no-show")]
    common = ("--nthreads", "1", "--nworkers", "1", "--no-nanny", "--no-dashboard", "--host", "127.0.0.1")
    processes += [start("dask_worker", address, *common, "--local-directory", str(tmp_path / f"w{i}")) for i in (0, 1)]
    try:
        from distributed import Client

        with Client(address, timeout="60s") as client:
            client.wait_for_workers(2, timeout=60)
        yield address, processes[1:]
    finally:
        for process in processes:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def test_one_worker_killed_loses_nothing_and_repeats_nothing(cluster, tmp_path):
    address, workers = cluster
    archive = tmp_path / "archive"
    archive.mkdir()
    for copy in range(3):
        for path in sorted(CAPTURES.glob("*.sqlite")):
            shutil.copy(path, archive / f"{copy}-{path.name}")
    words = ["batch", str(archive), "--quiet"]
    assert cli.main([*words, "-o", str(tmp_path / "local")]) == 0

    out = tmp_path / "cluster"
    run = subprocess.Popen([sys.executable, "-m", "trace_analyze.cli", *words, "-o", str(out), "--dask", address])
    deadline = time.monotonic() + 120
    while not list(out.glob(".rows/*.json")) and time.monotonic() < deadline and run.poll() is None:
        time.sleep(0.05)
    assert run.poll() is None, "the batch ended before a worker could be killed: the test shows nothing"
    os.killpg(workers[0].pid, signal.SIGKILL)
    assert run.wait(timeout=240) == 0

    frames = [pl.read_parquet(tmp_path / name / "runs.parquet") for name in ("local", "cluster")]
    assert frames[0].equals(frames[1])
    assert len(frames[1]) == 9
    assert frames[1]["file"].n_unique() == 9
    assert len(list((out / "reports").glob("*.html"))) == 9


def test_no_scheduler_is_a_usage_error(tmp_path, capsys):
    path = next(iter(sorted(CAPTURES.glob("*.sqlite"))))
    assert cli.main(["batch", str(path), "-o", str(tmp_path), "--dask", f"tcp://127.0.0.1:{free_port()}"]) == 2
    assert "--dask" in capsys.readouterr().err
