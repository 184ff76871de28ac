// Thumbnails of test images as buttons.

import { el } from "./dom.js";

export const pictureOf = (run, index) => `/api/images/${index}.png?v=${run.version}`;

/** Whether the server has a test image. Without the data set it may have a few of them. */
export const hasPicture = (run, index) => (run.samples ? run.samples.some(([own]) => own === index) : run.images > 0);

export const misclassified = ({ label, prediction }) => prediction !== undefined && prediction !== label;

/** A description of a test image. */
export function describe(run, image) {
  const { index, label, prediction, blocks_run: blocks } = image;
  const parts = [`Image ${index}`, `class ${run.classes[label]}`];
  if (misclassified(image)) parts.push(`misclassified as ${run.classes[prediction]}`);
  if (blocks !== undefined) parts.push(`${blocks} blocks run`);
  return parts.join(", ");
}

/** A list item with a button for a test image; only its label if there is no picture. */
export function thumb(run, image, choose, note = "") {
  const name = note ? `${describe(run, image)}, distance ${note}` : describe(run, image);
  const caption = el("span", { className: "caption" }, el("span", {}, run.classes[image.label]));
  if (note) caption.append(el("small", {}, note));
  const wrong = misclassified(image);
  const classes = wrong ? "thumb wrong" : "thumb";
  const mark = wrong ? [el("span", { className: "miss", "aria-hidden": "true" }, "✗")] : [];
  if (!hasPicture(run, image.index)) {
    const blank = el("span", { className: "blank", "aria-hidden": "true" }, `#${image.index}`);
    return el("li", {}, el("span", { className: classes, title: name }, blank, caption, ...mark));
  }
  const picture = el("img", { className: "pixels", src: pictureOf(run, image.index), alt: "", width: 48, height: 48 });
  const content = [picture, caption, ...mark];
  const button = el("button", { type: "button", className: classes, title: name, "aria-label": name }, ...content);
  button.dataset.index = image.index;
  button.addEventListener("click", () => choose(image.index));
  return el("li", {}, button);
}
