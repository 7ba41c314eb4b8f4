// The page of a journal, written or live.

const data = readData();
const events = new Events();
startShell();

const main = $("#main");
const title = el("h1");
const sub = el("p.sub");
const verdict = el("p.verdict", { id: "verdict" });
const tiles = el("dl.tiles");
const notices = el("div");
const curves = el("div.charts");
const curveSection = section("Training", "", curves);
const serving = el("div.charts");
const servingSection = section("Serving", "", serving);
const models = el("div");
const modelSection = section("Models", "", models);
const timeline = new Timeline(events, (at) => select(at));
const stories = new StoryList(events, (story, where) => {
  const end = story.end === null ? story.parts.at(-1) : story.end;
  if (where === "timeline") { timeline.show(events.t[story.at], events.t[end]); timeline.choose(story.at); } else { list.choose(story.at); timeline.choose(story.at); list.node.scrollIntoView({ block: "start" }); list.rows.focus({ preventScroll: true }); }
});
const spent = new Spent(events, timeline, (sum) => {
  list.clear();
  list.search.value = list.query = `op:${events.text(sum.op).split(/\s+/)[0]} kind:${KINDS[sum.kind]}`;
  list.filter();
  list.node.scrollIntoView({ block: "start" });
});
const list = new EventList(events, timeline, (at) => select(at));
let viewTimer = 0;
timeline.onview = () => { if (list.inView) { clearTimeout(viewTimer); viewTimer = setTimeout(() => list.filter(), 80); } };
main.append(title, sub, verdict, tiles, notices, modelSection, timeline.node, servingSection, curveSection, stories.node, spent.node, list.node);

function select(at) {
  list.choose(at);
  timeline.choose(at);
}

let story = -1;
function stepStory(by) {
  const { all } = events.stories;
  if (!all.length) return;
  story = (story + by + all.length) % all.length;
  stories.show(story);
  timeline.choose(all[story].at);
}
key("/", "search the events", () => list.search.focus());
key("j k", "next or previous event", (event) => list.move(event.key === "j" ? 1 : -1));
key("n p", "next or previous fault, with its story", (event) => stepStory(event.key === "n" ? 1 : -1));
key("+ - =", "zoom the timeline", (event) => timeline.zoom(event.key === "-" ? 1.6 : 0.625));
key("← →", "move along the timeline, when it has the focus", () => {});
key("0", "the whole run", () => timeline.all());
key("Escape", "clear search and filters", () => list.clear());

/** What the run came to, in a sentence or two. */
function sayVerdict() {
  const e = events;
  const found = e.stories.outcomes();
  const faults = e.stories.all.length;
  const devices = [...e.devices].sort((a, b) => b[1] - a[1]).map(([device]) => e.text(device));
  const parts = [];
  const steps = [...e.sums.values()].filter((sum) => sum.kind === KIND.step && sum.timed).sort((a, b) => b.total - a.total)[0];
  const on = devices.length ? ` on ${devices.slice(0, 3).join(", ")}` : "";
  parts.push(`${plural(e.size, "event")} over ${time((e.last - e.first) * 1000)}${on}.`);
  if (steps) parts.push(` ${e.stride > 1 ? "About " : ""}${count(steps.count)} × “${e.text(steps.op)}”, half of them within ${time(quantile(steps.kept, 0.5))}.`);
  if (!faults) parts.push(" Nothing failed.");
  else if (found.recovered === faults) parts.push(` ${plural(e.stories.faults, "fault")} in ${plural(faults, "piece")} of work, ${faults === 1 ? "which was" : "all of them"} recovered${helpers()}.`);
  else parts.push(` ${plural(e.stories.faults, "fault")} in ${plural(faults, "piece")} of work: ${found.recovered} recovered${helpers()}, ${found["given up"]} given up, ${found.open} without an end.`);
  verdict.replaceChildren(...parts);
}

function helpers() {
  const by = new Map();
  for (const one of events.stories.all) if (one.by) by.set(one.by, (by.get(one.by) || 0) + 1);
  const named = [...by].sort((a, b) => b[1] - a[1]).map(([rung, times]) => `${events.text(rung)}${times > 1 ? ` ${times} times` : ""}`);
  return named.length ? ` by ${named.slice(0, 3).join(", ")}` : "";
}

function drawTiles() {
  const e = events;
  const found = e.stories.outcomes();
  const faults = e.stories.all.length;
  const most = Math.max(0, ...[...e.memory.values()].filter((line) => line.points.length >= LEAST_POINTS).map((line) => line.most));
  const last = e.epochs.at(-1);
  tiles.replaceChildren(
    tile("duration", time((e.last - e.first) * 1000), e.runs > 1 ? `${e.runs} runs in one file` : clock(e.origin + e.first)),
    tile("faults", count(e.stories.faults), faults ? `${found.recovered} of ${plural(faults, "piece")} of work recovered` : "every try succeeded", found["given up"] ? "bad" : faults ? "good" : ""),
    tile("memory, at most", most ? bytes(most) : "not told", e.budget ? `${most ? `${percent(most / e.budget, 0)} of ` : ""}the budget of ${bytes(e.budget)}` : "no budget was set", e.budget && most > e.budget ? "bad" : ""),
    tile("devices", [...e.devices.keys()].map((device) => e.text(device)).join(", ") || "none named", `${plural(e.lanes.length, "lane")}`),
    last && Number.isFinite(last.test_accuracy) ? tile("test accuracy", percent(last.test_accuracy, 2), `after ${plural(last.step, "step")}`) : tile("events", count(e.size), e.stride > 1 ? `1 of ${e.stride} ordinary ones kept` : "all of them are here"),
  );
}

function drawNotices() {
  const notes = [...(data.notes || [])];
  if (events.stride > 1) notes.push(`The journal is long: of its ordinary steps, moves and allocations 1 in ${events.stride} is kept here. Faults, rungs and notes are all here.`);
  if (events.lost) notes.push(`${plural(events.lost, "event")} went by before this page could take them: it was slow, or opened late.`);
  notices.replaceChildren(...notes.map((text) => el("p.notice", null, text)));
}

function update() {
  const hardware = events.size ? [...new Set(Array.from({ length: Math.min(events.size, 64) }, (_, at) => events.value(at, "hardware")).filter(Boolean))] : [];
  sub.textContent = [events.size ? clock(events.origin + events.first) : "", hardware.join(", "), data.source].filter(Boolean).join(" · ");
  if (events.size) { sayVerdict(); drawTiles(); } else verdict.textContent = "Waiting for the first event.";
  drawNotices();
  curveSection.hidden = !events.points.length && !events.epochs.length;
  if (!curveSection.hidden) curves.replaceChildren(...curveCharts(events.points, events.epochs));
  servingSection.hidden = !events.served.length;
  if (!servingSection.hidden) serving.replaceChildren(...servingCharts(events.served, events.first));
  modelSection.hidden = !events.models.size;
  if (!modelSection.hidden) models.replaceChildren(modelTable(events.models));
  stories.update();
  spent.update();
  list.update();
  redraw();
}

title.textContent = data.title;
if (data.chunk) events.append(data.chunk);
update();
if (data.live) startLive(events, update);
