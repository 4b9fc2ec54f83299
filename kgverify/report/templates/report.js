"use strict";
(function () {
  const byId = (id) => document.getElementById(id);
  const ROW = 46;

  function setOpen(button, isOpen) {
    button.setAttribute("aria-expanded", String(isOpen));
    byId(button.getAttribute("aria-controls")).hidden = !isOpen;
    focusScrolling();
  }

  for (const button of document.querySelectorAll("button.open")) {
    button.addEventListener("click", () => setOpen(button, button.getAttribute("aria-expanded") !== "true"));
  }

  // A table that a narrow window lays out as a grid is still a table.
  const ROLES = { "": "table", " thead": "rowgroup", " tbody": "rowgroup", " tr": "row", " td": "cell", " th[scope=col]": "columnheader", " th[scope=rowgroup]": "rowheader", " th[scope=row]": "rowheader" };
  function setRoles() {
    for (const [tag, role] of Object.entries(ROLES)) {
      for (const each of document.querySelectorAll(`table.side${tag}`)) each.setAttribute("role", role);
    }
  }
  setRoles();

  // What scrolls sideways can be reached with the keyboard.
  function focusScrolling() {
    for (const box of document.querySelectorAll(".scroll")) {
      if (box.scrollWidth > box.clientWidth) box.tabIndex = 0; else box.removeAttribute("tabindex");
    }
  }
  addEventListener("resize", focusScrolling);
  focusScrolling();

  // Text of a trace only ever becomes a text node.
  function make(tag, about, ...children) {
    const element = document.createElement(tag);
    for (const [name, value] of Object.entries(about || {})) {
      if (value !== null && value !== false) element.setAttribute(name, value === true ? "" : value);
    }
    element.append(...children.filter((child) => child !== null && child !== ""));
    return element;
  }

  const code = (text) => make("code", null, text);

  // One key, button or link is one act: it changes something in sight, or a message says why it did not; Back undoes it.
  const message = byId("message");
  const page = { look: () => ({}), top: () => 0, restore() {}, address: () => location.hash || location.pathname };
  const boxes = [...document.querySelectorAll("details[data-key]")];
  history.scrollRestoration = "manual";

  function look() {
    return { ...page.look(), open: boxes.map((box) => box.open) };
  }

  // A browser may refuse when a key is held down.
  function save(method) {
    const focus = document.activeElement?.id || null;
    try {
      history[method]({ ...look(), message: message.textContent, focus, top: scrollY, list: page.top() }, "", page.address());
    } catch { /* Back then undoes several keys. */ }
  }

  function say(text) {
    const [, before, num] = message.textContent.match(/^(.*?)(?: \((\d+) times\))?$/s);
    message.textContent = text && text === before ? `${text} (${Number(num || 1) + 1} times)` : text;
  }

  function act(change, isRepeated) {
    if (!isRepeated) save("replaceState");
    const before = look();
    const reason = change();
    const after = look();
    const changed = Object.keys(after).filter((name) => JSON.stringify(after[name]) !== JSON.stringify(before[name]));
    say(reason || (changed.length ? "" : "this is shown already"));
    if (changed.includes("open")) reveal(boxes.find((box, i) => box.open !== before.open[i]));
    else if (changed.length) reveal(page.target(before, after));
    if (!isRepeated) save("pushState");
  }

  function reveal(element) {
    if (element) element.scrollIntoView({ block: element.matches("button") ? "center" : "start" });
  }

  function toggle(box) {
    box.open = !box.open;
    return "";
  }

  addEventListener("popstate", ({ state }) => {
    if (!state) return;
    boxes.forEach((box, i) => { box.open = state.open[i]; });
    page.restore(state);
    message.textContent = state.message;
    const focus = state.focus && byId(state.focus);
    if (focus) focus.focus({ preventScroll: true });
    else if (document.activeElement) document.activeElement.blur();
    scrollTo(0, state.top);
  });
  // A link of the page, or an address that somebody typed.
  addEventListener("hashchange", () => { if (!history.state) openAddress(); });
  document.addEventListener("click", (event) => {
    const link = event.target.closest('a[href^="#"]');
    if (!link) return;
    save("replaceState");
    if (link.hash !== location.hash) return;
    event.preventDefault();
    openAddress();
    say(`the address of this place ends in ${link.hash}`);
  });

  function openAddress() {
    const given = new URLSearchParams(location.hash.slice(1));
    const named = location.hash.slice(1, 80);
    if (!named) return;
    const box = boxes.find((each) => each.id === named);
    if (box) box.open = true;
    const element = byId(named);
    let reason = "";
    if (element) reveal(element);
    else if (page.open && given.has("divergence")) reason = page.open(given);
    else reason = `this page has nothing at #${named}`;
    say(reason);
    if (element || !reason) save("replaceState");
  }

  document.addEventListener("keydown", (event) => {
    const target = event.target;
    if ((byId("keys") && !byId("keys").checked) || event.ctrlKey || event.metaKey || event.altKey || event.isComposing) return;
    if (target.closest("input:not([type=checkbox]), select, textarea")) return;
    const box = boxes.find((each) => each.dataset.key.includes(event.key));
    if (box) act(() => toggle(box), event.repeat);
    else if (!page.press?.(event.key, event.repeat)) return;
    event.preventDefault();
  });
  const plural = (num, word) => `${num.toLocaleString("en")} ${word}${num === 1 ? "" : "s"}`;

  async function read(id) {
    const binary = atob(byId(id).textContent);
    const bytes = new Uint8Array(binary.length);
    for (let i = 0; i < binary.length; i++) bytes[i] = binary.charCodeAt(i);
    const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("deflate"));
    return JSON.parse(await new Response(stream).text());
  }

  async function start() {
    const state = byId("viewer-state");
    if (typeof DecompressionStream === "undefined") {
      state.className = "warning";
      state.textContent = "This browser lacks DecompressionStream, which the list and the steps need: Chrome and Edge 80, Firefox 113 and Safari 16.4 have it.";
      return;
    }
    state.textContent = "Reading the divergences…";
    // The page is painted before its data is read.
    await new Promise((resolve) => setTimeout(resolve));
    try {
      const words = JSON.parse(byId("viewer-words").textContent);
      const [listed, { divergences, steps, trees }] = await Promise.all([read("divergence-data"), read("step-data")]);
      for (const each of Object.values(divergences)) each.steps = each.steps.map((index) => steps[index]);
      view(listed, divergences, trees, words);
      state.textContent = "";
      openAddress();
    } catch (error) {
      state.className = "warning";
      state.textContent = `The data of this page cannot be read (${error.message}); write the page again.`;
    }
  }

  function view({ texts, columns }, stepped, trees, words) {
    const num = columns.candidate.length;
    const text = (name, i) => texts[columns[name][i]];
    const list = byId("list"), space = byId("list-space"), panel = byId("position");
    const search = byId("filter-text"), stageFilter = byId("filter-stage"), kindFilter = byId("filter-kind");
    let rows = Array.from({ length: num }, (_, i) => i);
    let haystacks = null;
    let at = { divergence: 0, step: columns.step[0], stage: null };
    let drawn = null;
    let treeIsOpen = false;

    // The list: only the rows in sight are elements.
    function drawList() {
      space.style.height = `${rows.length * ROW}px`;
      const begin = Math.max(0, Math.floor(list.scrollTop / ROW) - 4);
      const end = Math.min(rows.length, Math.ceil((list.scrollTop + list.clientHeight) / ROW) + 4);
      const options = [];
      for (let place = begin; place < end; place++) options.push(option(place));
      space.replaceChildren(...options);
      const current = byId(`option-${at.divergence}`);
      if (current) list.setAttribute("aria-activedescendant", current.id);
      else list.removeAttribute("aria-activedescendant");
    }

    function option(place) {
      const i = rows[place];
      const row = make("div", {
        role: "option", id: `option-${i}`, "aria-selected": String(i === at.divergence),
        "aria-posinset": place + 1, "aria-setsize": rows.length, title: text("atom", i),
      },
      make("span", { class: "what" }, make("b", null, String(i + 1)), ` ${text("stage", i)} · ${text("what", i)}`),
      make("span", { class: "atom" }, code(text("atom", i)), columns.step[i] >= 0 ? ` step ${columns.step[i]}` : ""));
      row.style.top = `${place * ROW}px`;
      row.addEventListener("click", () => act(() => go(i)));
      return row;
    }

    function placeOf(divergence) {
      let low = 0, high = rows.length;
      while (low < high) {
        const middle = (low + high) >> 1;
        if (rows[middle] < divergence) low = middle + 1; else high = middle;
      }
      return low;
    }

    function scrollToCurrent() {
      const place = placeOf(at.divergence);
      if (rows[place] !== at.divergence) return;
      const top = place * ROW;
      if (top < list.scrollTop) list.scrollTop = top;
      else if (top + ROW > list.scrollTop + list.clientHeight) list.scrollTop = top + ROW - list.clientHeight;
    }

    function filter() {
      const given = search.value.toLowerCase().split(/\s+/).filter(Boolean);
      if (given.length && !haystacks) {
        const lower = texts.map((each) => each.toLowerCase());
        const { atom, stage, what, side, level, candidate, query } = columns;
        haystacks = Array.from({ length: num }, (_, i) => `${lower[atom[i]]} ${lower[stage[i]]} ${lower[what[i]]} ${lower[side[i]]} ${lower[level[i]]} candidate ${candidate[i]} query ${query[i]}`);
      }
      rows = [];
      for (let i = 0; i < num; i++) {
        if (stageFilter.value && text("stage", i) !== stageFilter.value) continue;
        if (kindFilter.value && text("kind", i) !== kindFilter.value) continue;
        if (given.every((word) => haystacks[i].includes(word))) rows.push(i);
      }
      byId("shown").textContent = !rows.length ? "no divergence fits the search" : rows.length === num ? `${num.toLocaleString("en")} shown` : `${rows.length.toLocaleString("en")} of ${num.toLocaleString("en")} shown`;
      list.scrollTop = 0;
      scrollToCurrent();
      drawList();
    }

    // The position.
    const own = () => stepped[at.divergence];
    const stepAt = (step) => own() ? own().steps.find(([number]) => number === step) : undefined;
    const culpritOf = (step) => step ? step[3].findIndex((line) => line[5]) : -1;

    function go(divergence, step, stage) {
      at = { divergence, step: step ?? columns.step[divergence], stage: null };
      const found = stepAt(at.step);
      const named = found && stage ? found[3].findIndex((line) => line[0] === stage) : -1;
      at.stage = named >= 0 ? named : culpritOf(found);
      show();
    }

    function show() {
      const isOther = drawn !== at.divergence;
      const hadFocus = panel.contains(document.activeElement);
      drawn = at.divergence;
      if (isOther) {
        panel.replaceChildren(...title(), ...difference(), ...timeline(), ...tree(), make("div", { id: "step" }));
        byId("go-divergence").value = at.divergence + 1;
        if (byId("go-cause")) byId("go-cause").value = columns.cause[at.divergence] >= 0 ? columns.cause[at.divergence] + 1 : "";
        scrollToCurrent();
        drawList();
      }
      for (const button of panel.querySelectorAll("[data-step]")) {
        const isCurrent = Number(button.dataset.step) === at.step;
        if (isCurrent) button.setAttribute("aria-current", "step"); else button.removeAttribute("aria-current");
        const row = button.closest("tr");
        if (row) row.classList.toggle("current", isCurrent);
        if (row && isCurrent) keepInSight(row);
      }
      byId("step").replaceChildren(...stepParts());
      setRoles();
      // An element that had the focus may be gone.
      if (hadFocus && !panel.contains(document.activeElement)) panel.focus();
      const found = stepAt(at.step);
      byId("announced").textContent = `Divergence ${at.divergence + 1}${found ? `, step ${at.step}: ${at.step === columns.step[at.divergence] ? "diverges here" : found[1]}` : ""}`;
    }

    function keepInSight(row) {
      const box = panel.querySelector(".timeline");
      box.scrollTop = row.offsetTop - (box.clientHeight - row.offsetHeight) / 2;
    }

    function address() {
      const found = stepAt(at.step), step = at.step >= 0 ? `&step=${at.step}` : "";
      const stage = found && at.stage >= 0 && at.stage !== culpritOf(found) ? `&stage=${encodeURIComponent(found[3][at.stage][0])}` : "";
      return `#divergence=${at.divergence + 1}${step}${stage}`;
    }

    function title() {
      const i = at.divergence, cause = columns.cause[i];
      const facts = [
        ["candidate", [`${columns.candidate[i]}: `, code(text("atom", i)), ` (query ${columns.query[i]}, ${text("side", i)} side)`]],
        ["difference", [`${text("stage", i)}: ${text("what", i)}${own() ? `; ${own().found}` : ""}`]],
        ["level", [`${text("level", i)}: ${words.levels[text("level", i)]}`]],
        ["field", [code(text("field", i))]],
      ];
      if (cause >= 0) facts.splice(1, 0, ["cause", [`${cause + 1}: ${words.causes[cause] || "see report.json"}`]]);
      if (own() && own().condition) facts.push(["condition", [own().condition]]);
      if (columns.later_steps[i]) facts.push(["later", [columns.later_steps[i] === 1 ? "1 later step was not compared" : `${columns.later_steps[i]} later steps were not compared`]]);
      return [
        make("h3", { class: "at" }, `Divergence ${(i + 1).toLocaleString("en")} of ${words.total.toLocaleString("en")}`),
        make("dl", { class: "facts" }, ...facts.flatMap(([name, parts]) => [make("dt", null, name), make("dd", null, ...parts)])),
      ];
    }

    function difference() {
      if (!own()) {
        return [make("p", { class: "warning" }, "The steps of this divergence are not in this page. In the folder of the run: ", code(`kgverify show . --divergence ${at.divergence + 1}`))];
      }
      const side = (name, place, lines) => make("div", { class: place }, make("strong", { class: place === "left" ? "e" : "a" }, name), ...lines.map(code));
      return [make("h4", null, "The difference"), make("div", { class: "values" }, side("expected", "left", own().expected), side("actual", "right", own().actual))];
    }

    const goalOf = (step, side) => step[2][2].map((atoms) => atoms[side]).filter((atom) => atom !== null).join(", ");
    function clauseOf(step, side) {
      const pair = step[2][4].find((each) => each[1 + side] && each[1 + side][4]);
      return pair ? pair[1 + side][2] || pair[1 + side][1] : "";
    }

    function timeline() {
      if (!own() || !own().steps.length) return [];
      const [left, right] = own().num_steps;
      const held = own().steps.length, most = Math.max(left, right);
      const cell = (step, side) => make("td", { class: side ? "right" : "left" },
        goalOf(step, side) ? code(goalOf(step, side)) : make("span", { class: "soft" }, step[1] === (side ? "expected only" : "actual only") ? "no such step" : "not recorded"),
        clauseOf(step, side) ? make("span", { class: "by" }, "by ", code(clauseOf(step, side))) : "");
      const entries = own().steps.map((step) => {
        const button = make("button", { type: "button", "data-step": step[0] }, `step ${step[0]}`, make("span", { class: "vh" }, ": "), make("span", { class: "mark" }, step[0] === columns.step[at.divergence] ? "diverges here" : step[1]));
        button.addEventListener("click", () => act(() => go(at.divergence, step[0])));
        return make("tr", { class: step[1] === "agrees" ? null : step[1] === "differs" ? "differs" : "follows" },
          make("th", { scope: "row", class: "mark" }, button), cell(step, 0), cell(step, 1));
      });
      return [
        make("h4", { id: "h-timeline" }, "Timeline"),
        make("p", { class: "soft" }, left === right ? `${plural(left, "step")} on both sides` : `${plural(left, "step")} expected, ${left ? right : plural(right, "step")} actual`,
          held < most ? `; ${held} around the divergent one are in this page` : ""),
        make("div", { class: "timeline" }, table("h-timeline", "step", entries)),
      ];
    }

    // A proof tree: lines of depth, atom, clause, step, note.
    function tree() {
      const sides = own() && trees[columns.candidate[at.divergence]];
      if (!sides) return [];
      const keys = sides.map((lines) => lines.map((line) => line.slice(0, 3).join("\n")));
      const side = (name, place, lines, others) => make("div", { class: place },
        make("strong", { class: place === "left" ? "e" : "a" }, name),
        lines.length ? nested(lines, (line) => !others.includes(line.slice(0, 3).join("\n"))) : make("p", { class: "soft" }, "not determined by the steps"));
      const box = make("details", { class: "tree" }, make("summary", null, "Proof tree ", make("kbd", { "aria-hidden": "true" }, "t")),
        make("div", { class: "values" }, side("expected", "left", sides[0], keys[1]), side("actual", "right", sides[1], keys[0])));
      box.open = treeIsOpen;
      box.addEventListener("toggle", () => { treeIsOpen = box.open; });
      return [box];
    }

    function nested(lines, differs) {
      const root = make("ul");
      const lists = [root];
      for (const line of lines) {
        const [depth, atom, clause, step, note] = line;
        const button = make("button", { type: "button", "data-step": step }, `step ${step}`);
        button.addEventListener("click", () => act(() => go(at.divergence, step)));
        const item = make("li", { class: differs(line) ? "differs" : null },
          stepAt(step) ? button : make("span", { class: "soft" }, step >= 0 ? `step ${step}` : note), " ", code(atom),
          clause ? make("span", { class: "by" }, "by ", code(clause)) : step >= 0 ? make("span", { class: "by" }, note) : "");
        lists[depth].append(item);
        lists.length = depth + 1;
        lists.push(make("ul"));
        item.append(lists[depth + 1]);
      }
      for (const list of root.querySelectorAll("ul:empty")) list.remove();
      return root;
    }

    function table(label, first, entries) {
      const head = (name, kind) => make("th", { scope: "col", class: kind }, name);
      return make("table", { class: "side", "aria-labelledby": label },
        make("colgroup", null, make("col", { class: "mark" }), make("col"), make("col")),
        make("thead", null, make("tr", null, head(first, "mark"), head("expected", "e"), head("actual", "a"))),
        make("tbody", null, ...entries));
    }

    function stepParts() {
      const i = at.divergence;
      if (!own()) return [];
      const found = stepAt(at.step);
      if (!found) {
        const note = own().own ? own().own[6] : "";
        return [make("p", { class: "soft" }, note || (own().steps.length ? "This divergence is not in a step; f goes to the first step." : "There is no derivation to step through."))];
      }
      const [number, mark, derivation, stages] = found;
      const [, , goals, goalIsCulprit, pairs, facts, note] = derivation;
      const stage = (number === columns.step[i] && text("stage", i)) || "";
      const arrow = () => make("span", { class: "arrow" }, `➤ ${stage}`);
      const section = (name) => make("tr", { class: "section" }, make("th", { scope: "rowgroup", colspan: 3 }, name));
      const entry = (differs, first, left, right) => make("tr", { class: differs ? "differs" : null }, make("td", { class: "mark" }, ...first), left, right);
      const plain = (side, content) => make("td", { class: `${side ? "right" : "left"}${content ? "" : " blank"}` }, content ? code(content) : make("span", { class: "vh" }, "none"));
      const resolvent = (side, line) => line ? make("td", { class: side ? "right" : "left" },
        line[3] ? make("span", { class: "score" }, line[3]) : "", code(line[1]),
        line[4] ? make("span", { class: "chosen" }, "chosen") : "",
        line[2] ? make("span", { class: "by" }, "by ", code(line[2])) : "") : plain(side, "");
      const entries = [];
      if (goals.length) {
        entries.push(section("goal"));
        goals.forEach(([left, right], line) => {
          const differs = left !== right && !note;
          entries.push(entry(differs, [goalIsCulprit && !line ? arrow() : "", differs ? "≠ differs" : ""], plain(0, left), plain(1, right)));
        });
      }
      if (pairs.length) {
        entries.push(section("resolvents"));
        for (const [kind, left, right, isCulprit, hidden, differing] of pairs) {
          if (kind === "hidden") {
            entries.push(make("tr", null, make("td", { class: "mark" }), make("td", { class: "soft", colspan: 2 }, `… ${hidden.toLocaleString("en")} more, ${differing ? `${differing.toLocaleString("en")} of them different` : "all the same"}`)));
          } else {
            entries.push(entry(kind !== "same", [isCulprit ? arrow() : "", words.marks[kind] || ""], resolvent(0, left), resolvent(1, right)));
          }
        }
      }
      if (facts.length) entries.push(section("step"));
      for (const [name, left, right, isCulprit] of facts) {
        entries.push(entry(left !== right && !note, [isCulprit ? arrow() : "", name], plain(0, left), plain(1, right)));
      }
      const where = number === columns.step[i] ? "diverges here" : mark;
      return [
        make("h4", { id: "h-step" }, make("a", { href: address() }, `Step ${number}`), make("span", { class: "state" }, where)),
        note ? make("p", { class: "warning" }, note) : "",
        make("div", null, table("h-step", `step ${number}`, entries)),
        ...(stages.length ? [make("h4", { id: "h-stages" }, "Stage by stage"), table("h-stages", "stage", stages.flatMap(stageRows))] : []),
      ].filter(Boolean);
    }

    function stageRows([name, mark, left, right, note, isCulprit], index) {
      const isOpen = index === at.stage;
      const summary = (items) => items.length === 1 ? items[0] : items.length ? plural(items.length, "item") : "";
      const cell = (side, items, others) => make("td", { class: `${side ? "right" : "left"}${items.length ? "" : " blank"}` },
        ...(isOpen ? items.map((item) => make("span", { class: others.includes(item) ? "item" : "item only" }, code(item))) : [code(summary(items))]));
      const button = make("button", { type: "button", "data-stage": index, "aria-expanded": String(isOpen), class: "stage" }, isCulprit ? "➤ " : "", name, make("span", { class: "vh" }, ": "), make("span", { class: "mark" }, mark));
      button.addEventListener("click", () => act(() => toStage(isOpen ? -1 : index)));
      const rowsOf = [make("tr", { class: `stage ${mark === "differs" ? "differs" : mark === "follows" ? "follows" : ""}${isCulprit ? " culprit" : ""}` },
        make("th", { scope: "row", class: "mark" }, button), cell(0, left, right), cell(1, right, left))];
      if (isOpen) rowsOf.push(make("tr", null, make("td", { class: "mark" }, make("a", { href: address(), "aria-label": `link to stage ${name}` }, "link")), make("td", { colspan: 2, class: "soft" }, note)));
      return rowsOf;
    }

    // The moves: those of the stepper in the terminal.
    function toStage(index) {
      const hadFocus = document.activeElement && document.activeElement.classList.contains("stage");
      at.stage = index;
      show();
      const button = panel.querySelector(`button.stage[data-stage="${Math.max(0, index)}"]`);
      if (hadFocus && button) button.focus();
    }

    function jump(by) {
      const place = placeOf(at.divergence);
      const isListed = rows[place] === at.divergence;
      const next = by > 0 && !isListed ? place : place + by;
      if (!rows.length) return "no divergence fits the search";
      if (next < 0) return "this is the first divergence";
      if (next >= rows.length) return "this is the last divergence";
      go(rows[next]);
      return "";
    }

    function toStep(step) {
      if (!own()) return "the steps of this divergence are not in this page";
      const [first, last] = [own().steps[0], own().steps.at(-1)];
      if (!first) return "there is no derivation to step through";
      if (step > last[0]) return Math.max(...own().num_steps) > last[0] + 1 ? "the page has no further step; kgverify show has" : "neither side has a further step";
      if (step < Math.max(first[0], 0)) {
        if (first[0] > 0) return "the page has no earlier step; kgverify show has";
        if (columns.step[at.divergence] >= 0 || at.step < 0) return "this is the first step";
      }
      go(at.divergence, step);
      return "";
    }

    function move(name) {
      const stages = (stepAt(at.step) || [0, 0, 0, []])[3];
      switch (name) {
        case "first": return rows.length ? (go(rows[0]), "") : "no divergence fits the search";
        case "n": return jump(1);
        case "p": return jump(-1);
        case "f": return toStep(at.step + 1);
        case "b": return toStep(at.step - 1);
        case "s": case "S": {
          if (!stages.length) return "both sides have no step here";
          const stage = name === "s" ? at.stage + 1 : at.stage >= 0 ? at.stage - 1 : stages.length - 1;
          if (stage >= stages.length) return "this is the last stage; f goes to the next step";
          return toStage(Math.max(-1, stage));
        }
        case "t": {
          const box = panel.querySelector(".tree");
          if (!box) return "a tree would show no more than the steps";
          treeIsOpen = !box.open;
          return toggle(box);
        }
        case "o": go(at.divergence); return toStage(-1);
      }
      return "";
    }

    const obey = (name, isRepeated) => act(() => move(name), isRepeated);
    for (const button of document.querySelectorAll("[data-move]")) button.addEventListener("click", () => obey(button.dataset.move));
    const numbers = [["go-divergence", num, "divergence", (n) => n - 1], ["go-cause", words.firsts.length, "cause", (n) => words.firsts[n - 1]]];
    for (const [id, most, name, divergenceOf] of numbers) {
      const input = byId(id);
      if (!input) continue;
      input.max = most;
      input.addEventListener("change", () => {
        const number = Number(input.value);
        if (!(number >= 1 && number <= most) || divergenceOf(number) >= num) say(`there is a ${name} from 1 to ${most}`);
        else act(() => go(divergenceOf(number)));
      });
    }
    const MOVES = "npfbsSot";
    const FOCUS = { d: "type the number of a divergence", c: "type the number of a cause", "/": "type words to search for" };
    page.press = (key, isRepeated) => {
      const input = byId({ d: "go-divergence", c: "go-cause", "/": "filter-text" }[key]);
      if (MOVES.includes(key)) obey(key, isRepeated);
      else if (input) act(() => (input.focus({ preventScroll: true }), input.select(), input.scrollIntoView({ block: "center" }), FOCUS[key]));
      else return false;
      return true;
    };
    list.addEventListener("keydown", (event) => {
      const moves = { ArrowDown: "n", ArrowUp: "p", ArrowRight: "f", ArrowLeft: "b", Home: "first" };
      if (moves[event.key]) obey(moves[event.key], event.repeat);
      else if (event.key === "End" && rows.length) act(() => go(rows.at(-1)));
      else return;
      event.preventDefault();
    });
    list.addEventListener("scroll", drawList, { passive: true });
    addEventListener("resize", drawList);
    for (const [select, name] of [[stageFilter, "stage"], [kindFilter, "kind"]]) {
      for (const code of new Set(columns[name])) select.append(make("option", null, texts[code]));
      select.addEventListener("change", filter);
    }
    search.addEventListener("input", filter);
    page.look = () => ({ at: { ...at }, tree: treeIsOpen });
    page.address = address;
    page.top = () => list.scrollTop;
    page.restore = (state) => {
      at = { ...state.at };
      treeIsOpen = state.tree;
      show();
      const box = panel.querySelector(".tree");
      if (box) box.open = treeIsOpen;
      list.scrollTop = state.list;
    };
    page.target = (before, after) => before.tree !== after.tree ? panel.querySelector(".tree")
      : before.at.divergence !== after.at.divergence ? panel
        : before.at.step !== after.at.step ? byId("step") : panel.querySelector(".stage[aria-expanded=true]") || byId("h-stages");
    page.open = (given) => {
      const number = Number(given.get("divergence")), step = given.get("step"), stage = given.get("stage");
      if (!(Number.isInteger(number) && number >= 1 && number <= num)) {
        return `this page has no divergence ${given.get("divergence").slice(0, 40)}; it lists 1 to ${num.toLocaleString("en")}`;
      }
      go(number - 1, /^\d+$/.test(step || "") && stepped[number - 1] ? Number(step) : undefined, stage);
      const hasStep = step === null || Boolean(stepAt(at.step)) && String(at.step) === step;
      if (!hasStep) go(number - 1);
      byId("divergences").scrollIntoView();
      if (!hasStep) return `this page has no step ${step.slice(0, 40)} of divergence ${number}`;
      const hasStage = stage === null || stepAt(at.step)[3].some((line) => line[0] === stage);
      return hasStage ? "" : `this step has no stage ${stage.slice(0, 40)}`;
    };

    byId("viewer").hidden = false;
    const plain = document.querySelector("section[data-plain]");
    if (plain) plain.hidden = true;
    filter();
    at.stage = culpritOf(stepAt(at.step));
    show();
  }

  if (byId("viewer")) start(); else openAddress();
})();
