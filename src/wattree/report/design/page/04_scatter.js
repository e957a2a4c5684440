// Trade-offs: one point for each cluster, the front of what is shown, what is selected.
function scatterFigure() {
  const options = study.measures.map((one) => [one.name, one.label]);
  const [first, second] = [...study.objectives, ...study.measures.map((one) => one.name)].filter((name, i, all) => all.indexOf(name) === i);
  const changed = () => figure.mark();
  const x = choices("scatter-x", options, first, changed);
  const y = choices("scatter-y", options, second || first, changed);
  const hues = [["", "none"], ...varied.map((axis) => [axis.name, axis.label])];
  const hue = choices("scatter-color", hues, "", changed);
  const texts = [];
  let front = [];

  const draw = (theme) => {
    const across = measure(x()), up = measure(y());
    if (!across || !up) return { empty: "No total is known for any point." };
    const points = shownPoints();
    const [xs, ys] = [column(across.values), column(up.values)];
    const known = points.filter((p) => Number.isFinite(xs[p]) && Number.isFinite(ys[p]));
    if (!known.length) return { empty: "No point that is shown has both figures." };
    const [xScale, yScale] = [scaled(across, xs, known), scaled(up, ys, known)];
    front = frontOf(known, xs, ys);
    const places = (list) => ({
      x: list.map((p) => xs[p] / xScale[0]), y: list.map((p) => ys[p] / yScale[0]), customdata: list,
      hovertext: list.map((p) => (texts[p] ||= hoverText(p))), hoverinfo: "text", type: "scatter",
    });
    const chosen = known.filter((p) => state.selected.has(p));
    const data = [
      { ...places(known), mode: "markers", name: "points", marker: markers(known, hue(), theme) },
      { ...places(front), mode: "lines+markers", name: "front", line: { color: theme.ink, width: 1.5, shape: "hv" }, marker: { color: theme.ink, size: 7, symbol: "diamond" } },
      { ...places(chosen), mode: "markers", name: "selected", marker: { color: theme.mark, size: 13, symbol: "circle-open", line: { width: 3 } } },
    ];
    const last = front[front.length - 1], ends = [{ text: "front", color: theme.ink, x: xs[last] / xScale[0], y: ys[last] / yScale[0] }, ...levelEnds(known, hue(), (p) => ({ x: xs[p] / xScale[0], y: ys[p] / yScale[0] }))];
    const left = points.length - known.length, most = Math.max(...known.map((p) => ys[p])) / yScale[0];
    return {
      data,
      layout: { xaxis: { title: { text: `${across.label} [${xScale[1]}]` } }, yaxis: { title: { text: `${up.label} [${yScale[1]}]` } }, hovermode: "closest", height: 460, annotations: endLabels(ends, most, 375) },
      summary: `${known.length.toLocaleString("en")} points, every one drawn; ${front.length} of them on the front of these two` + (left ? `; ${left} lack one of the figures` : ""),
      head: ["Point on the front", across.label, up.label, "Strategy", ...varied.map((axis) => axis.label)],
      rows: front.map((p) => [pointName(p), figureText(xs[p], across.unit), figureText(ys[p], up.unit), study.workloads.map((w) => strategyAt(w, p)).join("; "), ...varied.map((axis) => levelAt(axis, p))]),
    };
  };
  const figure = new Figure("scatter", draw, {
    on: ["shown", "selected", "theme"],
    prepare: (canvas) => {
      canvas.on("plotly_click", (event) => toggle([event.points[0].customdata]));
      canvas.on("plotly_selected", (event) => { if (event && event.points.length) select(event.points.map((one) => one.customdata)); });
    },
  });
  return { front: () => { figure.render(); return front; } };
}

function scaled(figure, values, points) {
  let most = 0;
  for (const point of points) if (values[point] > most) most = values[point];
  return scaleOf(figure.unit, most);
}

/** The point furthest right of each level of an axis that has no scale, to name its color there. */
function levelEnds(points, name, place) {
  const axis = byName(study.axes, name);
  if (!axis || axis.numbers) return [];
  const codes = column(axis.codes);
  return axis.levels.flatMap((text, code) => {
    const [first, ...others] = points.filter((p) => codes[p] === code).map(place);
    return first ? [{ text, color: COLORS[code % COLORS.length], ...others.reduce((far, one) => (one.x > far.x ? one : far), first) }] : [];
  });
}

/** Color by the level of an axis: ordered axes by a scale, names by kind. */
function markers(points, name, theme) {
  const axis = byName(study.axes, name);
  const base = { size: 6, opacity: 0.65, color: theme.accent };
  if (!axis) return base;
  const codes = column(axis.codes);
  if (!axis.numbers) return { ...base, color: points.map((p) => COLORS[codes[p] % COLORS.length]) };
  const every = Math.max(1, Math.ceil(axis.levels.length / 8));
  const ticks = axis.levels.map((_, code) => code).filter((code) => code % every === 0);
  return {
    ...base, color: points.map((p) => codes[p]), colorscale: "Cividis", showscale: true, cmin: 0, cmax: axis.levels.length - 1,
    colorbar: { title: { text: plain(axis.label) }, tickvals: ticks, ticktext: ticks.map((code) => plain(axis.levels[code])), thickness: 14 },
  };
}
