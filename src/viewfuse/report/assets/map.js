// The map: dots that can be moved, enlarged, coloured, found and selected.

const SCALES = {
  light: ["#440154", "#414487", "#2a788e", "#22a884", "#7ad151"],
  dark: ["#5566c4", "#21918c", "#5ec962", "#addc30", "#fde725"],
};
const GREY = { light: "#9a9fa6", dark: "#7d858e" };
const MOST_GROUPS = 60;
const MOST_PATTERNS = 8;
const CORNERS = {
  s: [[-1, -1], [1, -1], [1, 1], [-1, 1]],
  "^": [[0, -1.2], [1.1, 0.9], [-1.1, 0.9]],
  v: [[0, 1.2], [1.1, -0.9], [-1.1, -0.9]],
  D: [[0, -1.25], [1.25, 0], [0, 1.25], [-1.25, 0]],
  P: [[-0.4, -1.2], [0.4, -1.2], [0.4, -0.4], [1.2, -0.4], [1.2, 0.4], [0.4, 0.4], [0.4, 1.2], [-0.4, 1.2], [-0.4, 0.4],
    [-1.2, 0.4], [-1.2, -0.4], [-0.4, -0.4]],
  X: [[-1.2, -0.7], [-0.7, -1.2], [0, -0.5], [0.7, -1.2], [1.2, -0.7], [0.5, 0], [1.2, 0.7], [0.7, 1.2], [0, 0.5],
    [-0.7, 1.2], [-1.2, 0.7], [-0.5, 0]],
};

// Adds a mark to the path of a canvas.
function addMark(brush, mark, x, y, size) {
  const corners = CORNERS[mark];
  if (!corners) {
    brush.moveTo(x + size, y);
    brush.arc(x, y, size, 0, 2 * Math.PI);
    return;
  }
  corners.forEach(([dx, dy], i) => brush[i ? "lineTo" : "moveTo"](x + size * dx, y + size * dy));
  brush.closePath();
}

// Ways to colour the samples: groups with colours and marks, or numbers on a scale.
function colorings(run, colors) {
  const points = run.points;
  const groups = (name, of, names, chosen) => ({ name, of, names, chosen });
  const found = [
    groups("cluster", points.label, run.colors.map((_, label) => `Cluster ${label}`), run.colors),
    { name: "confidence", values: points.confidence },
  ];
  if (points.stability.some((value) => value !== null)) found.push({ name: "stability", values: points.stability });
  if (run.patterns.length > 1) {
    const names = run.patterns.slice(0, MOST_PATTERNS);
    if (run.patterns.length > names.length) names.push(`${run.patterns.length - names.length} other patterns`);
    const whole = run.present[0].every(Boolean);
    const chosen = names.map((_, i) => (whole && i === 0) || i >= MOST_PATTERNS ? -1 : i - (whole ? 1 : 0));
    found.push(groups("missing views", points.pattern.map((p) => Math.min(p, MOST_PATTERNS)), names, chosen));
  }
  for (const column of run.columns) {
    if (!column.levels.length) found.push({ name: column.name, values: column.values });
    else if (column.levels.length <= MOST_GROUPS) {
      const of = column.values.map((value) => (value === null ? column.levels.length : value));
      found.push(groups(column.name, of, [...column.levels, "not known"], [...column.levels.map((_, i) => i), -1]));
    }
  }
  return found.map((one) => (one.values ? { ...one, ...span(one.values) } : one));
}

function span(values) {
  const known = values.filter((value) => value !== null);
  return { low: known.reduce((a, b) => Math.min(a, b), Infinity), high: known.reduce((a, b) => Math.max(a, b), -Infinity) };
}

class SampleMap {
  constructor(root, run, colors, onPick) {
    Object.assign(this, { root, run, colors, onPick, selected: new Set(), picked: null, zoom: 1, printing: false });
    this.canvas = root.querySelector("canvas");
    this.brush = this.canvas.getContext("2d");
    this.tip = root.querySelector(".tip");
    this.colorings = colorings(run, colors);
    this.coloring = this.colorings[0];
    this.whole = run.points.pattern.map((pattern) => run.present[pattern].every(Boolean));
    this.range = { x: span(run.points.x), y: span(run.points.y) };
    this.showAll();
    this.listen();
    this.resize();
  }

