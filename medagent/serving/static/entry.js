// One question on the page: its turns as they come, its answer, or what went wrong.

import { byId, cut, heading, make, origin, pieces } from "./dom.js";

const STOPPED = {
  max_turns: "It used all its turns without an answer.",
  max_turn_tokens: "It wrote more than a turn may have.",
  max_total_tokens: "The dialogue became too long.",
  malformed: "It ended without a search or an answer.",
};
const SLOW_MS = 15000;

/** Show a passage, with a stretch of its text marked where one is given. */
export function openPassage({ number, passage, sentence }, answered) {
  byId("passage-title").textContent = `[${number}] ${heading(passage)}`;
  byId("passage-source").textContent = origin(passage);
  const [before, marked, after] = sentence ? cut(passage.text, sentence) : [passage.text, "", ""];
  const mark = make("mark", {}, marked);
  byId("passage-text").replaceChildren(before, ...(marked ? [mark] : []), after);
  byId("passage-note").textContent = marked
    ? "Marked: the sentence that shares most words with the answer. Whether it supports the claim is for you to judge."
    : answered
      ? "The answer does not cite this passage."
      : "There is no answer that could cite it.";
  byId("passage").showModal();
  if (marked) mark.scrollIntoView({ block: "nearest" });
}

const shortened = (text) => (text.length > 160 ? `${Array.from(text).slice(0, 157).join("")}...` : text);

export class Entry {
  /** `record`: {question, options, turns, answer, failure, stopped}, which is what a tab keeps. `act`: {retry, copy}. */
  constructor(record, act) {
    this.record = record;
    this.act = act;
    this.status = make("p", { className: "status", role: "status" });
    this.turns = make("ol", { className: "turns", aria: { label: "Steps" } });
    this.options = make("ol", { className: "choices" });
    this.end = make("div");
    this.element = make("article", {}, make("h2", {}, record.question), this.options, this.status, this.turns, this.end);
    for (const [index, option] of record.options.entries())
      this.options.append(make("li", {}, `(${"ABCDEFGHIJ"[index]}) ${option}`));
    for (const turn of record.turns) this.showTurn(turn);
    if (record.answer) this.showAnswer(record.answer);
    else if (record.failure) this.showFailure(record.failure);
    else if (record.stopped) this.showStopped();
  }

  /** Say what is going on; after a while without news, that it takes long. */
  say(text, { working = false } = {}) {
    clearTimeout(this.slow);
    this.status.textContent = text;
    this.status.classList.toggle("working", working);
    if (working)
      this.slow = setTimeout(() => {
        this.status.textContent = `${text} It takes longer than usual; you can stop it and ask again.`;
      }, SLOW_MS);
  }

  waits({ ahead }) {
    this.say(`Waiting for a free place: ${ahead} ${ahead === 1 ? "question is" : "questions are"} before yours.`, { working: true });
  }

  turn(turn) {
    this.record.turns.push(turn);
    this.showTurn(turn);
    const count = this.record.turns.filter((each) => each.query !== null).length;
    this.say(`Searched ${count === 1 ? "once" : `${count} times`}; thinking on.`, { working: true });
  }

  showTurn(turn) {
    const item = make("li");
    if (turn.thought)
      item.append(make("details", {}, make("summary", {}, "Thinking"), make("p", {}, turn.thought)));
    if (turn.query !== null) {
      item.append(make("p", {}, "Searched: ", make("span", { className: "query" }, turn.query)));
      const list = make("ul", { className: "passages" });
      for (const found of turn.passages) {
        list.append(make("li", {}, this.passageButton(found, shortened(found.passage.text), `score ${found.score.toFixed(3)}`)));
      }
      item.append(turn.passages.length ? list : make("p", { className: "hint" }, "Nothing was found."));
    }
    if (item.childElementCount) this.turns.append(item);
  }

  passageButton(found, said, more = "") {
    const about = [found.passage.source, found.passage.year, more].filter(Boolean).join(" · ");
    const button = make(
      "button",
      { type: "button" },
      make("span", { className: "number" }, `[${found.number}] `),
      make("span", { className: "query" }, heading(found.passage)),
      make("span", { className: "snippet" }, said),
      make("span", { className: "about" }, about),
    );
    button.addEventListener("click", () => openPassage(this.cited(found.number) ?? found, this.record.answer !== null));
    return button;
  }

