// The timeline: its view, what moves it, and what is under the pointer.
import { block } from "./payload.js";
import { say } from "./say.js";
import { touching } from "./arrays.js";
import { readModel } from "./model.js";
import { layOut } from "./layout.js";
import { Painter } from "./draw.js";
import { digits, duration, kernelLines, stallLabel, stallLines, stepLines, tickText } from "./words.js";

const GUTTER = 136;
const NARROW = 600;
const CLOSEST = 500; // ns across the whole width

class Timeline {
  constructor(root, model) {
    this.root = root;
    this.model = model;
    this.canvas = root.querySelector("canvas");
    this.tip = root.querySelector(".tip");
    this.where = root.querySelector(".where");
    this.view = { from: 0, to: model.span };
    this.state = { hover: null, measure: null, stall: null };
    this.pointers = new Map();
    this.measuring = false;
    this.painter = new Painter(this.canvas.getContext("2d", { alpha: false }), model);
    new ResizeObserver(() => this.resize()).observe(this.canvas);
    document.addEventListener("themechange", () => {
      this.painter.readColours();
      this.draw();
    });
    this.listen();
    this.resize();
    this.report();
  }

  resize() {
    const width = this.canvas.clientWidth;
    if (!width) return;
    const narrow = width < NARROW;
    this.layout = layOut(this.model, narrow);
    const ratio = window.devicePixelRatio || 1;
    this.size = { width, height: this.layout.height, gutter: narrow ? 0 : GUTTER, ratio };
    this.canvas.style.height = `${this.size.height}px`;
    this.canvas.width = Math.round(width * ratio);
    this.canvas.height = Math.round(this.size.height * ratio);
    this.draw();
  }

  draw() {
    if (this.waiting || !this.size) return;
    this.waiting = true;
    requestAnimationFrame(() => {
      this.waiting = false;
      this.painter.paint(this.view, this.size, this.layout, this.state);
    });
  }

  timeAt(x) {
    const share = (x - this.size.gutter) / (this.size.width - this.size.gutter);
    return this.view.from + share * (this.view.to - this.view.from);
  }

  show(from, to) {
    const wide = Math.min(Math.max(to - from, CLOSEST), this.model.span * 1.02);
    const middle = (from + to) / 2;
    const low = Math.min(Math.max(middle - wide / 2, -0.01 * this.model.span), 1.01 * this.model.span - wide);
    this.view = { from: low, to: low + wide };
    this.report();
    this.draw();
  }

  zoom(factor, at = (this.view.from + this.view.to) / 2) {
    const wide = Math.min(Math.max((this.view.to - this.view.from) * factor, CLOSEST), this.model.span * 1.02);
    const share = (at - this.view.from) / (this.view.to - this.view.from);
    this.show(at - share * wide, at - share * wide + wide);
  }

  move(share) {
    const by = (this.view.to - this.view.from) * share;
    this.show(this.view.from + by, this.view.to + by);
  }

  report() {
    const chosen = this.model.stalls.find((s) => s.stall === this.state.stall);
    const wide = Math.min(this.view.to, this.model.span) - Math.max(this.view.from, 0);
    const parts = [`${duration(wide)} from ${tickText(Math.max(0, this.view.from), 10 ** Math.floor(Math.log10(wide / 20)))}`];
    if (chosen) parts.unshift(`stall ${chosen.stall}: ${stallLabel(chosen)}`);
    if (this.state.measure) parts.unshift(`measured ${duration(Math.abs(this.state.measure[1] - this.state.measure[0]))}`);
    this.where.textContent = parts.join(" · ");
  }

  /** Choose a stall and show it with as much again on both sides. */
  fit(stall) {
    this.state.stall = stall.stall;
    const wide = stall.end - stall.start;
    this.show(stall.start - wide * 0.6, stall.end + wide * 0.6);
    say(stallLines(stall).join(". "));
  }

  neighbour(direction) {
    const { stalls } = this.model;
    if (!stalls.length) return say("No stall in this window");
    const chosen = stalls.findIndex((s) => s.stall === this.state.stall);
    const next = chosen >= 0 ? chosen + direction : direction > 0 ? 0 : stalls.length - 1;
    return this.fit(stalls[(next + stalls.length) % stalls.length]);
  }

  fitChosen() {
    const { stalls } = this.model;
    const chosen = stalls.find((s) => s.stall === this.state.stall);
    const middle = (this.view.from + this.view.to) / 2;
    const nearest = () => stalls.reduce((a, b) => (Math.abs(b.start - middle) < Math.abs(a.start - middle) ? b : a));
    if (stalls.length) this.fit(chosen ?? nearest());
    else say("No stall in this window");
  }

