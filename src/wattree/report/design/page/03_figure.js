// A plot: drawn when it comes into view, again when what it shows changed; saved; shown as a table.
// Okabe and Ito's colors (2008) stay apart for the color-blind; more kinds repeat them.
const COLORS = ["#0072B2", "#E69F00", "#009E73", "#CC79A7", "#56B4E9", "#D55E00", "#999999", "#F0E442"];
const figures = [];
const PAPER = { page: "#ffffff", ink: "#000000", quiet: "#333333", line: "#d0d0d0", mark: "#d4005f", neutral: "#8b95a1", accent: "#0b5cad" };
/** Paper shows every plot, as wide as a page of A4 between its margins. */
const PRINTED = 670;
/** Height of a line of a label in a plot. */
const LABEL_PIXELS = 15;

function colors() {
  const style = getComputedStyle(document.documentElement);
  const names = ["page", "ink", "quiet", "line", "mark", "neutral", "accent"];
  return Object.fromEntries(names.map((name) => [name, style.getPropertyValue(`--${name}`).trim()]));
}

/** Lay colors and sizes under what a plot says of its layout. */
function themed(layout, theme) {
  const axis = { gridcolor: theme.line, zerolinecolor: theme.line, linecolor: theme.neutral, automargin: true };
  const found = {
    paper_bgcolor: theme.page, plot_bgcolor: theme.page, font: { color: theme.ink, size: innerWidth < 600 ? 11 : 13 },
    margin: { l: 60, r: 15, t: 15, b: 50 }, height: 420, hoverlabel: { align: "left" },
    showlegend: false, ...layout,
  };
  const axes = Object.keys(layout).filter((key) => /^[xy]axis/.test(key));
  for (const key of ["xaxis", "yaxis", ...axes]) found[key] = { ...axis, ...layout[key] };
  return found;
}

class Figure {
  /** `draw(theme)` returns { data, layout, summary, head, rows }, or { empty: reason }; `panels` has data and layout of each panel alone, between which paper may break. */
  constructor(id, draw, { on = [], prepare = () => {} } = {}) {
    this.node = document.getElementById(id);
    this.canvas = this.node.querySelector(".canvas");
    this.details = this.node.querySelector("details.data");
    Object.assign(this, { id, draw, on, prepare, seen: false, stale: true, prepared: false });
    this.details.addEventListener("toggle", () => this.tell());
    this.node.querySelectorAll("[data-save]").forEach((button) => {
      button.addEventListener("click", () => this.save(button.dataset.save));
    });
    figures.push(this);
    watcher.observe(this.node);
    onChange((what) => { if (this.on.includes(what)) this.mark(); });
  }

  mark() {
    this.stale = true;
    if (this.seen) schedule(this);
  }

  /** Draw what is stale; on paper everything, in its colors, and then the screen's is stale. */
  render(paper = printing) {
    if (!this.stale && !paper) return;
    this.stale = paper;
    const began = performance.now(), theme = paper ? PAPER : colors();
    this.said = this.draw(theme);
    this.node.querySelector(".summary").textContent = this.said.empty || this.said.summary || "";
    this.node.querySelectorAll("[data-save]").forEach((one) => { one.disabled = Boolean(this.said.empty); });
    this.canvas.hidden = Boolean(this.said.empty);
    if (!this.said.empty) {
      const settings = { responsive: true, displaylogo: false, modeBarButtonsToRemove: ["toImage"], doubleClick: "reset" };
      const parts = (paper && this.said.panels) || [this.said], size = paper ? { width: PRINTED, autosize: false } : {};
      this.node.querySelectorAll(".canvas ~ .canvas").forEach((one) => one.remove());
      parts.forEach(({ data, layout }, i) => {
        const canvas = i ? this.canvas.parentNode.insertBefore(element("div", "", { class: "canvas" }), this.details) : this.canvas;
        Plotly.react(canvas, data, { ...themed(layout, theme), ...size }, settings);
      });
      if (!this.prepared) this.prepare(this.canvas);
      this.prepared = true;
    }
    this.tell();
    performance.measure(`wattree:${this.id}`, { start: began, end: performance.now() });
  }

  /** Write the table, where it is open. */
  tell() {
    if (!this.details.open || !this.said) return;
    const { head = [], rows = [] } = this.said;
    this.details.querySelector(".scroll").replaceChildren(tableOf(head, rows));
  }

