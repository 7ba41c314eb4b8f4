// The timeline: an overview of the whole run, lanes of devices and threads, faults and rungs,
// and memory below on the same axis. Everything is drawn on canvases; what falls on the same
// pixel is drawn once, so a hundred thousand events cost no more than what can be seen.

const GUTTER = 132;
const BAR = 20;
const DEEPEST = 3;

class Timeline {
  constructor(events, select) {
    this.events = events;
    this.select = select;
    this.view = null;
    this.follow = true;
    this.chosen = -1;
    this.hoverX = null;
    this.rows = [];
    this.colourOf = new Map();
    this.laidOut = -1;
    this.overview = el("canvas", { tabindex: 0, role: "img", "aria-label": "The whole run; drag to choose a stretch of it" });
    this.canvas = el("canvas", { tabindex: 0, role: "img", id: "timeline-canvas", "aria-label": "Timeline of devices and lanes. Arrow keys move, plus and minus zoom, 0 shows all." });
    this.memoryCanvas = el("canvas", { role: "img", id: "memory-canvas", "aria-label": "Memory in use over time" });
    this.legend = el("div.legend");
    this.memoryHead = el("div.head", { style: "padding:12px 16px 0;margin:0;border-top:1px solid var(--line)" }, el("h3", null, "Memory"), el("span.aside"));
    this.buttons = [["−", "Zoom out (-)", () => this.zoom(1.6)], ["+", "Zoom in (+)", () => this.zoom(0.625)], ["All", "The whole run (0)", () => this.all()]]
      .map(([text, title, act]) => el("button.btn", { type: "button", title, "aria-label": title, onclick: act }, text));
    this.node = section("Timeline", "", el("div.card", { style: "overflow:hidden" }, this.overview, el("div.scroll-y", null, this.canvas), this.memoryHead, this.memoryCanvas, this.legend));
    this.range = el("span.aside.num");
    this.node.querySelector(".head").append(this.range, el("span.right", null, this.buttons));
    this.listen();
    onRedraw(() => this.draw());
  }

  // ---- what is shown

  whole() {
    const { first, last, size } = this.events;
    if (!size) return [0, 1000];
    const pad = Math.max(1, (last - first) * 0.008);
    return [first - pad, last + pad];
  }

  range_() { return this.view && !this.follow ? this.view : this.whole(); }

  set(from, to) {
    const [low, high] = this.whole();
    const least = 2;
    let span = Math.min(Math.max(to - from, least), high - low);
    from = Math.min(Math.max(from, low), high - span);
    this.view = [from, from + span];
    this.follow = span >= (high - low) * 0.999;
    redraw();
    this.onview?.();
  }

  all() { this.follow = true; this.view = null; redraw(); this.onview?.(); }

  zoom(factor, around) {
    const [from, to] = this.range_();
    const centre = around ?? (this.chosen >= 0 && this.events.t[this.chosen] >= from && this.events.t[this.chosen] <= to ? this.events.t[this.chosen] : (from + to) / 2);
    this.set(centre - (centre - from) * factor, centre + (to - centre) * factor);
  }

  pan(share) {
    const [from, to] = this.range_();
    this.set(from + (to - from) * share, to + (to - from) * share);
  }

  /** Brings a stretch into view. */
  show(from, to) {
    const pad = Math.max((to - from) * 1.5, (this.whole()[1] - this.whole()[0]) * 0.004, 50);
    this.set(from - pad, to + pad);
    this.node.scrollIntoView({ block: "nearest" });
  }

  choose(at) { this.chosen = at; redraw(); }

  // ---- where things are

