// The graph on a canvas. In: a graph of the trace. Out: a picture that is moved with the pointer, and calls for the node
// that was clicked. The picture is drawn into a buffer larger than the view; moving and zooming show the buffer, and it
// is redrawn when the view leaves it or comes to rest.

// What the tools above and the legend below cover.
const TOP_MARGIN = 62;
const BOTTOM_MARGIN = 48;
const LARGE_MARGIN = 0.35;
const REST_MILLISECONDS = 110;
const TEXT_ZOOM = 0.42;
const OPENING_ZOOM = 0.8;
const MAP_WIDTH = 190;
const MAP_HEIGHT = 150;
const CURVE_ZOOM = 0.25;

class GraphView extends Drawing {
  constructor(holder, onSelect) {
    super();
    this.canvas = make("canvas", { tabindex: "0", "aria-label": "Graph" });
    this.buffer = document.createElement("canvas");
    this.onSelect = onSelect;
    this.scale = 1;
    this.offset = { x: 0, y: 0 };
    this.selected = null;
    this.marked = new Set();
    this.added = new Set();
    this.frames = 0;
    this.drawings = 0;
    holder.append(this.canvas);
    this.listen();
    this.resizing = new ResizeObserver(() => this.resize());
    this.resizing.observe(holder);
  }

  show(numbers, nodes, added) {
    const measure = (node) => ({ width: Math.max(64, 14 + 6.7 * Math.max(node.op.length + 1, caption(node).length)), height: 36 });
    this.numbers = numbers;
    this.nodes = nodes;
    this.whole = null;
    this.added = added;
    this.layout = layoutGraph(numbers, nodes, measure);
    const { x, y, sizes } = this.layout;
    this.bounds = { left: 0, right: 1, top: 0, bottom: 1 };
    numbers.forEach((_, at) => {
      this.bounds.left = Math.min(this.bounds.left, x[at] - sizes[at].width / 2);
      this.bounds.right = Math.max(this.bounds.right, x[at] + sizes[at].width / 2);
      this.bounds.bottom = Math.max(this.bounds.bottom, y[at] + sizes[at].height);
    });
    this.indexCells();
    this.resize();
    this.fit();
    if (this.scale >= TEXT_ZOOM) return;
    // What cannot be read as a whole opens at its end, where the results are; the small map shows all of it.
    this.draw();
    this.scale = OPENING_ZOOM;
    const at = numbers.length - 1;
    this.offset = { x: x[at] - this.width / 2 / this.scale, y: y[at] + 60 - (this.height - BOTTOM_MARGIN) / this.scale };
    this.stale = true;
    this.request();
  }

  // Cells of a grid, each with the nodes whose middle is in it: what is under the pointer or in view is found at once.
  indexCells() {
    const { x, y } = this.layout;
    this.cellSize = 400;
    this.cells = new Map();
    this.numbers.forEach((_, at) => {
      const key = `${Math.floor(x[at] / this.cellSize)},${Math.floor(y[at] / this.cellSize)}`;
      if (!this.cells.has(key)) this.cells.set(key, []);
      this.cells.get(key).push(at);
    });
  }

  resize() {
    this.stale = true;
    this.resizeTo(this.canvas.parentElement, 1);
  }

  fit() {
    const { left, right, top, bottom } = this.bounds;
    const free = Math.max(40, this.height - TOP_MARGIN - BOTTOM_MARGIN);
    this.scale = Math.max(0.01, Math.min(1.2, (0.94 * this.width) / (right - left), free / (bottom - top)));
    const middle = TOP_MARGIN + free / 2;
    this.offset = { x: (left + right) / 2 - this.width / 2 / this.scale, y: (top + bottom) / 2 - middle / this.scale };
    this.stale = true;
    this.request();
  }

