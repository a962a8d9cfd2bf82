// The inter-token gap over time: a stepped line, or where gaps are narrower than pixels its extent in each column.

/** A line from (x0, y) to (x1, y) and, where it follows `before`, the upright that joins them. */
export function gapSteps(painter, gaps, first, last, y) {
  const c = painter.context;
  const thick = 1.25;
  let before = null;
  for (let i = first; i < last; i++) {
    const x0 = Math.max(painter.x(gaps.start[i]), painter.left - 2);
    const x1 = Math.min(painter.x(gaps.end[i]), painter.left + painter.width + 2);
    const at = y(gaps.ms[i]);
    c.fillRect(x0, at - thick / 2, x1 - x0, thick);
    if (before !== null && gaps.start[i] <= gaps.end[i - 1] + 1) {
      const top = Math.min(before, at) - thick / 2;
      c.fillRect(painter.snap(x0), top, 1, Math.abs(before - at) + thick);
    }
    before = at;
  }
}

/** More gaps than pixels: for each column from its shortest to its longest, down to where its neighbour begins. */
export function gapExtents(painter, gaps, first, last, y) {
  const c = painter.context;
  let column = -1;
  let low = 0;
  let high = 0;
  let before = null;
  const flush = () => {
    const [a, b] = [y(high), y(low)];
    const top = before === null ? a : Math.min(a, before[1]);
    const bottom = before === null ? b : Math.max(b, before[0]);
    c.fillRect(column, top, 1, Math.max(bottom - top, 1));
    before = [a, b];
  };
  for (let i = first; i < last; i++) {
    const at = Math.floor(painter.x(gaps.end[i]));
    if (at !== column) {
      if (column >= 0) flush();
      column = at;
      low = high = gaps.ms[i];
    }
    low = Math.min(low, gaps.ms[i]);
    high = Math.max(high, gaps.ms[i]);
  }
  flush();
}
