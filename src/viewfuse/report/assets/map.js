// The map: marks that can be moved, enlarged, coloured, found and selected.

const MOST_NAMES = 60;

class SampleMap {
  constructor(root, run, colors, onPick) {
    Object.assign(this, { root, run, shapes: colors.shapes, onPick, selected: new Set(), picked: null, printing: false });
    this.canvas = root.querySelector("canvas");
    this.brush = this.canvas.getContext("2d");
    this.tip = root.querySelector(".tip");
    this.colorings = colorings(run, colors);
    this.coloring = this.colorings[0];
    this.whole = run.points.pattern.map((pattern) => run.present[pattern].every(Boolean));
    this.box = { x: span(run.points.x), y: span(run.points.y) };
    this.showAll();
    this.listen();
    this.resize();
  }

  get ground() { return darkGround.matches && !this.printing ? "dark" : "light"; }
  get ink() { return this.ground === "dark" ? ["#ffffff", "#14171b"] : ["#000000", "#ffffff"]; }
  get count() { return this.run.points.id.length; }

  listen() {
    const select = this.root.querySelector(".by");
    select.append(...this.colorings.map((one, i) => make("option", { value: i, textContent: one.name })));
    select.addEventListener("change", () => { this.coloring = this.colorings[select.value]; this.refresh(); });
    this.root.querySelector(".tools").addEventListener("click", (event) => this.act(event.target.dataset.do));
    const on = (name, what, options) => this.canvas.addEventListener(name, what, options);
    on("keydown", (event) => this.onKey(event));
    on("wheel", (event) => this.onWheel(event), { passive: false });
    on("pointerdown", (event) => this.onDown(event));
    on("pointermove", (event) => this.onMove(event));
    on("pointerup", (event) => this.onUp(event));
    on("pointercancel", () => { this.drag = null; });
    on("pointerleave", () => { this.tip.hidden = true; });
    new ResizeObserver(() => this.resize()).observe(this.canvas);
    darkGround.addEventListener("change", () => this.refresh());
  }

  colorBy(name) {
    const place = this.colorings.findIndex((one) => one.name === name);
    if (place < 0) return;
    this.root.querySelector(".by").value = place;
    this.coloring = this.colorings[place];
    this.refresh();
  }

  // ---- what the user does

  act(what) {
    if (what === "in" || what === "out") this.zoomBy(what === "in" ? 1.5 : 1 / 1.5);
    else if (what === "all") this.showAll();
    else if (what === "lasso") this.setLasso(!this.lasso);
    else if (what === "clear") this.select([]);
    else if (what === "save") this.save();
  }

  onKey(event) {
    const step = 60 / this.scale();
    const moves = { ArrowLeft: [-step, 0], ArrowRight: [step, 0], ArrowUp: [0, step], ArrowDown: [0, -step] };
    const keys = { "+": "in", "=": "in", "-": "out", 0: "all" };
    if (moves[event.key]) this.moveBy(...moves[event.key]);
    else if (keys[event.key]) this.act(keys[event.key]);
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
    this.drag = { path: [this.at(event)], moved: false };
  }

  onMove(event) {
    const here = this.at(event);
    if (!this.drag) { this.hover(here); return; }
    const { path } = this.drag, last = path.at(-1);
    this.drag.moved ||= Math.hypot(here.x - path[0].x, here.y - path[0].y) > 4;
    path.push(here);
    if (this.lasso) this.draw();
    else this.moveBy((last.x - here.x) / this.scale(), (here.y - last.y) / this.scale());
  }

  onUp(event) {
    const drag = this.drag, near = this.nearest(this.at(event));
    this.drag = null;
    if (drag?.moved && this.lasso) this.selectInside(drag.path, event.shiftKey);
    else if (drag && !drag.moved && near !== null) this.onPick(this.run.points.id[near]);
    this.draw();
  }

  at(event) {
    const box = this.canvas.getBoundingClientRect();
    return { x: event.clientX - box.left, y: event.clientY - box.top };
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
    const { id, label, confidence, pattern } = this.run.points;
    const where = label[index] < 0 ? "An outlier, in no cluster" : `Cluster ${called(this.run, label[index])}, ${percent(confidence[index])} sure`;
    const lines = [id[index], where, this.run.patterns[pattern[index]]];
    return this.coloring.text && this.coloring.name !== "confidence" ? [...lines, this.coloring.text(index)] : lines;
  }

