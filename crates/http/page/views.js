// The views. Each makes an element once, and brings its figures up to date with each tick. `page`
// says something in the status line, and makes the view again.

import { all, call, listen } from "/api.js";
import { watch } from "/frames.js";
import {
  bits,
  facts,
  field,
  frames,
  graph,
  h,
  history,
  inSight,
  portLink,
  short,
  table,
  write,
} from "/html.js";
import { dropped, live } from "/live.js";

export { map } from "/map.js";

const KINDS = ["shm", "null", "tap", "vhost-user", "stream", "dgram", "packet", "xdp", "stack"];

const switchOf = (port) => port.split(":")[0];

/** What is behind a port, in a word or two. */
function holder(port) {
  if (port.client) return port.client.name || `process ${port.client.pid}`;
  const count = port.vxlan?.remotes.length;
  const remotes = count === 1 ? "1 remote" : count != null && `${count} remotes`;
  return port.machine?.state ?? port.host?.state ?? (remotes || "");
}

/** The tunnel of a port, in a line. */
function tunnel({ vni, vlan_vni: ofVlans, local, remotes }) {
  const networks = vni == null ? ofVlans.map((it) => `${it.vlan}:${it.vni}`).join(", ") : vni;
  return `VNI ${networks}, from ${local} to ${remotes.map((it) => it.address).join(", ")}`;
}

/** A form that sends its fields. Errors stand in it, in the words of the daemon. */
function form(title, fields, button, send, done) {
  const alert = h("p", { role: "alert" });
  const element = h("form", {}, h("h3", {}, title), fields, h("button", {}, button), alert);
  element.addEventListener("submit", async (event) => {
    event.preventDefault();
    alert.textContent = "";
    try {
      await send(element.elements);
      element.reset();
      done();
    } catch (problem) {
      alert.textContent = problem.message;
      const first = element.querySelector("input");
      first?.setAttribute("aria-invalid", "true");
      first?.focus();
    }
  });
  element.addEventListener("input", ({ target }) => target.removeAttribute("aria-invalid"));
  return element;
}

/** All switches with their ports, and their rates. */
export async function ports(page) {
  const [switches, list] = [await all("/v1/switches"), await all("/v1/ports")];
  const parts = [];
  const row = (port) => {
    const figure = () => h("span", { class: "figure" });
    const [tx, rx, lost, line] = [figure(), figure(), figure(), history()];
    const tick = () => {
      const now = live.get(port.port);
      if (!now) return;
      write(tx, frames(now.rates.tx));
      write(rx, frames(now.rates.rx));
      write(lost, frames(now.rates.drops));
      line.draw(now.history.slice(-60));
    };
    parts.push({ element: line, tick });
    const state = port.disabled ? h("span", { class: "bad" }, "disabled") : holder(port);
    const label = port.settings.label && h("span", { class: "soft" }, ` ${port.settings.label}`);
    return [
      [portLink(port.port), label],
      port.kind,
      state,
      tx,
      rx,
      lost,
      line,
    ];
  };
  const columns = ["Port", "Kind -", "Client -", "Sends #", "Receives #", "Dropped # -", "History"];
  const sections = switches.map((info) => {
    const own = list.filter((port) => switchOf(port.port) === info.switch);
    const about = `${info.forwarding}, ${info.ports} ports, ${info.fdb_entries} addresses`;
    return [h("h3", {}, info.switch), table(about, columns, own.map(row))];
  });
  const add = form(
    "Add a port",
    [
      field("Name", "port", { required: true, placeholder: "vale0:vm1", spellcheck: "false" }),
      field("Kind", "kind", {}, KINDS),
      field("VLAN", "vlan", { placeholder: "access:10", size: 14 }),
      field("If full", "on_full", {}, ["drop", "wait"]),
    ],
    "Add",
    async (fields) => {
      const settings = { on_full: fields.on_full.value };
      if (fields.vlan.value) settings.vlan = fields.vlan.value;
      await call("POST", "/v1/ports", {
        port: fields.port.value,
        kind: fields.kind.value,
        settings,
      });
    },
    () => page.again("The port was added."),
  );
  const none = h("p", {}, "There is no switch yet: add a port, and its switch is made.");
  return {
    title: "Ports",
    element: h("div", {}, sections.length ? sections : none, add),
    ...inSight(parts),
    follows: true,
  };
}

