// Draws: the list of conversations, messages and their buttons, the theme. Knows nothing of the server.

const View = (() => {
  const { element } = Markdown;
  const byId = (id) => document.getElementById(id);
  const SVG = "http://www.w3.org/2000/svg";
  // Within this many pixels of the end, new text scrolls the page.
  const NEAR_END = 80;

  function icon(name) {
    const svg = document.createElementNS(SVG, "svg");
    const use = document.createElementNS(SVG, "use");
    use.setAttribute("href", `#icon-${name}`);
    svg.setAttribute("aria-hidden", "true");
    svg.append(use);
    return svg;
  }

  function iconButton(name, title, onClick) {
    const button = element("button", "icon", icon(name));
    button.type = "button";
    button.title = title;
    button.setAttribute("aria-label", title);
    button.addEventListener("click", (event) => onClick(event.currentTarget));
    return button;
  }

  function applyTheme(theme) {
    const dark = theme === "dark" || (theme === "auto" && matchMedia("(prefers-color-scheme: dark)").matches);
    document.documentElement.dataset.theme = dark ? "dark" : "light";
    byId("toggle-theme").querySelector("span").textContent = dark ? "Light mode" : "Dark mode";
    return dark;
  }

  const DAY = 24 * 3600 * 1000;

  function ageOf(time) {
    const midnight = new Date().setHours(0, 0, 0, 0);
    if (time >= midnight) return "Today";
    if (time >= midnight - DAY) return "Yesterday";
    return time >= midnight - 6 * DAY ? "This week" : "Earlier";
  }

  function drawChats(chats, current, onOpen, onDelete) {
    const list = byId("chats");
    list.replaceChildren();
    let age = "";
    for (const chat of chats) {
      if (ageOf(chat.updated) !== age) {
        age = ageOf(chat.updated);
        list.append(element("h2", "", age));
      }
      const open = element("button", "open", chat.title || "New chat");
      open.type = "button";
      open.title = chat.title;
      open.addEventListener("click", () => onOpen(chat.id));
      const row = element("div", "chat", open, iconButton("delete", "Delete this conversation", () => onDelete(chat.id)));
      if (chat.id === current) {
        row.classList.add("current");
        open.setAttribute("aria-current", "page");
      }
      list.append(row);
    }
  }

  // One message. `actions` are [icon, title, function] in the order they stand.
  function makeMessage(message, actions) {
    const body = element("div", "body");
    const article = element("article", message.role, element("span", "who", message.role === "user" ? "You" : "Answer"));
    article.append(body, element("div", "notes"), element("div", "actions"));
    article.querySelector(".actions").append(...actions.map(([name, title, act]) => iconButton(name, title, act)));
    drawBody(article, message);
    return article;
  }

  function drawBody(article, message) {
    const body = article.querySelector(".body");
    if (message.role === "user") body.textContent = message.content;
    else Markdown.renderInto(body, message.content);
    markTip(body);
    article.classList.toggle("waiting", message.state === "running" && !message.content);
    article.classList.toggle("running", message.state === "running");
    article.querySelector(".notes").replaceChildren(...notesOf(message));
  }

  // The element in which the next word will stand, where the cursor of a running answer is drawn.
  function markTip(body) {
    body.querySelector(".tip")?.classList.remove("tip");
    let tip = body.lastElementChild;
    while (tip && /^(UL|OL|LI|BLOCKQUOTE)$/.test(tip.tagName) && /^(UL|OL|LI|BLOCKQUOTE|P)$/.test(tip.lastElementChild?.tagName)) {
      tip = tip.lastElementChild;
    }
    if (tip && !/^(DIV|HR)$/.test(tip.tagName)) tip.classList.add("tip");
  }

  function notesOf(message) {
    const notes = [];
    if (message.error) notes.push(element("p", "error", message.error));
    if (message.state === "stopped") notes.push(element("span", "", "Stopped"));
    if (message.reason === "length") notes.push(element("span", "", "Cut at the longest answer"));
    const stats = message.stats;
    if (stats && stats.tokens) {
      notes.push(element("span", "", `${stats.tokens} tokens`));
      if (stats.rate) notes.push(element("span", "", `${stats.rate.toFixed(1)} tokens/s`));
      if (stats.first !== undefined) notes.push(element("span", "", `${stats.first.toFixed(2)} s to the first`));
    }
    return notes;
  }

  const isAtEnd = () => {
    const log = byId("log");
    return log.scrollHeight - log.scrollTop - log.clientHeight < NEAR_END;
  };

  function toEnd(smooth = false) {
    const log = byId("log");
    log.scrollTo({ top: log.scrollHeight, behavior: smooth ? "smooth" : "instant" });
  }

  function growInput() {
    const input = byId("input");
    input.style.height = "auto";
    input.style.height = `${Math.min(input.scrollHeight, innerHeight * 0.4)}px`;
  }

  function drawMeter(used, context) {
    byId("meter").hidden = !used || !context;
    if (!used || !context) return;
    byId("meter-bar").value = Math.min(1, used / context);
    byId("meter-bar").classList.toggle("full", used > 0.9 * context);
    byId("meter-text").textContent = `${used.toLocaleString("en")} of ${context.toLocaleString("en")} tokens`;
  }

  return { byId, icon, applyTheme, drawChats, makeMessage, drawBody, isAtEnd, toEnd, growInput, drawMeter };
})();
