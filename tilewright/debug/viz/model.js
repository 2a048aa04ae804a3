"use strict";
// The trace and words for it. In: the JSON of the page. Out: plain objects, text and elements. Text reaches the document
// through text nodes alone: whatever a program is called or prints, it stays text.

const data = JSON.parse(document.getElementById("data").textContent);
const trace = data.trace;
const peaks = data.peaks;

function make(tag, given = {}, ...children) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(given)) {
    if (value === undefined || value === null || value === false) continue;
    if (name === "class") made.className = value;
    else if (name.startsWith("on")) made.addEventListener(name.slice(2), value);
    else if (name === "style") Object.assign(made.style, value);
    else made.setAttribute(name, value === true ? "" : value);
  }
  made.append(...children.flat().filter((child) => child !== null && child !== undefined && child !== false));
  return made;
}

function threeDigits(value) {
  if (value >= 99.95) return value.toFixed(0);
  return value >= 9.995 ? value.toFixed(1) : value.toFixed(2);
}

function showTime(nanoseconds) {
  for (const [factor, unit] of [[1e3, "us"], [1e6, "ms"]]) {
    if (nanoseconds / factor < 999.5) return `${threeDigits(nanoseconds / factor)} ${unit}`;
  }
  return `${threeDigits(nanoseconds / 1e9)} s`;
}

function showBytes(count) {
  let size = count;
  for (const unit of ["B", "kB", "MB", "GB", "TB"]) {
    if (size < 999.5 || unit === "TB") return unit === "B" ? `${count} B` : `${threeDigits(size)} ${unit}`;
    size /= 1000;
  }
  return "";
}

function showRate(amount, nanoseconds) {
  return nanoseconds > 0 ? threeDigits(amount / nanoseconds) : "-";
}

function showPlace(location) {
  if (!location) return "";
  const parts = location[0].split("/");
  return `${location[0].startsWith("/") ? parts.slice(-2).join("/") : location[0]}:${location[1]}`;
}

function counted(count, name) {
  return `${count.toLocaleString("en")} ${name}${count === 1 ? "" : "s"}`;
}

// ---------------------------------------------------------------- graphs

const FAMILIES = {
  leaf: ["PARAM", "BUFFER", "DEFINE_LOCAL", "DEFINE_REG", "PLACEHOLDER", "VARIABLE", "IOTA"],
  constant: ["CONST"],
  movement: ["RESHAPE", "EXPAND", "PERMUTE", "PAD", "SHRINK", "FLIP", "CAT", "MULTI", "CONTIGUOUS", "DETACH", "COPY"],
  reduce: ["REDUCE", "REDUCE_AXIS", "ACC", "ACCUMULATE", "COMBINE", "DOT", "TILE_DOT"],
  memory: ["LOAD", "STORE", "INDEX", "GATHER", "ASSIGN", "SCATTER"],
  control: ["RANGE", "END", "SINK", "BARRIER", "AFTER", "IF", "ENDIF", "CUSTOM_KERNEL", "CHECK", "GROUP"],
};
const familyOf = new Map(Object.entries(FAMILIES).flatMap(([family, ops]) => ops.map((op) => [op, family])));
const FAMILY_NAMES = {
  leaf: "inputs and buffers", constant: "constants", math: "arithmetic", movement: "views", reduce: "sums",
  memory: "memory", control: "loops and order",
};

function family(node) {
  return familyOf.get(node.op) ?? "math";
}

function reachable(roots, nodes) {
  const found = new Set();
  const stack = roots.map((root) => [root, false]).reverse();
  while (stack.length) {
    const [number, isDone] = stack.pop();
    if (found.has(number)) continue;
    if (isDone) {
      found.add(number);
      continue;
    }
    stack.push([number, true]);
    for (let at = nodes[number].src.length - 1; at >= 0; at--) {
      const source = nodes[number].src[at];
      if (!found.has(source)) stack.push([source, false]);
    }
  }
  return [...found];
}

function nodeText(number, node) {
  const parts = [`%${number} = ${node.op} ${node.dtype}`, ...node.src.map((source) => `%${source}`)];
  if (node.arg) parts.push(node.arg);
  return parts.join(" ") + (node.shape ? `  # ${node.shape}` : "");
}

// The graphs of a step or a kernel over time: as it was given, then as each pass left it.
function graphsOf(owner) {
  const first = { name: "before the passes", roots: owner.roots, isChanged: true, pass: null };
  const graphs = [first];
  for (const pass of owner.passes) {
    if (pass.roots.length) graphs.push({ name: `${pass.stage}/${pass.name}`, roots: pass.roots, isChanged: pass.is_changed, pass });
  }
  return graphs;
}

const lineText = new Map(trace.lines.map((line) => [`${line.line[0]}:${line.line[1]}`, line.text]));

function sourceOf(location) {
  return location ? lineText.get(`${location[0]}:${location[1]}`) ?? "" : "";
}

const kernelTime = trace.kernels.map(() => ({ duration: 0, count: 0 }));
for (const run of trace.runs) {
  if (run.kernel !== null && run.kind === "kernel") {
    kernelTime[run.kernel].duration += run.duration;
    kernelTime[run.kernel].count += 1;
  }
}

// What is drawn on a canvas: `draw` is called at most once a frame.
class Drawing {
  request() {
    if (this.pending) return;
    this.pending = true;
    requestAnimationFrame(() => {
      this.pending = false;
      this.draw();
    });
  }

  // The canvas takes the size of what holds it, in pixels of the screen.
  resizeTo(holder, narrowest) {
    const box = holder.getBoundingClientRect();
    this.ratio = Math.min(2, window.devicePixelRatio || 1);
    this.width = Math.max(narrowest, box.width);
    this.height = Math.max(1, box.height);
    this.canvas.width = this.width * this.ratio;
    this.canvas.height = this.height * this.ratio;
    this.request();
  }
}
