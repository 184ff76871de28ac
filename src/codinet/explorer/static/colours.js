// Colours of points. Ten hues that are distinct on light and dark backgrounds; more classes use a colour wheel.

const TEN = ["#3f7fbf", "#e0882b", "#3f9b5f", "#cf4b4b", "#8a63b8", "#9a6b4f", "#d871a9", "#8a9a3b", "#2fa7b0", "#8c8c96"];

export function classColour(label, classes) {
  if (classes <= TEN.length) return TEN[label];
  // Steps of the golden angle keep consecutive labels far apart on the wheel.
  return `hsl(${(label * 137.508) % 360} 55% ${label % 2 ? 46 : 60}%)`;
}

/** From slate (no block runs) to the amber of a lit block (all run). */
export function blocksColour(share) {
  const low = [92, 110, 140];
  const high = [245, 166, 35];
  const mixed = low.map((value, i) => Math.round(value + (high[i] - value) * Math.min(1, share)));
  return `rgb(${mixed.join(" ")})`;
}
