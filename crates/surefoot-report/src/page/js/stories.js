// The history of each fault, by the journal's protocol: it belongs to one operation of a process and
// thread, and ends with the step event of that operation. The operation recovered if that event has no
// fault and a recovery step was tried; else it was given up; without a step event the end is unknown.

const MEANINGS = {
  out_of_memory: "Device or host memory ran out, or one buffer is over the device's limit.",
  device_mismatch: "Operands are on different devices.",
  dtype_mismatch: "Operands have different element types.",
  unsupported_dtype: "The device can't compute in this element type.",
  unsupported_op: "The device has no kernel for this operation.",
  placeholder_storage: "Storage was read that was never written or allocated.",
  device_lost: "The device, its context or its driver connection is gone.",
  driver_or_init: "The device could not be found or initialised.",
  kernel_compile: "A kernel or shader did not compile, or the device can't run it.",
  command_buffer: "A submitted command buffer failed; the device may still work.",
  shape_mismatch: "Shapes don't match: a mistake of the caller.",
  numeric: "Inf or NaN where a finite number is needed.",
  data_loading: "A loader, its workers or its shared memory failed.",
  model_loading: "A model file is missing, damaged or of another shape.",
  state_lost: "The only copy of the run's state was on a device that is lost.",
  not_device_related: "An ordinary error that has nothing to do with a device.",
};
const RUNGS = {
  reclaim: "freed unused memory and tried again",
  split: "split the batch; the effective batch is unchanged",
  checkpoint: "recomputed activations instead of keeping them",
  precision: "changed the precision",
  stream: "streamed weights instead of keeping them",
  cpu_segment: "ran this part on the CPU",
  next_device: "moved to the next device",
};

class Stories {
  constructor(events) {
    this.events = events;
    this.all = [];
    this.open = new Map();
    this.latest = new Map();
    this.faults = 0;
  }

  add(at) {
    const e = this.events;
    const work = `${e.pid[at]}/${e.thread[at]}/${e.op[at]}`;
    const kind = e.kind[at];
    const open = this.open.get(work);
    if (e.fault[at] && kind !== KIND.rung && !(kind === KIND.step && open)) this.fail(work, at, open);
    const story = this.open.get(work);
    if (story && kind === KIND.rung) { story.parts.push(at); story.rungs += 1; }
    if (story && kind === KIND.step) this.end(work, story, at);
    for (const device of e.device[at] ? [0, e.device[at]] : [0]) {
      const latest = this.latest.get(device) || [];
      latest.push(at);
      if (latest.length > 5) latest.shift();
      this.latest.set(device, latest);
    }
  }

  fail(work, at, open) {
    this.faults += 1;
    if (open) { open.parts.push(at); return; }
    const before = [...(this.latest.get(this.events.device[at]) || [])];
    const story = { number: this.all.length, at, before, parts: [at], rungs: 0, end: null, outcome: "open", by: 0 };
    this.all.push(story);
    this.open.set(work, story);
  }

  end(work, story, at) {
    const e = this.events;
    const last = story.parts.findLast((part) => e.kind[part] === KIND.rung);
    const rung = e.rung[at] || (last === undefined ? 0 : e.rung[last]);
    story.outcome = !e.fault[at] && (e.rung[at] || last !== undefined) ? "recovered" : "given up";
    story.by = story.outcome === "recovered" ? rung : 0;
    story.end = at;
    this.open.delete(work);
  }

  outcomes() {
    const found = { recovered: 0, "given up": 0, open: 0 };
    for (const story of this.all) found[story.outcome] += 1;
    return found;
  }
}

const TONE = { recovered: "good", "given up": "bad", open: "warn" };

/** The cards. `go(at)` shows an event elsewhere on the page. */
class StoryList {
  constructor(events, go) {
    this.events = events;
    this.go = go;
    this.cards = [];
    this.box = el("div.card", { id: "stories" });
    this.more = el("button.btn", { type: "button", onclick: () => { this.shown += 200; this.update(); } }, "Show more");
    this.shown = 200;
    this.node = section("Faults", "", this.box);
    this.aside = el("span.aside");
    this.node.querySelector(".head").append(this.aside);
  }

  update() {
    const { all } = this.events.stories;
    const { recovered, "given up": given, open } = this.events.stories.outcomes();
    this.aside.textContent = all.length ? `${recovered} recovered, ${given} given up, ${open} without an end` : "";
    if (!all.length) {
      this.box.replaceChildren(el("div.empty", null, "No faults: every operation succeeded at its first try."));
      return;
    }
    if (!this.cards.length) this.box.replaceChildren();
    for (let at = 0; at < Math.min(all.length, this.shown); at += 1) {
      const old = this.cards[at];
      if (old && old.state === `${all[at].outcome}/${all[at].parts.length}`) continue;
      const card = this.card(all[at]);
      if (old) { card.node.open = old.node.open; old.node.replaceWith(card.node); } else this.box.append(card.node);
      this.cards[at] = card;
      // The first one is open, so that everyone sees what a story is.
      if (!old && at === 0) card.node.open = true;
      if (card.node.open) this.fill(card);
    }
    if (all.length > this.shown) this.box.append(el("div.empty", null, this.more)); else this.more.parentNode?.remove();
  }

