// The page of a benchmark.

const data = readData();
const report = data.report;
startShell();

const PRECISION_COLOURS = { fp32: "c0", fp16: "c2", bf16: "c1" };
const rate = ({ value, unit }) => (unit === "FLOP/s" || unit === "B/s" ? `${short(value).replace(/([TGMk])$/, " $1")}${unit}` : `${short(value)} ${unit}`);
const ratioText = (ratio) => `${trim(ratio.value)}× (${trim(ratio.low)} to ${trim(ratio.high)})`;
const measured = report.results.filter((result) => result.status === "measured");
const workloads = report.verdicts.map((verdict) => ({ ...verdict, results: report.results.filter((result) => result.workload === verdict.workload) }));

function deviceTable() {
  const rows = report.machine.devices.map((device) => {
    const peaks = report.peaks.filter((peak) => peak.device === device.name);
    const products = peaks.filter((peak) => peak.flops).map((peak) => `${peak.precision} ${rate({ value: peak.flops, unit: "FLOP/s" })}`).join(", ");
    const memory = Math.max(0, ...peaks.map((peak) => peak.bandwidth || 0));
    return el("tr", null, el("td", null, el("b", null, device.name)), el("td", null, device.label), el("td", null, device.driver), el("td", null, products || "–"), el("td.num", null, memory ? rate({ value: memory, unit: "B/s" }) : "–"));
  });
  return el("div.card.wide", null, el("table", null, el("thead", null, el("tr", null, ["device", "hardware", "reached through", "best products", "best memory"].map((name, at) => el(at === 4 ? "th.num" : "th", null, name)))), el("tbody", null, rows)));
}

/** Each variant's median as a bar with its interval and samples, the shorter the better. */
function workloadCard(workload) {
  const shown = workload.results.filter((result) => result.status === "measured");
  const most = Math.max(...shown.map((result) => Math.max(result.p95_ns, result.interval.high)), 1);
  const what = workload.results.find((result) => result.what)?.what;
  const left = workload.results.filter((result) => result.status !== "measured" && (shown.length || result.status === "failed"));
  return el("div.card", { "data-workload": workload.workload, style: "margin-bottom:16px;overflow:hidden" },
    el("div.pad", { style: "padding-bottom:6px" }, el("div.head", { style: "margin:0" }, el("h3", null, workload.workload), el("span.aside", null, what || "")), el("p", { style: "margin:6px 0 0;max-width:72em" }, workload.text)),
    shown.length ? el("div.wide", null, el("table", null,
      el("thead", null, el("tr", null, el("th", null, "variant"), el("th", { style: "min-width:190px" }, "median, interval and samples"), ...["median", "p95", "rate", "of peak", "memory", "× cpu", "first run"].map((name) => el("th.num", null, name)))),
      el("tbody", null, shown.map((result) => row(result, most, workload.best))))) : null,
    left.length ? el("div.foot", null, left.map((result) => el("span", null, `${result.device} ${result.precision}: ${result.status === "failed" ? "failed, " : ""}${result.why || ""}`))) : null);
}

function row(result, most, best) {
  const isBest = best && best[0] === result.device && best[1] === result.precision;
  return el("tr", null,
    el("td", { style: "white-space:nowrap" }, el("div.name", null, el("i.swatch", { style: `background:var(--${PRECISION_COLOURS[result.precision] || "c7"})` }), el("span", null, `${result.device} ${result.precision}`), isBest ? el("span.pill.good", null, "fastest") : null)),
    el("td.barcell", null, strip(result, most)),
    ...[time(result.median_ns), time(result.p95_ns), rate(result.throughput), result.share_of_peak == null ? "–" : percent(result.share_of_peak, result.share_of_peak < 0.1 ? 1 : 0), bytes(result.memory), result.speed_to_cpu ? trim(result.speed_to_cpu.value) : "–", time(result.warm_up.first_ns)].map((text) => el("td.num", null, text)));
}