  /** Save the plot as it is shown, in black on white, whatever the page's colors are. */
  async save(format) {
    if (this.stale) this.render();
    const said = this.draw(PAPER);
    const size = { width: 900, height: Math.max(450, said.layout.height || 0), format, scale: format === "png" ? 2 : 1 };
    const layout = themed(said.layout, PAPER);
    if (study.marked) {
      layout.margin = { ...layout.margin, t: layout.margin.t + 20 };
      layout.annotations = [...(layout.annotations || []), { text: plain(study.marked), showarrow: false, xref: "paper", yref: "paper", x: 1, xanchor: "right", y: 1.02, yanchor: "bottom", font: { size: 11 } }];
    }
    const url = await Plotly.toImage({ data: said.data, layout }, size);
    const link = document.createElement("a");
    link.href = url;
    link.download = `${this.id}.${format}`;
    link.click();
  }
}

/** A name as the lines of a label: shorter ones where the window is narrow. */
function wrapped(text) {
  const most = innerWidth < 600 ? 12 : 28, lines = [];
  for (const word of short(text, 3 * most).split(" ")) {
    const last = lines[lines.length - 1];
    if (last !== undefined && `${last} ${word}`.length <= most) lines[lines.length - 1] = `${last} ${word}`;
    else lines.push(short(word, most));
  }
  return lines;
}

/** Room for labels right of a plot. */
const roomFor = (labels) => 40 + 6.5 * Math.max(...labels.flatMap(wrapped).map((line) => line.length));

/** Name what ends at the right of a plot there, one above the other where ends meet; `range` is that of its height. */
function endLabels(ends, range, pixels, number = "", shift = 9) {
  const scale = pixels / (range || 1);
  let below = -Infinity;
  return [...ends].sort((a, b) => a.y - b.y).map((end) => {
    const lines = wrapped(end.text), half = (lines.length * LABEL_PIXELS) / 2, place = Math.max(end.y * scale, below + half);
    below = place + half;
    const text = `<span style="color:${end.color}">●</span> ${lines.map(plain).join("<br>")}`;
    return { x: end.x, y: end.y, xref: `x${number}`, yref: `y${number}`, text, align: "left", font: { size: 12 }, showarrow: false, xanchor: "left", xshift: shift, yshift: place - end.y * scale };
  });
}

/** Whether the page is on its way to paper: whatever is drawn then has the colors of paper. */
let printing = false;
addEventListener("beforeprint", () => { printing = true; figures.forEach((figure) => figure.render()); });
addEventListener("afterprint", () => { printing = false; figures.forEach((figure) => figure.mark()); });

const waiting = new Set();
/** Draw soon, once, however many changes come at once. */
function schedule(figure) {
  if (!waiting.size) requestAnimationFrame(() => {
    const now = [...waiting];
    waiting.clear();
    now.forEach((one) => one.render());
  });
  waiting.add(figure);
}

const watcher = new IntersectionObserver((entries) => {
  for (const entry of entries) {
    const figure = figures.find((one) => one.node === entry.target);
    figure.seen = entry.isIntersecting;
    if (figure.seen && figure.stale) schedule(figure);
  }
}, { rootMargin: "200px" });

function element(name, text = "", attributes = {}) {
  const node = document.createElement(name);
  node.textContent = text;
  Object.entries(attributes).forEach(([key, value]) => node.setAttribute(key, value));
  return node;
}

/** A cell of a table; its heading stands next to it where a row is a block. */
function cellOf(text, head) {
  return element("td", text, { "data-head": head, ...(text.length <= 12 ? { class: "brief" } : {}) });
}

function tableOf(head, rows) {
  const table = element("table", "", head.length > 5 ? { class: "many" } : head.length > 3 ? { class: "some" } : {});
  const top = table.createTHead().insertRow();
  head.forEach((text) => top.append(element("th", text, { scope: "col" })));
  const body = table.createTBody();
  rows.forEach((row) => {
    const line = body.insertRow();
    row.forEach((text, place) => line.append(place ? cellOf(text, head[place]) : element("th", text, { scope: "row" })));
  });
  return table;
}

/** Fill a choice; `options` are [value, label]. It shows only if there is something to choose. */
function choices(id, options, chosen, changed) {
  const node = document.getElementById(id);
  options.forEach(([value, label]) => node.append(element("option", label, { value })));
  if (options.some(([value]) => value === chosen)) node.value = chosen;
  node.closest("label").hidden = options.length < 2;
  node.addEventListener("change", changed);
  return () => node.value;
}
