// Requests to the server. An error response becomes an Error with the server's message.

export async function request(path, parameters = {}, options = {}) {
  const given = Object.entries(parameters).filter(([, value]) => value !== null && value !== undefined && value !== "");
  const search = new URLSearchParams(given).toString();
  let response;
  try {
    response = await fetch(search ? `${path}?${search}` : path, options);
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new Error("The explorer does not respond; check that it is still running in its terminal.");
  }
  const content = await response.json().catch(() => ({}));
  if (!response.ok) throw new Error(content.error ?? "The request failed.");
  return content;
}

export function routeTestImage(index, query, signal) {
  return request(`/api/images/${index}/route`, query, { signal });
}

export function routeUpload(blob, query, signal) {
  // Other pages cannot send this type without a CORS preflight, which the server does not answer.
  return request("/api/route", query, {
    method: "POST",
    body: blob,
    headers: { "Content-Type": "application/octet-stream" },
    signal,
  });
}

/** Runs one request at a time: a newer one aborts the older, whose answer is dropped. */
export class Latest {
  #running = null;

  /** The answer, or null if a newer request has started since. */
  async run(send) {
    this.#running?.abort();
    const mine = (this.#running = new AbortController());
    try {
      const answer = await send(mine.signal);
      return mine === this.#running ? answer : null;
    } catch (error) {
      if (mine !== this.#running) return null;
      throw error;
    }
  }
}