  /** Sorts each lane's spans into levels that don't overlap, and adds up each operation's own time. */
  layOut() {
    if (this.laidOut === this.events.size) return;
    this.laidOut = this.events.size;
    const e = this.events;
    for (const sum of e.sums.values()) sum.self = 0;
    this.covered = 0;
    const order = e.lanes.map((lane, number) => number).sort((a, b) => {
      const [x, y] = [e.lanes[a], e.lanes[b]];
      return (x.device === 0) - (y.device === 0) || e.text(x.device).localeCompare(e.text(y.device)) || x.pid - y.pid || x.thread - y.thread;
    });
    let top = 6;
    let device = -1;
    this.rows = order.map((number) => {
      const lane = e.lanes[number];
      const row = { lane, number, first: lane.device !== device, levels: [], instants: [], marks: [] };
      device = lane.device;
      this.fillRow(row);
      if (row.first && top > 6) top += 8;
      row.top = top;
      row.height = Math.max(1, row.levels.length) * (BAR + 2) + 8;
      top += row.height;
      return row;
    });
    this.height = top + 24;
    this.pickColours();
  }

  fillRow(row) {
    const e = this.events;
    const spans = [];
    for (const at of row.lane.events) {
      if (e.kind[at] === KIND.fault || e.kind[at] === KIND.rung) row.marks.push(at);
      else if (e.hasSpan(at)) spans.push(at);
      else row.instants.push(at);
    }
    const start = new Float64Array(spans.length);
    spans.forEach((at, place) => { start[place] = e.start(at); });
    const order = Uint32Array.from(spans.keys()).sort((a, b) => start[a] - start[b] || e.ns[spans[b]] - e.ns[spans[a]]);
    const stack = [];
    for (const place of order) {
      const at = spans[place];
      while (stack.length && e.t[stack.at(-1)] <= start[place] + 1.5) stack.pop();
      const level = Math.min(stack.length, DEEPEST);
      const sum = e.sums.get(`${e.kind[at]}/${e.op[at]}`);
      const weight = e.isOrdinary(at) ? e.stride : 1;
      sum.self += e.ns[at] * weight;
      if (stack.length) {
        const outer = stack.at(-1);
        e.sums.get(`${e.kind[outer]}/${e.op[outer]}`).self -= Math.min(e.ns[at], Math.max(0, e.t[outer] - start[place]) * 1000) * weight;
      } else this.covered += e.ns[at] * weight;
      (row.levels[level] ||= []).push(at);
      stack.push(at);
    }
    for (let level = 0; level < row.levels.length; level += 1) row.levels[level] ||= [];
    for (const list of [row.instants, row.marks]) list.sort((a, b) => e.t[a] - e.t[b]);
  }

  pickColours() {
    const sums = [...this.events.sums.values()].filter((sum) => sum.self > 0).sort((a, b) => b.self - a.self);
    // A colour stays with its operation, so that a live page doesn't flicker.
    for (const sum of sums) if (!this.colourOf.has(sum.op)) this.colourOf.set(sum.op, this.colourOf.size < 7 ? seriesColour(this.colourOf.size) : "c7");
  }

  colour(op) { return this.colourOf.get(op) || "c7"; }

  // ---- drawing

  draw() {
    this.layOut();
    const [from, to] = this.range_();
    this.range.textContent = this.events.size ? (this.follow ? `all ${time((to - from) * 1000)}` : `${time((to - from) * 1000)} from +${time(Math.max(0, from - this.events.first) * 1000)}`) : "";
    paint(this.overview, 48, (c, w, h) => this.drawOverview(c, w, h, from, to));
    paint(this.canvas, Math.min(this.height, 12000), (c, w, h) => this.drawLanes(c, w, h, from, to));
    this.drawMemory(from, to);
    this.drawLegend();
  }

