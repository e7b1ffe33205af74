// The page: what is asked, what runs, and what this tab remembers.

import { byId, make } from "./dom.js";
import { bindPassageToHistory } from "./card.js";
import { Entry } from "./entry.js";
import { asMarkdown, save, sessionAsMarkdown, toClipboard } from "./markdown.js";
import { about, ask, Failure, keepToken, report } from "./stream.js";

const KEPT = "medagent-history";
const LONGEST_HISTORY = 50;
const SEARCHABLE_HISTORY = 6; // entries from which a list wants a search
const entries = []; // newest last
const empty = byId("empty"); // shown while there is no entry
let shown = null;
let running = null; // {entry, stopper}
let leaving = false; // the page is about to go, and what ends now was not ended by anyone
let keepsReports = false;

/** What a browser keeps, or undefined where it keeps nothing: the page works without. */
function kept(read) {
  try {
    return read();
  } catch {
    return undefined;
  }
}

function remember() {
  if (leaving) return;
  const records = entries.map((entry) => ({ ...entry.record, running: entry === running?.entry }));
  kept(() => sessionStorage.setItem(KEPT, JSON.stringify(records.slice(-LONGEST_HISTORY))));
}

function show(entry) {
  shown = entry;
  byId("entry").replaceChildren(entry ? entry.element : empty);
  byId("history").hidden = entries.length === 0;
  byId("find").hidden = entries.length < SEARCHABLE_HISTORY;
  const wanted = byId("find").hidden ? "" : byId("find").value.trim().toLowerCase();
  const found = entries.filter(({ record }) => `${record.question} ${record.answer?.text ?? ""}`.toLowerCase().includes(wanted));
  byId("asked").replaceChildren(
    ...found.toReversed().map((each) => {
      const button = make("button", { type: "button", dir: "auto", aria: { current: String(each === shown) } }, make("span", {}, each.record.question));
      button.addEventListener("click", () => {
        show(each);
        byId("entry").focus();
      });
      return make("li", {}, button);
    }),
  );
}

function newEntry(record) {
  const entry = new Entry(record, { retry: again, ask: again, copy: (each) => toClipboard(asMarkdown(each)), report: keepsReports ? report : null });
  entries.push(entry);
  return entry;
}

function again({ question, options, where }) {
  if (running) return;
  start({ question, options, where });
  byId("stop").focus();
}

async function start({ question, options, where = "" }) {
  const earlier = entries.map((each) => each.record).filter((record) => record.answer && !record.options.length);
  const entry = newEntry({ question, options, where, turns: [], answer: null, failure: null, stopped: false });
  const stopper = new AbortController();
  running = { entry, stopper };
  setRunning(true);
  show(entry);
  remember(); // a reload asks it again
  entry.element.scrollIntoView({ block: "nearest" });
  entry.say("Thinking.", { working: true });
  const began = performance.now();
  const tell = (kind, data) => {
    if (kind === "waiting") entry.waits(data);
    else if (kind === "turn") entry.turn(data);
    else if (kind === "id") entry.record.id = data.id;
    else if (kind === "answer") entry.answer(data, (performance.now() - began) / 1000);
  };
  let access = false;
  try {
    const before = options.length ? [] : earlier.slice(-1).map((record) => record.answer.asked_as ?? record.question);
    await ask({ question, options, where, earlier: before }, { signal: stopper.signal, tell });
  } catch (error) {
    if (error.name === "AbortError") entry.stops();
    else if (error instanceof Failure) {
      entry.fails({ message: error.message, status: error.status, retryAfter: error.retryAfter });
      access = error.status === 401;
    } else {
      stopper.abort(); // the page does not understand the answer, and so nobody waits for it
      entry.fails({ message: `This page failed: ${error.message}`, status: 500, retryAfter: 0 });
      console.error(error);
    }
  } finally {
    running = null;
    setRunning(false);
    remember();
  }
  if (access) askForToken(entry.record);
}

function setRunning(runs) {
  const stop = byId("stop");
  const focused = document.activeElement === stop || document.activeElement === byId("send");
  byId("send").disabled = runs;
  stop.hidden = !runs;
  if (focused) (runs ? stop : byId("question")).focus({ preventScroll: true }); // the answer stays in view
}

/** Ask for a token, and then the question that was refused once more. */
function askForToken(refused) {
  const dialog = byId("access");
  dialog.returnValue = "";
  dialog.addEventListener(
    "close",
    () => {
      if (dialog.returnValue !== "ok") return;
      const kept = keepToken(byId("token").value);
      byId("token").value = "";
      say(kept ? "" : "This cannot be a token: it has characters that no token has.");
      if (!kept) return;
      introduce();
      again(refused);
    },
    { once: true },
  );
  dialog.showModal();
}

