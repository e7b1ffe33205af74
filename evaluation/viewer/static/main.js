// The page of `medagent view`: curves, the rollouts of an iteration, and one or several of them side by side.
import { byId, make } from "./service/dom.js";
import { drawCurves, plain } from "./curves.js";
import { drawLegend, drawRollout, numbersOf, scaleOf, watchTokens } from "./rollout.js";
import { isLive, overviewOf, rolloutsOf, runNames } from "./source.js";
import { drawReports } from "./tables.js";

const EVERY_MS = 5000;
const state = { names: [], runs: [], part: "", question: "", sample: 0, key: "ratio", beside: "none", filter: "all", order: "sampled" };

const wrong = (row) => row.verdict !== "correct";
const FILTERS = {
  all: ["all", () => true],
  correct: ["correct", (row) => !wrong(row)],
  wrong: ["not correct", wrong],
  searched_wrong: ["searched, then answered wrong", (row) => row.searches > 0 && row.verdict === "wrong"],
  searched: ["searched", (row) => row.searches > 0],
  no_search: ["never searched", (row) => !row.searches],
  empty: ["searched and found nothing", (row) => row.searches > 0 && !row.passages],
  gold: ["saw all of the evidence", (row) => row.gold],
  gold_wrong: ["saw all of it, then not correct", (row) => row.gold && wrong(row)],
  equal: ["groups of equal rewards", (row, group) => group.length > 1 && group.every((each) => each.reward === row.reward)],
  differs: ["groups of different rewards", (row, group) => group.some((each) => each.reward !== row.reward)],
};
const ORDERS = {
  sampled: ["as sampled", () => 0],
  reward: ["lowest reward", (a, b) => a.reward - b.reward],
  clipped: ["most clipped", (a, b) => (b.clipped ?? -1) - (a.clipped ?? -1)],
  longest: ["longest", (a, b) => b.tokens - a.tokens],
  changed: ["changed most since it was last asked", (a, b) => changeOf(b) - changeOf(a)],
};

const parts = (run = 0) => state.runs[run].parts;
const partNames = (run = 0) => Object.keys(parts(run));
const sameQuestion = (part, id, run = 0) => (parts(run)[part]?.rollouts ?? []).filter((row) => row.question_id === id);
const meanReward = (rows) => rows.reduce((sum, row) => sum + row.reward, 0) / rows.length;

/** The latest part before this one in which the question was asked. */
function partBefore(id, part) {
  const names = partNames();
  for (let at = names.indexOf(part) - 1; at >= 0; at--) if (sameQuestion(names[at], id).length) return names[at];
  return null;
}

/** How far the mean reward of a row's question has moved since the question was last asked. */
function changeOf(row) {
  const before = partBefore(row.question_id, state.part);
  return before === null ? -1 : Math.abs(meanReward(sameQuestion(state.part, row.question_id)) - meanReward(sameQuestion(before, row.question_id)));
}

const fill = (select, pairs, chosen) => {
  const made = pairs.map(([value, text]) => make("option", { value, selected: value === chosen }, text));
  select.replaceChildren(...made);
};

function remember() {
  const { names, runs, ...chosen } = state;
  history.replaceState(null, "", `#${new URLSearchParams(chosen)}`);
}

/** The mean reward of rollouts by their verdict, as a sentence. */
function byVerdict(rows) {
  const names = [...new Set(rows.map((row) => row.verdict))].sort();
  return names.map((name) => [name, rows.filter((row) => row.verdict === name)]).map(([name, own]) => `${own.length} ${name.replace("_", " ")}${own[0].reward === null ? "" : `: mean reward ${plain(meanReward(own))}`}`).join("; ");
}

/** The filters that keep some rollouts, and one for each way in which rollouts stopped: key -> [words, whether it keeps]. */
function filtersOf(rollouts, groups) {
  const stops = [...new Set(rollouts.map((row) => row.stop_reason))].map((name) => [`stop ${name}`, [`stopped: ${name}`, (row) => row.stop_reason === name]]);
  const counted = [...Object.entries(FILTERS), ...stops].map(([key, [words, keep]]) => [key, [words, keep, rollouts.filter((row) => keep(row, groups.get(row.question_id))).length]]);
  return Object.fromEntries(counted.filter(([key, [, , count]]) => count || key === state.filter || key === "all"));
}

