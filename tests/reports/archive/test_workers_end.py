"""No worker outlives its batch, whatever ends the batch and whatever the worker waits for."""

import os
import signal
import subprocess
import sys
import time

import pytest

from trace_analyze.ingest.temporary_copies import is_running

pytestmark = pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="needs pipes with a name")

# A batch of one capture whose reading never ends: its content is to come from a pipe that nobody writes to.
SCRIPT = """
import os, sys
from pathlib import Path

from trace_analyze.analysis.records.options import Options
from trace_analyze.reports.archive.find_captures import Found
from trace_analyze.reports.archive.local_workers import LocalRunner
from trace_analyze.reports.archive.one_capture import Task
from trace_analyze.reports.commands.command_ending import StoppedError, signals_raise


class NeverRead(Found):
    def fingerprint(self):
        said = self.path.with_name("new")
        said.write_text(str(os.getpid()))
        said.rename(self.path.with_name("worker"))
        return self.path.read_text()


if __name__ == "__main__":
    pipe = Path(sys.argv[1])
    task = Task(NeverRead(pipe, "pipe.sqlite"), pipe.with_name("pipe.html"), Options())
    try:
        with signals_raise():
            list(LocalRunner(jobs=1).run([(0, task)]))
    except StoppedError as stop:
        sys.exit(stop.exit_code)
"""


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGINT, 130), (signal.SIGKILL, -9)])
def test_a_worker_that_waits_for_a_pipe_ends_with_its_batch(tmp_path, number, code):
    os.mkfifo(tmp_path / "pipe.sqlite")
    (tmp_path / "script.py").write_text(SCRIPT)
    batch = subprocess.Popen([sys.executable, str(tmp_path / "script.py"), str(tmp_path / "pipe.sqlite")])
    try:
        worker = int(eventually(lambda: (tmp_path / "worker").exists() and (tmp_path / "worker").read_text()))
        assert is_running(worker)
        batch.send_signal(number)
        assert batch.wait(20) == code
        assert eventually(lambda: not is_running(worker))
    finally:
        batch.kill()


def eventually(ask):
    """The first answer that is not false, within half a minute."""
    deadline = time.monotonic() + 30
    while not (answer := ask()) and time.monotonic() < deadline:
        time.sleep(0.05)
    return answer
