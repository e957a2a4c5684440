"use strict";
// What the page asks the server: figures at each change, plans, steps, comparisons. The state is in the address.
const form = document.getElementById("job"), figures = document.getElementById("figures");
const parts = Object.fromEntries(["plans", "compared", "step"].map(id => [id, document.getElementById(id)]));
let compared = new URLSearchParams(location.search).getAll("with"), planned = "", opened = "", asked = 0, polling = 0, opening = null, choosing = null;

function state() {
  const query = new URLSearchParams();
  for (const [name, value] of new FormData(form)) if (typeof value === "string" && value.trim()) query.append(name, value);
  return query;
}

// What a plan is of: all but the strategy.
function job() {
  const query = state();
  for (const name of form.dataset.strategy.split(" ")) query.delete(name);
  return String(query);
}

function remember() {
  const query = state();
  document.getElementById("earlier").hidden = !planned || planned === job();
  document.getElementById("changed").hidden = !opened || opened === String(query);
  for (const link of ["job-file", "report"]) {
    const anchor = document.getElementById(link);
    anchor.href = anchor.pathname + "?" + query;
  }
  for (const each of compared) query.append("with", each);
  history.replaceState(null, "", "/?" + query);
}

async function part(address, options) {
  try {
    const answer = await fetch(address, options);
    const text = await answer.text();
    return answer.headers.get("content-type")?.startsWith("text/html") ? text : say(text);
  } catch (error) {
    return say("The server does not answer; is 'wattree serve' still running?");
  }
}

function say(text) {
  const line = document.createElement("div");
  line.className = "problems warn"; line.setAttribute("role", "alert"); line.textContent = text;
  return line.outerHTML;
}

// For screen readers: that what takes seconds is there, further down.
function hear(text) { document.getElementById("heard").textContent = text ?? ""; }

async function refresh(controls) {
  const number = ++asked;
  choosing?.abort();  // controls of a state that is over
  remember();
  figures.classList.add("waiting");
  const text = await part("/figures?" + state());
  if (number !== asked) return;  // a later change was asked about since
  figures.innerHTML = text;
  figures.classList.remove("waiting");
  if (!controls) return;
  choosing = new AbortController();
  const fresh = await part("/controls?" + state(), { signal: choosing.signal });
  if (number !== asked) return;
  const made = document.createElement("template");
  made.innerHTML = fresh;  // without lists where the server refuses or is gone: what is chosen stays
  for (const each of made.content.querySelectorAll("select")) {  // each where it stands: an open list stays open
    const own = form.elements[each.name];
    if (own.innerHTML !== each.innerHTML) own.innerHTML = each.innerHTML;
  }
  follow_software();
}

// Of the frameworks, the first that stands for the software of the controls.
function follow_software() {
  const name = form.elements.software.value, framework = document.getElementById("framework");
  const fitting = [...framework.options].filter(each => each.dataset.software.split(" ").includes(name));
  if (fitting.length && !fitting.some(each => each.selected)) fitting[0].selected = true;
}

function use(query) {
  const values = new URLSearchParams(query);
  for (const each of form.elements) {
    if (!each.name) continue;
    const value = values.get(each.name) ?? "";
    if (each.tagName === "SELECT" && ![...each.options].some(option => option.value === value)) each.add(new Option(value, value));
    each.value = value;
    for (const option of each.selectedOptions ?? []) option.disabled = false;  // forms leave out what is disabled
  }
  refresh(true);
  figures.scrollIntoView({ block: "nearest" });
}

async function follow(number) {
  while (polling === number) {
    await new Promise(resolve => setTimeout(resolve, 300));
    if (polling !== number) return;
    const fresh = await part(`/plans/${number}`);
    if (polling !== number) return;
    const made = document.createElement("template"), label = parts.plans.querySelector("#running label");
    made.innerHTML = fresh;
    if (label && made.content.querySelector("[data-over=no]")) {  // the button stays under finger and focus
      label.replaceWith(made.content.querySelector("label"));
      continue;
    }
    const wasAtCancel = document.activeElement?.id === "cancel";
    parts.plans.innerHTML = fresh;
    if (wasAtCancel) parts.plans.querySelector("h2")?.focus();
    hear(parts.plans.querySelector(".answer, .warn")?.textContent);
    return;
  }
}

async function plan() {
  cancel();
  polling = 0;
  hear("Planning");
  planned = job();
  remember();
  parts.plans.innerHTML = await part("/plans?" + state(), { method: "POST" });
  const running = document.getElementById("running");
  if (running) follow(polling = running.dataset.number);
}

function cancel() {
  if (polling) fetch("/plans/" + polling, { method: "DELETE" }).catch(() => null);
}

async function lay() {
  remember();
  const query = new URLSearchParams(compared.map(each => ["with", each]));
  parts.compared.innerHTML = compared.length ? await part("/compare?" + query) : "";
}

document.getElementById("plan").addEventListener("click", plan);
document.getElementById("open").addEventListener("click", async () => {
  opening?.abort();  // the server ends what no one waits for
  const own = opening = new AbortController();
  opened = String(state());
  remember();
  parts.step.innerHTML = "<p>Simulating …</p>";
  hear("Simulating");
  const text = await part("/step?" + state(), { signal: own.signal });
  if (own !== opening) return;
  parts.step.innerHTML = "<h2>The step in detail</h2>" + text;
  hear("The step in detail");
  parts.step.scrollIntoView({ block: "start" });
});
document.getElementById("keep").addEventListener("click", () => {
  compared = [...compared.filter(each => each !== String(state())), String(state())].slice(-4);
  lay();
});
document.getElementById("take").addEventListener("click", async () => {
  const name = document.getElementById("framework").value, taken = document.getElementById("taken");
  const answer = await fetch("/framework.zip?" + state() + "&to=" + name).catch(() => null);
  if (!answer?.ok) { taken.innerHTML = answer ? await answer.text() : say("The server does not answer."); return; }
  const link = document.createElement("a");
  link.href = URL.createObjectURL(await answer.blob());
  link.download = name + ".zip";
  link.click();
  taken.textContent = link.download + " is saved; its README.md says what to fill in.";
});
document.addEventListener("click", event => {
  const button = event.target.closest("button");
  if (!button) return;
  if (button.dataset.use !== undefined) use(button.dataset.use);
  if (button.dataset.drop !== undefined) { compared.splice(Number(button.dataset.drop), 1); lay(); }
  if (button.id === "cancel") cancel();
});
form.addEventListener("submit", event => { event.preventDefault(); refresh(true); });
form.addEventListener("input", event => { if (event.target.id !== "file" && event.target.tagName !== "SELECT") refresh(false); });
form.addEventListener("change", event => { if (event.target.id !== "file") refresh(true); });
document.getElementById("file").addEventListener("change", async event => {
  const file = event.target.files[0], hint = document.getElementById("file-hint");
  if (!file) return;
  const answer = await fetch("/files?name=" + encodeURIComponent(file.name), { method: "POST", body: file }).catch(() => null);
  event.target.value = "";  // the same file, changed, may be chosen again
  if (!answer) { hint.textContent = "The server does not answer."; return; }
  const text = await answer.text();
  if (!answer.ok) {
    const body = new DOMParser().parseFromString(text, "text/html").body, lines = [...body.querySelectorAll("li")];
    hint.textContent = file.name + ": " + (lines.map(line => line.textContent).join("; ") || body.textContent.trim());
    return;
  }
  form.elements[file.name.endsWith(".json") ? "model" : "node"].value = text;
  hint.textContent = text + " is used.";
  refresh(true);
});
remember();
