// Switches and ports as a picture, with live rates, and the traffic between ports.
//
// A switch is a bar; its ports stand beside it, in two columns, or one where the page is narrow.
// The width of a port's line follows its rate. Nothing tells the switch which port sends to which,
// so that is sampled: the page looks at the frames of one sending port after the other, for a
// moment each, and finds their destinations in the forwarding database. Only while it is asked to.

import { all, hearOnce } from "/api.js";
import { framesPlace } from "/frames.js";
import { frames, h, inSight, portLink, portPlace, set, svg, table, write } from "/html.js";
import { live } from "/live.js";

/** Ports of a switch that are drawn. */
const DRAWN = 64;
/** Of a sample: milliseconds, those after it, and frames. Ports that are looked at in a round. */
const SAMPLE = 700;
const REST = 100;
const FRAMES = 60;
const LOOKED_AT = 12;
/** Sizes in the picture. */
const [ROW, WIDTH, HEIGHT, GAP, BAR] = [46, 200, 38, 70, 26];

const pause = (ms) => new Promise((resolve) => setTimeout(resolve, ms));
const total = (name) => {
  const rates = live.get(name)?.rates;
  return rates ? rates.tx + rates.rx : 0;
};

/** The map of all switches. */
export async function map() {
  const [switches, ports] = [await all("/v1/switches"), await all("/v1/ports")];
  const isNarrow = window.matchMedia("(max-width: 40rem)").matches;
  const pictures = switches.map((info) => {
    const own = ports.filter((port) => port.port.split(":")[0] === info.switch);
    return picture(info, own, isNarrow ? 1 : 2);
  });
  const none = h("p", {}, "There is no switch yet: add a port at Ports.");
  return {
    title: "Map",
    element: h("div", {}, pictures.length ? pictures.map((it) => it.element) : none),
    tick: () => pictures.forEach((it) => it.tick()),
    end: () => pictures.forEach((it) => it.end()),
    // A picture that is being looked at closely is not made anew.
    get follows() {
      return !pictures.some((it) => it.isLooking());
    },
  };
}

/** One switch. */
function picture(info, ports, columns) {
  const drawn = [...ports].sort((a, b) => total(b.port) - total(a.port)).slice(0, DRAWN);
  drawn.sort((a, b) => a.port.localeCompare(b.port, undefined, { numeric: true }));
  const rows = Math.max(1, Math.ceil(drawn.length / columns));
  const barAt = columns === 2 ? WIDTH + GAP : 0;
  const [width, height] = [barAt + BAR + GAP + WIDTH, rows * ROW];
  const nodes = new Map();
  drawn.forEach((port, at) => {
    const isLeft = columns === 2 && at % 2 === 0;
    const y = Math.floor(at / columns) * ROW + ROW / 2;
    nodes.set(port.port, node(port, isLeft, isLeft ? 0 : barAt + BAR + GAP, y, barAt));
  });
  const edges = svg("g", { class: "edges", "aria-hidden": "true" });
  const bar = svg("rect", { class: "bar", x: barAt, y: 0, width: BAR, height, rx: 6 });
  const image = svg(
    "svg",
    {
      class: "map",
      role: "group",
      "aria-label": `Switch ${info.switch} with ${ports.length} ports`,
      viewBox: `-4 -4 ${width + 8} ${height + 8}`,
    },
    bar,
    edges,
    ...[...nodes.values()].flatMap((it) => [it.wire, it.element]),
  );
  const more = ports.length > drawn.length && `, of which the ${DRAWN} busiest are drawn`;
  const shown = inSight([...nodes.values()]);
  const traffic = between(info.switch, nodes, edges, barAt + BAR / 2);
  return {
    element: h(
      "section",
      { "aria-label": `Switch ${info.switch}` },
      h("h3", {}, info.switch),
      h("p", { class: "soft" }, `${info.forwarding}, ${ports.length} ports${more || ""}`),
      image,
      traffic.element,
    ),
    tick: shown.tick,
    end: () => {
      shown.end();
      traffic.end();
    },
    isLooking: traffic.isLooking,
  };
}

/** A port: a link with its rates, and its line to the switch. */
function node(port, isLeft, x, y, barAt) {
  const [, name] = port.port.split(":");
  const edge = isLeft ? WIDTH : x;
  const barEdge = isLeft ? barAt : barAt + BAR;
  const wire = svg("line", { class: "wire", x1: edge, y1: y, x2: barEdge, y2: y });
  const rates = svg("text", { class: "soft", x: x + 8, y: y + 12 });
  const label = svg("text", { x: x + 8, y: y - 3 });
  label.textContent = name.length > 22 ? `${name.slice(0, 21)}…` : name;
  const box = svg("rect", { x, y: y - HEIGHT / 2, width: WIDTH, height: HEIGHT, rx: 5 });
  const element = svg("a", { href: portPlace(port.port), class: "node" }, box, label, rates);
  const tick = () => {
    const now = live.get(port.port)?.rates;
    if (!now) return;
    const drops = now.drops > 0 ? `, ${frames(now.drops)} dropped` : "";
    const state = port.disabled ? ", disabled" : "";
    write(rates, `↑ ${frames(now.tx)} ↓ ${frames(now.rx)}${drops}${state}`);
    const said = `sends ${frames(now.tx)}, receives ${frames(now.rx)}${drops}${state}`;
    set(element, "aria-label", `${port.port}, ${said}`);
    element.classList.toggle("bad", Boolean(drops || port.disabled));
    set(wire, "stroke-width", thickness(now.tx + now.rx));
    wire.classList.toggle("idle", now.tx + now.rx === 0);
  };
  return { element, wire, tick, edge, y };
}