  drawOverview(c, w, h, from, to) {
    const e = this.events;
    c.fillStyle = colours.sunk;
    c.fillRect(0, 0, w, h);
    const [low, high] = this.whole();
    const x = (t) => GUTTER + ((t - low) / (high - low)) * (w - GUTTER - 12);
    const columns = Math.max(1, Math.floor((w - GUTTER - 12) / 2));
    if (this.binned?.size !== e.size || this.binned.columns !== columns) {
      const busy = new Float64Array(columns);
      for (let at = 0; at < e.size; at += 1) busy[Math.min(columns - 1, Math.floor(((e.t[at] - low) / (high - low)) * columns))] += 1;
      this.binned = { size: e.size, columns, busy, most: busy.reduce((a, b) => Math.max(a, b), 1) };
    }
    const { busy, most } = this.binned;
    c.fillStyle = colours["line-strong"];
    busy.forEach((value, at) => { if (value) { const tall = Math.max(2, Math.sqrt(value / most) * (h - 20)); c.fillRect(GUTTER + at * 2, h - 6 - tall, 1.6, tall); } });
    c.fillStyle = colours.bad;
    for (const story of e.stories.all) c.fillRect(x(e.t[story.at]) - 0.8, 5, 1.6, 6);
    c.fillStyle = colours["ink-3"];
    c.font = `11px ${fonts()}`;
    c.fillText("whole run", 16, h / 2 + 4);
    if (!this.follow) {
      c.fillStyle = colours.accent;
      c.globalAlpha = 0.14;
      c.fillRect(x(from), 0, Math.max(2, x(to) - x(from)), h);
      c.globalAlpha = 1;
      for (const edge of [from, to]) c.fillRect(x(edge) - 0.75, 0, 1.5, h);
    }
    c.fillStyle = colours.line;
    c.fillRect(0, h - 1, w, 1);
  }

  drawAxis(c, w, h, from, to, x) {
    c.font = `11px ${fonts()}`;
    c.textAlign = "center";
    for (const tick of ticks((from - this.events.first) * 1000, (to - this.events.first) * 1000, Math.max(2, (w - GUTTER) / 110))) {
      const at = x(tick / 1000 + this.events.first);
      if (at < GUTTER) continue;
      c.fillStyle = colours.line;
      c.fillRect(at, 0, 1, h - 18);
      c.fillStyle = colours["ink-3"];
      c.fillText(tick < 0 ? "" : axisTime(tick, (to - from) * 1000), at, h - 6);
    }
    c.textAlign = "left";
  }

  drawLanes(c, w, h, from, to) {
    const x = this.scale(w, from, to);
    this.drawAxis(c, w, h, from, to, x);
    this.drawStoryBands(c, h, x, from, to, w);
    for (const row of this.rows) {
      this.drawRowName(c, row, w);
      c.save();
      c.beginPath();
      c.rect(GUTTER, 0, w - GUTTER, h);
      c.clip();
      row.levels.forEach((list, level) => this.drawLevel(c, row, list, level, x, from, to, w));
      this.drawInstants(c, row, x, from, to);
      this.drawMarks(c, row, x, from, to);
      c.restore();
    }
    if (this.hoverX !== null) {
      c.fillStyle = colours["line-strong"];
      c.fillRect(this.hoverX, 0, 1, h - 18);
    }
  }

  scale(w, from, to) {
    const factor = (w - GUTTER - 12) / (to - from);
    return (t) => GUTTER + (t - from) * factor;
  }

  drawStoryBands(c, h, x, from, to, w) {
    const e = this.events;
    for (const story of e.stories.all) {
      const end = story.end === null ? e.t[story.parts.at(-1)] : e.t[story.end];
      if (end < from || e.t[story.at] > to) continue;
      const [a, b] = [Math.max(GUTTER, x(e.t[story.at])), Math.min(w, x(end))];
      c.fillStyle = story.outcome === "recovered" ? colours["warn-soft"] : colours["bad-soft"];
      c.fillRect(a - 1, 0, Math.max(3, b - a + 2), h - 18);
    }
  }

  drawRowName(c, row, w) {
    const { lane } = row;
    if (row.first && row.top > 10) { c.fillStyle = colours.line; c.fillRect(0, row.top - 6, w, 1); }
    const name = lane.device ? this.events.text(lane.device) : "host";
    c.font = `${row.first ? "600" : "400"} 12px ${fonts()}`;
    c.fillStyle = row.first ? colours.ink : colours["ink-3"];
    const thread = lane.thread < 0 ? "other threads" : `thread ${lane.thread}`;
    c.save();
    c.beginPath();
    c.rect(0, row.top, GUTTER - 8, row.height);
    c.clip();
    if (row.first) {
      c.fillText(name, 16, row.top + 18);
      const wide = c.measureText(name).width;
      c.font = `400 11px ${fonts()}`;
      c.fillStyle = colours["ink-3"];
      c.fillText(thread, 16 + wide + 8, row.top + 18);
    } else {
      c.font = `400 11px ${fonts()}`;
      c.fillText(thread, 28, row.top + 18);
    }
    c.restore();
  }

