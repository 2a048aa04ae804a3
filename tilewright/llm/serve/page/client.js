// Talks to the server: the model's name, and an answer as it comes.

const Client = (() => {
  class ServerError extends Error {
    constructor(status, error, retryAfter) {
      super(error.message || `The server answered with status ${status}.`);
      this.status = status;
      this.code = error.code || "";
      this.retryAfter = retryAfter;
    }
  }

  function headers(settings) {
    const made = { "content-type": "application/json" };
    if (settings.key) made.authorization = `Bearer ${settings.key}`;
    return made;
  }

  async function failure(response) {
    let error = {};
    try {
      error = (await response.json()).error || {};
    } catch {
      // What answered was no server of this kind; its status says enough.
    }
    return new ServerError(response.status, error, Number(response.headers.get("retry-after")) || 0);
  }

  async function model(settings) {
    const response = await fetch("v1/models", { headers: headers(settings) });
    if (!response.ok) throw await failure(response);
    return (await response.json()).data[0];
  }

  // Calls `onText` with every piece; returns the reason of the end and the usage.
  async function answer(messages, settings, signal, onText) {
    const body = {
      messages,
      stream: true,
      stream_options: { include_usage: true },
      temperature: settings.temperature,
      top_p: settings.top_p,
      repetition_penalty: settings.repetition_penalty,
    };
    if (settings.max_tokens) body.max_tokens = settings.max_tokens;
    const options = { method: "POST", headers: headers(settings), body: JSON.stringify(body), signal };
    const response = await fetch("v1/chat/completions", options);
    if (!response.ok) throw await failure(response);
    const result = { reason: "", usage: null };
    for await (const data of events(response.body)) {
      if (data === "[DONE]") return result;
      const event = JSON.parse(data);
      if (event.error) throw new ServerError(response.status, event.error, 0);
      if (event.usage) result.usage = event.usage;
      const choice = event.choices[0];
      if (!choice) continue;
      if (choice.delta.content) onText(choice.delta.content);
      if (choice.finish_reason) result.reason = choice.finish_reason;
    }
    throw new Error("The connection ended before the answer did.");
  }

  async function* events(stream) {
    const reader = stream.getReader();
    const decoder = new TextDecoder();
    let held = "";
    try {
      for (;;) {
        const { done, value } = await reader.read();
        if (done) return;
        held += decoder.decode(value, { stream: true });
        const parts = held.split("\n\n");
        held = parts.pop();
        for (const part of parts) {
          if (part.startsWith("data: ")) yield part.slice(6);
        }
      }
    } finally {
      reader.cancel().catch(() => {});
    }
  }

  return { model, answer, ServerError };
})();