  cited(number) {
    return this.record.answer?.sources.find((source) => source.number === number);
  }

  answer(answer, seconds) {
    this.record.answer = answer;
    this.record.seconds = seconds;
    this.showAnswer(answer);
    this.end.scrollIntoView({ block: "nearest" });
  }

  showAnswer(answer) {
    const { seconds } = this.record;
    this.say(seconds ? `Answered in ${seconds.toFixed(1)} s.` : "Answered.");
    const box = make("div", { className: "answer" }, make("h3", {}, "Answer"));
    if (answer.text) {
      const text = make("p", { className: "text" });
      for (const piece of pieces(answer.text)) text.append(typeof piece === "number" ? this.citation(piece) : piece);
      box.append(text);
    } else box.append(make("p", {}, `No answer. ${STOPPED[answer.stop_reason] ?? ""}`));
    this.mark(answer.letter);
    if (answer.sources.length) {
      const list = make("ul", { className: "sources" });
      for (const source of answer.sources)
        list.append(make("li", {}, this.passageButton(source, `\u201c${cut(source.passage.text, source.sentence)[1].trim()}\u201d`)));
      box.append(make("h3", {}, "Cited passages"), list);
    } else if (answer.text)
      box.append(make("p", { className: "unsupported" }, "It cites no passage: treat the answer as unsupported."));
    if (answer.removed_citations)
      box.append(make("p", { className: "hint" }, `Citations taken out because no such passage was shown: ${answer.removed_citations}.`));
    if (answer.confidence !== null)
      box.append(make("p", { className: "hint" }, `Confidence ${Math.round(answer.confidence * 100)}%: how sure the model was of its wording, not how likely it is right.`));
    box.append(make("p", { className: "hint" }, answer.notice));
    const copied = make("span", { className: "hint", role: "status" });
    const copy = this.button("Copy as Markdown", async () => {
      copied.textContent = (await this.act.copy(this.record)) ? "Copied." : "The browser does not allow copying here.";
    });
    box.append(make("div", { className: "actions" }, copy, this.button("Ask again", this.act.retry), copied));
    this.end.replaceChildren(box);
  }

  citation(number) {
    const source = this.cited(number);
    const label = `Passage ${number}: ${heading(source.passage)}`;
    const button = make("button", { type: "button", className: "cite", aria: { label } }, `${number}`);
    button.addEventListener("click", () => openPassage(source));
    return button;
  }

  mark(letter) {
    for (const [index, item] of [...this.options.children].entries())
      item.classList.toggle("chosen", "ABCDEFGHIJ"[index] === letter);
  }

  /** `failure`: {message, status, retryAfter}; asking again is offered once the service may have room. */
  fails(failure) {
    this.record.failure = failure;
    this.showFailure(failure);
    this.end.scrollIntoView({ block: "nearest" });
  }

  showFailure({ message, status, retryAfter }) {
    this.say("");
    const title = { 0: "No connection", 401: "Access refused", 429: "Too many questions just now", 503: "The corpus cannot be searched", 504: "It took too long" }[status] ?? "No answer";
    const again = this.button("Ask again", this.act.retry);
    this.end.replaceChildren(
      make("div", { className: "failure", role: "alert" }, make("h3", {}, title), make("p", {}, message)),
      make("div", { className: "actions" }, again),
    );
    if (retryAfter) countDown(again, retryAfter);
  }

  stops() {
    this.record.stopped = true;
    this.showStopped();
  }

  showStopped() {
    this.say("Stopped. The agent no longer works on it.");
    this.end.replaceChildren(make("div", { className: "actions" }, this.button("Ask again", this.act.retry)));
  }

  button(text, action) {
    const button = make("button", { type: "button", className: "quiet" }, text);
    button.addEventListener("click", () => action(this.record));
    return button;
  }
}

function countDown(button, seconds) {
  const text = button.textContent;
  button.disabled = seconds > 0;
  button.textContent = seconds > 0 ? `${text} (in ${seconds} s)` : text;
  if (seconds > 0)
    setTimeout(() => {
      button.textContent = text;
      countDown(button, seconds - 1);
    }, 1000);
}
