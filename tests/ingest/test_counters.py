"""Logs of nvidia-smi and DCGM, written here as those tools print them, laid over a capture of two seconds."""

from __future__ import annotations

import time
from datetime import UTC, datetime

import polars as pl
import pytest

from trace_analyze.analysis.records.errors import NotACaptureError, UsageError
from trace_analyze.analysis.records.trace import DEVICES, CaptureFacts, build_trace
from trace_analyze.ingest import counters
from trace_analyze.ingest.counters import read_counters, with_counters

BEGIN = int(datetime(2026, 5, 4, 10, 11, 12, tzinfo=UTC).timestamp()) * 10**9
SECOND = 10**9

DMON = """#Date       Time        gpu    pwr  gtemp  mtemp     sm    mem    enc    dec   mclk   pclk
#YYYYMMDD   HH:MM:SS    Idx      W      C      C      %      %      %      %    MHz    MHz
 20260504   {h}:11:11      0     70     35      -      0      0      0      0   1593   1200
 20260504   {h}:11:12      0    412     41      -    100     61      0      0   1593   1410
 20260504   {h}:11:13      0    430     41      -     99      -      0      0   1593   1395
 20260504   {h}:11:59      0     70     35      -      0      0      0      0   1593   1200
"""


def capture(devices=(0,), begin=BEGIN, length=2 * SECOND):
    rows = [{"device_index": index, "device": device, "process": 1} for index, device in enumerate(devices)]
    facts = CaptureFacts("run.sqlite", "nsys_sqlite", session_start_utc_ns=begin, duration_ns=length)
    return build_trace(facts, devices=pl.DataFrame(rows, schema=dict(DEVICES)))


def write(tmp_path, text, name="log"):
    path = tmp_path / name
    path.write_text(text)
    return path


@pytest.fixture(autouse=True)
def machine_in_utc(monkeypatch):
    monkeypatch.setenv("TZ", "UTC")
    time.tzset()
    yield
    monkeypatch.undo()
    time.tzset()


def test_dmon_with_date_and_time(tmp_path):
    found = read_counters(capture(), dmon=write(tmp_path, DMON.format(h=10)))
    assert found.select("time_ns", "device_index", "source").rows() == [(0, 0, "dmon"), (SECOND, 0, "dmon")]
    assert found["utilization_pct"].to_list() == [100, 99]
    assert found["memory_utilization_pct"].to_list() == [61, None]  # "-" is nothing, not 0
    assert found["sm_clock_hz"].to_list() == [1.41e9, 1.395e9]
    assert found["power_w"].to_list() == [412, 430]
    assert found["sm_active_pct"].to_list() == [None, None]


@pytest.mark.parametrize(
    ("hour", "words"),
    [("10", "taken as UTC."), ("12", "taken as UTC+02:00"), ("03", "taken as UTC-07:00")],
)
def test_the_zone_in_which_log_and_capture_overlap(tmp_path, hour, words):
    trace = with_counters(capture(), dmon=write(tmp_path, DMON.format(h=hour)))
    assert trace.counters["time_ns"].to_list() == [0, SECOND]
    assert any(words in note for note in trace.capture.notes)


def test_the_machines_zone_comes_before_others_and_doubt_is_said(tmp_path, monkeypatch):
    monkeypatch.setenv("TZ", "Asia/Kolkata")  # UTC+05:30
    time.tzset()
    path = write(tmp_path, DMON.format(h=15).replace(":11:", ":41:"))
    trace = with_counters(capture(), dmon=path)
    assert trace.counters["time_ns"].to_list() == [0, SECOND]
    assert any("this machine's zone" in note for note in trace.capture.notes)
    hours = (
        DMON.format(h=10)
        + " 20260504   15:41:12      0    70     35      -      5      0      0      0   1593   1200\n"
    )
    trace = with_counters(capture(), dmon=write(tmp_path, hours))
    assert any("taken as UTC (as this machine's zone it would overlap" in note for note in trace.capture.notes)


def test_a_log_of_another_day_is_refused(tmp_path):
    with pytest.raises(UsageError, match=r"no sample of log falls into the capture.*2026-05-01 10:11:11"):
        read_counters(capture(), dmon=write(tmp_path, DMON.format(h=10).replace("20260504", "20260501")))
    with pytest.raises(UsageError, match="does not say at what time of day it began"):
        read_counters(capture(begin=None), dmon=write(tmp_path, DMON.format(h=10)))


def test_clock_without_a_date(tmp_path):
    text = "#Time        gpu     sm    mem\n#HH:MM:SS    Idx      %      %\n 10:11:13      0     55      7\n"
    assert read_counters(capture(), dmon=write(tmp_path, text))["time_ns"].to_list() == [SECOND]


