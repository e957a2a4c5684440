// Which points are shown and selected; who wants to know.
const state = { shown: Uint8Array.from(feasible), selected: new Set(), allowed: new Map() };
const listeners = [];
const onChange = (listener) => listeners.push(listener);
const notify = (what) => listeners.forEach((listener) => listener(what));

/** Show feasible points whose level of every filtered axis is allowed. */
function applyFilters() {
  const active = [...state.allowed].map(([axis, levels]) => [column(axis.codes), levels]);
  for (let point = 0; point < study.points; point++) {
    state.shown[point] = feasible[point] && active.every(([codes, levels]) => levels.has(codes[point])) ? 1 : 0;
  }
  notify("shown");
}

function select(points, { adding = false } = {}) {
  state.selected = new Set(adding ? [...state.selected, ...points] : points);
  notify("selected");
}

function toggle(points) {
  const all = points.every((point) => state.selected.has(point));
  points.forEach((point) => (all ? state.selected.delete(point) : state.selected.add(point)));
  notify("selected");
}

function shownPoints() {
  const found = [];
  for (let point = 0; point < study.points; point++) if (state.shown[point]) found.push(point);
  return found;
}

/** Return the points that no other beats in both of two columns, by rising first. */
function frontOf(points, first, second) {
  const order = points.filter((p) => Number.isFinite(first[p]) && Number.isFinite(second[p]));
  order.sort((p, q) => first[p] - first[q] || second[p] - second[q] || p - q);
  const front = [];
  let lowest = Infinity;
  for (const point of order) {
    if (second[point] < lowest) {
      front.push(point);
      lowest = second[point];
    }
  }
  return front;
}
