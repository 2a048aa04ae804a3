// The pages inside the page. In: an address such as `#/kernel/2/graph/5/17`. Out: elements in <main>. Each view returns
// what closes it.

const main = document.getElementById("main");
const detail = document.getElementById("detail");
let lastGraph = null; // for those who measure

function showTitle(title, more, isCode) {
  main.append(make("div", { class: "title" }, make("h1", { class: isCode ? "mono" : "" }, title), make("span", { class: "faint" }, more)));
}

function showTabs(base, tabs, here) {
  main.append(make("div", { class: "tabs" }, ...tabs.map(([key, name, count]) => make("a", { href: `${base}/${key}`, class: key === here ? "here" : "" }, name, count === undefined ? null : make("span", { class: "count" }, String(count))))));
}

function scroller(...children) {
  const made = make("div", { class: "scroll" }, ...children);
  main.append(made);
  return made;
}

function table(headings, rows) {
  const heads = headings.map(([name, kind]) => make("th", { class: kind ?? "" }, name));
  return make("table", {}, make("thead", {}, make("tr", {}, ...heads)), make("tbody", {}, ...rows));
}

function row(address, ...cells) {
  const made = make("tr", { class: address ? "link" : "", onclick: address ? () => { location.hash = address; } : null }, ...cells.map(([text, kind]) => make("td", { class: kind ?? "" }, ...(Array.isArray(text) ? text : [text]))));
  return made;
}

// ---------------------------------------------------------------- the whole program

function overview() {
  const ran = trace.runs.filter((run) => run.kind !== "replay").reduce((sum, run) => sum + run.duration, 0);
  const stages = new Map();
  for (const step of trace.steps) stages.set("schedule", (stages.get("schedule") ?? 0) + step.duration);
  for (const kernel of trace.kernels) for (const [stage, spent] of kernel.stages) stages.set(stage, (stages.get(stage) ?? 0) + spent);
  const compiled = [...stages.values()].reduce((sum, spent) => sum + spent, 0);
  const most = trace.memory.reduce((found, level) => Math.max(found, level.allocated), 0);
  showTitle("Overview", trace.program);
  const card = (value, name) => make("div", { class: "card" }, make("b", {}, value), make("span", {}, name));
  const box = scroller(
    ...trace.notes.map((note) => make("div", { class: "note" }, note)),
    make("div", { class: "cards" }, card(showTime(trace.duration), trace.outcome), card(String(trace.steps.length), "steps"), card(String(trace.kernels.length), "kernels compiled"), card(showTime(compiled), "in the compiler"), card(showTime(ran), `in ${counted(trace.runs.length, "run")}`), card(showBytes(most), "most memory")),
  );
  if (stages.size) box.append(make("h2", { class: "section" }, "Time of each stage of the compiler"), stageBar([...stages]));
  if (trace.lines.length) {
    box.append(make("h2", { class: "section" }, "Lines that made work"), table(
      [["line"], ["source"], ["nodes", "number"], ["kernels", "number"], ["runs", "number"], ["time", "number"]],
      trace.lines.map((line) => row(line.steps.length ? `#/step/${line.steps[0]}` : line.kernels.length ? `#/kernel/${line.kernels[0]}` : null, [showPlace(line.line), "mono"], [line.text, "mono"], [line.nodes || "", "number"], [line.kernels.length || "", "number"], [line.runs || "", "number"], [line.duration ? showTime(line.duration) : "", "number"])),
    ));
  }
  const facts = [...trace.versions, ...trace.options];
  if (facts.length) box.append(make("h2", { class: "section" }, "Versions and options"), make("dl", {}, ...facts.flatMap(([name, value]) => [make("dt", {}, name), make("dd", { class: "mono" }, value)])));
}

