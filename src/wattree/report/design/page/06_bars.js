// Parts of a step's time and energy, for the selected points or, if none is, the front.
const MOST_BARS = 40;
/** Parts below this share of every bar are in the table alone. */
const SHOWN_SHARE = 5e-4;

function barFigures(front) {
  const changed = () => made.forEach((figure) => figure.mark());
  const few = study.workloads.length <= MOST_PANELS, names = few ? [] : study.workloads.map((one) => [one.name, one.name]);
  const workload = choices("bars-workload", names, study.workloads[0].name, changed);
  const time = (one) => ({ parts: one.time_parts, whole: byName(one.figures, "step_time_s")?.values, unit: "s", what: "time of a step" });
  const energy = (one) => ({ parts: one.energy_parts, whole: one.step_energy, unit: "J", what: "energy of a step" });
  const made = [["time-bars", time], ["energy-bars", energy]].map(([id, parts]) =>
    new Figure(id, (theme) => stackedPanels(few ? study.workloads : [workloadNamed(workload())], parts, front, theme), {
      on: ["shown", "selected", "theme"],
      prepare: (canvas) => canvas.on("plotly_click", (event) => toggle([event.points[0].customdata])),
    }));
}

/** A panel for each workload, one above the other. */
function stackedPanels(workloads, choose, front, theme) {
  const all = workloads.map((one) => stacked(one, choose, front, theme)), drawn = all.filter((one) => !one.empty);
  if (drawn.length < 2) return drawn[0] || all[0];
  const heads = [...new Set(drawn.flatMap((one) => one.head))], right = Math.max(...drawn.map((one) => one.layout.margin.r));
  const title = (one, number) => ({ text: plain(one.workload.name), xref: `x${number} domain`, yref: `y${number} domain`, x: 0, y: 1, xanchor: "left", yanchor: "bottom", showarrow: false });
  const compose = (some) => {
    const numbered = some.map((one, i) => [one, i ? String(i + 1) : ""]);
    return {
      data: numbered.flatMap(([one, number]) => one.data.map((bar) => ({ ...bar, xaxis: `x${number}`, yaxis: `y${number}` }))),
      layout: {
        barmode: "stack", height: 440 * some.length, margin: { ...some[0].layout.margin, r: right, t: 30 }, grid: { rows: some.length, columns: 1, pattern: "independent", ygap: 0.3 },
        annotations: numbered.flatMap(([one, number]) => [title(one, number), ...one.layout.annotations.map((note) => ({ ...note, xref: `x${number}`, yref: `y${number}` }))]),
        ...Object.assign({}, ...numbered.map(([one, number]) => ({ [`xaxis${number}`]: one.layout.xaxis, [`yaxis${number}`]: one.layout.yaxis }))),
      },
    };
  };
  return {
    ...drawn[0], ...compose(drawn), panels: drawn.map((one) => compose([one])),
    head: ["Workload", ...heads],
    rows: drawn.flatMap((one) => one.rows.map((row) => [one.workload.name, ...heads.map((head) => row[one.head.indexOf(head)] ?? "")])),
  };
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
    data, workload,
    layout: {
      barmode: "stack", height: 440, annotations: endLabels(ends, 1.05 * (most / factor), 375), margin: { l: 60, r: roomFor(ends.map((end) => end.text)), t: 15, b: 50 },
      xaxis: { range: [-0.6, points.length - 0.4], tickvals: points.map((_, i) => i), ticktext: points.map((p) => pointName(p) + mark(p)), title: { text: "point" } },
      yaxis: { title: { text: `${what} [${name}]` } },
    },
    summary: `${picked.length ? "The selected points" : "The front of the trade-offs above (select points to see others)"}` + (found.length > points.length ? `: the first ${points.length} of ${found.length}` : "") + ". ≈ marks the closed form, which gives totals alone.",
    head: ["Point", "total", ...columns.map((part) => part.name), "not divided", "Strategy"],
    rows: points.map((p, i) => [pointName(p) + mark(p), figureText(total[p], unit), ...columns.map((part) => figureText(part.values[p], unit)), figureText(undivided[i], unit), strategyAt(workload, p)]),
  };
}
