// Strategy × resource: in each cell the best of the points that are shown, relative to the best.
const MOST_ROWS = 40;
/** Kinds of rows and columns of which every pair has a grid, and the space between two. */
const MOST_KINDS = 4, HEAT_GAP = 90;

function heatFigure() {
  const changed = () => figure.mark();
  const axes = varied.map((axis) => [`axis:${axis.name}`, axis.label]);
  const kinds = [["strategy", "strategy"], ...(study.workloads.length > 1 ? [["workload", "workload"]] : []), ...axes];
  const several = Math.max(...study.workloads.map((one) => one.strategy.texts.filter(Boolean).length)) > 1;
  const startRows = several || axes.length < 2 ? "strategy" : axes[0][0];
  const startColumns = (axes.filter(([name]) => name !== startRows && byName(study.axes, name.slice(5)).numbers)[0] || axes[axes.length - 1] || ["strategy"])[0];
  const few = kinds.length <= MOST_KINDS;
  const rows = choices("heat-rows", few ? [] : kinds, startRows, changed);
  const columns = choices("heat-columns", few ? [] : kinds, startColumns, changed);
  const workload = choices("heat-workload", study.workloads.map((one) => [one.name, one.name]), study.workloads[0].name, changed);
  const offered = new Map(study.workloads.flatMap((one) => one.figures.map((figure) => [figure.name, figure.label])));
  const figured = choices("heat-figure", [...offered], "time_s", changed);
  const names = kinds.map(([name]) => name).filter((name) => name !== "strategy" || several || axes.length < 2), pairs = names.flatMap((first, i) => names.slice(i + 1).map((second) => [first, second]));
  let grids = [];

  const draw = (theme) => {
    const asked = few && pairs.length ? pairs : few ? [[startRows, startColumns]] : [[rows(), columns()]];
    grids = asked.map(([first, second]) => ({ first, second, ...gridOf(first, second, workloadNamed(workload()), figured()) })).filter((grid) => grid.rows.length);
    if (!grids.length) return { empty: "No point that is shown has this figure." };
    const all = grids.flatMap((grid) => [...grid.cells.values()].map((cell) => cell.value)), best = Math.min(...all), worst = Math.max(...all);
    const high = (grid) => 26 * grid.rows.length, compose = (some) => {
      const heights = some.map(high), total = heights.reduce((sum, one) => sum + one, 0) + HEAT_GAP * (some.length - 1);
      const places = heights.map((height, i) => 1 - (heights.slice(0, i).reduce((sum, one) => sum + one + HEAT_GAP, 0) / total));
      const parts = some.map((grid, i) => heatPanel(grid, i, [Math.max(0, places[i] - heights[i] / total), places[i]], { best, worst, theme }));
      return {
        data: parts.map((one) => one.data), rows: parts.flatMap((one) => one.rows),
        layout: { height: 150 + total, margin: { l: 60, r: 15, t: 15, b: 60 }, ...Object.assign({}, ...parts.map((one) => one.axes)), shapes: parts.flatMap((one) => one.shapes) },
      };
    };
    const left = grids.reduce((sum, grid) => sum + grid.left, 0);
    return {
      ...compose(grids), panels: grids.map((one) => compose([one])),
      summary: `Each cell: ${grids[0].label}, divided by that of the best cell.` + (left ? ` Only the best rows are drawn; filter to see ${left} more.` : ""),
      head: ["Row", "Column", grids[0].label],
    };
  };
  const figure = new Figure("heat", draw, {
    on: ["shown", "selected", "theme"],
    prepare: (canvas) => canvas.on("plotly_click", (event) => {
      const { x, y, curveNumber } = event.points[0];
      const cell = [...grids[curveNumber].cells.values()].find((one) => one.row === y && one.column === x);
      if (cell) toggle(cell.points);
    }),
  });
}

