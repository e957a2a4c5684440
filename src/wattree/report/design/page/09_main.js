// Filters, the state in words, the page's colors; then everything is put in place.
const MOST_TICKS = 16;

function filters() {
  const box = document.getElementById("filter-axes");
  const resets = varied.map((axis) => {
    const set = element("fieldset");
    set.append(element("legend", axis.label + (axis.unit ? ` [${axis.unit}]` : "")));
    box.append(set);
    return axis.levels.length <= MOST_TICKS || !axis.numbers ? ticked(axis, set) : ranged(axis, set);
  });
  document.getElementById("filter-reset").addEventListener("click", () => {
    resets.forEach((reset) => reset());
    state.allowed.clear();
    applyFilters();
  });
  document.getElementById("filters").hidden = !varied.length;
}

function ticked(axis, set) {
  const ticks = axis.levels.map((text, code) => {
    const label = element("label"), tick = element("input", "", { type: "checkbox", value: code });
    tick.checked = true;
    label.append(tick, ` ${text}`);
    set.append(label);
    return tick;
  });
  set.addEventListener("change", () => {
    state.allowed.set(axis, new Set(ticks.filter((tick) => tick.checked).map((tick) => Number(tick.value))));
    applyFilters();
  });
  return () => ticks.forEach((tick) => { tick.checked = true; });
}

function ranged(axis, set) {
  const ends = ["from", "to"].map((text, last) => {
    const label = element("label", `${text} `), end = element("select");
    axis.levels.forEach((level, code) => end.append(element("option", level, { value: code })));
    end.value = last ? axis.levels.length - 1 : 0;
    label.append(end);
    set.append(label);
    return end;
  });
  set.addEventListener("change", () => {
    const [low, high] = ends.map((end) => Number(end.value));
    state.allowed.set(axis, new Set(axis.levels.map((_, code) => code).filter((code) => low <= code && code <= high)));
    applyFilters();
  });
  return () => { ends[0].value = 0; ends[1].value = axis.levels.length - 1; };
}

function status() {
  const all = feasible.reduce((sum, one) => sum + one, 0), shown = state.shown.reduce((sum, one) => sum + one, 0);
  const hidden = [...state.selected].filter((point) => !state.shown[point]).length;
  document.getElementById("status").textContent =
    `${shown.toLocaleString("en")} of ${all.toLocaleString("en")} points that fit are shown, ${state.selected.size.toLocaleString("en")} selected` + (hidden ? ` (${hidden} of them hidden by filters)` : "") + ".";
}

function themes() {
  const names = { "": "as the system", light: "light", dark: "dark" };
  const button = document.getElementById("theme"), root = document.documentElement;
  button.addEventListener("click", () => {
    const kinds = Object.keys(names), next = kinds[(kinds.indexOf(root.dataset.theme || "") + 1) % kinds.length];
    if (next) root.dataset.theme = next; else delete root.dataset.theme;
    button.textContent = `Colors: ${names[next]}`;
    notify("theme");
  });
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => notify("theme"));
}

/** Unpack the library of plots; the page's policy knows it by its hash. */
async function unpackPlots() {
  const packed = document.getElementById("plotly");
  const bytes = Uint8Array.from(atob(packed.textContent), (letter) => letter.charCodeAt(0));
  const text = await new Response(new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"))).text();
  packed.remove();
  document.head.append(element("script", text));
}

async function start() {
  // What can be read stands there before a plot is drawn.
  await new Promise((done) => requestAnimationFrame(() => setTimeout(done)));
  await unpackPlots();
  filters();
  themes();
  const scatter = scatterFigure();
  worthFigures();
  heatFigure();
  barFigures(scatter.front);
  tornadoFigure();
  const table = pointsTable();
  onChange(status);
  status();
  document.getElementById("select-front").addEventListener("click", () => select(scatter.front()));
  document.getElementById("select-none").addEventListener("click", () => select([]));
  settle(2, table);
}

// Ready once whatever is in view has been drawn; the first frame finds out what is.
function settle(frames, table) {
  requestAnimationFrame(() => {
    if (frames > 0 || figures.some((one) => one.seen && one.stale)) return settle(frames - 1, table);
    performance.mark("wattree:interactive");
    document.documentElement.dataset.ready = "yes";
    rest([...figures.map((one) => () => one.render()), table]);
    return undefined;
  });
}

/** Draw what is out of view, too, one plot each time the browser is idle: pictures of whole pages have it. */
function rest([first, ...others]) {
  if (!first) document.documentElement.dataset.drawn = "yes";
  else (window.requestIdleCallback || setTimeout)(() => { first(); rest(others); });
}
start();
