// Pages work without this script. It adds a button to each element with data-copy that copies its value, or its text,
// says when a page could not refresh, and ignores the second of two clicks on a form's button.
"use strict";
document.addEventListener("htmx:load", (loaded) => {
  if (!navigator.clipboard) return; // only secure origins have it
  for (const element of loaded.target.querySelectorAll("[data-copy]")) {
    const button = document.createElement("button");
    button.type = "button";
    button.className = "copy";
    button.textContent = "Copy";
    const text = element.dataset.copy || element.textContent;
    button.addEventListener("click", () => navigator.clipboard.writeText(text).then(() => { button.textContent = "Copied"; }));
    element.append(" ", button);
  }
});

let current = new Date(); // when the page last showed Herald's state

function showStale(why) {
  const note = document.getElementById("stale");
  const text = `Not refreshed since ${current.toISOString().slice(11, 19)} UTC: ${why}`;
  if (note.textContent !== text) note.textContent = text; // a screen reader reads each change
}

// A refresh would close an open text and lose the focus of the keyboard or the selection, so it waits.
function isUsed(part) {
  const selection = getSelection();
  return part.querySelector(":focus-visible, details[open]") ||
    !selection.isCollapsed && selection.containsNode(part, true);
}

document.addEventListener("htmx:beforeOnLoad", (event) => {
  const { xhr } = event.detail, reload = xhr.getResponseHeader("HX-Refresh");
  if (xhr.status !== 200 || ![...document.querySelectorAll(reload ? "main" : "#live, #rest")].some(isUsed)) return;
  event.preventDefault();
  showStale(reload ? "the delivery has changed. Reload the page." :
    "a text is open or selected here, or a link has the focus.");
});
document.addEventListener("htmx:afterSwap", () => {
  current = new Date();
  document.getElementById("stale").textContent = "";
});
document.addEventListener("htmx:responseError", (event) => {
  showStale(`Herald answered ${event.detail.xhr.status}. Reload the page.`);
});
for (const fault of ["htmx:sendError", "htmx:timeout"]) {
  document.addEventListener(fault, () => showStale("Herald does not answer."));
}

let sent = -Infinity; // when a form was sent
document.addEventListener("submit", (event) => {
  if (event.target.method !== "post") return;
  if (event.timeStamp - sent < 1000) event.preventDefault();
  else sent = event.timeStamp;
});
