// Navigation. In: the hash of the address. Out: the view it names. Nothing is kept but the theme.

window.tilewright = { trace, graph: null, timeline: null, drawn: 0 };
const VIEWS = { overview, timeline: timelineView, roofline: rooflineView, calls: callsView, step: stepView, kernel: kernelView };
let closeView = null;
const MAX_LISTED = 300;

function listParts() {
  const nav = document.getElementById("nav");
  const entry = (address, name, isCode, ...sub) => make("a", { href: address }, make("span", { class: `name ${isCode ? "mono" : ""}` }, name), sub.length ? make("span", { class: "sub" }, ...sub.map((text) => make("span", {}, text))) : null);
  nav.append(entry("#/overview", "Overview"), entry("#/timeline", "Timeline and memory"), entry("#/roofline", "Roofline"));
  if (trace.calls.length) nav.append(entry("#/calls", "Lines of the package"));
  if (trace.steps.length) nav.append(make("h2", {}, `Steps (${trace.steps.length})`));
  // A step whose graph was there before stands with the first of them.
  const times = new Map();
  for (const step of trace.steps) times.set(step.same_as ?? step.number, (times.get(step.same_as ?? step.number) ?? 0) + 1);
  const own = trace.steps.filter((step) => step.same_as === null);
  for (const step of own.slice(0, MAX_LISTED)) {
    const count = times.get(step.number);
    const sub = `${counted(step.items.length, "item")}${count > 1 ? `, ${count} times` : ""}`;
    nav.append(entry(`#/step/${step.number}`, sourceOf(step.line) || `step ${step.number}`, true, showPlace(step.line), sub));
  }
  if (own.length > MAX_LISTED) nav.append(make("p", { class: "faint" }, `${counted(own.length - MAX_LISTED, "more step")}: search finds them`));
  if (trace.kernels.length) nav.append(make("h2", {}, `Kernels (${trace.kernels.length})`));
  const order = trace.kernels.map((_, number) => number).sort((one, other) => kernelTime[other].duration - kernelTime[one].duration);
  const most = Math.max(1, ...kernelTime.map((time) => time.duration));
  for (const number of order.slice(0, MAX_LISTED)) {
    const kernel = trace.kernels[number], time = kernelTime[number];
    const made = entry(`#/kernel/${number}`, kernel.name, true, `${counted(time.count, "run")} on ${kernel.device}`, showTime(time.duration));
    made.append(make("div", { class: "meter" }, make("i", { style: { width: `${(100 * time.duration) / most}%` } })));
    nav.append(made);
  }
}

function route() {
  const parts = location.hash.replace(/^#\/?/, "").split("/").filter(Boolean).map(decodeURIComponent);
  const [name, ...rest] = parts.length ? parts : ["overview"];
  if (closeView) closeView();
  main.replaceChildren();
  detail.hidden = true;
  showTip("");
  const view = VIEWS[name] ?? missing;
  const arguments_ = name === "step" || name === "kernel" ? [Number(rest[0]), ...rest.slice(1)] : rest;
  closeView = view(...arguments_) ?? null;
  const here = name === "step" || name === "kernel" ? `#/${name}/${rest[0]}` : `#/${name}`;
  for (const link of document.querySelectorAll("nav a")) link.classList.toggle("here", link.getAttribute("href") === here);
  requestAnimationFrame(() => {
    window.tilewright.drawn = performance.now();
  });
}

function chooseTheme(theme) {
  document.documentElement.dataset.theme = theme;
  if (window.tilewright.graph) {
    window.tilewright.graph.stale = true;
    window.tilewright.graph.whole = null;
    window.tilewright.graph.request();
  }
  window.tilewright.timeline?.request();
}

function connectTheme() {
  const asked = window.matchMedia("(prefers-color-scheme: dark)");
  let kept = null;
  try {
    kept = localStorage.getItem("tilewright-theme");
  } catch {
    kept = null; // a page from a file may have no storage
  }
  chooseTheme(kept ?? (asked.matches ? "dark" : "light"));
  document.getElementById("theme").addEventListener("click", () => {
    const next = document.documentElement.dataset.theme === "dark" ? "light" : "dark";
    chooseTheme(next);
    try {
      localStorage.setItem("tilewright-theme", next);
    } catch {
      return; // as above: the choice lasts as long as the page
    }
  });
}

document.getElementById("program").textContent = trace.program;
connectTheme();
listParts();
connectSearch();
window.addEventListener("hashchange", route);
route();
