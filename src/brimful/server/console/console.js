// Keeps the page current: fetches its live part and changes only what differs, so that scroll position,
// selection and focus are kept. Without this file the page reloads itself instead.
"use strict";

const PATIENCE_MS = 5000;
const TONGUE = document.documentElement.lang; // of the page, which may not be the browser's
const live = document.getElementById("live");
const age = document.getElementById("age");
const lost = document.getElementById("lost");

let seen = "";
let answeredMs = Date.now();
let asking = false;
let timer = 0;

// The page's texts in the reader's language, with their values filled in.
function say(name, ...values) {
  return values.reduce((text, value, i) => text.replace(`%${i + 1}`, () => value), lost.dataset[name]);
}

async function ask() {
  if (asking) return;
  asking = true;
  clearTimeout(timer);
  try {
    const reply = await fetch(live.dataset.from, { cache: "no-cache", signal: AbortSignal.timeout(PATIENCE_MS) });
    if (!reply.ok) throw new Error(await problemIn(reply));
    take(await reply.text());
    answeredMs = Date.now();
    tellLoss("");
  } catch (error) {
    tellLoss(error.name === "Error" ? error.message : say("lost")); // ours, else fetch's own
  } finally {
    asking = false;
    tellAge();
    if (!document.hidden) timer = setTimeout(ask, 1000 * Number(live.dataset.every));
  }
}

async function problemIn(reply) {
  const body = await reply.json().catch(() => null);
  return say("answers", reply.status, body?.error?.problem ?? reply.statusText);
}

function take(html) {
  if (html === seen) return;
  const next = new DOMParser().parseFromString(html, "text/html").getElementById("live");
  if (next === null) throw new Error(say("other"));
  if (next.dataset.build !== live.dataset.build) location.reload();
  const key = document.querySelector('.corner [name="form_key"]').value;
  for (const field of next.querySelectorAll('[name="form_key"]')) field.setAttribute("value", key);
  localise(next);
  morph(live, next);
  document.title = live.dataset.title;
  tellRanks();
  seen = html;
}

// Make `now` equal to `next` in place. Children with an id are matched even if they have moved. Elements with
// data-keep are left to the reader: a half-filled form, an opened answer.
function morph(now, next) {
  if (now.nodeType !== Node.ELEMENT_NODE) {
    if (now.data !== next.data) now.data = next.data;
    return;
  }
  if (now.dataset.keep !== undefined) return;
  for (const { name } of [...now.attributes]) if (!next.hasAttribute(name)) now.removeAttribute(name);
  for (const { name, value } of next.attributes) {
    if (now.getAttribute(name) !== value) now.setAttribute(name, value);
  }
  let at = now.firstChild;
  for (const child of [...next.childNodes]) {
    const same = child.id ? [...now.children].find((each) => each.id === child.id) : at;
    if (same && same.nodeName === child.nodeName && (same.id ?? "") === (child.id ?? "")) {
      if (same === at) at = at.nextSibling;
      else now.insertBefore(same, at);
      morph(same, child);
    } else {
      now.insertBefore(child, at);
    }
  }
  while (at) {
    const gone = at;
    at = at.nextSibling;
    gone.remove();
  }
}

// Times arrive in UTC and are shown in the viewer's zone, with the date unless it is today.
function localise(root) {
  for (const time of root.querySelectorAll("time[datetime]")) {
    const at = new Date(time.dateTime);
    time.textContent = shown(at, time.dataset.exact !== undefined);
    time.title = at.toLocaleString(TONGUE, { dateStyle: "medium", timeStyle: "long" });
  }
  for (const field of root.querySelectorAll("input[data-utc]")) {
    const at = new Date(field.dataset.utc);
    field.value = new Date(at - 60000 * at.getTimezoneOffset()).toISOString().slice(0, 16);
  }
}

function shown(date, exact = false) {
  const parts = { hour: "2-digit", minute: "2-digit", ...(exact ? { second: "2-digit" } : {}), hourCycle: "h23" };
  const clock = date.toLocaleTimeString(TONGUE, parts);
  const today = date.toDateString() === new Date().toDateString();
  return today ? clock : `${date.toLocaleDateString(TONGUE, { day: "numeric", month: "short" })} ${clock}`;
}

function tellLoss(problem) {
  const text = problem && say("since", problem, shown(new Date(answeredMs), true));
  if (lost.textContent !== text) lost.textContent = text;
  lost.hidden = !problem;
  document.documentElement.classList.toggle("stale", Boolean(problem));
}

function tellAge() {
  const seconds = Math.max(0, Math.round((Date.now() - answeredMs) / 1000));
  const state = lost.hidden ? "live" : "stale";
  const text = say(state, seconds < 100 ? `${seconds} s` : `${Math.round(seconds / 60)} min`);
  if (age.textContent !== text) age.textContent = text;
  age.className = state;
}

// A job's log, as it grows. Inserted only as text, never as HTML, whatever a job prints.
const LOG_CHARS = 400000;
const logBox = document.getElementById("log");
const rank = document.getElementById("log-rank");

// How many processes have a log is known once the job has started, or has ended.
function tellRanks() {
  const ranks = Number(live.dataset.ranks ?? 0);
  for (let n = rank?.length ?? ranks; n < ranks; n++) rank.add(new Option(n));
  if (rank?.length > 1) rank.parentElement.hidden = false;
}

function followLog() {
  const state = document.getElementById("log-state");
  const find = document.getElementById("log-find");
  let text = "";
  let source = null;

  function show() {
    const atEnd = logBox.scrollTop + logBox.clientHeight >= logBox.scrollHeight - 8;
    const wanted = find.value.toLowerCase();
    logBox.textContent = wanted ? text.split("\n").filter((line) => line.toLowerCase().includes(wanted)).join("\n") : text;
    if (atEnd) logBox.scrollTop = logBox.scrollHeight;
  }

  function open() {
    source?.close();
    text = "";
    source = new EventSource(`${logBox.dataset.from}&rank=${rank.value}`);
    source.onopen = () => (text = "");
    source.addEventListener("log", (event) => {
      text = (text + JSON.parse(event.data).text).slice(-LOG_CHARS);
      show();
      state.textContent = say("growing");
    });
    source.addEventListener("over", (event) => {
      source.close();
      const phase = JSON.parse(event.data).phase;
      state.textContent = text ? say("ended", logBox.dataset[phase] ?? phase) : say("nothing");
    });
    source.addEventListener("error", () => (state.textContent = say("lost")));
    show();
  }

  find.addEventListener("input", show);
  document.getElementById("log-tools").addEventListener("submit", (event) => event.preventDefault());
  rank.addEventListener("change", () => {
    document.getElementById("log-file").href = `${logBox.dataset.file}?rank=${rank.value}`;
    open();
  });
  open();
}

if (logBox !== null) followLog();

// A time that the user types is in their zone: tell the server which.
document.addEventListener("submit", (event) => {
  const zone = event.target.elements.namedItem("zone_min");
  const moment = event.target.querySelector('[type="datetime-local"]');
  if (zone) zone.value = String(new Date(moment.value || Date.now()).getTimezoneOffset());
});

document.addEventListener("visibilitychange", () => (document.hidden ? clearTimeout(timer) : ask()));
setInterval(tellAge, 1000);
localise(document);
const zone = document.getElementById("zone"); // of all the times above it
zone.textContent = zone.dataset.says.replace("%1", () => Intl.DateTimeFormat().resolvedOptions().timeZone);
ask();
