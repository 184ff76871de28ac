// Image selection: drop, paste, file or test image.

import { request } from "./api.js";
import { byId, el, roving, show } from "./dom.js";
import { misclassified, thumb } from "./thumbs.js";

const SHOWN = 30;

/** Calls `upload` for every file that is dropped, pasted or chosen. */
export function acceptFiles(upload) {
  const drop = byId("drop");
  const file = byId("file");
  const carriesFiles = (event) => [...(event.dataTransfer?.types ?? [])].includes("Files");
  byId("choose").addEventListener("click", () => file.click());
  file.addEventListener("change", () => {
    if (file.files.length) upload(file.files[0]);
    file.value = ""; // so that the same file can be chosen again
  });
  // The whole window accepts files, because the browser would open a file dropped elsewhere.
  window.addEventListener("dragover", (event) => {
    if (!carriesFiles(event)) return;
    event.preventDefault();
    drop.classList.add("over");
  });
  window.addEventListener("dragleave", (event) => {
    if (!event.relatedTarget) drop.classList.remove("over");
  });
  window.addEventListener("drop", (event) => {
    if (!carriesFiles(event)) return;
    event.preventDefault();
    drop.classList.remove("over");
    if (event.dataTransfer.files.length) upload(event.dataTransfer.files[0]);
  });
  window.addEventListener("paste", (event) => {
    const pasted = event.clipboardData?.files ?? [];
    if (pasted.length) upload(pasted[0]);
  });
}

/** The gallery of test images; calls `choose(index)` for the selected one. */
export class Picker {
  #seed = Math.floor(Math.random() * 2 ** 31);
  #requests = 0;
  #current = null;

  constructor(run, choose, showError) {
    this.run = run;
    this.choose = choose;
    this.showError = showError;
    show(byId("picker"), true);
    const labels = run.samples ? new Set(run.samples.map(([, label]) => label)) : null;
    const options = run.classes.map((name, label) => el("option", { value: label }, name));
    byId("class").append(...options.filter((_, label) => !labels || labels.has(label)));
    show(byId("by-number"), !run.samples); // numbers refer to all test images
    byId("number").max = run.images - 1;
    byId("number").placeholder = `0–${run.images - 1}`;
    byId("orders").addEventListener("change", () => this.fill());
    byId("class").addEventListener("change", () => this.fill());
    byId("shuffle").addEventListener("click", () => {
      this.#seed = (this.#seed + 1) % 2 ** 31;
      document.querySelector('input[name="order"][value="random"]').checked = true;
      this.fill();
    });
    byId("by-number").addEventListener("submit", (event) => {
      event.preventDefault();
      if (byId("number").reportValidity() && byId("number").value !== "") choose(Number(byId("number").value));
    });
  }

  /** Shows thumbnails in the selected order and returns their images. */
  async fill() {
    const mine = (this.#requests += 1);
    const order = document.querySelector('input[name="order"]:checked').value;
    const query = { order, label: byId("class").value, seed: this.#seed, limit: SHOWN };
    try {
      const { images } = await request("/api/images", query);
      if (mine !== this.#requests) return [];
      byId("gallery").replaceChildren(...images.map((image) => thumb(this.run, image, this.choose)));
      roving(byId("gallery"));
      show(byId("gallery-help"), images.some(misclassified));
      this.mark(this.#current);
      return images;
    } catch (error) {
      this.showError(error.message);
      return [];
    }
  }

  /** Marks the thumbnail of the current image, if it is in the gallery. */
  mark(index) {
    this.#current = index;
    for (const button of document.querySelectorAll("#gallery button")) {
      button.classList.toggle("current", Number(button.dataset.index) === index);
    }
  }
}
