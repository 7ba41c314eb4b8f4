// The list of events: search, filters, and rows that exist only while they are seen.

const ROW = 26;
/** Browsers stop at some height of an element; a longer list is scrolled in proportion. */
const TALLEST = 12_000_000;

class EventList {
  constructor(events, timeline, select) {
    this.events = events;
    this.timeline = timeline;
    this.select = select;
    this.found = new Uint32Array(0);
    this.seen = 0;
    this.chosen = -1;
    this.kinds = new Set();
    this.inView = false;
    this.query = "";
    this.device = "";
    this.search = el("input", { type: "search", id: "search", placeholder: "Search: words, or op:forward fault:memory took:>10ms", "aria-label": "Search events", oninput: () => { this.query = this.search.value; this.filter(); } });
    this.devices = el("select", { "aria-label": "Device", onchange: () => { this.device = this.devices.value; this.filter(); } }, el("option", { value: "" }, "all devices"));
    this.chips = el("div", { style: "display:flex;gap:6px;flex-wrap:wrap", role: "group", "aria-label": "Kinds" });
    this.viewChip = el("button.chip", { type: "button", "aria-pressed": "false", title: "Only what the timeline shows", onclick: () => { this.inView = !this.inView; this.viewChip.setAttribute("aria-pressed", this.inView); this.filter(); } }, "in the timeline's view");
    this.space = el("div.space");
    this.rows = el("div.rows", { tabindex: 0, role: "listbox", id: "rows", "aria-label": "Events", onscroll: () => this.drawRows() }, this.space);
    this.detail = el("div.detail", { id: "detail", "aria-live": "polite" });
    this.status = el("span", { id: "found", role: "status" });
    this.node = section("Events", "", el("div.card", { style: "overflow:hidden" },
      el("div.filters", null, this.search, this.devices, this.chips, this.viewChip),
      el("div.split", null, this.rows, this.detail), el("div.foot", null, this.status)));
    this.rows.addEventListener("keydown", (event) => {
      const by = { ArrowDown: 1, ArrowUp: -1, PageDown: 16, PageUp: -16, Home: -1e9, End: 1e9 }[event.key];
      if (by) { event.preventDefault(); this.move(by); }
    });
    this.showDetail(-1);
  }

  /** Takes in what was appended since the last time. */
  update() {
    this.updateFilters();
    const from = this.seen;
    this.seen = this.events.size;
    if (from === 0) { this.filter(); return; }
    const test = this.test();
    const more = [];
    for (let at = from; at < this.seen; at += 1) if (test(at)) more.push(at);
    if (more.length) {
      const stuck = this.rows.scrollTop + this.rows.clientHeight >= this.height() - 2;
      const grown = new Uint32Array(this.found.length + more.length);
      grown.set(this.found);
      grown.set(more, this.found.length);
      this.found = grown;
      this.resize();
      if (stuck && from > 0) this.rows.scrollTop = this.height();
    }
    this.tell();
  }

  updateFilters() {
    const e = this.events;
    const present = KINDS.map((name, at) => [name, at]).filter(([, at]) => e.kinds[at]);
    const state = present.map(([, at]) => `${at}:${e.kinds[at]}`).join();
    if (this.chipState !== state) {
      this.chipState = state;
      const focused = document.activeElement?.dataset?.kind;
      this.chips.replaceChildren(...present.map(([name, at]) => el("button.chip", { type: "button", "data-kind": name, "aria-pressed": String(this.kinds.has(at)), onclick: (event) => this.toggle(at, event.currentTarget) }, name, el("b", null, count(e.kinds[at])))));
      if (focused) this.chips.querySelector(`[data-kind="${focused}"]`)?.focus();
    }
    for (const device of e.devices.keys()) if (![...this.devices.options].some((option) => option.value === e.text(device))) this.devices.append(el("option", { value: e.text(device) }, e.text(device)));
    this.devices.hidden = e.devices.size < 2;
  }

  toggle(kind, chip) {
    if (!this.kinds.delete(kind)) this.kinds.add(kind);
    chip.setAttribute("aria-pressed", this.kinds.has(kind));
    this.filter();
  }

