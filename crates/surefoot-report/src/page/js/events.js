// The events of a journal in columns, appended chunk by chunk: one chunk in a page that was
// written, many in one that is live. Times are µs since the first chunk's origin.

const KINDS = ["selection", "move", "allocation", "compile", "step", "fault", "rung", "cleanup", "note", "unknown"];
const LEVELS = ["trace", "debug", "info", "warn", "error"];
const KIND = Object.fromEntries(KINDS.map((name, at) => [name, at]));

class Events {
  constructor() {
    this.size = 0;
    this.capacity = 0;
    this.origin = null;
    this.first = Infinity;
    this.last = -Infinity;
    this.strings = [""];
    this.numbers = new Map([["", 0]]);
    this.context = [];
    this.lanes = [];
    this.laneNumbers = new Map();
    this.kinds = new Uint32Array(KINDS.length);
    this.devices = new Map();
    this.sums = new Map();
    this.memory = new Map();
    this.budget = null;
    this.points = [];
    this.epochs = [];
    this.served = [];
    this.models = new Map();
    this.stories = new Stories(this);
    this.stride = 1;
    this.lost = 0;
    this.runs = 0;
    this.grow(1024);
  }

  grow(capacity) {
    const columns = { t: Float64Array, ns: Float64Array, bytes: Float64Array, kind: Uint8Array, level: Uint8Array, op: Uint32Array, device: Uint32Array, dtype: Uint32Array, pid: Uint32Array, thread: Uint32Array, fault: Uint32Array, message: Uint32Array, rung: Uint32Array, lane: Uint32Array };
    for (const [name, Type] of Object.entries(columns)) {
      const grown = new Type(capacity);
      if (this[name]) grown.set(this[name]);
      this[name] = grown;
    }
    this.capacity = capacity;
  }

  intern(text) {
    let number = this.numbers.get(text);
    if (number === undefined) {
      number = this.strings.push(text) - 1;
      this.numbers.set(text, number);
    }
    return number;
  }

  text(number) { return this.strings[number]; }

  /** Appends a chunk; a column is a list, or one value for all. */
  append(chunk) {
    const many = chunk.count;
    if (this.origin === null) this.origin = chunk.origin;
    if (chunk.stride) this.stride = chunk.stride;
    this.lost += chunk.lost || 0;
    this.runs += chunk.runs || 0;
    if (this.size + many > this.capacity) this.grow(Math.max(this.size + many, this.capacity * 2));
    const names = chunk.strings.map((text) => this.intern(text));
    const column = (name, absent) => {
      const values = chunk[name];
      return Array.isArray(values) ? (at) => values[at] : () => values ?? absent;
    };
    const [dt, kind, level, op, device, dtype, pid, thread, size, ns, fault, message, rung] =
      ["dt", "kind", "level", "op", "device", "dtype", "pid", "thread", "bytes", "ns", "fault", "message", "rung"].map((name) => column(name, name === "bytes" || name === "ns" ? -1 : 0));
    const context = chunk.context || {};
    let now = chunk.origin - this.origin;
    for (let from = 0; from < many; from += 1) {
      const at = this.size;
      now += dt(from);
      this.t[at] = now;
      this.kind[at] = kind(from);
      this.level[at] = level(from);
      this.op[at] = names[op(from)];
      this.device[at] = names[device(from)];
      this.dtype[at] = names[dtype(from)];
      this.pid[at] = pid(from);
      this.thread[at] = thread(from);
      this.bytes[at] = size(from);
      this.ns[at] = ns(from);
      this.fault[at] = names[fault(from)];
      this.message[at] = names[message(from)];
      this.rung[at] = names[rung(from)];
      const pairs = context[from];
      if (pairs) {
        const found = [];
        for (let pair = 0; pair < pairs.length; pair += 2) found.push([chunk.strings[pairs[pair]], pairs[pair + 1]]);
        this.context[at] = found;
      }
      this.size += 1;
      this.file(at);
    }
  }

  value(at, name) {
    const pair = this.context[at]?.find(([found]) => found === name);
    return pair && pair[1];
  }

  number(at, name) {
    const value = this.value(at, name);
    return typeof value === "number" ? value : null;
  }

  start(at) { return this.hasSpan(at) ? this.t[at] - this.ns[at] / 1000 : this.t[at]; }

  /** A fault's duration is how long the attempt took, told by its step. */
  hasSpan(at) { return this.ns[at] >= 0 && this.kind[at] !== KIND.fault && this.kind[at] !== KIND.rung; }

