// Helpers to build and update elements. Text is always set as text, never as markup.

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

/** Multiply-adds with a readable unit. */
export function formatMacs(macs) {
  const [size, unit] = macs >= 1e9 ? [1e9, "G"] : macs >= 1e6 ? [1e6, "M"] : [1e3, "k"];
  return `${(macs / size).toFixed(2)} ${unit}`;
}

/** Delays a call until `pause` milliseconds have passed without another one. */
export function debounce(pause, call) {
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

/** Makes a list of buttons one tab stop with arrow-key navigation. Call it again after the buttons change. */
export function roving(list) {
  const buttons = [...list.querySelectorAll("button")];
  buttons.forEach((button, i) => (button.tabIndex = i === 0 ? 0 : -1));
  list.onkeydown = (event) => {
    const current = buttons.indexOf(document.activeElement);
    if (current < 0) return;
    const columns = buttons.filter((button) => button.offsetTop === buttons[0].offsetTop).length;
    const steps = { ArrowRight: 1, ArrowLeft: -1, ArrowDown: columns, ArrowUp: -columns };
    let next = current + (steps[event.key] ?? 0);
    if (event.key === "Home") next = 0;
    if (event.key === "End") next = buttons.length - 1;
    if (next === current || next < 0 || next >= buttons.length) return;
    event.preventDefault();
    buttons[current].tabIndex = -1;
    buttons[next].tabIndex = 0;
    buttons[next].focus();
  };
}
