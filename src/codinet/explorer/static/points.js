// Finds points on a canvas, under the pointer or next to another point. `screen` gives a point's pixels.

/** The point nearest to a position, if it is within reach. */
export function pointAt(points, screen, [x0, y0], reach) {
  let [best, closest] = [null, reach];
  for (const point of points) {
    const [x, y] = screen(point);
    const distance = Math.hypot(x - x0, y - y0);
    if (distance < closest) [best, closest] = [point, distance];
  }
  return best;
}

/** The point nearest to another in a direction [right, down]; sideways distance counts double. */
export function pointAhead(points, screen, from, [right, down]) {
  const [x0, y0] = screen(from);
  let [best, closest] = [null, Infinity];
  for (const point of points) {
    const [x, y] = screen(point);
    const ahead = (x - x0) * right + (y - y0) * down;
    const aside = Math.abs((x - x0) * down) + Math.abs((y - y0) * right);
    if (ahead > 0.5 && aside <= 2 * ahead && ahead + 2 * aside < closest) [best, closest] = [point, ahead + 2 * aside];
  }
  return best;
}
