// Frames of a port as they pass. The switch copies them only while a reader looks.

import { hearOnce } from "/api.js";
import { field, h, short } from "/html.js";

/** Lines that are shown. */
const SHOWN = 200;
/** Milliseconds between two changes of the list. */
const PAUSE = 250;

/** Where the frames of the port at `path` are. */
export function framesPlace(path, { filter, direction, limit }) {
  const query = new URLSearchParams({ direction });
  if (filter) query.set("filter", filter);
  if (limit) query.set("limit", limit);
  return `${path}/frames?${query}`;
}

/** A form that shows the frames of the port at `path`. */
export function watch(path) {
  const log = h("ol", { class: "log frames", tabindex: "0", "aria-label": "Frames, newest first" });
  const [count, alert] = [h("p", { class: "soft" }), h("p", { role: "alert" })];
  const button = h("button", {}, "Show frames");
  const form = h(
    "form",
    { "aria-label": "Frames" },
    h("h3", {}, "Frames"),
    field("Filter", "filter", { placeholder: "udp port 53", spellcheck: "false", maxlength: 512 }),
    field("Direction", "direction", {}, ["both", "in", "out"]),
    field("Stop after", "limit", { type: "number", min: 1, value: 1000, size: 6 }),
    button,
    alert,
  );
  let running = null;
  const begin = async () => {
    const own = new AbortController();
    running = own;
    button.textContent = "Stop";
    alert.textContent = "";
    const shown = lines(log, count);
    try {
      const { filter, direction, limit } = form.elements;
      const wanted = { filter: filter.value, direction: direction.value, limit: limit.value };
      await hearOnce(framesPlace(path, wanted), own.signal, shown.hear);
    } catch (problem) {
      if (!own.signal.aborted) alert.textContent = problem.message;
    }
    shown.end();
    if (running === own) end();
  };
  const end = () => {
    running?.abort();
    running = null;
    button.textContent = "Show frames";
  };
  form.addEventListener("submit", (event) => {
    event.preventDefault();
    running ? end() : begin();
  });
  return { element: h("div", {}, form, count, log), end };
}

/** Fills a list with frames, a few times in a second. */
function lines(log, count) {
  let [waiting, frames, lost, trouble] = [[], 0, 0, ""];
  const flush = () => {
    const items = waiting.slice(-SHOWN).map((it) => h("li", {}, line(it)));
    log.prepend(...items.reverse());
    while (log.children.length > SHOWN) log.lastChild.remove();
    waiting = [];
    count.textContent = `${short(frames)} frames, ${short(lost)} not shown${trouble}`;
  };
  const timer = setInterval(flush, PAUSE);
  const hear = (type, data) => {
    if (type === "problem") trouble = `: ${data.detail}`;
    else if (type === "lost") lost += data;
    else frames += waiting.push(data) && 1;
    if (waiting.length > 2 * SHOWN) waiting.splice(0, SHOWN);
  };
  log.replaceChildren();
  count.textContent = "Waits for frames.";
  return { hear, end: () => (clearInterval(timer), flush()) };
}

function line({ time_ns: time, direction, text, bytes }) {
  const at = new Date(time / 1e6).toISOString().slice(11, 23);
  return `${at} ${direction.padEnd(3)} ${text}, ${bytes} bytes`;
}