/** One port: what it is, its rates, its drops, its settings. */
export async function port(page, name) {
  const path = `/v1/ports/${encodeURIComponent(name)}`;
  const [info, reasons] = [await call("GET", path), await call("GET", "/v1/drop-reasons")];
  const { settings } = info;
  const [sends, receives] = [h("span"), h("span")];
  const [line, hour, drops, seen] = [graph(1), lastHour(path), h("div"), watch(path)];
  const about = facts([
    ["Label", settings.label],
    ["Kind", info.kind],
    [
      "Client",
      info.client && `${info.client.name}, process ${info.client.pid}, user ${info.client.uid}`,
    ],
    ["Machine", info.machine && `${info.machine.state}, socket ${info.machine.socket}`],
    ["Interface", info.host && `${info.host.ifname}, ${info.host.state}`],
    ["Tunnel", info.vxlan && tunnel(info.vxlan)],
    ["Trouble", info.machine?.complaint ?? info.host?.trouble ?? info.vxlan?.trouble],
    ["Disabled by", info.disabled],
    ["Trust group", info.trust_group],
    ["VLAN", settings.vlan],
    ["Chain", settings.chain],
    ["Sends", sends],
    ["Receives", receives],
  ]);
  const change = form(
    "Change",
    [
      field("VLAN", "vlan", { value: settings.vlan ?? "", size: 14 }),
      field("If full", "on_full", {}, [...new Set([settings.on_full ?? "drop", "drop", "wait"])]),
      field("Most addresses", "max_macs", {
        type: "number",
        min: 0,
        value: settings.max_macs ?? 0,
        size: 6,
      }),
      field("Isolated", "isolated", { type: "checkbox", checked: settings.isolated }),
    ],
    "Change",
    (fields) =>
      call("PATCH", path, {
        vlan: fields.vlan.value || undefined,
        on_full: fields.on_full.value,
        max_macs: Number(fields.max_macs.value),
        isolated: fields.isolated.checked,
      }),
    () => page.again("The port was changed."),
  );
  const remove = form(
    "Delete",
    [],
    `Delete ${name}`,
    async () => {
      if (confirm(`Delete ${name}? A client that holds it loses it.`)) {
        await call("DELETE", path);
        location.hash = "#/";
      }
    },
    () => {},
  );
  remove.querySelector("button").className = "danger";
  const enable =
    info.disabled &&
    form(
      "Enable",
      [],
      "Enable the port",
      () => call("POST", `${path}/enable`),
      () => page.again("The port was enabled."),
    );
  let shown = "";
  const tick = () => {
    const now = live.get(name);
    if (!now) return;
    write(sends, `${frames(now.rates.tx)}, ${bits(now.rates.txBits)}`);
    write(receives, `${frames(now.rates.rx)}, ${bits(now.rates.rxBits)}`);
    line.draw(now.history);
    const lost = JSON.stringify(now.counters.drops);
    if (lost !== shown) drops.replaceChildren(dropTable([[name, now.counters]], reasons));
    shown = lost;
  };
  const element = h(
    "div",
    {},
    about,
    h("h3", {}, "Frames in a second, the last ten minutes"),
    line,
    hour.element,
    h("h3", {}, "Drops"),
    drops,
    seen.element,
    change,
    enable,
    remove,
  );
  const end = () => {
    hour.end();
    seen.end();
  };
  return { title: name, element, tick, end };
}

/** The last hour of a port, as the server has kept it. */
function lastHour(path) {
  const [line, text] = [graph(10), h("p", { class: "soft" })];
  const show = async () => {
    const { steps, step_s: seconds } = await call("GET", `${path}/history`);
    const rates = steps.map((it) => it && (it.tx_frames + it.rx_frames) / seconds);
    const known = steps.filter((it) => it);
    const sum = (name) => known.reduce((all, it) => all + it[name], 0);
    line.draw(rates);
    text.textContent =
      `${Math.round((steps.length * seconds) / 60)} minutes: sent ${short(sum("tx_frames"))} ` +
      `frames (${short(sum("tx_bytes"), "B")}), received ${short(sum("rx_frames"))} ` +
      `(${short(sum("rx_bytes"), "B")}), dropped ${short(sum("dropped"))}; at most ` +
      `${frames(Math.max(0, ...rates))}`;
  };
  const again = () =>
    show().catch((problem) => {
      text.textContent = problem.message;
    });
  const timer = setInterval(again, 10_000);
  again();
  const element = h("div", {}, h("h3", {}, "The last hour"), line, text);
  return { element, end: () => clearInterval(timer) };
}

function dropTable(list, reasons) {
  const rows = list.flatMap(([name, counters]) =>
    Object.entries(counters.drops).map(([reason, lost]) => {
      const known = reasons.find((it) => it.name === reason);
      return [portLink(name), reason, short(lost), known?.explanation ?? "", known?.cure ?? ""];
    }),
  );
  if (rows.length === 0) return h("p", {}, "Nothing was dropped.");
  return table(
    "Dropped frames by reason",
    ["Port", "Reason", "Frames #", "Why -", "What to do"],
    rows,
  );
}