/** A line's width: one more for ten times the frames. */
const thickness = (rate) => (1 + Math.log10(1 + rate)).toFixed(1);

/** The traffic between the ports of a switch, while its button is pressed. */
function between(name, nodes, edges, middle) {
  const found = h("div");
  const alert = h("p", { role: "alert" });
  let running = null;
  const label = "Show the traffic between ports";
  const button = h("button", { type: "button", "aria-pressed": "false" }, label);
  const end = () => {
    running?.abort();
    running = null;
    button.setAttribute("aria-pressed", "false");
    edges.replaceChildren();
  };
  button.addEventListener("click", async () => {
    if (running) return end();
    const own = new AbortController();
    running = own;
    button.setAttribute("aria-pressed", "true");
    alert.textContent = "";
    try {
      while (!own.signal.aborted) {
        const pairs = await round(name, nodes, own.signal);
        if (own.signal.aborted) return;
        edges.replaceChildren(...pairs.map((pair) => curve(nodes, pair, middle)).filter(Boolean));
        found.replaceChildren(pairTable(pairs));
      }
    } catch (problem) {
      if (!own.signal.aborted) {
        alert.textContent = problem.message;
        end();
      }
    }
  });
  return { element: h("div", {}, button, alert, found), end, isLooking: () => running !== null };
}

function pairTable(pairs) {
  if (pairs.length === 0) return h("p", {}, "No port sends frames now.");
  const place = (to) => (to.includes(":") ? portLink(to) : to);
  const rows = pairs.map(({ from, to, rate }) => [portLink(from), place(to), frames(rate)]);
  return table("Traffic between ports, estimated of samples", ["From", "To", "Frames #"], rows);
}

/** Looks at the ports that send most, one after the other. */
async function round(name, nodes, signal) {
  const path = `/v1/switches/${encodeURIComponent(name)}/fdb`;
  const stations = new Map((await all(path)).map((entry) => [entry.mac, entry.port]));
  const sends = (port) => live.get(port)?.rates.tx ?? 0;
  const busy = [...nodes.keys()].filter((port) => sends(port) > 0);
  busy.sort((a, b) => sends(b) - sends(a));
  const pairs = [];
  for (const from of busy.slice(0, LOOKED_AT)) {
    const counts = await sample(from, stations, signal);
    await pause(REST);
    if (signal.aborted) return [];
    const seen = [...counts.values()].reduce((sum, count) => sum + count, 0);
    for (const [to, count] of counts) pairs.push({ from, to, rate: (sends(from) * count) / seen });
  }
  if (busy.length === 0) await pause(SAMPLE);
  return pairs.sort((a, b) => b.rate - a.rate);
}

/** The frames of a moment that a port sends, by the port to which they go. */
async function sample(port, stations, signal) {
  const counts = new Map();
  const own = new AbortController();
  const timer = setTimeout(() => own.abort(), SAMPLE);
  const either = AbortSignal.any([own.signal, signal]);
  const path = `/v1/ports/${encodeURIComponent(port)}`;
  const hear = (type, { dst }) => {
    if (type !== "message") return;
    const isGroup = parseInt(dst.slice(0, 2), 16) & 1;
    const to = isGroup ? "all" : (stations.get(dst) ?? "unknown");
    counts.set(to, (counts.get(to) ?? 0) + 1);
  };
  try {
    await hearOnce(framesPlace(path, { direction: "in", limit: FRAMES }), either, hear);
  } catch (problem) {
    // A port that has gone sends nothing; where others capture, this waits for its turn.
    if (problem.status === 503) await pause(SAMPLE);
    else if (!either.aborted && problem.status !== 404) throw problem;
  } finally {
    clearTimeout(timer);
  }
  return counts;
}

/** A line from one port to another, through the switch. */
function curve(nodes, { from, to, rate }, middle) {
  const [a, b] = [nodes.get(from), nodes.get(to)];
  if (!a || !b) return null;
  const d = `M${a.edge},${a.y} C${middle},${a.y} ${middle},${b.y} ${b.edge},${b.y}`;
  return svg("path", { d, fill: "none", "stroke-width": thickness(rate) });
}
