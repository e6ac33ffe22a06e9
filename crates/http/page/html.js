// Elements, figures and pictures. Text is never read as HTML.

/** An element; `on…` attributes are listeners, `false` and `null` are left out. */
export function h(tag, attributes = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (value !== false && value != null)
      element.setAttribute(name, value === true ? "" : value);
  }
  element.append(...children.flat(Infinity).filter((child) => child != null));
  return element;
}

/** A table. A column is a name; " #" behind it is for numbers, " -" for what a phone leaves out. */
export function table(caption, columns, rows) {
  const classes = columns.map(
    (column) =>
      [column.includes("#") && "number", column.includes("-") && "lesser"]
        .filter(Boolean)
        .join(" ") || null,
  );
  const cells = (values, tag) =>
    values.map((value, at) =>
      h(
        tag ?? (at === 0 ? "th" : "td"),
        { class: classes[at], scope: tag ? "col" : at === 0 && "row" },
        value,
      ),
    );
  const body = h(
    "tbody",
    {},
    rows.map((row) => h("tr", {}, cells(row))),
  );
  const head = columns.map((column) => column.replace(/ [# -]+$/, ""));
  return h(
    "div",
    { class: "scroll" },
    h("table", {}, h("caption", {}, caption), h("thead", {}, h("tr", {}, cells(head, "th"))), body),
  );
}

/** Facts, those that are known. */
export function facts(pairs) {
  const known = pairs.filter(([, value]) => value != null && value !== "");
  return h(
    "dl",
    { class: "facts" },
    known.map(([name, value]) => [h("dt", {}, name), h("dd", {}, value)]),
  );
}

/** A labelled field of a form. */
export function field(label, name, attributes = {}, options = null) {
  if (attributes.type === "checkbox") {
    return h("label", { class: "check" }, h("input", { name, ...attributes }), label);
  }
  const input = options
    ? h(
        "select",
        { name, ...attributes },
        options.map((text) => h("option", {}, text)),
      )
    : h("input", { name, autocomplete: "off", ...attributes });
  return h("label", {}, label, input);
}

/** Writes an element's text, if it is another: a browser lays out anew what is written. */
export function write(element, text) {
  const node = element.firstChild ?? element.appendChild(new Text());
  if (node.data !== text) node.data = text;
}

/** Sets an attribute, if it is another. */
export function set(element, name, value) {
  if (element.getAttribute(name) !== value) element.setAttribute(name, value);
}

/** Ticks between two looks at a part that is out of sight. */
const TURNS = 10;

/**
 * Brings parts `{ element, tick }` up to date: those in sight with each tick, and as they come. The
 * others take turns, so that a search, a copy or a print finds no old figures.
 */
export function inSight(parts) {
  const all = new Map(parts.map((part) => [part.element, part]));
  const seen = new Set();
  const observer = new IntersectionObserver((entries) => {
    for (const { target, isIntersecting } of entries) {
      const part = all.get(target);
      isIntersecting ? seen.add(part) : seen.delete(part);
      if (isIntersecting) part.tick();
    }
  });
  for (const element of all.keys()) observer.observe(element);
  let turn = 0;
  const tick = () => {
    const isDue = (part, at) => turn === 0 || at % TURNS === turn % TURNS || seen.has(part);
    for (const part of parts.filter(isDue)) part.tick();
    turn += 1;
  };
  return { tick, end: () => observer.disconnect() };
}

/** A number with three digits, a prefix for thousands, and a unit. */
export function short(value, unit = "") {
  const prefixes = ["", "k", "M", "G", "T"];
  let at = 0;
  while (value >= 999.5 && at < prefixes.length - 1) {
    value /= 1000;
    at += 1;
  }
  const digits = value >= 99.5 || Number.isInteger(value) ? 0 : value >= 9.95 ? 1 : 2;
  return `${value.toFixed(digits)} ${prefixes[at]}${unit}`.trim();
}

/** A rate of frames. */
export const frames = (rate) => `${short(rate)}/s`;

/** A rate of bits. */
export const bits = (rate) => short(rate, "bit/s");

/** Where the view of a port is. */
export const portPlace = (name) => `#/port/${encodeURIComponent(name)}`;

/** A link to a port. */
export const portLink = (name) => h("a", { href: portPlace(name) }, name);

const SVG = "http://www.w3.org/2000/svg";

/** An element of a picture. */
export function svg(tag, attributes = {}, ...children) {
  const element = document.createElementNS(SVG, tag);
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
  element.append(...children);
  return element;
}

/** The least of 1, 2, 5, 10, 20, … that is no less than a value. */
function ceiling(value) {
  const power = 10 ** Math.floor(Math.log10(value));
  return [1, 2, 5, 10].map((step) => step * power).find((step) => step >= value);
}

/** A line of the last values, `null` for unknown ones; screen readers have the figures beside it. */
export function history() {
  const line = svg("path", {
    fill: "none",
    stroke: "currentColor",
    "vector-effect": "non-scaling-stroke",
    "stroke-width": "1.5",
  });
  const picture = svg(
    "svg",
    {
      class: "history",
      "aria-hidden": "true",
      viewBox: "0 0 100 20",
      preserveAspectRatio: "none",
    },
    line,
  );
  /** Draws these; returns the value of the upper edge. */
  picture.draw = (values) => {
    const most = ceiling(Math.max(1, ...values));
    const step = 100 / Math.max(1, values.length - 1);
    let isDown = false;
    const point = (value, at) => {
      const place = `${(at * step).toFixed(1)},${(19 - (value / most) * 18).toFixed(1)}`;
      const word = value == null ? "" : `${isDown ? "L" : "M"}${place}`;
      isDown = value != null;
      return word;
    };
    set(line, "d", values.map(point).join(" "));
    return most;
  };
  return picture;
}

/** A large line of the last rates, with scales; a value stands for so many seconds. */
export function graph(seconds) {
  const [picture, top, begin] = [history(), h("span", { class: "top" }), h("span")];
  const element = h(
    "figure",
    { class: "graph", "aria-hidden": "true" },
    h("div", { class: "rates" }, top, h("span", {}, "0")),
    picture,
    h("div", { class: "times" }, begin, h("span", {}, "now")),
  );
  element.draw = (values) => {
    write(top, frames(picture.draw(values)));
    const ago = values.length * seconds;
    write(begin, ago < 120 ? `${ago} s ago` : `${Math.round(ago / 60)} min ago`);
  };
  return element;
}
