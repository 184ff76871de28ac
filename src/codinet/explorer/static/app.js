// The explorer's page: one image at a time, asked about again whenever something it depends on changes.

import { ask, Latest, routeTestImage, routeUpload } from "./api.js";
import { byId, percent, segment, settled, show } from "./dom.js";
import { RoutingMap } from "./map.js";
import { acceptFiles, Picker } from "./picker.js";
import { Result } from "./result.js";

const PAUSE = 40; // milliseconds a slider must rest before the server is asked

// `wanted` is the image last chosen, `shown` the one last answered: a refused upload falls back to it.
const state = { wanted: null, shown: null, threshold: 0.5, view: null, seed: 0 };
const latest = new Latest();
const announce = settled(400, (sentence) => (byId("live").textContent = sentence));
let run, result, picker, map;

function complain(sentence) {
  byId("problem").textContent = sentence ?? "";
  show(byId("problem"), Boolean(sentence));
}

/** Ask about the wanted image, with everything else as it stands now. */
async function refresh() {
  const source = state.wanted;
  if (!source) return;
  const asked = { threshold: state.threshold, view: state.view, seed: state.seed };
  document.body.classList.add("asking");
  try {
    const answer = await latest.run((signal) =>
      source.blob ? routeUpload(source.blob, asked, signal) : routeTestImage(source.index, asked, signal),
    );
    if (!answer) return;
    // From now on the few pixels that the network sees are sent, not the whole file.
    if (source.blob) source.blob = fromDataUrl(answer.image.picture);
    state.shown = source;
    put(answer);
    complain(null);
  } catch (error) {
    state.wanted = state.shown;
    complain(error.message);
  }
  document.body.classList.remove("asking");
}

function put(answer) {
  result.show(answer);
  map?.here(answer);
  picker?.mark(answer.index);
  byId("picture").alt = `${state.shown.name}, as the network sees it`;
  byId("picture").title = state.shown.name;
  announce(result.sentence(answer));
}

const refreshSoon = settled(PAUSE, () => refresh());

function fromDataUrl(url) {
  const bytes = Uint8Array.from(atob(url.slice(url.indexOf(",") + 1)), (letter) => letter.charCodeAt(0));
  return new Blob([bytes], { type: "image/png" });
}

function choose(index) {
  state.wanted = { index, name: `Test image ${index}` };
  return refresh();
}

function take(file) {
  if (file.size > run.limits.bytes) {
    complain(`${file.name} is too large: at most ${run.limits.bytes / 1e6} MB are taken; scale it down.`);
    return;
  }
  state.wanted = { blob: file, name: file.name };
  refresh();
}

function setThreshold(value) {
  state.threshold = value;
  byId("threshold").value = value;
  byId("threshold-value").textContent = value.toFixed(2);
  refreshSoon();
}

function describeRun() {
  const kind = run.routed ? "" : "static ";
  const parts = [`${kind}${run.network} on ${run.data}`];
  const figures = run.evaluation;
  if (figures) {
    parts.push(`${figures.accuracy.toFixed(1)} % right on ${figures.n.toLocaleString("en")} test images`);
    if (run.routed) parts.push(`${percent(figures.cost_share)} of the static cost`, `${figures.distinct_paths} paths`);
  }
  byId("about").textContent = parts.join(" · ");
  document.title = `${run.network} on ${run.data} · codinet explorer`;
}

function offerViews() {
  state.view = run.routed ? run.views[0].name : null;
  byId("views").append(...run.views.map(({ name, title }, i) => segment("view", name, title, i === 0)));
  byId("views").addEventListener("change", (event) => {
    state.view = event.target.value;
    byId("redraw").disabled = !run.views.find(({ name }) => name === state.view).drawn;
    refresh();
  });
  byId("redraw").addEventListener("click", () => {
    state.seed += 1;
    refresh();
  });
}

async function start() {
  run = await ask("/api/run");
  describeRun();
  result = new Result(run, choose);
  offerViews();
  byId("threshold").addEventListener("input", (event) => setThreshold(Number(event.target.value)));
  byId("reset").addEventListener("click", () => setThreshold(0.5));
  acceptFiles(take);
  if (run.maps.length) map = new RoutingMap(run, choose);
  show(byId("no-images"), !run.images);
  if (!run.images) return;
  picker = new Picker(run, choose, complain);
  const images = await picker.fill();
  if (images.length && !state.wanted) await choose(images[0].index);
}

start().catch((error) => {
  byId("about").textContent = error.message;
});
