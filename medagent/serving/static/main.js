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

/** What a browser keeps, or undefined where it keeps nothing: the page works without. */
function kept(read) {
  try {
    return read();
  } catch {
    return undefined;
  }
}

function remember() {
  const records = entries.filter((entry) => entry !== running?.entry).map((entry) => entry.record);
  kept(() => sessionStorage.setItem(KEPT, JSON.stringify(records.slice(-LONGEST_HISTORY))));
}

function show(entry) {
  shown = entry;
  byId("entry").replaceChildren(entry ? entry.element : empty);
  byId("history").hidden = entries.length === 0;
  byId("asked").replaceChildren(
    ...entries.toReversed().map((each) => {
      const button = make("button", { type: "button", aria: { current: String(each === shown) } }, each.record.question);
      button.addEventListener("click", () => {
        show(each);
        byId("entry").focus();
      });
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
  if (running) return;
  start({ question, options });
  byId("stop").focus();
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
  if (focused) (runs ? stop : byId("question")).focus();
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
  else start({ question, options });
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

setTheme(kept(() => localStorage.getItem("medagent-theme")) ?? "");
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
for (const record of kept(() => JSON.parse(sessionStorage.getItem(KEPT))) ?? []) newEntry(record);
show(entries.at(-1) ?? null);
introduce();
