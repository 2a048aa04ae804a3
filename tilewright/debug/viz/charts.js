// Time, memory and the roofline as pictures. In: runs, spans and levels of memory. Out: canvases and SVG. The timeline is
// moved and zoomed like the graph; rows are threads of the host, then queues of devices, then memory.

const ROW_HEIGHT = 24;
const LABEL_WIDTH = 128;
const MEMORY_HEIGHT = 74;
const STAGE_COLOURS = {
  bind: "leaf", schedule: "movement", kernel: "math", codegen: "memory", render: "control", compile: "reduce", load: "constant", cache: "leaf",
};

function timelineRows() {
  const rows = new Map();
  const row = (name, kind) => {
    const key = `${kind} ${name}`;
    if (!rows.has(key)) rows.set(key, { name, kind, bars: [], levels: 1 });
    return rows.get(key);
  };
  for (const span of trace.spans) {
    const stage = span.stage === "stage" ? span.name.split(" ")[0] : span.stage;
    row(span.thread, "thread").bars.push({ ...span, colour: STAGE_COLOURS[stage] ?? "math", label: span.stage === "stage" ? span.name : `${span.stage}/${span.name}`, what: "compiler" });
  }
  for (const run of trace.runs) {
    if (run.kind === "replay") row(run.thread, "thread").bars.push({ ...run, colour: "control", label: `replay ${run.name}`, what: "replay" });
  }
  for (const run of trace.runs) {
    if (run.kind !== "replay") row(run.device, "queue").bars.push({ ...run, colour: run.kind === "copy" ? "movement" : "reduce", label: run.name, what: run.kind });
  }
  for (const found of rows.values()) nestBars(found);
  return [...rows.values()].sort((one, other) => (one.kind === other.kind ? 0 : one.kind === "thread" ? -1 : 1));
}

// A bar that lies inside another one stands below it.
function nestBars(row) {
  row.bars.sort((one, other) => one.start - other.start || other.duration - one.duration);
  const ends = [];
  for (const bar of row.bars) {
    let level = 0;
    while (level < ends.length && ends[level] > bar.start) level++;
    bar.level = level;
    ends[level] = bar.start + bar.duration;
    ends.length = Math.max(level + 1, 1);
    row.levels = Math.max(row.levels, level + 1);
  }
}

class Timeline extends Drawing {
  constructor(holder, onSelect) {
    super();
    this.rows = timelineRows();
    this.devices = [...new Set(trace.memory.map((level) => level.device))];
    this.canvas = make("canvas", { "aria-label": "Timeline" });
    this.holder = holder;
    this.onSelect = onSelect;
    const bars = this.rows.flatMap((row) => row.bars);
    this.first = Math.min(...bars.map((bar) => bar.start).slice(0, 100000), Infinity);
    this.last = bars.reduce((last, bar) => Math.max(last, bar.start + bar.duration), 1);
    if (!Number.isFinite(this.first)) this.first = 0;
    this.view = { start: this.first, end: Math.max(this.last, this.first + 1000) };
    this.top = 24;
    let y = this.top;
    for (const row of this.rows) {
      row.y = y;
      y += row.levels * ROW_HEIGHT + 10;
    }
    this.memoryTop = y + 6;
    holder.style.height = `${this.memoryTop + this.devices.length * (MEMORY_HEIGHT + 14) + 12}px`;
    holder.append(this.canvas);
    this.resizing = new ResizeObserver(() => this.resize());
    this.resizing.observe(holder);
    this.listen();
    this.resize();
  }

  resize() {
    this.resizeTo(this.holder, LABEL_WIDTH + 10);
  }

  x(time) {
    return LABEL_WIDTH + ((time - this.view.start) / (this.view.end - this.view.start)) * (this.width - LABEL_WIDTH);
  }

