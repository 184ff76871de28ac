// Accuracy of the network at the threshold of the slider. Unless it was measured before, the server measures it, which
// takes a moment, so only one request is under way at a time.

import { request } from "./api.js";
import { byId, debounce, el, percent, show } from "./dom.js";

const PAUSE = 150; // milliseconds without slider movement
const PATIENCE = 250; // milliseconds before the last accuracy is taken away

export class Accuracy {
  #wanted = null;
  #busy = false;
  #ask = debounce(PAUSE, () => this.#request());

  constructor(run) {
    this.known = run.accuracy;
    show(byId("accuracy"), this.known);
  }

  /** Shows the accuracy at a threshold as soon as it is known. */
  at(threshold) {
    this.#wanted = threshold;
    this.#say(threshold);
    if (this.known) this.#ask();
  }

  async #request() {
    if (this.#busy) return; // the loop below asks for the newest threshold
    this.#busy = true;
    let done = null;
    while (this.known && done !== this.#wanted) {
      const threshold = this.#wanted;
      const late = setTimeout(() => byId("accuracy").replaceChildren("Measuring accuracy…"), PATIENCE);
      try {
        const found = await request("/api/accuracy", { threshold });
        if (threshold === this.#wanted) this.#show(threshold, found);
      } catch {
        show(byId("accuracy"), false); // the result itself reports a server that is gone
        this.known = false;
      }
      clearTimeout(late);
      done = threshold;
    }
    this.#busy = false;
  }

  #show(threshold, { accuracy, cost_share: cost, n, interpolated }) {
    const value = `${interpolated ? "about " : ""}${accuracy.toFixed(1)} %`;
    const images = `${n.toLocaleString("en")} test images`;
    byId("accuracy").replaceChildren("Accuracy ", el("strong", {}, value), ` at ${percent(cost)} cost, on ${images}`);
    this.#say(threshold, `, accuracy ${value} on ${images}`);
  }

  /** What a screen reader says for the slider. */
  #say(threshold, more = "") {
    byId("threshold").setAttribute("aria-valuetext", `${threshold.toFixed(2)}${more}`);
  }
}
