"use strict";
/* The state comes from /swarm/events as docs/gateway.md says. Text of others only ever becomes
   text nodes. */

const LISTS = {
  nodes: ["id"], models: ["id"], links: ["node", "peer"], sessions: ["id"], recent: ["id"],
  hops: ["origin", "session"],
};
const LINGER_MS = 5000;
const WALK_MS = 1600;
const EVENTS_KEPT = 200;
const NODE_HUES = 6;
const $ = (id) => document.getElementById(id);

let state = null;
let chosen = "";
let apiKey = "";
let stale = false;
const events = [];
const reroutes = new Map(); // session -> {former, until}
const lost = new Map(); // short session + short node -> until
const ended = new Map(); // session -> until

// ------------------------------------------------------------------ small helpers

function el(tag, props = {}, ...children) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(props)) {
    if (name === "class") made.className = value;
    else if (name === "on") for (const [event, act] of Object.entries(value)) made.addEventListener(event, act);
    else if (name === "place") Object.assign(made.style, value);
    else if (value === true) made.setAttribute(name, "");
    else if (value !== false && value !== null && value !== undefined) made.setAttribute(name, value);
  }
  made.append(...children.filter((child) => child !== null && child !== undefined));
  return made;
}
const short = (id) => String(id).slice(0, 8);
const ms = (value) => value === null || value === undefined ? "–"
  : value >= 100 ? value.toFixed(0) : value >= 10 ? value.toFixed(1) : value.toFixed(2);
function bytes(count) {
  for (const unit of ["B", "KiB", "MiB"]) {
    if (count < 1024) return `${count.toFixed(0)} ${unit}`;
    count /= 1024;
  }
  return `${count.toFixed(1)} GiB`;
}
const percent = (part, whole) => `${(100 * part / whole).toFixed(3)}%`;
const headers = () => apiKey ? { Authorization: `Bearer ${apiKey}` } : {};

// ------------------------------------------------------------------ the stream of events

async function* lines(response) {
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let pending = "";
  for (;;) {
    const { value, done } = await reader.read();
    if (done) return;
    const parts = (pending + value).split("\n");
    pending = parts.pop();
    yield* parts;
  }
}
async function follow() {
  for (;;) {
    try {
      const response = await fetch("/swarm/events", { headers: headers(), cache: "no-store" });
      if (response.status === 401) { askKey(); say("lost", "needs an API key"); }
      else if (!response.ok) say("lost", `the node answers ${response.status}, trying again`);
      else await read(response);
    } catch (error) { say("lost", "the node does not answer, trying again"); }
    await new Promise((resolve) => setTimeout(resolve, 1000));
  }
}
async function read(response) {
  let name = "";
  for await (const line of lines(response)) {
    if (line.startsWith("event: ")) name = line.slice(7).trim();
    else if (line.startsWith("data: ")) { take(name, JSON.parse(line.slice(6))); say("live", "live"); }
  }
  say("lost", "the node hung up, trying again");
}
function say(kind, text) {
  const pill = $("link");
  if (pill.dataset.state !== kind || pill.textContent !== text) { pill.dataset.state = kind; pill.textContent = text; }
}
function askKey() { $("key").hidden = false; }

