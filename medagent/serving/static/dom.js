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

/** Source, date, publication types, kind and grades of a passage, in a short line: "WHO · 2021 · recommendation, grade 1A". */
export function about({ source, date, year, types, kind, grade }) {
  const grades = grade && !grade.replaceAll("; ", "").includes(" ") ? `grade ${grade}` : grade;
  const kinds = [kind, grades].filter(Boolean).join(", ");
  return [source, date ?? year ?? "no date", ...(types ?? []), kinds].filter(Boolean).join(" · ");
}

/** Where a passage is from, with all that is known of it. */
export function origin(passage) {
  const authors = passage.authors ?? [];
  const by = authors.length > 3 ? `${authors[0]} et al.` : authors.join(", ");
  const journal = passage.journal && !passage.source?.includes(passage.journal) ? passage.journal : "";
  return [by, passage.source, journal, passage.year, passage.licence, `id ${passage.id}`].filter(Boolean).join(" · ");
}

/** Where a passage is from, with its address as a link where it has one. */
export function link(passage) {
  const text = origin(passage);
  const href = addressOf(passage);
  return href ? make("a", { href, rel: "noopener noreferrer", target: "_blank" }, text) : document.createTextNode(text);
}

/** A passage's address on the web: its own, its DOI's, PubMed's, or a source that is one. */
function addressOf({ url, doi, pmid, source }) {
  const found = url || (doi && `https://doi.org/${encodeURI(doi)}`) || (pmid && `https://pubmed.ncbi.nlm.nih.gov/${pmid}/`) || source || "";
  return /^https?:\/\/[^\s]+$/.test(found) ? found : "";
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