/** Dropped frames of all ports. */
export async function drops() {
  const reasons = await call("GET", "/v1/drop-reasons");
  const element = h("div");
  let shown = null;
  const tick = () => {
    const list = [...live]
      .map(([name, now]) => [name, now.counters])
      .filter(([, it]) => dropped(it) > 0);
    list.sort(([, a], [, b]) => dropped(b) - dropped(a));
    const text = JSON.stringify(list.map(([name, it]) => [name, it.drops]));
    if (text !== shown) element.replaceChildren(dropTable(list, reasons));
    shown = text;
  };
  return { title: "Drops", element, tick };
}

/** The forwarding databases, to search. */
export async function addresses() {
  const MOST = 500;
  const switches = await all("/v1/switches");
  const lists = await Promise.all(
    switches.map((it) => all(`/v1/switches/${encodeURIComponent(it.switch)}/fdb`)),
  );
  const entries = lists.flat();
  const [found, count] = [h("div"), h("p", { role: "status" })];
  const search = field("Address or port", "text", { type: "search", spellcheck: "false" });
  const show = () => {
    const text = search.querySelector("input").value.trim().toLowerCase();
    const is = (entry) => entry.mac.includes(text) || entry.port.toLowerCase().includes(text);
    const matching = entries.filter(is);
    const rows = matching
      .slice(0, MOST)
      .map((entry) => [
        entry.mac,
        String(entry.vlan),
        portLink(entry.port),
        entry.static ? "static" : `${entry.age_s} s ago`,
      ]);
    const more = matching.length > MOST ? `, the first ${MOST} are shown` : "";
    count.textContent = `${matching.length} of ${entries.length} addresses${more}`;
    found.replaceChildren(
      table(
        "Stations and the ports behind which they are",
        ["Address", "VLAN #", "Port", "Seen"],
        rows,
      ),
    );
  };
  const element = h(
    "div",
    {},
    h("form", { role: "search", onsubmit: (event) => event.preventDefault() }, search),
    count,
    found,
  );
  element.addEventListener("input", show);
  show();
  return { title: "Addresses", element };
}

/** Chains with their functions. */
export async function chains() {
  const list = (await all("/v1/switches")).filter((it) => it.forwarding === "chain");
  const element = h("div");
  const show = async () => {
    const parts = await Promise.all(
      list.map(async ({ switch: name }) => {
        const path = `/v1/switches/${encodeURIComponent(name)}`;
        const [own, functions] = [await all(`${path}/chains`), await all(`${path}/functions`)];
        return [
          h("h3", {}, name),
          table(
            "Chains",
            ["Chain", "Services", "Entered #", "Trouble"],
            own.map((it) => [
              it.chain.name,
              it.chain.services.join(" → "),
              short(it.entered),
              it.broken ?? "",
            ]),
          ),
          table(
            "Functions",
            ["Service", "Port", "Load", "In # -", "Out # -", "Dropped #"],
            functions.map((it) => [
              it.service,
              portLink(it.port),
              load(it),
              short(it.frames_in),
              short(it.frames_out),
              short(it.dropped),
            ]),
          ),
        ];
      }),
    );
    element.replaceChildren(
      ...(list.length ? parts.flat() : [h("p", {}, "No switch has chains.")]),
    );
  };
  await show();
  let ticks = 0;
  const tick = () => (++ticks % 3 === 0 && list.length ? show() : null);
  return { title: "Chains", element, tick };
}

/** How full the rings of a function are. */
function load(it) {
  if (it.pid == null) return h("span", { class: "bad" }, "no process");
  if (it.stalled) return h("span", { class: "bad" }, "stalled");
  const text = `${it.waiting} of ${it.capacity} slots`;
  return h("meter", {
    max: Math.max(1, it.capacity),
    value: it.waiting,
    "aria-label": text,
    title: text,
  });
}

/** What changes, as it changes. */
export async function events(page) {
  const [log, ended] = [h("ol", { class: "log", reversed: true }), new AbortController()];
  const hear = (type, data) => {
    const { time_ms: at, event, ...rest } = data;
    const text =
      type === "message"
        ? `${new Date(at).toLocaleTimeString()} ${event} ${Object.values(rest)
            .map((it) => (typeof it === "object" ? JSON.stringify(it) : it))
            .join(" ")}`
        : `${type}: ${data.detail ?? data}`;
    log.prepend(h("li", {}, text));
    while (log.children.length > 200) log.lastChild.remove();
  };
  listen("/v1/events", ended.signal, hear, (problem) => page.say(problem.message));
  const element = h(
    "div",
    {},
    h("p", { class: "soft" }, "The newest first, since this view was opened."),
    log,
  );
  return { title: "Events", element, end: () => ended.abort() };
}
