// Ways to colour the samples. Each puts every sample into a group with a name, a colour on either ground and a mark.

const SCALE = {
  light: ["#440154", "#414487", "#2a788e", "#22a884", "#7ad151"],
  dark: ["#5566c4", "#21918c", "#5ec962", "#addc30", "#fde725"],
};
const GREY = { light: "#9a9fa6", dark: "#7d858e", mark: "o" };
const MOST_PATTERNS = 8;
const PATTERN_MARKS = ["o", "s", "^", "D", "v", "P", "X", "o"]; // green and pink are grey, too, for some readers

function colorings(run, colors) {
  const look = (number) => ({ light: colors.light[number], dark: colors.dark[number], mark: colors.marks[number] });
  const { label, confidence } = run.points;
  const clusters = run.colors.map((number, own) => ({ name: `Cluster ${called(run, own)}`, ...look(number) }));
  const of = label.map((own) => (own < 0 ? clusters.length : own)); // outliers may be in no cluster
  const found = [{ name: "cluster", of, groups: [...clusters, { name: "Outliers", ...GREY }] }, byNumber("confidence", confidence)];
  for (const [count, groups] of Object.entries(run.cuts)) found.push(byCut(run, count, groups, of, clusters));
  if (run.patterns.length > 1) found.push(byPattern(run, look));
  for (const column of run.columns)
    if (!column.levels.length) found.push(byNumber(column.name, column.values));
    else if (column.levels.length <= colors.marks.length) found.push(byLevel(column, look));
  for (const one of found) {
    one.members = one.groups.map(() => []);
    one.of.forEach((group, i) => one.members[group].push(i));
  }
  return found;
}

// Clusters that are joined in a cut of the tree have the colour of their first one; outliers are the last group.
function byCut(run, count, groups, labels, clusters) {
  const name = (own) => {
    const inside = groups.flatMap((first, label) => (first === own ? [called(run, label)] : []));
    return `Cluster${inside.length > 1 ? "s" : ""} ${inside.join(", ")}`;
  };
  const joined = clusters.map((one, own) => ({ ...one, name: name(own) }));
  return { name: `cut into ${count}`, of: labels.map((own) => groups[own] ?? own), groups: [...joined, { name: "Outliers", ...GREY }] };
}

// Five equal steps from the least to the largest value.
function byNumber(name, values) {
  const known = values.filter((value) => value !== null);
  const low = known.reduce((a, b) => Math.min(a, b), Infinity), high = known.reduce((a, b) => Math.max(a, b), -Infinity);
  const step = (high - low) / 5, edge = (i) => Number((low + i * step).toPrecision(3));
  const groups = SCALE.light.map((light, i) => ({ name: `${edge(i)} to ${edge(i + 1)}`, light, dark: SCALE.dark[i], mark: "o" }));
  const of = values.map((value) => (value === null ? 5 : Math.min(4, Math.floor((value - low) / (step || 1)))));
  return { name, of, groups: [...groups, { name: "not known", ...GREY }], text: (i) => `${name}: ${values[i] ?? "not known"}` };
}

// What is nothing to look at is grey: beside hundreds of bright others a few outliers would not be seen.
function byLevel({ name, levels, values }, look) {
  const seen = (level, i) => (level === "not far from others" ? GREY : look(i));
  const groups = [...levels.map((level, i) => ({ name: level, ...seen(level, i) })), { name: "not known", ...GREY }];
  const of = values.map((value) => value ?? levels.length);
  return { name, of, groups, text: (i) => `${name}: ${groups[of[i]].name}` };
}

// Samples with all views are grey, and so are those with a rare pattern.
function byPattern(run, look) {
  const first = run.present[0].every(Boolean) ? 1 : 0, rest = run.patterns.length - MOST_PATTERNS;
  const groups = run.patterns.slice(0, MOST_PATTERNS).map((name, i) => ({ name, ...(i < first ? GREY : look(i - first)), mark: PATTERN_MARKS[i] }));
  if (rest > 0) groups.push({ name: `${rest} other pattern${rest > 1 ? "s" : ""}`, ...GREY, mark: "s" });
  return { name: "missing views", of: run.points.pattern.map((own) => Math.min(own, MOST_PATTERNS)), groups };
}

// Adds a mark to the path of a canvas; corners are given for a mark of size 4.5.
function addMark(brush, corners, x, y, size) {
  if (!corners) {
    brush.moveTo(x + size, y);
    brush.arc(x, y, size, 0, 2 * Math.PI);
    return;
  }
  corners.forEach(([dx, dy], i) => brush[i ? "lineTo" : "moveTo"](x + (size / 4.5) * dx, y + (size / 4.5) * dy));
  brush.closePath();
}
