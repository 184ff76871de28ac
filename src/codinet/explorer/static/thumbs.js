// Thumbnails of test images as buttons.

import { el } from "./dom.js";

export const pictureOf = (run, index) => `/api/images/${index}.png?v=${run.version}`;

/** A sentence on what is known of a test image. */
export function described(run, { index, label, prediction, blocks_run: blocks }) {
  const parts = [`Image ${index}`, `class ${run.classes[label]}`];
  if (prediction !== undefined && prediction !== label) parts.push(`taken for ${run.classes[prediction]}`);
  if (blocks !== undefined) parts.push(`${blocks} blocks run`);
  return parts.join(", ");
}

/** A list entry with a test image's button; without the data set, its label alone. */
export function thumb(run, image, choose, note = "") {
  const name = note ? `${described(run, image)}, distance ${note}` : described(run, image);
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
