// The pages in a real browser: that they open without a complaint, that search, filters, stories
// and keys work, that both themes can be read, that text from a journal stays text, that 100,000
// events open and scroll smoothly, and that a live run is seen live.
//
//   SUREFOOT=target/release/surefoot PAGES=target/release/examples/pages node run.mjs
//
// CHROMIUM names another browser; SCREENSHOTS a folder for pictures of every page.

import assert from "node:assert/strict";
import { execFileSync, spawn } from "node:child_process";
import { mkdirSync, mkdtempSync, readFileSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { dirname, join, resolve } from "node:path";
import { fileURLToPath, pathToFileURL } from "node:url";
import { chromium } from "playwright-core";
import { hostileJournal, longJournal } from "./journals.mjs";

const home = resolve(dirname(fileURLToPath(import.meta.url)), "../../../..");
const program = resolve(process.env.SUREFOOT || join(home, "target/release/surefoot"));
const pages = resolve(process.env.PAGES || join(home, "target/release/examples/pages"));
const folder = mkdtempSync(join(tmpdir(), "surefoot-pages-"));
const pictures = process.env.SCREENSHOTS && resolve(process.env.SCREENSHOTS);
if (pictures) mkdirSync(pictures, { recursive: true });

/** Bounds in ms, several times what an idle machine takes, so that only a real loss shows. */
const BOUNDS = { firstPaint: 5000, scrollFrame: 100, zoomFrame: 120, search: 700 };

const browser = await chromium.launch({
  executablePath: process.env.CHROMIUM || "/usr/bin/chromium",
  args: ["--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking", "--disable-component-update", "--disable-sync"],
});

const surefoot = (...args) => execFileSync(program, args, { cwd: folder, encoding: "utf8", stdio: ["ignore", "pipe", "ignore"], maxBuffer: 1 << 28 });
const inFolder = (name) => join(folder, name);
const address = (name) => pathToFileURL(inFolder(name)).href;
const complaints = [];

async function open(url, { theme = "light", mayAsk = () => false } = {}) {
  const page = await browser.newPage({ viewport: { width: 1320, height: 900 }, colorScheme: theme });
  page.on("console", (message) => { if (["error", "warning"].includes(message.type())) complaints.push(`${url}: ${message.text()}`); });
  page.on("pageerror", (error) => complaints.push(`${url}: ${error.stack}`));
  page.on("request", (request) => { if (request.url() !== url && !request.url().startsWith("data:") && !mayAsk(request.url())) complaints.push(`${url} asked for ${request.url()}`); });
  await page.goto(url);
  await page.waitForSelector("#verdict");
  return page;
}

async function picture(page, name, full = false) {
  if (pictures) await page.screenshot({ path: join(pictures, `${name}.png`), fullPage: full });
}

const text = (page, selector) => page.locator(selector).first().textContent();
/** The stretch that the timeline shows, once it is drawn. */
const stretch = async (page) => {
  await page.evaluate(() => new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done))));
  return text(page, "#timeline .aside.num");
};
const found = async (page) => Number((await text(page, "#found")).replace(/,/g, "").match(/^\d+/)[0]);

/** The lowest contrast of texts with what is behind them, by WCAG's formula. */
const lowestContrast = (page) => page.evaluate(() => {
  const light = (colour) => {
    const [r, g, b] = colour.match(/[\d.]+/g).slice(0, 3).map((value) => { const c = Number(value) / 255; return c <= 0.04045 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4; });
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  const behind = (node) => { for (let at = node; at; at = at.parentElement) { const { backgroundColor } = getComputedStyle(at); if (!/, 0\)$|transparent/.test(backgroundColor)) return backgroundColor; } return "rgb(255, 255, 255)"; };
  let worst = { contrast: 99 };
  for (const node of document.querySelectorAll("main *")) {
    const own = [...node.childNodes].some((child) => child.nodeType === 3 && child.textContent.trim());
    if (!own || !node.offsetParent || node.closest("svg")) continue;
    const [a, b] = [light(getComputedStyle(node).color), light(behind(node))].sort((x, y) => y - x);
    const contrast = (a + 0.05) / (b + 0.05);
    if (contrast < worst.contrast) worst = { contrast, text: node.textContent.slice(0, 40), of: node.className || node.tagName };
  }
  return worst;
});

