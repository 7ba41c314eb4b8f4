// What every page uses: elements, numbers as people read them, colours, the tooltip, light and
// dark, and the list of keys. Text from data only ever becomes text nodes.

const $ = (selector) => document.querySelector(selector);

/** An element: properties, then children; a string child is text, never markup. */
function el(tag, properties, ...children) {
  const [name, ...classes] = tag.split(".");
  const node = document.createElement(name || "div");
  if (classes.length) node.className = classes.join(" ");
  for (const [key, value] of Object.entries(properties || {})) {
    if (key.startsWith("on")) node.addEventListener(key.slice(2), value);
    else if (key === "style") node.style.cssText = value;
    else if (value === true) node.setAttribute(key, "");
    else if (value !== false && value != null) node.setAttribute(key, value);
  }
  node.append(...children.flat().filter((child) => child != null && child !== false));
  return node;
}

function svg(tag, attributes, ...children) {
  const node = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [key, value] of Object.entries(attributes || {})) node.setAttribute(key, value);
  node.append(...children);
  return node;
}

/** Three digits, as the terminal shows them. */
function digits(value) {
  const size = Math.abs(value);
  return value.toFixed(size < 9.995 ? 2 : size < 99.95 ? 1 : 0);
}

function time(ns) {
  if (!(ns >= 0)) return "–";
  if (ns < 1e3) return `${Math.round(ns)} ns`;
  if (ns < 1e6) return `${digits(ns / 1e3)} µs`;
  if (ns < 1e9) return `${digits(ns / 1e6)} ms`;
  if (ns < 120e9) return `${digits(ns / 1e9)} s`;
  const seconds = Math.floor(ns / 1e9);
  if (seconds < 3600) return `${Math.floor(seconds / 60)} min ${seconds % 60} s`;
  return `${count(Math.floor(seconds / 3600))} h ${Math.floor(seconds / 60) % 60} min`;
}

function bytes(value) {
  if (!(value >= 0)) return "–";
  const units = ["B", "KiB", "MiB", "GiB", "TiB"];
  let at = 0;
  while (value >= 1024 && at < units.length - 1) { value /= 1024; at += 1; }
  return at === 0 ? `${value} B` : `${digits(value)} ${units[at]}`;
}

function count(value) {
  return Math.round(value).toString().replace(/\B(?=(\d{3})+$)/g, ",");
}

/** A number of any size in few characters. */
function short(value) {
  if (value === 0) return "0";
  const size = Math.abs(value);
  if (size >= 1e15 || size < 1e-3) return value.toExponential(1);
  for (const [unit, factor] of [["T", 1e12], ["G", 1e9], ["M", 1e6], ["k", 1e3]]) {
    if (size >= factor) return `${trim(value / factor)}${unit}`;
  }
  return trim(value);
}
const trim = (value) => String(Number(value.toPrecision(3)));

const percent = (share, places = 1) => `${(100 * share).toFixed(places)} %`;
const plural = (number, one, many = `${one}s`) => `${count(number)} ${number === 1 ? one : many}`;

function clock(us) {
  const date = new Date(us / 1000);
  return Number.isNaN(date.getTime()) ? "" : date.toLocaleString(undefined, { dateStyle: "medium", timeStyle: "medium" });
}

/** Steps of an axis that people count in. */
function ticks(low, high, most) {
  const span = high - low;
  if (!(span > 0) || !Number.isFinite(span)) return [low];
  const rough = span / Math.max(1, most);
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 5, 10].map((n) => n * power).find((n) => n >= rough) || rough;
  const found = [];
  for (let n = Math.ceil(low / step); n * step <= high + step * 1e-9 && found.length < 50; n += 1) found.push(n * step);
  return found;
}

/** The page's colours as the canvas needs them, read again when light and dark change. */
const colours = { names: ["paper", "card", "sunk", "line", "line-strong", "ink", "ink-2", "ink-3", "accent", "bad", "bad-soft", "warn", "warn-soft", "good", "c0", "c1", "c2", "c3", "c4", "c5", "c6", "c7"] };
function readColours() {
  const probe = el("span", { hidden: true });
  document.body.append(probe);
  for (const name of colours.names) {
    probe.style.color = `var(--${name})`;
    colours[name] = getComputedStyle(probe).color;
  }
  probe.remove();
  colours.fonts = getComputedStyle(document.body).fontFamily;
}
const seriesColour = (at) => `c${at % 8}`;