function stageBar(stages) {
  const total = stages.reduce((sum, [, spent]) => sum + spent, 0) || 1;
  const colour = (stage) => `var(--${STAGE_COLOURS[stage] ?? "math"})`;
  return make("div", {},
    make("div", { class: "stagebar" }, ...stages.map(([stage, spent]) => make("span", { title: `${stage} ${showTime(spent)}`, style: { width: `${(100 * spent) / total}%`, background: colour(stage) } }))),
    make("div", { class: "legend" }, ...stages.map(([stage, spent]) => make("span", {}, make("i", { style: { background: colour(stage) } }), `${stage} ${showTime(spent)}`))));
}

function timelineView() {
  showTitle("Timeline", "wheel zooms, drag moves, double click shows all; a click opens the kernel");
  const holder = make("div", { class: "chart" });
  scroller(trace.runs.length || trace.spans.length ? holder : make("p", { class: "faint" }, "nothing ran"));
  if (!trace.runs.length && !trace.spans.length) return null;
  const made = new Timeline(holder, (bar) => {
    if (bar.kernel !== null && bar.kernel !== undefined) location.hash = `#/kernel/${bar.kernel}/graph`;
  });
  window.tilewright.timeline = made;
  return () => made.close();
}

function rooflineView() {
  const devices = [...new Set(trace.runs.filter((run) => run.kind === "kernel").map((run) => run.device))];
  const box = (showTitle("Roofline", "the area of a kernel is its share of the time"), scroller());
  if (!devices.length) box.append(make("p", { class: "faint" }, "no kernel ran"));
  for (const device of devices) {
    box.append(make("h2", { class: "section" }, device));
    if (!peaks[device]) box.append(make("p", { class: "faint" }, "The peaks of this device have not been measured: `tilewright viz --peaks` measures them."));
    box.append(roofline(device, (point) => { if (point.kernel !== null) location.hash = `#/kernel/${point.kernel}`; }));
    box.append(table([["kernel"], ["runs", "number"], ["time", "number"], ["GFLOP/s", "number"], ["GB/s", "number"], ["of the roof", "number"]],
      rooflinePoints(device).sort((one, other) => other.duration - one.duration).slice(0, 200).map((point) => row(point.kernel === null ? null : `#/kernel/${point.kernel}`, [point.name, "mono"], [point.count, "number"], [showTime(point.duration), "number"], [showRate(point.operations, point.duration), "number"], [showRate(point.bytes, point.duration), "number"], [roofShare(device, point), "number"]))));
  }
}

function roofShare(device, point) {
  const peak = peaks[device];
  if (!peak) return "";
  return `${Math.round((100 * Math.max(point.operations / peak.operations, point.bytes / peak.bandwidth) * 1e9) / point.duration)} %`;
}

function callsView() {
  showTitle("Lines of the package that ran", "nested by call");
  scroller(make("div", { class: "calls" }, ...trace.calls.map((call) => callElement(call))));
}

function callElement(call) {
  const body = make("div", {});
  const made = make("details", {}, make("summary", {}, make("b", {}, call.function), make("span", { class: "at" }, `  ${call.file}${call.caller ? `, called at ${showPlace(call.caller)}` : ""}`)), body);
  // The lines are made when somebody looks: there may be a hundred thousand.
  made.addEventListener("toggle", () => {
    if (!made.open || body.childElementCount) return;
    for (const line of call.lines) {
      body.append(make("div", { class: "row" }, make("span", { class: "n" }, String(line.number)), line.text, line.count > 1 ? make("span", { class: "at" }, `  (${line.count} times)`) : null));
      body.append(...line.calls.map((inner) => callElement(inner)));
      if (line.calls_left_out) body.append(make("div", { class: "row at" }, `... and ${counted(line.calls_left_out, "more call")}`));
    }
  });
  return made;
}

// ---------------------------------------------------------------- a step, a kernel

