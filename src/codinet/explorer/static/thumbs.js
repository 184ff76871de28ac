// Thumbnails of test images as buttons.

import { el } from "./dom.js";

export const pictureOf = (run, index) => `/api/images/${index}.png?v=${run.version}`;

/** A description of a test image. */
export function describe(run, { index, label, prediction, blocks_run: blocks }) {
  const parts = [`Image ${index}`, `class ${run.classes[label]}`];
  if (prediction !== undefined && prediction !== label) parts.push(`predicted ${run.classes[prediction]}`);
  if (blocks !== undefined) parts.push(`${blocks} blocks run`);
  return parts.join(", ");
}

/** A list item with a button for a test image; without the data set, only its label. */
export function thumb(run, image, choose, note = "") {
  const name = note ? `${describe(run, image)}, distance ${note}` : describe(run, image);
  const caption = el("span", { className: "caption" }, el("span", {}, run.classes[image.label]));
  if (note) caption.append(el("small", {}, note));
  const classes = image.prediction !== undefined && image.prediction !== image.label ? "thumb wrong" : "thumb";
  if (!run.images) return el("li", {}, el("span", { className: classes, title: name }, caption));
  const picture = el("img", { className: "pixels", src: pictureOf(run, image.index), alt: "", width: 48, height: 48 });
  const button = el("button", { type: "button", className: classes, title: name, "aria-label": name }, picture, caption);
  button.dataset.index = image.index;
  button.addEventListener("click", () => choose(image.index));
  return el("li", {}, button);
}
