// The answer card: the verdict of the evidence, the answer, the quoted sentence, and what the corpus has instead.

import { about, byId, cut, heading, link, make, origin, pieces } from "./dom.js";

const LETTERS = "ABCDEFGHIJ";
const TITLES = {
  stated: "Stated in the corpus",
  partly: "Partly stated in the corpus",
  own_words: "In the agent's own words",
  something_else: "The passage is about something else",
  not_read: "Not in the passages read",
  not_said: "The corpus does not say",
  no_answer: "The agent gave no answer",
  asks_back: "Please say more",
  other_language: "Only English is read",
};

const MARKED = "Marked: the sentence that shares most words with the answer. Whether it supports the claim is for you to judge.";
const MARKED_QUOTE = "Marked: what is quoted. Whether it answers the question is for you to judge.";

/** Show a passage, with a stretch of its text marked where one is given. Going back closes it. */
export function openPassage({ number, passage, sentence }, note, marking = MARKED) {
  const dialog = byId("passage");
  byId("passage-title").textContent = number ? `[${number}] ${heading(passage)}` : heading(passage);
  byId("passage-source").replaceChildren(link(passage));
  const [before, marked, after] = sentence ? cut(passage.text, sentence) : [passage.text, "", ""];
  const mark = make("mark", {}, marked);
  byId("passage-text").replaceChildren(before, ...(marked ? [mark] : []), after);
  byId("passage-note").textContent = marked ? marking : note;
  dialog.showModal();
  history.pushState({ passage: true }, "");
  if (marked) mark.scrollIntoView({ block: "nearest" });
}

/** A dialog that is closed takes its place in the browser's history with it, and going back closes it. */
export function bindPassageToHistory() {
  const dialog = byId("passage");
  dialog.addEventListener("close", () => {
    if (history.state?.passage) history.back();
  });
  addEventListener("popstate", () => {
    if (dialog.open) dialog.close();
  });
}

/** A button that opens a passage. */
export function passageButton(found, said, open, more = "") {
  const button = make(
    "button",
    { type: "button", dir: "auto" },
    ...only(found.scope),
    ...(found.number ? [make("span", { className: "number" }, `[${found.number}] `)] : []),
    make("span", { className: "query" }, heading(found.passage)),
    make("span", { className: "snippet" }, said),
    make("span", { className: "about" }, [about(found.passage), more].filter(Boolean).join(" · ")),
  );
  button.addEventListener("click", open);
  return button;
}

const only = (scope) => (scope ? [make("span", { className: "chip partly" }, `only for ${scope}`)] : []);
const same = (one, other) => one.passage.id === other.passage.id && String(one.sentence) === String(other.sentence);

export const shortened = (text) => (text.length > 160 ? `${Array.from(text).slice(0, 157).join("")}...` : text);

/** The card of a record's answer. `act`: {ask, copy, save, report}, and `retry`. */
export function answerCard(record, act) {
  const { answer } = record;
  const kind = answer.withheld ? "withheld" : answer.verdict.kind;
  const box = make("div", { className: `answer ${kind}` });
  if (answer.urgent) box.append(make("p", { className: "urgent", role: "alert" }, answer.urgent));
  box.append(make("h3", {}, "Answer"));
  box.append(make("p", { className: `verdict ${answer.verdict.kind}` }, TITLES[answer.verdict.kind]));
  const caption = answer.caption && (!answer.withheld || answer.quoted.length) ? [make("p", { className: "hint" }, answer.caption)] : [];
  if (answer.asked_as) box.append(make("p", { className: "hint", dir: "auto" }, `Asked as: ${answer.asked_as}`));
  if (answer.withheld) box.append(make("p", { className: "lacking", dir: "auto" }, answer.verdict.text), ...caption);
  else {
    box.append(...caption, said(answer));
    box.append(make("p", { className: "hint" }, answer.verdict.text));
    if (answer.sources.length) box.append(quotes(answer));
  }
  if (answer.verdict.did_you_mean.length) box.append(meant(record, act));
  const beside = answer.quoted.filter((each) => answer.withheld || !answer.sources.some((source) => same(source, each)));
  // In an emergency what is merely near is folded: it may be on everyday use of what was taken.
  const folded = answer.urgent && !beside.some(({ sure }) => sure);
  if (beside.length) box.append(quotedFromCorpus(beside, answer.quoted_as, folded));
  if (answer.also?.length) box.append(quotedFromCorpus(answer.also, "Also in these sources"));
  if (record.options.length && !answer.withheld) box.append(otherOptions(record));
  if (answer.follow_ups.length) box.append(followUps(answer, act));
  if (answer.removed_citations)
    box.append(make("p", { className: "hint" }, `Citations taken out because no such passage was shown: ${answer.removed_citations}.`));
  box.append(actions(record, act));
  return box;
}

