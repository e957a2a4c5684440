// Answers that were computed with the report, as plots: what values buy, and the tornado.
const MOST_LINES = 8;
/** Height of the lines of such a plot, and of one of their names. */
const PLOT_PIXELS = 315, LABEL_PIXELS = 15;
/** Measures that have a panel each, rather than a choice. */
const MOST_PANELS = 4;

function worthFigures() {
  study.worths.forEach((worth, place) => {
    const axis = byName(study.axes, worth.axis);
    const others = varied.filter((one) => one !== axis && one.levels.length <= MOST_LINES);
    const options = [["", "all else reoptimized, and alone"], ...others.map((one) => [one.name, `each ${one.label}`])];
    const by = choices(`worth-${place}-by`, options, worth.by || "", () => figure.mark());
    const figure = new Figure(`worth-${place}`, (theme) => worthPlot(axis, by() ? linesBy(axis, byName(study.axes, by())) : linesOf(axis), theme), {
      on: ["theme"],
      prepare: (canvas) => canvas.on("plotly_click", (event) => select([event.points[0].customdata])),
    });
  });
}

/** Return, for each value of another axis, the best point at each value of this one. */
function linesBy(axis, other) {
  const values = column(measure(study.objectives[0]).values), [along, which] = [column(axis.codes), column(other.codes)];
  return other.levels.map((label, level) => {
    const best = new Map();
    for (let p = 0; p < study.points; p++) {
      if (!feasible[p] || which[p] !== level || !Number.isFinite(values[p])) continue;
      if (!best.has(along[p]) || values[p] < values[best.get(along[p])]) best.set(along[p], p);
    }
    const codes = [...best.keys()].sort((a, b) => a - b), points = codes.map((code) => best.get(code));
    return { label, codes, points, values: points.map((p) => values[p]) };
  }).filter((line) => line.points.length);
}

function worthPlot(axis, lines, theme) {
  if (!lines.length) return { empty: "Nothing fits." };
  const measured = measure(study.objectives[0]);
  const [factor, name] = scaleOf(measured.unit, Math.max(...lines.flatMap((line) => line.values)));
  const log = axis.numbers && axis.numbers[0] > 0 && axis.numbers[axis.numbers.length - 1] > 20 * axis.numbers[0];
  const x = (code) => (axis.numbers ? axis.numbers[code] : code);
  const dashes = ["solid", "dot", "dash", "dashdot"], symbols = ["circle", "square", "diamond", "triangle-up", "x", "star"];
  const color = (i) => (lines === linesOf(axis) ? [theme.accent, theme.quiet][i] : COLORS[i % COLORS.length]);
  const shownCodes = [...new Set(lines.flatMap((line) => line.codes))].sort((a, b) => a - b);
  return {
    data: lines.map((line, i) => ({
      type: "scatter", mode: axis.numbers ? "lines+markers" : "markers", name: plain(short(line.label, 40)), x: line.codes.map(x), y: line.values.map((v) => v / factor),
      customdata: line.points, hoverinfo: "text", hovertext: line.points.map((p, k) => `${plain(axis.levels[line.codes[k]])}: ${figureText(line.values[k], measured.unit)}<br>${hoverText(p)}`),
      line: { color: color(i), dash: dashes[i % dashes.length], width: 2 }, marker: { size: 8, symbol: symbols[i % symbols.length], color: color(i) },
    })),
    layout: {
      height: 380, hovermode: "closest", ...endLabels(lines, (code) => (log ? Math.log10(x(code)) : x(code)), factor, color),
      xaxis: {
        title: { text: plain(titleOf(axis)) }, type: log ? "log" : "linear", zeroline: false,
        ...(shownCodes.length <= 10 ? { tickvals: shownCodes.map(x), ticktext: shownCodes.map((code) => plain(short(bare(axis, axis.levels[code]), 22))) } : {}),
      },
      yaxis: { title: { text: `${measured.label} [${name}]` } },
    },
    summary: summaryOf(axis, lines),
    head: [axis.label, ...lines.flatMap((line) => [line.label, "strategy there"])],
    rows: shownCodes.map((code) => [axis.levels[code], ...lines.flatMap((line) => cellsOf(line, line.codes.indexOf(code), measured.unit))]),
  };
}

/** Name lines at their ends, one above the other where they meet; a legend has the names in narrow windows. */
function endLabels(lines, x, factor, color) {
  if (innerWidth < 600) return {};
  const ends = lines.map((line, i) => ({ text: plain(short(line.label, 28)), i, at: line.codes.length - 1, y: line.values[line.values.length - 1] / factor, line }));
  const ys = lines.flatMap((line) => line.values.map((value) => value / factor));
  const pixels = PLOT_PIXELS / (1.1 * (Math.max(...ys) - Math.min(...ys)) || 1);
  let below = -Infinity;
  const annotations = [...ends].sort((a, b) => a.y - b.y).map((end) => {
    const place = Math.max(end.y * pixels, below + LABEL_PIXELS);
    below = place;
    return { x: x(end.line.codes[end.at]), y: end.y, text: `<span style="color:${color(end.i)}">●</span> ${end.text}`, font: { size: 12 }, showarrow: false, xanchor: "left", xshift: 9, yshift: place - end.y * pixels };
  });
  const longest = Math.max(...ends.map((end) => end.text.length));
  return { annotations, showlegend: false, margin: { l: 60, r: 40 + 6.5 * longest, t: 15, b: 50 } };
}