function stepView(number, tab = "graph", ...rest) {
  const step = trace.steps[number];
  if (!step) return missing();
  const owner = step.same_as === null ? step : trace.steps[step.same_as];
  const thread = step.thread === "MainThread" ? "" : `, thread ${step.thread}`;
  showTitle(`Step ${step.number}`, `${showPlace(step.line)}${thread}  ${sourceOf(step.line)}`);
  const decisions = owner.passes.flatMap((pass) => pass.decisions);
  showTabs(`#/step/${number}`, [["graph", "Graph"], ["schedule", "Schedule", step.items.length], ["decisions", "Decisions", decisions.length], ["passes", "Passes", owner.passes.length]], tab);
  if (step.same_as !== null) main.append(make("div", { class: "title" }, make("span", { class: "faint" }, "The graph is that of ", make("a", { href: `#/step/${step.same_as}` }, `step ${step.same_as}`), ": its schedule is used again.")));
  if (tab === "graph") return graphView(`#/step/${number}`, owner, ...rest);
  if (tab === "schedule") return scheduleView(step);
  if (tab === "decisions") return decisionsView(decisions);
  if (tab === "passes") return passesView(`#/step/${number}`, owner, ...rest);
  return missing();
}

function scheduleView(step) {
  scroller(table([["", "number"], ["runs"], ["on"], ["reads"], ["writes"], ["line"]], step.items.map((item, at) => row(item.kernel === null ? null : `#/kernel/${item.kernel}`, [at, "number"], [item.name, "mono"], [item.device], [item.reads.join(", "), "mono"], [item.writes.join(", "), "mono"], [showPlace(item.line), "where"]))));
}

function decisionsView(decisions) {
  scroller(decisions.length ? table([["choice"], ["why"], ["line"], ["in the package"]], decisions.map((decision) => row(null, [decision.choice, "mono"], [decision.reason], [showPlace(decision.line), "where"], [showPlace(decision.place), "where"]))) : make("p", { class: "faint" }, "nothing was left to choose"));
}

function kernelView(number, tab = "graph", ...rest) {
  const kernel = trace.kernels[number];
  if (!kernel) return missing();
  const time = kernelTime[number];
  showTitle(kernel.name, `${kernel.device}, ${counted(time.count, "run")} in ${showTime(time.duration)}  ${showPlace(kernel.line)}  ${sourceOf(kernel.line)}`, true);
  const decisions = kernel.passes.flatMap((pass) => pass.decisions);
  showTabs(`#/kernel/${number}`, [["graph", "Graph"], ["opts", "Opts", kernel.opts.length], ["passes", "Passes", kernel.passes.length], ["program", "Program"], ["source", "Source"], ["assembly", "Assembly"], ["runs", "Runs", time.count]], tab);
  if (tab === "graph") return graphView(`#/kernel/${number}`, kernel, ...rest);
  if (tab === "opts" || tab === "decisions") return optsView(kernel, decisions);
  if (tab === "passes") return passesView(`#/kernel/${number}`, kernel, ...rest);
  if (tab === "program") return void scroller(code(kernel.program));
  if (tab === "source") return void scroller(code(kernel.source));
  if (tab === "assembly") return void scroller(code(machineCode(kernel.assembly)));
  if (tab === "runs") return runsView(kernel);
  return missing();
}

function optsView(kernel, decisions) {
  scroller(
    make("h2", { class: "section" }, "Computes"), make("pre", { class: "inline" }, kernel.expression),
    make("h2", { class: "section" }, "Opts"), make("div", {}, ...(kernel.opts.length ? kernel.opts.map((opt) => make("span", { class: "chip" }, opt)) : ["none"])),
    decisions.length ? table([["choice"], ["why"], ["in the package"]], decisions.map((decision) => row(null, [decision.choice, "mono"], [decision.reason], [showPlace(decision.place), "where"]))) : null,
    make("h2", { class: "section" }, "Axes"), make("div", {}, ...kernel.axes.map((axis) => make("span", { class: "chip good" }, axis))),
    make("pre", { class: "inline" }, kernel.optimised),
    make("h2", { class: "section" }, "Time of each stage"), stageBar(kernel.stages));
}

