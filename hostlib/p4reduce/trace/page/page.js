// SPDX-License-Identifier: Apache-2.0
// Draws the trace in #trace. Its contents are described in hostlib/p4reduce/trace/model.py.
"use strict";
const {trace, summary} = JSON.parse(document.getElementById("trace").textContent);
const rounds = trace.rounds.map(([slot, seq, operation, begin, end, complete, active, blocks, skipped, last, awaited,
                                  parts, again, missing]) =>
  ({slot, seq, operation, begin, end, complete, active, blocks, skipped, last, awaited, parts, again,
    late: missing.length ? missing : last === null ? [] : [last]}));
const bySlot = trace.slots.map(() => []);
for (const one of rounds) bySlot[one.slot].push(one);
const operations = [...new Set(rounds.map((one) => one.operation))];
const length = rounds.reduce((most, one) => Math.max(most, one.end), 1);
const element = (id) => document.getElementById(id);

function time(us) {
  if (us >= 1e6) return `${(us / 1e6).toPrecision(3)} s`;
  return us >= 1e3 ? `${+(us / 1e3).toPrecision(3)} ms` : `${+us.toPrecision(3)} µs`;
}
const local = (value) => value.toLocaleString();
const straggling = [...(summary.stragglers || []), ...(summary.awaited_last || [])];
const percent = (share, digits = 0) => `${(100 * share).toFixed(digits)} %`;

// The summary.

function say(kind, small, strong, rest) {
  const made = document.createElement("div");
  made.className = kind;
  for (const [tag, text] of [["small", small], ["strong", strong], ["small", rest]]) {
    const part = document.createElement(tag);
    part.textContent = text;
    made.append(part);
  }
  element("verdicts").append(made);
}

function summarise() {
  const late = [...summary.workers].sort((a, b) => b.awaited_s - a.awaited_s);
  const losers = [...summary.workers].sort((a, b) => b.lost - a.lost).filter((one) => one.lost);
  const left = summary.missed + summary.cut, least = left ? "≥ " : "";
  if (left) {
    say("plain", "straggler", "not known", [[summary.missed, "not recorded"], [summary.cut, "cut"]]
        .filter(([count]) => count).map(([count, what]) => `${count.toLocaleString()} packets ${what}`).join(", "));
  } else if (summary.stragglers.length) {
    say("awaited", "straggler", summary.stragglers.join(", "),
        `the others waited for it during ${percent(late[0].awaited)} of the time with rounds under way, ${time(late[0].awaited_s * 1e6)}`);
  } else if (summary.awaited_last.length) {
    say("awaited", "waited for at the end", summary.awaited_last.join(", "), `for ${time(summary.awaited_last_s * 1e6)}`);
  } else if (summary.silent.length) {
    say("plain", "straggler", "not known", `${summary.silent.join(", ")}: nothing in this trace`);
  } else {
    say("good", "straggler", "none",
        late.length && late[0].awaited_s ? `${late[0].name} longest: ${time(late[0].awaited_s * 1e6)}` : "no worker was late");
  }
  if (left) say("plain", "lost", "not known", "");
  else say(summary.lost ? "lost" : "good", "lost",
      summary.lost ? `${summary.lost} packet${summary.lost > 1 ? "s" : ""}, ${percent(summary.loss, 2)}` : "nothing",
      losers.length ? losers.slice(0, 4).map((one) => `${one.name}: ${one.lost}`).join(", ") : "");
  const blocks = summary.skipped + summary.carried;
  say("skipped", "skipped", blocks ? `≥ ${Math.floor(1e4 * summary.skipped / blocks) / 100} % of blocks` : "nothing",
      `≥ ${summary.skipped.toLocaleString()} zero, ${summary.carried.toLocaleString()} carried`);
  say("plain", "in all", `${least}${summary.rounds.toLocaleString()} rounds`,
      `${summary.operations} operations, ${trace.slots.length} slots, ${time(summary.seconds * 1e6)}`);
  for (const text of summary.said) {
    const item = document.createElement("li");
    item.textContent = text;
    element("said").append(item);
  }
  const table = element("workers");
  const row = (tag, cells) => {
    const made = table.insertRow();
    for (const [text, kind] of cells) {
      const cell = document.createElement(tag);
      cell.textContent = text;
      if (kind) cell.className = kind;
      made.append(cell);
    }
  };
  row("th", [["worker"], ["others waited"], ["of the time with rounds"], ["lost"], ["asked"], ["packets"], ["blocks left out"]]);
  for (const one of summary.workers) {
    const straggles = straggling.includes(one.name) && "awaited";
    const known = (value, text) => value === null ? "not known" : text(value);
    row("td", [[one.name], [known(one.awaited_s, (s) => time(s * 1e6)), straggles], [known(one.awaited, percent), straggles],
               [known(one.lost, local), one.lost && "lost"], [known(one.asked, local)],
               [one.sent.toLocaleString()], [one.left_out.toLocaleString()]]);
  }
}

