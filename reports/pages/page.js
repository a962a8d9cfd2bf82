// Sortable, filterable tables. Cells carry their raw value in data-v; text sorts as text, numbers as numbers.
const value = (row, column) => {
  const cell = row.cells[column];
  const raw = cell.dataset.v ?? cell.textContent.trim();
  return raw === "" ? null : cell.dataset.v !== undefined && !Number.isNaN(Number(raw)) ? Number(raw) : raw;
};

const compare = (a, b) => {
  if (a === null || b === null) return (a === null) - (b === null); // unknown last, whichever way it sorts
  return typeof a === "number" && typeof b === "number" ? a - b : String(a).localeCompare(String(b));
};

for (const table of document.querySelectorAll("table.sortable")) {
  const body = table.tBodies[0];
  for (const head of table.tHead.rows[0].cells) {
    const button = head.querySelector("button");
    if (!button) continue;
    button.addEventListener("click", () => {
      const rising = head.getAttribute("aria-sort") !== "ascending";
      for (const other of table.tHead.rows[0].cells) other.removeAttribute("aria-sort");
      head.setAttribute("aria-sort", rising ? "ascending" : "descending");
      const rows = [...body.rows].map((row) => [value(row, head.cellIndex), row]);
      rows.sort((x, y) => {
        const order = compare(x[0], y[0]);
        return x[0] === null || y[0] === null || rising ? order : -order;
      });
      body.append(...rows.map((pair) => pair[1]));
    });
  }
  const filter = document.querySelector(`input[data-filters="${table.id}"]`);
  filter?.addEventListener("input", () => {
    const words = filter.value.toLowerCase().split(/\s+/).filter(Boolean);
    for (const row of body.rows) {
      const text = row.textContent.toLowerCase();
      row.hidden = !words.every((word) => text.includes(word));
    }
  });
}
