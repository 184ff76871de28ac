// Choosing an image: dropped, pasted, from a file, or one of the test images.

import { ask } from "./api.js";
import { byId, el, roving, show } from "./dom.js";
import { thumb } from "./thumbs.js";

const SHOWN = 30;

/** Files that are dropped, pasted or chosen go to `take`. */
export function acceptFiles(take) {
  const drop = byId("drop");
  const file = byId("file");
  const carriesFiles = (event) => [...(event.dataTransfer?.types ?? [])].includes("Files");
  byId("choose").addEventListener("click", () => file.click());
  file.addEventListener("change", () => {
    if (file.files.length) take(file.files[0]);
    file.value = ""; // the same file may be chosen again
  });
  // The whole window takes files, because a browser opens what misses the target.
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
    if (event.dataTransfer.files.length) take(event.dataTransfer.files[0]);
  });
  window.addEventListener("paste", (event) => {
    const pasted = event.clipboardData?.files ?? [];
    if (pasted.length) take(pasted[0]);
  });
}

/** The test images to pick from; `choose(index)` is called for the one that is picked. */
export class Picker {
  #seed = Math.floor(Math.random() * 2 ** 31);
  #asked = 0;
  #current = null;

  constructor(run, choose, complain) {
    this.run = run;
    this.choose = choose;
    this.complain = complain;
    show(byId("picker"), true);
    byId("class").append(...run.classes.map((name, label) => el("option", { value: label }, name)));
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

  /** Show thumbnails in the chosen order; the images shown. */
  async fill() {
    const mine = (this.#asked += 1);
    const order = document.querySelector('input[name="order"]:checked').value;
    const asked = { order, label: byId("class").value, seed: this.#seed, limit: SHOWN };
    try {
      const { images } = await ask("/api/images", asked);
      if (mine !== this.#asked) return [];
      byId("gallery").replaceChildren(...images.map((image) => thumb(this.run, image, this.choose)));
      roving(byId("gallery"));
      this.mark(this.#current);
      return images;
    } catch (error) {
      this.complain(error.message);
      return [];
    }
  }

  /** Mark the image that is shown, where it is among the thumbnails. */
  mark(index) {
    this.#current = index;
    for (const button of document.querySelectorAll("#gallery button")) {
      button.classList.toggle("current", Number(button.dataset.index) === index);
    }
  }
}