function drawList() {
  const { rollouts, questions } = parts()[state.part] ?? { rollouts: [], questions: {} };
  const groups = grouped(rollouts);
  const said = byId("find").value.toLowerCase();
  const filters = filtersOf(rollouts, groups);
  if (!(state.filter in filters)) state.filter = "all";
  fill(byId("filter"), Object.entries(filters).map(([key, [words, , count]]) => [key, `${words} (${count})`]), state.filter);
  const keep = filters[state.filter][1];
  const order = state.order;
  const changed = order === "changed" ? new Map(rollouts.map((row) => [row, changeOf(row)])) : null;
  const compare = changed ? (a, b) => changed.get(b) - changed.get(a) : ORDERS[order][1];
  const found = rollouts.filter((row) => keep(row, groups.get(row.question_id)) && questions[row.question_id].toLowerCase().includes(said)).sort(compare);
  byId("count").textContent = `${found.length} of ${rollouts.length} rollouts. ${byVerdict(found)}`;
  const rows = found.map((row) => {
    const clipped = row.clipped === null ? "" : ` · clipped ${(100 * row.clipped).toFixed(0)}%`;
    const stopped = row.stop_reason === "answered" ? "" : ` · ${row.stop_reason}`;
    const earned = row.reward === null ? "" : ` · reward ${plain(row.reward)}`;
    const figures = `${earned}${stopped} · ${row.searches} searches · ${row.passages} passages · ${row.tokens} tokens${clipped}`;
    const verdict = make("span", { className: wrong(row) ? "bad" : "good" }, row.verdict);
    const button = make("button", { type: "button" }, make("span", { dir: "auto" }, questions[row.question_id].slice(0, 160)), make("span", { className: "figures" }, verdict, figures));
    if (row.question_id === state.question && row.sample === state.sample) button.setAttribute("aria-current", "true");
    button.addEventListener("click", () => show(row.question_id, row.sample).then(() => byId("rollouts").querySelector("[aria-current]")?.focus()));
    return make("li", {}, button);
  });
  byId("rollouts").replaceChildren(...rows);
  return found;
}

function grouped(rows) {
  const groups = new Map();
  for (const row of rows) groups.set(row.question_id, [...(groups.get(row.question_id) ?? []), row]);
  return groups;
}

/** The choices of what stands beside a rollout: its group, an earlier or later iteration, the other run. */
function besides() {
  const found = [["none", "nothing"]];
  if (sameQuestion(state.part, state.question).length > 1) found.push(["group", "its group"]);
  if (partBefore(state.question, state.part) !== null) found.push(["before", "the same question, asked before"]);
  state.names.slice(1).forEach((name, at) => found.push([`run ${at + 1}`, `the same question in ${name}`]));
  return found;
}

async function chosenRollouts() {
  const asked = (run, part) => parts(run)[part].rollouts.flatMap((row, place) => (row.question_id === state.question ? [place] : []));
  const pick = (run, part) => rolloutsOf(run, part, asked(run, part));
  const group = await pick(0, state.part);
  const one = group.find((row) => row.sample === state.sample) ?? group[0];
  const label = (row, part, run = 0) => `${state.names.length > 1 ? `${state.names[run]}, ` : ""}${partWords(part)}, sample ${row.sample}`;
  const told = (rows, part, run) => rows.map((row) => [row, label(row, part, run)]);
  if (!one) return [];
  if (state.beside === "group") return told([one, ...group.filter((row) => row !== one)], state.part);
  if (state.beside === "before") {
    const before = partBefore(state.question, state.part);
    return [...told([one], state.part), ...(before === null ? [] : told(await pick(0, before), before))];
  }
  if (state.beside.startsWith("run ")) {
    const run = Number(state.beside.slice(4));
    const part = sameQuestion(state.part, state.question, run).length ? state.part : partNames(run).findLast((name) => sameQuestion(name, state.question, run).length);
    return [...told([one], state.part), ...(part === undefined ? [] : told(await pick(run, part), part, run))];
  }
  return told([one], state.part);
}

const partWords = (part) => (/^\d+$/.test(part) ? `iteration ${Number(part) + 1}` : part);

/** Buttons for every part in which the question was asked, with the share of right answers. */
function strip() {
  const asked = partNames().filter((part) => sameQuestion(part, state.question).length);
  if (asked.length < 2) return [];
  const buttons = asked.map((part) => {
    const rows = sameQuestion(part, state.question);
    const right = rows.filter((row) => !wrong(row)).length;
    const button = make("button", { type: "button", className: part === state.part ? "" : "quiet" }, `${partWords(part)}: ${right}/${rows.length}`);
    button.addEventListener("click", () => choosePart(part));
    return button;
  });
  return [make("div", { className: "strip", role: "group", ariaLabel: "The same question over iterations" }, ...buttons)];
}

