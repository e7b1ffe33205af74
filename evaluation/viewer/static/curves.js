// Small curves over iterations. A click chooses an iteration.
import { make } from "./service/dom.js";

const CURVES = [
  ["success", "reward/success"],
  ["held-out accuracy", "validation/accuracy"],
  ["clip fraction", "policy/clip_fraction"],
  ["correction's scale", "policy/clip_bias_scale"],
  ["KL to the reference", "kl/reference"],
  ["entropy", "policy/entropy"],
  ["searches", "rollout/searches"],
  ["tokens per turn", "rollout/turn_tokens"],
  ["gradient norm", "policy/grad_norm"],
  ["largest ratio", "policy/ratio_max"],
  ["loss of examples", "sft/loss"],
];
const WIDTH = 200;
const HEIGHT = 60;

const svg = (tag, attributes) => {
  const element = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
  return element;
};

/** A figure as people read it. */
export function plain(value) {
  if (value === null || value === undefined || Number.isNaN(value)) return "none";
  if (Number.isInteger(value)) return String(value);
  return Math.abs(value) >= 1e4 || Math.abs(value) < 1e-3 ? value.toExponential(2) : value.toPrecision(3);
}

/** Draw the curves of the runs; `chosen` is marked, `alarms` are iterations, and a click calls `choose`. */
export function drawCurves(place, runs, { chosen, alarms, choose }) {
  const last = Math.max(1, ...runs.map((metrics) => metrics.length - 1));
  const x = (iteration) => (iteration / last) * WIDTH;
  const figures = CURVES.filter(([, name]) => runs.some((metrics) => metrics.some((row) => name in row))).map(([title, name]) => {
    const values = runs.map((metrics) => metrics.map((row) => row[name]));
    const all = values.flat().filter(Number.isFinite);
    const [low, high] = [Math.min(...all), Math.max(...all)];
    const y = (value) => HEIGHT - 2 - ((value - low) / (high - low || 1)) * (HEIGHT - 4);
    const now = values[0][chosen];
    const label = `${title}: ${plain(low)} to ${plain(high)} over ${values[0].length} iterations`;
    const image = svg("svg", { viewBox: `0 0 ${WIDTH} ${HEIGHT}`, preserveAspectRatio: "none", role: "img", "aria-label": label });
    for (const alarm of alarms) image.append(svg("line", { x1: x(alarm), x2: x(alarm), y1: 0, y2: HEIGHT, class: "alarm" }));
    if (chosen >= 0) image.append(svg("line", { x1: x(chosen), x2: x(chosen), y1: 0, y2: HEIGHT }));
    values.forEach((each, run) => {
      let [path, pen] = ["", "M"];
      each.forEach((value, iteration) => {
        if (!Number.isFinite(value)) return void (pen = "M");
        path += `${pen}${x(iteration).toFixed(2)} ${y(value).toFixed(2)}`;
        pen = "L";
      });
      image.append(svg("path", { d: path, ...(run ? { class: "other" } : {}) }));
    });
    image.addEventListener("click", (event) => {
      const box = image.getBoundingClientRect();
      choose(Math.round(((event.clientX - box.left) / box.width) * last));
    });
    const caption = make("figcaption", {}, make("span", {}, title), make("b", {}, now === undefined ? `${plain(low)} to ${plain(high)}` : plain(now)));
    return make("figure", {}, caption, image);
  });
  place.replaceChildren(...figures);
}
