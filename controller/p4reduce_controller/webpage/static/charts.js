// SPDX-License-Identifier: Apache-2.0
// Curves over the last hour. Where nothing is known, a curve has a gap.
import { drawn, element } from "./words.js";

const LEAST_S = 300; // of the time that is drawn
const MOST_CURVES = 6;

function ceiling(value) {
  const power = 10 ** Math.floor(Math.log10(value));
  return [1, 2, 5, 10].map((step) => step * power).find((most) => most >= value);
}

// The path of each stretch without gaps; `close`: down to the ground.
function path(at, values, place, close) {
  let text = "";
  let first = null;
  values.forEach((value, index) => {
    if (value === null || value === undefined) return;
    const [x, y] = place(at[index], value);
    const gap = index === 0 || values[index - 1] === null || values[index - 1] === undefined;
    if (gap) first = x;
    text += `${gap ? "M" : "L"}${x.toFixed(1)} ${y.toFixed(1)}`;
    const next = values[index + 1];
    if (close && (next === null || next === undefined)) {
      const ground = place(at[index], 0)[1].toFixed(1);
      text += `L${x.toFixed(1)} ${ground}L${first.toFixed(1)} ${ground}Z`;
    }
  });
  return text;
}

function placing(at, most, box) {
  const now = at[at.length - 1];
  const span = Math.max(LEAST_S, now - at[0]);
  return (time, value) => [
    box.left + (box.right - box.left) * (1 + (time - now) / span),
    box.bottom - (box.bottom - box.top) * (value / most),
  ];
}

const highest = (curves) => Math.max(0, ...curves.flatMap(([, values]) => values.filter((value) => value !== null)));

// width: pixels that there are, so that words are as large as elsewhere.
export function chart(title, at, curves, word, width) {
  curves = curves.slice(0, MOST_CURVES);
  const box = { left: 4, right: width - 4, top: 16, bottom: 92 };
  const peak = highest(curves);
  const most = peak > 0 ? ceiling(peak) : 1;
  const place = placing(at, most, box);
  const minutes = Math.round(Math.max(LEAST_S, at.at(-1) - at[0]) / 60);
  const lines = [0, 0.5, 1].map((share) => {
    const y = box.bottom - (box.bottom - box.top) * share;
    return drawn("line", { class: "grid", x1: box.left, x2: box.right, y1: y, y2: y });
  });
  const label = (text, x, y, anchor) => drawn("text", { class: "small", x, y, "text-anchor": anchor }, text);
  const picture = drawn(
    "svg", { viewBox: `0 0 ${width} 110`, role: "img", "aria-label": `${title}: at most ${word(peak)} in the last hour` },
    ...lines,
    ...(curves.length === 1 ? [drawn("path", { class: "area", d: path(at, curves[0][1], place, true) })] : []),
    ...curves.map(([, values], index) =>
      drawn("path", { class: `curve s${index + 1}`, d: path(at, values, place, false) })),
    label(word(most), box.left, box.top - 4, "start"),
    label(`${minutes} min ago`, box.left, 106, "start"),
    label("now", box.right, 106, "end"),
  );
  const latest = curves.length === 1 ? (curves[0][1].at(-1) ?? 0) : null;
  const said = latest === null ? `at most ${word(peak)}` : `${word(latest)}, at most ${word(peak)}`;
  const caption = element("figcaption", {}, element("b", {}, title), element("span", {}, said));
  return element("figure", {}, caption, picture, ...(curves.length > 1 ? [legend(curves)] : []));
}

function legend(curves) {
  const keys = curves.map(([name], index) => {
    const line = drawn("line", { class: `curve-key s${index + 1}`, x1: 0, x2: 14, y1: 4, y2: 4 });
    return element("span", {}, drawn("svg", { viewBox: "0 0 14 8", "aria-hidden": "true" }, line), name);
  });
  return element("div", { class: "legend" }, ...keys);
}

export function sparkline(at, values) {
  const picture = drawn("svg", { viewBox: "0 0 130 30", "aria-hidden": "true", preserveAspectRatio: "none" });
  const peak = highest([["", values]]);
  if (peak > 0) {
    const place = placing(at, peak, { left: 0, right: 130, top: 2, bottom: 29 });
    picture.append(
      drawn("path", { class: "track", d: path(at, values, place, true) }),
      drawn("path", { class: "link busy", "stroke-width": 1.4, d: path(at, values, place, false) }),
    );
  }
  return picture;
}
