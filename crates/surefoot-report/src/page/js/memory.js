// Memory in use over time against the budget, on the timeline's axis.

/** Fewer measurements than this are no course of things. */
const LEAST_POINTS = 3;

Object.assign(Timeline.prototype, {
  drawMemory(from, to) {
    const e = this.events;
    const lines = [...e.memory.values()].filter((line) => line.points.length >= LEAST_POINTS);
    const is = lines.length > 0;
    this.memoryHead.hidden = this.memoryCanvas.hidden = !is;
    this.memoryHead.style.display = is ? "" : "none";
    if (!is) return;
    const most = lines.reduce((high, line) => Math.max(high, line.most), 0);
    this.memoryHead.querySelector(".aside").textContent = `at most ${bytes(most)}${e.budget ? ` of a budget of ${bytes(e.budget)}` : ", no budget was set"}${lines.some((line) => !line.told) ? "; sums of noted allocations" : ""}`;
    paint(this.memoryCanvas, 128, (c, w, h) => {
      const x = this.scale(w, from, to);
      // A budget far above what is used would flatten the curve: it is told in words then.
      const near = e.budget && e.budget < most * 6;
      const high = Math.max(most, near ? e.budget : 0) * 1.12 || 1;
      const y = (value) => h - 10 - (value / high) * (h - 22);
      c.font = `11px ${fonts()}`;
      for (const tick of [0, 0.5, 1].map((share) => share * niceBytes(high))) {
        if (tick > high) continue;
        c.fillStyle = colours.line;
        c.fillRect(GUTTER, y(tick), w - GUTTER, 1);
        c.fillStyle = colours["ink-3"];
        c.textAlign = "right";
        c.fillText(bytes(tick), GUTTER - 10, y(tick) + 4);
        c.textAlign = "left";
      }
      c.save();
      c.beginPath();
      c.rect(GUTTER, 0, w - GUTTER, h);
      c.clip();
      lines.forEach((line, number) => this.drawMemoryLine(c, line, seriesColour(number), x, y, h, from, to));
      if (near) {
        c.strokeStyle = colours.bad;
        c.setLineDash([5, 4]);
        c.lineWidth = 1.4;
        c.beginPath();
        c.moveTo(GUTTER, y(e.budget));
        c.lineTo(w, y(e.budget));
        c.stroke();
        c.setLineDash([]);
        c.fillStyle = colours.bad;
        c.textAlign = "right";
        c.fillText(`budget ${bytes(e.budget)}`, w - 14, y(e.budget) - 5);
        c.textAlign = "left";
      }
      if (this.hoverX !== null) { c.fillStyle = colours["line-strong"]; c.fillRect(this.hoverX, 0, 1, h); }
      c.restore();
    });
  },

  drawMemoryLine(c, line, colour, x, y, h, from, to) {
    const { points } = line;
    let place = Math.max(0, lowerBound(points, (point) => point[0], from) - 1);
    c.beginPath();
    let [lastX, lastY] = [Math.max(x(points[place][0]), GUTTER), y(points[place][1])];
    const firstX = lastX;
    c.moveTo(lastX, lastY);
    for (place += 1; place < points.length; place += 1) {
      const px = x(points[place][0]);
      const py = y(points[place][1]);
      if (px - lastX < 0.5 && Math.abs(py - lastY) < 1) continue;
      c.lineTo(px, lastY);
      c.lineTo(px, py);
      [lastX, lastY] = [px, py];
      if (points[place][0] > to) break;
    }
    const end = Math.max(lastX, x(Math.min(to, this.events.last)));
    c.lineTo(end, lastY);
    c.strokeStyle = colours[colour];
    c.lineWidth = 1.8;
    c.stroke();
    c.lineTo(end, h - 10);
    c.lineTo(firstX, h - 10);
    c.closePath();
    c.globalAlpha = 0.12;
    c.fillStyle = colours[colour];
    c.fill();
    c.globalAlpha = 1;
  },
});

function niceBytes(value) {
  const unit = 1024 ** Math.floor(Math.log(value) / Math.log(1024));
  const whole = value / unit;
  return ([512, 256, 128, 64, 32, 16, 8, 4, 2, 1].find((n) => n <= whole) || 1) * unit;
}