function said(answer) {
  const text = make("p", { className: "text", dir: "auto" });
  for (const piece of pieces(answer.text)) text.append(typeof piece === "number" ? citation(answer, piece) : piece);
  return text;
}

function citation(answer, number) {
  const source = answer.sources.find((each) => each.number === number);
  const label = `Passage ${number}: ${heading(source.passage)}`;
  const button = make("button", { type: "button", className: "cite", aria: { label } }, `[${number}]`);
  button.addEventListener("click", () => openPassage(source));
  return button;
}

/** The sentence of each cited passage that is nearest to the answer, with all that is known of the passage. */
function quotes(answer) {
  const list = make("ul", { className: "sources", aria: { label: "Cited passages" } });
  for (const source of answer.sources) {
    const quoted = `\u201c${cut(source.passage.text, source.sentence)[1].trim()}\u201d`;
    const scope = answer.quoted.find((each) => same(source, each))?.scope;
    list.append(make("li", {}, passageButton({ ...source, scope }, quoted, () => openPassage(source))));
  }
  return list;
}

function meant({ question, options, answer }, act) {
  const box = make("div", { className: "meant" }, make("span", {}, "Did you mean: "));
  for (const name of answer.verdict.did_you_mean) {
    const button = make("button", { type: "button", className: "quiet" }, name);
    button.addEventListener("click", () => act.ask({ question: withName(question, answer.verdict.missing, name), options }));
    box.append(button);
  }
  return box;
}

function followUps(answer, act) {
  const box = make("div", { className: "meant" }, make("span", {}, "Ask next: "));
  for (const question of answer.follow_ups) {
    const button = make("button", { type: "button", className: "quiet", dir: "auto" }, question);
    button.addEventListener("click", () => act.ask({ question, options: [] }));
    box.append(button);
  }
  return box;
}

/** The question with another name for the words that no passage has; a word that ends the name is not said twice. */
export function withName(question, missing, name) {
  const spans = missing.map((word) => [question.indexOf(word), question.indexOf(word) + word.length]).filter(([at]) => at >= 0);
  if (!spans.length) return `${question} (${name})`;
  const before = question.slice(0, Math.min(...spans.map(([start]) => start)));
  let after = question.slice(Math.max(...spans.map(([, end]) => end)));
  const last = name.split(" ").at(-1);
  if (after.trimStart().toLowerCase().startsWith(last.toLowerCase())) after = after.trimStart().slice(last.length);
  return `${before}${name}${after}`;
}

/** Sentences of the corpus on the question, as they stand there. A click opens the passage at the sentence. */
function quotedFromCorpus(quotes, title, folded = false) {
  const list = make("ul", { className: "quoted", aria: { label: title } });
  for (const { passage, sentence, scope } of quotes) {
    const button = make(
      "button",
      { type: "button", dir: "auto" },
      ...only(scope),
      make("q", {}, cut(passage.text, sentence)[1].trim()),
      make("span", { className: "query" }, heading(passage)),
      make("span", { className: "about" }, about(passage)),
    );
    button.addEventListener("click", () => openPassage({ passage, sentence }, "", MARKED_QUOTE));
    list.append(make("li", {}, button));
  }
  return folded ? make("details", {}, make("summary", {}, title), list) : make("section", {}, make("p", { className: "chip" }, title), list);
}

/** What the passages that were read say of the options that were not chosen. */
function otherOptions({ options, turns, answer }) {
  const shown = turns.flatMap((turn) => turn.passages);
  const list = make("ul", { className: "others" });
  for (const [index, option] of options.entries()) {
    if (LETTERS[index] === answer.letter) continue;
    const found = shown.find(({ passage }) => passage.text.toLowerCase().includes(option.toLowerCase()));
    const item = make("li", { dir: "auto" }, `(${LETTERS[index]}) ${option}: `);
    if (found) item.append(passageButton(found, shortened(found.passage.text), () => openPassage(found, "It names this option.")));
    else item.append("no passage that was read names it.");
    list.append(item);
  }
  return make("details", {}, make("summary", {}, "What was read of the other options"), list);
}

function actions(record, act) {
  const told = make("span", { className: "hint", role: "status" });
  const button = (text, action) => {
    const made = make("button", { type: "button", className: "quiet" }, text);
    made.addEventListener("click", action);
    return made;
  };
  const copy = button("Copy as Markdown", async () => {
    told.textContent = (await act.copy(record)) ? "Copied." : "The browser does not allow copying here.";
  });
  const wrong = button("Was this wrong?", async () => {
    told.textContent = (await act.report(record)) ? "Noted. Thank you." : "This service keeps no reports.";
  });
  return make("div", { className: "actions" }, copy, button("Ask again", () => act.retry(record)), ...(record.id && act.report ? [wrong] : []), told);
}
