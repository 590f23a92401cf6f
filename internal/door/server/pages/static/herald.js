// Adds a button to each element with data-copy that copies its value, or its text. Pages work without it.
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