  focus(number) {
    const at = this.layout.index.get(number);
    if (at === undefined) return;
    this.scale = Math.max(this.scale, 0.8);
    this.offset = { x: this.layout.x[at] - this.width / 2 / this.scale, y: this.layout.y[at] - this.height / 2 / this.scale };
    this.stale = true;
    this.select(number);
  }

  select(number) {
    this.selected = number;
    this.stale = true;
    this.request();
  }

  mark(found) {
    this.marked = found;
    this.stale = true;
    this.request();
  }

  draw() {
    if (!this.layout) return;
    this.frames++;
    const view = { left: this.offset.x, top: this.offset.y, right: this.offset.x + this.width / this.scale, bottom: this.offset.y + this.height / this.scale };
    const kept = this.kept;
    const isInside = kept && view.left >= kept.left && view.right <= kept.right && view.top >= kept.top && view.bottom <= kept.bottom;
    const isZooming = kept && this.scale !== kept.scale;
    if (this.stale || (!isInside && !isZooming)) this.drawBuffer(view);
    else if (isZooming) this.drawLater();
    const context = this.canvas.getContext("2d");
    context.setTransform(1, 0, 0, 1, 0, 0);
    context.clearRect(0, 0, this.canvas.width, this.canvas.height);
    context.imageSmoothingEnabled = !isZooming;
    // While it is zoomed, the whole graph as it was drawn first stands for what the buffer does not hold.
    if (!isInside && this.whole) this.showImage(context, this.whole.image, this.whole.kept);
    this.showImage(context, this.buffer, this.kept, !isInside);
    this.drawMap(context, view);
  }

  // The whole graph in a corner, with a frame around what is in view; nothing where all of it is.
  drawMap(context, view) {
    const { left, right, top, bottom } = this.bounds;
    this.map = null;
    if (!this.whole || (view.left <= left && view.right >= right && view.top <= top && view.bottom >= bottom)) return;
    const scale = Math.min(MAP_WIDTH / (right - left), MAP_HEIGHT / (bottom - top));
    const width = Math.max(24, (right - left) * scale), height = Math.max(24, (bottom - top) * scale);
    const x = this.width - width - 16, y = this.height - height - 16;
    this.map = { x, y, width, height, scale, left: (left + right) / 2 - width / 2 / scale, top: (top + bottom) / 2 - height / 2 / scale };
    const style = getComputedStyle(document.documentElement);
    context.setTransform(this.ratio, 0, 0, this.ratio, 0, 0);
    context.fillStyle = style.getPropertyValue("--panel");
    context.fillRect(x - 6, y - 6, width + 12, height + 12);
    context.strokeStyle = style.getPropertyValue("--line");
    context.lineWidth = 1;
    context.strokeRect(x - 6, y - 6, width + 12, height + 12);
    context.drawImage(this.smallImage(), x, y, width, height);
    const frame = [(view.left - this.map.left) * scale, (view.top - this.map.top) * scale, (view.right - view.left) * scale, (view.bottom - view.top) * scale];
    context.save();
    context.beginPath();
    context.rect(x - 6, y - 6, width + 12, height + 12);
    context.clip();
    context.strokeStyle = style.getPropertyValue("--accent");
    context.lineWidth = 1.5;
    context.strokeRect(x + frame[0], y + frame[1], Math.max(4, frame[2]), Math.max(4, frame[3]));
    context.restore();
  }

  // The whole graph in the size of the map: to make it smaller takes longer than all else in a frame.
  smallImage() {
    if (this.whole.small) return this.whole.small;
    const { left, top, width, height, scale } = this.map;
    const small = document.createElement("canvas");
    small.width = Math.ceil(width * this.ratio);
    small.height = Math.ceil(height * this.ratio);
    const kept = this.whole.kept, pixel = kept.scale * this.ratio;
    const from = [(left - kept.left) * pixel, (top - kept.top) * pixel, (width / scale) * pixel, (height / scale) * pixel];
    small.getContext("2d").drawImage(this.whole.image, ...from, 0, 0, small.width, small.height);
    this.whole.small = small;
    return small;
  }

