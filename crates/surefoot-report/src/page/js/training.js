// The page of a training run.

const data = readData();
startShell();
const last = data.epochs.at(-1);
const best = data.epochs.find((epoch) => epoch.step === data.best_step);
$("#main").append(
  el("h1", null, data.title),
  el("p.verdict", { id: "verdict" }, data.summary),
  el("dl.tiles", null,
    last ? tile("test accuracy", Number.isFinite(last.test_accuracy) ? percent(last.test_accuracy, 2) : "–", `epoch ${count(last.epoch)}`) : null,
    best ? tile("best", percent(best.test_accuracy, 2), `epoch ${count(best.epoch)}`) : null,
    last ? tile("steps", count(last.step), last.device) : null,
    data.facts.slice(0, 3).map(([name, value]) => tile(name, value))),
  section("Curves", "", el("div.charts", null, curveCharts(data.points, data.epochs))),
  ...(data.epochs.length ? [section("Epochs", "", epochTable(data.epochs))] : []),
  ...(data.confusion ? [section("Classes", "test samples of each class, and what they were predicted as", confusionTable(data.confusion))] : []),
  ...(data.facts.length > 3 ? [section("More", "", factTable(data.facts.slice(3)))] : []),
);