// The chart. `view`: the part of the time that is shown, in us.

const canvas = element("chart"), view = {from: 0, to: length};
const WORKER = 28, MARKS = 11, SKIPPED = 34, HEAD = 22, AXIS = 22, GAP = 10;
let shape = {};

function layout() {
  const width = canvas.clientWidth, slot = Math.max(5, Math.min(22, Math.round(420 / trace.slots.length)));
  const left = Math.min(170, Math.max(64, width * 0.2));
  const workers = HEAD, skipped = workers + trace.workers.length * WORKER + GAP + HEAD;
  const slots = skipped + SKIPPED + GAP + HEAD;
  shape = {width, slot, left, right: width - 8, workers, skipped, slots, axis: slots + slot * trace.slots.length + 4};
  shape.height = shape.axis + AXIS;
  const scale = window.devicePixelRatio || 1;
  canvas.style.height = `${shape.height}px`;
  canvas.width = Math.round(width * scale);
  canvas.height = Math.round(shape.height * scale);
  canvas.getContext("2d").setTransform(scale, 0, 0, scale, 0, 0);
}

const x = (us) => shape.left + (us - view.from) / (view.to - view.from) * (shape.right - shape.left);
const us = (at) => view.from + (at - shape.left) / (shape.right - shape.left) * (view.to - view.from);
const seen = (begin, end) => end >= view.from && begin <= view.to;

function span(pen, colour, begin, end, top, height, least = 1) {
  if (!seen(begin, end)) return;
  const from = Math.max(shape.left, x(begin)), to = Math.min(shape.right, x(end));
  pen.fillStyle = colour;
  pen.fillRect(from, top, Math.max(least, to - from), height);
}

// A loss has a head; a packet sent only to ask is a short line below. Both have an edge, to be visible on waits.
function mark(pen, colour, edge, at, top, height, head) {
  if (!seen(at, at)) return;
  const low = head ? top : top + height * 0.6;
  pen.fillStyle = edge;
  pen.fillRect(x(at) - 1.5, low, 3.5, top + height - low);
  pen.fillStyle = colour;
  pen.fillRect(x(at) - 0.5, low, 1.5, top + height - low);
  if (!head) return;
  pen.beginPath();
  pen.moveTo(x(at) - 4, top);
  pen.lineTo(x(at) + 4, top);
  pen.lineTo(x(at), top + Math.min(7, height));
  pen.closePath();
  pen.strokeStyle = edge;
  pen.lineWidth = 2;
  pen.stroke();
  pen.fill();
}

function label(pen, text, top, height) {
  pen.fillText(text.length > 22 ? `${text.slice(0, 21)}…` : text, 0, top + height / 2, shape.left - 6);
}

