// Find a sample by its id, and say why it is where it is.

const MOST_FOUND = 8;
const WELCOME = "Search an id, or press a mark on the map. Here you will read which cluster the sample is in, how sure that is, and why.";

class Lookup {
  constructor(runs, maps) {
    Object.assign(this, { runs, maps, input: byId("search") });
    const held = (from, drawn) => (from ? from.id.map((id, i) => [id, { from, i, drawn }]) : []);
    this.places = runs.map((run) => new Map([...held(run.others, false), ...held(run.points, true)]));
    this.ids = [...new Set(this.places.flatMap((one) => [...one.keys()]))];
    this.input.addEventListener("input", () => this.list());
    this.input.addEventListener("keydown", (event) => {
      const [first] = this.find(this.input.value);
      if (event.key === "Enter" && first !== undefined) this.lead(first);
    });
    document.addEventListener("click", (event) => {
      const button = event.target.closest("[data-sample]");
      if (button) this.lead(button.dataset.sample);
    });
    byId("lookup").replaceChildren(make("p", { textContent: WELCOME }));
  }

  // The id itself first, then those that begin with the text, then those that contain it.
  find(text) {
    const wanted = text.trim().toLowerCase(), ranked = [[], [], [], []];
    for (const id of wanted ? this.ids : []) {
      const place = id.toLowerCase().indexOf(wanted);
      if (place >= 0) ranked[id === text.trim() ? 0 : id.length === wanted.length ? 1 : place ? 3 : 2].push(id);
    }
    return ranked.flat().slice(0, MOST_FOUND);
  }

  list() {
    const found = this.find(this.input.value), nothing = this.input.value.trim() && !found.length;
    const lines = found.map((id) => {
      const button = make("button", { type: "button", className: "sample", textContent: id });
      button.dataset.sample = id;
      return make("li", {}, button);
    });
    byId("found").replaceChildren(...(nothing ? [make("li", { textContent: this.nothing() })] : lines));
  }

  nothing() {
    const all = this.runs.every((run, r) => this.places[r].size === run.n);
    return all ? "No sample has this id." : "No sample on this page has this id; labels.csv holds all samples.";
  }

  // A look-up from elsewhere on the page scrolls to the answer: with the map where both fit the screen, else alone.
  lead(id) {
    this.show(id);
    const card = byId("lookup"), both = card.parentElement;
    (both.offsetHeight <= innerHeight ? both : card).scrollIntoView({ block: "nearest" });
  }

  show(id) {
    this.maps.forEach((map) => {
      const place = this.places[this.runs.indexOf(map.run)].get(id);
      map.pick(place?.drawn ? place.i : null);
    });
    const cards = this.runs.map((run, r) => this.card(run, this.places[r].get(id)));
    byId("lookup").replaceChildren(make("h3", { textContent: id }), ...cards);
  }

  card(run, place) {
    const name = this.runs.length > 1 ? `${run.name}: ` : "", lines = make("dl", {});
    const tell = (term, ...what) => lines.append(make("dt", { textContent: term }), make("dd", {}, ...what));
    if (!place) { tell(`${name}is not in this run`); return lines; }
    const { from, i, drawn } = place;
    if (from.label[i] < 0) tell(`${name}is an outlier`, "in no cluster: it lies far from all others");
    else tell(`${name}belongs to cluster ${called(run, from.label[i])}`, `${percent(from.confidence[i])} sure`);
    if (run.about[from.label[i]]) tell(`Cluster ${from.label[i]} has`, run.about[from.label[i]]);
    if (!drawn) tell("Why", "This page explains the samples that are drawn; viewfuse explain does it for every sample.");
    else this.explain(run, from, i, tell);
    return lines;
  }

  explain(run, points, i, tell) {
    if ((points.second?.[i] ?? -1) >= 0) tell("Second-best cluster", `Cluster ${called(run, points.second[i])}, ${percent(points.second_confidence[i])}`);
    const present = run.present[points.pattern[i]];
    tell("Views", run.patterns[points.pattern[i]]);
    if (points.weights && run.views.length > 1)
      tell("What decided, by view", ...run.views.map((view, v) => this.weight(view, points.weights[v][i], present[v])));
    run.views.forEach((view, v) => {
      if (!present[v] && points.donors?.[v][i]) tell(`Stood in for ${view}`, points.donors[v][i]);
    });
    for (const { name, levels, values } of run.columns)
      tell(name, values[i] === null ? "not known" : String(levels.length ? levels[values[i]] : values[i]));
  }

  weight(view, share, present) {
    const bar = make("div", { className: "fillbar" });
    bar.style.width = `${100 * (share ?? 0)}%`;
    const words = make("span", { textContent: present ? view : `${view} (stand-ins)` });
    return make("div", { className: "weight" }, words, make("div", { className: "trackbar" }, bar), make("span", { textContent: percent(share) }));
  }
}