function runsView(kernel) {
  const runs = trace.runs.filter((run) => run.kernel === kernel.number && run.kind === "kernel");
  const rows = runs.slice(0, 500).map((run) => row(run.step === null ? null : `#/step/${run.step}`, [showTime(run.start), "number"], [showTime(run.duration), "number"], [showRate(run.operations, run.duration), "number"], [showRate(run.bytes_moved, run.duration), "number"], [run.step === null ? "in a replay" : `step ${run.step}`], [showPlace(run.line), "where"]));
  scroller(table([["at", "number"], ["time", "number"], ["GFLOP/s", "number"], ["GB/s", "number"], ["for"], ["line"]], rows), runs.length > 500 ? make("p", { class: "faint" }, `${counted(runs.length - 500, "more run")}`) : null);
}

function passesView(base, owner, chosen) {
  const passes = owner.passes;
  let number = chosen === undefined ? passes.findIndex((pass) => pass.is_changed || pass.rules.length) : Number(chosen);
  if (!passes[number]) number = 0;
  const list = make("div", { class: "list" });
  let stage = "";
  passes.forEach((pass, at) => {
    if (pass.stage !== stage) list.append(make("div", { class: "stage" }, pass.stage));
    stage = pass.stage;
    const isChanged = pass.is_changed || pass.rules.length > 0;
    list.append(make("a", { href: `${base}/passes/${at}`, class: `${isChanged ? "changed" : ""} ${at === number ? "here" : ""}` }, pass.name, make("span", { class: "badge" }, pass.rules.length ? counted(pass.rules.length + pass.rules_left_out, "rule") : pass.is_changed ? "changed" : "")));
  });
  const body = make("div", { class: "scroll" });
  main.append(make("div", { class: "split" }, list, body));
  if (!passes.length) return void body.append(make("p", { class: "faint" }, "The passes are those of another step or device."));
  showPass(body, owner, number);
  list.querySelector(".here")?.scrollIntoView({ block: "center" });
  return undefined;
}

function showPass(body, owner, number) {
  const pass = owner.passes[number];
  const earlier = owner.passes.slice(0, number).filter((found) => found.roots.length);
  const before = earlier.length ? earlier[earlier.length - 1].roots : owner.roots;
  const textBefore = owner.passes.slice(0, number).reverse().find((found) => found.text)?.text ?? owner.expression ?? "";
  body.append(make("h2", { class: "section" }, `${pass.stage}/${pass.name}`), make("p", { class: "faint" }, `${showTime(pass.duration)}${pass.place ? `, ${showPlace(pass.place)}` : ""}${pass.is_changed ? "" : ", the graph stays as it is"}`));
  for (const decision of pass.decisions) body.append(make("p", {}, make("span", { class: "chip" }, decision.choice), decision.reason));
  if (pass.rules.length) body.append(make("h2", { class: "section" }, `Rules that fired (${pass.rules.length + pass.rules_left_out})`));
  for (const rule of pass.rules) {
    body.append(make("div", { class: "rule" }, make("div", { class: "head" }, make("b", {}, rule.name), make("span", { class: "where" }, `${rule.ruleset}  ${showPlace(rule.place)}`)), expressionDiff(rule.before, rule.after)));
  }
  if (pass.rules_left_out) body.append(make("p", { class: "faint" }, `${counted(pass.rules_left_out, "more rewrite")} are not in the trace`));
  if (!pass.is_changed || !pass.roots.length) return;
  if (pass.text && textBefore) body.append(make("h2", { class: "section" }, "What is computed"), expressionDiff(textBefore, pass.text));
  const { element, removed, added } = graphDiff(before, pass.roots, owner.nodes);
  body.append(make("h2", { class: "section" }, `Nodes: ${removed.length} taken away, ${added.length} made`), element);
}

// ---------------------------------------------------------------- graphs