  /** Whether an event is wanted. Each different text is looked at once, not once an event. */
  test() {
    const e = this.events;
    const terms = parseQuery(this.query).map((term) => term.limit ? term : { ...term, hits: e.strings.map((text) => text.toLowerCase().includes(term.text)) });
    const [from, to] = this.timeline.range_();
    const device = this.device ? e.numbers.get(this.device) : 0;
    const hit = (term, at) => {
      const h = term.hits;
      switch (term.field) {
        case "op": return h[e.op[at]];
        case "kind": return KINDS[e.kind[at]].includes(term.text);
        case "level": return LEVELS[e.level[at]].includes(term.text);
        case "device": return h[e.device[at]];
        case "fault": return e.fault[at] !== 0 && (h[e.fault[at]] || h[e.message[at]]);
        case "rung": return e.rung[at] !== 0 && h[e.rung[at]];
        case "thread": return String(e.thread[at]) === term.text;
        case "took": return e.ns[at] >= 0 && term.limit(e.ns[at]);
        default: return h[e.op[at]] || h[e.device[at]] || h[e.dtype[at]] || h[e.fault[at]] || h[e.message[at]] || h[e.rung[at]] || KINDS[e.kind[at]].includes(term.text)
          || (e.context[at] || []).some(([name, value]) => name.toLowerCase().includes(term.text) || String(value).toLowerCase().includes(term.text));
      }
    };
    return (at) => (!this.kinds.size || this.kinds.has(e.kind[at])) && (!device || e.device[at] === device)
      && (!this.inView || (e.t[at] >= from && e.start(at) <= to)) && terms.every((term) => hit(term, at) !== term.not);
  }

  filter() {
    const test = this.test();
    const found = [];
    for (let at = 0; at < this.events.size; at += 1) if (test(at)) found.push(at);
    this.found = Uint32Array.from(found);
    this.seen = this.events.size;
    this.rows.scrollTop = 0;
    this.resize();
    this.tell();
  }

  tell() {
    const all = this.events.size;
    this.status.textContent = this.found.length === all ? plural(all, "event") : `${count(this.found.length)} of ${plural(all, "event")}`;
  }

  height() { return Math.min(this.found.length * ROW, TALLEST); }

  resize() {
    this.space.style.height = `${this.height()}px`;
    this.drawn = null;
    this.drawRows();
  }

  /** Only the rows that can be seen are in the document. */
  drawRows() {
    const total = this.found.length;
    const tall = this.rows.clientHeight || 468;
    const full = total * ROW;
    const shown = this.height();
    const top = this.rows.scrollTop;
    const real = full > shown && shown > tall ? (top / (shown - tall)) * (full - tall) : top;
    const from = Math.max(0, Math.floor(real / ROW) - 4);
    const to = Math.min(total, Math.ceil((real + tall) / ROW) + 4);
    const state = `${from}/${to}/${this.chosen}/${total}/${Math.round(top - real)}`;
    if (state === this.drawn) return;
    this.drawn = state;
    const rows = [];
    for (let place = from; place < to; place += 1) rows.push(this.row(this.found[place], place * ROW + top - real));
    if (!total) rows.push(el("div.empty", null, this.events.size ? "Nothing matches. Esc clears the search." : "No events yet."));
    this.space.replaceChildren(...rows);
  }

  row(at, top) {
    const e = this.events;
    const tone = e.kind[at] === KIND.fault || e.fault[at] ? ".fault" : e.kind[at] === KIND.rung ? ".rung" : "";
    const message = e.fault[at] ? `${e.text(e.fault[at])}: ${clip(e.text(e.message[at]), 200)}` : e.rung[at] ? `rung ${e.text(e.rung[at])}` : (e.context[at] || []).slice(0, 4).map(([name, value]) => `${name} ${shortValue(name, value)}`).join("  ");
    return el(`div.row${tone}`, { role: "option", "data-at": at, "aria-selected": String(at === this.chosen), style: `top:${top}px`, onclick: () => this.select(at) },
      el("span.t", null, `+${time((e.t[at] - e.first) * 1000)}`), el("span.k", null, KINDS[e.kind[at]]), el("span", null, e.text(e.op[at])),
      el("span.d", null, e.ns[at] >= 0 ? time(e.ns[at]) : e.bytes[at] >= 0 ? bytes(e.bytes[at]) : ""), el("span.k.v", null, e.text(e.device[at])), el("span.m", null, message));
  }

