// The page: what is asked, what runs, and what this tab remembers.

import { byId, make } from "./dom.js";
import { Entry } from "./entry.js";
import { asMarkdown, toClipboard } from "./markdown.js";
import { about, ask, Failure, keepToken } from "./stream.js";

const KEPT = "medagent-history";
const LONGEST_HISTORY = 50;
const entries = []; // newest last
const empty = byId("empty"); // shown while there is no entry
let shown = null;
let running = null; // {entry, stopper}

function remember() {
  const records = entries.filter((entry) => entry !== running?.entry).map((entry) => entry.record);
  try {
    sessionStorage.setItem(KEPT, JSON.stringify(records.slice(-LONGEST_HISTORY)));
  } catch {
    sessionStorage.removeItem(KEPT); // full: the tab still has them until it is loaded again
  }
}

function show(entry) {
  shown = entry;
  byId("entry").replaceChildren(entry ? entry.element : empty);
  byId("history").hidden = entries.length === 0;
  byId("asked").replaceChildren(
    ...entries.toReversed().map((each) => {
      const button = make("button", { type: "button", aria: { current: String(each === shown) } }, each.record.question);
      button.addEventListener("click", () => show(each));
      return make("li", {}, button);
    }),
  );
}

function newEntry(record) {
  const entry = new Entry(record, { retry: again, copy: (each) => toClipboard(asMarkdown(each)) });
  entries.push(entry);
  return entry;
}

function again({ question, options }) {
  if (!running) start({ question, options });
}

async function start({ question, options }) {
  const entry = newEntry({ question, options, turns: [], answer: null, failure: null, stopped: false });
  const stopper = new AbortController();
  running = { entry, stopper };
  setRunning(true);
  show(entry);
  entry.element.scrollIntoView({ block: "nearest" });
  entry.say("Thinking.", { working: true });
  const began = performance.now();
  const tell = (kind, data) => {
    if (kind === "waiting") entry.waits(data);
    else if (kind === "turn") entry.turn(data);
    else if (kind === "answer") entry.answer(data, (performance.now() - began) / 1000);
  };
  let access = false;
  try {
    await ask({ question, options }, { signal: stopper.signal, tell });
  } catch (error) {
    if (error.name === "AbortError") entry.stops();
    else if (error instanceof Failure) {
      entry.fails({ message: error.message, status: error.status, retryAfter: error.retryAfter });
      access = error.status === 401;
    } else throw error;
  } finally {
    running = null;
    setRunning(false);
    remember();
  }
  if (access) askForToken();
}

function setRunning(runs) {
  const stop = byId("stop");
  const focused = document.activeElement === stop || document.activeElement === byId("send");
  byId("send").disabled = runs;
  stop.hidden = !runs;
  if (focused) (runs ? stop : byId("question")).focus();
}

function askForToken() {
  const dialog = byId("access");
  dialog.returnValue = "";
  dialog.addEventListener(
    "close",
    () => {
      if (dialog.returnValue !== "ok") return;
      keepToken(byId("token").value);
      byId("token").value = "";
      introduce();
      if (shown) again(shown.record);
    },
    { once: true },
  );
  dialog.showModal();
}

function submit(event) {
  event.preventDefault();
  if (running) return;
  const question = byId("question").value.trim();
  const options = byId("options").value.split("\n").map((line) => line.trim()).filter(Boolean);
  const wrong = question ? (options.length > 10 ? `Found ${options.length} options; at most 10 can be given.` : "") : "Write a question first.";
  byId("wrong").textContent = wrong;
  byId("wrong").hidden = !wrong;
  if (wrong) byId(question ? "options" : "question").focus();
  else start({ question, options });
}

function setTheme(theme) {
  if (theme) document.documentElement.dataset.theme = theme;
  const dark = theme ? theme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
  byId("theme").textContent = dark ? "Light colours" : "Dark colours";
  byId("theme").onclick = () => {
    const next = dark ? "light" : "dark";
    localStorage.setItem("medagent-theme", next);
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
    byId("wrong").textContent = error.message;
    byId("wrong").hidden = false;
    return;
  }
  document.title = agent.name;
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
  const list = empty.querySelector("#examples");
  list.replaceChildren(...(examples.length ? [make("h3", {}, "For example"), ...examples] : []));
}

setTheme(localStorage.getItem("medagent-theme") ?? "");
byId("ask").addEventListener("submit", submit);
byId("question").addEventListener("keydown", (event) => {
  if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
  event.preventDefault();
  byId("ask").requestSubmit();
});
byId("stop").addEventListener("click", () => running?.stopper.abort());
document.addEventListener("keydown", (event) => {
  if (event.key === "Escape" && !document.querySelector("dialog[open]")) running?.stopper.abort();
});
byId("forget").addEventListener("click", () => {
  entries.splice(0, entries.length, ...(running ? [running.entry] : []));
  remember();
  show(running?.entry ?? null);
  byId("question").focus();
});
for (const record of JSON.parse(sessionStorage.getItem(KEPT) ?? "[]")) newEntry(record);
show(entries.at(-1) ?? null);
introduce();