  isOrdinary(at) { return this.fault[at] === 0 && this.rung[at] === 0 && [KIND.move, KIND.allocation, KIND.step, KIND.cleanup].includes(this.kind[at]); }

  /** Puts an event where it will be looked for. */
  file(at) {
    const kind = this.kind[at];
    this.kinds[kind] += 1;
    this.first = Math.min(this.first, this.start(at));
    this.last = Math.max(this.last, this.t[at]);
    if (this.device[at]) this.devices.set(this.device[at], (this.devices.get(this.device[at]) || 0) + 1);
    this.lane[at] = this.laneOf(at);
    this.count(at, kind);
    this.measure(at, kind);
    this.learn(at);
    this.stories.add(at);
  }

  laneOf(at) {
    const key = `${this.device[at]}/${this.pid[at]}/${this.thread[at]}`;
    let number = this.laneNumbers.get(key);
    if (number === undefined) {
      // Past so many lanes nobody can tell them apart: the rest of a device shares one.
      const rest = `${this.device[at]}/rest`;
      if (this.lanes.length >= 48) {
        number = this.laneNumbers.get(rest);
        if (number !== undefined) { this.laneNumbers.set(key, number); return number; }
      }
      const isRest = this.lanes.length >= 48;
      number = this.lanes.push({ device: this.device[at], pid: this.pid[at], thread: isRest ? -1 : this.thread[at], events: [] }) - 1;
      this.laneNumbers.set(key, number);
      if (isRest) this.laneNumbers.set(rest, number);
    }
    this.lanes[number].events.push(at);
    return number;
  }

  count(at, kind) {
    const key = `${kind}/${this.op[at]}`;
    let sum = this.sums.get(key);
    if (!sum) {
      sum = { op: this.op[at], kind, count: 0, total: 0, most: 0, timed: 0, kept: [], self: 0 };
      this.sums.set(key, sum);
    }
    const weight = this.isOrdinary(at) ? this.stride : 1;
    sum.count += weight;
    if (this.ns[at] < 0) return;
    sum.total += this.ns[at] * weight;
    sum.most = Math.max(sum.most, this.ns[at]);
    sum.timed += 1;
    // Enough for a median and a p95; of more, an even share.
    if (sum.kept.length < 20000) sum.kept.push(this.ns[at]);
    else sum.kept[sum.timed % 20000] = this.ns[at];
  }

  /** What a device says it holds, or the sum of what was noted as taken and given back. */
  measure(at, kind) {
    const budget = this.number(at, "budget");
    if (budget) this.budget = budget;
    let inUse = this.number(at, "in_use");
    let noted = false;
    if (inUse === null) {
      if (this.bytes[at] < 0 || (kind !== KIND.allocation && kind !== KIND.cleanup)) return;
      noted = true;
    }
    let line = this.memory.get(this.device[at]);
    if (!line) { line = { device: this.device[at], points: [], most: 0, told: false, noted: 0 }; this.memory.set(this.device[at], line); }
    if (noted) {
      if (line.told) return;
      line.noted = Math.max(0, line.noted + (kind === KIND.cleanup ? -1 : 1) * this.bytes[at]);
      inUse = line.noted;
    } else if (!line.told) {
      line.told = true;
      line.points = [];
      line.most = 0;
    }
    line.points.push([this.t[at], inUse]);
    line.most = Math.max(line.most, inUse);
  }

  /** Points of training curves, what a server did in a stretch of time, and what the models of a server are doing. */
  learn(at) {
    const op = this.text(this.op[at]);
    if (op === "serve" && this.ns[at] > 0) {
      const done = Object.fromEntries(this.context[at] || []);
      if (typeof done.finished === "number") this.served.push({ ...done, t: this.t[at], seconds: this.ns[at] / 1e9 });
      return;
    }
    if (op === "model") {
      const model = Object.fromEntries(this.context[at] || []);
      if (typeof model.name === "string") this.models.set(model.name, model);
      return;
    }
    if (op !== "progress" && op !== "epoch") return;
    const point = Object.fromEntries(this.context[at] || []);
    if (typeof point.step === "number") (op === "epoch" ? this.epochs : this.points).push(point);
  }
}

function quantile(values, share) {
  if (!values.length) return NaN;
  const sorted = Float64Array.from(values).sort();
  return sorted[Math.min(sorted.length - 1, Math.max(0, Math.ceil(share * sorted.length) - 1))];
}
