// Answers that were computed with the report, as plots: what values buy, and the tornado.
const MOST_LINES = 8;
/** Height of the lines of such a plot. */
const PLOT_PIXELS = 290;
/** Measures, lines or workloads that have a panel each, rather than a choice. */
const MOST_PANELS = 6;

/** What values of an axis buy: a panel for each other axis, or one of a chosen axis where they are many. */
function worthFigures() {
  study.worths.forEach((worth, place) => {
    const axis = byName(study.axes, worth.axis);
    const others = varied.filter((one) => one !== axis && one.levels.length <= MOST_LINES);
    const options = [["", "all else reoptimized, and alone"], ...others.map((one) => [one.name, `by ${one.label}`])];
    const few = options.length <= MOST_PANELS;
    const by = choices(`worth-${place}-by`, few ? [] : options, worth.by || "", () => figure.mark());
    const panel = ([name, label]) => ({ label, lines: name ? linesBy(axis, byName(study.axes, name)) : linesOf(axis) });
    const draw = (theme) => worthPlot(axis, options.filter(([name]) => few || name === by()).map(panel).filter((one) => one.lines.length), theme);
    const figure = new Figure(`worth-${place}`, draw, { on: ["theme"], prepare: (canvas) => canvas.on("plotly_click", (event) => select([event.points[0].customdata])) });
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

function worthPlot(axis, panels, theme) {
  if (!panels.length) return { empty: "Nothing fits." };
  const lines = panels.flatMap((one) => one.lines), unit = measure(study.objectives[0]).unit;
  const codes = [...new Set(lines.flatMap((line) => line.codes))].sort((a, b) => a - b), high = theme === PAPER ? 300 : 380;
  const compose = (some) => {
    const drawn = some.map((one, i) => worthPanel(axis, one, i, panels.length > 1, theme));
    return {
      data: drawn.flatMap((one) => one.data),
      layout: {
        height: high * some.length, hovermode: "closest", margin: { l: 60, r: roomFor(lines.map((line) => line.label)), t: 30, b: 50 },
        grid: { rows: some.length, columns: 1, pattern: "independent", ygap: 0.3 }, annotations: drawn.flatMap((one) => one.annotations), ...Object.assign({}, ...drawn.map((one) => one.axes)),
      },
    };
  };
  return {
    ...compose(panels), panels: panels.map((one) => compose([one])),
    summary: panels.length > 1 ? "Each line has the best of all else at every value; “alone” leaves all else as at the best point." : summaryOf(axis, lines),
    head: [axis.label, "lines", "line", measure(study.objectives[0]).label, "strategy there"],
    rows: panels.flatMap((one) => one.lines.flatMap((line) => codes.map((code) => [axis.levels[code], one.label, line.label, ...cellsOf(line, line.codes.indexOf(code), unit)]))),
  };
}

/** The range of an axis around values: where it is stated, labels right of it do not widen it. */
function padded(values) {
  const [low, high] = [Math.min(...values), Math.max(...values)], room = 0.05 * (high - low) || 0.5;
  return [low - room, high + room];
}

function worthPanel(axis, { label, lines }, i, several, theme) {
  const measured = measure(study.objectives[0]), number = i ? String(i + 1) : "";
  const [factor, name] = scaleOf(measured.unit, Math.max(...lines.flatMap((line) => line.values)));
  const log = axis.numbers && axis.numbers[0] > 0 && axis.numbers[axis.numbers.length - 1] > 20 * axis.numbers[0];
  const x = (code) => (axis.numbers ? axis.numbers[code] : code), shown = (value) => (log ? Math.log10(value) : value);
  const dashes = ["solid", "dot", "dash", "dashdot"], symbols = ["circle", "square", "diamond", "triangle-up", "x", "star"];
  const color = (k) => (lines === linesOf(axis) ? [theme.accent, theme.quiet][k] : COLORS[k % COLORS.length]);
  const codes = [...new Set(lines.flatMap((line) => line.codes))].sort((a, b) => a - b), ys = lines.flatMap((line) => line.values.map((v) => v / factor));
  const ends = lines.map((line, k) => ({ text: line.label, color: color(k), x: x(line.codes[line.codes.length - 1]), y: line.values[line.values.length - 1] / factor }));
  const title = { text: plain(label), xref: `x${number} domain`, yref: `y${number} domain`, x: 0, y: 1, xanchor: "left", yanchor: "bottom", showarrow: false };
  return {
    data: lines.map((line, k) => ({
      type: "scatter", mode: axis.numbers ? "lines+markers" : "markers", name: plain(line.label), xaxis: `x${number}`, yaxis: `y${number}`, x: line.codes.map(x), y: line.values.map((v) => v / factor),
      customdata: line.points, hoverinfo: "text", hovertext: line.points.map((p, at) => `${plain(axis.levels[line.codes[at]])}: ${figureText(line.values[at], measured.unit)}<br>${hoverText(p)}`),
      line: { color: color(k), dash: dashes[k % dashes.length], width: 2 }, marker: { size: 8, symbol: symbols[k % symbols.length], color: color(k) },
    })),
    annotations: [...(several ? [title] : []), ...endLabels(ends.map((end) => ({ ...end, x: shown(end.x) })), 1.1 * (Math.max(...ys) - Math.min(...ys)), PLOT_PIXELS, number)],
    axes: {
      [`xaxis${number}`]: {
        title: { text: plain(titleOf(axis)) }, type: log ? "log" : "linear", zeroline: false, range: padded(codes.map(x).map(shown)),
        ...(codes.length <= 10 ? { tickvals: codes.map(x), ticktext: codes.map((code) => plain(short(bare(axis, axis.levels[code]), 22))) } : {}),
      },
      [`yaxis${number}`]: { title: { text: `${measured.label} [${name}]` } },
    },
  };
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
    const down = 120 + 30 * names.length, compose = (some) => {
      const across = innerWidth >= 1000 && theme !== PAPER ? some.length : 1, rows = some.length / across;
      return {
        data: some.flatMap((one, i) => tornadoBars(one, i, names)),
        layout: {
          barmode: "overlay", height: rows * down + 20, annotations: some.flatMap((_, i) => sideNames(i)), grid: { rows, columns: across, pattern: "independent", xgap: 0.08, ygap: 0.5 }, ...Object.assign({}, ...some.map((one, i) => panelAxes(one, i, names, across))),
          shapes: some.map((_, i) => ({ type: "line", x0: 1, x1: 1, xref: `x${i + 1}`.replace("x1", "x"), yref: `y${i + 1} domain`.replace("y1 ", "y "), y0: 0, y1: 1, line: { color: theme.ink, width: 1 } })),
        },
      };
    };
    return {
      ...compose(panels), panels: panels.map((one) => compose([one])),
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

/** What the sides of the line at the best point are, in the colors of their bars. */
function sideNames(i) {
  const number = i ? String(i + 1) : "", at = { xref: `x${number}`, yref: `y${number} domain`, x: 1, y: 1, yanchor: "bottom", showarrow: false };
  const name = (text, xanchor, color) => ({ ...at, text: xanchor === "right" ? `${text} <span style="color:${color}">■</span>` : `<span style="color:${color}">■</span> ${text}`, xanchor });
  return [name("better", "right", COLORS[2]), name("worse", "left", COLORS[5])];
}

function tornadoBars(one, i, names) {
  const number = i ? String(i + 1) : "";
  const side = (name, low, high, say, color) => ({
    type: "bar", orientation: "h", name, xaxis: `x${number}`, yaxis: `y${number}`, marker: { color: color },
    y: one.bars.map((bar) => names.indexOf(bar.axis)), base: one.bars.map(low), x: one.bars.map((bar) => high(bar) - low(bar)),
    hoverinfo: "text", hovertext: one.bars.map((bar) => plain(`${bar.axis}: ${say(bar)} (base ${bar.base})`)),
  });
  return [
    side("better", (bar) => bar.low, () => 1, (bar) => `${bar.low.toFixed(3)} × at ${bar.at_low}`, COLORS[2]),
    side("worse", () => 1, (bar) => bar.high, (bar) => `${bar.high.toFixed(3)} × at ${bar.at_high}`, COLORS[5]),
  ].filter((trace) => trace.x.some((length) => length > 0));
}
