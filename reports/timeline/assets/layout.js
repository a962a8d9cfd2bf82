// Where each lane stands on the canvas.

const LABEL_ROW = 16;
const STEP_HEIGHT = 28;
const GAP_HEIGHT = 46;
export const RANGE_ROW = 14;
export const AXIS = 20;

/** Places of all lanes from top to bottom: {lane | group, kind, y, height}. */
export function layOut(model, narrow) {
  const rows = [];
  let y = AXIS;
  const add = (kind, height, extra) => {
    rows.push({ kind, y, height, ...extra });
    y += height;
  };
  for (const group of model.groups) {
    add("stall labels", LABEL_ROW, { group });
    add("steps", STEP_HEIGHT, { group, label: model.groups.length > 1 ? `group ${group.group} steps` : "steps" });
    if (group.gaps.n) add("gaps", GAP_HEIGHT, { group, label: "inter-token gap" });
    y += 6;
  }
  for (const lane of model.lanes) {
    const head = narrow ? 14 : 0; // no gutter: the name stands above its lane
    if (lane.kind === "kernels") add("kernels", 22 + head, { lane, label: lane.label, head });
    else if (lane.kind === "copies") add("copies", 12 + head, { lane, label: lane.label, head });
    else if (lane.kind === "ranges") add("ranges", RANGE_ROW * lane.depth + head, { lane, label: lane.label, head });
    else add("metric", 24 + head, { lane, label: lane.label, head });
    y += 4;
  }
  return { rows, height: y + 2 };
}
