// A path as bars, grouped as in the network. A bar is lit if its block ran and dim if it was skipped. Its height is the
// router's run probability; the line across all bars is the threshold.

import { el } from "./dom.js";

const MANY = 24; // blocks; with more, each group gets its own row

export class PathStrip {
  #bars = [];

  constructor(root, groups) {
    this.root = root;
    const total = groups.reduce((sum, count) => sum + count, 0);
    root.classList.toggle("rows", total > MANY);
    let block = 0;
    groups.forEach((count, index) => {
      const list = el("ol", { "aria-label": `Group ${index + 1}` });
      for (let i = 0; i < count; i += 1, block += 1) {
        const fill = el("span", { className: "fill" });
        const tube = el("span", { className: "tube", role: "img" }, fill);
        const number = el("span", { className: "number", "aria-hidden": "true" }, String(block + 1));
        const bar = el("li", {}, tube, number);
        this.#bars.push({ bar, tube, fill, name: `Block ${block + 1}` });
        list.append(bar);
      }
      const group = el("div", { className: "group" }, el("h3", {}, `Group ${index + 1}`), list);
      group.style.setProperty("--count", count);
      root.append(group);
    });
  }

  /** Shows an answer of the server and marks the blocks in `differs`. */
  show(answer, threshold, differs = []) {
    this.root.style.setProperty("--threshold", threshold);
    this.root.classList.toggle("unrouted", answer.run_probability === null);
    this.#bars.forEach(({ bar, tube, fill, name }, k) => {
      const ran = answer.path[k] === 1;
      const marked = differs.includes(k);
      const probability = answer.run_probability?.[k];
      bar.classList.toggle("ran", ran);
      bar.classList.toggle("differs", marked);
      fill.style.setProperty("--height", probability ?? 1);
      const parts = [`${name}: ${ran ? "runs" : "skipped"}`];
      if (probability !== undefined) parts.push(`run probability ${probability.toFixed(3)}`);
      if (marked) parts.push("differs from the image's path");
      bar.title = parts.join(", ");
      tube.setAttribute("aria-label", bar.title);
    });
  }
}
