// The study's columns, unpacked when they are first asked for, and figures in words.
const study = JSON.parse(document.getElementById("study-data").textContent);
const KINDS = { f32: Float32Array, u8: Uint8Array, u16: Uint16Array, u32: Uint32Array };
const unpacked = new WeakMap();

/** Return the array of a packed column (little-endian, as every machine with a browser is). */
function column(packed) {
  if (!unpacked.has(packed)) {
    const text = atob(packed.data);
    const bytes = new Uint8Array(text.length);
    for (let i = 0; i < text.length; i++) bytes[i] = text.charCodeAt(i);
    unpacked.set(packed, new KINDS[packed.kind](bytes.buffer));
  }
  return unpacked.get(packed);
}

const byName = (list, name) => list.find((one) => one.name === name);
const measure = (name) => byName(study.measures, name);
const workloadNamed = (name) => byName(study.workloads, name) || study.workloads[0];
const strategyAt = (workload, point) => workload.strategy.texts[column(workload.strategy.codes)[point]];
const notesAt = (workload, point) => workload.notes.texts[column(workload.notes.codes)[point]];
const reasonAt = (point) => study.reason.texts[column(study.reason.codes)[point]];
const levelAt = (axis, point) => axis.levels[column(axis.codes)[point]];
const varied = study.axes.filter((axis) => axis.levels.length > 1);
const feasible = column(study.feasible);

/** Unit → [least value, name, factor if it differs] from large to small; the first that a value reaches is used. */
const SCALES = {
  s: [[2 * 86400, "d", 86400], [2 * 3600, "h", 3600], [1, "s"], [1e-3, "ms"], [1e-6, "µs"]],
  J: [[3.6e15, "TWh"], [3.6e12, "GWh"], [3.6e9, "MWh"], [3.6e6, "kWh"], [1e3, "kJ"], [1, "J"]],
  W: [[1e9, "GW"], [1e6, "MW"], [1e3, "kW"], [1, "W"]],
  USD: [[1e9, "billion USD"], [1e6, "million USD"], [1e3, "thousand USD"], [1, "USD"]],
  gCO2e: [[1e6, "tCO2e"], [1e3, "kgCO2e"], [1, "gCO2e"]],
  B: [[1e12, "TB"], [1e9, "GB"], [1e6, "MB"], [1, "B"]],
};

function scaleOf(unit, typical) {
  const scales = SCALES[unit] || [[1, unit]];
  const [from, name, factor] = scales.find(([least]) => typical >= least) || scales[scales.length - 1];
  return [factor || from, name];
}

function digits(value) {
  if (!Number.isFinite(value)) return "–";
  return value.toLocaleString("en", { maximumSignificantDigits: Math.abs(value) >= 1000 ? 5 : 3 });
}

function figureText(value, unit) {
  if (!Number.isFinite(value)) return "–";
  const [factor, name] = scaleOf(unit, Math.abs(value));
  if (unit !== "USD") return `${digits(value / factor)} ${name}`;
  if (Math.abs(value) >= 1e6) return `$${digits(value / factor)} ${name.split(" ")[0]}`;
  return `$${Math.abs(value) < 1e3 ? digits(value) : Math.round(value).toLocaleString("en-US")}`;
}

/** A figure of a point; a cluster whose price is not known has no cost. */
function measureText(one, point) {
  const value = column(one.values)[point];
  return feasible[point] && one.unit === "USD" && !Number.isFinite(value) ? "no price" : figureText(value, one.unit);
}

/** Texts of files are no markup in labels of plots either. */
const ESCAPES = { "&": "&amp;", "<": "&lt;", ">": "&gt;", '"': "&quot;" };
const plain = (text) => String(text).replace(/[&<>"]/g, (character) => ESCAPES[character]);
const short = (text, most) => (text.length > most ? `${text.slice(0, most - 1)}…` : text);
/** An axis with its unit, and a value of it without, as plots write them. */
const titleOf = (axis) => (axis.unit ? `${axis.label} [${axis.unit}]` : axis.label);
const bare = (axis, text) => (axis.unit && text.endsWith(` ${axis.unit}`) ? text.slice(0, -axis.unit.length - 1) : text);
const pointName = (point) => `#${point + 1}`;
const valuesAt = (point) => varied.map((axis) => `${axis.label} ${levelAt(axis, point)}`);

/** Return what hovering over a point says, as lines of a plot's markup. */
function hoverText(point) {
  const strategies = study.workloads.map((one) => {
    const mark = column(one.simulated)[point] ? "" : " (closed form)";
    const name = study.workloads.length > 1 ? `${one.name}: ` : "";
    const notes = notesAt(one, point);
    return `${name}${strategyAt(one, point)}${mark}${notes ? `; ${notes}` : ""}`;
  });
  const lines = [`Point ${pointName(point)}`, ...strategies, ...valuesAt(point)];
  return lines.map((line) => plain(short(line, 120))).join("<br>");
}