function draw() {
  const style = getComputedStyle(document.documentElement);
  const colour = (name) => style.getPropertyValue(`--${name}`).trim();
  const pen = canvas.getContext("2d");
  pen.clearRect(0, 0, shape.width, shape.height);
  pen.font = "12px system-ui, 'DejaVu Sans', sans-serif";
  pen.textBaseline = "middle";
  pen.fillStyle = colour("faint");
  pen.fillText("Workers: who was waited for, whose packets were lost", 0, shape.workers - 12);
  pen.fillText("Blocks: carried below, skipped above", 0, shape.skipped - 12);
  pen.fillText("Rounds in each slot", 0, shape.slots - 12);
  axis(pen, colour);
  trace.workers.forEach((worker, index) => {
    const top = shape.workers + index * WORKER;
    pen.fillStyle = colour(straggling.includes(worker.name) ? "awaited" : "text");
    label(pen, worker.name, top, WORKER - 4);
    pen.fillStyle = colour("ground");
    pen.fillRect(shape.left, top, shape.right - shape.left, WORKER - 4);
  });
  skips(pen, colour);
  if (shape.slot >= 9) {
    pen.fillStyle = colour("text");
    trace.slots.forEach((name, slot) => label(pen, name, shape.slots + slot * shape.slot, shape.slot - 1));
  }
  for (const one of rounds) {
    if (!seen(one.begin, one.end)) continue;
    const top = shape.slots + one.slot * shape.slot, height = shape.slot - 1;
    span(pen, colour("network"), one.begin, one.end, top, height);
    if (x(one.end) - x(one.begin) > 3) span(pen, colour("card"), one.end, one.end, top, height);
    if (one.awaited) {
      span(pen, colour("awaited"), ...one.awaited, top, height);
      for (const worker of one.late) {
        span(pen, colour("awaited"), ...one.awaited, shape.workers + worker * WORKER + MARKS + 1, WORKER - MARKS - 5);
      }
    }
    if (one.skipped && shape.slot >= 9 && x(one.end) - x(one.begin) > 30) {
      pen.fillStyle = colour("text");
      pen.fillText(`»${one.skipped}`, Math.max(shape.left, x(one.begin)) + 3, top + height / 2, x(one.end) - x(one.begin));
    }
  }
  for (const kind of ["asked", "lost"]) {
    for (const one of rounds) {
      for (const [worker, at, why] of one.again) {
        if ((why === "asked") !== (kind === "asked")) continue;
        const ink = [colour(kind), colour("card"), at];
        mark(pen, ...ink, shape.workers + worker * WORKER, MARKS, kind === "lost");
        mark(pen, ...ink, shape.slots + one.slot * shape.slot, shape.slot - 1, kind === "lost");
      }
    }
  }
}

function axis(pen, colour) {
  const rough = (view.to - view.from) / Math.max(2, (shape.right - shape.left) / 110), power = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 5, 10].map((one) => one * power).find((one) => one >= rough);
  const bands = [[shape.workers, shape.skipped - HEAD - GAP], [shape.skipped, shape.slots - HEAD - GAP],
                 [shape.slots, shape.axis]]; // not behind the text between them
  for (let at = Math.ceil(view.from / step) * step; at <= view.to; at += step) {
    pen.fillStyle = colour("line");
    for (const [top, bottom] of bands) pen.fillRect(x(at), top, 1, bottom - top);
    pen.fillStyle = colour("faint");
    pen.textAlign = x(at) > shape.right - 30 ? "right" : "center";
    pen.fillText(at ? time(at) : "0", x(at), shape.axis + 10);
    pen.textAlign = "left";
  }
}

// Blocks by the time when their rounds began, in columns of a few pixels.
function skips(pen, colour) {
  const wide = 4, count = Math.ceil((shape.right - shape.left) / wide);
  const carried = new Array(count).fill(0), skipped = new Array(count).fill(0);
  for (const one of rounds) {
    const column = Math.floor((x(one.begin) - shape.left) / wide);
    if (column < 0 || column >= count) continue;
    skipped[column] += one.skipped;
    for (let lanes = one.active; lanes; lanes &= lanes - 1) carried[column]++;
  }
  const most = Math.max(1, ...carried.map((one, column) => one + skipped[column]));
  for (let column = 0; column < count; column++) {
    const left = shape.left + column * wide, low = SKIPPED * carried[column] / most, high = SKIPPED * skipped[column] / most;
    pen.fillStyle = colour("network");
    pen.fillRect(left, shape.skipped + SKIPPED - low, wide - 1, low);
    pen.fillStyle = colour("skipped");
    pen.fillRect(left, shape.skipped + SKIPPED - low - high, wide - 1, high);
  }
}

// Moving and zooming.

function show(from, to) {
  const wide = Math.min(length, Math.max(20, to - from));
  view.from = Math.min(Math.max(0, from), length - wide);
  view.to = view.from + wide;
  draw();
}

