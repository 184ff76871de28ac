// Small helpers for building and steering elements. Text is always set as text, never as markup.

export const byId = (id) => document.getElementById(id);

/** An element with properties, attributes (names with "-" or "role") and children. */
export function el(tag, properties = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(properties)) {
    if (name === "role" || name.includes("-")) element.setAttribute(name, value);
    else element[name] = value;
  }
  element.append(...children);
  return element;
}

export function show(element, visible) {
  element.hidden = !visible;
}

export const percent = (share, digits = 1) => `${(100 * share).toFixed(digits)} %`;

/** Multiply-adds in a readable unit. */
export function counted(macs) {
  const [size, unit] = macs >= 1e9 ? [1e9, "G"] : macs >= 1e6 ? [1e6, "M"] : [1e3, "k"];
  return `${(macs / size).toFixed(2)} ${unit}`;
}

/** The call that comes last within `pause` milliseconds. */
export function settled(pause, call) {
  let timer;
  return (...args) => {
    clearTimeout(timer);
    timer = setTimeout(() => call(...args), pause);
  };
}

/** One radio button of a segmented control. */
export function segment(name, value, title, checked) {
  return el("label", {}, el("input", { type: "radio", name, value, checked }), el("span", {}, title));
}

/** Make a list of buttons one tab stop that the arrow keys walk. Call again after its buttons changed. */
export function roving(list) {
  const buttons = [...list.querySelectorAll("button")];
  buttons.forEach((button, i) => (button.tabIndex = i === 0 ? 0 : -1));
  list.onkeydown = (event) => {
    const here = buttons.indexOf(document.activeElement);
    if (here < 0) return;
    const columns = buttons.filter((button) => button.offsetTop === buttons[0].offsetTop).length;
    const steps = { ArrowRight: 1, ArrowLeft: -1, ArrowDown: columns, ArrowUp: -columns };
    let there = here + (steps[event.key] ?? 0);
    if (event.key === "Home") there = 0;
    if (event.key === "End") there = buttons.length - 1;
    if (there === here || there < 0 || there >= buttons.length) return;
    event.preventDefault();
    buttons[here].tabIndex = -1;
    buttons[there].tabIndex = 0;
    buttons[there].focus();
  };
}
