// Where the data comes from: the server of `medagent view`, or the page itself where it was exported as one file.

const embedded = document.getElementById("data");
const exportedRuns = embedded ? JSON.parse(embedded.textContent) : null;
const keptLines = new Map(); // "run/part" -> its rollouts as lines of JSON; the last few

const getJson = async (path) => {
  const answer = await fetch(path);
  if (!answer.ok) throw new Error(`${path}: ${await answer.text()}`);
  return answer.json();
};

/** The names of the runs that are shown. */
export const runNames = async () => (exportedRuns ? exportedRuns.map((run) => run.overview.name) : getJson("data/runs"));

/** A run's curves and events, and the summaries of the parts that `known` lacks. */
export async function overviewOf(run, known = []) {
  if (exportedRuns) return exportedRuns[run].overview;
  const query = known.map((name) => `known=${encodeURIComponent(name)}`).join("&");
  return getJson(`data/${run}/overview?${query}`);
}

/** The rollouts of a part at some places of its list, whole. */
export async function rolloutsOf(run, part, places) {
  const key = `${run}/${part}`;
  if (!keptLines.has(key)) {
    const text = exportedRuns ? await unpacked(exportedRuns[run].parts[part]) : await textOf(`data/${run}/parts/${encodeURIComponent(part)}`);
    keptLines.set(key, text.split("\n"));
    if (keptLines.size > 4) keptLines.delete(keptLines.keys().next().value);
  }
  const lines = keptLines.get(key);
  return places.map((place) => JSON.parse(lines[place]));
}

async function textOf(path) {
  const answer = await fetch(path);
  if (!answer.ok) throw new Error(`${path}: ${await answer.text()}`);
  return answer.text();
}

const unpacked = (base64) => {
  const bytes = Uint8Array.from(atob(base64), (letter) => letter.charCodeAt(0));
  return new Response(new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"))).text();
};

/** Whether new data may come. */
export const isLive = () => !exportedRuns;
