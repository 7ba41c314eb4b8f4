// The page of a comparison of two models.

const data = readData();
startShell();
const TONES = { SAME: "good", DIFFERENT: "bad", UNDECIDED: "warn" };
const first = data.sites.find((site) => site.first_to_diverge);
const over = data.sites.filter((site) => site.distance > site.tolerance);
const evidence = (field) => data.challenges.map((challenge, at) => [at + 1, challenge[field]]);
const needs = { same: Math.log10(1 / data.alpha), different: Math.log10(1 / data.beta) };
$("#main").append(
  el(`span.stamp.${TONES[data.verdict]}`, { id: "stamp" }, data.verdict),
  el("h1", null, data.title),
  el("p.verdict", { id: "verdict" }, data.summary),
  el("dl.tiles", null,
    tile("challenges used", count(data.challenges.length)),
    tile("sites", count(data.sites.length), over.length ? `${count(over.length)} beyond what noise explains` : "all within tolerance"),
    tile("first to diverge", first ? first.name : "none", first ? `${percent(first.distance, 2)} of its bits, noise explains ${percent(first.tolerance, 2)}` : ""),
    tile("error rates", `α ${short(data.alpha)}, β ${short(data.beta)}`, "how often SAME and DIFFERENT may be wrong")),
  section("Evidence", "e-values as challenges come in; valid wherever one stops", el("div.charts", null,
    lineChart("Against “different”", [{ name: "log₁₀ e", colour: "good", points: evidence("against_different") }], { x: "challenge", aside: "past the line: SAME", zero: true, marks: [{ value: needs.same, label: `1/α = ${short(1 / data.alpha)}`, colour: "good" }] }),
    lineChart("Against “same”", [{ name: "log₁₀ e", colour: "bad", points: evidence("against_same") }], { x: "challenge", aside: "past the line: DIFFERENT", zero: true, marks: [{ value: needs.different, label: `1/β = ${short(1 / data.beta)}`, colour: "bad" }] }))),
  section("Distance per site", "share of bits that differ; the line across is what noise alone explains",
    columnChart("From the first layer to the last", data.sites.map((site) => ({ label: site.name, name: site.name, value: site.distance, level: site.tolerance, colour: site.first_to_diverge ? "bad" : site.distance > site.tolerance ? "warn" : "c0", tip: `${percent(site.distance, 3)} differ, noise explains ${percent(site.tolerance, 3)}` })), { format: (value) => percent(value, 1) })),
  section("Distance per challenge", "", lineChart("All sites together", [{ name: "distance", colour: "c0", points: evidence("distance") }], { x: "challenge", zero: true, format: (value) => percent(value, 1) })),
  ...(data.facts.length ? [section("Transcript", "", factTable(data.facts))] : []),
);