  place(at) { return lowerBound(this.found, (found) => found, at); }

  move(by) {
    if (!this.found.length) return;
    const place = this.chosen < 0 ? (by > 0 ? -1 : this.found.length) : this.place(this.chosen);
    this.select(this.found[Math.max(0, Math.min(this.found.length - 1, place + by))]);
  }

  /** Marks an event and brings its row into view; clears filters that hide it. */
  choose(at) {
    this.chosen = at;
    if (at >= 0) {
      if (this.found[this.place(at)] !== at) this.clear();
      const place = this.place(at);
      const tall = this.rows.clientHeight;
      const scale = this.found.length * ROW > this.height() ? this.height() / (this.found.length * ROW) : 1;
      const y = place * ROW;
      if (y * scale < this.rows.scrollTop + ROW) this.rows.scrollTop = Math.max(0, y * scale - tall / 3);
      else if ((y + ROW) * scale > this.rows.scrollTop + tall - ROW) this.rows.scrollTop = y * scale - (tall * 2) / 3;
    }
    this.drawn = null;
    this.drawRows();
    this.showDetail(at);
  }

  clear() {
    this.search.value = this.query = "";
    this.devices.value = this.device = "";
    this.kinds.clear();
    this.inView = false;
    this.viewChip.setAttribute("aria-pressed", "false");
    this.chipState = null;
    this.updateFilters();
    this.filter();
  }

  showDetail(at) {
    const e = this.events;
    if (at < 0) { this.detail.replaceChildren(el("div.empty", null, "Choose an event to see all of it.")); return; }
    const rows = [];
    const add = (name, value) => { if (value !== "" && value != null) rows.push(el("dt", null, name), el("dd", null, value)); };
    add("kind", KINDS[e.kind[at]]);
    add("level", LEVELS[e.level[at]]);
    add("at", `+${time((e.t[at] - e.first) * 1000)}`);
    add("clock", clock(e.origin + e.t[at]));
    add("device", e.text(e.device[at]));
    add("precision", e.text(e.dtype[at]));
    add("took", e.ns[at] >= 0 ? time(e.ns[at]) : "");
    add("bytes", e.bytes[at] >= 0 ? bytes(e.bytes[at]) : "");
    add("fault", e.text(e.fault[at]));
    add("message", e.text(e.message[at]));
    add("rung", e.text(e.rung[at]));
    add("process", `${e.pid[at]}, thread ${e.thread[at]}`);
    for (const [name, value] of e.context[at] || []) add(name.replaceAll("_", " "), shortValue(name, value));
    this.detail.replaceChildren(el("h3", null, e.text(e.op[at])), el("dl", null, rows));
  }
}

/** Bytes as bytes, long numbers short. */
function shortValue(name, value) {
  if (typeof value !== "number") return String(value);
  if (/bytes$|^in_use$|^budget$|memory$/.test(name)) return bytes(value);
  return Number.isInteger(value) ? count(value).replace("-,", "-") : String(Number(value.toPrecision(5)));
}

/** Words, `field:word`, `-word` for what must not be there, `took:>10ms`. */
function parseQuery(query) {
  const units = { ns: 1, "µs": 1e3, us: 1e3, ms: 1e6, s: 1e9 };
  return query.toLowerCase().split(/\s+/).filter(Boolean).map((word) => {
    const not = word.length > 1 && word.startsWith("-");
    const [, field, rest] = /^(op|kind|level|device|fault|rung|thread|took):(.+)$/.exec(not ? word.slice(1) : word) || [null, "", not ? word.slice(1) : word];
    const limit = field === "took" && /^([<>])(\d+(?:\.\d+)?)(ns|µs|us|ms|s)$/.exec(rest);
    if (limit) { const ns = Number(limit[2]) * units[limit[3]]; return { field, not, limit: limit[1] === ">" ? (value) => value > ns : (value) => value < ns }; }
    return field === "took" ? { field: "", text: word, not } : { field, text: rest, not };
  });
}