/** One of the grids: its trace, its axes, outlines of what is selected, and its cells as rows of a table. */
function heatPanel(grid, i, domain, { best, worst, theme }) {
  const number = i ? String(i + 1) : "", at = (r, c) => grid.cells.get(`${r.key}|${c.key}`);
  const z = grid.rows.map((r) => grid.columns.map((c) => (at(r, c) ? at(r, c).value / best : null)));
  const say = (cell) => (cell ? `${(cell.value / best).toFixed(2)} ×, ${figureText(cell.value, grid.unit)}, ${strategyAt(cell.workload, cell.point)}` : "nothing fits");
  const hover = grid.rows.map((r) => grid.columns.map((c) => [r.label, c.label, say(at(r, c))].map((text) => plain(short(text, 90))).join("<br>")));
  const few = grid.rows.length * grid.columns.length <= 240;
  const outlined = [...grid.cells.values()].filter((cell) => cell.points.some((p) => state.selected.has(p)));
  return {
    data: {
      type: "heatmap", z, xaxis: `x${number}`, yaxis: `y${number}`, hovertext: hover, hoverinfo: "text", colorscale: "Cividis", reversescale: true, zmin: 1, zmax: Math.max(worst / best, 1.001), xgap: 1, ygap: 1, hoverongaps: true,
      text: few ? z.map((line) => line.map((value) => (value === null ? "" : value.toFixed(2)))) : undefined, texttemplate: few ? "%{text}" : undefined,
      showscale: !i && innerWidth >= 600, colorbar: { title: { text: "× the best" }, thickness: 14 },
    },
    axes: {
      [`xaxis${number}`]: { ...ticks(grid.columns, grid.second, 18), anchor: `y${number}` },
      [`yaxis${number}`]: { ...ticks(grid.rows, grid.first, innerWidth < 600 ? 16 : innerWidth < 1000 ? 44 : 60, 26 * grid.rows.length + HEAT_GAP / 2), autorange: "reversed", domain, anchor: `x${number}` },
    },
    shapes: outlined.map((cell) => ({ type: "rect", xref: `x${number}`, yref: `y${number}`, x0: cell.column - 0.5, x1: cell.column + 0.5, y0: cell.row - 0.5, y1: cell.row + 0.5, line: { color: theme.mark, width: 3 } })),
    rows: grid.rows.flatMap((r) => grid.columns.map((c) => [`${kindName(grid.first)} ${r.label}`, `${kindName(grid.second)} ${c.label}`, say(at(r, c))])),
  };
}

const kindName = (kind) => (kind.startsWith("axis:") ? byName(study.axes, kind.slice(5)).label : kind);

function ticks(list, kind, most, mostPixels = Infinity) {
  const axis = kind.startsWith("axis:") ? byName(study.axes, kind.slice(5)) : null;
  const words = (text) => plain(short(axis ? bare(axis, text) : text, most));
  const title = plain(axis ? titleOf(axis) : kind), pixels = 8 * title.length;  // upright it must not reach the next grid
  return { title: { text: pixels > mostPixels ? title.replaceAll(" ", "<br>") : title, standoff: 14 }, tickvals: list.map((_, i) => i), ticktext: list.map((one) => words(one.label)), zeroline: false, showgrid: false, type: "linear" };
}

/** Put the points that are shown into cells; a workload as a row or column looks at all of them. */
function gridOf(rowKind, columnKind, chosen, name) {
  const all = [rowKind, columnKind].includes("workload") ? study.workloads : [chosen];
  const cells = new Map(), rows = new Map(), columns = new Map();
  let unit = "", label = "";
  for (const workload of all) {
    const figure = byName(workload.figures, name);
    if (!figure) continue;
    ({ unit, label } = figure);
    const values = column(figure.values);
    for (const point of shownPoints()) {
      if (!Number.isFinite(values[point])) continue;
      const row = keyed(rowKind, workload, point), across = keyed(columnKind, workload, point);
      const key = `${row.key}|${across.key}`;
      const cell = cells.get(key) || { value: Infinity, points: [], rowKey: row.key, columnKey: across.key };
      cell.points.push(point);
      if (values[point] < cell.value) Object.assign(cell, { value: values[point], point, workload });
      cells.set(key, cell);
      row.value = Math.min(cell.value, rows.get(row.key)?.value ?? Infinity);
      rows.set(row.key, row);
      columns.set(across.key, across);
    }
  }
  return placed(cells, ordered(rows, rowKind), ordered(columns, columnKind), { unit, label });
}

function keyed(kind, workload, point) {
  if (kind === "strategy") return { key: column(workload.strategy.codes)[point], label: strategyAt(workload, point) };
  if (kind === "workload") return { key: study.workloads.indexOf(workload), label: workload.name };
  const axis = byName(study.axes, kind.slice(5));
  return { key: column(axis.codes)[point], label: levelAt(axis, point) };
}

/** Strategies by their best figure, everything else as the study has it. */
function ordered(found, kind) {
  const list = [...found.values()];
  return list.sort(kind === "strategy" ? (a, b) => a.value - b.value : (a, b) => a.key - b.key);
}

function placed(cells, rows, columns, about) {
  const kept = rows.slice(0, MOST_ROWS);
  const rowAt = new Map(kept.map((one, i) => [one.key, i])), columnAt = new Map(columns.map((one, i) => [one.key, i]));
  for (const [key, cell] of cells) {
    if (!rowAt.has(cell.rowKey)) cells.delete(key);
    else Object.assign(cell, { row: rowAt.get(cell.rowKey), column: columnAt.get(cell.columnKey) });
  }
  return { cells, rows: kept, columns, left: rows.length - kept.length, ...about };
}
