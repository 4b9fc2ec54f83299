"use strict";
(function () {
  const search = document.getElementById("filter-text");
  const stage = document.getElementById("filter-stage");
  const kind = document.getElementById("filter-kind");
  const shown = document.getElementById("shown");
  const entries = Array.from(document.querySelectorAll("tbody.entry")).map((body) => ({
    body, text: body.rows[0].textContent.toLowerCase(),
  }));

  function setOpen(button, isOpen) {
    button.setAttribute("aria-expanded", String(isOpen));
    document.getElementById(button.getAttribute("aria-controls")).hidden = !isOpen;
  }

  for (const button of document.querySelectorAll("button.open")) {
    button.addEventListener("click", () => setOpen(button, button.getAttribute("aria-expanded") !== "true"));
  }

  function filter() {
    const words = search.value.toLowerCase().split(/\s+/).filter(Boolean);
    let count = 0;
    for (const { body, text } of entries) {
      const fits = (!stage.value || body.dataset.stage === stage.value)
        && (!kind.value || body.dataset.kind === kind.value)
        && words.every((word) => text.includes(word));
      body.hidden = !fits;
      count += fits;
    }
    for (const heading of document.querySelectorAll("tbody.heading")) {
      heading.hidden = !entries.some(({ body }) => !body.hidden && body.dataset.stage === heading.dataset.stage);
    }
    shown.textContent = count === entries.length ? `${count} shown` : `${count} of ${entries.length} shown`;
  }

  if (search) {
    search.addEventListener("input", filter);
    stage.addEventListener("change", filter);
    kind.addEventListener("change", filter);
    for (const button of document.querySelectorAll(".heat button")) {
      button.addEventListener("click", () => {
        stage.value = button.dataset.stage;
        filter();
        document.getElementById("causes").scrollIntoView();
        stage.focus();
      });
    }
    filter();
  }
})();
