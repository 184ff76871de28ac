// Shows the server's answer for an image.

import { byId, formatMacs, el, percent, roving, show } from "./dom.js";
import { PathStrip } from "./path.js";
import { misclassified, thumb } from "./thumbs.js";

export class Result {
  constructor(run, choose) {
    this.run = run;
    this.choose = choose;
    this.path = new PathStrip(byId("path"), run.groups);
    this.viewPath = new PathStrip(byId("view-path"), run.groups);
    show(byId("static-note"), !run.routed);
    show(document.querySelector(".threshold"), run.routed);
  }

  show(answer) {
    const { image, view, neighbours } = answer;
    show(byId("empty"), false);
    show(byId("shown"), true);
    byId("picture").src = image.picture;
    show(byId("picture"), true);
    this.#verdict(image, answer.truth);
    this.#figures(image);
    this.path.show(image, answer.threshold);
    show(byId("view-card"), Boolean(view));
    if (view) this.#view(view, image, answer.threshold);
    show(byId("near-card"), Boolean(neighbours));
    if (neighbours) this.#near(neighbours, image);
  }

  /** A summary of the answer, for the live region. */
  summary({ image, view }) {
    const best = image.top[0];
    const parts = [
      `Class ${this.#class(best.label)}, confidence ${percent(best.confidence)}.`,
      `${image.blocks_run} of ${image.path.length} blocks run, ${percent(image.cost_share)} of the static cost.`,
    ];
    if (view) parts.push(`${view.differs.length} blocks differ in the augmented image.`);
    return parts.join(" ");
  }

  #class(label) {
    return this.run.classes[label];
  }

  #verdict(image, truth) {
    byId("label").textContent = this.#class(image.top[0].label);
    const known = truth !== undefined;
    const right = truth === image.top[0].label;
    const note = byId("truth");
    note.className = `truth ${known ? (right ? "right" : "wrong") : ""}`;
    note.textContent = !known ? "your image" : right ? "✓ correct" : `✗ label: ${this.#class(truth)}`;
    byId("chances").replaceChildren(
      ...image.top.map(({ label, confidence }) => {
        const bar = el("span", { className: "chance" });
        bar.style.setProperty("--share", confidence);
        const name = el("span", { className: "name", title: this.#class(label) }, this.#class(label));
        return el("li", {}, name, bar, el("span", { className: "value" }, percent(confidence)));
      }),
    );
  }

  #figures(image) {
    byId("blocks").replaceChildren(String(image.blocks_run), el("small", {}, ` of ${image.path.length}`));
    byId("share").replaceChildren(percent(image.cost_share), el("small", {}, " of static"));
    byId("macs").replaceChildren(formatMacs(image.macs), el("small", {}, ` of ${formatMacs(this.run.static_macs)}`));
    byId("meter").style.setProperty("--share", Math.min(1, image.cost_share));
  }

  #view(view, image, threshold) {
    const picture = byId("view-picture");
    picture.src = view.picture;
    picture.alt = "The augmented image, as the network sees it";
    const best = view.top[0];
    byId("view-label").replaceChildren(this.#class(best.label), el("small", {}, ` ${percent(best.confidence)}`));
    const number = view.differs.length;
    const verdict = number === 0 ? "Same path" : `${number} of ${view.path.length} blocks differ`;
    const change = view.cost_share - image.cost_share;
    const cost = Math.abs(change) < 0.0005 ? "same cost" : `cost ${change > 0 ? "+" : "−"}${percent(Math.abs(change))}`;
    byId("view-note").textContent = `${verdict}, ${cost}.`;
    this.viewPath.show(view, threshold, view.differs);
  }

  #near(neighbours, image) {
    const mine = image.top[0].label;
    const sameClass = neighbours.filter((near) => near.label === mine).length;
    byId("near-note").textContent =
      `${sameClass} of the ${neighbours.length} test images with the closest paths have the label ${this.#class(mine)}.`;
    const list = byId("near");
    const inside = list.contains(document.activeElement);
    list.replaceChildren(...neighbours.map((near) => thumb(this.run, near, this.choose, near.distance.toFixed(2))));
    roving(list);
    show(byId("near-help"), neighbours.some(misclassified));
    if (inside) list.querySelector("button")?.focus();
  }
}