def test_csv_of_nvidia_smi(tmp_path):
    text = "timestamp, index, utilization.gpu [%], power.draw [W], clocks.current.sm [MHz]\n2026/05/04 10:11:12.500, 0, 87 %, 300.25 W, 1410 MHz\n2026/05/04 10:11:13.500, 0, [N/A], 301 W, 1395 MHz\n"  # fmt: skip
    found = read_counters(capture(), dmon=write(tmp_path, text))
    assert found["time_ns"].to_list() == [SECOND // 2, SECOND * 3 // 2]
    assert found["utilization_pct"].to_list() == [87, None]
    assert found["sm_clock_hz"].to_list() == [1.41e9, 1.395e9]


DCGM = """2026-05-04T10:11:11.000Z #Entity   SMACT        TENSO        DRAMA        GPUTL
2026-05-04T10:11:11.001Z ID
2026-05-04T10:11:12.250Z GPU 1     0.912        0.301        0.611        100
2026-05-04T10:11:12.250Z GPU 0     N/A          N/A          N/A          N/A
2026-05-04T10:11:13.250Z GPU 0     1.000        0.250        0.598        100
"""


def test_dcgmi_dmon_with_times(tmp_path):
    found = read_counters(capture(devices=(0, 1)), dcgm=write(tmp_path, DCGM))
    assert found.select("time_ns", "device_index").rows() == [(SECOND // 4, 1), (SECOND * 5 // 4, 0)]
    assert found["sm_active_pct"].to_list() == pytest.approx([91.2, 100])  # 0..1 becomes percent
    assert found["tensor_active_pct"].to_list() == pytest.approx([30.1, 25])
    assert found["dram_active_pct"].to_list() == pytest.approx([61.1, 59.8])


def test_shares_already_in_percent(tmp_path):
    text = (
        DCGM.replace(" 0.912", " 91.2").replace(" 1.000", " 100.").replace(" 0.301", " 30.1").replace(" 0.250", " 25.0")
    )
    found = read_counters(capture(devices=(0, 1)), dcgm=write(tmp_path, text))
    assert found["sm_active_pct"].to_list() == pytest.approx([91.2, 100])


def prometheus(stamps):
    lines = ["# HELP DCGM_FI_PROF_SM_ACTIVE The ratio of cycles", "# TYPE DCGM_FI_PROF_SM_ACTIVE gauge"]
    for comment, suffix, share in stamps:
        lines += [comment] if comment else []
        lines += [
            f'DCGM_FI_PROF_SM_ACTIVE{{gpu="0",UUID="GPU-1",device="nvidia0"}} {share}{suffix}',
            f'DCGM_FI_PROF_DRAM_ACTIVE{{gpu="0",UUID="GPU-1"}} 0.5{suffix}',
            f'DCGM_FI_DEV_SM_CLOCK{{gpu="0",UUID="GPU-1"}} 1410{suffix}',
            f'DCGM_FI_DEV_XID_ERRORS{{gpu="0",UUID="GPU-1"}} 0{suffix}',
        ]
    return "\n".join(lines) + "\n"


@pytest.mark.parametrize(
    "stamps",
    [
        [("", f" {BEGIN // 10**6 + 500}", 0.75), ("", f" {BEGIN // 10**6 + 1500}", 0.5)],
        [(f"# {BEGIN // SECOND}.5", "", 0.75), (f"# {BEGIN // SECOND + 1}.5", "", 0.5)],
    ],
)
def test_prometheus_text_with_times(tmp_path, stamps):
    found = read_counters(capture(devices=(3,)), dcgm=write(tmp_path, prometheus(stamps)))
    assert found["time_ns"].to_list() == [SECOND // 2, SECOND * 3 // 2]
    assert found["sm_active_pct"].to_list() == [75, 50]
    assert found["sm_clock_hz"].to_list() == [1.41e9, 1.41e9]


def test_logs_without_times_get_the_command(tmp_path):
    bare = "#Entity   SMACT\nID\nGPU 0     0.5\n"
    with pytest.raises(NotACaptureError, match=r"lines without a time.*dcgmi dmon -e"):
        read_counters(capture(), dcgm=write(tmp_path, bare))
    with pytest.raises(NotACaptureError, match=r"without times.*localhost:9400"):
        read_counters(capture(), dcgm=write(tmp_path, prometheus([("", "", 0.5)])))
    with pytest.raises(NotACaptureError, match=r"no counter with a time.*nvidia-smi dmon -o DT"):
        read_counters(capture(), dmon=write(tmp_path, "hello\n"))
    with pytest.raises(NotACaptureError, match="cannot read"):
        read_counters(capture(), dmon=tmp_path / "absent")


def test_both_logs_at_once_are_sorted(tmp_path):
    trace = with_counters(capture(), dmon=write(tmp_path, DMON.format(h=10), "a"), dcgm=write(tmp_path, DCGM, "b"))
    assert trace.counters["source"].to_list() == ["dmon", "dmon", "dcgm"]
    assert with_counters(capture()).counters.is_empty()


@pytest.mark.parametrize("column", list(counters._data()))
def test_every_name_in_the_data_file_is_read(tmp_path, column):
    for name in counters._data()[column]["names"]:
        text = f"timestamp, gpu, {name}\n2026-05-04 10:11:12, 0, 0.5\n"
        found = read_counters(capture(), dmon=write(tmp_path, text))
        assert found[column].null_count() == 0, name