const tests = {
  async "a real run opens, and tells what the summary tells"() {
    surefoot("train", join(home, "configs/digits.yaml"), "--epochs", "4", "--drill", "out_of_memory:step=60,count=3", "--journal", inFolder("run.jsonl"));
    surefoot("journal", inFolder("run.jsonl"), "--html", inFolder("run.html"));
    const summary = JSON.parse(surefoot("journal", inFolder("run.jsonl"), "--json"));
    const page = await open(address("run.html"));
    assert.equal(await found(page), summary.events);
    const outcomes = await text(page, "#faults .aside:last-child");
    assert.equal(outcomes, `${summary.outcomes.recovered} recovered, ${summary.outcomes.given_up} given up, ${summary.outcomes.open} without an end`);
    const faults = Object.values(summary.faults).reduce((a, b) => a + b, 0);
    assert.match(await text(page, "#verdict"), new RegExp(`${faults} faults in`));
    assert.equal(await page.locator("#training .chart").count(), 3, "loss, accuracy and speed");
    const median = summary.operations.find((operation) => operation.op === "train step" && operation.kind === "step").timing.median_ns;
    assert.match(await text(page, "#spent tbody tr"), new RegExp(`${(median / 1e6).toPrecision(3)} ms`), "the median of the summary");
    await picture(page, "journal-light", true);
    await page.close();
  },

  async "a story opens from its cause to its outcome"() {
    const page = await open(address("run.html"));
    const story = page.locator(".story").first();
    if (await story.evaluate((node) => node.open)) await story.locator("summary").click();
    assert.equal(await story.evaluate((node) => node.open), false);
    await story.locator("summary").click();
    const tale = await story.locator(".tale").innerText();
    for (const part of ["What came before", "Cause: out_of_memory", "Rung: reclaim", "Rung: split", "Outcome: recovered by split"]) assert.ok(tale.includes(part), `no '${part}' in ${tale}`);
    await story.getByText("Show its events").click();
    assert.match(await page.locator("#detail").innerText(), /fault\s+out_of_memory/);
    await story.getByText("Show in the timeline").click();
    assert.match(await stretch(page), /from \+/);
    await page.close();
  },

  async "search and filters find what they should"() {
    const page = await open(address("run.html"));
    const all = await found(page);
    await page.fill("#search", "kind:fault");
    assert.equal(await found(page), 3);
    assert.equal(await page.locator(".row.fault").count(), 3);
    await page.fill("#search", "-kind:step");
    const others = await found(page);
    await page.fill("#search", "kind:step took:>0ns");
    assert.equal(await found(page) + others, all);
    await page.fill("#search", "no such thing anywhere");
    assert.equal(await found(page), 0);
    await page.fill("#search", "");
    await page.click('.chip[data-kind="rung"]');
    assert.equal(await found(page), 3);
    await page.click('.chip[data-kind="fault"]');
    assert.equal(await found(page), 6);
    await page.locator("#search").press("Escape");
    await page.keyboard.press("Escape");
    assert.equal(await found(page), all);
    await page.locator("#spent button.plain").first().click();
    assert.ok(await found(page) < all);
    await page.close();
  },

  async "everything can be done with the keyboard"() {
    const page = await open(address("run.html"));
    await page.keyboard.press("/");
    assert.equal(await page.evaluate(() => document.activeElement.id), "search");
    await page.keyboard.type("train");
    await page.keyboard.press("Escape");
    await page.keyboard.press("Escape");
    assert.equal(await page.inputValue("#search"), "");
    await page.keyboard.press("j");
    await page.keyboard.press("j");
    assert.equal(await page.getAttribute('.row[aria-selected="true"]', "data-at"), "1");
    await page.keyboard.press("k");
    assert.equal(await page.getAttribute('.row[aria-selected="true"]', "data-at"), "0");
    await page.keyboard.press("n");
    assert.equal(await page.evaluate(() => document.activeElement.closest(".story").open), true);
    const whole = await stretch(page);
    await page.keyboard.press("+");
    const near = await stretch(page);
    assert.notEqual(near, whole);
    await page.focus("#timeline-canvas");
    await page.keyboard.press("ArrowRight");
    assert.notEqual(await stretch(page), near);
    await page.keyboard.press("0");
    assert.equal(await stretch(page), whole);
    await page.keyboard.press("?");
    assert.equal(await page.evaluate(() => document.querySelector("#help").open), true);
    assert.match(await page.locator("#help").innerText(), /search the events/);
    await page.keyboard.press("Escape");
    await page.keyboard.press("t");
    assert.equal(await page.evaluate(() => document.documentElement.dataset.theme), "dark");
    await page.focus("#rows");
    await page.keyboard.press("End");
    assert.equal(Number(await page.getAttribute('.row[aria-selected="true"]', "data-at")), await found(page) - 1);
    await page.close();
  },

  async "light and dark follow the system, and both can be read"() {
    const backgrounds = [];
    for (const theme of ["light", "dark"]) {
      const page = await open(address("run.html"), { theme });
      backgrounds.push(await page.evaluate(() => getComputedStyle(document.body).backgroundColor));
      const worst = await lowestContrast(page);
      assert.ok(worst.contrast >= 4.5, `${theme}: ${JSON.stringify(worst)}`);
      await page.click("#theme-button");
      assert.notEqual(await page.evaluate(() => getComputedStyle(document.body).backgroundColor), backgrounds.at(-1));
      await page.click("#theme-button");
      await picture(page, `journal-${theme}-top`);
      await page.close();
    }
    assert.notEqual(backgrounds[0], backgrounds[1]);
  },

  async "text from a journal stays text"() {
    const hostile = hostileJournal(inFolder("hostile.jsonl"));
    surefoot("journal", inFolder("hostile.jsonl"), "--html", inFolder("hostile.html"));
    const page = await open(address("hostile.html"));
    await page.keyboard.press("n");
    await page.keyboard.press("j");
    await page.hover("#timeline-canvas", { position: { x: 700, y: 24 } });
    assert.equal(await page.evaluate(() => window.hacked), undefined);
    assert.equal(await page.locator("main img, main script, main iframe, main a").count(), 0);
    assert.ok((await page.locator("main").innerText()).includes(hostile), "it is shown as it is");
    await page.close();
  },

  async "100,000 events open and scroll smoothly"() {
    longJournal(inFolder("long.jsonl"), 100_000);
    surefoot("journal", inFolder("long.jsonl"), "--html", inFolder("long.html"));
    const page = await open(address("long.html"));
    const paint = await page.evaluate(() => new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(() => done(performance.now())))));
    assert.equal(await found(page), 100_000);
    const summary = JSON.parse(surefoot("journal", inFolder("long.jsonl"), "--json"));
    assert.equal(await text(page, "#faults .aside:last-child"), `${summary.outcomes.recovered} recovered, ${summary.outcomes.given_up} given up, ${summary.outcomes.open} without an end`);
    const frames = (act, many) => page.evaluate(([act, many]) => new Promise((done) => {
      const rows = document.querySelector("#rows");
      const times = [];
      let last = performance.now();
      const next = (number) => requestAnimationFrame(() => {
        const now = performance.now();
        if (number > 0) times.push(now - last);
        last = now;
        if (number === many) return done(times.sort((a, b) => a - b)[Math.floor(times.length / 2)]);
        if (act === "scroll") rows.scrollTop = (rows.scrollHeight * number) / many;
        else document.dispatchEvent(new KeyboardEvent("keydown", { key: number % 20 < 10 ? "+" : "-", bubbles: true }));
        return next(number + 1);
      });
      next(0);
    }), [act, many]);
    const scroll = await frames("scroll", 60);
    assert.ok(await page.locator(".row").count() < 60, "only rows that are seen exist");
    const zoom = await frames("zoom", 40);
    await page.keyboard.press("0");
    await page.evaluate(() => scrollTo(0, 0));
    await picture(page, "journal-100000");
    const search = await page.evaluate(() => {
      const box = document.querySelector("#search");
      const began = performance.now();
      box.value = "op:backward took:>1ms";
      box.dispatchEvent(new Event("input"));
      return performance.now() - began;
    });
    assert.ok(await found(page) > 100);
    const took = { firstPaint: paint, scrollFrame: scroll, zoomFrame: zoom, search };
    console.log(`    ${Object.entries(took).map(([name, ms]) => `${name} ${ms.toFixed(0)} ms (at most ${BOUNDS[name]})`).join(", ")}`);
    for (const [name, ms] of Object.entries(took)) assert.ok(ms <= BOUNDS[name], `${name} took ${ms} ms`);
    await page.close();
  },

  async "training, verification and load tests are pages of the same style"() {
    execFileSync(pages, [folder]);
    const expected = { "training.html": ["19,706", "Curves"], "different.html": ["DIFFERENT", "block 9"], "same.html": ["SAME", "none"], "load.html": ["Requests a second", "Batch sizes"] };
    for (const [name, parts] of Object.entries(expected)) {
      for (const theme of ["light", "dark"]) {
        const page = await open(address(name), { theme });
        const all = await page.locator("main").innerText();
        for (const part of parts) assert.ok(all.includes(part), `${name} has no '${part}'`);
        assert.ok(await page.locator("svg polyline").count() >= 1);
        const box = await page.locator(".chart svg").first().boundingBox();
        await page.mouse.move(box.x + box.width / 2, box.y + box.height / 2);
        assert.equal(await page.locator("#tip").isVisible(), true, "values show under the pointer");
        const worst = await lowestContrast(page);
        assert.ok(worst.contrast >= 4.5, `${name} ${theme}: ${JSON.stringify(worst)}`);
        await page.mouse.move(1, 1);
        await picture(page, `${name.replace(".html", "")}-${theme}`, true);
        await page.close();
      }
    }
  },

  async "a benchmark is a page with its verdicts"() {
    const json = surefoot("bench", "--quick", "--device", "cpu", "--precision", "fp32,bf16", "--json", "--html", inFolder("bench.html"));
    const report = JSON.parse(json);
    const page = await open(address("bench.html"));
    assert.equal(await text(page, "#verdict"), report.summary);
    assert.equal(await page.locator("[data-workload]").count(), report.verdicts.length);
    const matmul = report.results.find((result) => result.workload === "matmul");
    assert.match(await page.locator('[data-workload="matmul"]').innerText(), new RegExp(`${Number((matmul.throughput.value / 1e9).toPrecision(3))} ?GFLOP/s`));
    await picture(page, "bench", true);
    await page.close();
  },

  async "a live run is seen live, survives a reload, and ends"() {
    const run = spawn(program, ["train", join(home, "configs/digits.yaml"), "--epochs", "4000", "--watch", "--drill", "out_of_memory:step=60,count=2"], { cwd: folder, stdio: ["ignore", "ignore", "pipe"] });
    let said = "";
    const url = await new Promise((done, fail) => {
      run.stderr.on("data", (data) => { said += data; const at = /watch it at (\S+)/.exec(said); if (at) done(at[1]); });
      run.on("exit", () => fail(new Error(said)));
    });
    run.removeAllListeners("exit");
    const ended = new Promise((done) => run.on("exit", done));
    const page = await open(url, { mayAsk: (asked) => asked.startsWith(`${url}events`) });
    await page.waitForFunction(() => document.querySelector("#live").textContent === "live" && document.querySelectorAll(".row").length > 5);
    const first = await found(page);
    await page.waitForFunction((first) => Number(document.querySelector("#found").textContent.replace(/\D/g, "")) > first + 20, first);
    await page.reload();
    await page.waitForFunction((first) => Number(document.querySelector("#found").textContent.replace(/\D/g, "")) > first + 20, first);
    assert.equal(await page.locator('.row[data-at="0"]').innerText().then((row) => row.includes("select")), true, "the history is there from the start");
    await picture(page, "live");
    const kept = await (await fetch(`${url}report.html`)).text();
    assert.ok(kept.includes('"live":false'));
    const stopped = Date.now();
    run.kill("SIGINT");
    assert.equal(await ended, 130);
    assert.ok(Date.now() - stopped < 15_000, "it ends soon");
    await page.waitForFunction(() => document.querySelector("#live").textContent === "ended");
    assert.match(await text(page, "#verdict"), /recovered by/);
    await page.close();
  },
};

const only = process.argv[2];
let failed = 0;
for (const [name, test] of Object.entries(tests)) {
  if (only && !name.includes(only)) continue;
  const began = Date.now();
  try {
    await test();
    assert.deepEqual(complaints.splice(0), []);
    console.log(`ok   ${name} (${((Date.now() - began) / 1000).toFixed(1)} s)`);
  } catch (error) {
    failed += 1;
    complaints.splice(0);
    console.log(`FAIL ${name}\n${error.stack}`);
  }
}
await browser.close();
rmSync(folder, { recursive: true, force: true });
console.log(failed ? `${failed} failed` : "all passed");
process.exit(failed ? 1 : 0);