function take(name, data) {
  if (name === "snapshot") see(data);
  else if (name === "change" && state) see(applied(state, data));
  else if (name === "note") hear(data);
  stale = true;
}
function applied(before, change) {
  const after = { ...before, ...change.values };
  for (const [list, keys] of Object.entries(LISTS)) {
    const key = (entry) => keys.map((part) => entry[part]).join(" ");
    const entries = new Map(before[list].map((entry) => [key(entry), entry]));
    for (const gone of change.gone?.[list] ?? []) entries.delete(key(gone));
    for (const entry of change.changed?.[list] ?? []) entries.set(key(entry), { ...entries.get(key(entry)), ...entry });
    after[list] = [...entries.values()];
  }
  return after;
}
function see(next) {
  const until = Date.now() + LINGER_MS;
  const known = new Map((state?.sessions ?? []).map((session) => [session.id, session]));
  for (const session of next.sessions) {
    const before = known.get(session.id);
    if (before?.route.length && JSON.stringify(before.route) !== JSON.stringify(session.route)) {
      reroutes.set(session.id, { former: before.route, until });
    }
  }
  for (const session of next.recent) if (known.has(session.id) && !ended.has(session.id)) ended.set(session.id, until);
  state = next;
}
function hear(note) {
  events.unshift(note);
  events.length = Math.min(events.length, EVENTS_KEPT);
  if (note.event === "session.hop_failed") lost.set(note.session + short(note.node), Date.now() + LINGER_MS);
}
function forget() {
  const now = Date.now();
  for (const [key, entry] of reroutes) if (entry.until <= now) { reroutes.delete(key); stale = true; }
  for (const map of [lost, ended]) for (const [key, until] of map) if (until <= now) { map.delete(key); stale = true; }
}

// ------------------------------------------------------------------ views of the state

const nameOf = (id) => state.nodes.find((node) => node.id === id)?.name || short(id);
function hue(id) {
  const order = state.nodes.map((node) => node.id).sort();
  return `n${Math.max(0, order.indexOf(id)) % NODE_HUES}`;
}
const isSettled = (session) => session.phase === "running" || session.phase === "done";
const running = () => [...state.recent.filter((session) => ended.has(session.id)), ...state.sessions];
const traceable = () => [...state.sessions].reverse().concat([...state.recent].reverse());
const generated = (session) => Math.max(0, session.position - session.prompt_count);
function counted(count, word) { return `${count} ${word}${count === 1 ? "" : "s"}`; }
function pauses(session) {
  const parts = session.stall_ms.map(ms).join(" + ") || "?";
  return session.reroutes ? `${counted(session.reroutes, "reroute")}, paused ${parts} ms` : "";
}
function shards(model) {
  return state.nodes.filter((node) => node.state === "alive").flatMap((node) =>
    node.shards.filter((shard) => shard.model_id === model.id).map((shard) => ({ node, ...shard })));
}
function speedClass(shard, fastest) {
  if (shard.state !== "serving") return "loading";
  const time = shard.decode_s_per_layer ?? 0;
  return !fastest || time < 1.5 * fastest ? "s0" : time < 3 * fastest ? "s1" : "s2";
}
/* Each range in the lowest row where it has room: the height is the number of replicas. */
function stacked(ranges) {
  const rows = [];
  for (const range of [...ranges].sort((a, b) => a.start - b.start || b.stop - a.stop)) {
    let row = rows.findIndex((ends) => ends <= range.start);
    if (row < 0) row = rows.push(0) - 1;
    rows[row] = range.stop;
    range.row = row;
  }
  return rows.length;
}

// ------------------------------------------------------------------ what is drawn