function zoom(factor, at = (shape.left + shape.right) / 2) {
  const centre = us(at);
  show(centre - (centre - view.from) * factor, centre + (view.to - centre) * factor);
}

const fingers = new Map();
let moved = 0;
canvas.addEventListener("wheel", (event) => {
  event.preventDefault();
  zoom(event.deltaY > 0 ? 1.25 : 0.8, event.offsetX);
}, {passive: false});
canvas.addEventListener("pointerdown", (event) => {
  canvas.setPointerCapture(event.pointerId);
  fingers.set(event.pointerId, event.offsetX);
  moved = 0;
});
canvas.addEventListener("pointermove", (event) => {
  if (!fingers.has(event.pointerId)) return;
  const before = [...fingers.values()], was = fingers.get(event.pointerId);
  fingers.set(event.pointerId, event.offsetX);
  moved += Math.abs(event.offsetX - was);
  if (fingers.size === 2) {
    const now = [...fingers.values()], apart = (two) => Math.max(10, Math.abs(two[0] - two[1]));
    zoom(apart(before) / apart(now), (now[0] + now[1]) / 2);
  } else {
    const by = us(was) - us(event.offsetX);
    show(view.from + by, view.to + by);
  }
});
canvas.addEventListener("pointerup", (event) => {
  if (fingers.size === 1 && moved < 5) tell(event.offsetX, event.offsetY);
  fingers.delete(event.pointerId);
});
canvas.addEventListener("pointercancel", (event) => fingers.delete(event.pointerId));
canvas.addEventListener("keydown", (event) => {
  const by = (view.to - view.from) / 5;
  if (event.key === "ArrowLeft") show(view.from - by, view.to - by);
  else if (event.key === "ArrowRight") show(view.from + by, view.to + by);
  else if (event.key === "+") zoom(0.6);
  else if (event.key === "-") zoom(1 / 0.6);
  else return;
  event.preventDefault();
});
element("closer").onclick = () => zoom(0.5);
element("farther").onclick = () => zoom(2);
element("whole").onclick = () => show(0, length);

// Describes one round in words: the one under the pointer, or else the nearest in its slot.
function tell(left, top) {
  const slot = Math.floor((top - shape.slots) / shape.slot), at = us(left);
  const near = (bySlot[slot] || []).reduce((best, one) => {
    const far = Math.max(0, one.begin - at, at - one.end);
    return !best || far < best.far ? {one, far} : best;
  }, null);
  element("round").hidden = !near;
  if (near) element("round").textContent = words(near.one);
}

function words(one) {
  const name = (index) => trace.workers[index].name;
  const lines = [`${trace.slots[one.slot]}, round ${one.seq}, operation ${operations.indexOf(one.operation) + 1}: ` +
                 `${time(one.begin)} to ${time(one.end)}, ${time(one.end - one.begin)}`];
  if (!one.active) lines.push("announces: each worker says which block of each lane is its first");
  else lines.push(`blocks ${one.blocks.join(", ") || "not known"}` + (one.skipped ? `, ${one.skipped} skipped before them` : ""));
  if (!one.complete) lines.push("no result in the trace");
  if (one.awaited) lines.push(`${one.late.map(name).join(", ")} was waited for: ${time(one.awaited[1] - one.awaited[0])}`);
  for (const [worker, at, present] of [...one.parts].sort((a, b) => a[1] - b[1])) {
    const lanes = [...Array(8).keys()].filter((lane) => present >> lane & 1);
    lines.push(`${time(at - one.begin).padStart(9)}  ${name(worker)} sends ` +
               (lanes.length ? `lanes ${lanes.join(", ")}` : one.active ? "no values: its blocks are zero" : "its first blocks") +
               (worker === one.last ? ", and completes the round" : ""));
  }
  const why = {lost: "it was lost", answer: "the answer to it was lost", asked: "nothing was lost: it asks whether the others' packets have come"};
  for (const [worker, at, kind] of one.again) {
    lines.push(`${time(at - one.begin).padStart(9)}  ${name(worker)} sends it again: ${why[kind]}`);
  }
  return lines.join("\n");
}

summarise();
const arrange = () => { layout(); draw(); };
window.addEventListener("resize", arrange);
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", draw);
arrange();
