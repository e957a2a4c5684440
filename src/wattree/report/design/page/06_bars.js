// Parts of a step's time and energy, for the selected points or, if none is, the front.
const MOST_BARS = 40;
/** Parts below this share of every bar are in the table alone. */
const SHOWN_SHARE = 5e-4;

function barFigures(front) {
  const changed = () => made.forEach((figure) => figure.mark());
  const workload = choices("bars-workload", study.workloads.map((one) => [one.name, one.name]), study.workloads[0].name, changed);
  const time = (one) => ({ parts: one.time_parts, whole: byName(one.figures, "step_time_s")?.values, unit: "s", what: "time of a step" });
  const energy = (one) => ({ parts: one.energy_parts, whole: one.step_energy, unit: "J", what: "energy of a step" });
  const made = [["time-bars", time], ["energy-bars", energy]].map(([id, parts]) =>
    new Figure(id, (theme) => stacked(workloadNamed(workload()), parts, front, theme), {
      on: ["shown", "selected", "theme"],
      prepare: (canvas) => canvas.on("plotly_click", (event) => toggle([event.points[0].customdata])),
    }));
}

function stacked(workload, choose, front, theme) {
  const { parts, whole, unit, what } = choose(workload);
  if (!whole) return { empty: `No ${what} is known.` };
  const picked = shownPoints().filter((point) => state.selected.has(point));
  const found = picked.length ? picked : front();
  const points = found.slice(0, MOST_BARS);
  const total = column(whole);
  const most = Math.max(...points.map((p) => total[p] || 0));
  if (!points.length || !most) return { empty: `No point that is shown has the ${what}.` };
  const [factor, name] = scaleOf(unit, most);
  const columns = parts.map((part) => ({ name: part.name, color: part.color, values: column(part.values) }));
  const rest = points.map((p) => total[p] - columns.reduce((sum, part) => sum + (part.values[p] || 0), 0));
  const undivided = points.map((p, i) => (columns.some((part) => part.values[p] > 0) && Math.abs(rest[i]) < 0.01 * total[p] ? 0 : Math.max(0, rest[i])));
  const base = { type: "bar", ...(points.length < 4 ? { width: 0.4 } : {}), x: points.map((_, i) => i), customdata: points, hoverinfo: "text" };
  const trace = (title, values, color) => ({
    ...base, name: plain(title.replaceAll("_", " ")), y: values.map((v) => (v || 0) / factor), marker: { color: color },
    hovertext: points.map((p, i) => `${plain(title)}: ${figureText(values[i], unit)}<br>${hoverText(p)}`),
  });
  const data = columns.filter((part) => points.some((p) => part.values[p] > SHOWN_SHARE * total[p])).map((part) => trace(part.name, points.map((p) => part.values[p]), COLORS[part.color % COLORS.length]));
  if (undivided.some((value) => value > 0)) data.push(trace("not divided", undivided, theme.neutral));
  let sum = 0;
  const ends = data.map(({ name: text, y, marker: { color } }) => {
    sum += y[y.length - 1];
    return { text, color, x: points.length - 0.6, y: sum - y[y.length - 1] / 2 };
  });
  const mark = (p) => (column(workload.simulated)[p] ? "" : "≈");
  return {
    data,
    layout: {
      barmode: "stack", height: 440, showlegend: false, annotations: endLabels(ends, 1.05 * (most / factor), 375), margin: { l: 60, r: roomFor(ends.map((end) => end.text)), t: 15, b: 50 },
      xaxis: { range: [-0.6, points.length - 0.4], tickvals: points.map((_, i) => i), ticktext: points.map((p) => pointName(p) + mark(p)), title: { text: "point" } },
      yaxis: { title: { text: `${what} [${name}]` } },
    },
    summary: `${picked.length ? "The selected points" : "The front of the trade-offs above (select points to see others)"}` + (found.length > points.length ? `: the first ${points.length} of ${found.length}` : "") + ". ≈ marks the closed form.",
    head: ["Point", "total", ...columns.map((part) => part.name), "not divided", "Strategy"],
    rows: points.map((p, i) => [pointName(p) + mark(p), figureText(total[p], unit), ...columns.map((part) => figureText(part.values[p], unit)), figureText(undivided[i], unit), strategyAt(workload, p)]),
  };
}
