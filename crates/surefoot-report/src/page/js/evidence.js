// The page of a comparison of two models.

const data = readData();
startShell();
const TONES = { SAME: "good", DIFFERENT: "bad", UNDECIDED: "warn" };
const first = data.sites.find((site) => site.first_to_diverge);
const over = data.sites.filter((site) => site.distance > site.tolerance);
const evidence = (field) => [[0, 0], ...data.challenges.map((challenge, at) => [at + 1, challenge[field]])];
const needs = { same: Math.log10(1 / data.beta), different: Math.log10(1 / data.alpha) };
const power = (value) => `10^${trim(value)}`;
const small = (value) => (value === 0 ? "0" : value.toExponential(1));

function siteTable() {
  return el("div.card.wide", { style: "margin-top:16px" }, el("table", null,
    el("thead", null, el("tr", null, el("th", null, "site"), ...["distance", "noise explains", "times as much", "bits that differ"].map((name) => el("th.num", null, name)), el("th"))),
    el("tbody", null, data.sites.map((site) => el("tr", null, el("td", null, site.name), el("td.num", null, small(site.distance)), el("td.num", null, small(site.tolerance)), el("td.num", null, trim(site.distance / site.tolerance)), el("td.num", null, percent(site.bits, 2)),
      el("td", null, site.first_to_diverge ? el("span.pill.bad", null, "first to diverge") : site.distance > site.tolerance ? el("span.pill.warn", null, "beyond noise") : el("span.pill.good", null, "within noise")))))));
}

/** How many times what noise explains, so that all sites share one scale. */
function siteChart() {
  const columns = data.sites.map((site) => ({ label: site.name, name: site.name, value: site.distance / site.tolerance || 0, colour: site.first_to_diverge ? "bad" : site.distance > site.tolerance ? "warn" : "c0", tip: `${small(site.distance)} apart, noise explains ${small(site.tolerance)}` }));
  return columnChart("Distance, in multiples of what noise explains", columns, { format: (value) => `${short(value)}×`, marks: [{ value: 1, label: "noise alone", colour: "ink-2" }] });
}

$("#main").append(
  el(`span.stamp.${TONES[data.verdict]}`, { id: "stamp" }, data.verdict),
  el("h1", null, data.title),
  el("p.verdict", { id: "verdict" }, data.summary),
  el("dl.tiles", null,
    tile("challenges needed", count(data.challenges_used), `of ${count(data.challenges.length)}`),
    tile("sites", count(data.sites.length), over.length ? `${count(over.length)} beyond what noise explains` : "all within what noise explains"),
    tile("first to diverge", first ? first.name : "none", first ? `${small(first.distance)} apart, noise explains ${small(first.tolerance)}` : ""),
    tile("may be wrong", `${short(data.alpha)}, ${short(data.beta)}`, "how often DIFFERENT (α) and SAME (β) may be")),
  section("Evidence", "e-values as challenges come in; they hold wherever one stops", el("div.charts", null,
    lineChart("Against “same”", [{ name: "e-value", colour: "bad", points: evidence("against_same") }], { x: "challenge", aside: "past the line: DIFFERENT", zero: true, format: power, marks: [{ value: needs.different, label: `1/α = ${short(1 / data.alpha)}`, colour: "bad" }] }),
    lineChart("Against “different”", [{ name: "e-value", colour: "good", points: evidence("against_different") }], { x: "challenge", aside: "past the line: SAME", zero: true, format: power, marks: [{ value: needs.same, label: `1/β = ${short(1 / data.beta)}`, colour: "good" }] }))),
  ...(data.sites.length ? [section("Sites", "from the first layer to the last", siteChart(), siteTable())] : []),
  ...(data.facts.length ? [section("Transcript", "", factTable(data.facts))] : []),
);
