// Validates what `surefoot check --format sarif` prints against the schema that OASIS publishes
// (README.md says where the file is from). SUREFOOT names the program.
//
//     npm ci && SUREFOOT=target/release/surefoot node validate.mjs
//
// This is no Rust test on purpose: a schema validator among the dev-dependencies of the workspace
// switches on features of shared crates (serde_json's float_roundtrip), and then the tests would run
// another program than the one that is released.

import assert from "node:assert/strict";
import { spawnSync } from "node:child_process";
import { mkdtempSync, readFileSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import Ajv from "ajv";
import addFormats from "ajv-formats";

const here = import.meta.dirname;
const program = process.env.SUREFOOT;
assert.ok(program, "SUREFOOT must name the program");

const schema = JSON.parse(readFileSync(join(here, "sarif-schema-2.1.0.json"), "utf8"));
const ajv = new Ajv({ allErrors: true, strict: false, unicodeRegExp: false });
addFormats(ajv);
const validate = ajv.compile(schema);

function problems(log) {
  validate(log);
  return (validate.errors ?? []).map((error) => `${error.instancePath}: ${error.message}`);
}

/** The log that the program prints for these paths; it must end with this exit code. */
function check(code, ...paths) {
  const done = spawnSync(program, ["check", "--format", "sarif", ...paths], { encoding: "utf8", maxBuffer: 1 << 28 });
  assert.equal(done.status, code, done.stderr);
  return JSON.parse(done.stdout);
}

const folder = mkdtempSync(join(tmpdir(), "surefoot-sarif-"));
try {
  const file = (name, text) => {
    writeFileSync(join(folder, name), text);
    return join(folder, name);
  };
  const clean = check(0, file("clean.py", "import torch\n"));
  assert.deepEqual(clean.runs[0].results, []);
  assert.deepEqual(problems(clean), []);

  const code = "import torch\nx = torch.zeros(3)\nx.half()\n";
  const notebook = {
    cells: [{ cell_type: "code", source: code }],
    metadata: {},
    nbformat: 4,
    nbformat_minor: 5,
  };
  const mixed = check(
    2,
    file("a name with spaces & é.py", code),
    file("look.ipynb", JSON.stringify(notebook)),
    file("broken.py", "import torch\ndef f(:\n"),
  );
  assert.equal(mixed.runs[0].results.length, 2);
  assert.equal(mixed.runs[0].invocations[0].toolExecutionNotifications.length, 1);
  assert.deepEqual(problems(mixed), []);

  const every = check(1, join(here, "../cases"));
  const rules = every.runs[0].tool.driver.rules.map((rule) => rule.id);
  const found = new Set(every.runs[0].results.map((result) => result.ruleId));
  assert.ok(rules.length >= 29);
  assert.deepEqual(rules.filter((rule) => !found.has(rule)), [], "rules without a result");
  assert.deepEqual(problems(every), []);

  // The validator is not blind: what the schema forbids is found.
  const forbidden = {
    "an unknown level": (log) => (log.runs[0].results[0].level = "hint"),
    "line 0": (log) => (log.runs[0].results[0].locations[0].physicalLocation.region.startLine = 0),
    "an unknown property": (log) => (log.runs[0].results[0].colour = "red"),
    "no tool": (log) => delete log.runs[0].tool,
  };
  for (const [what, spoil] of Object.entries(forbidden)) {
    const log = structuredClone(mixed);
    spoil(log);
    assert.notDeepEqual(problems(log), [], `${what} was not noticed`);
  }
  console.log(`SARIF: 3 logs with ${every.runs[0].results.length + 2} results are valid`);
} finally {
  rmSync(folder, { recursive: true });
}
