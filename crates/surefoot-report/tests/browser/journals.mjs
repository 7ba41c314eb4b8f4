// Journals that no short run would write: a long one, and one whose every text is an attack.

import { writeFileSync } from "node:fs";

const START = 1_763_182_295_123_456;

/** Steps on three lanes and two devices; some meet faults and recover, some don't. */
export function longJournal(path, events) {
  let seed = 7;
  const chance = () => { seed = (seed * 1103515245 + 12345) % 2147483648; return seed / 2147483648; };
  const lines = [JSON.stringify({ surefoot_journal: 1, time_us: START, pid: 77 })];
  const clocks = { 1: START, 2: START, 3: START };
  let memory = 300 << 20;
  while (lines.length <= events) {
    const thread = 1 + Math.floor(chance() * 3);
    const device = thread === 3 ? "cpu" : "gpu";
    const took = Math.floor(200 + chance() * chance() * 4000);
    clocks[thread] += took + Math.floor(chance() * 60);
    const event = { time_us: clocks[thread], pid: 77, thread, kind: "step", op: ["forward", "backward", "update"][Math.floor(chance() * 3)], device, dtype: "fp16", duration_ns: took * 1000 };
    const fate = chance();
    if (fate < 0.0008) {
      const op = "forward";
      const fault = { kind: fate < 0.0002 ? "device_lost" : "out_of_memory", message: "can't allocate 512 MiB: 7.9 GiB of 8 GiB are in use" };
      const common = { pid: 77, thread, op, device };
      lines.push(JSON.stringify({ time_us: clocks[thread], kind: "fault", ...common, fault }));
      lines.push(JSON.stringify({ time_us: clocks[thread] + 40, kind: "rung", ...common, recovery: "reclaim" }));
      clocks[thread] += 900;
      lines.push(JSON.stringify({ time_us: clocks[thread], kind: "step", ...common, duration_ns: 850_000, ...(fate < 0.0001 ? { fault } : { recovery: "reclaim" }) }));
      continue;
    }
    if (fate < 0.04) {
      memory = Math.max(1 << 20, Math.min(1020 << 20, memory + Math.floor((chance() - 0.49) * (24 << 20))));
      Object.assign(event, { kind: "note", op: "progress", duration_ns: undefined, context: { in_use: memory, budget: 1 << 30 } });
    }
    lines.push(JSON.stringify(event));
  }
  writeFileSync(path, `${lines.slice(0, events + 1).join("\n")}\n`);
}

/** Returns a text that must be seen as it is. */
export function hostileJournal(path) {
  const attack = "</script><script>window.hacked=1</script><img src=x onerror=window.hacked=1>";
  const all = { op: attack, device: `${attack}"'`, dtype: attack, recovery: attack };
  const fault = { kind: "numeric", message: `${attack}\u2028\u0000<!--` };
  const context = { [attack]: attack, in_use: 5, budget: 9007199254740993, __proto__x: "x", constructor: attack };
  const lines = [
    { surefoot_journal: 9, time_us: START, pid: 1 },
    { time_us: START, pid: 1, kind: "step", ...all, context, duration_ns: 1e6 },
    { time_us: START + 5, pid: 1, kind: "fault", ...all, fault, context },
    { time_us: START + 9, pid: 1, kind: "rung", ...all },
    { time_us: START + 12, pid: 1, kind: "step", ...all, duration_ns: 1e15 },
    { time_us: 0, pid: 1, kind: "teleport", op: "__proto__", device: "constructor" },
    { time_us: START, pid: 4294967295, thread: 4294967295, kind: "note", op: "toString", bytes: Number.MAX_SAFE_INTEGER, context: { loss: "NaN", step: 1 } },
    { time_us: START + 1, pid: 1, kind: "note", op: "progress", context: { step: 1, loss: "NaN", accuracy: 1e308, samples_per_second: -1e308 } },
  ];
  writeFileSync(path, `${lines.map((line) => JSON.stringify(line)).join("\n")}\nnot json\n{"time_us":1,"ki`);
  return attack;
}
