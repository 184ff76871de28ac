// Questions to the server. A refusal becomes an Error whose message is the server's own sentence.

export async function ask(path, parameters = {}, options = {}) {
  const given = Object.entries(parameters).filter(([, value]) => value !== null && value !== undefined && value !== "");
  const query = new URLSearchParams(given).toString();
  let response;
  try {
    response = await fetch(query ? `${path}?${query}` : path, options);
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new Error("The explorer does not answer; is it still running in its terminal?");
  }
  const content = await response.json().catch(() => ({}));
  if (!response.ok) throw new Error(content.error ?? "The explorer refused this without a reason.");
  return content;
}

export function routeTestImage(index, asked, signal) {
  return ask(`/api/images/${index}/route`, asked, { signal });
}

export function routeUpload(blob, asked, signal) {
  // This type makes a browser ask the server first when another page tries the same.
  return ask("/api/route", asked, {
    method: "POST",
    body: blob,
    headers: { "Content-Type": "application/octet-stream" },
    signal,
  });
}

/** Runs one question at a time: a newer one ends the older, whose answer is dropped even if it still arrives. */
export class Latest {
  #running = null;

  /** The answer, or null where a newer question was asked meanwhile. */
  async run(question) {
    this.#running?.abort();
    const mine = (this.#running = new AbortController());
    try {
      const answer = await question(mine.signal);
      return mine === this.#running ? answer : null;
    } catch (error) {
      if (mine !== this.#running) return null;
      throw error;
    }
  }
}