  // Moves the view to a place of the small map; false where the pointer is not on it.
  moveByMap(x, y) {
    const map = this.map;
    if (!map || x < map.x - 6 || y < map.y - 6 || x > map.x + map.width + 6 || y > map.y + map.height + 6) return false;
    this.offset = { x: map.left + (x - map.x) / map.scale - this.width / 2 / this.scale, y: map.top + (y - map.y) / map.scale - this.height / 2 / this.scale };
    this.request();
    return true;
  }

  showImage(context, image, kept, isAbove) {
    const pixel = this.scale * this.ratio, zoom = this.scale / kept.scale;
    const left = (kept.left - this.offset.x) * pixel, top = (kept.top - this.offset.y) * pixel;
    if (isAbove) context.clearRect(left, top, image.width * zoom, image.height * zoom);
    context.drawImage(image, left, top, image.width * zoom, image.height * zoom);
  }

  drawLater() {
    clearTimeout(this.timer);
    this.timer = setTimeout(() => {
      this.stale = true;
      this.request();
    }, REST_MILLISECONDS);
  }

  drawBuffer(view) {
    this.drawings++;
    this.stale = false;
    const wide = (view.right - view.left) * LARGE_MARGIN;
    const high = (view.bottom - view.top) * LARGE_MARGIN;
    this.kept = { left: view.left - wide, right: view.right + wide, top: view.top - high, bottom: view.bottom + high, scale: this.scale };
    const pixel = this.scale * this.ratio;
    const width = Math.ceil((this.kept.right - this.kept.left) * pixel);
    const height = Math.ceil((this.kept.bottom - this.kept.top) * pixel);
    if (this.buffer.width !== width || this.buffer.height !== height) {
      this.buffer.width = width;
      this.buffer.height = height;
    }
    const context = this.buffer.getContext("2d");
    context.setTransform(1, 0, 0, 1, 0, 0);
    context.clearRect(0, 0, width, height);
    context.setTransform(pixel, 0, 0, pixel, -this.kept.left * pixel, -this.kept.top * pixel);
    const colours = new Map();
    const style = getComputedStyle(document.documentElement);
    const colour = (name) => {
      if (!colours.has(name)) colours.set(name, style.getPropertyValue(`--${name}`).trim());
      return colours.get(name);
    };
    this.drawEdges(context, colour);
    this.drawNodes(context, colour);
    const { left, right, top, bottom } = this.bounds;
    const holdsAll = this.kept.left <= left && this.kept.right >= right && this.kept.top <= top && this.kept.bottom >= bottom;
    if (holdsAll && !this.whole) {
      const image = document.createElement("canvas");
      image.width = width;
      image.height = height;
      image.getContext("2d").drawImage(this.buffer, 0, 0);
      this.whole = { image, kept: this.kept };
    }
  }

  isVisible(left, right, top, bottom) {
    const kept = this.kept;
    return right >= kept.left && left <= kept.right && bottom >= kept.top && top <= kept.bottom;
  }

  drawEdges(context, colour) {
    const { x, y, sizes, sources } = this.layout;
    const chosen = this.selected === null ? undefined : this.layout.index.get(this.selected);
    const isCurved = this.scale > CURVE_ZOOM;
    const bright = new Path2D();
    context.beginPath();
    for (let at = 0; at < sources.length; at++) {
      const count = sources[at].length;
      for (let slot = 0; slot < count; slot++) {
        const from = sources[at][slot];
        const x1 = x[from], y1 = y[from] + sizes[from].height;
        const x2 = x[at] + (count > 1 ? (slot / (count - 1) - 0.5) * Math.min(sizes[at].width - 24, 14 * count) : 0), y2 = y[at];
        if (!this.isVisible(Math.min(x1, x2), Math.max(x1, x2), y1, y2)) continue;
        const path = at === chosen || from === chosen ? bright : context;
        path.moveTo(x1, y1);
        if (isCurved) {
          const bend = Math.min(60, (y2 - y1) / 2);
          path.bezierCurveTo(x1, y1 + bend, x2, y2 - bend, x2, y2);
        } else path.lineTo(x2, y2);
      }
    }
    context.strokeStyle = colour("edge");
    context.lineWidth = isCurved ? 1.2 : Math.min(1.2, 0.7 / this.scale);
    context.stroke();
    context.strokeStyle = colour("select");
    context.lineWidth = Math.max(2, 1.5 / this.scale);
    context.stroke(bright);
  }