  get ground() { return darkGround.matches && !this.printing ? "dark" : "light"; }
  get count() { return this.run.points.id.length; }

  listen() {
    const select = this.root.querySelector(".by");
    select.append(...this.colorings.map((one, i) => make("option", { value: i, textContent: one.name })));
    select.addEventListener("change", () => { this.coloring = this.colorings[select.value]; this.refresh(); });
    this.root.querySelector(".tools").addEventListener("click", (event) => this.act(event.target.dataset.do));
    this.canvas.addEventListener("keydown", (event) => this.onKey(event));
    this.canvas.addEventListener("wheel", (event) => this.onWheel(event), { passive: false });
    this.canvas.addEventListener("pointerdown", (event) => this.onDown(event));
    this.canvas.addEventListener("pointermove", (event) => this.onMove(event));
    this.canvas.addEventListener("pointerup", (event) => this.onUp(event));
    this.canvas.addEventListener("pointercancel", () => { this.drag = null; });
    this.canvas.addEventListener("pointerleave", () => { this.tip.hidden = true; });
    new ResizeObserver(() => this.resize()).observe(this.canvas);
    darkGround.addEventListener("change", () => this.refresh());
  }

  act(what) {
    const actions = {
      in: () => this.zoomBy(1.5), out: () => this.zoomBy(1 / 1.5), all: () => this.showAll(), save: () => this.save(),
      clear: () => this.select([]), lasso: () => this.setLasso(!this.lasso),
    };
    if (actions[what]) actions[what]();
  }

  setLasso(on) {
    this.lasso = on;
    this.canvas.classList.toggle("lasso", on);
    this.root.querySelector("[data-do=lasso]").setAttribute("aria-pressed", on);
  }

  onKey(event) {
    const step = 60 / this.scale();
    const moves = { ArrowLeft: [-step, 0], ArrowRight: [step, 0], ArrowUp: [0, step], ArrowDown: [0, -step] };
    if (moves[event.key]) this.moveBy(...moves[event.key]);
    else if (event.key === "+" || event.key === "=") this.zoomBy(1.5);
    else if (event.key === "-") this.zoomBy(1 / 1.5);
    else if (event.key === "0") this.showAll();
    else if (event.key === "n" || event.key === "p") this.step(event.key === "n" ? 1 : -1);
    else if (event.key === "Escape") { this.setLasso(false); this.select([]); }
    else return;
    event.preventDefault();
  }

  step(by) {
    const next = this.picked === null ? 0 : (this.picked + by + this.count) % this.count;
    this.onPick(this.run.points.id[next]);
  }

  onWheel(event) {
    if (document.activeElement !== this.canvas && !event.ctrlKey) return; // the page scrolls over a map not in use
    event.preventDefault();
    this.zoomBy(event.deltaY < 0 ? 1.2 : 1 / 1.2, this.at(event));
  }

  onDown(event) {
    this.canvas.setPointerCapture(event.pointerId);
    this.drag = { from: this.at(event), path: [this.at(event)], moved: false };
  }

  onMove(event) {
    const here = this.at(event);
    if (!this.drag) { this.hover(here); return; }
    const last = this.drag.path[this.drag.path.length - 1];
    this.drag.moved ||= Math.hypot(here.x - this.drag.from.x, here.y - this.drag.from.y) > 4;
    this.drag.path.push(here);
    if (this.lasso) this.draw();
    else this.moveBy((last.x - here.x) / this.scale(), (here.y - last.y) / this.scale());
  }

  onUp(event) {
    const drag = this.drag;
    this.drag = null;
    if (drag && drag.moved && this.lasso) this.selectInside(drag.path, event.shiftKey);
    else if (drag && !drag.moved) {
      const index = this.nearest(this.at(event));
      if (index !== null) this.onPick(this.run.points.id[index]);
    }
    this.draw();
  }