  /** `stall-3`, `step-17`, `step-GROUP-17`: go there; false where it is not in the timeline. */
  goTo(anchor) {
    const [kind, ...rest] = anchor.split("-");
    const numbers = rest.map(Number);
    if (kind === "stall") {
      const stall = this.model.stalls.find((s) => s.stall === numbers[0]);
      if (stall) this.fit(stall);
      return Boolean(stall);
    }
    const group = rest.length > 1 && rest[1] !== "device" ? this.model.groups.find((g) => g.group === numbers[0]) : this.model.groups[0];
    const index = rest.length > 1 && rest[1] !== "device" ? numbers[1] : numbers[0];
    const i = group ? group.steps.index.indexOf(index) : -1;
    if (i < 0) return false;
    const wide = group.steps.end[i] - group.steps.start[i];
    this.show(group.steps.start[i] - wide, group.steps.end[i] + wide);
    say(stepLines(this.model, group, i).join(". "));
    return true;
  }

  act(name) {
    const actions = {
      all: () => this.show(0, this.model.span),
      next: () => this.neighbour(1),
      previous: () => this.neighbour(-1),
      fit: () => this.fitChosen(),
      in: () => this.zoom(0.5),
      out: () => this.zoom(2),
      measure: () => this.setMeasuring(!this.measuring),
    };
    actions[name]();
  }

  setMeasuring(on) {
    this.measuring = on;
    if (!on) this.state.measure = null;
    this.root.querySelector("[data-do=measure]").setAttribute("aria-pressed", String(on));
    this.canvas.classList.toggle("measuring", on);
    say(on ? "Measure: drag across the time to measure" : "Measure off");
    this.report();
    this.draw();
  }

  listen() {
    for (const button of this.root.querySelectorAll("[data-do]")) {
      button.addEventListener("click", () => this.act(button.dataset.do));
    }
    const { canvas } = this;
    canvas.addEventListener("wheel", (event) => this.wheel(event), { passive: false });
    canvas.addEventListener("pointerdown", (event) => this.press(event));
    canvas.addEventListener("pointermove", (event) => this.track(event));
    for (const kind of ["pointerup", "pointercancel"]) canvas.addEventListener(kind, (event) => this.release(event));
    canvas.addEventListener("pointerleave", () => this.unhover());
    canvas.addEventListener("dblclick", (event) => this.zoom(0.25, this.timeAt(event.offsetX)));
    canvas.addEventListener("keydown", (event) => this.key(event));
  }

  wheel(event) {
    if (event.offsetX < this.size.gutter) return; // over the names the page scrolls
    event.preventDefault();
    const sideways = event.shiftKey ? event.deltaX || event.deltaY : event.deltaX;
    if (Math.abs(sideways) > Math.abs(event.deltaY) || event.shiftKey) this.move(sideways / this.size.width);
    else this.zoom(Math.exp(Math.max(-240, Math.min(240, event.deltaY)) * 0.003), this.timeAt(event.offsetX));
  }

  press(event) {
    this.canvas.setPointerCapture(event.pointerId);
    this.pointers.set(event.pointerId, event.offsetX);
    this.anchor = { ...this.view };
    this.pressed = event.offsetX;
    if (this.measuring && this.pointers.size === 1) {
      const t = this.timeAt(event.offsetX);
      this.state.measure = [t, t];
    }
  }

  track(event) {
    if (!this.pointers.has(event.pointerId)) return this.hover(event);
    const before = new Map(this.pointers);
    this.pointers.set(event.pointerId, event.offsetX);
    if (this.pointers.size === 2) return this.pinch(before);
    if (this.measuring) {
      this.state.measure[1] = this.timeAt(event.offsetX);
      this.report();
      return this.draw();
    }
    const perPixel = (this.anchor.to - this.anchor.from) / (this.size.width - this.size.gutter);
    const by = (this.pressed - event.offsetX) * perPixel;
    this.tip.hidden = true;
    return this.show(this.anchor.from + by, this.anchor.to + by);
  }

  pinch(before) {
    const [a0, b0] = [...before.values()];
    const [a1, b1] = [...this.pointers.values()];
    const factor = Math.max(20, Math.abs(b0 - a0)) / Math.max(20, Math.abs(b1 - a1));
    this.zoom(factor, this.timeAt((a1 + b1) / 2));
  }

  release(event) {
    this.pointers.delete(event.pointerId);
    this.anchor = { ...this.view };
    this.pressed = [...this.pointers.values()][0];
  }

  unhover() {
    this.state.hover = null;
    this.tip.hidden = true;
    this.draw();
  }