  drawLevel(c, row, list, level, x, from, to, w) {
    const e = this.events;
    const top = row.top + 3 + level * (BAR + 2);
    let run = null;
    const flush = () => {
      if (!run) return;
      c.fillStyle = colours[run.colour];
      c.globalAlpha = run.failed ? 1 : 0.9;
      c.fillRect(run.a, top, Math.max(1, run.b - run.a), BAR);
      c.globalAlpha = 1;
      if (run.many === 1 && run.b - run.a > 46) this.label(c, run, top);
      run = null;
    };
    for (let place = lowerBound(list, (at) => e.t[at], from); place < list.length; place += 1) {
      const at = list[place];
      const begin = e.start(at);
      if (begin > to) break;
      const [a, b] = [Math.max(x(begin), GUTTER - 2), Math.min(x(e.t[at]), w + 2)];
      const colour = e.fault[at] ? "bad" : this.colour(e.op[at]);
      if (run && run.colour === colour && a <= run.b + 0.6 && (b - a < 3 || run.b - run.a < 3)) { run.b = Math.max(run.b, b); run.many += 1; continue; }
      flush();
      // Neighbours stay apart where there is room.
      run = { a: a, b: Math.max(a + 1, b - (b - a > 3 ? 1 : 0)), colour, at, many: 1, failed: e.fault[at] };
    }
    flush();
    if (this.chosen >= 0 && e.lane[this.chosen] === row.number && list.includes(this.chosen)) {
      c.strokeStyle = colours.ink;
      c.lineWidth = 2;
      c.strokeRect(x(e.start(this.chosen)) - 1, top - 1, Math.max(3, x(e.t[this.chosen]) - x(e.start(this.chosen))) + 2, BAR + 2);
    }
  }

  label(c, run, top) {
    c.save();
    c.beginPath();
    c.rect(run.a, top, run.b - run.a - 4, BAR);
    c.clip();
    c.font = `500 11px ${fonts()}`;
    c.fillStyle = colours.card;
    c.fillText(this.events.text(this.events.op[run.at]), Math.max(run.a, GUTTER) + 5, top + 14);
    c.restore();
  }

  drawInstants(c, row, x, from, to) {
    const e = this.events;
    const top = row.top + 3;
    c.fillStyle = colours["ink-3"];
    let last = -9;
    for (let place = lowerBound(row.instants, (at) => e.t[at], from); place < row.instants.length; place += 1) {
      const at = row.instants[place];
      if (e.t[at] > to) break;
      const where = x(e.t[at]);
      if (where - last < 1) continue;
      last = where;
      c.fillRect(where - 0.5, top + BAR - 5, 1, 8);
    }
  }

  /** Rungs below, faults above, so that one never hides the other; many of them are drawn small. */
  drawMarks(c, row, x, from, to) {
    const e = this.events;
    const first = lowerBound(row.marks, (at) => e.t[at], from - (to - from) * 0.01);
    const last = lowerBound(row.marks, (at) => e.t[at], to);
    const size = last - first > 50 ? 3 : 6;
    const top = row.top + 3;
    for (const isFault of [false, true]) {
      let before = -99;
      for (let place = first; place < last; place += 1) {
        const at = row.marks[place];
        const where = x(e.t[at]);
        if ((e.kind[at] === KIND.fault) !== isFault || where - before < 2) continue;
        before = where;
        c.beginPath();
        if (isFault) for (const [dx, dy] of [[0, -size], [size, 0], [0, size], [-size, 0]]) c.lineTo(where + dx, top + 5 + dy);
        else for (const [dx, dy] of [[-size, size], [0, -size], [size, size]]) c.lineTo(where + dx * 0.9, top + BAR - 3 + dy * 0.8);
        c.closePath();
        c.strokeStyle = at === this.chosen ? colours.ink : colours.card;
        c.lineWidth = size > 3 ? 2.5 : 1.5;
        c.stroke();
        c.fillStyle = isFault ? colours.bad : colours.warn;
        c.fill();
      }
    }
  }

