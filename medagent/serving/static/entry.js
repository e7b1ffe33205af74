// One question on the page: its steps as they come, its answer card, or what went wrong.

import { answerCard, openPassage, passageButton, shortened } from "./card.js";
import { make } from "./dom.js";

const SLOW_MS = 15000;

export class Entry {
  /** `record`: {question, options, turns, answer, failure, stopped}, which is what a tab keeps. `act`: see `answerCard`. */
  constructor(record, act) {
    this.record = record;
    this.act = act;
    this.status = make("p", { className: "status", role: "status" });
    this.turns = make("ol", { className: "turns", aria: { label: "Steps" } });
    this.count = make("summary", {}, "Steps");
    this.steps = make("details", { className: "steps", open: true, hidden: true }, this.count, this.turns);
    this.options = make("ol", { className: "choices" });
    this.end = make("div");
    this.element = make("article", {}, make("h2", { dir: "auto" }, record.question), this.options, this.status, this.end, this.steps);
    for (const [index, option] of record.options.entries())
      this.options.append(make("li", { dir: "auto" }, `(${"ABCDEFGHIJ"[index]}) ${option}`));
    for (const turn of record.turns) this.showTurn(turn);
    if (record.answer) this.showAnswer();
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
    this.say(`Searched ${times(this.searches)}; thinking on.`, { working: true });
  }

  get searches() {
    return this.record.turns.filter((each) => each.query !== null).length;
  }

  showTurn(turn) {
    const item = make("li");
    if (turn.thought)
      item.append(make("details", {}, make("summary", {}, "Thinking"), make("p", { dir: "auto" }, turn.thought)));
    if (turn.query !== null) {
      item.append(make("p", { dir: "auto" }, "Searched: ", make("span", { className: "query" }, turn.query)));
      for (const [word, near] of Object.entries(turn.replaced ?? {}))
        item.append(make("p", { className: "hint", dir: "auto" }, `No passage has "${word}". Searched for: ${near.join(", ")}.`));
    }
    const calls = turn.calls ?? []; // records of earlier versions have none
    for (const call of calls)
      item.append(make("p", { dir: "auto" }, "Called: ", make("span", { className: "query" }, `${call.name} ${JSON.stringify(call.arguments)}`), call.error ? `: ${call.error}` : ""));
    if (turn.query !== null || calls.length) {
      const list = make("ul", { className: "passages" });
      for (const found of turn.passages) {
        const score = `score ${found.score.toFixed(3)}`;
        const open = () => openPassage(this.cited(found.number) ?? found, this.note);
        list.append(make("li", { dataset: { number: found.number } }, passageButton(found, shortened(found.passage.text), open, score)));
      }
      item.append(turn.passages.length ? list : make("p", { className: "hint" }, "Nothing was found."));
    }
    if (item.childElementCount) this.turns.append(item);
    this.steps.hidden = !this.turns.childElementCount;
  }

  get note() {
    return this.record.answer ? "The answer does not cite this passage." : "There is no answer that could cite it.";
  }

  cited(number) {
    return this.record.answer?.sources.find((source) => source.number === number);
  }

  answer(answer, seconds) {
    this.record.answer = answer;
    this.record.seconds = seconds;
    this.showAnswer();
    this.end.scrollIntoView({ block: "nearest" });
  }

  /** The card comes first; the steps are folded below it, with the passages that it does not cite lighter. */
  showAnswer() {
    const { answer, seconds, where } = this.record;
    const limited = where ? ` Only passages with ${where} were searched.` : "";
    this.say(`${seconds >= 0.05 ? `Answered in ${seconds.toFixed(1)} s.` : "Answered."}${limited}`);
    this.end.replaceChildren(answerCard(this.record, this.act));
    for (const [index, item] of [...this.options.children].entries())
      item.classList.toggle("chosen", "ABCDEFGHIJ"[index] === answer.letter);
    const shown = this.turns.querySelectorAll("li[data-number]");
    for (const item of shown) item.classList.toggle("uncited", !this.cited(Number(item.dataset.number)));
    this.count.textContent = `How it searched: ${times(this.searches)}, ${shown.length} passages read`;
    this.steps.open = false;
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
    const again = this.again();
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
    this.end.replaceChildren(make("div", { className: "actions" }, this.again()));
  }

  again() {
    const button = make("button", { type: "button", className: "quiet" }, "Ask again");
    button.addEventListener("click", () => this.act.retry(this.record));
    return button;
  }
}

const times = (count) => (count === 1 ? "once" : `${count} times`);

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