  at(event) {
    const box = this.canvas.getBoundingClientRect();
    return { x: event.clientX - box.left, y: event.clientY - box.top };
  }

  scale() {
    const wide = (this.range.x.high - this.range.x.low) || 1, high = (this.range.y.high - this.range.y.low) || 1;
    return this.zoom * Math.min((this.width - 40) / wide, (this.height - 40) / high);
  }

  place(index) {
    const scale = this.scale();
    const x = this.width / 2 + (this.run.points.x[index] - this.center.x) * scale;
    return { x, y: this.height / 2 - (this.run.points.y[index] - this.center.y) * scale };
  }

  showAll() {
    this.zoom = 1;
    this.center = { x: (this.range.x.low + this.range.x.high) / 2, y: (this.range.y.low + this.range.y.high) / 2 };
    this.draw();
  }

  moveBy(dx, dy) { this.center = { x: this.center.x + dx, y: this.center.y + dy }; this.draw(); }

  zoomBy(factor, around = { x: this.width / 2, y: this.height / 2 }) {
    const before = this.scale();
    this.zoom = Math.min(Math.max(this.zoom * factor, 0.5), 200);
    const gain = 1 / before - 1 / this.scale();
    this.moveBy((around.x - this.width / 2) * gain, -(around.y - this.height / 2) * gain);
  }

  nearest(here, reach = 14) {
    let best = null, least = reach * reach;
    for (let i = 0; i < this.count; i++) {
      const { x, y } = this.place(i), apart = (x - here.x) ** 2 + (y - here.y) ** 2;
      if (apart < least) [best, least] = [i, apart];
    }
    return best;
  }

  hover(here) {
    const index = this.nearest(here);
    this.tip.hidden = index === null;
    if (index === null) return;
    this.tip.replaceChildren(...this.describe(index).map((line) => make("div", { textContent: line })));
    this.tip.style.left = `${Math.max(0, Math.min(here.x + 14, this.width - this.tip.offsetWidth - 4))}px`;
    this.tip.style.top = `${here.y + 16}px`;
  }

  describe(index) {
    const points = this.run.points;
    const lines = [points.id[index], `Cluster ${points.label[index]}, ${percent(points.confidence[index])} sure`];
    lines.push(this.run.patterns[points.pattern[index]]);
    const { name, values, of, names } = this.coloring;
    if (this.colorings.indexOf(this.coloring) > 1 && name !== "missing views")
      lines.push(`${name}: ${values ? values[index] ?? "not known" : names[of[index]]}`);
    return lines;
  }

  pick(index) {
    this.picked = index;
    if (index !== null) {
      const { x, y } = this.place(index);
      const inside = x > 0 && y > 0 && x < this.width && y < this.height;
      if (!inside) this.center = { x: this.run.points.x[index], y: this.run.points.y[index] };
    }
    this.draw();
  }

  select(indices) { this.selected = new Set(indices); this.refresh(); }

  selectInside(path, add) {
    const found = [...Array(this.count).keys()].filter((i) => isInside(this.place(i), path));
    this.select(add ? [...this.selected, ...found] : found);
  }

  toggleGroup(group) {
    const members = this.coloring.of.flatMap((own, i) => (own === group ? [i] : []));
    const all = members.every((i) => this.selected.has(i));
    const others = [...this.selected].filter((i) => this.coloring.of[i] !== group);
    this.select(all ? others : [...others, ...members]);
  }

  save() {
    const { points, columns, patterns } = this.run;
    const rows = [...this.selected].sort((a, b) => a - b).map((i) => [
      points.id[i], points.label[i], points.confidence[i], points.stability[i], patterns[points.pattern[i]],
      ...columns.map((one) => (one.levels.length ? one.levels[one.values[i]] : one.values[i])),
    ]);
    const header = ["id", "label", "confidence", "stability", "views", ...columns.map((one) => one.name)];
    saveCsv("selection.csv", [header, ...rows]);
  }