  drawLegend() {
    const e = this.events;
    const named = [...this.colourOf].filter(([, colour]) => colour !== "c7");
    const state = `${named.length}/${e.stories.all.length}/${e.budget}/${e.memory.size}`;
    if (this.legendState === state) return;
    this.legendState = state;
    const mark = (style, text, shape = "swatch") => el("span", null, el(`i.${shape}`, { style }), text);
    this.legend.replaceChildren(...named.map(([op, colour]) => mark(`background:var(--${colour})`, e.text(op))),
      ...(e.stories.all.length ? [mark("background:var(--bad)", "fault", "swatch.diamond"), mark("background:var(--warn);clip-path:polygon(50% 0,100% 100%,0 100%)", "rung")] : []),
      ...(e.memory.size > 1 ? [...e.memory.values()].map((line, at) => mark(`background:var(--${seriesColour(at)})`, `memory of ${e.text(line.device) || "host"}`)) : []));
  }

  // ---- pointer and keys

  timeAt(canvas, clientX) {
    const box = canvas.getBoundingClientRect();
    const [from, to] = canvas === this.overview ? this.whole() : this.range_();
    return from + ((clientX - box.left - GUTTER) / (box.width - GUTTER - 12)) * (to - from);
  }

  /** The event under the pointer: marks first, then the deepest span. */
  under(event) {
    const e = this.events;
    const box = this.canvas.getBoundingClientRect();
    const y = event.clientY - box.top;
    const row = this.rows.find((row) => y >= row.top && y < row.top + row.height);
    if (!row || event.clientX - box.left < GUTTER) return -1;
    const [from, to] = this.range_();
    const now = this.timeAt(this.canvas, event.clientX);
    const near = ((to - from) / box.width) * 6;
    const close = (list) => {
      let best = -1;
      for (let place = lowerBound(list, (at) => e.t[at], now - near); place < list.length && e.t[list[place]] <= now + near; place += 1) if (best < 0 || Math.abs(e.t[list[place]] - now) < Math.abs(e.t[best] - now)) best = list[place];
      return best;
    };
    const mark = close(row.marks);
    if (mark >= 0) return mark;
    const level = Math.floor((y - row.top - 3) / (BAR + 2));
    const list = row.levels[level];
    if (list) {
      const place = lowerBound(list, (at) => e.t[at], now - near / 4);
      if (place < list.length && e.start(list[place]) <= now + near / 4) return list[place];
    }
    return close(row.instants);
  }