function draw() {
  forget();
  if (!stale || !state) return;
  stale = false;
  $("tag").textContent = state.open ? "the open swarm" : state.swarm;
  const alive = state.nodes.filter((node) => node.state === "alive").length;
  $("seen").textContent = `seen from ${state.name}: ${alive} of ${counted(state.nodes.length, "node")} alive, ${counted(state.sessions.length, "answer")} running`;
  $("models").replaceChildren(...drawModels());
  $("node-rows").replaceChildren(...drawNodes());
  $("node-count").textContent = String(state.nodes.length);
  drawSessions();
  $("trace").replaceChildren(...drawTrace());
  $("link-rows").replaceChildren(...drawLinks());
  drawEvents();
  drawChoices();
  drawChatRoute();
}
function drawModels() {
  const asked = new Set(running().map((session) => session.model));
  const models = [...state.models].sort((a, b) => asked.has(b.name) - asked.has(a.name));
  if (!models.length) return [el("p", { class: "faint" }, "No models yet: join with --model DIR.")];
  return models.map(drawModel);
}
function drawModel(model) {
  const ranges = shards(model);
  const fastest = Math.min(...ranges.map((shard) => shard.decode_s_per_layer || Infinity));
  const height = stacked(ranges);
  const missing = model.missing.map((part) => `${part.start}:${part.stop}`).join(", ");
  const why = missing ? `layers ${missing} missing` : "embedding or head missing";
  const verdict = model.covered ? el("span", { class: "whole" }, "covered") : el("span", { class: "why" }, `not covered: ${why}`);
  const said = ranges.map((shard) => `${shard.start} to ${shard.stop} ${shard.state} on ${shard.node.name}`).join(", ");
  const strip = el("div", { class: "strip", role: "img", "aria-label": `Layers: ${said || "nobody serves any"}` });
  strip.style.height = `${1.6 * Math.max(1, height)}rem`;
  for (const shard of ranges) strip.append(drawBar(model, shard, height, fastest));
  for (const hole of holes(model, ranges)) strip.append(drawHole(model, hole, height));
  return el("div", { class: "model" },
    el("h3", {}, model.name, el("span", { class: "faint" }, ` ${model.layers} layers, `), verdict),
    strip, drawAxis(model),
    ...running().filter((session) => session.model === model.name).flatMap((session) => drawLanes(model, session)));
}
function span(model, part) {
  return { left: percent(part.start, model.layers), width: `calc(${percent(part.stop - part.start, model.layers)} - 2px)` };
}
function drawBar(model, shard, height, fastest) {
  const speed = shard.decode_s_per_layer ? `, ${ms(shard.decode_s_per_layer * 1000)} ms a layer` : "";
  return el("div", {
    class: `bar ${speedClass(shard, fastest)}`, title: `${shard.node.name} ${shard.start}:${shard.stop}${speed}, ${shard.state}`,
    place: { ...span(model, shard), bottom: `${1.6 * shard.row}rem` },
  }, shard.node.name);
}
function drawHole(model, hole, height) {
  const place = hole.isLoading ? { bottom: `${1.6 * height}rem`, height: ".35rem" } : { bottom: "0" };
  return el("div", { class: "hole", place: { ...span(model, hole), ...place } }, hole.isLoading ? "" : el("span", {}, `${hole.start}:${hole.stop}`));
}
/* Missing layers in runs of those that somebody is loading and those that nobody is. */
function holes(model, ranges) {
  const runs = [];
  for (const part of model.missing) for (let layer = part.start; layer < part.stop; layer++) {
    const isLoading = ranges.some((shard) => shard.start <= layer && layer < shard.stop);
    const last = runs.at(-1);
    if (last?.stop === layer && last.isLoading === isLoading) last.stop++;
    else runs.push({ start: layer, stop: layer + 1, isLoading });
  }
  return runs;
}
function drawAxis(model) {
  const step = [1, 2, 5, 10, 20, 50].find((size) => model.layers / size <= 12) ?? 100;
  const axis = el("div", { class: "axis", "aria-hidden": "true" });
  for (let layer = 0; layer < model.layers; layer += step) axis.append(el("span", { place: { left: percent(layer, model.layers) } }, String(layer)));
  axis.append(el("span", { class: "last", place: { left: "100%" } }, String(model.layers)));
  return axis;
}
function drawLanes(model, session) {
  const reroute = reroutes.get(session.id);
  const same = (hop) => (other) => other.node === hop.node && other.start === hop.start && other.stop === hop.stop;
  const title = el("div", { class: "lane-name" }, el("b", {}, short(session.id)),
    ` ${generated(session)} of ${session.token_limit} tokens, ${session.outcome ?? session.phase} ${pauses(session)}`);
  const lane = el("div", { class: "lane" });
  for (const hop of session.route) {
    const isLost = lost.has(short(session.id) + short(hop.node)) && !isSettled(session);
    const isFresh = reroute && !reroute.former.some(same(hop));
    lane.append(drawHop(model, session, hop, isLost ? "lost" : isFresh ? "fresh" : ""));
  }
  if (session.phase === "running") lane.append(el("div", { class: "dot", place: { animationDelay: `-${Date.now() % WALK_MS}ms` } }));
  if (!reroute) return [title, lane];
  const before = el("div", { class: "lane before", "aria-hidden": "true" });
  for (const hop of reroute.former) before.append(drawHop(model, session, hop, session.route.some(same(hop)) ? "" : "lost"));
  return [title, before, lane];
}
function drawHop(model, session, hop, kind) {
  const name = nameOf(hop.node);
  const place = span(model, hop);
  if (kind === "fresh") place.animationDelay = `${reroutes.get(session.id).until - LINGER_MS - Date.now()}ms`;
  return el("div", {
    class: `hop ${hue(hop.node)} ${kind}`, title: `${name} runs layers ${hop.start}:${hop.stop}${kind === "lost" ? ", lost" : ""}`,
    place, on: { click: () => choose(session.id) },
  }, name, el("span", { class: "faint" }, `${hop.start}:${hop.stop}`));
}
function stateWord(node) {
  if (node.state !== "alive") return node.state;
  return node.penalty_s > 0 ? "avoided" : node.departs_in_s > 0 ? "departs" : node.state;
}
function drawNodes() {
  return [...state.nodes].sort((a, b) => a.name.localeCompare(b.name) || a.id.localeCompare(b.id)).map((node) => {
    const times = node.shards.map((shard) => shard.decode_s_per_layer).filter(Boolean);
    const word = stateWord(node);
    const serves = node.shards.map((shard) => {
      const ends = (shard.embed ? " E" : "") + (shard.head ? " H" : "");
      return `${shard.model} ${shard.start}:${shard.stop}${ends}${shard.state === "serving" ? "" : ` (${shard.state})`}`;
    }).join(" · ");
    return el("tr", {},
      el("td", { class: hue(node.id), title: node.id }, el("span", { class: "dotmark" }), node.name || short(node.id), node.self ? el("span", { class: "faint" }, " (asked)") : null),
      el("td", { class: word }, word),
      el("td", { class: "n" }, node.self ? "self" : ms(node.rtt_ms)),
      el("td", { class: "cut", title: node.device }, node.device || "–"), el("td", { class: "n" }, bytes(node.memory_bytes)),
      el("td", { class: "n" }, times.length ? ms(Math.min(...times) * 1000) : "–"), el("td", {}, serves || "–"));
  });
}
function choose(id) { chosen = id; stale = true; draw(); }
/* Buttons are kept and changed in place, so that whoever has one in focus keeps it. */
function drawSessions() {
  const list = $("sessions");
  const known = new Map([...list.children].map((item) => [item.dataset.id, item]));
  const items = traceable().map((session) => {
    const item = known.get(session.id) ?? el("li", { "data-id": session.id }, el("button", { on: { click: () => choose(session.id) } }));
    const button = item.firstChild;
    button.setAttribute("aria-pressed", String(session.id === traced()?.id));
    const progress = el("progress", { max: session.token_limit || 1, "aria-label": "tokens" });
    progress.value = generated(session);
    const notes = [pauses(session), session.exact ? "" : "not exact"].filter(Boolean).join(", ");
    button.replaceChildren(el("code", {}, short(session.id)), progress,
      el("span", { class: session.outcome === "failed" ? "dead" : "faint" }, `${generated(session)}/${session.token_limit} ${session.outcome ?? session.phase}`),
      ...(notes ? [el("small", {}, notes)] : []));
    return item;
  });
  if (items.length !== list.children.length || items.some((item, i) => item !== list.children[i])) list.replaceChildren(...items);
}
const traced = () => traceable().find((session) => session.id === chosen) ?? traceable()[0];
function drawTrace() {
  const session = traced();
  if (!session) return [el("p", { class: "faint" }, "No answer yet.")];
  $("trace-title").textContent = `Where the time goes: ${short(session.id)}, a token from left to right`;
  const legs = session.legs.map((leg, i) => drawLeg(leg, i + 1)).reverse();
  return legs.length ? legs : [el("p", { class: "faint" }, "Nothing ran yet.")];
}
function drawLeg(leg, number) {
  const whole = leg.token_ms || 0;
  let at = 0;
  const fall = el("div", { class: "fall" });
  const mean = leg.token_ms === null ? "" : `, then ${ms(leg.token_ms)} ms a token over ${leg.tokens}`;
  const head = el("p", {}, el("b", {}, `Route ${number}`), el("span", { class: "faint" }, ` from position ${leg.position}: first token ${ms(leg.first_token_ms)} ms${mean}`));
  if (!leg.hops.length) return el("div", { class: "leg" }, head, el("span", { class: "faint" }, "Its hops said nothing yet."));
  const row = (who, hueClass, parts, text) => {
    const track = el("div", { class: "track" });
    for (const [kind, value] of parts) {
      if (whole && value) track.append(el("i", { class: kind, place: { left: percent(Math.min(at, whole), whole), width: percent(value, whole) } }));
      at += value || 0;
    }
    fall.append(el("span", { class: `who ${hueClass}` }, who), track, el("span", { class: "ms" }, text));
  };
  for (const hop of leg.route) {
    const told = leg.hops.find((entry) => entry.node === hop.node);
    const text = told?.tokens ? `wait ${ms(told.wait_ms)} compute ${ms(told.compute_ms)} ms` : told ? `prompt ${ms(told.prompt_wait_ms + told.prompt_compute_ms)} ms` : "nothing told yet";
    row(`${nameOf(hop.node)} ${hop.start}:${hop.stop}`, hue(hop.node), [["wait", told?.wait_ms], ["compute", told?.compute_ms]], text);
  }
  row("on the wire", "", [["wire", leg.wire_ms]], leg.wire_ms === null ? "–" : `${ms(leg.wire_ms)} ms`);
  return el("div", { class: "leg" }, head, fall);
}
function drawLinks() {
  return [...state.links].sort((a, b) => b.rtt_ms - a.rtt_ms).map((link) => el("tr", {},
    el("td", {}, nameOf(link.node)), el("td", {}, nameOf(link.peer)), el("td", { class: "n" }, ms(link.rtt_ms)),
    el("td", { class: "n" }, link.goodput_bytes_s ? (link.goodput_bytes_s / 1e6).toFixed(0) : "–"),
    el("td", {}, link.kind)));
}
let eventsDrawn = null;
function drawEvents() {
  if (eventsDrawn === events[0]) return;
  eventsDrawn = events[0];
  $("event-rows").replaceChildren(...events.map((note) => {
    const { at, event, level, ...fields } = note;
    const detail = Object.entries(fields).map(([key, value]) => `${key}=${value}`).join(" ");
    return el("li", { class: level }, el("time", {}, new Date(at * 1000).toLocaleTimeString([], { hour12: false })), el("div", {}, el("b", {}, event), " ", el("span", {}, detail)));
  }));
}
function drawChoices() {
  const names = state.models.filter((model) => model.covered).map((model) => model.name);
  const select = $("model");
  const shown = [...select.options].map((option) => option.value);
  if (names.join("\n") === shown.join("\n")) return;
  const kept = select.value;
  select.replaceChildren(...names.map((name) => el("option", { value: name }, name)));
  if (names.includes(kept)) select.value = kept;
  $("send").disabled = !names.length;
}

