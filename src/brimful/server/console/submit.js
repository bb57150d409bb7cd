// Checks a job while it is typed: half a second after the last key, asks the server what would happen to it.
"use strict";

const TONGUE = document.documentElement.lang; // of the page, which may not be the browser's

const form = document.getElementById("job");
const fields = [...form.querySelectorAll("[data-side]")];
let edited = form.elements.edited;
let timer = 0;
let asked = 0;

async function check() {
  const mine = ++asked;
  form.elements.zone_min.value = String(new Date(form.elements.deadline.value || Date.now()).getTimezoneOffset());
  const body = new URLSearchParams(new FormData(form));
  body.delete("token");
  body.set("part", "1");
  const reply = await fetch("/submit/check", { method: "POST", body });
  if (mine !== asked || !reply.ok) return;
  const next = new DOMParser().parseFromString(await reply.text(), "text/html");
  document.getElementById("check").replaceWith(next.getElementById("check"));
  // Update the other side to match; leave the field that is being edited alone.
  for (const said of document.querySelectorAll("#check [data-says]")) {
    const field = form.elements[said.dataset.says];
    if (field !== document.activeElement && field.value !== said.textContent) field.value = said.textContent;
  }
  for (const time of document.querySelectorAll("#check time[datetime]")) time.textContent = shown(new Date(time.dateTime));
  // The server is still computing when it would start.
  if (document.querySelector("#check [data-again]")) timer = setTimeout(check, 1000);
}

function shown(date) {
  const clock = date.toLocaleTimeString(TONGUE, { hour: "2-digit", minute: "2-digit", hourCycle: "h23" });
  const today = date.toDateString() === new Date().toDateString();
  return today ? clock : `${date.toLocaleDateString(TONGUE, { day: "numeric", month: "short" })} ${clock}`;
}

form.addEventListener("input", (event) => {
  if (event.target.dataset.side) edited.value = event.target.dataset.side;
  else if (event.target.name !== "config") return;
  asked += 1; // an answer still under way is about the old text, and would undo this edit
  clearTimeout(timer);
  timer = setTimeout(check, 500);
});
if (fields.some((field) => field.value && field.name === "command")) check();
