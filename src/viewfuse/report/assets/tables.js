// Tables that can be sorted and saved.

const cellValue = (cell) => cell.dataset.value ?? cell.textContent;

function sortBy(table, column, head) {
  const down = head.getAttribute("aria-sort") === "ascending", [body] = table.tBodies;
  const keyed = [...body.rows].map((row) => [cellValue(row.cells[column]), row]);
  const numbers = keyed.every(([key]) => key === "" || Number.isFinite(Number(key)));
  const compare = numbers ? (a, b) => Number(a) - Number(b) : (a, b) => a.localeCompare(b, "en", { numeric: true });
  keyed.sort(([a], [b]) => (down ? -1 : 1) * compare(a, b));
  body.append(...keyed.map(([, row]) => row));
  for (const other of table.tHead.rows[0].cells) other.removeAttribute("aria-sort");
  head.setAttribute("aria-sort", down ? "descending" : "ascending");
}

function prepareTable(table) {
  const heads = [...table.tHead.rows[0].cells], names = heads.map((head) => head.textContent);
  heads.forEach((head, column) => {
    const button = make("button", { type: "button", textContent: names[column] });
    button.addEventListener("click", () => sortBy(table, column, head));
    head.replaceChildren(button);
  });
  for (const row of table.tBodies[0].rows) [...row.cells].forEach((cell, column) => { cell.dataset.label = names[column]; });
  const save = make("button", { type: "button", textContent: "CSV", title: "Save this table" });
  save.addEventListener("click", () => {
    saveCsv(`${table.dataset.name}.csv`, [names, ...[...table.tBodies[0].rows].map((row) => [...row.cells].map(cellValue))]);
  });
  table.caption.append(save);
}