async function show(question, sample) {
  Object.assign(state, { question, sample });
  fill(byId("beside"), besides(), state.beside);
  state.beside = byId("beside").value;
  remember();
  const shown = await chosenRollouts();
  const numbers = shown.length ? numbersOf(shown[0][0]) : [];
  if (!numbers.some(([key]) => key === state.key)) state.key = numbers[0]?.[0] ?? "";
  fill(byId("number"), numbers, state.key);
  byId("number").parentElement.hidden = !numbers.length;
  const most = state.key ? scaleOf(shown.map(([row]) => row), state.key) : 0;
  drawLegend(byId("legend"), state.key, most);
  const cards = shown.map(([row, title]) => drawRollout(row, { key: state.key, most, title }));
  byId("shown").replaceChildren(...cards);
  cards[0]?.querySelector("h3")?.after(...strip());
  drawList();
}

async function choosePart(part) {
  if (!(part in parts())) return;
  state.part = part;
  byId("part").value = part;
  draw();
  const rows = drawList();
  const same = sameQuestion(part, state.question);
  const row = same.find((each) => each.sample === state.sample) ?? same[0] ?? rows[0] ?? parts()[part].rollouts[0];
  if (row) await show(row.question_id, row.sample);
}

function draw() {
  drawReports(byId("report"), state.runs);
  byId("curves").parentElement.hidden = !state.runs.some((run) => run.metrics.length);
  const events = state.runs[0].events ?? [];
  drawCurves(byId("curves"), state.runs.map((run) => run.metrics), {
    chosen: /^\d+$/.test(state.part) ? Number(state.part) : -1,
    alarms: events.map((event) => event.iteration - 1),
    choose: (iteration) => choosePart(nearest(iteration)),
  });
  byId("events").textContent = events.map((event) => `Collapse at iteration ${event.iteration}: ${event.signs.join("; ")}.`).join(" ");
}

const nearest = (iteration) => partNames().reduce((best, name) => (Math.abs(Number(name) - iteration) < Math.abs(Number(best) - iteration) ? name : best));

/** Take what the run has written since the page was drawn. */
async function follow() {
  const latest = state.part === partNames().at(-1);
  const told = await Promise.all(state.names.map((_, run) => overviewOf(run, partNames(run)).catch(() => null)));
  told.forEach((each, run) => each && (state.runs[run] = { ...each, parts: { ...parts(run), ...each.parts } }));
  drawReports(byId("report"), state.runs);
  const names = partNames();
  if (names.length !== byId("part").options.length) {
    fill(byId("part"), names.map((name) => [name, partWords(name)]), state.part);
    if (latest) await choosePart(names.at(-1));
    else draw();
  }
}

async function begin() {
  state.names = await runNames();
  state.runs = await Promise.all(state.names.map((_, run) => overviewOf(run)));
  byId("run").textContent = state.names.join("  and, dashed,  ");
  document.title = `${state.names.join(", ")} \u00b7 medagent view`;
  const given = Object.fromEntries(new URLSearchParams(location.hash.slice(1)));
  Object.assign(state, given, { sample: Number(given.sample ?? 0) });
  const names = partNames();
  if (!(state.order in ORDERS)) state.order = "sampled";
  fill(byId("order"), Object.entries(ORDERS).map(([value, [text]]) => [value, text]), state.order);
  if (!(state.part in parts())) state.part = names.at(/^\d+$/.test(names[0]) ? -1 : 0) ?? "";
  fill(byId("part"), names.map((name) => [name, partWords(name)]), state.part);
  byId("part").addEventListener("change", (event) => choosePart(event.target.value));
  for (const id of ["filter", "order"]) byId(id).addEventListener("change", (event) => ((state[id] = event.target.value), drawList(), remember()));
  byId("find").addEventListener("input", drawList);
  byId("number").addEventListener("change", (event) => ((state.key = event.target.value), show(state.question, state.sample)));
  byId("beside").addEventListener("change", (event) => ((state.beside = event.target.value), show(state.question, state.sample)));
  watchTokens(byId("shown"), byId("values"));
  byId("rollouts").addEventListener("keydown", (event) => {
    const item = { ArrowDown: "nextElementSibling", ArrowUp: "previousElementSibling" }[event.key];
    const next = item && event.target.closest("li")?.[item]?.querySelector("button");
    if (next) (next.focus(), event.preventDefault());
  });
  if (state.part) await choosePart(state.part);
  else {
    draw();
    byId("count").textContent = "There are no rollouts here. RolloutRecords writes those of a training.";
  }
  if (isLive()) setInterval(follow, EVERY_MS);
}

window.addEventListener("unhandledrejection", ({ reason }) => {
  byId("count").textContent = `The run cannot be read: ${reason.message}`;
});
begin();