  card(story) {
    const e = this.events;
    const at = story.at;
    const took = story.end === null ? "" : ` after ${time((e.t[story.end] - e.t[at]) * 1000)}`;
    const by = story.by ? ` by ${e.text(story.by)}` : "";
    const where = e.device[at] ? ` on ${e.text(e.device[at])}` : "";
    const node = el("details.story", { "data-story": story.number },
      el("summary", null, el("span.dot"),
        el("span.what", null, el("b", null, e.text(e.fault[at]).replaceAll("_", " ")), el("em", null, ` in ${e.text(e.op[at])}${where}`)),
        el(`span.pill.${TONE[story.outcome]}`, null, story.outcome === "open" ? "no end in the journal" : `${story.outcome}${by}${took}`),
        el("span.when", null, `+${time((e.t[at] - e.first) * 1000)}`)));
    const card = { node, story, state: `${story.outcome}/${story.parts.length}`, filled: false };
    node.addEventListener("toggle", () => { if (node.open) this.fill(card); });
    return card;
  }

  fill(card) {
    if (card.filled) return;
    card.filled = true;
    const e = this.events;
    const { story } = card;
    const since = (at) => el("span.at", null, `+${time(Math.max(0, e.t[at] - e.t[story.at]) * 1000)}`);
    const items = [];
    if (story.before.length) {
      items.push(el("li", null, "What came before", el("table", null, story.before.map((at) => el("tr", null,
        el("td.num", null, `${time((e.t[story.at] - e.t[at]) * 1000)} earlier`), el("td", null, `${KINDS[e.kind[at]]} ${e.text(e.op[at])}`),
        el("td.num", null, e.ns[at] >= 0 ? time(e.ns[at]) : ""), el("td", null, e.bytes[at] >= 0 ? bytes(e.bytes[at]) : ""))))));
    }
    for (const at of story.parts) {
      if (e.kind[at] === KIND.rung) {
        const name = e.text(e.rung[at]) || "unnamed";
        const parts = e.number(at, "parts");
        const how = [e.device[at] ? `on ${e.text(e.device[at])}` : "", e.dtype[at] ? `in ${e.text(e.dtype[at])}` : "", parts > 1 ? `in ${parts} parts` : ""].filter(Boolean).join(" ");
        items.push(el("li.rung", null, el("b", null, `Rung: ${name}`), how ? ` ${how}` : "", since(at), RUNGS[name] ? el("div.means", null, RUNGS[name]) : null));
      } else {
        const kind = e.text(e.fault[at]);
        items.push(el("li.fault", null, el("b", null, at === story.at ? `Cause: ${kind}` : `Then: ${kind}`), since(at),
          at === story.at && MEANINGS[kind] ? el("div.means", null, MEANINGS[kind]) : null, e.message[at] ? el("blockquote", null, e.text(e.message[at])) : null));
      }
    }
    items.push(this.ending(story));
    const buttons = el("div.actions", null,
      el("button.btn", { type: "button", onclick: () => this.go(story, "timeline") }, "Show in the timeline"),
      el("button.btn", { type: "button", onclick: () => this.go(story, "events") }, "Show its events"));
    card.node.append(el("div.tale", null, el("ol", null, items), buttons));
  }

  ending(story) {
    const e = this.events;
    if (story.outcome === "open") return el("li", null, el("b", null, "Outcome: not known"), el("div.means", null, "The journal ends before this work does."));
    const after = el("span.at", null, `+${time((e.t[story.end] - e.t[story.at]) * 1000)}`);
    if (story.outcome === "recovered") return el("li.good", null, el("b", null, `Outcome: recovered by ${e.text(story.by) || "trying again"}`), after, el("div.means", null, "The work succeeded; its result was confirmed."));
    return el("li.bad", null, el("b", null, "Outcome: given up"), after, el("div.means", null, story.rungs ? "No recovery step that was left or allowed helped." : "No recovery step was tried: none was allowed, or none helps against this kind of fault."));
  }

  /** Opens a story and brings it into view. */
  show(number) {
    if (number >= this.shown) { this.shown = number + 1; this.update(); }
    const card = this.cards[number];
    if (!card) return;
    card.node.open = true;
    this.fill(card);
    card.node.scrollIntoView({ block: "nearest" });
    card.node.querySelector("summary").focus({ preventScroll: true });
  }
}
