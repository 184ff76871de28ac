// The legend of the map, and the selection of a class to highlight.

import { blocksColour, classColour } from "./colours.js";
import { el } from "./dom.js";

const MANY = 20; // classes; with more, a drop-down list replaces the buttons
const STEPS = 12;

/** One button per class; calls `press` with the class to highlight, or null. */
export function classLegend(root, classes, press) {
  if (classes.length > MANY) {
    const options = classes.map((name, label) => el("option", { value: label }, name));
    const select = el("select", {}, el("option", { value: "" }, "all"), ...options);
    select.addEventListener("change", () => press(select.value === "" ? null : Number(select.value)));
    root.replaceChildren(el("label", {}, "Highlight class ", select));
    return;
  }
  const buttons = classes.map((name, label) => {
    const button = chip(name, classColour(label, classes.length), "button");
    button.type = "button";
    button.setAttribute("aria-pressed", "false");
    button.addEventListener("click", () => {
      const pressed = button.getAttribute("aria-pressed") !== "true";
      for (const other of buttons) other.setAttribute("aria-pressed", String(pressed && other === button));
      press(pressed ? label : null);
    });
    return button;
  });
  root.replaceChildren(...buttons);
}

/** The colour scale, from the fewest to the most blocks that an image runs. */
export function blocksLegend(root, seen, blocks) {
  const low = seen.reduce((least, number) => Math.min(least, number));
  const high = seen.reduce((most, number) => Math.max(most, number));
  const step = Math.max(1, Math.ceil((high - low) / STEPS));
  const chips = [];
  for (let number = low; number <= high; number += step) chips.push(chip(String(number), blocksColour(number / blocks)));
  root.replaceChildren(el("span", { className: "help" }, "Blocks run"), ...chips);
}

function chip(name, colour, tag = "span") {
  const spot = el("span", { className: "spot" });
  spot.style.backgroundColor = colour;
  return el(tag, { className: "chip" }, spot, name);
}
