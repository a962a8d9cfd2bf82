"""`trace-analyze kernels.csv --gpu h100`: rooflines and tables from measured launches, no timeline, and said so."""

from __future__ import annotations

import pytest

from trace_analyze.analysis.records.options import Options
from trace_analyze.analysis.road import Capture, analyze_capture

# A bf16 GEMM of 1024 x 1024 x 1024 in 10 us: 2 x 1024^3 FLOP = 214.7 TFLOP/s; 16 MB read, 4 MB written.
PAGE = (
    '"ID","Process ID","Process Name","Host Name","Kernel Name","Context","Stream","Block Size","Grid Size","Device","CC",'
    '"gpu__time_duration.sum","dram__bytes_read.sum","dram__bytes_write.sum","sm__ops_path_tensor_src_bf16_dst_fp32.sum",'
    '"smsp__sass_thread_inst_executed_op_ffma_pred_on.sum"\n'
    '"","","","","","","","","","","","ns","byte","byte","","inst"\n'
    '"0","7","python3","h","nvjet_tst_128x64_64x6_1x1_v_bz_TNT","1","7","(384, 1, 1)","(132, 1, 1)","0","9.0",'
    '"10,000","16,000,000","4,000,000","2,147,483,648","0"\n'
)


def test_measured_launches_alone(tmp_path):
    path = tmp_path / "kernels.csv"
    path.write_text(PAGE)
    analysis = analyze_capture(Capture(path), Options(gpu="h100"))
    row = analysis.kernel_table.row(0, named=True)
    assert row["work_source"] == "measured"
    assert row["bytes"] == 20_000_000
    assert row["arithmetic_intensity"] == pytest.approx(107.4, abs=0.1)  # FLOP/byte: below H100's ridge of 295
    assert row["bound"] == "memory"
    # 20 MB in 10 us is 2,000 GB/s of 3,350
    assert row["mbu_pct"] == pytest.approx(100 * 2000 / 3350, abs=0.1)
    assert analysis.steps.is_empty()
    assert [gap.what for gap in analysis.trace.gaps_in_evidence] == ["no timeline"]
    assert "there is no timeline" in analysis.trace.capture.notes[0]
