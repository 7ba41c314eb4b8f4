// Line and column charts as inline SVG, as wide as their place, with values under the pointer.

const CHART = { height: 230, left: 52, right: 12, top: 14, bottom: 34 };

function frame(title, aside, series) {
  const keysOf = series.length > 1 || series[0]?.name
    ? el("div.keys", null, series.map((line) => el("span", null, el("i.swatch", { style: `background:var(--${line.colour})` }), line.name)))
    : null;
  return el("div.card.chart", null,
    el("div.head", null, el("h3", null, title), aside ? el("span.aside", null, aside) : null, el("span.right", null, keysOf)));
}

/** Draws a picture into its box, again whenever the box gets another width. */
function fitted(box, draw) {
  let [drawn, picture] = [0, null];
  new ResizeObserver(() => {
    const width = Math.max(220, box.clientWidth - 36);
    if (width === drawn) return;
    drawn = width;
    const next = draw(width);
    if (picture) picture.replaceWith(next); else box.append(next);
    picture = next;
  }).observe(box);
  return box;
}

function bounds(values, zero) {
  let low = Infinity, high = -Infinity;
  for (const value of values) if (Number.isFinite(value)) { low = Math.min(low, value); high = Math.max(high, value); }
  if (!(low <= high)) return [0, 1];
  if (zero) low = Math.min(0, low);
  if (high === low) { const pad = Math.abs(high) * 0.1 || 1; return [zero && low === 0 ? 0 : low - pad, high + pad]; }
  return [low, high + (high - low) * 0.06];
}

/** Ticks of a logarithmic axis, given in powers of ten. */
function logTicks(low, high) {
  const found = [];
  for (let power = Math.floor(low); power <= Math.ceil(high); power += 1) for (const digit of high - low > 3 ? [1] : [1, 2, 5]) { const at = power + Math.log10(digit); if (at >= low && at <= high) found.push(at); }
  return found;
}

function canvasOf(title, width) {
  return svg("svg", { viewBox: `0 0 ${width} ${CHART.height}`, role: "img", "aria-label": title, style: `height:${CHART.height}px` });
}

function grid(picture, width, ticksOf, y, format) {
  for (const tick of ticksOf) picture.append(svg("line", { x1: CHART.left, x2: width - CHART.right, y1: y(tick), y2: y(tick), stroke: "var(--line)" }), svg("text", { x: CHART.left - 8, y: y(tick) + 4, "text-anchor": "end" }, format(tick)));
}

function levels(picture, width, marks, y) {
  for (const mark of marks) {
    const at = y(mark.value);
    picture.append(svg("line", { x1: CHART.left, x2: width - CHART.right, y1: at, y2: at, stroke: `var(--${mark.colour || "bad"})`, "stroke-dasharray": "5 4", "stroke-width": 1.3 }),
      svg("text", { x: CHART.left + 4, y: at - 5, style: `fill:var(--${mark.colour || "bad"})` }, mark.label));
  }
}

/**
 * series: [{ name, colour, points: [[x, y], …] }]; options: { x, aside, format, formatX,
 * formatTip, zero, log, marks: [{ value, label, colour }] }.
 */
function lineChart(title, series, options = {}) {
  const box = frame(title, options.aside, series);
  const xs = series.flatMap((line) => line.points.map((point) => point[0]));
  if (xs.length === 0) { box.append(el("div.empty", null, "nothing yet")); return box; }
  return fitted(box, (width) => drawLines(title, series, options, xs, width));
}

