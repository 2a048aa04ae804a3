// What the browser keeps: one entry for each conversation, so that two tabs do not overwrite each other's, and one for
// the settings. Where nothing can be kept (a private window, a full store), the page works for as long as it is open.

const Store = (() => {
  const CHAT = "tilewright.chat.";
  const SETTINGS = "tilewright.settings";
  const DEFAULTS = {
    system: "",
    temperature: 0.7,
    top_p: 0.95,
    repetition_penalty: 1.05,
    max_tokens: null,
    theme: "auto",
    key: "",
  };
  const memory = new Map();

  function read(name) {
    try {
      return JSON.parse(localStorage.getItem(name) ?? memory.get(name) ?? "null");
    } catch {
      return null;
    }
  }

  function write(name, value) {
    const text = JSON.stringify(value);
    for (let attempt = 0; attempt < 20; attempt += 1) {
      try {
        localStorage.setItem(name, text);
        memory.delete(name);
        return;
      } catch {
        const oldest = listChats().filter((chat) => CHAT + chat.id !== name).pop();
        if (!oldest || !isKept()) break;
        removeChat(oldest.id);
      }
    }
    memory.set(name, text);
  }

  function isKept() {
    try {
      return localStorage.length > 0;
    } catch {
      return false;
    }
  }

  function names() {
    const found = new Set(memory.keys());
    try {
      for (let index = 0; index < localStorage.length; index += 1) found.add(localStorage.key(index));
    } catch {
      // Nothing is kept here; what this page holds is all.
    }
    return [...found];
  }

  function isChat(value) {
    const isMessage = (one) => one && typeof one.content === "string" && typeof one.role === "string";
    return value && typeof value.id === "string" && Array.isArray(value.messages) && value.messages.every(isMessage);
  }

  // The newest first.
  function listChats() {
    const found = names().filter((name) => name.startsWith(CHAT)).map(read).filter(isChat);
    return found.sort((one, other) => (other.updated || 0) - (one.updated || 0));
  }

  function loadChat(id) {
    const found = read(CHAT + id);
    return isChat(found) ? found : null;
  }

  function saveChat(chat) {
    write(CHAT + chat.id, chat);
  }

  function removeChat(id) {
    memory.delete(CHAT + id);
    try {
      localStorage.removeItem(CHAT + id);
    } catch {
      // It was never kept.
    }
  }

  function newChat() {
    const id = Date.now().toString(36) + Math.random().toString(36).slice(2, 8);
    return { id, title: "", updated: Date.now(), messages: [] };
  }

  function loadSettings() {
    const found = read(SETTINGS);
    return { ...DEFAULTS, ...(found && typeof found === "object" ? found : {}) };
  }

  return {
    DEFAULTS,
    CHAT,
    SETTINGS,
    listChats,
    loadChat,
    saveChat,
    removeChat,
    newChat,
    loadSettings,
    saveSettings: (settings) => write(SETTINGS, settings),
  };
})();
