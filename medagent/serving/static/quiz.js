// Study mode: one question, a try, then what is right and where the corpus says so. Wrong ones come back.

import { openPassage, passageButton } from "./card.js";
import { byId, cut, make } from "./dom.js";
import { quizQuestions, tryQuiz } from "./stream.js";

const KEPT = "medagent-quiz";
const LETTERS = "ABCDEFGHIJ";
const AGAIN_AFTER = 3; // questions until a wrong one comes back

/** The quiz of a service; `queue` are the numbers to come, which the browser keeps. */
export class Quiz {
  constructor() {
    this.score = { right: 0, tried: 0 };
  }

  /** Fetch the questions and show the first one to come. */
  async open() {
    const { questions } = await quizQuestions();
    this.questions = questions;
    const known = new Set(questions.map(({ id }) => id));
    const kept = this.kept().filter((id) => known.has(id));
    this.queue = kept.length ? kept : shuffled([...known]);
    this.next();
  }

  kept() {
    try {
      return JSON.parse(localStorage.getItem(KEPT)) ?? [];
    } catch {
      return [];
    }
  }

  keep() {
    try {
      localStorage.setItem(KEPT, JSON.stringify(this.queue));
    } catch {
      // A browser that keeps nothing begins anew the next time.
    }
  }

  next() {
    const box = byId("quiz");
    const id = this.queue[0];
    if (id === undefined) {
      box.replaceChildren(make("h2", {}, "Study"), make("p", {}, `All questions are answered rightly. ${this.told()}`));
      return;
    }
    const { question, options } = this.questions.find((each) => each.id === id);
    const choices = make("div", { className: "examples" });
    for (const [index, option] of options.entries()) {
      const button = make("button", { type: "button", className: "quiet", dir: "auto" }, `(${LETTERS[index]}) ${option}`);
      button.addEventListener("click", () => this.try(id, LETTERS[index], choices));
      choices.append(button);
    }
    this.result = make("div", { role: "status", className: "result" });
    this.tally = make("p", { className: "hint" }, this.told());
    box.replaceChildren(make("h2", { dir: "auto" }, question), choices, this.result, this.tally);
    choices.firstElementChild.focus();
  }

  told() {
    return `Right: ${this.score.right} of ${this.score.tried}. To come: ${this.queue.length}.`;
  }

  async try(id, letter, choices) {
    const buttons = [...choices.children];
    for (const button of buttons) button.disabled = true;
    let found;
    try {
      found = await tryQuiz(id, letter);
    } catch (error) {
      for (const button of buttons) button.disabled = false;
      this.result.replaceChildren(make("p", { className: "wrong" }, error.message));
      return;
    }
    this.score.tried += 1;
    this.score.right += Number(found.right);
    this.queue.shift();
    if (!found.right) this.queue.splice(Math.min(AGAIN_AFTER, this.queue.length), 0, id);
    this.keep();
    this.tally.textContent = this.told();
    buttons[LETTERS.indexOf(found.answer)].classList.add("right");
    if (!found.right) buttons[LETTERS.indexOf(letter)].classList.add("not-right");
    const list = make("ul", { className: "sources", aria: { label: "Evidence" } });
    for (const source of found.evidence) {
      const quoted = `\u201c${cut(source.passage.text, source.sentence)[1].trim()}\u201d`;
      list.append(make("li", {}, passageButton(source, quoted, () => openPassage(source))));
    }
    const next = make("button", { type: "button" }, "Next question");
    next.addEventListener("click", () => this.next());
    this.result.replaceChildren(
      make("p", { className: `verdict ${found.right ? "stated" : "partly"}` }, found.right ? "Right" : `Not right: it is (${found.answer}) ${found.text}`),
      found.evidence.length ? list : make("p", { className: "hint" }, "No passage was found that states it."),
      next,
    );
    next.focus();
  }
}

function shuffled(items) {
  for (let at = items.length - 1; at > 0; at -= 1) {
    const other = Math.floor(Math.random() * (at + 1));
    [items[at], items[other]] = [items[other], items[at]];
  }
  return items;
}