  draw() {
    const context = this.canvas.getContext("2d");
    const style = getComputedStyle(document.documentElement);
    const colour = (name) => style.getPropertyValue(`--${name}`).trim();
    context.setTransform(this.ratio, 0, 0, this.ratio, 0, 0);
    context.clearRect(0, 0, this.width, this.height);
    this.drawScale(context, colour);
    this.shown = [];
    for (const row of this.rows) this.drawRow(context, colour, row);
    this.devices.forEach((device, at) => this.drawMemory(context, colour, device, this.memoryTop + at * (MEMORY_HEIGHT + 14)));
    context.clearRect(0, 0, LABEL_WIDTH - 4, this.height);
    context.fillStyle = colour("faint");
    context.font = "11px ui-sans-serif, system-ui, 'DejaVu Sans', sans-serif";
    context.textAlign = "left";
    for (const row of this.rows) {
      context.fillText(row.kind === "queue" ? "queue" : "thread", 12, row.y + 9);
      context.fillStyle = colour("ink");
      context.fillText(cutTo(row.name, 18), 12, row.y + 22);
      context.fillStyle = colour("faint");
    }
    this.devices.forEach((device, at) => {
      const y = this.memoryTop + at * (MEMORY_HEIGHT + 14);
      context.fillText("memory", 12, y + 12);
      context.fillStyle = colour("ink");
      context.fillText(device, 12, y + 26);
      context.fillStyle = colour("faint");
    });
  }

  drawScale(context, colour) {
    const span = this.view.end - this.view.start;
    const rough = span / Math.max(2, (this.width - LABEL_WIDTH) / 110);
    const power = 10 ** Math.floor(Math.log10(Math.max(1, rough)));
    const step = [1, 2, 5, 10].map((factor) => factor * power).find((found) => found >= rough);
    context.font = "10.5px ui-sans-serif, system-ui, 'DejaVu Sans', sans-serif";
    context.textAlign = "left";
    for (let time = Math.ceil((this.view.start - this.first) / step) * step; time <= this.view.end - this.first; time += step) {
      const x = this.x(time + this.first);
      context.fillStyle = colour("line");
      context.fillRect(x, 16, 1, this.height);
      context.fillStyle = colour("faint");
      context.fillText(time ? showTime(time) : "0", x + 3, 12);
    }
  }

  drawRow(context, colour, row) {
    context.font = "11px ui-sans-serif, system-ui, 'DejaVu Sans', sans-serif";
    const lastPixel = [];
    for (const bar of row.bars) {
      const x1 = this.x(bar.start), x2 = this.x(bar.start + bar.duration);
      if (x2 < LABEL_WIDTH || x1 > this.width) continue;
      // Many short bars of one pixel are one bar: there is nothing more to see.
      if (x2 - x1 < 1 && lastPixel[bar.level] === Math.floor(x1)) continue;
      lastPixel[bar.level] = Math.floor(x1);
      const left = Math.max(x1, LABEL_WIDTH), width = Math.max(1, Math.min(x2, this.width) - left);
      const y = row.y + bar.level * ROW_HEIGHT;
      context.globalAlpha = row.kind === "thread" ? 0.75 : 0.95;
      context.fillStyle = colour(bar.colour);
      context.fillRect(left, y, width, ROW_HEIGHT - 3);
      context.globalAlpha = 1;
      if (width > 36) {
        context.fillStyle = "#fff";
        context.save();
        context.beginPath();
        context.rect(left, y, width - 4, ROW_HEIGHT);
        context.clip();
        context.fillText(bar.label, left + 5, y + 14.5);
        context.restore();
      }
      this.shown.push([left, y, left + width, y + ROW_HEIGHT - 3, bar]);
    }
  }

  drawMemory(context, colour, device, top) {
    const levels = trace.memory.filter((level) => level.device === device);
    const most = Math.max(1, ...levels.map((level) => level.allocated).slice(0, 100000));
    const y = (allocated) => top + MEMORY_HEIGHT - (allocated / most) * (MEMORY_HEIGHT - 14);
    context.beginPath();
    context.moveTo(this.x(this.view.start), y(0));
    let before = 0;
    for (const level of levels) {
      context.lineTo(this.x(level.time), y(before));
      context.lineTo(this.x(level.time), y(level.allocated));
      before = level.allocated;
    }
    context.lineTo(this.x(Math.max(this.last, this.view.end)), y(before));
    context.lineTo(this.x(Math.max(this.last, this.view.end)), y(0));
    context.globalAlpha = 0.25;
    context.fillStyle = colour("memory");
    context.fill();
    context.globalAlpha = 1;
    context.strokeStyle = colour("memory");
    context.lineWidth = 1.4;
    context.stroke();
    context.fillStyle = colour("faint");
    context.fillText(`most ${showBytes(most)}`, LABEL_WIDTH + 6, top + 9);
  }

