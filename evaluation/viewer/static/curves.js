// Small curves over iterations. A click chooses an iteration.
import { make } from "./service/dom.js";

// title, metric, what it is, and the value above which it is red
const CURVES = [
  ["success", "reward/success", "share of rollouts that succeeded"],
  ["mean reward", "reward/mean", "of the rollouts"],
  ["held-out accuracy", "validation/accuracy", "on questions that are not trained on"],
  ["clip fraction", "policy/clip_fraction", "share of the action tokens whose gradient was dropped", 0.3],
  ["correction's scale", "policy/clip_bias_scale", "what the clipping-bias correction multiplied the update by"],
  ["KL to the reference", "kl/reference", "nats per token", 1],
  ["KL of the update", "policy/approx_kl", "nats per token, between the policy that sampled and the one that learns", 0.1],
  ["entropy", "policy/entropy", "nats per token"],
  ["searches", "rollout/searches", "per question"],
  ["groups of equal rewards", "reward/zero_std_groups", "groups whose rollouts all earned the same"],
  ["rollouts cut", "rollout/truncated", "share that a limit ended", 0.3],
  ["gradient norm", "policy/grad_norm", "before it is clipped"],
  ["largest ratio", "policy/ratio_max", "largest importance weight"],
  ["critic's explained variance", "critic/explained_variance", "of the returns, on fresh rollouts"],
  ["loss of examples", "sft/loss", "nats per token"],
];
const SHARES = ["success", "held-out accuracy", "clip fraction", "rollouts cut"];
const HEAVY = ["KL to the reference", "KL of the update", "gradient norm"]; // logarithmic from WIDE on
const WIDE = 1000; // times the smallest value
const WIDTH = 200;
const HEIGHT = 60;

/** An SVG element with attributes. */
export const svg = (tag, attributes) => {
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
  const figures = CURVES.filter(([, name]) => runs.some((metrics) => metrics.some((row) => name in row))).map(([title, name, meaning, most]) => {
    const values = runs.map((metrics) => metrics.map((row) => row[name]));
    const all = values.flat().filter(Number.isFinite);
    const [low, high] = SHARES.includes(title) ? [0, 1] : [Math.min(...all), Math.max(...all)];
    const log = HEAVY.includes(title) && low > 0 && high / low > WIDE;
    const at = log ? Math.log : (value) => value;
    const y = (value) => HEIGHT - 2 - ((at(value) - at(low)) / (at(high) - at(low) || 1)) * (HEIGHT - 4);
    const now = values[0][chosen];
    const label = `${title}: ${plain(low)} to ${plain(high)} over ${values[0].length} iterations`;
    const image = svg("svg", { viewBox: `0 0 ${WIDTH} ${HEIGHT}`, preserveAspectRatio: "none", role: "img", "aria-label": label });
    for (const alarm of alarms) image.append(svg("line", { x1: x(alarm), x2: x(alarm), y1: 0, y2: HEIGHT, class: "alarm" }));
    if (chosen >= 0) image.append(svg("line", { x1: x(chosen), x2: x(chosen), y1: 0, y2: HEIGHT }));
    values.forEach((each, run) => {
      const points = each.flatMap((value, iteration) => (Number.isFinite(value) ? [`${x(iteration).toFixed(2)} ${y(value).toFixed(2)}`] : []));
      const path = points.length ? `M${points[0]}h0L${points.join("L")}` : "";
      image.append(svg("path", { d: path, ...(run ? { class: "other" } : {}) }));
    });
    image.addEventListener("click", (event) => {
      const box = image.getBoundingClientRect();
      choose(Math.round(((event.clientX - box.left) / box.width) * last));
    });
    const caption = make("figcaption", {}, make("span", {}, log ? `${title} (log)` : title), make("b", { className: now > most ? "bad" : "" }, now === undefined ? "" : plain(now)));
    return make("figure", { title: `${title}: ${meaning}` }, caption, image, make("div", { className: "axis" }, make("span", {}, `from ${plain(low)}`), make("span", {}, `to ${plain(high)}`)));
  });
  place.replaceChildren(...figures);
}