  resize() {
    const box = this.canvas.getBoundingClientRect(), ratio = devicePixelRatio || 1;
    [this.width, this.height] = [box.width, box.height];
    [this.canvas.width, this.canvas.height] = [Math.round(box.width * ratio), Math.round(box.height * ratio)];
    this.brush.setTransform(ratio, 0, 0, ratio, 0, 0);
    this.refresh();
  }

  refresh() { this.draw(); this.drawLegend(); this.tell(); }

  // Several calls before the next frame draw once.
  draw() {
    if (this.waiting) return;
    this.waiting = true;
    requestAnimationFrame(() => { this.waiting = false; this.paint(); });
  }

  groupColor(group) {
    const number = this.coloring.chosen[group];
    return number < 0 ? GREY[this.ground] : this.colors[this.ground][number];
  }

  groupMark(group) { return this.coloring.chosen[group] < 0 ? "o" : this.colors.marks[this.coloring.chosen[group]]; }

  scaleColor(value) {
    const { low, high } = this.coloring, steps = SCALES[this.ground];
    return value === null ? GREY[this.ground] : steps[Math.min(4, Math.floor((5 * (value - low)) / (high - low || 1)))];
  }

  paint() {
    const { brush } = this;
    brush.clearRect(0, 0, this.width, this.height);
    const size = (this.count < 500 ? 4.5 : this.count < 4000 ? 3.2 : 2) * Math.min(2, Math.sqrt(Math.max(this.zoom, 1)));
    for (const [key, members] of this.bundles()) {
      const [color, mark, full, faint] = key.split(" ");
      brush.globalAlpha = faint === "1" ? 0.13 : 0.85;
      brush.beginPath();
      for (const i of members) {
        const { x, y } = this.place(i);
        if (x > -9 && y > -9 && x < this.width + 9 && y < this.height + 9) addMark(brush, mark, x, y, size);
      }
      brush.fillStyle = brush.strokeStyle = color;
      brush.lineWidth = 1.4;
      if (full === "1") brush.fill(); else brush.stroke();
    }
    brush.globalAlpha = 1;
    this.paintNames();
    this.paintPicked(size);
    if (this.drag && this.lasso) this.paintLasso();
  }

  // Samples that look alike are painted in one go; faint ones first.
  bundles() {
    const found = new Map();
    for (let i = 0; i < this.count; i++) {
      const { values, of } = this.coloring;
      const look = values ? `${this.scaleColor(values[i])} o` : `${this.groupColor(of[i])} ${this.groupMark(of[i])}`;
      const key = `${look} ${this.whole[i] ? 1 : 0} ${this.selected.size && !this.selected.has(i) ? 1 : 0}`;
      if (!found.has(key)) found.set(key, []);
      found.get(key).push(i);
    }
    return [...found].sort(([a], [b]) => (a.at(-1) < b.at(-1) ? 1 : -1));
  }

  // Names of clusters, at the dot that is nearest to the middle of each.
  paintNames() {
    const { brush } = this, { of, chosen, name } = this.coloring;
    if (name !== "cluster" || chosen.length > MOST_GROUPS) return;
    this.middles ??= chosen.map((_, group) => middle(this.run.points, of, group));
    brush.font = "bold 13px system-ui, sans-serif";
    brush.textAlign = "center";
    this.middles.forEach((index, group) => {
      if (index === null) return;
      const { x, y } = this.place(index), wide = brush.measureText(group).width + 10;
      brush.globalAlpha = 0.8;
      brush.fillStyle = this.ground === "dark" ? "#14171b" : "#ffffff";
      brush.fillRect(x - wide / 2, y - 27, wide, 18);
      brush.globalAlpha = 1;
      brush.fillStyle = this.ground === "dark" ? "#ffffff" : "#000000";
      brush.fillText(group, x, y - 13);
    });
  }