  // ---- where samples are on the screen

  scale() {
    const room = (length, { low, high }) => (length - 50) / (high - low || 1);
    return this.zoom * Math.min(room(this.width, this.box.x), room(this.height, this.box.y));
  }

  place(index) {
    const scale = this.scale(), { x, y } = this.run.points;
    return { x: this.width / 2 + (x[index] - this.center.x) * scale, y: this.height / 2 - (y[index] - this.center.y) * scale };
  }

  showAll() {
    this.zoom = 1;
    this.center = { x: (this.box.x.low + this.box.x.high) / 2, y: (this.box.y.low + this.box.y.high) / 2 };
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

  pick(index) {
    this.picked = index;
    const { x, y } = index === null ? { x: 1, y: 1 } : this.place(index);
    if (x < 0 || y < 0 || x > this.width || y > this.height)
      this.center = { x: this.run.points.x[index], y: this.run.points.y[index] };
    this.draw();
  }

  // ---- selection

  setLasso(on) {
    this.lasso = on;
    this.canvas.classList.toggle("lasso", on);
    this.root.querySelector("[data-do=lasso]").setAttribute("aria-pressed", on);
  }

  select(indices) { this.selected = new Set(indices); this.refresh(); }

  selectInside(path, add) {
    const found = [...Array(this.count).keys()].filter((i) => isInside(this.place(i), path));
    this.select(add ? [...this.selected, ...found] : found);
  }

  toggleGroup(group) {
    const members = this.coloring.members[group], others = [...this.selected].filter((i) => this.coloring.of[i] !== group);
    this.select(members.every((i) => this.selected.has(i)) ? others : [...others, ...members]);
  }

  save() {
    const { points, columns, patterns } = this.run;
    const rows = [...this.selected].sort((a, b) => a - b).map((i) => [
      points.id[i], points.label[i], points.confidence[i], patterns[points.pattern[i]],
      ...columns.map((one) => (one.levels.length ? one.levels[one.values[i]] : one.values[i])),
    ]);
    saveCsv("selection.csv", [["id", "label", "confidence", "views", ...columns.map((one) => one.name)], ...rows]);
  }

  // ---- drawing

  resize() {
    const { width, height } = this.canvas.getBoundingClientRect(), ratio = devicePixelRatio || 1;
    Object.assign(this, { width, height });
    Object.assign(this.canvas, { width: Math.round(width * ratio), height: Math.round(height * ratio) });
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

  paint() {
    const { brush } = this, size = (this.count < 500 ? 4.5 : this.count < 4000 ? 3.2 : 2) * Math.min(2, Math.sqrt(Math.max(this.zoom, 1)));
    brush.clearRect(0, 0, this.width, this.height);
    for (const { group, full, faint, members } of this.bundles()) {
      const { [this.ground]: color, mark } = this.coloring.groups[group];
      brush.globalAlpha = faint ? 0.13 : 0.85;
      brush.beginPath();
      for (const i of members) {
        const { x, y } = this.place(i);
        if (x > -9 && y > -9 && x < this.width + 9 && y < this.height + 9) addMark(brush, this.shapes[mark], x, y, size);
      }
      Object.assign(brush, { fillStyle: color, strokeStyle: color, lineWidth: 1.4 });
      if (full) brush.fill(); else brush.stroke();
    }
    brush.globalAlpha = 1;
    this.paintNames();
    if (this.picked !== null) this.paintRing(this.place(this.picked), size + 7);
    if (this.drag && this.lasso) this.paintLasso();
  }

  // Samples that look alike are painted in one go; faint ones first, those of small groups last.
  bundles() {
    const found = new Map();
    for (let i = 0; i < this.count; i++) {
      const group = this.coloring.of[i], full = this.whole[i], faint = this.selected.size > 0 && !this.selected.has(i);
      const key = 4 * group + 2 * full + faint;
      if (!found.has(key)) found.set(key, { group, full, faint, members: [] });
      found.get(key).members.push(i);
    }
    return [...found.values()].sort((a, b) => b.faint - a.faint || b.members.length - a.members.length);
  }

  // Names of clusters, above the mark that is nearest to the middle of each.
  paintNames() {
    const { members, groups, name } = this.coloring, { brush } = this, [ink, paper] = this.ink;
    if (name !== "cluster" || groups.length > MOST_NAMES) return;
    this.middles ??= groups.map((_, group) => middle(this.run.points, members[group]));
    Object.assign(brush, { font: "bold 13px system-ui, sans-serif", textAlign: "center" });
    this.middles.forEach((index, group) => {
      if (index === null || group === this.run.colors.length) return;
      const words = this.run.names?.[group] ?? group;
      const { x, y } = this.place(index), wide = brush.measureText(words).width + 10;
      Object.assign(brush, { globalAlpha: 0.8, fillStyle: paper });
      brush.fillRect(x - wide / 2, y - 27, wide, 18);
      Object.assign(brush, { globalAlpha: 1, fillStyle: ink });
      brush.fillText(words, x, y - 13);
    });
  }

  paintRing({ x, y }, size) {
    for (const [lineWidth, strokeStyle] of [[5, this.ink[1]], [2.5, this.ink[0]]]) {
      this.brush.beginPath();
      this.brush.arc(x, y, size, 0, 2 * Math.PI);
      Object.assign(this.brush, { lineWidth, strokeStyle }).stroke();
    }
  }

  paintLasso() {
    this.brush.beginPath();
    this.drag.path.forEach(({ x, y }, i) => this.brush[i ? "lineTo" : "moveTo"](x, y));
    Object.assign(this.brush, { lineWidth: 1.5, strokeStyle: this.ink[0] }).stroke();
  }

  drawLegend() {
    const legend = this.root.querySelector(".legend"), held = [...legend.children].indexOf(document.activeElement);
    legend.replaceChildren(...this.coloring.groups.flatMap((group, i) => {
      const members = this.coloring.members[i], all = members.every((one) => this.selected.has(one));
      const button = make("button", { type: "button", ariaPressed: all }, this.sign(group), `${group.name} (${counted(members.length)})`);
      button.addEventListener("click", () => this.toggleGroup(i));
      return members.length ? [button] : [];
    }));
    legend.children[held]?.focus();
  }

  sign({ [this.ground]: color, mark }) {
    const ratio = devicePixelRatio || 1, sign = make("canvas", { width: 14 * ratio, height: 14 * ratio, ariaHidden: "true" });
    const brush = sign.getContext("2d");
    brush.scale(ratio, ratio);
    addMark(brush, this.shapes[mark], 7, 7, 5);
    Object.assign(brush, { fillStyle: color }).fill();
    return sign;
  }

  tell() {
    const n = this.selected.size, total = counted(this.run.n), counts = this.run.colors.map(() => 0);
    const shown = this.count < this.run.n ? `${counted(this.count)} of ${total} samples are shown, chosen at random.` : `All ${total} samples are shown.`;
    for (const i of this.selected) counts[this.run.points.label[i]]++;
    const parts = counts.flatMap((found, label) => (found ? [`${counted(found)} of cluster ${called(this.run, label)}`] : [])).slice(0, 12).join(", ");
    this.root.querySelector(".status").textContent = n ? `${counted(n)} selected: ${parts}. ${shown}` : shown;
    for (const name of ["save", "clear"]) this.root.querySelector(`[data-do=${name}]`).disabled = !n;
  }
}

function span(values) {
  return { low: values.reduce((a, b) => Math.min(a, b), Infinity), high: values.reduce((a, b) => Math.max(a, b), -Infinity) };
}

function isInside({ x, y }, path) {
  let inside = false;
  for (let i = 0, j = path.length - 1; i < path.length; j = i++) {
    const a = path[i], b = path[j];
    if (a.y > y !== b.y > y && x < ((b.x - a.x) * (y - a.y)) / (b.y - a.y) + a.x) inside = !inside;
  }
  return inside;
}

function middle(points, members) {
  if (!members.length) return null;
  const half = (values) => values.sort((a, b) => a - b)[values.length >> 1];
  const x = half(members.map((i) => points.x[i])), y = half(members.map((i) => points.y[i]));
  const apart = (i) => (points.x[i] - x) ** 2 + (points.y[i] - y) ** 2;
  return members.reduce((best, i) => (apart(i) < apart(best) ? i : best));
}