/** The lines of an axis' answers; one that is the same as the one before is not drawn twice. */
const distinct = new Map();
function linesOf(axis) {
  if (!distinct.has(axis)) {
    const lines = study.worths.find((worth) => worth.axis === axis.name).lines, drawn = (line) => JSON.stringify([line.codes, line.values]);
    distinct.set(axis, lines.filter((line, i) => !i || drawn(line) !== drawn(lines[i - 1])));
  }
  return distinct.get(axis);
}

function cellsOf(line, place, unit) {
  if (place < 0) return ["nothing fits", ""];
  return [figureText(line.values[place], unit), study.workloads.map((one) => strategyAt(one, line.points[place])).join("; ")];
}

function summaryOf(axis, lines) {
  if (lines !== linesOf(axis)) return "Each line has the best of all other axes at every value.";
  return lines.length > 1 ? "Both lines meet at the best point." : "No other point differs from the best one in this axis alone.";
}

/** Each axis alone: a panel for each measure, or one of a chosen measure where they are many. */
function tornadoFigure() {
  const known = study.tornados.filter((one) => one.bars.length);
  const few = known.length > 1 && known.length <= MOST_PANELS;
  const chosen = choices("tornado-measure", few ? [] : study.tornados.map((one) => [one.measure, one.label]), study.objectives[0], () => figure.mark());
  const draw = (theme) => {
    const panels = few ? known : study.tornados.filter((one) => one.measure === chosen()).concat(study.tornados).slice(0, 1);
    const [first] = panels;
    if (!first) return { empty: "No measure is known." };
    if (!first.bars.length) return { empty: first.reason || "No point differs from the best one in one axis alone: a random sample has none. See the main effects below." };
    const names = [...new Set(panels.flatMap((one) => one.bars.map((bar) => bar.axis)))].reverse();
    const across = innerWidth >= 1000 ? panels.length : 1, down = panels.length / across;
    const axes = Object.assign({}, ...panels.map((one, i) => panelAxes(one, i, names, across)));
    return {
      data: panels.flatMap((one, i) => tornadoBars(one, i, names)),
      layout: {
        barmode: "overlay", height: down * (120 + 30 * names.length) + 20, showlegend: true, grid: { rows: down, columns: across, pattern: "independent", xgap: 0.08, ygap: 0.5 }, ...axes,
        shapes: panels.map((_, i) => ({ type: "line", x0: 1, x1: 1, xref: `x${i + 1}`.replace("x1", "x"), yref: `y${i + 1} domain`.replace("y1 ", "y "), y0: 0, y1: 1, line: { color: theme.ink, width: 1 } })),
      },
      summary: "Each axis alone, over its values, from the best point.",
      head: ["Measure", "Axis", "Best", "at", "Worst", "at", "Base"],
      rows: panels.flatMap((one) => one.bars.map((bar) => [one.label, bar.axis, `${bar.low.toFixed(3)} ×`, bar.at_low, `${bar.high.toFixed(3)} ×`, bar.at_high, bar.base])),
    };
  };
  const figure = new Figure("tornado", draw, { on: ["theme"] });
}

function panelAxes(one, i, names, across) {
  const number = i ? String(i + 1) : "", labeled = i % across === 0;
  return {
    [`xaxis${number}`]: { title: { text: plain(`${one.label}, relative to ${pointName(one.base)}`) } },
    [`yaxis${number}`]: { range: [-0.6, names.length - 0.4], tickvals: names.map((_, k) => k), ticktext: names.map((name) => (labeled ? plain(short(name, innerWidth < 600 ? 16 : 32)) : "")) },
  };
}

function tornadoBars(one, i, names) {
  const number = i ? String(i + 1) : "";
  const side = (name, low, high, say, color) => ({
    type: "bar", orientation: "h", name, legendgroup: name, showlegend: i === 0, xaxis: `x${number}`, yaxis: `y${number}`, marker: { color: color },
    y: one.bars.map((bar) => names.indexOf(bar.axis)), base: one.bars.map(low), x: one.bars.map((bar) => high(bar) - low(bar)),
    hoverinfo: "text", hovertext: one.bars.map((bar) => plain(`${bar.axis}: ${say(bar)} (base ${bar.base})`)),
  });
  return [
    side("better than the best point", (bar) => bar.low, () => 1, (bar) => `${bar.low.toFixed(3)} × at ${bar.at_low}`, COLORS[2]),
    side("worse", () => 1, (bar) => bar.high, (bar) => `${bar.high.toFixed(3)} × at ${bar.at_high}`, COLORS[5]),
  ].filter((trace) => trace.x.some((length) => length > 0));
}
