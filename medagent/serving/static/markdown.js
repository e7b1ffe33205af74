// An answer as Markdown, for notes and mail.

import { heading, origin } from "./dom.js";

const plain = (text) => text.replace(/[\\`*_{}<>#|[\]]/g, "\\$&").replace(/\s*\n\s*/g, " ");

/** Question, searches, answer and sources of a record; nothing in it can act as markup. */
export function asMarkdown({ question, options, turns, answer }) {
  const lines = [`## ${plain(question)}`, ""];
  options.forEach((option, index) => lines.push(`- (${"ABCDEFGHIJ"[index]}) ${plain(option)}`));
  if (options.length) lines.push("");
  for (const { query } of turns) if (query !== null) lines.push(`- Searched: ${plain(query)}`);
  lines.push("", `**Answer:** ${plain(answer.text) || "none"}`, "");
  for (const { number, passage, sentence } of answer.sources) {
    const quoted = Array.from(passage.text).slice(...sentence).join("").trim();
    lines.push(`${plain(`[${number}]`)} ${plain(heading(passage))} (${plain(origin(passage))})`, "", `> ${plain(quoted)}`, "");
  }
  if (!answer.sources.length) lines.push("It cites no passage: treat the answer as unsupported.", "");
  return [...lines, `*${answer.notice}*`, ""].join("\n");
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
