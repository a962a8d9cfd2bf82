// Draws one frame: only what the view holds, never more shapes than pixels.
import { firstAbove, touching } from "./arrays.js";
import { gapExtents, gapSteps } from "./gaps.js";
import { AXIS, RANGE_ROW } from "./layout.js";
import { digits, duration, stallLabel, tickText } from "./words.js";

const LEVELS = 63;
const FONT = "11px system-ui, -apple-system, 'Segoe UI', Roboto, 'Noto Sans', 'Liberation Sans', sans-serif";

export class Painter {
  constructor(context, model) {
    this.context = context;
    this.model = model;
    this.readColours();
  }

  readColours() {
    const style = getComputedStyle(document.documentElement);
    const of = (name) => style.getPropertyValue(`--${name}`).trim();
    const { phase } = this.model.words;
    this.colours = phase.map((p) => of(p === "unknown" ? "other" : p));
    this.ink = of("ink");
    this.quiet = of("quiet");
    this.rule = of("rule");
    this.faint = of("faint");
    this.paper = of("paper");
    this.other = of("other");
    const tile = document.createElement("canvas");
    tile.width = tile.height = 6;
    const pen = tile.getContext("2d");
    pen.strokeStyle = of("hatch");
    pen.lineWidth = 1.4;
    pen.beginPath();
    for (const shift of [-6, 0, 6]) {
      pen.moveTo(shift - 1, 7);
      pen.lineTo(shift + 7, -1);
    }
    pen.stroke();
    this.hatch = this.context.createPattern(tile, "repeat");
  }

  /** One frame. `view`: {from, to} in ns, `size`: {width, height, gutter}. */
  paint(view, size, layout, state) {
    const c = this.context;
    this.view = view;
    this.ratio = size.ratio;
    this.pixel = 1 / size.ratio;
    this.left = size.gutter;
    this.width = size.width - size.gutter;
    this.scale = this.width / (view.to - view.from);
    c.setTransform(size.ratio, 0, 0, size.ratio, 0, 0);
    c.fillStyle = this.paper;
    c.fillRect(0, 0, size.width, size.height);
    c.font = FONT;
    c.textBaseline = "middle";
    c.save();
    c.beginPath();
    c.rect(this.left, 0, this.width, size.height);
    c.clip();
    this.axis(size.height);
    for (const row of layout.rows) this.row(row, state);
    this.overlay(size.height, state);
    c.restore();
    this.names(layout, size);
  }

  /** To whole pixels of the screen: such shapes are sharp, and many times faster to fill. */
  snap(x) {
    return Math.round(x * this.ratio) / this.ratio;
  }

  x(time) {
    return this.left + (time - this.view.from) * this.scale;
  }

  row(row, state) {
    if (row.kind === "steps") this.steps(row, state);
    else if (row.kind === "gaps") this.gaps(row);
    else if (row.kind === "kernels") this.kernels(row);
    else if (row.kind === "copies") this.kernels(row);
    else if (row.kind === "ranges") this.ranges(row);
    else if (row.kind === "metric") this.metric(row);
    else if (row.kind === "stall labels") this.stallLabels(row, state);
  }

  names(layout, size) {
    const c = this.context;
    c.textAlign = "left";
    for (const row of layout.rows) {
      if (!row.label) continue;
      if (size.gutter) {
        c.fillStyle = this.quiet;
        c.fillText(row.label, 0, row.y + (row.kind === "ranges" ? RANGE_ROW / 2 : row.height / 2), size.gutter - 6);
        if (row.top) {
          c.textAlign = "right";
          c.fillText(row.top, size.gutter - 5, row.y + 7);
          c.textAlign = "left";
        }
      } else if (row.top) this.haloed(row.top, 2, row.y + 9, this.quiet);
      else if (row.head) this.haloed(row.label, 2, row.y + 7, this.quiet);
    }
  }

  haloed(text, x, y, colour) {
    const c = this.context;
    c.lineWidth = 3;
    c.strokeStyle = this.paper;
    c.strokeText(text, x, y);
    c.fillStyle = colour;
    c.fillText(text, x, y);
  }

