// What an evaluation or the demo reports: its conclusions, its tables, and how sure the agent was against how right.
import { make } from "./service/dom.js";
import { plain, svg } from "./curves.js";

const cells = (row, kind, scope) => row.map((text, at) => (text && (scope === "col" || !at) ? make("th", { scope }, text) : make(kind, {}, text)));

/** A table that scrolls in a region of its own. */
function drawTable({ title, head, rows }) {
  const body = rows.map((row) => make("tr", {}, ...cells(row, "td", "row")));
  const table = make("table", {}, make("caption", {}, title), make("thead", {}, make("tr", {}, ...cells(head, "td", "col"))), make("tbody", {}, ...body));
  return make("div", { className: "scroll", tabIndex: 0, role: "region", ariaLabel: title }, table);
}

/** Points of one share against another, both from 0 to 1. */
function drawShares(title, across, points, diagonal) {
  const place = ([x, y]) => `${(100 * x).toFixed(2)} ${(100 - 100 * y).toFixed(2)}`;
  const label = `${title}, accuracy by ${across}: ${points.map(([x, y]) => `${plain(y)} at ${plain(x)}`).slice(0, 30).join(", ")}`;
  const image = svg("svg", { viewBox: "-2 -2 104 104", role: "img", "aria-label": label });
  image.append(svg("path", { d: "M0 0V100H100", class: "axis" }));
  if (diagonal) image.append(svg("line", { x1: 0, y1: 100, x2: 100, y2: 0 }));
  image.append(svg("path", { d: `M${points.map(place).join("L")}` }));
  for (const point of points.length < 30 ? points : []) image.append(svg("circle", { cx: 100 * point[0], cy: 100 - 100 * point[1], r: 1.5 }));
  return make("figure", { className: "shares" }, make("figcaption", {}, title), image, make("p", { className: "hint" }, `accuracy by ${across}, both from 0 to 1`));
}

/** Reliability, and accuracy against coverage, of each mode whose policy gives its confidence. */
function shares(modes) {
  return Object.entries(modes).filter(([, found]) => found.calibration?.bins.length).flatMap(([mode, found]) => [
    drawShares(`${mode}: reliability`, "confidence", found.calibration.bins, true),
    drawShares(`${mode}: selective`, "coverage", found.selective, false),
  ]);
}

/** Draw the reports of the runs, where they have one, once for each state of them. */
export function drawReports(place, runs) {
  const found = runs.filter((run) => run.report.tables || run.left_out);
  const state = JSON.stringify(found.map((run) => [run.report, run.left_out]));
  if (place.drawn === state) return;
  place.drawn = state;
  place.hidden = !found.length;
  place.replaceChildren(...found.flatMap(({ name, report, left_out }) => {
    const settings = Object.entries(report.settings ?? {}).map(([key, value]) => [key, typeof value === "string" ? value : JSON.stringify(value)]);
    const said = [...(left_out ? [left_out] : []), ...(report.conclusions ?? [])].map((line) => make("li", {}, line));
    const [first, ...more] = (report.tables ?? []).map(drawTable);
    const curves = make("div", { className: "curves" }, ...shares(report.modes ?? {}));
    return [
      make("h2", {}, `Report of ${name}`), make("ul", {}, ...said), ...(first ? [first] : []),
      make("details", { hidden: !more.length }, make("summary", {}, "More tables and curves"), ...more, curves),
      make("details", { hidden: !settings.length }, make("summary", {}, "Settings"), drawTable({ title: "Settings", head: ["", ""], rows: settings })),
    ];
  }));
}
