// Numbers and sentences of the timeline; the same style as reports/number_text.py.

export function digits(value) {
  const size = Math.abs(value);
  const decimals = size >= 99.95 || value === 0 ? 0 : size >= 9.995 ? 1 : size >= 0.9995 ? 2 : size >= 0.09995 ? 3 : 4;
  return value.toLocaleString("en", { minimumFractionDigits: decimals, maximumFractionDigits: decimals });
}

/** A duration in ns in the unit that reads best. */
export function duration(ns) {
  const size = Math.abs(ns);
  if (size >= 9.9995e9) return `${digits(ns / 1e9)} s`;
  if (size >= 99_950 || ns === 0) return `${digits(ns / 1e6)} ms`;
  if (size >= 999.5) return `${digits(ns / 1e3)} µs`;
  return `${Math.round(ns)} ns`;
}

export function scaled(value, unit) {
  for (const [factor, prefix] of [[1e15, "P"], [1e12, "T"], [1e9, "G"], [1e6, "M"], [1e3, "k"]]) {
    if (Math.abs(value) >= factor * 0.9995) return `${digits(value / factor)} ${prefix}${unit}`;
  }
  return `${digits(value)} ${unit}`;
}

const count = (value, word) => (value === null ? `${word}s not known` : `${value.toLocaleString("en")} ${word}${value === 1 ? "" : "s"}`);

const milliseconds = (value) => (value === null ? "not known" : duration(value * 1e6));

/** The words at a stall: ms and tokens. */
export function stallLabel(stall) {
  return `${stall.ms === null ? "ms not known" : milliseconds(stall.ms)} · ${count(stall.prefill_tokens, "token")}`;
}

export function stallLines(stall) {
  const lines = [`stall ${stall.stall}: ${stallLabel(stall)}`, `${count(stall.requests_held, "request")} held, ${stall.kind.replace("_", " ")}, episode ${stall.episode}`];
  lines.push(`gap ${milliseconds(stall.gap_ms)}, baseline ${milliseconds(stall.baseline_ms)}`);
  if (stall.reason) lines.push(stall.reason);
  return lines;
}

export function stepLines(model, group, i) {
  const s = group.steps;
  const { words } = model;
  const lines = [
    `step ${s.index[i]}, ${words.phase[s.phase[i]]} (by ${words.evidence[s.evidence[i]]})`,
    `${duration(s.end[i] - s.start[i])} from ${duration(s.start[i])}, ${count(s.kernel_count[i], "kernel")}`,
  ];
  const parts = [];
  if (s.prefill_tokens[i] || (s.prefill_tokens[i] === null && s.prefill_requests[i])) parts.push(`${count(s.prefill_tokens[i], "prefill token")} of ${count(s.prefill_requests[i], "request")}`);
  if (s.decode_tokens[i]) parts.push(`${count(s.decode_tokens[i], "decode token")} of ${count(s.decode_requests[i], "request")}`);
  if (parts.length) lines.push(parts.join(", "));
  if (s.kv_tokens[i] !== null) lines.push(`${count(s.kv_tokens[i], "KV token")}`);
  const ratios = [];
  if (!Number.isNaN(s.mfu[i])) ratios.push(`MFU ${digits(s.mfu[i])}%`);
  if (!Number.isNaN(s.mbu[i])) ratios.push(`MBU ${digits(s.mbu[i])}%`);
  if (ratios.length) lines.push(ratios.join(", "));
  return lines;
}

export function kernelLines(model, lane, i) {
  const { kinds: k, words } = model;
  const { items } = lane;
  const w = items.what[i];
  const ns = items.end[i] - items.start[i];
  const lines = [
    k.names[k.name[w]][0],
    `${words.op[k.op[w]]}, ${words.phase[k.phase[w]]} (by ${words.evidence[k.evidence[w]]})`,
    `${duration(ns)} from ${duration(items.start[i])}`,
    `grid ${k.grid.map((g) => g[w]).join(" × ")}, ${k.block[w]} threads in x`,
  ];
  const flop = k.flop[w];
  const bytes = k.bytes[w];
  if (Number.isNaN(flop) && Number.isNaN(bytes)) lines.push("work not known");
  else {
    const known = [];
    if (!Number.isNaN(flop)) known.push(scaled(flop, "FLOP"));
    if (!Number.isNaN(bytes)) known.push(scaled(bytes, "B"));
    if (known.length === 2 && bytes > 0) known.push(`intensity ${digits(flop / bytes)} FLOP/byte`);
    lines.push(`${known.join(", ")} (${words.source[k.source[w]]})`);
  }
  const ratios = [];
  if (!Number.isNaN(k.mfu_ns[w])) ratios.push(`MFU ${digits(k.mfu_ns[w] / ns)}%`);
  if (!Number.isNaN(k.mbu_ns[w])) ratios.push(`MBU ${digits(k.mbu_ns[w] / ns)}%`);
  if (ratios.length) lines.push(ratios.join(", "));
  const full = k.names[k.name[w]][1];
  if (full !== k.names[k.name[w]][0]) lines.push(full);
  return lines;
}

/** A time since the window's start, as precise as `step` asks. */
export function tickText(time, step) {
  const [factor, unit] = step >= 1e8 ? [1e9, "s"] : step >= 1e5 ? [1e6, "ms"] : step >= 100 ? [1e3, "µs"] : [1, "ns"];
  const decimals = Math.max(0, -Math.floor(Math.log10(step / factor) + 1e-9));
  return `${(time / factor).toLocaleString("en", { minimumFractionDigits: decimals, maximumFractionDigits: decimals })} ${unit}`;
}