  axis(height) {
    const c = this.context;
    const span = this.view.to - this.view.from;
    const rough = span / Math.max(2, this.width / 110);
    const power = 10 ** Math.floor(Math.log10(rough));
    const step = [1, 2, 5, 10].map((m) => m * power).find((s) => s >= rough);
    c.textAlign = "left";
    for (let t = Math.ceil(this.view.from / step) * step; t <= this.view.to; t += step) {
      const x = Math.round(this.x(t)) + 0.5;
      c.strokeStyle = this.rule;
      c.lineWidth = 1;
      c.beginPath();
      c.moveTo(x, 0);
      c.lineTo(x, height);
      c.stroke();
      c.fillStyle = this.quiet;
      c.fillText(tickText(t, step), x + 3, 8);
    }
  }

  /** Coverage bins between two times, stacked by phase from the bottom. */
  bins(levels, y, height, from = this.view.from, to = this.view.to) {
    const c = this.context;
    const binTime = (level) => this.model.span / level.n;
    const level = levels.find((l) => binTime(l) * this.scale >= 1) ?? levels.at(-1);
    const wide = binTime(level);
    const first = Math.max(0, Math.floor(from / wide));
    const last = Math.min(level.n, Math.ceil(to / wide));
    const base = new Float32Array(Math.max(0, last - first));
    for (const { code, values } of level.layers) {
      c.fillStyle = this.colours[code];
      for (let i = first; i < last; i++) {
        if (!values[i]) continue;
        const x0 = this.snap(Math.max(this.x(i * wide), this.x(from)));
        const x1 = this.snap(Math.min(this.x((i + 1) * wide), this.x(to)));
        const tall = Math.min((values[i] / LEVELS) * height, height - base[i - first]);
        c.fillRect(x0, y + height - base[i - first] - tall, Math.max(x1 - x0, this.pixel), tall);
        base[i - first] += tall;
      }
    }
    return wide * this.scale;
  }

  /** Single intervals, those of one phase that touch on the screen joined. */
  items(items, first, last, codeOf, y, height) {
    const c = this.context;
    let code = -1;
    let x0 = 0;
    let x1 = -1;
    const flush = () => {
      if (code < 0) return;
      c.fillStyle = this.colours[code];
      const left = this.snap(x0);
      c.fillRect(left, y, Math.max(this.snap(x1) - left, this.pixel), height);
    };
    const low = this.left - 2;
    const high = this.left + this.width + 2;
    for (let i = first; i < last; i++) {
      const a = Math.max(this.x(items.start[i]), low);
      const b = Math.min(this.x(items.end[i]), high);
      const own = codeOf(i);
      const apart = b - a > 3 ? 0.6 : 0; // a hairline between neighbours that are wide enough to tell apart
      if (own === code && a <= x1 + 0.3 && !apart) x1 = Math.max(x1, b);
      else {
        flush();
        code = own;
        x0 = a;
        x1 = b - apart;
      }
    }
    flush();
  }

  /** Whether single intervals or bins show more at this zoom. */
  single(count, levels) {
    const binWidth = (this.model.span / levels[0].n) * this.scale;
    return count <= 1.5 * this.width || (binWidth > 2 && count <= 40_000);
  }

  steps(row, state) {
    const c = this.context;
    const { steps, bins } = row.group;
    const [first, last] = touching(steps, this.view.from, this.view.to);
    if (this.single(last - first, bins) || bins.length === 0) {
      if (steps.n < row.group.count) this.bins(bins, row.y, row.height);
      this.items(steps, first, last, (i) => steps.phase[i], row.y, row.height);
      if (last - first < 120) this.stepNumbers(row, first, last);
    } else this.bins(bins, row.y, row.height);
    for (const stall of row.group.stalls) {
      if (stall.end < this.view.from) continue;
      if (stall.start > this.view.to) break;
      const x0 = Math.max(this.x(stall.start), this.left - 4);
      const x1 = Math.min(this.x(stall.end), this.left + this.width + 4);
      const wide = Math.max(x1 - x0, 2);
      c.fillStyle = this.hatch;
      c.fillRect(x0, row.y, wide, row.height);
      c.fillStyle = this.ink;
      c.fillRect(x0, row.y - 3, Math.max(wide - 1, 2), 3);
      if (state.stall === stall.stall) {
        c.strokeStyle = this.ink;
        c.lineWidth = 2;
        c.strokeRect(x0 + 1, row.y - 2, Math.max(wide - 2, 1), row.height + 1);
      }
    }
  }

