// Text with structure: code, differences of graphs and of expressions. In: strings. Out: elements.

const MAX_COLOURED = 60_000;
const MAX_ROWS = 4_000;
const MAX_WORDS = 1_200;
const TOKEN = /(;.*|#.*|\/\/.*|\/\*.*?\*\/)|(%[\w.]+|@[\w.]+|\$[\w.]+)|\b(0x[0-9a-fA-F]+|\d+(?:\.\d+)?(?:e[+-]?\d+)?)\b|\b(define|load|store|ret|br|phi|for|if|in|void|int|float|double|const|return|fadd|fmul|add|mul|call|getelementptr)\b/g;
const TOKEN_NAMES = ["t-comment", "t-name", "t-number", "t-word"];

function code(text) {
  const box = make("pre", {});
  const lines = text.replace(/\n$/, "").split("\n");
  const isColoured = text.length <= MAX_COLOURED;
  lines.slice(0, MAX_ROWS).forEach((line, at) => {
    box.append(make("span", { class: "n" }, String(at + 1)));
    if (isColoured) box.append(...colouredTokens(line));
    else box.append(line);
    box.append("\n");
  });
  if (lines.length > MAX_ROWS) box.append(`... ${counted(lines.length - MAX_ROWS, "more line")}`);
  return box;
}

function colouredTokens(line) {
  const parts = [];
  let end = 0;
  for (const match of line.matchAll(TOKEN)) {
    const kind = TOKEN_NAMES[match.slice(1).findIndex((group) => group !== undefined)];
    if (match.index > end) parts.push(line.slice(end, match.index));
    parts.push(make("span", { class: kind }, match[0]));
    end = match.index + match[0].length;
  }
  parts.push(line.slice(end));
  return parts;
}

// The instructions of assembly, without what only an assembler reads.
function machineCode(text) {
  const isCode = (line) => line.trim() && (line.trimEnd().endsWith(":") || !/^\s*(\.|#|\/\/)/.test(line));
  return text.split("\n").map((line) => line.split(/\s+(?:#|\/\/) /)[0].replace(/\t/g, "        ")).filter(isCode).join("\n");
}

// ---------------------------------------------------------------- differences

function wordDiff(before, after) {
  const one = words(before), other = words(after);
  if (one.length * other.length > MAX_WORDS * MAX_WORDS) {
    return [[make("del", {}, before)], [make("ins", {}, after)]];
  }
  const kept = commonWords(one, other);
  return [markWords(one, kept.one, "del"), markWords(other, kept.other, "ins")];
}

function words(text) {
  return text.match(/[\w.]+|\s+|[^\w\s]/g) ?? [];
}

function commonWords(one, other) {
  const width = other.length + 1;
  const lengths = new Uint16Array((one.length + 1) * width);
  for (let i = one.length - 1; i >= 0; i--) {
    for (let j = other.length - 1; j >= 0; j--) {
      lengths[i * width + j] = one[i] === other[j]
        ? lengths[(i + 1) * width + j + 1] + 1
        : Math.max(lengths[(i + 1) * width + j], lengths[i * width + j + 1]);
    }
  }
  const kept = { one: new Set(), other: new Set() };
  for (let i = 0, j = 0; i < one.length && j < other.length;) {
    if (one[i] === other[j]) {
      kept.one.add(i++);
      kept.other.add(j++);
    } else if (lengths[(i + 1) * width + j] >= lengths[i * width + j + 1]) i++;
    else j++;
  }
  return kept;
}

function markWords(found, kept, tag) {
  const parts = [];
  let run = "";
  const flush = () => {
    if (run) parts.push(make(tag, {}, run));
    run = "";
  };
  found.forEach((word, at) => {
    if (!kept.has(at)) run += word;
    else {
      flush();
      parts.push(word);
    }
  });
  flush();
  return parts;
}

function expressionDiff(before, after) {
  const [removed, made] = wordDiff(before, after);
  return make("div", { class: "diff" },
    make("div", { class: "minus words" }, "- ", ...removed),
    make("div", { class: "plus words" }, "+ ", ...made));
}

// What a pass took away from the graph and what it made: nodes keep their numbers, so this is a difference of sets.
function graphDiff(before, after, nodes) {
  const old = reachable(before, nodes), now = reachable(after, nodes);
  const oldSet = new Set(old), nowSet = new Set(now);
  const removed = old.filter((number) => !nowSet.has(number));
  const added = now.filter((number) => !oldSet.has(number));
  const rows = [
    ...removed.map((number) => make("div", { class: "minus" }, `- ${nodeText(number, nodes[number])}`)),
    ...added.map((number) => make("div", { class: "plus" }, `+ ${nodeText(number, nodes[number])}`)),
  ];
  const shown = rows.slice(0, MAX_ROWS);
  if (rows.length > shown.length) shown.push(make("div", { class: "faint" }, `... ${counted(rows.length - shown.length, "more node")}`));
  return { element: make("div", { class: "diff" }, ...shown), removed, added };
}
