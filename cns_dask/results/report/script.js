"use strict";
(() => {
  const byId = (id) => document.getElementById(id);
  const root = document.documentElement;

  // ---- light and dark
  const theme = byId("theme");
  const prefersDark = matchMedia("(prefers-color-scheme: dark)");
  const isDark = () => (root.dataset.theme ? root.dataset.theme === "dark" : prefersDark.matches);
  const nameTheme = () => { theme.textContent = isDark() ? "Light" : "Dark"; theme.setAttribute("aria-label", `Switch to ${isDark() ? "light" : "dark"} colours`); };
  theme.hidden = false;
  nameTheme();
  theme.addEventListener("click", () => { root.dataset.theme = isDark() ? "light" : "dark"; nameTheme(); draw(); });
  prefersDark.addEventListener("change", () => { nameTheme(); draw(); });

  // ---- the sampled rows
  const data = JSON.parse(byId("points").textContent);
  const bytes = (text) => Uint8Array.from(atob(text), (c) => c.charCodeAt(0)).buffer;
  const xs = new Uint16Array(bytes(data.x)), ys = new Uint16Array(bytes(data.y));
  const confidence = new Uint8Array(bytes(data.confidence));
  const rows = data.wide ? new Float64Array(bytes(data.rows)) : new Uint32Array(bytes(data.rows));
  const none = data.small ? 255 : 65535;
  const levels = data.levels.map((level) => ({ ...level, at: data.small ? new Uint8Array(bytes(level.at)) : new Uint16Array(bytes(level.at)) }));
  const own = levels.findIndex((level) => level.n === data.shown);
  let level = levels[own], chosen = null, focus = -1;

  // ---- the map
  const map = byId("canvas-place"), told = byId("told");
  const canvas = document.createElement("canvas");
  const context = canvas.getContext("2d");
  const tip = document.createElement("div");
  tip.className = "tip";
  tip.hidden = true;
  canvas.tabIndex = 0;
  canvas.setAttribute("role", "img");
  canvas.setAttribute("aria-label", "Map of the rows. Arrow keys go from row to row, Escape leaves.");
  map.querySelector("svg").after(canvas);
  map.append(tip);
  map.classList.add("scripted");
  byId("tools").hidden = false;

  const nameOf = (at) => (level.at[at] === none ? null : level.names[level.at[at]]);
  const place = (at) => [xs[at] / 65535, ys[at] / 65535];

  function draw() {
    const { width, height } = map.getBoundingClientRect(), ratio = Math.max(devicePixelRatio || 1, 1);
    canvas.width = Math.round(width * ratio);
    canvas.height = Math.round(height * ratio);
    context.scale(ratio, ratio);
    const other = level !== levels[own];
    map.classList.toggle("other", other);
    document.body.classList.toggle("other-level", other);
    const size = (data.image && !other ? 1.1 : xs.length < 800 ? 3 : 2.1) * Math.min(1, Math.max(0.6, width / 800));
    for (const clear of [false, true]) {
      for (let at = 0; at < xs.length; at++) {
        if (confidence[at] > 127 !== clear) continue;
        const isOff = chosen !== null && nameOf(at) !== chosen;
        context.globalAlpha = isOff ? 0.08 : clear ? 0.9 : 0.4;
        context.fillStyle = level.at[at] === none ? "#8c8c8c" : level.colors[level.at[at]];
        const [x, y] = place(at);
        context.beginPath();
        context.arc(x * width, y * height, size, 0, 7);
        context.fill();
      }
    }
    context.globalAlpha = 1;
    if (other) drawNames(width, height);
    if (focus >= 0) {
      const [x, y] = place(focus);
      context.strokeStyle = getComputedStyle(root).getPropertyValue("--ink");
      context.lineWidth = 2;
      context.beginPath();
      context.arc(x * width, y * height, size + 4, 0, 7);
      context.stroke();
    }
    map.querySelector(".density")?.style.setProperty("opacity", chosen === null ? 1 : 0.25);
    for (const pill of map.querySelectorAll(".pills .pill")) pill.classList.toggle("dim", chosen !== null && +pill.dataset.cluster !== chosen);
  }

  // the page's own names are of its own clusters
  function drawNames(width, height) {
    const sums = level.names.map(() => [0, 0, 0]);
    for (let at = 0; at < xs.length; at++) {
      const sum = sums[level.at[at]];
      if (sum) { const [x, y] = place(at); sum[0] += x; sum[1] += y; sum[2]++; }
    }
    context.font = "600 12px system-ui, sans-serif";
    context.textAlign = "center";
    context.textBaseline = "middle";
    sums.forEach(([x, y, count], cluster) => {
      if (!count) return;
      const name = String(level.names[cluster]), half = context.measureText(name).width / 2 + 6;
      const left = (x / count) * width, top = (y / count) * height, color = level.colors[cluster];
      context.fillStyle = color;
      context.strokeStyle = getComputedStyle(root).getPropertyValue("--card");
      context.lineWidth = 1.5;
      context.beginPath();
      context.roundRect(left - half, top - 9, 2 * half, 18, 9);
      context.fill();
      context.stroke();
      context.fillStyle = isBright(color) ? "#000" : "#fff";
      context.fillText(name, left, top + 0.5);
    });
  }
  function isBright(color) {
    const [r, g, b] = [1, 3, 5].map((at) => (parseInt(color.slice(at, at + 2), 16) / 255) ** 2.2);
    return 0.2126 * r + 0.7152 * g + 0.0722 * b > 0.18;
  }

  function describe(at) {
    const name = nameOf(at);
    return `row ${rows[at]} · ${name === null ? "no cluster" : `cluster ${name}`} · confidence ${(confidence[at] / 255).toFixed(2)}`;
  }

  function show(at, loud) {
    if (at === focus && !loud) return;
    focus = at;
    tip.hidden = at < 0;
    if (at >= 0) {
      const [x, y] = place(at);
      tip.textContent = describe(at);
      tip.style.left = `${Math.min(82, Math.max(18, 100 * x))}%`;
      tip.style.top = `${100 * y}%`;
      tip.style.transform = y < 0.12 ? "translate(-50%, 14px)" : "";
      if (loud) told.textContent = describe(at);
    }
    draw();
  }

  canvas.addEventListener("pointermove", (event) => {
    const box = canvas.getBoundingClientRect();
    const px = event.clientX - box.left, py = event.clientY - box.top;
    let best = -1, least = 196;
    for (let at = 0; at < xs.length; at++) {
      if (chosen !== null && nameOf(at) !== chosen) continue;
      const [x, y] = place(at), distance = (x * box.width - px) ** 2 + (y * box.height - py) ** 2;
      if (distance < least) { least = distance; best = at; }
    }
    show(best, false);
  });
  canvas.addEventListener("pointerleave", () => show(-1, false));
  canvas.addEventListener("click", () => { if (focus >= 0) { select(nameOf(focus)); told.textContent = describe(focus); } else select(null); });
  canvas.addEventListener("keydown", (event) => {
    const step = { ArrowRight: 1, ArrowDown: 1, ArrowLeft: -1, ArrowUp: -1 }[event.key];
    if (event.key === "Escape") { show(-1, false); select(null); }
    if (!step || !xs.length) return;
    event.preventDefault();
    let at = focus;
    for (let tries = 0; tries < xs.length; tries++) {
      at = (at + step + xs.length) % xs.length;
      if (chosen === null || nameOf(at) === chosen) break;
    }
    show(at, true);
  });

  // ---- one cluster, by legend or search
  function select(name) {
    chosen = name;
    for (const each of document.querySelectorAll("#legend a")) {
      const isOn = level === levels[own] && +each.dataset.cluster === name && name !== null;
      each.classList.toggle("on", isOn);
      if (isOn) each.setAttribute("aria-current", "true"); else each.removeAttribute("aria-current");
    }
    draw();
  }
  for (const each of document.querySelectorAll("#legend a")) {
    each.addEventListener("pointerenter", () => { if (level === levels[own] && chosen === null) { chosen = +each.dataset.cluster; draw(); chosen = null; } });
    each.addEventListener("pointerleave", () => draw());
  }
  const reveal = () => { const target = document.querySelector(location.hash || "#map"); target?.closest("details")?.setAttribute("open", ""); if (location.hash.startsWith("#cluster-")) target?.scrollIntoView(); };
  addEventListener("hashchange", reveal);
  if (location.hash) reveal();

  byId("search").addEventListener("submit", (event) => {
    event.preventDefault();
    const query = byId("query").value.trim().toLowerCase(), digits = query.match(/-?\d+/);
    if (!query) { select(null); show(-1, false); told.textContent = "All clusters."; return; }
    if (!digits) return findFeature(query);
    const wanted = +digits[0];
    if (!query.startsWith("row") && level.names.includes(wanted)) {
      select(wanted);
      show(-1, false);
      const card = byId(`cluster-${wanted}`), size = card?.querySelector("h3 > span:not(.pill)");
      told.textContent = `cluster ${wanted}${size && level === levels[own] ? `: ${size.textContent}` : ""}`;
      return;
    }
    let near = -1;
    for (let at = 0; at < rows.length; at++) if (near < 0 || Math.abs(rows[at] - wanted) < Math.abs(rows[near] - wanted)) near = at;
    if (near < 0) { told.textContent = "There are no rows on the map."; return; }
    select(null);
    show(near, true);
    if (rows[near] !== wanted) told.textContent = `Row ${wanted} is not among the points. The nearest that is: ${describe(near)}`;
  });
  function findFeature(query) {
    for (const card of document.querySelectorAll(".cluster")) {
      if ([...card.querySelectorAll(".feature")].some((each) => each.textContent.toLowerCase().includes(query))) {
        select(+card.dataset.cluster);
        told.textContent = `cluster ${card.dataset.cluster} is set apart by a feature with "${query}" in its name.`;
        return;
      }
    }
    told.textContent = `Nothing is called "${query}".`;
  }

  // ---- other numbers of clusters
  const slider = byId("level");
  slider?.addEventListener("input", () => {
    level = levels[+slider.value];
    chosen = null;
    byId("level-name").textContent = level.n;
    slider.setAttribute("aria-valuetext", `${level.n} clusters`);
    told.textContent = level === levels[own] ? "The clusters of this page." : `${level.n} clusters on the map; the page is about ${data.shown}.`;
    select(null);
  });
  slider?.setAttribute("aria-valuetext", `${data.shown} clusters`);

  addEventListener("beforeprint", () => { for (const each of document.querySelectorAll("details.more")) each.open = true; });
  new ResizeObserver(draw).observe(map);
  draw();
})();