  stepNumbers(row, first, last) {
    const c = this.context;
    const { steps } = row.group;
    c.textAlign = "center";
    for (let i = first; i < last; i++) {
      const a = Math.max(this.x(steps.start[i]), this.left);
      const b = Math.min(this.x(steps.end[i]), this.left + this.width);
      const text = `${steps.index[i]}`;
      if (b - a < c.measureText(text).width + 6) continue;
      this.haloed(text, (a + b) / 2, row.y + row.height / 2, this.ink);
    }
  }

  stallLabels(row, state) {
    const c = this.context;
    const seen = row.group.stalls.filter((s) => s.end >= this.view.from && s.start <= this.view.to);
    seen.sort((a, b) => (b.stall === state.stall) - (a.stall === state.stall) || b.ms - a.ms);
    const taken = [];
    c.textAlign = "left";
    for (const stall of seen.slice(0, 200)) {
      const text = stallLabel(stall);
      const wide = c.measureText(text).width;
      const middle = (Math.max(this.x(stall.start), this.left) + Math.min(this.x(stall.end), this.left + this.width)) / 2;
      const x = Math.min(Math.max(middle - wide / 2, this.left + 1), this.left + this.width - wide - 1);
      if (taken.some(([a, b]) => x < b + 8 && x + wide > a - 8)) continue;
      taken.push([x, x + wide]);
      this.haloed(text, x, row.y + 5, this.ink);
      if (taken.length > 12) break;
    }
  }

  gaps(row) {
    const c = this.context;
    const { gaps } = row.group;
    const [first, last] = touching(gaps, this.view.from, this.view.to);
    c.strokeStyle = this.rule;
    c.lineWidth = 1;
    c.beginPath();
    c.moveTo(this.left, row.y + row.height - 0.5);
    c.lineTo(this.left + this.width, row.y + row.height - 0.5);
    c.stroke();
    row.top = "";
    if (last <= first) return;
    let top = 0;
    for (let i = first; i < last; i++) top = Math.max(top, gaps.ms[i]);
    const y = (ms) => this.snap(row.y + row.height - 1 - (ms / top) * (row.height - 8));
    c.fillStyle = this.ink;
    if (last - first > this.width) gapExtents(this, gaps, first, last, y);
    else gapSteps(this, gaps, first, last, y);
    row.top = `${digits(top)} ms`;
  }

  kernels(row) {
    const c = this.context;
    const { lane } = row;
    const { items } = lane;
    const top = row.y + (row.head ?? 0);
    const height = row.height - (row.head ?? 0);
    const copies = lane.kind === "copies";
    const codeOf = copies ? () => 3 : (i) => this.model.kinds.phase[items.what[i]];
    c.fillStyle = this.faint;
    c.fillRect(this.left, top, this.width, height);
    const complete = copies ? items.n === lane.count : this.model.whole;
    const [first, last] = touching(items, this.view.from, this.view.to);
    if (complete && this.single(last - first, lane.bins)) {
      this.items(items, first, last, codeOf, top, height);
      this.kernelNames(lane, first, last, top, height, copies);
      return;
    }
    this.bins(lane.bins, top, height);
    if (complete || copies || !this.single(last - first, lane.bins)) return;
    for (const [from, to] of this.model.windows) {
      if (to < this.view.from || from > this.view.to) continue;
      const a = firstAbove(items.start, from - 1);
      const b = firstAbove(items.start, to - 1);
      const x0 = Math.max(this.x(from), this.left);
      c.fillStyle = this.faint;
      c.fillRect(x0, top, Math.min(this.x(to), this.left + this.width) - x0, height);
      const begin = Math.max(a, first);
      const finish = Math.min(b, last);
      this.items(items, begin, finish, codeOf, top, height);
      this.kernelNames(lane, begin, finish, top, height, copies);
    }
  }

