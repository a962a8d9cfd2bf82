// The payload as things to draw: groups with steps, gaps and stalls; lanes with single items and coverage bins.
import { Reader } from "./arrays.js";

/** Halve the bins again and again, so that any zoom has a level with about one bin per pixel. */
function pyramid(reader, { n, layers }) {
  const base = Object.entries(layers).map(([code, reference]) => ({ code: Number(code), values: reader.whole(reference) }));
  const levels = [{ n, layers: base }];
  while (levels.at(-1).n > 512) {
    const below = levels.at(-1);
    const half = Math.ceil(below.n / 2);
    levels.push({
      n: half,
      layers: below.layers.map(({ code, values }) => {
        const out = new Uint8Array(half);
        for (let i = 0; i < half; i++) out[i] = (values[2 * i] + (values[2 * i + 1] ?? values[2 * i]) + 1) >> 1;
        return { code, values: out };
      }),
    });
  }
  return levels;
}

function groupOf(reader, raw) {
  const steps = { ...reader.intervals(raw.steps), index: reader.whole(raw.steps.index), phase: reader.whole(raw.steps.phase) };
  steps.evidence = reader.whole(raw.steps.evidence);
  for (const key of ["prefill_tokens", "decode_tokens", "prefill_requests", "decode_requests", "kv_tokens", "kernel_count"]) {
    steps[key] = reader.maybe(raw.steps[key]);
  }
  steps.mfu = reader.floats(raw.steps.mfu);
  steps.mbu = reader.floats(raw.steps.mbu);
  const gaps = { ...reader.intervals(raw.gaps), ms: reader.floats(raw.gaps.ms), prefill_ms: reader.floats(raw.gaps.prefill_ms) };
  gaps.index = reader.whole(raw.gaps.index);
  return { ...raw, steps, gaps, bins: pyramid(reader, raw.bins) };
}

function laneOf(reader, raw) {
  if (raw.kind === "metric") return { ...raw, values: reader.whole(raw.values) };
  const items = { ...reader.intervals(raw.items), what: reader.whole(raw.items.what) };
  if (raw.items.depth) items.depth = reader.whole(raw.items.depth);
  if (raw.items.bytes) items.bytes = reader.whole(raw.items.bytes);
  return { ...raw, items, bins: raw.bins ? pyramid(reader, raw.bins) : null };
}

function kindsOf(reader, raw) {
  const kinds = { names: raw.names, grid: raw.grid.map((r) => reader.whole(r)) };
  for (const key of ["name", "op", "phase", "evidence", "source", "block"]) kinds[key] = reader.whole(raw[key]);
  for (const key of ["flop", "bytes", "mfu_ns", "mbu_ns"]) kinds[key] = reader.floats(raw[key]);
  return kinds;
}

export function readModel(bytes) {
  const reader = new Reader(bytes);
  const { header } = reader;
  const groups = header.groups.map((g) => groupOf(reader, g));
  const stalls = groups.flatMap((g) => g.stalls.map((s) => ({ ...s, group: g.group })));
  stalls.sort((a, b) => a.start - b.start);
  return {
    span: header.span,
    whole: header.whole,
    windows: header.windows,
    words: header.words,
    groups,
    stalls,
    lanes: header.lanes.map((lane) => laneOf(reader, lane)),
    kinds: kindsOf(reader, header.kinds),
  };
}
