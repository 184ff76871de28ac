// The explorer's page. It shows one image at a time and routes it again whenever an input changes.

import { Accuracy } from "./accuracy.js";
import { request, Latest, routeTestImage, routeUpload } from "./api.js";
import { byId, debounce, percent, segment, show } from "./dom.js";
import { RoutingMap } from "./map.js";
import { acceptFiles, Picker } from "./picker.js";
import { Result } from "./result.js";

const PAUSE = 40; // milliseconds without slider movement before a request is sent

// `wanted` is the image chosen last, `shown` the one routed last; after an error the page returns to it.
const state = { wanted: null, shown: null, threshold: 0.5, view: null, seed: 0 };
const latest = new Latest();
const announce = debounce(400, (message) => (byId("live").textContent = message));
let run, result, picker, map, accuracy;

function showError(message) {
  byId("problem").textContent = message ?? "";
  show(byId("problem"), Boolean(message));
}

/** Route the wanted image with the current settings. */
async function refresh() {
  const source = state.wanted;
  if (!source) return;
  const query = { threshold: state.threshold, view: state.view, seed: state.seed };
  document.body.classList.add("loading");
  try {
    const answer = await latest.run((signal) =>
      source.blob
        ? routeUpload(source.blob, { ...query, cropped: source.cropped }, signal)
        : routeTestImage(source.index, query, signal),
    );
    if (!answer) return;
    // From now on, send the scaled image that the network sees instead of the original file.
    if (source.blob) {
      source.blob = fromDataUrl(answer.image.picture);
      source.cropped = true;
    }
    state.shown = source;
    showAnswer(answer);
    showError(null);
  } catch (error) {
    state.wanted = state.shown;
    showError(error.message);
  }
  document.body.classList.remove("loading");
}

function showAnswer(answer) {
  result.show(answer);
  map?.mark(answer);
  picker?.mark(answer.index);
  byId("picture").alt = `${state.shown.name}, as the network sees it`;
  byId("picture").title = state.shown.name;
  announce(result.summary(answer));
}

const refreshSoon = debounce(PAUSE, () => refresh());

function fromDataUrl(url) {
  const bytes = Uint8Array.from(atob(url.slice(url.indexOf(",") + 1)), (letter) => letter.charCodeAt(0));
  return new Blob([bytes], { type: "image/png" });
}

function choose(index) {
  state.wanted = { index, name: `Test image ${index}` };
  return refresh();
}

function upload(file) {
  if (file.size > run.limits.bytes) {
    showError(`${file.name} is too large: the limit is ${run.limits.bytes / 1e6} MB; scale it down.`);
    return;
  }
  state.wanted = { blob: file, name: file.name };
  refresh();
}

function setThreshold(value) {
  state.threshold = value;
  byId("threshold").value = value;
  byId("threshold-value").textContent = value.toFixed(2);
  accuracy.at(value);
  refreshSoon();
}

function describeRun() {
  const kind = run.routed ? "" : "static ";
  const parts = [`${kind}${run.network} on ${run.data}`];
  const metrics = run.evaluation;
  if (metrics) {
    parts.push(`${metrics.accuracy.toFixed(1)} % accuracy on ${metrics.n.toLocaleString("en")} test images`);
    if (run.routed) parts.push(`${percent(metrics.cost_share)} of the static cost`, `${metrics.distinct_paths} paths`);
  }
  byId("about").textContent = parts.join(" · ");
  document.title = `${run.network} on ${run.data} · codinet explorer`;
}

function setUpViews() {
  state.view = run.routed ? run.views[0].name : null;
  byId("views").append(...run.views.map(({ name, title }, i) => segment("view", name, title, i === 0)));
  byId("views").addEventListener("change", (event) => {
    state.view = event.target.value;
    byId("redraw").disabled = !run.views.find(({ name }) => name === state.view).random;
    refresh();
  });
  byId("redraw").addEventListener("click", () => {
    state.seed += 1;
    refresh();
  });
}

/** Says which test images there are if the data set is missing. */
function noteImages() {
  const missing = "The data set of this run is not on this machine.";
  const instead = run.samples
    ? `These ${run.images} test images come with the network. You can also upload images.`
    : "There are no test images to choose from. You can still upload images.";
  byId("no-images").textContent = `${missing} ${instead}`;
  show(byId("no-images"), Boolean(run.samples) || !run.images);
}

async function start() {
  run = await request("/api/run");
  describeRun();
  result = new Result(run, choose);
  accuracy = new Accuracy(run);
  setUpViews();
  byId("threshold").addEventListener("input", (event) => setThreshold(Number(event.target.value)));
  byId("reset").addEventListener("click", () => setThreshold(0.5));
  acceptFiles(upload);
  if (run.maps.length) map = new RoutingMap(run, choose);
  noteImages();
  if (run.routed) accuracy.at(state.threshold);
  if (!run.images) return;
  picker = new Picker(run, choose, showError);
  const images = await picker.fill();
  if (images.length && !state.wanted) await choose(images[0].index);
}

start().catch((error) => {
  byId("about").textContent = error.message;
});
