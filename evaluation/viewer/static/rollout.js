// One rollout: its turns as cards, its tokens coloured by one of the trainer's numbers.
import { heading, make } from "./service/dom.js";
import { plain } from "./curves.js";

// key -> words, how it is read, what orange means, and the value that has no colour where it is not 0
const TOKENS = {
  ratio: ["importance weight", (n, at) => n.ratio[at], "likelier than when it was sampled", 1],
  token_ratio: ["the token's own ratio", (n, at) => Math.exp(n.logprob[at] - n.old_logprob[at]), "likelier than when it was sampled", 1],
  advantage: ["advantage", (n, at) => n.advantage[at], "better than expected"],
  clipped: ["clipped", (n, at) => n.clipped[at], "above the trust range: the gradient is dropped"],
  value: ["value before the token", (n, at) => n.value[at], "the critic expects a reward"],
  entropy: ["entropy", (n, at) => n.entropy[at], "the policy was undecided"],
  kl: ["KL to the reference", (n, at) => n.kl[at], "far from the start"],
  logprob: ["log-prob", (n, at) => n.logprob[at], "likely"],
  sampler_gap: ["trainer's less sampler's log-prob", (n, at) => n.old_logprob[at] - n.rollout_logprob[at], "likelier to the trainer"],
  weight: ["weight in the loss", (n, at) => n.weight[at], "counts more"],
};
const INVISIBLE = /[\u200b-\u200f\u202a-\u202e\u2060-\u2069\ufeff]/g;
const FLOORS = { ratio: 0.01, token_ratio: 0.01, sampler_gap: 0.01, kl: 0.01 }; // below them a colour would show rounding
const LONG = 400; // characters of a token or of a passage's summary

/** The numbers that a rollout has, as [key, words]. */
export function numbersOf(rollout) {
  const has = rollout.turns.find((turn) => turn.numbers?.ratio)?.numbers ?? {};
  return Object.entries(TOKENS).filter(([key]) => has.ratio && (key in has || key === "token_ratio" || key === "sampler_gap")).map(([key, [words]]) => [key, words]);
}

/** Text in which marks that nobody sees, such as those that turn the direction, are written out. */
const visible = (text) => text.replace(INVISIBLE, (mark) => `\u27e8U+${mark.codePointAt(0).toString(16).toUpperCase().padStart(4, "0")}\u27e9`);
const shown = (key, numbers, at) => TOKENS[key][1](numbers, at) - (TOKENS[key][3] ?? 0);
const short = (text) => (text.length > LONG ? `${text.slice(0, LONG)} \u2026 (${text.length} characters)` : text);

/** The largest size of a number over the rollouts that are shown. */
export function scaleOf(rollouts, key) {
  let most = FLOORS[key] ?? 0;
  for (const { turns } of rollouts)
    for (const { numbers } of turns)
      for (let at = 0; at < (numbers?.ratio?.length ?? 0); at++) {
        const value = shown(key, numbers, at);
        if (Number.isFinite(value)) most = Math.max(most, Math.abs(value));
      }
  return most;
}

const shade = (value, most) => {
  const step = most && Number.isFinite(value) ? Math.ceil((Math.abs(value) / most) * 3 - 0.15) : 0;
  return step > 0 ? `${value > 0 ? "p" : "m"}${Math.min(3, step)}` : "";
};

/** What the colours mean. */
export function drawLegend(place, key, most) {
  if (!key) return place.replaceChildren("The trainer's numbers were not recorded for this rollout.");
  const signed = !["entropy", "kl", "weight"].includes(key);
  const zero = TOKENS[key][3] ?? 0;
  const steps = key === "clipped" ? [-3, 3] : (signed ? [-3, -2, -1] : []).concat([1, 2, 3]);
  const marks = steps.map((step) => {
    const from = ((Math.abs(step) - 0.85) / 3) * most * Math.sign(step);
    return make("span", { className: step > 0 ? `p${step}` : `m${-step}` }, key === "clipped" ? `clipped ${step < 0 ? "below" : "above"} the range` : `${step < 0 ? "below" : "above"} ${zero ? (zero + from).toPrecision(4) : plain(from)}`);
  });
  const [words, , meaning] = TOKENS[key];
  place.replaceChildren(make("b", {}, words), ...marks, `Orange: ${meaning}. Underlined: clipped. Struck through: not in the loss.`);
}

const written = (value) => (Number.isFinite(value) ? Number(value.toPrecision(9)) : "not finite");

/** All numbers of a token, a line each. */
function valuesOf(turn, at) {
  const told = Object.entries(TOKENS).filter(([key]) => key in turn.numbers || ["token_ratio", "sampler_gap"].includes(key));
  const lines = told.map(([key, [words, read]]) => `${words.padEnd(34)} ${written(read(turn.numbers, at))}`);
  return [`${JSON.stringify(visible(short(turn.token_texts[at])))}, token ${at + 1} of the turn`, ...lines].join("\n");
}

function tokens(turn, key, most) {
  const line = make("p", { className: "tokens", dir: "auto", tabIndex: 0 });
  if (turn.given) line.append(make("span", { className: "given", title: "written by the environment" }, visible(short(turn.given))));
  turn.token_texts.forEach((text, at) => {
    const n = turn.numbers.ratio ? turn.numbers : null;
    const classes = [key && n ? shade(shown(key, n, at), most) : "", n?.clipped[at] ? "clipped" : "", n && !n.counts[at] ? "uncounted" : ""];
    line.append(make("span", { className: classes.filter(Boolean).join(" "), dataset: n ? { at } : {} }, visible(short(text))));
  });
  return line;
}