  listen() {
    let drag = null;
    this.canvas.addEventListener("pointerdown", (event) => { drag = { x: event.clientX, view: this.range_(), moved: false }; this.canvas.setPointerCapture(event.pointerId); });
    this.canvas.addEventListener("pointermove", (event) => {
      const box = this.canvas.getBoundingClientRect();
      this.hoverX = event.clientX - box.left >= GUTTER ? event.clientX - box.left : null;
      if (drag) {
        const by = event.clientX - drag.x;
        if (Math.abs(by) > 3) drag.moved = true;
        if (drag.moved) { const span = drag.view[1] - drag.view[0]; const shift = -(by / (box.width - GUTTER - 12)) * span; if (!this.follow) this.set(drag.view[0] + shift, drag.view[1] + shift); tip.hide(); }
      } else {
        const at = this.under(event);
        if (at >= 0) tip.show(event, eventTip(this.events, at)); else tip.hide();
      }
      redraw();
    });
    this.canvas.addEventListener("pointerup", (event) => { if (drag && !drag.moved) { const at = this.under(event); if (at >= 0) this.select(at); } drag = null; });
    this.canvas.addEventListener("pointerleave", () => { this.hoverX = null; tip.hide(); redraw(); });
    for (const canvas of [this.canvas, this.memoryCanvas]) {
      canvas.addEventListener("wheel", (event) => {
        // Without a modifier the wheel scrolls the page, as everywhere.
        if (Math.abs(event.deltaX) > Math.abs(event.deltaY)) { event.preventDefault(); this.pan(event.deltaX / 800); } else if (event.ctrlKey || event.metaKey || event.shiftKey) { event.preventDefault(); this.zoom(Math.exp(event.deltaY / 300), this.timeAt(canvas, event.clientX)); }
      }, { passive: false });
    }
    this.canvas.addEventListener("dblclick", (event) => this.zoom(0.35, this.timeAt(this.canvas, event.clientX)));
    this.memoryCanvas.addEventListener("pointermove", (event) => {
      const box = this.memoryCanvas.getBoundingClientRect();
      this.hoverX = event.clientX - box.left >= GUTTER ? event.clientX - box.left : null;
      const now = this.timeAt(this.memoryCanvas, event.clientX);
      const told = [...this.events.memory.values()].map((line) => [line, line.points[Math.max(0, lowerBound(line.points, (point) => point[0], now) - 1)]]).filter(([, point]) => point);
      tip.show(event, el("b", null, `+${time(Math.max(0, now - this.events.first) * 1000)}`), told.map(([line, point]) => dim(`${this.events.text(line.device) || "host"}: ${bytes(point[1])}`)));
      redraw();
    });
    this.memoryCanvas.addEventListener("pointerleave", () => { this.hoverX = null; tip.hide(); redraw(); });
    let brush = null;
    this.overview.addEventListener("pointerdown", (event) => { brush = this.timeAt(this.overview, event.clientX); this.overview.setPointerCapture(event.pointerId); });
    this.overview.addEventListener("pointermove", (event) => { if (brush !== null) { const now = this.timeAt(this.overview, event.clientX); if (Math.abs(now - brush) > 0) this.set(Math.min(brush, now), Math.max(brush, now)); } });
    this.overview.addEventListener("pointerup", (event) => {
      const now = this.timeAt(this.overview, event.clientX);
      const [low, high] = this.whole();
      if (Math.abs(now - brush) < (high - low) * 0.004) { const span = this.follow ? (high - low) / 8 : this.view[1] - this.view[0]; this.set(now - span / 2, now + span / 2); }
      brush = null;
    });
    const move = (event) => {
      const step = { ArrowLeft: -0.15, ArrowRight: 0.15 }[event.key];
      if (!step) return;
      event.preventDefault();
      event.stopPropagation();
      if (this.follow) this.zoom(0.625);
      this.pan(step);
    };
    this.canvas.addEventListener("keydown", move);
    this.overview.addEventListener("keydown", move);
  }
}

function eventTip(e, at) {
  const parts = [el("b", null, e.text(e.op[at])), dim([KINDS[e.kind[at]], e.text(e.device[at]), e.text(e.dtype[at])].filter(Boolean).join(" · "))];
  if (e.ns[at] >= 0) parts.push(el("div", null, time(e.ns[at])));
  if (e.bytes[at] >= 0) parts.push(el("div", null, bytes(e.bytes[at])));
  if (e.rung[at]) parts.push(el("div", null, `rung: ${e.text(e.rung[at])}`));
  if (e.fault[at]) parts.push(el("div", { style: "color:var(--bad)" }, `${e.text(e.fault[at])}: ${clip(e.text(e.message[at]), 160)}`));
  parts.push(dim(`+${time((e.t[at] - e.first) * 1000)}`));
  return parts;
}

const clip = (text, most) => (text.length > most ? `${text.slice(0, most)}…` : text);
const fonts = () => colours.fonts;

/** An axis label as coarse as its span allows. */
function axisTime(ns, span) {
  if (ns === 0) return "0";
  const [factor, unit] = span > 120e9 ? [60e9, "min"] : span > 1.5e9 ? [1e9, "s"] : span > 1.5e6 ? [1e6, "ms"] : [1e3, "µs"];
  return `${Number((ns / factor).toPrecision(6))} ${unit}`;
}

/** The first place whose value is at least `value`. */
function lowerBound(list, of, value) {
  let [low, high] = [0, list.length];
  while (low < high) { const middle = (low + high) >> 1; if (of(list[middle]) < value) low = middle + 1; else high = middle; }
  return low;
}
