// Calls of the API, and its streams. The token, if there is one, is kept for this tab alone.

const KEY = "uvala-token";

const fromAddress = location.hash.match(/^#token=(\w+)$/);
if (fromAddress) {
  sessionStorage.setItem(KEY, fromAddress[1]);
  history.replaceState(null, "", "/#/");
}

/** An error of the API: `message` says what is wrong and what to do. */
export class Problem extends Error {
  constructor({ detail, code, status }) {
    super(detail);
    Object.assign(this, { code, status });
  }
}

/** Keeps a token for the next calls. */
export function setToken(token) {
  sessionStorage.setItem(KEY, token.trim());
}

async function request(path, options = {}) {
  const token = sessionStorage.getItem(KEY);
  const headers = { ...options.headers, ...(token && { Authorization: `Bearer ${token}` }) };
  const response = await fetch(path, { ...options, headers }).catch(() => {
    throw new Problem({ detail: "uvala-http does not answer; is it running?", code: "gone" });
  });
  if (response.ok) return response;
  const said = await response.json().catch(() => ({ detail: response.statusText }));
  throw new Problem({ ...said, status: response.status });
}

/** Makes a call; returns its answer, if it has one. */
export async function call(method, path, body) {
  const headers = body && { "Content-Type": "application/json" };
  const response = await request(path, { method, headers, body: body && JSON.stringify(body) });
  const text = await response.text();
  return text ? JSON.parse(text) : null;
}

/** All pages of a listing, up to `most` entries. */
export async function all(path, most = 10_000) {
  const items = [];
  let from = null;
  do {
    const page = await call("GET", from ? `${path}?from=${encodeURIComponent(from)}` : path);
    items.push(...page.items);
    from = page.next;
  } while (from && items.length < most);
  return items;
}

const pause = (ms) => new Promise((resolve) => setTimeout(resolve, ms));

/** Reads a stream to its end, or until `signal`: `hear(type, data)`. */
export async function hearOnce(path, signal, hear) {
  const response = await request(path, { signal });
  await read(response.body.pipeThrough(new TextDecoderStream()).getReader(), hear);
}

/** Reads a stream until `signal`, again after each failure: `hear(type, data)`, `fail(problem)`. */
export async function listen(path, signal, hear, fail) {
  while (!signal.aborted) {
    try {
      await hearOnce(path, signal, hear);
    } catch (problem) {
      if (signal.aborted) return;
      fail(problem);
      if (problem.status === 401 || problem.status === 403) return;
    }
    await pause(2000);
  }
}

async function read(reader, hear) {
  let text = "";
  for (;;) {
    const { done, value } = await reader.read();
    if (done) return;
    const messages = (text + value).split("\n\n");
    text = messages.pop();
    for (const message of messages) {
      const lines = message.split("\n");
      const field = (name) =>
        lines
          .find((line) => line.startsWith(name))
          ?.slice(name.length)
          .trim();
      const data = field("data:");
      if (data) hear(field("event:") ?? "message", JSON.parse(data));
    }
  }
}