/** Show a token's numbers beside it, for the pointer and, by the arrow keys, for the keyboard. */
export function watchTokens(place, box) {
  const show = (mark) => {
    const turn = mark?.closest(".turn")?.told;
    box.hidden = !turn || mark.dataset.at === undefined;
    if (box.hidden) return;
    box.textContent = valuesOf(turn, Number(mark.dataset.at));
    const { left, bottom, top } = mark.getBoundingClientRect();
    const below = bottom + box.offsetHeight + 8 < innerHeight;
    box.style.left = `${Math.max(4, Math.min(left, innerWidth - box.offsetWidth - 8))}px`;
    box.style.top = `${below ? bottom + 4 : Math.max(4, top - box.offsetHeight - 4)}px`;
  };
  place.addEventListener("pointerover", (event) => show(event.target.closest(".tokens > span")));
  place.addEventListener("pointerleave", () => show(null));
  place.addEventListener("focusout", () => show(null));
  place.addEventListener("keydown", (event) => {
    const line = event.target.closest?.(".tokens");
    const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
    if (!line || !step) return void (event.key === "Escape" && show(null));
    const marks = [...line.querySelectorAll("[data-at]")];
    line.at = Math.max(0, Math.min(marks.length - 1, (line.at ?? -1) + step));
    show(marks[line.at]);
    event.preventDefault();
  });
}

const mean = (numbers) => (numbers.length ? numbers.reduce((sum, each) => sum + each, 0) / numbers.length : NaN);

function turnFigures(turn) {
  const n = turn.numbers ?? {};
  const told = [`${turn.tokens} tokens`];
  if (turn.reward) told.push(`reward ${plain(turn.reward)}`);
  if (n.ratio?.length) {
    const clipped = n.clipped.filter((side, at) => side && n.counts[at]).length;
    const same = n.ratio.every((each) => each === n.ratio[0]);
    told.push(same ? `weight ${plain(n.ratio[0])}` : `mean weight ${plain(mean(n.ratio))}`, `advantage ${plain(mean(n.advantage))}`);
    if (clipped) told.push(`${clipped} clipped`);
  }
  return told.join(" · ");
}

function passage(hit, gold, number) {
  const mark = gold.includes(hit.id) ? [make("span", { className: "good" }, "gold "), ""] : [];
  return folded([`[${number}] `, ...mark, visible(short(heading(hit))), make("span", { className: "hint" }, ` score ${plain(hit.score)}`)], hit.text);
}

/** A text that is drawn when its summary is opened. */
function folded(summary, text) {
  const details = make("details", { className: "passage" }, make("summary", {}, ...summary));
  details.addEventListener("toggle", () => details.open && !details.querySelector("p") && details.append(make("p", { dir: "auto", tabIndex: 0 }, visible(text))), { once: true });
  return details;
}

const KINDS = (turn, last, answer) => (turn.query !== null && turn.query !== undefined ? "searches" : turn.calls?.length ? `calls ${turn.calls.map((call) => call.name).join(", ")}` : last && answer !== null ? "answers" : "says");

/** A rollout as a card. */
export function drawRollout(rollout, { key, most, title }) {
  const options = Object.entries(rollout.options ?? {}).map(([letter, text]) => `(${letter}) ${text}`);
  const right = rollout.verdict === "correct";
  const reward = rollout.reward + rollout.turns.reduce((sum, turn) => sum + (turn.reward ?? 0), 0);
  const card = make("article", { className: "card" });
  card.append(make("p", { className: "hint" }, title), make("h3", { dir: "auto" }, visible(short(rollout.question))));
  if (options.length) card.append(make("p", { className: "hint", dir: "auto" }, visible(short(options.join("; ")))));
  const figures = [rollout.mode === undefined ? `reward ${plain(reward)}` : "", `stopped: ${rollout.stop_reason}`, rollout.gold ? `right: ${short(rollout.gold)}` : ""];
  if (rollout.clip_bias_scale) figures.push(`correction's scale ${plain(rollout.clip_bias_scale)}`);
  card.append(make("p", {}, make("span", { className: right ? "good" : "bad" }, rollout.verdict), ` · ${figures.filter(Boolean).join(" · ")}`));
  if (rollout.error) card.append(make("p", { className: "wrong" }, visible(short(rollout.error))));
  if (rollout.prompt) card.append(folded([make("span", {}, "Prompt, as the model read it")], rollout.prompt));
  let number = 0;
  rollout.turns.forEach((turn, place) => {
    const kind = KINDS(turn, place === rollout.turns.length - 1, rollout.answer);
    const section = make("div", { className: "turn" });
    section.told = turn;
    section.append(make("h4", {}, `Turn ${place + 1} ${kind}`), make("p", { className: "figures" }, turnFigures(turn)));
    section.append(turn.token_texts ? tokens(turn, key, most) : make("p", { className: "tokens", dir: "auto" }, visible(turn.text)));
    if (kind === "searches" && !turn.passages.length) section.append(make("p", { className: "wrong" }, "The search found no passage."));
    for (const hit of turn.passages) section.append(passage(hit, rollout.gold_passage_ids ?? [], ++number));
    card.append(section);
  });
  return card;
}
