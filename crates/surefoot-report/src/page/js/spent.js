// Where the time went: each operation's own time, without what ran inside it.

class Spent {
  constructor(events, timeline, look) {
    this.events = events;
    this.timeline = timeline;
    this.look = look;
    this.box = el("div.card", { id: "spent" });
    this.node = section("Where the time went", "own time of each operation, without what ran inside it", this.box);
  }

  update() {
    const e = this.events;
    this.timeline.layOut();
    const all = [...e.sums.values()].filter((sum) => sum.kind !== KIND.fault && sum.kind !== KIND.rung);
    const timed = all.filter((sum) => sum.timed).sort((a, b) => b.self - a.self);
    if (!timed.length) { this.box.replaceChildren(el("div.empty", null, "No event says how long it took.")); return; }
    const wall = (e.last - e.first) * 1000;
    const own = timed.reduce((sum, one) => sum + Math.max(0, one.self), 0);
    // Lanes run side by side, so the whole is the wall clock or all that was timed, whichever is more.
    const rest = Math.max(0, wall - own);
    const whole = own + rest;
    const part = (share, colour, name) => el(colour ? "div" : "div.rest", { style: `flex:${share};${colour ? `background:var(--${colour})` : ""}`, onpointermove: (event) => tip.show(event, el("b", null, name), dim(percent(share))), onpointerleave: tip.hide });
    const shown = timed.slice(0, 14);
    const most = shown[0].self || 1;
    this.box.replaceChildren(...[
      el("div.pad", null, el("div.stack", null, shown.filter((sum) => sum.self / whole > 0.001).map((sum) => part(sum.self / whole, this.timeline.colour(sum.op), e.text(sum.op))), rest / whole > 0.001 ? part(rest / whole, "", "between events: loading, start, what is not recorded") : null)),
      el("div.wide", null, el("table", null,
        el("thead", null, el("tr", null, el("th", null, "operation"), el("th", null, "kind"), el("th", null, ""), ...["own time", "share", "count", "median", "p95", "longest"].map((name) => el("th.num", null, name)))),
        el("tbody", null, shown.map((sum) => this.row(sum, whole, most)), rest / whole > 0.001 ? this.restRow(rest, whole, most) : null))),
      timed.length > shown.length ? el("div.foot", null, `${timed.length - shown.length} more operations, ${time(timed.slice(14).reduce((total, sum) => total + sum.self, 0))} together`) : null,
    ].filter(Boolean));
  }

  row(sum, whole, most) {
    const e = this.events;
    const colour = this.timeline.colour(sum.op);
    const about = e.stride > 1 ? "≈ " : "";
    return el("tr", null,
      el("td", null, el("div.name", null, el("i.swatch", { style: `background:var(--${colour})` }), el("button.plain", { type: "button", style: "padding:0;border:0", title: "Show these events", onclick: () => this.look(sum) }, e.text(sum.op)))),
      el("td", null, KINDS[sum.kind]), el("td.barcell", null, el("div.bar", { style: `width:${Math.max(0.5, (100 * sum.self) / most)}%;background:var(--${colour})` })),
      ...[about + time(Math.max(0, sum.self)), percent(sum.self / whole), about + count(sum.count), time(quantile(sum.kept, 0.5)), time(quantile(sum.kept, 0.95)), time(sum.most)].map((text) => el("td.num", null, text)));
  }

  restRow(rest, whole, most) {
    return el("tr", null, el("td", null, el("div.name", null, el("i.swatch", { style: "background:var(--line-strong)" }), "between events")), el("td", null, ""),
      el("td.barcell", null, el("div.bar", { style: `width:${Math.min(100, Math.max(0.5, (100 * rest) / most))}%;background:var(--line-strong)` })),
      el("td.num", null, time(rest)), el("td.num", null, percent(rest / whole)), el("td"), el("td"), el("td"), el("td"));
  }
}
