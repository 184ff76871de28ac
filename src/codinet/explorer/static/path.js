// A path as bars, stage by stage: lit where the block ran, dim where it was skipped; the height of a bar is
// its router's confidence, the line across all of them the threshold.

import { el } from "./dom.js";

const MANY = 24; // blocks; with more, each stage has a row of its own

export class PathStrip {
  #bars = [];

  constructor(root, stages) {
    this.root = root;
    const total = stages.reduce((sum, count) => sum + count, 0);
    root.classList.toggle("rows", total > MANY);
    let block = 0;
    stages.forEach((count, stage) => {
      const list = el("ol", { "aria-label": `Stage ${stage + 1}` });
      for (let i = 0; i < count; i += 1, block += 1) {
        const fill = el("span", { className: "fill" });
        const number = el("span", { className: "number" }, String(block + 1));
        const bar = el("li", { role: "img" }, el("span", { className: "tube" }, fill), number);
        this.#bars.push({ bar, fill, name: `Block ${block + 1}` });
        list.append(bar);
      }
      const group = el("div", { className: "stage" }, el("h3", {}, `Stage ${stage + 1}`), list);
      group.style.setProperty("--count", count);
      root.append(group);
    });
  }

  /** Show an answer of the server; `differs` are the blocks to mark. */
  show(answer, threshold, differs = []) {
    this.root.style.setProperty("--threshold", threshold);
    this.root.classList.toggle("unrouted", answer.run_probability === null);
    this.#bars.forEach(({ bar, fill, name }, k) => {
      const ran = answer.path[k] === 1;
      const marked = differs.includes(k);
      const confidence = answer.run_probability?.[k];
      bar.classList.toggle("ran", ran);
      bar.classList.toggle("differs", marked);
      fill.style.setProperty("--height", confidence ?? 1);
      const said = [`${name}: ${ran ? "runs" : "skipped"}`];
      if (confidence !== undefined) said.push(`run probability ${confidence.toFixed(3)}`);
      if (marked) said.push("differs from the image's path");
      bar.title = said.join(", ");
      bar.setAttribute("aria-label", bar.title);
    });
  }
}