  kernelNames(lane, first, last, top, height, copies) {
    if (last - first > 400 || height < 12) return;
    const c = this.context;
    const { items } = lane;
    const { kinds, words } = this.model;
    c.textAlign = "left";
    for (let i = first; i < last; i++) {
      const a = Math.max(this.x(items.start[i]), this.left);
      const wide = Math.min(this.x(items.end[i]), this.left + this.width) - a;
      if (wide < 44) continue;
      const text = copies ? words.copy[items.what[i]] : kinds.names[kinds.name[items.what[i]]][0];
      const room = Math.floor((wide - 6) / 6);
      this.haloed(text.length > room ? `${text.slice(0, Math.max(1, room - 1))}…` : text, a + 3, top + height / 2, this.ink);
    }
  }

  ranges(row) {
    const c = this.context;
    const { items, texts } = row.lane;
    const top = row.y + (row.head ?? 0);
    const [first, last] = touching(items, this.view.from, this.view.to);
    const edge = new Float64Array(row.lane.depth).fill(-1e9);
    c.textAlign = "left";
    for (let i = first; i < last; i++) {
      const depth = items.depth[i];
      const a = Math.max(this.x(items.start[i]), this.left - 2);
      const b = Math.min(this.x(items.end[i]), this.left + this.width + 2);
      if (b < edge[depth] + 0.5) continue; // hidden behind its neighbour on the same pixel
      edge[depth] = b;
      const y = top + depth * RANGE_ROW;
      const left = this.snap(a);
      const wide = Math.max(this.snap(b) - left, this.pixel);
      c.fillStyle = this.rule;
      c.fillRect(left, y, wide, RANGE_ROW - 1);
      if (wide > 3) {
        c.fillStyle = this.quiet;
        c.fillRect(left, y, 1, RANGE_ROW - 1);
      }
      const room = Math.floor((wide - 6) / 6);
      if (room < 4) continue;
      const text = texts[items.what[i]];
      c.fillStyle = this.ink;
      c.fillText(text.length > room ? `${text.slice(0, room - 1)}…` : text, a + 4, y + RANGE_ROW / 2);
    }
  }

  metric(row) {
    const c = this.context;
    const { values } = row.lane;
    const top = row.y + (row.head ?? 0);
    const height = row.height - (row.head ?? 0) - 2;
    const wide = this.model.span / values.length;
    const first = Math.max(0, Math.floor(this.view.from / wide));
    const last = Math.min(values.length, Math.ceil(this.view.to / wide));
    const each = Math.max(1, Math.floor((last - first) / this.width));
    c.fillStyle = this.faint;
    c.fillRect(this.left, top, this.width, height);
    c.fillStyle = this.other;
    for (let i = first; i < last; i += each) {
      let sum = 0;
      let n = 0;
      for (let k = i; k < Math.min(last, i + each); k++) {
        if (values[k]) {
          sum += (values[k] - 1) / 2;
          n++;
        }
      }
      if (!n) continue;
      const tall = (sum / n / 100) * height;
      const x = this.snap(this.x(i * wide));
      c.fillRect(x, top + height - tall, Math.max(this.snap(this.x((i + each) * wide)) - x, this.pixel), tall);
    }
  }

  overlay(height, state) {
    const c = this.context;
    if (state.measure) {
      const [a, b] = [this.x(state.measure[0]), this.x(state.measure[1])].sort((p, q) => p - q);
      c.fillStyle = this.ink;
      c.globalAlpha = 0.1;
      c.fillRect(a, 0, b - a, height);
      c.globalAlpha = 1;
      c.fillRect(a, 0, 1, height);
      c.fillRect(b, 0, 1, height);
      c.textAlign = "center";
      this.haloed(duration(Math.abs(state.measure[1] - state.measure[0])), (a + b) / 2, AXIS + 6, this.ink);
    }
    if (state.hover !== null) {
      c.fillStyle = this.quiet;
      c.fillRect(Math.round(this.x(state.hover)), 0, 1, height);
    }
  }
}
