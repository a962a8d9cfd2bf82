// Arrays as written by reports/timeline/byte_planes.py: byte planes behind a JSON header.

/** Reads the arrays that the header refers to. */
export class Reader {
  constructor(bytes) {
    const length = new DataView(bytes.buffer, bytes.byteOffset).getUint32(0, true);
    this.header = JSON.parse(new TextDecoder().decode(bytes.subarray(4, 4 + length)));
    this.body = bytes.subarray(4 + length);
  }

  /** Non-negative whole numbers. */
  whole({ at, n, planes }) {
    const plane = (p) => this.body.subarray(at + p * n, at + (p + 1) * n);
    if (planes === 1) return plane(0);
    const out = planes <= 4 ? new Uint32Array(n) : new Float64Array(n);
    for (let p = 0; p < planes; p++) {
      const bytes = plane(p);
      const factor = 2 ** (8 * p);
      for (let i = 0; i < n; i++) out[i] += bytes[i] * factor;
    }
    return out;
  }

  /** Whole numbers of either sign. */
  signed(reference) {
    const coded = this.whole(reference);
    const lowest = this.body.subarray(reference.at, reference.at + reference.n); // a double beyond 2 ** 53 has lost its last bit
    return Float64Array.from(coded, (v, i) => (lowest[i] % 2 ? -(v + 1) / 2 : v / 2));
  }

  /** Whole numbers or null. */
  maybe(reference) {
    return Array.from(this.whole(reference), (v) => (v === 0 ? null : v - 1));
  }

  /** 32-bit floats, NaN where unknown. */
  floats({ at, n }) {
    const bytes = new Uint8Array(4 * n);
    for (let p = 0; p < 4; p++) for (let i = 0; i < n; i++) bytes[4 * i + p] = this.body[at + p * n + i];
    return new Float32Array(bytes.buffer);
  }

  /** Intervals sorted by start; `reach` is the latest end so far, so that a search by time can start there. */
  intervals({ n, step, length }) {
    const steps = this.signed(step);
    const lengths = this.whole(length);
    const start = new Float64Array(n);
    const end = new Float64Array(n);
    const reach = new Float64Array(n);
    let before = 0;
    let latest = 0;
    for (let i = 0; i < n; i++) {
      start[i] = before + steps[i];
      before = end[i] = start[i] + lengths[i];
      reach[i] = latest = Math.max(latest, end[i]);
    }
    return { n, start, end, reach };
  }
}

/** The first index at which the rising `values` exceed `limit`. */
export function firstAbove(values, limit) {
  let low = 0;
  let high = values.length;
  while (low < high) {
    const middle = (low + high) >> 1;
    if (values[middle] > limit) high = middle;
    else low = middle + 1;
  }
  return low;
}

/** [first, last) of the intervals that touch the time from..to. */
export function touching(intervals, from, to) {
  return [firstAbove(intervals.reach, from), firstAbove(intervals.start, to)];
}