function strip(result, most) {
  const [width, height] = [300, 22];
  const x = (ns) => (ns / most) * (width - 6) + 2;
  const colour = `var(--${PRECISION_COLOURS[result.precision] || "c7"})`;
  const picture = svg("svg", { viewBox: `0 0 ${width} ${height}`, preserveAspectRatio: "none", style: "width:100%;height:22px;display:block", role: "img", "aria-label": `median ${time(result.median_ns)}, from ${time(result.interval.low)} to ${time(result.interval.high)}` });
  picture.append(svg("rect", { x: 2, y: 8, width: Math.max(1, x(result.median_ns) - 2), height: 6, rx: 2, fill: colour, opacity: 0.85 }));
  for (const ns of result.times_ns) if (ns <= most) picture.append(svg("rect", { x: x(ns) - 0.5, y: 4, width: 1, height: 14, fill: colour, opacity: 0.35 }));
  picture.append(svg("rect", { x: x(result.interval.low), y: 10, width: Math.max(1.5, x(result.interval.high) - x(result.interval.low)), height: 2, fill: "var(--ink)" }));
  picture.addEventListener("pointermove", (event) => tip.show(event, el("b", null, `${result.device} ${result.precision}`), el("div", null, `median ${time(result.median_ns)}`), dim(`${percent(report.confidence, 0)} sure: ${time(result.interval.low)} to ${time(result.interval.high)}`), dim(`${plural(result.times_ns.length, "sample")} of ${plural(result.repeats, "run")} each`), dim(`warm-up ${time(result.warm_up.total_ns)} in ${plural(result.warm_up.runs, "run")}, the first ${time(result.warm_up.first_ns)}`)));
  picture.addEventListener("pointerleave", tip.hide);
  return picture;
}

function speedChart() {
  const variants = [...new Set(measured.map((result) => `${result.device} ${result.precision}`))].filter((name) => name !== "cpu fp32");
  const compared = workloads.filter((workload) => workload.results.some((result) => result.speed_to_cpu && `${result.device} ${result.precision}` !== "cpu fp32"));
  if (!variants.length || !compared.length) return null;
  const columns = compared.flatMap((workload) => variants.map((name, at) => [workload, name, at]))
    .map(([workload, name, at]) => ({ result: workload.results.find((one) => `${one.device} ${one.precision}` === name && one.speed_to_cpu), name, at, workload }))
    .filter(({ result }) => result)
    .map(({ result, name, at, workload }) => ({ label: at === 0 ? workload.workload : "", name: `${workload.workload}, ${name}`, value: result.speed_to_cpu.value, low: result.speed_to_cpu.low, high: result.speed_to_cpu.high, colour: seriesColour(at), tip: `${ratioText(result.speed_to_cpu)} cpu fp32` }));
  return section("Speed against the CPU in fp32", "above the line is faster; whiskers are what the noise allows", columnChart("Times as fast", columns, { every: 1, format: (value) => `${trim(value)}×`, keys: variants.map((name, at) => ({ name, colour: seriesColour(at) })), marks: [{ value: 1, label: "cpu fp32", colour: "ink-3" }] }));
}

const TONES = { slower: "bad", broken: "bad", faster: "good", same: "", too_noisy: "warn" };
function comparisonSection({ lines, other_machine: other, note }) {
  const changed = lines.filter((line) => line.change !== "same");
  return section("Since the older run", `${plural(lines.length - changed.length, "variant")} as fast as before`,
    other.length ? el("p.notice", null, `The older run is from another machine, so nothing is judged. ${other.join("; ")}.`) : null,
    note ? el("p.notice", null, note) : null,
    el("div.card.wide", null, el("table", null, el("thead", null, el("tr", null, ["workload", "variant", "then", "now", "times as long", ""].map((name, at) => el(at > 1 && at < 5 ? "th.num" : "th", null, name)))),
      el("tbody", null, lines.map((line) => el("tr", null, el("td", null, line.workload), el("td", null, `${line.device} ${line.precision}`), el("td.num", null, time(line.old_ns)), el("td.num", null, line.slowdown ? time(line.new_ns) : "–"), el("td.num", null, line.slowdown ? ratioText(line.slowdown) : "–"), el("td", null, el(`span.pill${TONES[line.change] ? `.${TONES[line.change]}` : ""}`, null, line.change.replace("_", " ")))))))));
}

$("#main").append(...[
  el("h1", null, data.title),
  el("p.sub", null, [clock(report.time * 1e6), `${report.machine.devices.map((device) => device.label).join(", ")}`, `${plural(report.machine.cores, "core")}, ${bytes(report.machine.memory)}`, report.program].join(" · ")),
  el("p.verdict", { id: "verdict" }, report.summary),
  report.quick ? el("p.notice", null, "A short look: few rounds, so intervals are wide. Leave out --quick for more.") : null,
  section("Devices", "the best rates of this run", deviceTable()),
  report.comparison ? comparisonSection(report.comparison) : null,
  speedChart(),
  section("Workloads", `bars are medians, the dark line where the true median is with ${percent(report.confidence, 0)} confidence, ticks are samples; shorter is better`, ...workloads.map(workloadCard)),
  el("p.sub", { style: "margin-top:30px" }, "Variants took turns in rounds, so that a busy machine slows all alike. A sample ends when a value that depends on the work was read, on every device. “Of peak” is the share of the best rate that the device showed in this run."),
].filter(Boolean));
