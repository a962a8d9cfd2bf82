// What the page does: tables, theme, print, copying, and links to a stall or a step.
import { block } from "./payload.js";
import { copyText, confirmOn } from "./say.js";
import { DataTable } from "./tables.js";
import { startTheme } from "./theme.js";
import { startTimeline } from "./timeline.js";

async function startTables() {
  const bytes = await block("payload-tables");
  const content = JSON.parse(new TextDecoder().decode(bytes));
  const made = [];
  for (const figure of document.querySelectorAll("[data-table]")) {
    const data = content[figure.dataset.table];
    if (data) made.push(new DataTable(figure, data));
  }
  return made;
}

function startCopying() {
  for (const button of document.querySelectorAll("[data-copy-from]")) {
    button.hidden = false;
    button.addEventListener("click", () => {
      copyText(document.getElementById(button.dataset.copyFrom).textContent, "Command");
      confirmOn(button, "Copied");
    });
  }
}

/** Evidence that is folded on the screen is open on paper. */
function startPrinting() {
  const button = document.getElementById("print");
  button.hidden = false;
  button.addEventListener("click", () => window.print());
  let folded = [];
  addEventListener("beforeprint", () => {
    folded = [...document.querySelectorAll("details:not([open])")];
    for (const details of folded) details.open = true;
  });
  addEventListener("afterprint", () => {
    for (const details of folded) details.open = false;
  });
}

/** `#stall-3` and `#step-17` show their row and go there in the timeline. */
function follow(tables, timeline) {
  const anchor = decodeURIComponent(location.hash.slice(1));
  document.querySelectorAll("tr.here").forEach((row) => row.classList.remove("here"));
  if (!/^(stall|step)-/.test(anchor)) return;
  const found = tables.some((table) => table.reveal(anchor));
  const row = found ? document.getElementById(anchor) : null;
  row?.classList.add("here");
  if (timeline?.goTo(anchor)) document.getElementById("timeline-heading").scrollIntoView();
  else row?.scrollIntoView({ block: "center" });
}

async function start() {
  startTheme();
  startCopying();
  startPrinting();
  const [tables, timeline] = await Promise.all([startTables(), startTimeline()]);
  const go = () => follow(tables, timeline);
  addEventListener("hashchange", go);
  // the same link twice does not change the address, but should still go there
  document.addEventListener("click", (event) => {
    const link = event.target.closest?.("a[href^='#st']");
    if (link && link.getAttribute("href") === location.hash) go();
  });
  if (location.hash) go();
  document.documentElement.dataset.ready = "yes";
}

start();
