"use strict";
// What every part of the page uses. Text from the data reaches the page through textContent alone.

const byId = (id) => document.getElementById(id);
const darkGround = matchMedia("(prefers-color-scheme: dark)");
const counted = (number) => number.toLocaleString("en");

// The number of a cluster, with its name if it has one.
const called = (run, label) => (run.names?.[label] ? `${label} (${run.names[label]})` : `${label}`);

function percent(share) {
  if (share === null) return "not known";
  if (share >= 0.995 && share < 1) return "over 99%";
  return share > 0 && share < 0.005 ? "under 1%" : `${Math.round(100 * share)}%`;
}

function make(name, properties, ...inside) {
  const element = Object.assign(document.createElement(name), properties);
  element.append(...inside);
  return element;
}

// A cell of a CSV file; what a spreadsheet would run as a formula is marked as text, as io/formulas.py does.
function csvCell(value) {
  const text = value === null || value === undefined ? "" : String(value);
  const begins = /^[\s']*[=+@\uff1d\uff0b\uff20\uff0d-]|^'*[\t\r]/.test(text) && !Number.isFinite(Number(text));
  const inside = text.replace(/([;,|\t\r\n]\s*["']*)([=+@\uff1d\uff0b\uff20\uff0d-])/g, "$1'$2");
  const harmless = begins || inside !== text ? `'${inside}` : text;
  return /[",\r\n]/.test(harmless) ? `"${harmless.replaceAll('"', '""')}"` : harmless;
}

function saveCsv(name, rows) {
  const text = rows.map((row) => row.map(csvCell).join(",")).join("\r\n") + "\r\n";
  const link = make("a", { href: URL.createObjectURL(new Blob([text], { type: "text/csv" })), download: name });
  document.body.append(link);
  link.click();
  link.remove();
  setTimeout(() => URL.revokeObjectURL(link.href), 1000);
}

async function unpack() {
  const packed = Uint8Array.from(atob(byId("data").textContent), (sign) => sign.charCodeAt(0));
  const stream = new Blob([packed]).stream().pipeThrough(new DecompressionStream("gzip"));
  return new Response(stream).json();
}
