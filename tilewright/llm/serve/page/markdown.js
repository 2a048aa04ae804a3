// Markdown to elements. Text only ever becomes text nodes: no string is read as HTML, so nothing that a model or a
// person writes can become a tag, a handler or a script.
"use strict";

const Markdown = (() => {
  const SAFE_PROTOCOLS = new Set(["http:", "https:", "mailto:"]);
  const MAX_DEPTH = 8;
  // How far ahead the end of a link or of emphasis is looked for; keeps hostile text from taking quadratic time.
  const MAX_SPAN = 2000;
  const FENCE = /^( {0,3})(`{3,}|~{3,})\s*([^`\s]*)[^`]*$/;
  const HEADING = /^ {0,3}(#{1,6})\s+(.*?)\s*#*\s*$/;
  const RULE = /^ {0,3}([-*_])( *\1){2,} *$/;
  const ITEM = /^(\s*)([-*+]|\d{1,9}[.)])(\s+|$)(.*)$/;
  const QUOTE = /^ {0,3}> ?(.*)$/;
  const TABLE_LINE = /^ {0,3}\|?( *:?-+:? *\|)+( *:?-+:? *)?$/;
  const KEYWORDS = new Set(
    ("and as assert async await break case catch class const continue def del do elif else enum except export extends " +
      "false finally fn for from function if impl import in instanceof interface is lambda let match mut new nil None " +
      "not null or package pass private public pub raise return self static struct super switch this throw true True " +
      "False try type typeof undefined use var void while with yield").split(" "),
  );
  const CODE_TOKEN =
    /(\/\/[^\n]*|#[^\n]*|\/\*[^]*?\*\/)|("(?:[^"\\\n]|\\.)*"|'(?:[^'\\\n]|\\.)*'|`(?:[^`\\]|\\.)*`)|(\b\d[\w.]*)|([A-Za-z_]\w*)/g;

  function element(name, className, ...children) {
    const made = document.createElement(name);
    if (className) made.className = className;
    made.append(...children);
    return made;
  }

  // Blocks: each has the lines it was read from, so that a block that has not changed is not made again.
  function parseBlocks(lines) {
    const blocks = [];
    let at = 0;
    const add = (kind, end, facts) => {
      blocks.push({ kind, source: lines.slice(at, end).join("\n"), ...facts });
      at = end;
    };
    while (at < lines.length) {
      const line = lines[at];
      const fence = FENCE.exec(line);
      const heading = HEADING.exec(line);
      if (!line.trim()) at += 1;
      else if (fence) addFence(lines, at, fence, add);
      else if (heading) add("heading", at + 1, { level: heading[1].length, text: heading[2] });
      else if (RULE.test(line)) add("rule", at + 1, {});
      else if (QUOTE.test(line)) addQuote(lines, at, add);
      else if (ITEM.test(line)) addList(lines, at, add);
      else if (line.includes("|") && TABLE_LINE.test(lines[at + 1] || "")) addTable(lines, at, add);
      else addParagraph(lines, at, add);
    }
    return blocks;
  }

  function addFence(lines, at, fence, add) {
    const marker = fence[2];
    let end = at + 1;
    const closes = (line) => line.trim().startsWith(marker) && line.trim().replaceAll(marker[0], "") === "";
    while (end < lines.length && !closes(lines[end])) end += 1;
    const body = lines.slice(at + 1, end).map((line) => (line.startsWith(fence[1]) ? line.slice(fence[1].length) : line));
    add("code", Math.min(end + 1, lines.length), { language: fence[3], text: body.join("\n") });
  }

  function addQuote(lines, at, add) {
    let end = at;
    while (end < lines.length && QUOTE.test(lines[end])) end += 1;
    add("quote", end, { lines: lines.slice(at, end).map((line) => QUOTE.exec(line)[1]) });
  }

  function addList(lines, at, add) {
    const first = ITEM.exec(lines[at]);
    const indent = first[1].length;
    const ordered = /\d/.test(first[2]);
    const items = [];
    let end = at;
    let loose = false;
    while (end < lines.length) {
      const line = lines[end];
      const item = ITEM.exec(line);
      const depth = line.length - line.trimStart().length;
      if (!line.trim()) {
        const next = lines[end + 1];
        const nextItem = next === undefined ? null : ITEM.exec(next);
        const goesOn = next !== undefined && next.trim() && (next.length - next.trimStart().length > indent || nextItem);
        if (!goesOn) break;
        if (items.length) items[items.length - 1].push("");
        loose = true;
      } else if (item && depth <= indent + 1 && !RULE.test(line)) {
        if (/\d/.test(item[2]) !== ordered && depth <= indent) break;
        items.push([item[4]]);
      } else if (items.length && (depth > indent || !startsBlock(line))) {
        const width = indent + first[2].length + 1;
        items[items.length - 1].push(depth >= width ? line.slice(width) : line.trimStart());
      } else break;
      end += 1;
    }
    add("list", end, { ordered, start: ordered ? parseInt(first[2], 10) : 1, items, loose });
  }

  function startsBlock(line) {
    return FENCE.test(line) || HEADING.test(line) || RULE.test(line) || QUOTE.test(line) || ITEM.test(line);
  }

  function splitRow(line) {
    const cells = line.trim().replace(/^\|/, "").replace(/\|$/, "").split(/(?<!\\)\|/);
    return cells.map((cell) => cell.trim().replaceAll("\\|", "|"));
  }

  function addTable(lines, at, add) {
    const align = splitRow(lines[at + 1]).map((cell) => {
      const right = cell.endsWith(":");
      return cell.startsWith(":") && right ? "center" : right ? "right" : "";
    });
    let end = at + 2;
    while (end < lines.length && lines[end].includes("|") && lines[end].trim()) end += 1;
    add("table", end, { head: splitRow(lines[at]), align, rows: lines.slice(at + 2, end).map(splitRow) });
  }

  function addParagraph(lines, at, add) {
    let end = at + 1;
    const isTable = (index) => lines[index].includes("|") && TABLE_LINE.test(lines[index + 1] || "");
    while (end < lines.length && lines[end].trim() && !startsBlock(lines[end]) && !isTable(end)) end += 1;
    add("paragraph", end, { text: lines.slice(at, end).map((line) => line.trimStart()).join("\n") });
  }

  function makeBlock(block, depth) {
    switch (block.kind) {
      case "code":
        return makeCode(block);
      case "heading":
        return element(`h${Math.min(6, block.level + 2)}`, "", ...inline(block.text, 0));
      case "rule":
        return element("hr");
      case "quote":
        return element("blockquote", "", ...makeBlocks(block.lines, depth + 1));
      case "list":
        return makeList(block, depth);
      case "table":
        return makeTable(block);
      default:
        return element("p", "", ...inline(block.text, 0));
    }
  }

  function makeBlocks(lines, depth) {
    if (depth > MAX_DEPTH) return [element("p", "", lines.join("\n"))];
    return parseBlocks(lines).map((block) => makeBlock(block, depth));
  }

  function makeList(block, depth) {
    const list = element(block.ordered ? "ol" : "ul");
    if (block.ordered && block.start !== 1) list.start = block.start;
    for (const lines of block.items) {
      const made = makeBlocks(lines, depth + 1);
      const tight = !block.loose && made.length && made[0].tagName === "P";
      if (tight) made.splice(0, 1, ...made[0].childNodes);
      list.append(element("li", "", ...made));
    }
    return list;
  }

  function makeTable(block) {
    const row = (cells, name) =>
      element("tr", "", ...block.head.map((_, index) => {
        const cell = element(name, block.align[index] || "", ...inline(cells[index] || "", 0));
        return cell;
      }));
    const body = element("tbody", "", ...block.rows.map((cells) => row(cells, "td")));
    return element("div", "table", element("table", "", element("thead", "", row(block.head, "th")), body));
  }

  function makeCode(block) {
    const copy = element("button", "copy", "Copy");
    copy.type = "button";
    copy.addEventListener("click", () => copyText(block.text, copy));
    const code = element("code", "", ...highlight(block.text, block.language));
    const head = element("div", "code-head", element("span", "", block.language || "text"), copy);
    const pre = element("pre", "", code);
    pre.tabIndex = 0;
    return element("div", "code", head, pre);
  }

  function highlight(text, language) {
    const plain = ["", "text", "txt", "markdown", "md", "console", "output"].includes(language.toLowerCase());
    if (plain || text.length > 20000) return [text];
    const parts = [];
    let at = 0;
    for (const found of text.matchAll(CODE_TOKEN)) {
      const [whole, comment, string, number, word] = found;
      const kind = comment ? "comment" : string ? "string" : number ? "number" : KEYWORDS.has(word) ? "keyword" : "";
      if (!kind) continue;
      parts.push(text.slice(at, found.index), element("span", kind, whole));
      at = found.index + whole.length;
    }
    parts.push(text.slice(at));
    return parts;
  }

  // Inline: code, emphasis, links; everything else is text.
  function inline(text, depth) {
    const nodes = [];
    let plain = "";
    let at = 0;
    const flush = () => {
      if (plain) nodes.push(plain);
      plain = "";
    };
    while (at < text.length) {
      const found = depth < MAX_DEPTH ? inlineAt(text, at, depth) : null;
      if (found) {
        flush();
        nodes.push(...found.nodes);
        at = found.end;
      } else if (text[at] === "\\" && /[!-/:-@[-`{-~]/.test(text[at + 1] || "")) {
        plain += text[at + 1];
        at += 2;
      } else {
        plain += text[at];
        at += 1;
      }
    }
    flush();
    return nodes;
  }

  function inlineAt(text, at, depth) {
    switch (text[at]) {
      case "`":
        return codeSpan(text, at);
      case "*":
      case "_":
      case "~":
        return emphasis(text, at, depth);
      case "[":
        return link(text, at, depth);
      case "!":
        return text[at + 1] === "[" ? link(text, at + 1, depth) : null;
      case "<":
        return bracketLink(text, at);
      case "h":
        return bareLink(text, at);
      case "\n":
        return { nodes: [element("br")], end: at + 1 };
      default:
        return null;
    }
  }

  function codeSpan(text, at) {
    let size = 1;
    while (text[at + size] === "`") size += 1;
    const marker = "`".repeat(size);
    let end = text.indexOf(marker, at + size);
    while (end >= 0 && text[end + size] === "`") {
      while (text[end] === "`") end += 1;
      end = text.indexOf(marker, end);
    }
    if (end < 0) return { nodes: [marker], end: at + size };
    const inner = text.slice(at + size, end).replaceAll("\n", " ");
    return { nodes: [element("code", "", /^ .* $/.test(inner) ? inner.slice(1, -1) : inner)], end: end + size };
  }

  function emphasis(text, at, depth) {
    const mark = text[at];
    const size = text[at + 1] === mark ? 2 : 1;
    if (mark === "~" && size === 1) return null;
    const marker = mark.repeat(size);
    const start = at + size;
    const isWord = (character) => /[\p{L}\p{N}]/u.test(character || "");
    if (!text[start] || /\s/.test(text[start]) || (mark === "_" && isWord(text[at - 1]))) return null;
    let end = text.indexOf(marker, start + 1);
    while (end >= 0 && end - start < MAX_SPAN) {
      const single = size === 2 || text[end + 1] !== mark;
      if (!single) end += 1;
      else if (!/\s/.test(text[end - 1]) && !(mark === "_" && isWord(text[end + size]))) {
        // `**a *b***`: the outer marker is the last of the run.
        while (size === 2 && text[end + size] === mark) end += 1;
        const name = mark === "~" ? "del" : size === 2 ? "strong" : "em";
        return { nodes: [element(name, "", ...inline(text.slice(start, end), depth + 1))], end: end + size };
      }
      end = text.indexOf(marker, end + 1);
    }
    return { nodes: [marker], end: start };
  }

  function link(text, at, depth) {
    const window = text.slice(at, at + MAX_SPAN);
    const middle = window.indexOf("](");
    if (middle < 0) return null;
    let end = middle + 2;
    let open = 1;
    while (end < window.length && open) {
      if (window[end] === "(") open += 1;
      if (window[end] === ")") open -= 1;
      if (window[end] === "\n") return null;
      end += 1;
    }
    const label = window.slice(1, middle);
    if (open || label.includes("\n\n")) return null;
    const target = window.slice(middle + 2, end - 1).trim().split(/\s+/)[0].replace(/^<|>$/g, "");
    const made = anchor(target, inline(label || target, depth + 1));
    return made && { nodes: [made], end: at + end };
  }

  function bracketLink(text, at) {
    const found = /^<((?:https?:\/\/|mailto:)[^\s<>]{1,1000})>/.exec(text.slice(at, at + 1010));
    const made = found && anchor(found[1], [found[1]]);
    return made && { nodes: [made], end: at + found[0].length };
  }

  function bareLink(text, at) {
    if (/[\p{L}\p{N}]/u.test(text[at - 1] || "")) return null;
    const found = /^https?:\/\/[^\s<>"'`*]{1,1000}/.exec(text.slice(at, at + 1010));
    if (!found) return null;
    let target = found[0].replace(/[.,;:!?\]]+$/, "");
    while (target.endsWith(")") && !target.includes("(")) target = target.slice(0, -1);
    const made = anchor(target, [target]);
    return made && { nodes: [made], end: at + target.length };
  }

  // A link, or nothing where its address is of a kind that could do more than be visited.
  function anchor(target, children) {
    let address;
    try {
      address = new URL(target);
    } catch {
      return null;
    }
    if (!SAFE_PROTOCOLS.has(address.protocol)) return null;
    const made = element("a", "", ...children);
    made.href = address.href;
    made.target = "_blank";
    made.rel = "noopener noreferrer nofollow";
    return made;
  }

  const sources = new WeakMap();

  // Show text in a container. Blocks that are as they were keep their elements, so a growing answer does not flicker,
  // and a selection in it stays.
  function renderInto(container, text) {
    const blocks = parseBlocks(text.replaceAll("\r\n", "\n").split("\n"));
    blocks.forEach((block, index) => {
      const shown = container.children[index];
      if (shown && sources.get(shown) === block.source) return;
      const made = makeBlock(block, 0);
      sources.set(made, block.source);
      if (shown) shown.replaceWith(made);
      else container.append(made);
    });
    while (container.children.length > blocks.length) container.lastElementChild.remove();
  }

  async function copyText(text, button) {
    const before = button.textContent;
    try {
      await navigator.clipboard.writeText(text);
    } catch {
      // Without a secure origin there is no clipboard object; the old way needs a selection.
      const area = element("textarea", "offscreen");
      area.value = text;
      document.body.append(area);
      area.select();
      document.execCommand("copy");
      area.remove();
    }
    button.classList.add("done");
    if (before) button.textContent = "Copied";
    setTimeout(() => {
      button.classList.remove("done");
      if (before) button.textContent = before;
    }, 1500);
  }

  return { renderInto, element, copyText };
})();