const redraws = [];
const onRedraw = (draw) => redraws.push(draw);
let redrawing = 0;
function redraw() {
  if (!redrawing) redrawing = requestAnimationFrame(() => { redrawing = 0; redraws.forEach((draw) => draw()); });
}

/** A canvas sized for the screen's pixels; calls `draw(context, width, height)`. */
function paint(canvas, height, draw) {
  const width = canvas.clientWidth;
  if (!width) return;
  const ratio = window.devicePixelRatio || 1;
  const [w, h] = [Math.round(width * ratio), Math.round(height * ratio)];
  if (canvas.width !== w || canvas.height !== h) {
    canvas.width = w;
    canvas.height = h;
    canvas.style.height = `${height}px`;
  }
  const context = canvas.getContext("2d");
  context.setTransform(ratio, 0, 0, ratio, 0, 0);
  context.clearRect(0, 0, width, height);
  draw(context, width, height);
}

const tip = {
  show(event, ...children) {
    const node = $("#tip");
    node.replaceChildren(...children.flat().filter(Boolean));
    node.hidden = false;
    const { width, height } = node.getBoundingClientRect();
    const left = event.clientX + 14 + width > innerWidth ? event.clientX - width - 12 : event.clientX + 14;
    const top = event.clientY + 16 + height > innerHeight ? event.clientY - height - 10 : event.clientY + 16;
    node.style.left = `${Math.max(6, left)}px`;
    node.style.top = `${Math.max(6, top)}px`;
  },
  hide() { $("#tip").hidden = true; },
};
const dim = (text) => el("div.dim", null, text);

const keys = [];
/** A key of the page: `act` runs unless someone is typing. */
function key(name, what, act) { keys.push({ name, what, act }); }

function startShell() {
  const stored = (() => { try { return localStorage.getItem("surefoot-theme"); } catch { return null; } })();
  const root = document.documentElement;
  if (stored === "light" || stored === "dark") root.dataset.theme = stored;
  const isDark = () => (root.dataset.theme ? root.dataset.theme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches);
  const turn = () => {
    root.dataset.theme = isDark() ? "light" : "dark";
    try { localStorage.setItem("surefoot-theme", root.dataset.theme); } catch { /* a page from a file may keep nothing */ }
    readColours();
    redraw();
  };
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => { readColours(); redraw(); });
  $("#theme-button").addEventListener("click", turn);
  key("t", "light or dark", turn);
  const help = $("#help");
  const showHelp = () => {
    help.replaceChildren(
      el("h2", { id: "help-title" }, "Keys"),
      el("dl", null, keys.flatMap(({ name, what }) => [el("dt", null, name.split(" ").map((k) => el("kbd", null, k)).flatMap((k) => [k, " "])), el("dd", null, what)])),
    );
    help.showModal();
  };
  $("#help-button").addEventListener("click", showHelp);
  help.addEventListener("click", (event) => { if (event.target === help) help.close(); });
  key("?", "these keys", showHelp);
  document.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey || help.open) return;
    if (/^(input|select|textarea)$/i.test(event.target.tagName)) {
      if (event.key === "Escape") event.target.blur();
      return;
    }
    const found = keys.find(({ name }) => name.split(" ").includes(event.key));
    if (found) { event.preventDefault(); found.act(event); }
  });
  addEventListener("resize", redraw);
  readColours();
}

function section(title, aside, ...children) {
  const id = title.toLowerCase().replace(/[^a-z]+/g, "-");
  return el("section", { id, "aria-labelledby": `${id}-title` },
    el("div.head", null, el("h2", { id: `${id}-title` }, title), aside ? el("span.aside", null, aside) : null), ...children);
}

function tile(label, value, note, tone) {
  return el("div.tile", null, el("dt", null, label), el(tone ? `dd.${tone}` : "dd", { title: value }, value), note ? el("p", { title: note }, note) : null);
}

const readData = () => JSON.parse($("#data").textContent);

function factTable(facts) {
  return el("div.card.wide", null, el("table", null, el("tbody", null, facts.map(([name, value]) => el("tr", null, el("td", { style: "color:var(--ink-3);width:1%;white-space:nowrap" }, name), el("td", { style: "overflow-wrap:anywhere" }, value))))));
}
