"use strict";
(function () {
  const data = JSON.parse(document.getElementById("data").textContent);
  const r = document.getElementById("r"), alpha = document.getElementById("alpha");
  function show() {
    document.getElementById("r-out").textContent = r.value;
    document.getElementById("alpha-out").textContent = alpha.value;
    document.querySelectorAll(".lam").forEach(function (cell) {
      const rho = data.agents[Number(cell.dataset.agent)].rho;
      const clipped = Math.min(rho === null ? Infinity : rho, Number(alpha.value));
      cell.textContent = String(Number((1 + Number(r.value) * clipped).toPrecision(4)));
    });
  }
  r.addEventListener("input", show);
  alpha.addEventListener("input", show);
  // One tip for mouse and finger; the browser's own takes a second, and touch has none.
  const tip = document.getElementById("tip");
  function hover(event) {
    let spot = event.target;
    while (spot && spot.closest && !spot.dataset.tip) {
      const title = spot.querySelector(":scope > title");
      if (title) { spot.dataset.tip = title.textContent; spot.setAttribute("aria-label", title.textContent); title.remove(); break; }
      if (spot.title) { spot.dataset.tip = spot.title; spot.removeAttribute("title"); break; }
      spot = spot.parentElement;
    }
    tip.hidden = !(spot && spot.dataset && spot.dataset.tip);
    if (tip.hidden) return;
    tip.textContent = spot.dataset.tip;
    const room = document.documentElement.clientWidth - tip.offsetWidth - 8;
    tip.style.left = Math.max(8, Math.min(room, event.clientX + 12)) + "px";
    tip.style.top = (event.clientY > tip.offsetHeight + 24 ? event.clientY - tip.offsetHeight - 14 : event.clientY + 18) + "px";
  }
  document.addEventListener("pointermove", hover);
  document.addEventListener("pointerdown", hover);
  document.addEventListener("scroll", function () { tip.hidden = true; }, true);
  window.addEventListener("beforeprint", function () {
    document.querySelectorAll("#pairs details").forEach(function (d) { d.open = true; });
  });
  function save(name, type, text) {
    const link = document.createElement("a");
    link.href = "data:" + type + ";charset=utf-8," + encodeURIComponent(text);
    link.download = name;
    link.click();
  }
  document.getElementById("save-json").addEventListener("click", function () {
    save("probe.json", "application/json", JSON.stringify(data, null, 1));
  });
  document.getElementById("save-csv").addEventListener("click", function () {
    const quote = function (v) { return '"' + String(v === null ? "" : v).replace(/"/g, '""') + '"'; };
    const rows = [["layer", "module", "elements", "agent", "changed", "density", "unique", "shared"]];
    data.layers.forEach(function (place) {
      place.agents.forEach(function (a) {
        rows.push([place.layer, place.module, place.elements, a.name, a.changed, a.density, a.unique, a.shared]);
      });
    });
    save("layers.csv", "text/csv", rows.map(function (row) { return row.map(quote).join(","); }).join("\n"));
  });
})();
