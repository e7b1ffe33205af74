// Elements and text. Whatever comes from the model or a document goes in as text, never as markup.

/** An element with properties and children; strings become text nodes. */
export function make(tag, properties = {}, ...children) {
  const element = document.createElement(tag);
  const { dataset, aria, ...rest } = properties;
  Object.assign(element, rest);
  Object.assign(element.dataset, dataset ?? {});
  for (const [name, value] of Object.entries(aria ?? {})) element.setAttribute(`aria-${name}`, value);
  element.append(...children);
  return element;
}

export const byId = (id) => document.getElementById(id);

/** Title and section of a passage, or its id. */
export function heading(passage) {
  return [passage.title, passage.section].filter(Boolean).join(" > ") || passage.id;
}

/** Where a passage is from, in a line. */
export function origin(passage) {
  return [passage.source, passage.year, passage.licence, `id ${passage.id}`].filter(Boolean).join(" · ");
}

/** Where a passage is from, with its address as a link where it has one. */
export function link(passage) {
  const text = origin(passage);
  if (!/^https?:\/\/[^\s]+$/.test(passage.source ?? "")) return document.createTextNode(text);
  return make("a", { href: passage.source, rel: "noopener noreferrer", target: "_blank" }, text);
}

/** Text cut at the service's positions, which count characters and not UTF-16 units. */
export function cut(text, [start, end]) {
  const characters = Array.from(text);
  return [characters.slice(0, start), characters.slice(start, end), characters.slice(end)].map((part) => part.join(""));
}

/** An answer's text in pieces: strings, and the numbers it cites. */
export function pieces(text) {
  return text
    .split(/(\[\d{1,3}\])/)
    .filter(Boolean)
    .map((piece) => (/^\[\d{1,3}\]$/.test(piece) ? Number(piece.slice(1, -1)) : piece));
}
