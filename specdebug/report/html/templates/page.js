"use strict";
(function () {
  const tip = document.getElementById("tip");

  // What lies under the pointer says what it is.
  function show(event) {
    const marked = event.target.closest ? event.target.closest("[data-tip]") : null;
    tip.hidden = !marked;
    if (!marked) return;
    tip.textContent = marked.getAttribute("data-tip");
    const box = tip.getBoundingClientRect();
    const right = event.clientX + 14 + box.width > window.innerWidth;
    const low = event.clientY + 14 + box.height > window.innerHeight;
    tip.style.left = Math.max(4, right ? event.clientX - box.width - 14 : event.clientX + 14) + "px";
    tip.style.top = Math.max(4, low ? event.clientY - box.height - 14 : event.clientY + 14) + "px";
  }
  document.addEventListener("pointermove", show);
  document.addEventListener("pointerdown", show);
  document.addEventListener("scroll", function () { tip.hidden = true; }, true);
  document.addEventListener("keydown", function (event) { if (event.key === "Escape") tip.hidden = true; });

  // A filter leaves the rows that hold its words.
  for (const input of document.querySelectorAll("input[data-filter]")) {
    input.addEventListener("input", function () {
      const words = input.value.toLowerCase().split(/\s+/).filter(Boolean);
      for (const row of document.getElementById(input.dataset.filter).tBodies[0].rows) {
        const text = row.textContent.toLowerCase();
        row.hidden = !words.every(function (word) { return text.includes(word); });
      }
    });
  }

  // A request's row lights up its line.
  for (const row of document.querySelectorAll("tr[data-rid]")) {
    const light = function (on) {
      for (const line of row.closest("section").querySelectorAll(".plot [data-rid]")) {
        line.classList.toggle("lit", on && line.dataset.rid === row.dataset.rid);
      }
    };
    row.addEventListener("pointerenter", function () { light(true); });
    row.addEventListener("pointerleave", function () { light(false); });
  }
})();
