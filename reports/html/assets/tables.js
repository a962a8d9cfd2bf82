// Tables that sort, filter, copy as TSV and show more rows. Cells are text nodes: nothing in a capture is markup.
import { copyText, confirmOn } from "./say.js";

const CHUNK = 200;
const FEW = 8; // rows that need no filter
const MISSING = "–";

function cellOf(column, row) {
  const cell = document.createElement("td");
  const text = column.text[row];
  const title = column.title?.[row];
  if (column.kind === "phase" && text !== MISSING) {
    const dot = document.createElement("i");
    dot.className = `dot ${text}`;
    cell.className = "phase";
    cell.append(dot, text);
  } else if ((column.kind === "stall" || column.kind === "step") && text !== MISSING) {
    const link = document.createElement("a");
    link.href = `#${column.kind}-${text}`;
    link.textContent = text;
    cell.className = "n";
    cell.append(link);
  } else {
    cell.className = column.raw ? "n" : column.kind === "name" ? "name" : "text";
    if (title) cell.title = title;
    cell.textContent = text;
  }
  if (column.minor) cell.classList.add("minor");
  return cell;
}

const isNumber = (column) => Boolean(column.raw) || column.kind === "stall" || column.kind === "step";

function valueOf(column, row) {
  if (column.raw) return column.raw[row];
  if (!isNumber(column)) return column.text[row];
  return column.text[row] === MISSING ? null : Number(column.text[row]);
}

export class DataTable {
  constructor(figure, data) {
    this.figure = figure;
    this.data = data;
    this.height = data.columns[0].text.length;
    this.order = Array.from({ length: this.height }, (_, i) => i);
    this.shown = Math.min(this.height, Number(figure.dataset.page));
    this.limit = this.shown;
    this.sorted = null;
    this.body = figure.querySelector("tbody");
    this.heads = [...figure.querySelectorAll("th")];
    this.heads.forEach((head, i) => head.querySelector("button").addEventListener("click", () => this.sortBy(i)));
    figure.querySelector(".tools").hidden = false;
    this.input = figure.querySelector("input");
    this.input.parentElement.hidden = this.height <= FEW;
    let timer = 0;
    this.input.addEventListener("input", () => {
      clearTimeout(timer);
      timer = setTimeout(() => this.refresh(), 80);
    });
    const copy = figure.querySelector("[data-copy]");
    copy.addEventListener("click", () => {
      copyText(this.tsv(), `${this.visible.length} rows`);
      confirmOn(copy, "Copied");
    });
    this.more = figure.querySelector(".more");
    this.more.querySelector("button").addEventListener("click", () => {
      this.limit += CHUNK;
      this.draw();
    });
    this.visible = this.order;
    this.status();
  }

  sortBy(index) {
    const column = this.data.columns[index];
    const numeric = isNumber(column);
    const falling = this.sorted?.index === index ? !this.sorted.falling : numeric;
    this.sorted = { index, falling };
    const sign = falling ? -1 : 1;
    this.order.sort((a, b) => {
      const x = valueOf(column, a);
      const y = valueOf(column, b);
      if (x === y) return a - b;
      if (x === null || x === MISSING) return 1; // the unknown comes last, both ways
      if (y === null || y === MISSING) return -1;
      return sign * (numeric ? x - y : x < y ? -1 : 1);
    });
    this.heads.forEach((head, i) => {
      if (i === index) head.setAttribute("aria-sort", falling ? "descending" : "ascending");
      else head.removeAttribute("aria-sort");
    });
    this.refresh();
  }

  refresh() {
    const wanted = this.input.value.trim().toLowerCase().split(/\s+/).filter(Boolean);
    this.visible = wanted.length ? this.order.filter((row) => this.matches(row, wanted)) : this.order;
    this.draw();
  }

  matches(row, wanted) {
    if (!this.search) {
      this.search = Array.from({ length: this.height }, (_, i) =>
        this.data.columns.map((c) => (c.kind === "name" ? c.title[i] + " " + c.text[i] : c.text[i])).join("\n").toLowerCase(),
      );
    }
    return wanted.every((word) => this.search[row].includes(word));
  }

  draw() {
    const rows = this.visible.slice(0, this.limit).map((row) => {
      const line = document.createElement("tr");
      if (this.data.anchors) line.id = this.data.anchors[row];
      line.append(...this.data.columns.map((column) => cellOf(column, row)));
      return line;
    });
    this.body.replaceChildren(...rows);
    this.status();
  }

  status() {
    const count = Math.min(this.limit, this.visible.length);
    const of = this.visible.length === this.height ? this.data.total : this.visible.length;
    this.figure.querySelector(".count").textContent =
      `${count.toLocaleString("en")} of ${of.toLocaleString("en")} ${of === 1 ? "row" : "rows"}`;
    this.more.hidden = count >= this.visible.length;
  }

  /** Bring the row with this anchor into the page; false where the table has none. */
  reveal(anchor) {
    const row = this.data.anchors?.indexOf(anchor) ?? -1;
    if (row < 0) return false;
    let place = this.visible.indexOf(row);
    if (place < 0) {
      this.input.value = "";
      this.refresh();
      place = this.visible.indexOf(row);
    }
    if (place >= this.limit) {
      this.limit = place + CHUNK;
      this.draw();
    }
    return true;
  }

  /** All rows that pass the filter, in the order shown, raw values rather than rounded ones. */
  tsv() {
    const clean = (text) => String(text ?? "").replace(/[\t\r\n]+/g, " ");
    const head = this.heads.map((h) => clean(h.textContent)).join("\t");
    const lines = this.visible.map((row) =>
      this.data.columns
        .map((c) => (c.raw ? clean(c.raw[row]) : c.kind === "name" ? clean(c.title[row]) : c.text[row] === MISSING ? "" : clean(c.text[row])))
        .join("\t"),
    );
    return [head, ...lines].join("\n") + "\n";
  }
}