function graphView(base, owner, at = "0", chosen) {
  const graphs = graphsOf(owner);
  const shown = graphs[Number(at)] ?? graphs[0];
  const numbers = reachable(shown.roots, owner.nodes);
  const holder = make("div", { class: "graph" });
  main.append(holder);
  if (!numbers.length) return void holder.append(make("p", { class: "faint", style: { padding: "20px" } }, "The graph is not in the trace: it has more nodes than the limit."));
  const view = new GraphView(holder, (number) => {
    const address = `${base}/graph/${graphs.indexOf(shown)}${number === null ? "" : `/${number}`}`;
    history.replaceState(null, "", address);
    view.select(number);
    showNode(base, owner, shown, number, view);
  });
  lastGraph = view;
  window.tilewright.graph = view;
  const before = graphs[graphs.indexOf(shown) - 1];
  const earlier = before ? new Set(reachable(before.roots, owner.nodes)) : null;
  view.show(numbers, owner.nodes, new Set(earlier ? numbers.filter((number) => !earlier.has(number)) : []));
  const chooser = make("select", { "aria-label": "The graph after which pass", onchange: (event) => { location.hash = `${base}/graph/${event.target.value}`; } }, ...graphs.map((graph, index) => make("option", { value: index, selected: graph === shown }, `${graph.isChanged ? "● " : "   "}${index ? "after " : ""}${graph.name}`)));
  const step = (by) => () => {
    let next = graphs.indexOf(shown) + by;
    while (graphs[next] && !graphs[next].isChanged) next += by;
    if (graphs[next]) location.hash = `${base}/graph/${next}`;
  };
  holder.append(
    make("div", { class: "tools" }, make("button", { class: "quiet", title: "the change before", onclick: step(-1) }, "◀"), chooser, make("button", { class: "quiet", title: "the next change", onclick: step(1) }, "▶"), make("span", { class: "faint" }, counted(numbers.length, "node")), make("button", { class: "quiet", title: "show all", onclick: () => view.fit() }, "fit")),
    make("div", { class: "legend" }, ...Object.entries(FAMILY_NAMES).map(([name, label]) => make("span", {}, make("i", { style: { background: `var(--${name})` } }), label)), earlier ? make("span", {}, make("i", { style: { background: "var(--plus)" } }), "made by this pass") : null));
  if (chosen !== undefined && owner.nodes[Number(chosen)]) {
    view.focus(Number(chosen));
    showNode(base, owner, shown, Number(chosen), view);
  }
  return () => view.close();
}

function showNode(base, owner, shown, number, view) {
  detail.hidden = number === null;
  if (number === null) return;
  const node = owner.nodes[number];
  const present = reachable(shown.roots, owner.nodes);
  const users = present.filter((other) => owner.nodes[other].src.includes(number));
  const go = (other) => make("a", { href: `${base}/graph/${graphsOf(owner).findIndex((graph) => graph.roots === shown.roots)}/${other}`, class: "mono", onclick: (event) => { event.preventDefault(); view.focus(other); view.onSelect(other); } }, `%${other} ${owner.nodes[other].op}`);
  const rules = owner.passes.flatMap((pass) => pass.rules.filter((rule) => rule.nodes && rule.nodes.includes(number)).map((rule) => [pass, rule]));
  const field = (name, value, kind = "mono") => (value ? [make("dt", {}, name), make("dd", { class: kind }, value)] : []);
  detail.replaceChildren(
    make("button", { class: "quiet close", "aria-label": "Close", onclick: () => view.onSelect(null) }, "✕"),
    make("h2", { class: "mono" }, node.op), make("span", { class: "faint" }, `%${number}, ${FAMILY_NAMES[family(node)]}`),
    make("dl", {}, ...field("dtype", node.dtype), ...field("shape", node.shape), ...field("arg", node.arg), ...field("line", showPlace(node.line)), ...field("", sourceOf(node.line))),
    ...(node.src.length ? [make("h3", {}, "Sources"), ...node.src.map((source) => make("div", {}, go(source)))] : []),
    ...(users.length ? [make("h3", {}, `Used by ${users.length}`), ...users.slice(0, 40).map((user) => make("div", {}, go(user)))] : []),
    ...(rules.length ? [make("h3", {}, "Rewrites"), ...rules.slice(0, 30).map(([pass, rule]) => make("div", {}, make("a", { href: `${base}/passes/${owner.passes.indexOf(pass)}` }, rule.name), make("span", { class: "faint" }, rule.nodes[1] === number ? " made it" : " replaced it")))] : []));
}

function missing() {
  scroller(make("p", { class: "faint" }, "There is nothing at this address."));
}
