// Finds the view for the address, and brings it up to date.

import { listen, setToken } from "/api.js";
import { h } from "/html.js";
import { take } from "/live.js";
import * as views from "/views.js";

const [main, status, login] = ["main", "status", "login"].map((id) => document.getElementById(id));

let current = null;
let shows = 0;

let stale = false;

const say = (text) => {
  status.textContent = text;
};
const page = { say, again: (text) => show().then(() => say(text)) };

/** The view that the address asks for, with its parameter. */
function wanted() {
  const [name, parameter] = location.hash.replace(/^#\/?/, "").split("/").map(decodeURIComponent);
  return { make: Object.hasOwn(views, name) ? views[name] : views.ports, parameter };
}

async function show(moves = true) {
  const turn = ++shows;
  stale = false;
  const { make, parameter } = wanted();
  try {
    const view = await make(page, parameter);
    if (turn !== shows) return view.end?.();
    current?.end?.();
    current = view;
    const active = document.activeElement;
    const focused = main.contains(active) && active.getAttribute("href");
    main.replaceChildren(h("h2", { id: "title" }, view.title), view.element);
    if (focused) main.querySelector(`a[href=${JSON.stringify(focused)}]`)?.focus();
    document.title = `${view.title} – uvala`;
    view.tick?.();
  } catch (problem) {
    fail(problem);
    main.replaceChildren(h("p", { role: "alert" }, problem.message));
  }
  for (const link of document.querySelectorAll("nav a")) {
    const is = link.hash === location.hash || (link.hash === "#/" && make === views.ports);
    is ? link.setAttribute("aria-current", "page") : link.removeAttribute("aria-current");
  }
  if (moves) main.focus();
}

function hear(type, data) {
  if (type === "problem") return fail({ message: data.detail, status: data.status });
  if (status.dataset.failed) {
    delete status.dataset.failed;
    say("");
  }
  stale = take(data) || stale;
  if (!document.hidden) refresh();
}

/** Brings the view up to date; in a tab that nobody sees, this waits. */
function refresh() {
  // A form that is being filled in stays.
  const isBusy =
    main.contains(document.activeElement) && document.activeElement.matches("input, select");
  if (stale && current?.follows && !isBusy) show(false);
  else current?.tick?.();
}

function fail(problem) {
  status.dataset.failed = "yes";
  say(problem.message);
  if (problem.status === 401 && !login.open) {
    document.getElementById("login-why").textContent = problem.message;
    login.showModal();
  }
}

login.addEventListener("close", () => {
  setToken(new FormData(login.querySelector("form")).get("token"));
  location.reload();
});

document.addEventListener("visibilitychange", () => document.hidden || refresh());
window.addEventListener("hashchange", () => location.hash.startsWith("#/") && show());
show(false);
listen("/v1/stats/stream", new AbortController().signal, hear, fail);
