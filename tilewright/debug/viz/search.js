// Search over everything in the trace. In: words. Out: what has all of them, with the address where it is shown.

const MAX_RESULTS = 120;
let searchIndex = null;

function buildIndex() {
  const entries = [];
  const add = (kind, label, more, address) => entries.push({ kind, label, more, address, text: `${kind} ${label} ${more}`.toLowerCase() });
  for (const line of trace.lines) add("line", showPlace(line.line), line.text, line.steps.length ? `#/step/${line.steps[0]}` : "#/overview");
  for (const step of trace.steps) add("step", `step ${step.number}`, `${showPlace(step.line)} ${sourceOf(step.line)} ${step.items.map((item) => item.name).join(" ")}`, `#/step/${step.number}`);
  for (const kernel of trace.kernels) {
    add("kernel", kernel.name, `${kernel.expression} ${kernel.opts.join(" ")} ${showPlace(kernel.line)}`, `#/kernel/${kernel.number}`);
    add("source", kernel.name, kernel.source, `#/kernel/${kernel.number}/source`);
    add("assembly", kernel.name, kernel.assembly, `#/kernel/${kernel.number}/assembly`);
  }
  for (const [kind, owners] of [["step", trace.steps], ["kernel", trace.kernels]]) {
    for (const owner of owners) {
      const name = kind === "step" ? `step ${owner.number}` : owner.name;
      owner.passes.forEach((pass, at) => {
        const address = `#/${kind}/${owner.number}/passes/${at}`;
        if (pass.is_changed || pass.rules.length) add("pass", `${pass.stage}/${pass.name}`, `${name} ${pass.text}`, address);
        for (const rule of pass.rules) add("rule", rule.name, `${rule.before} -> ${rule.after}`, address);
        for (const decision of pass.decisions) add("decision", decision.choice, decision.reason, `#/${kind}/${owner.number}/decisions`);
      });
      reachable(owner.roots, owner.nodes).forEach((number) => {
        const node = owner.nodes[number];
        add("node", `%${number} ${node.op}`, `${node.dtype} ${node.shape} ${node.arg} in ${name} ${showPlace(node.line)}`, `#/${kind}/${owner.number}/graph/0/${number}`);
      });
    }
  }
  return entries;
}

function search(query) {
  searchIndex ??= buildIndex();
  const wanted = query.toLowerCase().split(/\s+/).filter(Boolean);
  if (!wanted.length) return { found: [], total: 0 };
  const found = [];
  let total = 0;
  for (const entry of searchIndex) {
    if (!wanted.every((word) => entry.text.includes(word))) continue;
    total++;
    if (found.length < MAX_RESULTS) found.push(entry);
  }
  return { found, total, wanted };
}

function marked(text, wanted, limit = 200) {
  const lower = text.toLowerCase();
  const first = wanted.map((word) => lower.indexOf(word)).filter((at) => at >= 0).sort((one, other) => one - other)[0] ?? 0;
  const from = Math.max(0, first - 40);
  const shown = text.slice(from, from + limit).replace(/\s+/g, " ");
  const parts = [from ? "…" : ""];
  let at = 0;
  while (at < shown.length) {
    const rest = shown.toLowerCase().slice(at);
    const hits = wanted.map((word) => [rest.indexOf(word), word.length]).filter(([place]) => place >= 0).sort((one, other) => one[0] - other[0]);
    if (!hits.length) break;
    const [place, length] = hits[0];
    parts.push(shown.slice(at, at + place), make("mark", {}, shown.slice(at + place, at + place + length)));
    at += place + length;
  }
  parts.push(shown.slice(at));
  return parts;
}

function connectSearch() {
  const field = document.getElementById("search"), results = document.getElementById("results");
  let chosen = 0, timer = 0;
  const refresh = () => {
    const { found, total, wanted } = search(field.value);
    chosen = 0;
    results.hidden = !field.value.trim();
    results.replaceChildren(
      make("div", { class: "more", style: { margin: "2px 10px" } }, total ? `${counted(total, "result")}${total > found.length ? `, the first ${found.length}` : ""}` : "nothing found"),
      ...found.map((entry, at) => make("a", { href: entry.address, role: "option", class: at === 0 ? "here" : "", onclick: () => hide() },
        make("span", { class: "kind" }, entry.kind), ...marked(entry.label, wanted, 90), make("span", { class: "more" }, ...marked(entry.more, wanted)))));
  };
  const hide = () => {
    results.hidden = true;
    field.blur();
  };
  const move = (by) => {
    const options = [...results.querySelectorAll("a")];
    if (!options.length) return;
    options[chosen]?.classList.remove("here");
    chosen = (chosen + by + options.length) % options.length;
    options[chosen].classList.add("here");
    options[chosen].scrollIntoView({ block: "nearest" });
  };
  field.addEventListener("input", () => {
    clearTimeout(timer);
    timer = setTimeout(refresh, 60);
  });
  field.addEventListener("focus", () => field.value.trim() && refresh());
  field.addEventListener("keydown", (event) => {
    if (event.key === "ArrowDown") move(1);
    else if (event.key === "ArrowUp") move(-1);
    else if (event.key === "Enter") {
      clearTimeout(timer);
      if (results.hidden || !results.querySelector("a")) refresh();
      const target = results.querySelectorAll("a")[chosen];
      if (target) {
        location.hash = target.getAttribute("href");
        hide();
      }
    } else if (event.key === "Escape") hide();
    else return;
    event.preventDefault();
  });
  document.addEventListener("keydown", (event) => {
    if (event.key === "/" && !/input|select|textarea/i.test(document.activeElement.tagName)) {
      field.focus();
      event.preventDefault();
    }
  });
  document.addEventListener("pointerdown", (event) => {
    if (!results.contains(event.target) && event.target !== field) results.hidden = true;
  });
}
