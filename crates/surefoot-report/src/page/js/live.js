// A page that is live: chunks arrive as server-sent events. A reload replays the history; what
// a slow page missed is counted. After the end the page keeps what it has.

function startLive(events, update) {
  const pill = $("#live");
  pill.hidden = false;
  const say = (state, text) => { pill.className = `live ${state}`; pill.textContent = text; };
  say("", "connecting");
  let since = 0;
  let waiting = 0;
  let lastTook = 0;
  // Drawing may take a twentieth of the time at most, however much comes.
  const soon = () => {
    if (waiting) return;
    waiting = setTimeout(() => {
      waiting = 0;
      const started = performance.now();
      update();
      lastTook = performance.now() - started;
    }, Math.max(120, lastTook * 20));
  };
  const source = new EventSource(`events?from=${since}`);
  let begun = null;
  source.addEventListener("hello", (message) => {
    const { instance } = JSON.parse(message.data);
    // Another run on the same port: what is here belongs to the old one.
    if (begun !== null && begun !== instance) location.reload();
    begun = instance;
    say("on", "live");
  });
  source.addEventListener("chunk", (message) => {
    const chunk = JSON.parse(message.data);
    // A reconnection replays from the start; what is known already is left out.
    if (chunk.number < since) return;
    since = chunk.number + chunk.count;
    events.append(chunk);
    soon();
  });
  source.addEventListener("end", () => {
    source.close();
    say("off", "ended");
    soon();
  });
  source.addEventListener("error", () => { if (source.readyState !== EventSource.CLOSED) say("off", "the run is not answering"); });
}
