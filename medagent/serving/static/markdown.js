// An answer as Markdown, for notes and mail.

import { cut, heading, origin } from "./dom.js";

const plain = (text) => text.replace(/[\\`*_{}<>#|[\]]/g, "\\$&").replace(/\s*\n\s*/g, " ");

/** Question, searches, answer and sources of a record; nothing in it can act as markup. */
export function asMarkdown({ question, options, turns, answer }) {
  const lines = [`## ${plain(question)}`, ""];
  options.forEach((option, index) => lines.push(`- (${"ABCDEFGHIJ"[index]}) ${plain(option)}`));
  if (options.length) lines.push("");
  for (const { query } of turns) if (query !== null) lines.push(`- Searched: ${plain(query)}`);
  if (answer.asked_as) lines.push(`- Asked as: ${plain(answer.asked_as)}`);
  lines.push("", `**Answer:** ${plain(answer.text)}`, "", `*${plain(answer.verdict.text)}*`, "");
  for (const { number, passage, sentence } of answer.sources) {
    const quoted = cut(passage.text, sentence)[1].trim();
    lines.push(`${plain(`[${number}]`)} ${plain(heading(passage))} (${plain(origin(passage))})`, "", `> ${plain(quoted)}`, "");
  }
  if (answer.caption) lines.push(`*${plain(answer.caption)}*`, "");
  for (const [title, quotes] of [[answer.quoted_as, answer.quoted], ["Also in these sources", answer.also ?? []]]) {
    if (quotes.length) lines.push(`${title}:`, "");
    for (const { passage, sentence, scope } of quotes) {
      const said = `${scope ? `Only for ${scope}: ` : ""}${cut(passage.text, sentence)[1].trim()}`;
      lines.push(`> ${plain(said)}`, "", `${plain(heading(passage))} (${plain(origin(passage))})`, "");
    }
  }
  return [...lines, `*${answer.notice}*`, ""].join("\n");
}

/** All answered records of a tab as one document. */
export const sessionAsMarkdown = (records) => records.filter((record) => record.answer).map(asMarkdown).join("\n");

/** Let the browser save a text as a file. */
export function save(name, text, type) {
  const address = URL.createObjectURL(new Blob([text], { type }));
  const anchor = document.createElement("a");
  anchor.href = address;
  anchor.download = name;
  anchor.click();
  setTimeout(() => URL.revokeObjectURL(address), 60_000); // Firefox reads it after the click
}

/** Put text on the clipboard; false where the browser does not allow it. */
export async function toClipboard(text) {
  if (navigator.clipboard) {
    try {
      await navigator.clipboard.writeText(text);
      return true;
    } catch {
      return false;
    }
  }
  const area = document.createElement("textarea"); // without HTTPS there is no other way
  area.value = text;
  document.body.append(area);
  area.select();
  const copied = document.execCommand("copy");
  area.remove();
  return copied;
}