/** Below the question: what is wrong with it, or nothing. */
function say(wrong) {
  byId("wrong").textContent = wrong;
  byId("wrong").hidden = !wrong;
}

function submit(event) {
  event.preventDefault();
  if (running) return;
  const question = byId("question").value.trim();
  const options = byId("options").value.split("\n").map((line) => line.trim()).filter(Boolean);
  const wrong = question ? (options.length > 10 ? `Found ${options.length} options; at most 10 can be given.` : "") : "Write a question first.";
  say(wrong);
  if (wrong) byId(question ? "options" : "question").focus();
  else {
    start({ question, options, where: limits() });
    byId("options").value = ""; // they belong to this question alone
    byId("choice").open = false;
  }
}

/** The filter that the fields of "Limit the search" make, in the service's grammar; empty where nothing is limited. */
function limits() {
  const [source, from, to] = ["source", "year-from", "year-to"].map((id) => byId(id).value.trim());
  const quote = source.includes('"') ? "'" : '"';
  return [source && `source=${quote}${source}${quote}`, from && `year>=${from}`, to && `year<=${to}`].filter(Boolean).join(" ");
}

function setTheme(theme) {
  if (theme) document.documentElement.dataset.theme = theme;
  const dark = theme ? theme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
  byId("theme").textContent = dark ? "Light colours" : "Dark colours";
  byId("theme").onclick = () => {
    const next = dark ? "light" : "dark";
    kept(() => localStorage.setItem("medagent-theme", next));
    setTheme(next);
  };
}

/** Name, notice and examples, from the service. */
async function introduce() {
  let agent;
  try {
    agent = await about();
  } catch (error) {
    if (error.status === 401) return; // asked for with the first question
    say(error.message);
    return;
  }
  document.title = agent.name;
  keepsReports = agent.feedback;
  byId("question").maxLength = agent.max_characters;
  document.querySelector("h1").textContent = agent.name;
  const examples = agent.examples.map(({ question, options }) => {
    const button = make("button", { type: "button", className: "quiet" }, question);
    button.addEventListener("click", () => {
      byId("question").value = question;
      byId("options").value = options.join("\n");
      byId("choice").open = options.length > 0;
      byId("question").focus();
    });
    return button;
  });
  byId("coverage").textContent = covered(agent.corpus);
  byId("limits").hidden = !agent.corpus;
  byId("sources").replaceChildren(...(agent.corpus?.names ?? []).map((name) => make("option", { value: name })));
  const list = empty.querySelector("#examples");
  list.replaceChildren(...(examples.length ? [make("h3", {}, "For example"), ...examples] : []));
}

/** What the corpus holds, in a sentence; nothing where the service does not know. */
function covered(corpus) {
  if (!corpus) return "";
  const count = `${corpus.passages.toLocaleString("en")} passages`;
  const from = corpus.sources.length ? ` from ${corpus.sources.join("; ")}${corpus.more_sources ? ` and ${corpus.more_sources} more sources` : ""}` : "";
  const years = corpus.years ? `, of the years ${corpus.years[0]} to ${corpus.years[1]}` : "";
  return `The corpus has ${count}${from}${years}. What it does not hold, the agent does not answer.`;
}

setTheme(kept(() => localStorage.getItem("medagent-theme")) ?? "");
byId("ask").addEventListener("submit", submit);
byId("question").addEventListener("keydown", (event) => {
  if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
  event.preventDefault();
  byId("ask").requestSubmit();
});
byId("stop").addEventListener("click", () => running?.stopper.abort());
// Firefox breaks off what is fetched before a page goes. So the question is remembered as running before that.
addEventListener("beforeunload", () => {
  remember();
  leaving = true;
  setTimeout(() => {
    leaving = false; // it stayed: a download, or another program, was opened
    remember();
  }, 2_000);
});
document.addEventListener("keydown", (event) => {
  if (event.key === "Escape" && !document.querySelector("dialog[open]")) running?.stopper.abort();
});
byId("forget").addEventListener("click", () => {
  entries.splice(0, entries.length, ...(running ? [running.entry] : []));
  remember();
  show(running?.entry ?? null);
  byId("question").focus();
});
byId("find").addEventListener("input", () => show(shown));
byId("save-text").addEventListener("click", () => save("medagent.md", sessionAsMarkdown(entries.map((each) => each.record)), "text/markdown"));
byId("save-json").addEventListener("click", () => save("medagent.json", JSON.stringify(entries.map((each) => each.record), null, 2), "application/json"));
bindPassageToHistory();
let interrupted = null;
for (const { running: ran, ...record } of kept(() => JSON.parse(sessionStorage.getItem(KEPT))) ?? []) {
  if (ran) interrupted = record;
  else newEntry(record);
}
show(entries.at(-1) ?? null);
introduce();
if (interrupted) start(interrupted);
