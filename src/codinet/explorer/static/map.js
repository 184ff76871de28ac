// The map of routing space: a canvas of points, with pointer and arrow-key navigation.

import { request } from "./api.js";
import { blocksColour, classColour } from "./colours.js";
import { byId, segment, show } from "./dom.js";
import { blocksLegend, classLegend } from "./legend.js";
import { describe, hasPicture, misclassified, pictureOf } from "./thumbs.js";
import { pointAhead, pointAt } from "./points.js";

const TITLES = { pca: "PCA", tsne: "t-SNE" };
const MARGIN = 18; // pixels around the points
const REACH = 16; // pixels within which the pointer selects a point

export class RoutingMap {
  #points = null;
  #box = { middle: [0.5, 0.5], span: [1, 1] };
  #focus = null; // the point under the pointer or selected by keys
  #highlight = null; // the class selected in the legend
  #answer = null;
  #kind = "pca";
  #colour = "class";

  constructor(run, choose) {
    this.run = run;
    this.choose = choose;
    this.canvas = byId("canvas");
    show(byId("map-card"), true);
    show(byId("map-samples"), Boolean(run.samples));
    byId("kinds").append(...run.maps.map((kind, i) => segment("kind", kind, TITLES[kind], i === 0)));
    byId("kinds").addEventListener("change", (event) => this.load(event.target.value));
    byId("colours").addEventListener("change", (event) => {
      this.#colour = event.target.value;
      this.#highlight = null;
      this.#legend();
      this.draw();
    });
    this.canvas.addEventListener("pointermove", (event) => this.#point(this.#at(event)));
    this.canvas.addEventListener("pointerleave", () => this.#point(null));
    this.canvas.addEventListener("blur", () => this.#point(null));
    this.canvas.addEventListener("click", (event) => this.#pick(this.#at(event)));
    this.canvas.addEventListener("keydown", (event) => this.#key(event));
    new ResizeObserver(() => this.draw()).observe(this.canvas);
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => this.draw());
    this.load(run.maps.at(-1));
  }

  /** Shows a map, or the PCA map while t-SNE is being computed. */
  async load(kind) {
    this.#kind = kind;
    document.querySelector(`input[name="kind"][value="${kind}"]`).checked = true;
    try {
      let content = await request("/api/map", { kind });
      if (content.state === "computing" && !this.#points) this.#use(await request("/api/map", { kind: "pca" }), "pca");
      while (content.state === "computing" && this.#kind === kind) {
        byId("map-status").textContent = "Computing t-SNE; showing PCA";
        await new Promise((resume) => setTimeout(resume, 1000));
        if (this.#kind === kind) content = await request("/api/map", { kind });
      }
      if (this.#kind !== kind) return;
      byId("map-status").textContent = "";
      this.#use(content, kind);
    } catch (error) {
      byId("map-status").textContent = error.message;
    }
  }

  #use(content, kind) {
    this.#points = content.index.map((index, i) => ({
      index,
      x: content.x[i] / 10000,
      y: content.y[i] / 10000,
      label: content.label[i],
      prediction: content.prediction[i],
      blocks_run: content.blocks_run[i],
    }));
    const ends = [content.x, content.y].map((values) => [Math.min(...values) / 10000, Math.max(...values) / 10000]);
    this.#box = { middle: ends.map(([low, high]) => (low + high) / 2), span: ends.map(([low, high]) => high - low || 1) };
    this.shownKind = kind;
    this.#point(null);
    this.#highlight = null;
    this.#legend();
    this.draw();
  }

  /** Marks the image of an answer and its neighbours. */
  mark(answer) {
    this.#answer = answer;
    this.draw();
  }

  /** Canvas position of a map position. The map is as large as fits, with the same scale in both directions. */
  #screen({ x, y }) {
    const { clientWidth: width, clientHeight: height } = this.canvas;
    const { middle, span } = this.#box;
    const scale = Math.min((width - 2 * MARGIN) / span[0], (height - 2 * MARGIN) / span[1]);
    return [width / 2 + (x - middle[0]) * scale, height / 2 - (y - middle[1]) * scale];
  }

  draw() {
    const { canvas } = this;
    const scale = window.devicePixelRatio || 1;
    canvas.width = Math.round(canvas.clientWidth * scale);
    canvas.height = Math.round(canvas.clientHeight * scale);
    if (!this.#points || !canvas.width) return;
    const pen = canvas.getContext("2d");
    const style = getComputedStyle(document.body);
    pen.scale(scale, scale);
    const radius = this.#points.length > 3000 ? 1.8 : this.#points.length > 800 ? 2.4 : 3.4;
    const near = new Set((this.#answer?.neighbours ?? []).map(({ index }) => index));
    for (const point of this.#points) {
      pen.globalAlpha = this.#highlight === null || point.label === this.#highlight ? 0.8 : 0.08;
      const size = this.run.samples && hasPicture(this.run, point.index) ? radius + 2 : radius;
      if (misclassified(point)) this.#cross(pen, point, size + 0.6);
      else this.#filled(pen, point, size);
    }
    pen.globalAlpha = 1;
    pen.lineWidth = 1.5;
    pen.strokeStyle = style.getPropertyValue("--ink");
    for (const point of this.#points) if (near.has(point.index)) this.#dot(pen, point, radius + 1.5).stroke();
    const place = this.#answer?.place?.[this.shownKind];
    if (place) this.#ring(pen, { x: place[0], y: place[1] }, style);
    if (this.#focus) {
      pen.lineWidth = 2.5;
      pen.strokeStyle = style.getPropertyValue("--accent");
      this.#dot(pen, this.#focus, radius + 4).stroke();
    }
  }

  #filled(pen, point, radius) {
    pen.fillStyle = this.#paint(point);
    this.#dot(pen, point, radius).fill();
  }

  #cross(pen, point, radius) {
    const [x, y] = this.#screen(point);
    pen.lineWidth = radius / 1.6;
    pen.strokeStyle = this.#paint(point);
    pen.beginPath();
    pen.moveTo(x - radius, y - radius);
    pen.lineTo(x + radius, y + radius);
    pen.moveTo(x - radius, y + radius);
    pen.lineTo(x + radius, y - radius);
    pen.stroke();
  }

  #dot(pen, point, radius) {
    pen.beginPath();
    pen.arc(...this.#screen(point), radius, 0, 2 * Math.PI);
    return pen;
  }

  #ring(pen, place, style) {
    pen.lineWidth = 5;
    pen.strokeStyle = style.getPropertyValue("--card");
    this.#dot(pen, place, 10).stroke();
    pen.lineWidth = 3;
    pen.strokeStyle = style.getPropertyValue("--lit-deep");
    this.#dot(pen, place, 10).stroke();
  }

  #paint(point) {
    if (this.#colour === "class") return classColour(point.label, this.run.classes.length);
    return blocksColour(point.blocks_run / this.run.block_share.length);
  }

  #at(event) {
    return pointAt(this.#points ?? [], (point) => this.#screen(point), [event.offsetX, event.offsetY], REACH);
  }

  #point(point) {
    if (point === this.#focus) return;
    this.#focus = point;
    this.draw();
    const tip = byId("tip");
    show(tip, Boolean(point));
    if (!point) return;
    const seen = hasPicture(this.run, point.index);
    show(byId("tip-picture"), seen);
    if (seen) byId("tip-picture").src = pictureOf(this.run, point.index);
    byId("tip-text").textContent = describe(this.run, point);
    const [x, y] = this.#screen(point);
    const right = x > this.canvas.clientWidth / 2;
    tip.style.left = right ? "auto" : `${x + 14}px`;
    tip.style.right = right ? `${this.canvas.clientWidth - x + 14}px` : "auto";
    tip.style.top = `${Math.min(y - 10, this.canvas.clientHeight - 84)}px`;
  }

  #pick(point) {
    if (point && hasPicture(this.run, point.index)) this.choose(point.index);
  }

  #key(event) {
    const directions = { ArrowRight: [1, 0], ArrowLeft: [-1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1] };
    if (event.key === "Enter" || event.key === " ") this.#pick(this.#focus);
    else if (event.key === "Escape") this.#point(null);
    else if (directions[event.key]) this.#step(directions[event.key]);
    else return;
    event.preventDefault();
    if (this.#focus) byId("live").textContent = describe(this.run, this.#focus);
  }

  #step(direction) {
    if (!this.#points) return;
    const from = this.#focus ?? this.#points.find(({ index }) => index === this.#answer?.index);
    const to = from ? pointAhead(this.#points, (point) => this.#screen(point), from, direction) : this.#points[0];
    if (to) this.#point(to);
  }

  #legend() {
    const { classes, block_share: blocks } = this.run;
    if (this.#colour === "class") classLegend(byId("legend"), classes, (label) => this.#press(label));
    else blocksLegend(byId("legend"), this.#points.map((point) => point.blocks_run), blocks.length);
  }

  #press(label) {
    this.#highlight = label;
    this.draw();
  }
}
