// All points, a page at a time: the way to them without a mouse.
const PAGE = 25;

/** Set the table up; return what draws it where it is stale, which coming into view does, too. */
function pointsTable() {
  const box = document.getElementById("points");
  const sorted = { by: study.objectives[0] || "", down: false };
  let page = 0, order = [], stale = true, seen = false;
  const infeasibleToo = document.getElementById("points-infeasible"), selectedOnly = document.getElementById("points-selected");
  const heads = [["", "point"], ...varied.map((axis) => [`axis:${axis.name}`, axis.label]), ...study.measures.map((one) => [one.name, one.short]), ["strategy", "strategy"]];

  const value = (key) => {
    if (key.startsWith("axis:")) { const codes = column(byName(study.axes, key.slice(5)).codes); return (p) => codes[p]; }
    if (key === "strategy") { const codes = column(study.workloads[0].strategy.codes); return (p) => codes[p]; }
    const found = measure(key);
    return found ? ((values) => (p) => (Number.isFinite(values[p]) ? values[p] : Infinity))(column(found.values)) : (p) => p;
  };
  const sort = () => {
    order = [];
    for (let p = 0; p < study.points; p++) {
      const listed = state.shown[p] || (infeasibleToo.checked && !feasible[p]);
      if (listed && (!selectedOnly.checked || state.selected.has(p))) order.push(p);
    }
    const of = value(sorted.by), sign = sorted.down ? -1 : 1;
    order.sort((p, q) => { const [a, b] = [of(p), of(q)]; return a === b ? p - q : sign * (a < b ? -1 : 1); });
    page = Math.min(page, Math.max(0, Math.ceil(order.length / PAGE) - 1));
  };
  const row = (p) => {
    const line = element("tr", "", state.selected.has(p) ? { class: "selected" } : {});
    const tick = element("input", "", { type: "checkbox", "aria-label": `Select point ${p + 1}`, "data-point": p });
    tick.checked = state.selected.has(p);
    const first = element("th", "", { scope: "row" });
    first.append(tick, ` ${pointName(p)}`);
    line.append(first);
    varied.forEach((axis) => line.append(cellOf(levelAt(axis, p), axis.label)));
    study.measures.forEach((one) => line.append(cellOf(measureText(one, p), one.short)));
    const said = study.workloads.map((one) => [study.workloads.length > 1 ? `${one.name}: ` : "", strategyAt(one, p), column(one.simulated)[p] ? "" : " ≈", notesAt(one, p) ? ` (${notesAt(one, p)})` : ""].join(""));
    line.append(cellOf(feasible[p] ? said.join("; ") : `does not fit: ${reasonAt(p)}`, "strategy"));
    return line;
  };
  const draw = () => {
    stale = false;
    const focused = document.activeElement?.dataset?.point, headed = document.activeElement?.dataset?.sort;
    const table = element("table", "", { class: "many" }), top = table.createTHead().insertRow();
    heads.forEach(([key, label]) => {
      const head = element("th", "", { scope: "col", "aria-sort": key === sorted.by ? (sorted.down ? "descending" : "ascending") : "none" });
      const button = element("button", label + (key === sorted.by ? (sorted.down ? " ↓" : " ↑") : ""), { type: "button", "data-sort": key });
      button.addEventListener("click", () => { sorted.down = sorted.by === key && !sorted.down; sorted.by = key; page = 0; sort(); draw(); });
      head.append(button);
      top.append(head);
    });
    const body = table.createTBody();
    order.slice(page * PAGE, (page + 1) * PAGE).forEach((p) => body.append(row(p)));
    body.addEventListener("change", (event) => toggle([Number(event.target.dataset.point)]));
    box.replaceChildren(table);
    if (focused !== undefined) box.querySelector(`[data-point="${focused}"]`)?.focus();
    if (headed !== undefined) box.querySelector(`[data-sort="${headed}"]`)?.focus();
    const pages = Math.max(1, Math.ceil(order.length / PAGE));
    document.getElementById("points-page").textContent = `Page ${page + 1} of ${pages}, ${order.length.toLocaleString("en")} points`;
    document.getElementById("points-back").disabled = page === 0;
    document.getElementById("points-next").disabled = page + 1 >= pages;
  };
  const render = () => { if (stale) { sort(); draw(); } };
  const renew = () => { stale = true; if (seen) requestAnimationFrame(render); };
  const turn = (by) => { page += by; draw(); };
  document.getElementById("points-back").addEventListener("click", () => turn(-1));
  document.getElementById("points-next").addEventListener("click", () => turn(1));
  [infeasibleToo, selectedOnly].forEach((one) => one.addEventListener("change", () => { page = 0; renew(); }));
  onChange((what) => { if (what !== "theme") renew(); });
  new IntersectionObserver((entries) => { seen = entries[entries.length - 1].isIntersecting; if (seen && stale) renew(); }, { rootMargin: "200px" }).observe(box);
  addEventListener("beforeprint", render);
  return render;
}
