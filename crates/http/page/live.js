// Counters as they come, and the rates between them. The page keeps ten minutes of rates; the
// server keeps the last hour.

const KEPT = 600;

/** By port: counters, rates in a second, and the history of frames. */
export const live = new Map();

let before = null;

const growth = (old, now) => (now < old ? now : now - old);

/** Takes counters in. Returns whether ports came or went. */
export function take(page) {
  const seconds = before ? (page.at_ns - before) / 1e9 : 0;
  before = page.at_ns;
  let changed = false;
  const names = new Set(page.items.map((item) => item.port));
  for (const name of live.keys()) {
    if (!names.has(name)) changed = live.delete(name);
  }
  for (const item of page.items) {
    // What another port of this name has counted is not this one's; nor what an earlier daemon has.
    const same = live.get(item.port);
    const old = same?.counters.serial === item.serial ? same : undefined;
    changed ||= !old;
    const per = (read) =>
      old && seconds > 0 ? growth(read(old.counters), read(item)) / seconds : 0;
    const rates = {
      tx: per((it) => it.tx.frames),
      rx: per((it) => it.rx.frames),
      txBits: 8 * per((it) => it.tx.bytes),
      rxBits: 8 * per((it) => it.rx.bytes),
      drops: per(dropped),
    };
    const history = old?.history ?? [];
    history.push(rates.tx + rates.rx);
    if (history.length > KEPT) history.shift();
    live.set(item.port, { counters: item, rates, history });
  }
  return changed;
}

/** Frames that were dropped, for all reasons. */
export function dropped(counters) {
  return Object.values(counters.drops).reduce((sum, frames) => sum + frames, 0);
}