  listen() {
    let start = null;
    const canvas = this.canvas;
    canvas.addEventListener("wheel", (event) => {
      event.preventDefault();
      if (Math.abs(event.deltaX) > Math.abs(event.deltaY)) this.move((event.deltaX / (this.width - LABEL_WIDTH)) * (this.view.end - this.view.start));
      else this.zoom(Math.exp(event.deltaY * 0.0016), event.offsetX);
    }, { passive: false });
    canvas.addEventListener("pointerdown", (event) => {
      start = { x: event.clientX, view: { ...this.view }, moved: false };
      canvas.setPointerCapture(event.pointerId);
    });
    canvas.addEventListener("pointermove", (event) => {
      if (start) {
        start.moved ||= Math.abs(event.clientX - start.x) > 3;
        const moved = ((start.x - event.clientX) / (this.width - LABEL_WIDTH)) * (start.view.end - start.view.start);
        this.view = { start: start.view.start + moved, end: start.view.end + moved };
        this.request();
        return;
      }
      const bar = this.barAt(event.offsetX, event.offsetY);
      showTip(bar ? barText(bar) : "", event);
    });
    canvas.addEventListener("pointerup", (event) => {
      if (start && !start.moved) {
        const bar = this.barAt(event.offsetX, event.offsetY);
        if (bar) this.onSelect(bar);
      }
      start = null;
    });
    canvas.addEventListener("pointerleave", () => showTip(""));
    canvas.addEventListener("dblclick", () => {
      this.view = { start: this.first, end: this.last };
      this.request();
    });
  }

  move(time) {
    this.view = { start: this.view.start + time, end: this.view.end + time };
    this.request();
  }

  zoom(factor, x) {
    const middle = this.view.start + ((x - LABEL_WIDTH) / (this.width - LABEL_WIDTH)) * (this.view.end - this.view.start);
    const whole = Math.max(1000, this.last - this.first);
    const span = Math.min(whole * 1.5, Math.max(200, (this.view.end - this.view.start) * factor));
    const share = (middle - this.view.start) / (this.view.end - this.view.start);
    this.view = { start: middle - share * span, end: middle + (1 - share) * span };
    this.request();
  }

  barAt(x, y) {
    for (let at = (this.shown ?? []).length - 1; at >= 0; at--) {
      const [left, top, right, bottom, bar] = this.shown[at];
      if (x >= left - 1 && x <= right + 1 && y >= top && y <= bottom) return bar;
    }
    return null;
  }

  close() {
    this.resizing.disconnect();
  }
}

function barText(bar) {
  const lines = [`${bar.label}`, `${bar.what}, ${showTime(bar.duration)}`];
  if (bar.operations) lines.push(`${showRate(bar.operations, bar.duration)} GFLOP/s`);
  if (bar.bytes_moved) lines.push(`${showBytes(bar.bytes_moved)}, ${showRate(bar.bytes_moved, bar.duration)} GB/s`);
  if (bar.line) lines.push(`${showPlace(bar.line)}  ${sourceOf(bar.line)}`);
  return lines.join("\n");
}

function cutTo(text, count) {
  return text.length > count ? `${text.slice(0, count - 1)}…` : text;
}

// ---------------------------------------------------------------- the roofline

const SVG = "http://www.w3.org/2000/svg";

function draw(tag, given, ...children) {
  const made = document.createElementNS(SVG, tag);
  for (const [name, value] of Object.entries(given)) {
    if (name.startsWith("on")) made.addEventListener(name.slice(2), value);
    else made.setAttribute(name, value);
  }
  made.append(...children);
  return made;
}

function rooflinePoints(device) {
  const points = new Map();
  for (const run of trace.runs) {
    if (run.kind !== "kernel" || run.device !== device || !run.duration || !run.bytes_moved) continue;
    if (!points.has(run.name)) points.set(run.name, { name: run.name, kernel: run.kernel, duration: 0, operations: 0, bytes: 0, count: 0 });
    const point = points.get(run.name);
    point.duration += run.duration;
    point.operations += run.operations;
    point.bytes += run.bytes_moved;
    point.count += 1;
  }
  return [...points.values()];
}

