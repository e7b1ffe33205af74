// Questions to the service, and its server-sent events back. Nothing of this touches the page.

const TOKEN = "medagent-token";
const STATUS = { timeout: 504, overloaded: 429, retrieval: 503 }; // of errors that come when the answer has begun

/** What went wrong, as the service says it: `status` is 0 where it could not be reached. */
export class Failure extends Error {
  constructor(message, { status = 0, retryAfter = 0 } = {}) {
    super(message);
    this.status = status;
    this.retryAfter = retryAfter;
  }
}

/** Keep a token for this tab; false where it cannot be one, as a header holds plain characters only. */
export function keepToken(token) {
  const plain = /^[\x21-\x7e]+$/.test(token.trim());
  if (plain) sessionStorage.setItem(TOKEN, token.trim());
  return plain;
}

function headers() {
  let token = null;
  try {
    token = sessionStorage.getItem(TOKEN);
  } catch {
    // A browser that keeps nothing has no token either.
  }
  return { "Content-Type": "application/json", ...(token ? { Authorization: `Bearer ${token}` } : {}) };
}

/** The service's description of itself: name, limits and example questions. */
export async function about() {
  const answer = await reach("v1/agent", { headers: headers() });
  return answer.json();
}

/** Report an answer as wrong; false where the service keeps no reports. */
export async function report({ id }) {
  try {
    await reach("v1/feedback", { method: "POST", headers: headers(), body: JSON.stringify({ id, wrong: true }) });
    return true;
  } catch (error) {
    if (error instanceof Failure) return false;
    throw error;
  }
}

/** Ask; `tell(kind, data)` hears each event. Ends with the answer, or throws a `Failure`, or an AbortError once `signal` stops it. */
export async function ask(body, { signal, tell }) {
  const request = { method: "POST", headers: headers(), body: JSON.stringify({ ...body, stream: true }), signal };
  const answer = await reach("v1/answers", request);
  const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
  let text = "";
  let answered = false;
  for (;;) {
    const { done, value } = await read(reader);
    if (done) break;
    text += value;
    const blocks = text.split("\n\n");
    text = blocks.pop();
    for (const block of blocks) {
      const event = parse(block);
      if (event === null) continue;
      if (event.kind === "error") throw new Failure(event.data.error.message, { status: STATUS[event.data.error.code] ?? 500 });
      answered = answered || event.kind === "answer";
      tell(event.kind, event.data);
    }
  }
  if (!answered) throw new Failure("The connection ended before the answer.");
}

async function read(reader) {
  try {
    return await reader.read();
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new Failure("The connection was lost before the answer.");
  }
}

async function reach(path, request) {
  let answer;
  try {
    answer = await fetch(path, { cache: "no-store", ...request });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new Failure("The service cannot be reached.");
  }
  if (answer.ok) return answer;
  const retryAfter = Number(answer.headers.get("Retry-After")) || 0;
  let message = `The service answered with status ${answer.status}.`;
  try {
    message = (await answer.json()).error.message;
  } catch {
    // A proxy's page, say: the status is what we know.
  }
  throw new Failure(message, { status: answer.status, retryAfter });
}

/** One block of server-sent events; null for a comment, which keeps the line open. */
function parse(block) {
  const fields = { event: "message", data: "" };
  for (const line of block.split("\n")) {
    const at = line.indexOf(":");
    if (at > 0) fields[line.slice(0, at)] = line.slice(at + 1).trimStart();
  }
  return fields.data ? { kind: fields.event, data: JSON.parse(fields.data) } : null;
}
