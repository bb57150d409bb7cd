// Keeps the page true: asks for its live part every 2 s and changes only what differs, so that scroll,
// selection and focus stay where they are. Without this file the page reloads itself instead.
"use strict";

const EVERY_MS = 2000;
const PATIENCE_MS = 5000;
const live = document.getElementById("live");
const from = live.dataset.from;
const age = document.getElementById("age");
const lost = document.getElementById("lost");

let seen = "";
let answeredMs = Date.now();
let asking = false;
let timer = 0;

async function ask() {
  if (asking) return;
  asking = true;
  clearTimeout(timer);
  try {
    const reply = await fetch(from, { cache: "no-cache", signal: AbortSignal.timeout(PATIENCE_MS) });
    if (!reply.ok) throw new Error(await problemIn(reply));
    take(await reply.text());
    answeredMs = Date.now();
    tellLoss("");
  } catch (error) {
    tellLoss(error.name === "Error" ? error.message : "Connection lost"); // ours, else fetch's own
  } finally {
    asking = false;
    tellAge();
    if (!document.hidden) timer = setTimeout(ask, EVERY_MS);
  }
}

async function problemIn(reply) {
  const body = await reply.json().catch(() => null);
  return `The server answers ${reply.status}: ${body?.error?.problem ?? reply.statusText}`;
}

function take(html) {
  if (html === seen) return;
  const next = new DOMParser().parseFromString(html, "text/html").getElementById("live");
  if (next === null) throw new Error("The server answered with something else than the console");
  if (next.dataset.build !== live.dataset.build) location.reload();
  localise(next);
  morph(live, next);
  document.title = live.dataset.title;
  seen = html;
}

// Make `now` equal to `next` in place. Children with an id are found again wherever they have moved.
function morph(now, next) {
  if (now.nodeType !== Node.ELEMENT_NODE) {
    if (now.data !== next.data) now.data = next.data;
    return;
  }
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

// Times arrive in UTC and are shown in the viewer's zone, with the day where it is not today.
function localise(root) {
  for (const time of root.querySelectorAll("time[datetime]")) time.textContent = shown(new Date(time.dateTime));
}

function shown(date) {
  const clock = date.toLocaleTimeString([], { hour: "2-digit", minute: "2-digit", second: "2-digit", hourCycle: "h23" });
  const today = date.toDateString() === new Date().toDateString();
  return today ? clock : `${date.toLocaleDateString([], { day: "numeric", month: "short" })} ${clock}`;
}

function tellLoss(problem) {
  const text = problem && `${problem} since ${shown(new Date(answeredMs))}; retrying. The numbers below are from then.`;
  if (lost.textContent !== text) lost.textContent = text;
  lost.hidden = !problem;
  document.documentElement.classList.toggle("stale", Boolean(problem));
}

function tellAge() {
  const seconds = Math.max(0, Math.round((Date.now() - answeredMs) / 1000));
  const state = lost.hidden ? "live" : "stale";
  const text = `${state} · ${seconds < 100 ? `${seconds} s` : `${Math.round(seconds / 60)} min`} ago`;
  if (age.textContent !== text) age.textContent = text;
  age.className = state;
}

// A job's log, as it grows. Text is only ever text here, whatever a job prints.
const LOG_CHARS = 400000;
const logBox = document.getElementById("log");

function followLog() {
  const state = document.getElementById("log-state");
  const source = new EventSource(logBox.dataset.from);
  let begun = false;
  source.onopen = () => {
    if (begun) logBox.textContent = "";
    begun = true;
  };
  source.addEventListener("log", (event) => {
    const atEnd = logBox.scrollTop + logBox.clientHeight >= logBox.scrollHeight - 8;
    const text = logBox.textContent + JSON.parse(event.data).text;
    logBox.textContent = text.length > LOG_CHARS ? text.slice(-LOG_CHARS) : text;
    if (atEnd) logBox.scrollTop = logBox.scrollHeight;
    state.textContent = "live";
  });
  source.addEventListener("over", (event) => {
    source.close();
    state.textContent = logBox.textContent ? `ended: ${JSON.parse(event.data).phase}` : "it printed nothing";
  });
  source.addEventListener("error", () => (state.textContent = "connection lost; retrying"));
}

if (logBox !== null) followLog();

document.addEventListener("visibilitychange", () => (document.hidden ? clearTimeout(timer) : ask()));
setInterval(tellAge, 1000);
localise(document);
ask();