  drawNodes(context, colour) {
    const { x, y, sizes } = this.layout;
    const hasText = this.scale > TEXT_ZOOM;
    const groups = new Map();
    const special = [];
    this.numbers.forEach((number, at) => {
      const left = x[at] - sizes[at].width / 2;
      if (!this.isVisible(left, left + sizes[at].width, y[at], y[at] + sizes[at].height)) return;
      const name = family(this.nodes[number]);
      if (!groups.has(name)) groups.set(name, []);
      groups.get(name).push(at);
      if (number === this.selected || this.marked.has(number) || this.added.has(number)) special.push([number, at]);
    });
    for (const [name, members] of groups) {
      context.beginPath();
      for (const at of members) {
        const left = x[at] - sizes[at].width / 2;
        if (hasText) context.roundRect(left, y[at], sizes[at].width, sizes[at].height, 7);
        else context.rect(left, y[at], sizes[at].width, sizes[at].height);
      }
      if (hasText) {
        context.fillStyle = colour("raised");
        context.fill();
        context.strokeStyle = colour(name);
        context.lineWidth = 1.6;
        context.stroke();
      } else {
        context.fillStyle = colour(name);
        context.fill();
      }
    }
    for (const [number, at] of special) this.outline(context, colour, number, at);
    if (hasText) for (const [name, members] of groups) this.drawText(context, colour, name, members);
  }

  outline(context, colour, number, at) {
    const { x, y, sizes } = this.layout;
    const grown = number === this.selected || this.marked.has(number) ? 4 : 2;
    context.beginPath();
    context.roundRect(x[at] - sizes[at].width / 2 - grown, y[at] - grown, sizes[at].width + 2 * grown, sizes[at].height + 2 * grown, 9);
    context.strokeStyle = colour(grown === 4 ? "select" : "plus");
    context.lineWidth = Math.max(2.5, 2 / this.scale);
    context.stroke();
  }

  drawText(context, colour, name, members) {
    const { x, y } = this.layout;
    context.textAlign = "center";
    context.fillStyle = colour("ink");
    context.font = "600 11.5px ui-monospace, Menlo, Consolas, 'DejaVu Sans Mono', monospace";
    for (const at of members) {
      const node = this.nodes[this.numbers[at]];
      context.fillText(node.op, x[at], y[at] + (caption(node) ? 15 : 22));
    }
    context.fillStyle = colour("faint");
    context.font = "10.5px ui-monospace, Menlo, Consolas, 'DejaVu Sans Mono', monospace";
    for (const at of members) context.fillText(caption(this.nodes[this.numbers[at]]), x[at], y[at] + 28);
  }

  // ---------------------------------------------------------------- the pointer