  paintPicked(size) {
    if (this.picked === null) return;
    const { x, y } = this.place(this.picked), { brush } = this;
    for (const [width, color] of [[5, this.ground === "dark" ? "#14171b" : "#ffffff"], [2.5, this.ground === "dark" ? "#ffffff" : "#000000"]]) {
      brush.beginPath();
      brush.arc(x, y, size + 7, 0, 2 * Math.PI);
      brush.lineWidth = width;
      brush.strokeStyle = color;
      brush.stroke();
    }
  }

  paintLasso() {
    this.brush.beginPath();
    this.drag.path.forEach(({ x, y }, i) => this.brush[i ? "lineTo" : "moveTo"](x, y));
    this.brush.lineWidth = 1.5;
    this.brush.strokeStyle = this.ground === "dark" ? "#ffffff" : "#000000";
    this.brush.stroke();
  }

  drawLegend() {
    const legend = this.root.querySelector(".legend"), { values, low, high, names, of } = this.coloring;
    if (values) {
      const steps = SCALES[this.ground].map((color, i) => [color, low + (i * (high - low)) / 5, low + ((i + 1) * (high - low)) / 5]);
      legend.replaceChildren(...steps.map(([color, from, to]) =>
        make("span", {}, this.sign(color, "o"), `${from.toPrecision(3)} to ${to.toPrecision(3)}`)));
      if (values.includes(null)) legend.append(make("span", {}, this.sign(GREY[this.ground], "o"), "not known"));
      return;
    }
    const counts = names.map(() => 0), chosen = names.map(() => 0);
    of.forEach((group, i) => { counts[group]++; chosen[group] += this.selected.has(i); });
    const buttons = names.flatMap((name, group) => {
      if (!counts[group]) return [];
      const button = make("button", { type: "button" }, this.sign(this.groupColor(group), this.groupMark(group)), `${name} (${counts[group].toLocaleString("en")})`);
      button.setAttribute("aria-pressed", chosen[group] === counts[group]);
      button.addEventListener("click", () => { this.toggleGroup(group); this.root.querySelectorAll(".legend button")[buttons.indexOf(button)].focus(); });
      return [button];
    });
    legend.replaceChildren(...buttons);
  }

  sign(color, mark) {
    const ratio = devicePixelRatio || 1, sign = make("canvas", { width: 14 * ratio, height: 14 * ratio, ariaHidden: "true" });
    const brush = sign.getContext("2d");
    brush.scale(ratio, ratio);
    addMark(brush, mark, 7, 7, 5);
    brush.fillStyle = color;
    brush.fill();
    return sign;
  }

  tell() {
    const n = this.selected.size, total = this.run.n;
    const shown = this.count < total ? `${this.count.toLocaleString("en")} of ${total.toLocaleString("en")} samples are shown, chosen at random.` : `All ${total.toLocaleString("en")} samples are shown.`;
    const counts = this.run.colors.map(() => 0);
    for (const i of this.selected) counts[this.run.points.label[i]]++;
    const parts = counts.flatMap((found, label) => (found ? [`${found} of cluster ${label}`] : [])).slice(0, 12).join(", ");
    this.root.querySelector(".status").textContent = n ? `${n.toLocaleString("en")} selected: ${parts}. ${shown}` : shown;
    for (const name of ["save", "clear"]) this.root.querySelector(`[data-do=${name}]`).disabled = !n;
  }
}

function isInside({ x, y }, path) {
  let inside = false;
  for (let i = 0, j = path.length - 1; i < path.length; j = i++) {
    const a = path[i], b = path[j];
    if (a.y > y !== b.y > y && x < ((b.x - a.x) * (y - a.y)) / (b.y - a.y) + a.x) inside = !inside;
  }
  return inside;
}

function middle(points, of, group) {
  const members = of.flatMap((own, i) => (own === group ? [i] : []));
  if (!members.length) return null;
  const half = (values) => values.sort((a, b) => a - b)[values.length >> 1];
  const x = half(members.map((i) => points.x[i])), y = half(members.map((i) => points.y[i]));
  const apart = (i) => (points.x[i] - x) ** 2 + (points.y[i] - y) ** 2;
  return members.reduce((best, i) => (apart(i) < apart(best) ? i : best));
}