function drawLines(title, series, options, xs, width) {
  const format = options.format || short;
  const formatX = options.formatX || short;
  const { height, left, right, top, bottom } = CHART;
  const up = options.log ? (value) => Math.log10(Math.max(value, 1e-300)) : (value) => value;
  const down = options.log ? (value) => 10 ** value : (value) => value;
  const marks = (options.marks || []).filter((mark) => Number.isFinite(up(mark.value)));
  const ys = [...series.flatMap((line) => line.points.map((point) => up(point[1]))), ...marks.map((mark) => up(mark.value))];
  const [lowX, highX] = [bounds(xs)[0], xs.reduce((a, b) => Math.max(a, b), -Infinity)];
  const [low, high] = bounds(ys, options.zero);
  const x = (value) => left + ((value - lowX) / (highX - lowX || 1)) * (width - left - right);
  const yOf = (value) => height - bottom - ((value - low) / (high - low || 1)) * (height - top - bottom);
  const y = (value) => yOf(up(value));
  const picture = canvasOf(`${title}: ${series.map((line) => line.name).join(", ")}`, width);
  grid(picture, width, options.log ? logTicks(low, high) : ticks(low, high, 5), yOf, (tick) => format(down(tick)));
  for (const tick of ticks(lowX, highX, Math.max(2, width / 80))) picture.append(svg("text", { x: x(tick), y: height - bottom + 17, "text-anchor": "middle" }, formatX(tick)));
  if (options.x) picture.append(svg("text", { x: width - right, y: height - 2, "text-anchor": "end" }, options.x));
  levels(picture, width, marks, y);
  for (const line of series) {
    const points = line.points.filter((point) => Number.isFinite(up(point[1])));
    const place = thin(points, 2 * width).map((point) => `${x(point[0]).toFixed(1)},${y(point[1]).toFixed(1)}`);
    picture.append(svg("polyline", { points: place.join(" "), fill: "none", stroke: `var(--${line.colour})`, "stroke-width": 1.9, "stroke-linejoin": "round", "stroke-linecap": "round" }));
    if (points.length <= 40) for (const point of points) picture.append(svg("circle", { cx: x(point[0]), cy: y(point[1]), r: points.length === 1 ? 3.5 : 2.4, fill: `var(--${line.colour})` }));
  }
  const rule = svg("line", { y1: top, y2: height - bottom, stroke: "var(--line-strong)", visibility: "hidden" });
  picture.append(rule);
  picture.addEventListener("pointermove", (event) => {
    const area = picture.getBoundingClientRect();
    const at = lowX + (((event.clientX - area.left) / area.width) * width - left) / (width - left - right) * (highX - lowX);
    const shown = series.map((line) => [line, nearest(line.points, at)]).filter(([, point]) => point);
    if (!shown.length) return;
    const where = shown[0][1][0];
    rule.setAttribute("x1", x(where));
    rule.setAttribute("x2", x(where));
    rule.setAttribute("visibility", "visible");
    tip.show(event, el("b", null, `${options.x || ""} ${formatX(where)}`.trim()),
      shown.map(([line, point]) => el("div.name", null, el("i.swatch", { style: `background:var(--${line.colour})` }), `${line.name} ${(options.formatTip || format)(point[1])}`)));
  });
  picture.addEventListener("pointerleave", () => { tip.hide(); rule.setAttribute("visibility", "hidden"); });
  return picture;
}

/** Few enough points for the eye: the least and the most of each stretch. */
function thin(points, most) {
  if (points.length <= most) return points;
  const each = Math.ceil((2 * points.length) / most);
  const kept = [];
  for (let from = 0; from < points.length; from += each) {
    let [low, high] = [from, from];
    for (let at = from; at < Math.min(points.length, from + each); at += 1) {
      if (points[at][1] < points[low][1]) low = at;
      if (points[at][1] > points[high][1]) high = at;
    }
    kept.push(points[Math.min(low, high)]);
    if (low !== high) kept.push(points[Math.max(low, high)]);
  }
  return kept;
}

function nearest(points, at) {
  let best = null;
  for (const point of points) if (!best || Math.abs(point[0] - at) < Math.abs(best[0] - at)) best = point;
  return best;
}

/** columns: [{ label, name, value, colour, tip, low, high, level }]: whiskers, and a level across. */
function columnChart(title, columns, options = {}) {
  const box = frame(title, options.aside, options.keys || []);
  if (!columns.length) { box.append(el("div.empty", null, "nothing yet")); return box; }
  return fitted(box, (width) => drawColumns(title, columns, options, width));
}

function drawColumns(title, columns, options, width) {
  const format = options.format || short;
  const { height, left, right, top, bottom } = CHART;
  const marks = options.marks || [];
  const [low, high] = bounds([...columns.flatMap((c) => [c.value, c.high ?? c.value, c.level ?? c.value]), ...marks.map((mark) => mark.value)], true);
  const each = (width - left - right) / columns.length;
  const y = (value) => height - bottom - ((value - low) / (high - low || 1)) * (height - top - bottom);
  const picture = canvasOf(title, width);
  grid(picture, width, ticks(low, high, 5), y, format);
  const longest = columns.reduce((most, column) => Math.max(most, column.label.length), 1) * 6.3 + 10;
  const every = options.every || Math.ceil(longest / each);
  columns.forEach((column, at) => {
    const [x, w] = [left + at * each + Math.min(each * 0.14, 8), Math.max(1, each - Math.min(each * 0.28, 16))];
    picture.append(svg("rect", { x, y: Math.min(y(column.value), y(0)), width: w, height: Math.max(0.5, Math.abs(y(0) - y(column.value))), rx: Math.min(3, w / 3), fill: `var(--${column.colour || "c0"})` }));
    if (column.low != null) picture.append(svg("line", { x1: x + w / 2, x2: x + w / 2, y1: y(column.low), y2: y(column.high), stroke: "var(--ink)", "stroke-width": 1.2 }));
    if (column.level != null) picture.append(svg("line", { x1: x - 2, x2: x + w + 2, y1: y(column.level), y2: y(column.level), stroke: "var(--ink)", "stroke-width": 1.6 }));
    if (at % every === 0 && column.label) picture.append(svg("text", { x: x + w / 2, y: height - bottom + 17, "text-anchor": "middle" }, column.label));
    const over = svg("rect", { x: left + at * each, y: top, width: each, height: height - top - bottom, fill: "transparent" });
    over.addEventListener("pointermove", (event) => tip.show(event, el("b", null, column.name || column.label), dim(column.tip || format(column.value))));
    over.addEventListener("pointerleave", tip.hide);
    picture.append(over);
  });
  levels(picture, width, marks, y);
  if (options.x) picture.append(svg("text", { x: width - right, y: height - 2, "text-anchor": "end" }, options.x));
  return picture;
}