const MIN_INTENSITY = 0.03;

// Operations a second over operations a byte, both in powers of ten. A kernel without operations stands at the left edge,
// as far below the roof as its bytes a second are below the bandwidth.
function roofline(device, onSelect) {
  const points = rooflinePoints(device);
  const peak = peaks[device];
  const width = 860, height = 440, left = 62, bottom = 44, top = 18;
  const intensities = points.map((point) => Math.max(point.operations / point.bytes, MIN_INTENSITY));
  const rates = points.map((point, at) => (intensities[at] * point.bytes) / point.duration);
  const ridge = peak ? peak.operations / peak.bandwidth : 1;
  const xs = [MIN_INTENSITY / 1.6, Math.max(64, ridge * 4, ...intensities) * 1.6];
  const most = peak ? peak.operations / 1e9 : Math.max(1, ...rates);
  const ys = [Math.min(most / 1e3, ...rates) / 1.6, Math.max(most, ...rates) * 2.5];
  const scale = (value, [low, high], from, to) => from + ((Math.log10(value) - Math.log10(low)) / (Math.log10(high) - Math.log10(low))) * (to - from);
  const x = (value) => scale(value, xs, left, width - 16);
  const y = (value) => scale(value, ys, height - bottom, top);
  const picture = draw("svg", { viewBox: `0 0 ${width} ${height}`, width: "100%", style: "max-width:980px", role: "img", "aria-label": `Roofline of ${device}` });
  for (let power = Math.ceil(Math.log10(xs[0])); 10 ** power <= xs[1]; power++) {
    picture.append(draw("line", { x1: x(10 ** power), x2: x(10 ** power), y1: top, y2: height - bottom, stroke: "var(--line)" }), draw("text", { x: x(10 ** power), y: height - bottom + 16, "text-anchor": "middle" }, `${10 ** power}`));
  }
  for (let power = Math.ceil(Math.log10(ys[0])); 10 ** power <= ys[1]; power++) {
    picture.append(draw("line", { x1: left, x2: width - 16, y1: y(10 ** power), y2: y(10 ** power), stroke: "var(--line)" }), draw("text", { x: left - 8, y: y(10 ** power) + 4, "text-anchor": "end" }, `${10 ** power}`));
  }
  picture.append(draw("text", { x: (left + width) / 2, y: height - 8, "text-anchor": "middle" }, "operations a byte"), draw("text", { x: 14, y: height / 2, transform: `rotate(-90 14 ${height / 2})`, "text-anchor": "middle" }, "GFLOP/s"));
  if (peak) {
    const roof = [[xs[0], (xs[0] * peak.bandwidth) / 1e9], [ridge, peak.operations / 1e9], [xs[1], peak.operations / 1e9]];
    picture.append(draw("polyline", { points: roof.map(([px, py]) => `${x(px)},${y(Math.max(py, ys[0]))}`).join(" "), fill: "none", stroke: "var(--accent)", "stroke-width": "2.5" }));
    picture.append(draw("text", { x: width - 20, y: y(peak.operations / 1e9) - 8, "text-anchor": "end" }, `${threeDigits(peak.operations / 1e9)} GFLOP/s, ${threeDigits(peak.bandwidth / 1e9)} GB/s`));
  }
  const total = points.reduce((sum, point) => sum + point.duration, 1);
  points.forEach((point, at) => {
    const dot = draw("circle", { cx: x(intensities[at]), cy: y(rates[at]), r: 4 + 14 * Math.sqrt(point.duration / total), fill: "var(--reduce)", "fill-opacity": "0.55", stroke: "var(--reduce)", style: "cursor:pointer" });
    dot.addEventListener("click", () => onSelect(point));
    dot.addEventListener("pointermove", (event) => showTip(`${point.name}\n${counted(point.count, "run")}, ${showTime(point.duration)}\n${showRate(point.operations, point.duration)} GFLOP/s, ${showRate(point.bytes, point.duration)} GB/s`, event));
    dot.addEventListener("pointerleave", () => showTip(""));
    picture.append(dot);
  });
  return picture;
}