  hover(event) {
    const { offsetX: x, offsetY: y } = event;
    this.state.hover = x >= this.size.gutter ? this.timeAt(x) : null;
    this.draw();
    const lines = this.state.hover === null ? null : this.linesAt(this.state.hover, y);
    this.tip.hidden = !lines;
    if (!lines) return;
    this.tip.replaceChildren(
      ...lines.map((line) => {
        const p = document.createElement("p");
        p.textContent = line;
        return p;
      }),
    );
    const wide = this.tip.offsetWidth;
    const top = this.canvas.offsetTop + y + 16;
    this.tip.style.left = `${Math.max(0, Math.min(x + 14, this.size.width - wide - 4))}px`;
    this.tip.style.top = `${top}px`;
  }

  linesAt(time, y) {
    const row = this.layout.rows.find((r) => y >= r.y && y < r.y + r.height);
    if (!row) return null;
    const slack = (2 * (this.view.to - this.view.from)) / this.size.width;
    if (row.group) return this.groupLines(row, time, slack);
    const { lane } = row;
    if (row.kind === "metric") return this.metricLines(lane, time);
    const depth = row.kind === "ranges" ? Math.floor((y - row.y - (row.head ?? 0)) / 14) : null;
    const i = itemAt(lane.items, time, slack, depth);
    if (i < 0) return [lane.label, `${lane.count.toLocaleString("en")} ${row.kind}`];
    if (row.kind === "kernels") return kernelLines(this.model, lane, i);
    const span = `${duration(lane.items.end[i] - lane.items.start[i])} from ${duration(lane.items.start[i])}`;
    if (row.kind === "copies") return [`copy ${this.model.words.copy[lane.items.what[i]]}`, span, `${lane.items.bytes[i].toLocaleString("en")} bytes`];
    return [lane.texts[lane.items.what[i]], span];
  }

  groupLines(row, time, slack) {
    const { group } = row;
    const stall = group.stalls.find((s) => time >= s.start - slack && time <= s.end + slack);
    if (row.kind === "gaps") {
      const i = itemAt(group.gaps, time, slack, null);
      if (i < 0) return null;
      const lines = [`inter-token gap ${duration(group.gaps.ms[i] * 1e6)}, ends with step ${group.gaps.index[i]}`];
      if (group.gaps.prefill_ms[i] > 0) lines.push(`${digits(group.gaps.prefill_ms[i])} ms of it prefill work`);
      return stall ? [...lines, ...stallLines(stall)] : lines;
    }
    const i = itemAt(group.steps, time, slack, null);
    const lines = i < 0 || row.kind === "stall labels" ? [] : stepLines(this.model, group, i);
    if (stall) lines.push(...stallLines(stall));
    return lines.length ? lines : null;
  }

  metricLines(lane, time) {
    const value = lane.values[Math.floor((time / this.model.span) * lane.values.length)];
    return value ? [lane.label, `${digits((value - 1) / 2)}% of peak`] : [lane.label, "not sampled here"];
  }

  key(event) {
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    const far = event.shiftKey ? 0.6 : 0.15;
    const actions = {
      ArrowLeft: () => this.move(-far),
      ArrowRight: () => this.move(far),
      ArrowUp: () => this.zoom(0.7),
      ArrowDown: () => this.zoom(1 / 0.7),
      "+": () => this.zoom(0.6),
      "=": () => this.zoom(0.6),
      "-": () => this.zoom(1 / 0.6),
      f: () => this.act("fit"),
      n: () => this.act("next"),
      p: () => this.act("previous"),
      m: () => this.act("measure"),
      0: () => this.act("all"),
      Home: () => this.act("all"),
      Escape: () => {
        this.state.stall = null;
        this.setMeasuring(false);
      },
    };
    const action = actions[event.key];
    if (!action) return;
    event.preventDefault();
    action();
  }
}

/** The interval at `time`, the shortest where several are, at `depth` where that is given; -1 without one. */
function itemAt(items, time, slack, depth) {
  const [first, last] = touching(items, time - slack, time + slack);
  let best = -1;
  let distance = Infinity;
  for (let i = Math.max(first, last - 400); i < last; i++) {
    if (depth !== null && items.depth[i] !== depth) continue;
    const away = time < items.start[i] ? items.start[i] - time : time > items.end[i] ? time - items.end[i] : 0;
    if (away < distance || (away === distance && items.end[i] - items.start[i] < items.end[best] - items.start[best])) {
      best = i;
      distance = away;
    }
  }
  return best;
}

export async function startTimeline() {
  const root = document.getElementById("timeline-view");
  const bytes = root && (await block("payload-timeline"));
  if (!bytes) return null;
  root.hidden = false;
  const timeline = new Timeline(root, readModel(bytes));
  root.timeline = timeline; // for tests and the curious
  return timeline;
}
