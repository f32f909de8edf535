// Find a sample by its id, and say why it is where it is.

const MOST_FOUND = 8;

class Lookup {
  constructor(runs, maps) {
    Object.assign(this, { runs, maps });
    this.places = runs.map((run) => new Map([
      ...(run.others ? run.others.id.map((id, i) => [id, { from: run.others, i, drawn: false }]) : []),
      ...run.points.id.map((id, i) => [id, { from: run.points, i, drawn: true }]),
    ]));
    this.ids = [...new Set(this.places.flatMap((one) => [...one.keys()]))];
    this.input = byId("search");
    this.input.addEventListener("input", () => this.list());
    this.input.addEventListener("keydown", (event) => {
      const first = this.find(this.input.value)[0];
      if (event.key === "Enter" && first !== undefined) this.show(first);
    });
    document.addEventListener("click", (event) => {
      const button = event.target.closest("[data-sample]");
      if (button) { this.show(button.dataset.sample); byId("map").scrollIntoView(); }
    });
    byId("lookup").replaceChildren(make("p", { textContent: "Search an id, or press a mark on the map: here you will read which cluster the sample is in, how sure that is, and why." }));
  }

  // The id itself first, then those that begin with the text, then those that contain it.
  find(text) {
    const wanted = text.trim().toLowerCase();
    if (!wanted) return [];
    const ranks = this.ids.map((id) => {
      const place = id.toLowerCase().indexOf(wanted);
      return place < 0 ? 4 : id === text.trim() ? 0 : id.length === wanted.length ? 1 : place ? 3 : 2;
    });
    return [0, 1, 2, 3].flatMap((rank) => this.ids.filter((_, i) => ranks[i] === rank)).slice(0, MOST_FOUND);
  }

  list() {
    const found = this.find(this.input.value);
    const buttons = found.map((id) => {
      const button = make("button", { type: "button", className: "sample", textContent: id });
      button.addEventListener("click", () => this.show(id));
      return make("li", {}, button);
    });
    const none = this.input.value.trim() && !found.length;
    byId("found").replaceChildren(...(none ? [make("li", { textContent: this.nothing() })] : buttons));
  }

  nothing() {
    const held = this.runs.every((run, r) => this.places[r].size === run.n);
    return held ? "No sample has this id." : "No sample on this page has this id; labels.csv holds all samples.";
  }

  show(id) {
    this.maps.forEach((map) => {
      const place = this.places[this.runs.indexOf(map.run)].get(id);
      map.pick(place && place.drawn ? place.i : null);
    });
    const cards = this.runs.map((run, r) => this.card(run, this.places[r].get(id)));
    byId("lookup").replaceChildren(make("h3", { textContent: id }), ...cards);
  }

  card(run, place) {
    const name = this.runs.length > 1 ? `${run.name}: ` : "";
    if (!place) return make("p", { textContent: `${name}not in this run.` });
    const { from, i, drawn } = place;
    const lines = make("dl", {});
    const tell = (term, ...what) => lines.append(make("dt", { textContent: term }), make("dd", {}, ...what));
    tell(`${name}Cluster ${from.label[i]}`, `${percent(from.confidence[i])} sure`);
    if (from.stability[i] !== null) tell("Stability", `${percent(from.stability[i])} of the other trainings, or methods, agree`);
    if (!drawn) tell("Why", "This page explains the samples that are drawn; viewfuse explain tells it of every sample.");
    else this.explain(run, from, i, tell);
    return lines;
  }

  explain(run, points, i, tell) {
    if (points.second && points.second[i] !== null && points.second[i] >= 0)
      tell("Second-best cluster", `${points.second[i]}, ${percent(points.second_confidence[i])}`);
    const present = run.present[points.pattern[i]];
    tell("Views", run.patterns[points.pattern[i]]);
    if (points.weights && run.views.length > 1)
      tell("What decided, by view", ...run.views.map((view, v) => this.weight(view, points.weights[v][i], present[v])));
    run.views.forEach((view, v) => {
      if (!present[v] && points.donors && points.donors[v][i]) tell(`${view} is missing; these stood in`, points.donors[v][i]);
    });
    for (const column of run.columns) {
      const value = column.values[i];
      tell(column.name, value === null ? "not known" : String(column.levels.length ? column.levels[value] : value));
    }
  }

  weight(view, share, present) {
    const words = `${view}${present ? "" : " (stand-in)"}`;
    const bar = make("meter", { min: 0, max: 1, value: share ?? 0, ariaLabel: `${words}: ${percent(share)}` });
    return make("div", { className: "weight" }, make("span", { textContent: words }), bar, make("span", { textContent: percent(share) }));
  }
}
