// Curves: the loss and accuracy over steps and epochs, and what a server did over time.

/** points: { step, loss, accuracy, samples_per_second }; epochs: { step, train_loss, test_loss, … }. */
function curveCharts(points, epochs) {
  const line = (name, colour, list, field) => ({ name, colour, points: list.filter((point) => Number.isFinite(point[field])).map((point) => [point.step, point[field]]) });
  const keep = (lines) => lines.filter((one) => one.points.length);
  const loss = keep([line("train", "c7", points.length ? points : epochs, points.length ? "loss" : "train_loss"), line("test", "accent", epochs, "test_loss")]);
  const accuracy = keep([line("train", "c7", points.length ? points : epochs, points.length ? "accuracy" : "train_accuracy"), line("test", "accent", epochs, "test_accuracy")]);
  const speed = keep([line("samples/s", "c0", points.length ? points : epochs, "samples_per_second")]);
  const charts = [];
  if (loss.length) charts.push(lineChart("Loss", loss, { x: "step", formatX: (value) => count(value), formatTip: (value) => value.toFixed(4) }));
  if (accuracy.length) charts.push(lineChart("Accuracy", accuracy, { x: "step", format: (value) => percent(value, 0), formatX: (value) => count(value), formatTip: (value) => percent(value, 2) }));
  if (speed.length) charts.push(lineChart("Speed", speed, { x: "step", zero: true, aside: "samples a second", formatX: (value) => count(value) }));
  return charts;
}

function epochTable(epochs) {
  const number = (value, places) => (Number.isFinite(value) ? value.toFixed(places) : "–");
  const share = (value) => (Number.isFinite(value) ? percent(value, 2) : "–");
  return el("div.card.wide", null, el("table", null,
    el("thead", null, el("tr", null, ["epoch", "steps", "train loss", "train accuracy", "test loss", "test accuracy", "samples/s", "memory", "device"].map((name, at) => el(at < 8 ? "th.num" : "th", null, name)))),
    el("tbody", null, epochs.map((epoch) => el("tr", null, [count(epoch.epoch), count(epoch.step), number(epoch.train_loss, 4), share(epoch.train_accuracy), number(epoch.test_loss, 4), share(epoch.test_accuracy), count(epoch.samples_per_second || 0), bytes(epoch.memory ?? epoch.in_use)].map((text) => el("td.num", null, text)), el("td", null, epoch.device || ""))))));
}

/** Each class of the last test: its figures, and how its samples were predicted. */
function confusionTable(classes) {
  const share = (value) => (Number.isFinite(value) ? percent(value, 1) : "–");
  const names = classes.map((row) => row.name);
  return el("div.card.wide", null, el("table", null,
    el("thead", null, el("tr", null, el("th", null, "class"), ["samples", "precision", "recall", ...names.map((name) => `as ${name}`)].map((name) => el("th.num", null, name)))),
    el("tbody", null, classes.map((row) => el("tr", null, el("td", null, row.name), [count(row.samples), share(row.precision), share(row.recall), ...row.predicted.map((number) => (number ? count(number) : "·"))].map((text) => el("td.num", null, text)))))));
}

/** The models of a server of several, as each was last told. */
function modelTable(models) {
  const columns = ["working on", "waiting", "memory, at most", "loaded", "made room"];
  const cells = (model) => [count(model.requests), count(model.waiting), bytes(model.memory_bytes), count(model.loads), count(model.evictions)];
  return el("div.card.wide", null, el("table", null,
    el("thead", null, el("tr", null, el("th", null, "model"), el("th", null, "state"), columns.map((name) => el("th.num", null, name)))),
    el("tbody", null, [...models.values()].map((model) => el("tr", null, el("td", null, model.name), el("td", null, model.state), cells(model).map((text) => el("td.num", null, text)))))));
}

/** What a server did, from its notes: each tells the counts since the last one. */
function servingCharts(served, first) {
  const line = (name, colour, of) => ({ name, colour, points: served.map((done) => [(done.t - first) / 1e6, of(done)]).filter((point) => Number.isFinite(point[1])) });
  const options = { x: "seconds", zero: true };
  const failed = served.some((done) => done.failed || done.refused);
  const paged = served.some((done) => Number.isFinite(done.pages) && done.pages + done.idle_pages > 0);
  const proposed = (done) => (done.accepted_proposals || 0) + (done.rejected_proposals || 0);
  const speculated = served.some((done) => proposed(done) > 0);
  const pages = () => [
    lineChart("Pages of the cache", [line("of sequences that run", "c0", (done) => done.pages), line("kept for prompts that begin alike", "c1", (done) => done.idle_pages)], options),
    lineChart("Waiting and preempted", [line("waiting", "c0", (done) => done.waiting), line("preempted", "warn", (done) => done.preemptions)], options),
    lineChart("Prompts whose beginning was known", [line("%", "c1", (done) => (done.started ? (100 * done.prefix_hits) / done.started : NaN))], options),
  ];
  return [
    lineChart("Requests a second", [line("answered", "c0", (done) => done.finished / done.seconds), ...(failed ? [line("refused", "warn", (done) => done.refused / done.seconds), line("failed", "bad", (done) => done.failed / done.seconds)] : [])], options),
    lineChart("Tokens a second", [line("tokens", "c1", (done) => done.tokens / done.seconds)], options),
    lineChart("Rows in a batch", [line("mean", "c2", (done) => (done.batches ? done.rows / done.batches : NaN))], options),
    ...(paged ? pages() : []),
    ...(speculated ? [lineChart("Proposed tokens that were accepted", [line("%", "c2", (done) => (proposed(done) ? (100 * done.accepted_proposals) / proposed(done) : NaN))], options)] : []),
  ];
}
