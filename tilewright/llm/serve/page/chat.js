// The page: holds the conversation that is open, sends it, and reacts to what a person does.

(() => {
  const { byId } = View;
  const { element } = Markdown;
  const IDEAS = [
    ["Explain", "Explain how a compiler turns a loop into vector instructions, for a curious beginner."],
    ["Write", "Write a short poem about the sea at night."],
    ["Code", "Write a Python function that returns the n-th Fibonacci number, and explain it."],
    ["Plan", "Suggest a simple three-day plan to learn the basics of baking bread."],
  ];
  const TITLE_LENGTH = 60;
  const SAVE_MILLISECONDS = 1000;

  let settings = Store.loadSettings();
  let chat = Store.newChat();
  let server = null; // what the server says of its model
  let running = null; // { controller, message, article } while an answer comes
  let editing = -1; // the message that the text in the box replaces

  // Conversations

  function openChat(found) {
    stop();
    chat = found;
    editing = -1;
    drawAll();
    closeSidebar();
    byId("input").focus();
  }

  function newChat() {
    openChat(Store.newChat());
  }

  function deleteChat(id) {
    if (!confirm("Delete this conversation?")) return;
    Store.removeChat(id);
    if (id === chat.id) newChat();
    else drawList();
  }

  function save() {
    chat.updated = Date.now();
    Store.saveChat(chat);
  }

  function drawList() {
    View.drawChats(Store.listChats(), chat.id, (id) => openChat(Store.loadChat(id) || Store.newChat()), deleteChat);
  }

  function drawAll() {
    drawList();
    byId("title").textContent = chat.title || "New chat";
    document.title = chat.title ? `${chat.title} · Tilewright` : "Tilewright chat";
    byId("empty").hidden = chat.messages.length > 0;
    byId("messages").replaceChildren(...chat.messages.map(makeArticle));
    const last = chat.messages.at(-1);
    View.drawMeter(last?.stats?.total || 0, server?.context_length || 0);
    drawState();
    View.toEnd();
    updateEndButton();
  }

  function makeArticle(message, index) {
    const actions = [["copy", "Copy", (button) => Markdown.copyText(message.content, button)]];
    if (message.role === "user") actions.push(["edit", "Edit and send again", () => startEdit(index)]);
    else actions.push(["again", "Answer again", () => answerAgain(index)]);
    return View.makeMessage(message, actions);
  }

  function startEdit(index) {
    stop();
    editing = index;
    byId("input").value = chat.messages[index].content;
    View.growInput();
    drawState();
    byId("input").focus();
  }

  function answerAgain(index) {
    stop();
    chat.messages.length = index;
    ask();
  }

  // Asking

  function send() {
    const text = byId("input").value.trim();
    if (!text || running) return;
    if (editing >= 0) chat.messages.length = editing;
    editing = -1;
    chat.messages.push({ role: "user", content: text });
    if (!chat.title) chat.title = titleOf(text);
    byId("input").value = "";
    View.growInput();
    ask();
  }

  function titleOf(text) {
    const line = text.split("\n").find((one) => one.trim()) || text;
    return line.length > TITLE_LENGTH ? `${line.slice(0, TITLE_LENGTH).trimEnd()}…` : line;
  }

  function messagesToSend() {
    const isGood = (message) => message.content && !(message.role === "assistant" && message.error);
    const sent = chat.messages.filter(isGood).map(({ role, content }) => ({ role, content }));
    return settings.system.trim() ? [{ role: "system", content: settings.system.trim() }, ...sent] : sent;
  }

  async function ask() {
    const messages = messagesToSend();
    const message = { role: "assistant", content: "", state: "running" };
    chat.messages.push(message);
    save();
    drawAll();
    const run = { controller: new AbortController(), message, chat, article: byId("messages").lastElementChild };
    running = run;
    drawState();
    const began = performance.now();
    let first = 0;
    let pieces = 0;
    let saved = began;
    const onText = (text) => {
      const now = performance.now();
      first ||= now;
      pieces += 1;
      message.content += text;
      message.stats = statsOf(pieces, began, first, now);
      if (now - saved > SAVE_MILLISECONDS) {
        saved = now;
        Store.saveChat(run.chat);
      }
      scheduleDraw(run);
    };
    try {
      const result = await Client.answer(messages, settings, run.controller.signal, onText);
      message.reason = result.reason;
      if (result.usage) {
        message.stats = statsOf(result.usage.completion_tokens, began, first, performance.now());
        message.stats.total = result.usage.total_tokens;
      }
      message.state = "";
    } catch (error) {
      message.state = error.name === "AbortError" ? "stopped" : "failed";
      if (message.state === "failed") message.error = explain(error);
    }
    finish(run);
  }

  // The first token comes with the reading of the prompt, so the rate is that of the tokens after it.
  function statsOf(tokens, began, first, now) {
    const stats = { tokens };
    if (first) stats.first = (first - began) / 1000;
    if (tokens > 1 && now > first) stats.rate = ((tokens - 1) * 1000) / (now - first);
    return stats;
  }

  function explain(error) {
    if (error.status === 401) {
      openSettings("set-key");
      return "The server asks for an API key: it belongs into the settings.";
    }
    if (error.code === "context_length_exceeded") {
      return "This conversation has become too long for the model. Start a new one, or edit an earlier message.";
    }
    if (error.retryAfter) return `${error.message} (in about ${error.retryAfter} s)`;
    if (error instanceof TypeError) return "The server cannot be reached. Is it still running?";
    return error.message;
  }

  function finish(run) {
    Store.saveChat(run.chat);
    if (running === run) running = null;
    if (run.chat === chat) {
      draw(run);
      View.drawMeter(run.message.stats?.total || 0, server?.context_length || 0);
      drawState();
    }
    drawList();
  }

  function stop() {
    if (!running) return;
    const run = running;
    running = null;
    run.controller.abort();
  }

  function scheduleDraw(run) {
    if (run.frame) return;
    run.frame = requestAnimationFrame(() => {
      run.frame = 0;
      draw(run);
    });
  }

  function draw(run) {
    if (run.chat !== chat) return;
    const follow = View.isAtEnd();
    View.drawBody(run.article, run.message);
    if (follow) View.toEnd();
    updateEndButton();
  }

  function drawState() {
    const button = byId("send");
    button.classList.toggle("stop", Boolean(running));
    button.replaceChildren(View.icon(running ? "stop" : "send"));
    button.title = running ? "Stop (Esc)" : "Send (Enter)";
    button.setAttribute("aria-label", button.title);
    button.disabled = !running && !byId("input").value.trim();
    byId("status").classList.toggle("idle", !running && editing < 0);
    byId("status").textContent = running
      ? "Answering…"
      : editing >= 0
        ? "Editing: what follows this message will be replaced. Esc leaves it."
        : "Answers can be wrong. Check what matters.";
  }

  function updateEndButton() {
    byId("to-end").hidden = View.isAtEnd();
  }

  // Settings

  const NUMBERS = ["temperature", "top_p", "repetition_penalty"];

  function openSettings(focus) {
    byId("set-system").value = settings.system;
    byId("set-key").value = settings.key;
    byId("set-theme").value = settings.theme;
    byId("set-max_tokens").value = settings.max_tokens || "";
    for (const name of NUMBERS) {
      byId(`set-${name}`).value = settings[name];
      byId(`out-${name}`).textContent = Number(settings[name]).toFixed(2);
    }
    closeSidebar();
    if (!byId("settings").open) byId("settings").showModal();
    if (focus) byId(focus).focus();
  }

  function readSettings() {
    settings.system = byId("set-system").value;
    settings.theme = byId("set-theme").value;
    settings.max_tokens = Math.max(0, Math.floor(Number(byId("set-max_tokens").value))) || null;
    for (const name of NUMBERS) {
      settings[name] = Number(byId(`set-${name}`).value);
      byId(`out-${name}`).textContent = settings[name].toFixed(2);
    }
    const newKey = byId("set-key").value.trim() !== settings.key;
    settings.key = byId("set-key").value.trim();
    Store.saveSettings(settings);
    View.applyTheme(settings.theme);
    if (newKey) askModel();
  }

  function resetSettings() {
    settings = { ...Store.DEFAULTS, key: settings.key };
    Store.saveSettings(settings);
    View.applyTheme(settings.theme);
    openSettings();
  }

  function deleteAll() {
    if (!confirm("Delete all conversations of this browser?")) return;
    for (const one of Store.listChats()) Store.removeChat(one.id);
    byId("settings").close();
    newChat();
  }

  function toggleTheme() {
    const dark = document.documentElement.dataset.theme === "dark";
    settings.theme = dark ? "light" : "dark";
    Store.saveSettings(settings);
    View.applyTheme(settings.theme);
  }

  async function askModel() {
    try {
      server = await Client.model(settings);
      byId("model").textContent = server.id;
      byId("empty-model").textContent = `${server.id} answers, served by Tilewright. Conversations stay in this browser.`;
      byId("model").classList.remove("lost");
    } catch (error) {
      byId("model").textContent = error.status === 401 ? "API key needed" : "no server";
      byId("model").classList.add("lost");
      if (error.status === 401) openSettings("set-key");
    }
  }

  // Sidebar of narrow windows

  function openSidebar() {
    document.body.classList.add("sidebar-open");
    byId("new-chat").focus();
  }

  function closeSidebar() {
    document.body.classList.remove("sidebar-open");
  }

  // Keys

  function onKey(event) {
    const command = event.ctrlKey || event.metaKey;
    const writing = /^(TEXTAREA|INPUT|SELECT)$/.test(document.activeElement?.tagName || "");
    if (event.key === "Escape" && !byId("settings").open) {
      if (document.body.classList.contains("sidebar-open")) closeSidebar();
      else if (running) stop();
      else if (editing >= 0) leaveEdit();
      else return;
    } else if (command && event.shiftKey && event.key.toLowerCase() === "o") newChat();
    else if (command && event.key === ",") openSettings();
    else if (event.key === "/" && !writing && !command) byId("input").focus();
    else return;
    event.preventDefault();
  }

  function leaveEdit() {
    editing = -1;
    byId("input").value = "";
    View.growInput();
    drawState();
  }

  function onInputKey(event) {
    if (event.key === "Enter" && !event.shiftKey && !event.isComposing && event.keyCode !== 229) {
      event.preventDefault();
      send();
    }
    if (event.key === "ArrowUp" && !byId("input").value && !running) {
      const index = chat.messages.findLastIndex((message) => message.role === "user");
      if (index < 0) return;
      event.preventDefault();
      startEdit(index);
    }
  }

  function start() {
    View.applyTheme(settings.theme);
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => View.applyTheme(settings.theme));
    const onClick = (id, act) => byId(id).addEventListener("click", act);
    onClick("new-chat", newChat);
    onClick("new-chat-top", newChat);
    onClick("open-settings", () => openSettings());
    onClick("toggle-theme", toggleTheme);
    onClick("open-sidebar", openSidebar);
    onClick("close-sidebar", closeSidebar);
    onClick("shade", closeSidebar);
    onClick("to-end", () => View.toEnd(true));
    onClick("reset-settings", resetSettings);
    onClick("delete-all", deleteAll);
    byId("settings").addEventListener("input", readSettings);
    byId("log").addEventListener("scroll", updateEndButton, { passive: true });
    byId("composer").addEventListener("submit", (event) => {
      event.preventDefault();
      if (running) stop();
      else send();
    });
    byId("input").addEventListener("keydown", onInputKey);
    byId("input").addEventListener("input", () => {
      View.growInput();
      drawState();
    });
    document.addEventListener("keydown", onKey);
    addEventListener("resize", View.growInput);
    addEventListener("pagehide", () => running && Store.saveChat(chat));
    // Another tab has changed something.
    addEventListener("storage", (event) => {
      if (event.key === Store.SETTINGS) {
        settings = Store.loadSettings();
        View.applyTheme(settings.theme);
      } else drawList();
    });
    for (const [name, text] of IDEAS) {
      const idea = element("button", "idea", element("strong", "", name), element("span", "", text));
      idea.type = "button";
      idea.addEventListener("click", () => {
        byId("input").value = text;
        send();
      });
      byId("ideas").append(idea);
    }
    const newest = Store.listChats()[0];
    if (newest) {
      // An answer that was coming when the page was closed is as long as it is.
      for (const message of newest.messages) if (message.state === "running") message.state = "stopped";
      chat = newest;
    }
    drawAll();
    askModel();
    if (matchMedia("(hover: hover)").matches) byId("input").focus();
  }

  start();
})();