  listen() {
    const canvas = this.canvas;
    let start = null;
    canvas.addEventListener("pointerdown", (event) => {
      canvas.setPointerCapture(event.pointerId);
      const onMap = this.moveByMap(event.offsetX, event.offsetY);
      start = { x: event.clientX, y: event.clientY, offset: { ...this.offset }, moved: onMap, onMap };
    });
    canvas.addEventListener("pointermove", (event) => {
      if (!start) {
        const at = this.nodeAt(event.offsetX, event.offsetY);
        canvas.style.cursor = at === null ? "" : "pointer";
        showTip(at === null ? "" : nodeText(this.numbers[at], this.nodes[this.numbers[at]]), event);
        return;
      }
      if (start.onMap) {
        this.moveByMap(event.offsetX, event.offsetY);
        return;
      }
      const dx = event.clientX - start.x, dy = event.clientY - start.y;
      start.moved ||= Math.hypot(dx, dy) > 4;
      this.offset = { x: start.offset.x - dx / this.scale, y: start.offset.y - dy / this.scale };
      canvas.classList.add("dragging");
      showTip("");
      this.request();
    });
    canvas.addEventListener("pointerup", (event) => {
      if (start && !start.moved) {
        const at = this.nodeAt(event.offsetX, event.offsetY);
        this.onSelect(at === null ? null : this.numbers[at]);
      }
      start = null;
      canvas.classList.remove("dragging");
    });
    canvas.addEventListener("pointerleave", () => showTip(""));
    canvas.addEventListener("wheel", (event) => {
      event.preventDefault();
      this.zoom(Math.exp(-event.deltaY * (event.deltaMode ? 0.05 : 0.0016)), event.offsetX, event.offsetY);
    }, { passive: false });
    canvas.addEventListener("dblclick", () => this.fit());
    canvas.addEventListener("keydown", (event) => this.press(event));
  }

  press(event) {
    const step = 80 / this.scale;
    const moves = { ArrowLeft: [-step, 0], ArrowRight: [step, 0], ArrowUp: [0, -step], ArrowDown: [0, step] };
    if (moves[event.key]) {
      this.offset.x += moves[event.key][0];
      this.offset.y += moves[event.key][1];
      this.request();
    } else if (event.key === "+" || event.key === "=") this.zoom(1.25, this.width / 2, this.height / 2);
    else if (event.key === "-") this.zoom(0.8, this.width / 2, this.height / 2);
    else if (event.key === "0") this.fit();
    else return;
    event.preventDefault();
  }

  zoom(factor, x, y) {
    const scale = Math.min(4, Math.max(0.01, this.scale * factor));
    this.offset.x += x / this.scale - x / scale;
    this.offset.y += y / this.scale - y / scale;
    this.scale = scale;
    this.request();
  }

  nodeAt(viewX, viewY) {
    if (!this.layout) return null;
    const px = this.offset.x + viewX / this.scale, py = this.offset.y + viewY / this.scale;
    const { x, y, sizes } = this.layout;
    const column = Math.floor(px / this.cellSize), row = Math.floor(py / this.cellSize);
    for (let i = column - 1; i <= column + 1; i++) {
      for (let j = row - 1; j <= row + 1; j++) {
        for (const at of this.cells.get(`${i},${j}`) ?? []) {
          if (Math.abs(px - x[at]) <= sizes[at].width / 2 && py >= y[at] && py <= y[at] + sizes[at].height) return at;
        }
      }
    }
    return null;
  }

  close() {
    this.resizing.disconnect();
    clearTimeout(this.timer);
  }
}

function caption(node) {
  if (node.op === "CONST") return `${node.arg}`.slice(0, 22);
  const arg = node.op === "RANGE" ? ` ${node.arg.replace(/^Axis\(|\)$/g, "").replace("AxisType.", "")}` : "";
  return `${node.dtype === "void" ? "" : node.dtype}${node.shape ? ` ${node.shape}` : ""}${arg}`.slice(0, 34);
}

function showTip(text, event) {
  const tip = document.getElementById("tip");
  tip.hidden = !text;
  if (!text) return;
  tip.textContent = text.length > 600 ? `${text.slice(0, 600)}...` : text;
  const box = tip.getBoundingClientRect();
  tip.style.left = `${Math.min(event.clientX + 14, window.innerWidth - box.width - 8)}px`;
  tip.style.top = `${Math.min(event.clientY + 16, window.innerHeight - box.height - 8)}px`;
}