// ------------------------------------------------------------------ chat

const talk = [];
let answering = null; // {session, text, route, controller}

$("ask").addEventListener("submit", (event) => { event.preventDefault(); if (!answering) ask(); });
$("question").addEventListener("keydown", (event) => {
  if (event.key === "Enter" && !event.shiftKey && !event.isComposing) { event.preventDefault(); $("ask").requestSubmit(); }
});
$("stop").addEventListener("click", () => answering?.controller.abort());
$("clear").addEventListener("click", () => { answering?.controller.abort(); talk.length = 0; $("talk").replaceChildren(); $("question").focus(); });
$("key").addEventListener("submit", (event) => { event.preventDefault(); apiKey = $("key-text").value.trim(); $("key").hidden = true; });

async function ask() {
  const question = $("question").value.trim();
  if (!question || !$("model").value) return;
  $("question").value = "";
  talk.push({ role: "user", content: question });
  const text = el("div");
  const route = el("p", { class: "route" });
  if (talk.length === 1) $("talk").replaceChildren();
  $("talk").append(el("article", { class: "user" }, question), el("article", {}, text, route));
  answering = { session: "", text, route, controller: new AbortController(), stalled: "" };
  busy(true);
  try { await stream(answering); }
  catch (error) { if (error.name !== "AbortError") fault(answering, error.message); else route.append(" · stopped"); }
  if (text.textContent) talk.push({ role: "assistant", content: text.textContent });
  answering = null;
  busy(false);
}
function busy(is) { $("send").hidden = is; $("stop").hidden = !is; (is ? $("stop") : $("question")).focus({ preventScroll: true }); }
async function stream(answer) {
  const response = await fetch("/v1/chat/completions", {
    method: "POST", signal: answer.controller.signal,
    headers: { "Content-Type": "application/json", ...headers() },
    body: JSON.stringify({ model: $("model").value, messages: talk, temperature: 0.6, top_p: 0.95, stream: true, stream_options: { include_usage: true } }),
  });
  if (!response.ok) {
    if (response.status === 401) askKey();
    throw new Error((await response.json().catch(() => null))?.error?.message ?? `status ${response.status}`);
  }
  answer.session = response.headers.get("X-Swarm-Session") ?? "";
  for await (const line of lines(response)) {
    if (line.startsWith(": stalled")) { answer.stalled = line.slice(2); drawChatRoute(); }
    if (!line.startsWith("data: ") || line === "data: [DONE]") continue;
    const chunk = JSON.parse(line.slice(6));
    if (chunk.error) throw new Error(chunk.error.message);
    const piece = chunk.choices?.[0]?.delta?.content;
    if (piece) { answer.stalled = ""; append(answer.text, piece); }
    if (chunk.swarm) settle(answer, chunk);
  }
}
function append(node, piece) {
  const box = $("talk");
  const isAtEnd = box.scrollHeight - box.scrollTop - box.clientHeight < 40;
  node.append(piece);
  if (isAtEnd) box.scrollTop = box.scrollHeight;
}
function fault(answer, message) { answer.route.replaceChildren(el("span", { class: "fault" }, message)); }
const walked = (route) => route.map((hop) => `${state ? nameOf(hop.node) : short(hop.node)} ${hop.start}:${hop.stop}`).join(" → ");
function drawChatRoute() {
  const session = answering && state?.sessions.find((entry) => entry.id === answering.session);
  if (!session) return;
  const { route } = answering;
  route.replaceChildren(walked(session.route));
  if (!isSettled(session) || answering.stalled) route.append(" · ", el("span", { class: "bad" }, answering.stalled || "looking for another route"));
  else if (session.reroutes) route.append(" · ", el("span", { class: "half" }, pauses(session)));
}
function settle(answer, chunk) {
  const told = chunk.swarm;
  const parts = [walked(told.route), `first token ${ms(told.ttft_ms)} ms`, counted(chunk.usage?.completion_tokens ?? 0, "token")];
  answer.route.replaceChildren(parts.join(" · "));
  if (told.reroutes) answer.route.append(" · ", el("span", { class: "half" }, `${counted(told.reroutes, "reroute")}, paused ${told.stall_ms.map(ms).join(" + ")} ms, ${told.exact ? "the same tokens" : "not exact"}`));
}

setInterval(draw, 200);
follow();
