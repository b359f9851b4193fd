// What HTML and htmx do not do by themselves. Every page works without it.
"use strict";

const kept = { open: [], scrolled: [] };

function typing(within) {
  const at = document.activeElement;
  return within.contains(at) && at.matches("input, select, textarea");
}

// Nothing is read while nobody looks, and nothing is replaced under someone who types.
document.addEventListener("htmx:beforeRequest", (event) => {
  if (document.hidden || typing(event.target)) event.preventDefault();
});
document.addEventListener("htmx:beforeSwap", (event) => {
  const read = event.detail.xhr.responseText.includes('id="live"');
  if (typing(event.detail.target) || !read) event.detail.shouldSwap = false;
  kept.open = [...document.querySelectorAll("#live details[open][id]")].map((one) => one.id);
  kept.scrolled = [...document.querySelectorAll("#live [data-keep][id]")].map((one) => [one.id, one.scrollLeft, one.scrollTop]);
});
document.addEventListener("htmx:afterSwap", () => {
  for (const id of kept.open) document.getElementById(id)?.setAttribute("open", "");
  for (const [id, left, top] of kept.scrolled) document.getElementById(id)?.scrollTo(left, top);
});

function connection(text) {
  const at = document.getElementById("connection");
  if (at.textContent !== text) at.textContent = text;
}
const LOST = "The service does not answer. What you see is old; the page goes on when it answers again.";
for (const name of ["htmx:sendError", "htmx:sseError"]) document.addEventListener(name, () => connection(LOST));
for (const name of ["htmx:afterSwap", "htmx:sseOpen"]) document.addEventListener(name, () => connection(""));
document.addEventListener("htmx:responseError", (event) => connection(`The service answered ${event.detail.xhr.status}.`));

// The SQL page: Ctrl-Enter, and the statements of this tab.
const sql = document.getElementById("sql");
if (sql) {
  const form = document.getElementById("sql-form");
  sql.addEventListener("keydown", (event) => {
    if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) form.requestSubmit(form.querySelector("button"));
  });
  const before = JSON.parse(sessionStorage.getItem("sql") ?? "[]");
  form.addEventListener("submit", () => {
    const all = [sql.value, ...before.filter((one) => one !== sql.value)].slice(0, 50);
    sessionStorage.setItem("sql", JSON.stringify(all));
  });
  document.getElementById("history").hidden = before.length === 0;
  for (const text of before) {
    const button = Object.assign(document.createElement("button"), { type: "button", textContent: text.slice(0, 200) });
    button.addEventListener("click", () => { sql.value = text; sql.focus(); });
    document.getElementById("history-list").appendChild(document.createElement("li")).append(button);
  }
}
