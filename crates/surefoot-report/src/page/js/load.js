// The page of a load test.

const data = readData();
startShell();
const best = data.phases.reduce((top, phase) => (phase.requests_per_second > (top?.requests_per_second ?? -1) ? phase : top), null);
const refused = data.phases.reduce((sum, phase) => sum + phase.refused, 0);
const failed = data.phases.reduce((sum, phase) => sum + phase.failed, 0);
const line = (name, colour, field) => ({ name, colour, points: data.phases.filter((phase) => phase[field] != null).map((phase) => [phase.clients, phase[field]]) });
const hasTokens = data.phases.some((phase) => phase.tokens_per_second != null);
const ms = (value) => time(value * 1e6);
$("#main").append(
  el("h1", null, data.title),
  el("p.verdict", { id: "verdict" }, data.summary),
  el("dl.tiles", null,
    best ? tile("best rate", `${short(best.requests_per_second)} /s`, `with ${plural(best.clients, "client")}`) : null,
    best ? tile("p95 there", ms(best.p95_ms), `median ${ms(best.median_ms)}`) : null,
    tile("turned away", count(refused), "the queue was full"),
    tile("failed", count(failed), "", failed ? "bad" : "good")),
  section("Rates and latencies", "as clients are added", el("div.charts", null,
    lineChart("Requests a second", [line("requests/s", "c0", "requests_per_second")], { x: "clients", zero: true }),
    ...(hasTokens ? [lineChart("Tokens a second", [line("tokens/s", "c1", "tokens_per_second")], { x: "clients", zero: true })] : []),
    lineChart("Latency", [line("median", "c0", "median_ms"), line("p95", "c3", "p95_ms"), line("p99", "bad", "p99_ms")], { x: "clients", log: true, format: ms }))),
  section("How it is spread", "", el("div.charts", null,
    columnChart("Latencies", data.latencies.map((bucket) => ({ label: ms(bucket.up_to_ms), name: `up to ${ms(bucket.up_to_ms)}`, value: bucket.count, tip: plural(bucket.count, "request") }))),
    columnChart("Batch sizes", data.batches.map(([size, many]) => ({ label: count(size), name: `batches of ${count(size)}`, value: many, colour: "c1", tip: plural(many, "batch", "batches") })), { x: "requests in a batch" }))),
  section("Phases", "", el("div.card.wide", null, el("table", null,
    el("thead", null, el("tr", null, ["clients", "requests/s", "tokens/s", "median", "p95", "p99", "answered", "turned away", "failed"].map((name) => el("th.num", null, name)))),
    el("tbody", null, data.phases.map((phase) => el("tr", null, [count(phase.clients), short(phase.requests_per_second), phase.tokens_per_second == null ? "–" : short(phase.tokens_per_second), ms(phase.median_ms), ms(phase.p95_ms), ms(phase.p99_ms), count(phase.answered), count(phase.refused), count(phase.failed)].map((text) => el("td.num", null, text)))))))),
  ...(data.facts.length ? [section("More", "", factTable(data.facts))] : []),
);
