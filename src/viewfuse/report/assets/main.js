// Brings the page to life, after it can be read.

const maps = [];

async function start() {
  document.querySelectorAll("table.sortable").forEach(prepareTable);
  const { runs, colors } = await unpack();
  let lookup = null;
  for (const root of document.querySelectorAll(".map"))
    maps.push(new SampleMap(root, runs[root.dataset.run], colors, (id) => lookup.show(id)));
  lookup = new Lookup(runs, maps);
  document.addEventListener("click", (event) => {
    const cut = event.target.closest("[data-cut]");
    if (!cut || !maps.length) return;
    maps.forEach((map) => map.colorBy(`cut into ${cut.dataset.cut}`));
    maps[0].root.scrollIntoView({ block: "nearest" });
  });
  addEventListener("beforeprint", () => {
    document.querySelectorAll("details").forEach((one) => { one.open = true; });
    maps.forEach((map) => { map.printing = true; map.paint(); map.drawLegend(); });
  });
  addEventListener("afterprint", () => maps.forEach((map) => { map.printing = false; map.refresh(); }));
  document.documentElement.dataset.ready = "yes";
}

start();
