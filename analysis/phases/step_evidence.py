"""The columns that describe a step before its phase is decided: what each rung of the evidence ladder sees of it."""

from __future__ import annotations

import polars as pl

from ..records.trace import Schema

STEP_EVIDENCE: Schema = {  # one row per step, sorted by (lane, start)
    # the kernels of the step
    "number": pl.Int64,  # row number
    "lane": pl.Int32,  # a device as one process sees it
    "start_ns": pl.Int64,
    "end_ns": pl.Int64,
    "work_ns": pl.Int64,  # start of its first GEMM, attention or embedding
    "kernel_count": pl.Int64,  # without replays recorded as one row
    "attention": pl.Int64,  # layers: attention launches on its busiest stream
    "opaque": pl.Boolean,  # a replay recorded as one row holds its layers
    "opens": pl.Boolean,  # an embedding stands before its last attention
    "closes": pl.Boolean,  # a sampler stands behind it
    "cut_short": pl.Boolean,  # the capture began or ended inside it
    "draft": pl.Boolean,  # a pass of a draft model
    "excluded": pl.Boolean,  # warm-up or graph capture
    # its marker, all null without one
    "marker": pl.Int64,  # row of the marker frame, -1 without one
    "marker_phase": pl.String,  # of its marker, else of the span around most of its kernels
    "m_text_id": pl.UInt32,
    "m_requests": pl.Int64,  # prefill and decode together
    "m_prefill_requests": pl.Int64,
    "m_prefill_tokens": pl.Int64,
    "m_decode_requests": pl.Int64,
    "m_decode_tokens": pl.Int64,
    "m_padded_requests": pl.Int64,
    "m_prefill_kv": pl.Int64,
    "m_prefill_qk": pl.Int64,
    "m_prefill_qq": pl.Int64,
    "m_decode_kv": pl.Int64,
    "m_decode_qk": pl.Int64,
    "m_verify_width": pl.Int64,
    "m_step_index": pl.Int64,
    # kernel names (``name_evidence``)
    "decode": pl.Boolean,
    "prefill": pl.Boolean,
    "several_tokens": pl.Boolean,  # prefill or mixed
    "both": pl.Boolean,  # mixed
    "second": pl.Boolean,  # next to decode attention runs one whose name says nothing
    "few": pl.Boolean,  # attention for few query rows
    "many": pl.Boolean,  # attention for many
    "verify": pl.Boolean,  # a pure speculative verify
    "likely": pl.String,  # 'prefill' | 'decode' | '' by names that are not sure
    # graph replays
    "graph_id": pl.Int64,  # of its largest replay, null without one
    "full_graph": pl.Boolean,  # the replay holds attention
    "graph_ns": pl.Int64,
    "graph_rows_ns": pl.Int64,  # without attention
    # launch geometry and input copies
    "tokens": pl.Int64,  # real tokens, null = not seen
    "launched": pl.Int64,  # tokens its kernels were launched for
    "unpadded": pl.Boolean,  # ``tokens`` is real although ``launched`` may be padded
    "graph_sized": pl.Boolean,  # what counts its tokens ran inside a graph
    "requests": pl.Int64,  # null = not seen
    "sampled": pl.Int64,  # requests by the rows behind its last layer
    "prepared": pl.Int64,  # requests by the metadata before it
    "head": pl.Int64,  # requests by the rows in the name of its last GEMM
    "batch": pl.Int64,  # requests in the grid of its attention
    "decode_batch": pl.Int64,  # the same of attention named for decoding
    "continuing": pl.Int64,  # requests whose token ids came from the step before
    "width": pl.Int64,  # tokens per decoding request
    "size": pl.Float64,  # mean blocks of its small kernels where tokens are not known
    "reads_vocabulary": pl.Boolean,  # a GEMM behind its layers is longer than all of them
}
