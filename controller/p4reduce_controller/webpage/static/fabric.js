// SPDX-License-Identifier: Apache-2.0
// The switches, the ports where ranks are, and what goes between them. Wide: roots above, side by side. Narrow: from top
// to bottom, indented.
import { bytes, count, drawn, isBroken, percent, shortened } from "./words.js";

const SWITCH = { width: 192, height: 62 };
const PORT = { width: 192, height: 40 };
const GAP = 16;
const RISE = 46; // between a switch and what is below it
const INDENT = 26;
const MOST_PORTS = 8; // of a switch that are drawn

// What is drawn: a tree of nodes, each a switch or a port. A switch with several parents is below its first one.
function nodes(status) {
  const slow = new Set(status.jobs.flatMap((job) => job.stragglers.map((one) => `${job.name}/${one.rank}`)));
  const made = status.switches.map((one) => ({ kind: "switch", of: one, below: [], ...SWITCH }));
  const byName = new Map(made.map((node) => [node.of.name, node]));
  made.forEach((node, number) => node.below.push(...portsOf(status, number, slow)));
  for (const node of made) byName.get(node.of.parent)?.below.unshift(node);
  return made.filter((node) => !byName.has(node.of.parent));
}

function portsOf(status, number, slow) {
  const there = new Map();
  for (const job of status.jobs)
    for (const rank of job.ranks)
      for (const [at, port] of rank.at)
        if (at === number) {
          if (!there.has(port)) there.set(port, { jobs: new Map(), warn: false });
          const place = there.get(port);
          place.jobs.set(job.name, [...(place.jobs.get(job.name) ?? []), rank.rank]);
          place.warn ||= slow.has(`${job.name}/${rank.rank}`);
        }
  const rates = status.switches[number].ports;
  const ports = [...there].sort(([one], [other]) => one - other);
  const drawnPorts = ports.slice(0, MOST_PORTS).map(([port, place]) => {
    const ranks = [...place.jobs.values()].reduce((sum, some) => sum + some.length, 0);
    const [name] = place.jobs.keys();
    const whose = place.jobs.size === 1 ? name : `${place.jobs.size} jobs`;
    const text = `port ${port}: ${ranks} rank${ranks === 1 ? "" : "s"} of ${whose}`;
    return { kind: "port", text, rate: rates[port] ?? 0, warn: place.warn, below: [], ...PORT };
  });
  const more = ports.slice(MOST_PORTS);
  if (more.length) {
    const rate = more.reduce((sum, [port]) => sum + (rates[port] ?? 0), 0);
    const warn = more.some(([, place]) => place.warn);
    drawnPorts.push({ kind: "port", text: `${more.length} more ports`, rate, warn, below: [], ...PORT });
  }
  return drawnPorts;
}

// Wide: ports stand in a column below their switch, switches side by side.
function placeWide(node, left, top) {
  const switches = node.below.filter((one) => one.kind === "switch");
  const ports = node.below.filter((one) => one.kind === "port");
  let right = left;
  for (const one of switches) right = placeWide(one, right, top + SWITCH.height + RISE) + GAP;
  ports.forEach((one, index) => {
    one.x = right;
    one.y = top + SWITCH.height + (switches.length ? RISE : 24) + index * (PORT.height + 8);
  });
  if (ports.length) right += PORT.width + GAP;
  right = Math.max(right - GAP, left + SWITCH.width);
  node.x = (left + right - SWITCH.width) / 2;
  node.y = top;
  return right;
}

function placeNarrow(node, left, top) {
  node.x = left;
  node.y = top;
  let bottom = top + node.height;
  for (const one of node.below) bottom = placeNarrow(one, left + INDENT, bottom + 14);
  return bottom;
}

const all = (node) => [node, ...node.below.flatMap(all)];

// What goes over the link to what is above: a word, and whether it is anything.
function traffic(node) {
  if (node.kind === "port") return [`${bytes(node.rate)}/s`, node.rate > 0];
  const rate = node.of.sent_up_s;
  return rate === null ? ["", false] : [`${count(rate)} sums/s`, rate > 0];
}

function link(above, node, narrow) {
  const [word, busy] = traffic(node);
  const [x, y] = narrow ? [node.x, node.y + node.height / 2] : [node.x + node.width / 2, node.y];
  const elbow = narrow ? above.x + INDENT / 2 : (above.y + SWITCH.height + y) / 2;
  const isFirst = narrow || above.below.filter((one) => one.x === node.x)[0] === node;
  const start = [above.x + SWITCH.width / 2, above.y + SWITCH.height];
  const d = narrow
    ? `M${elbow} ${above.y + SWITCH.height}V${y}H${x}`
    : isFirst ? `M${start[0]} ${start[1]}V${elbow}H${x}V${y}` : `M${x} ${y - 8}V${y}`;
  const line = drawn("path", { class: busy ? "link busy" : "link", "stroke-width": busy ? 2 : 1.5, d });
  if (node.kind === "port" || narrow) return [line];
  return [line, drawn("text", { class: "small label", x: x + 6, y: y - 8 }, word)];
}

// A line from a further parent of a switch.
function linkToAnother(above, node) {
  const [from, to] = [above, node].map((one) => one.x + SWITCH.width / 2);
  return drawn("path", { class: "link", "stroke-width": 1.5, d: `M${from} ${above.y + SWITCH.height}L${to} ${node.y}` });
}

function boxOf(node, ...inside) {
  const box = drawn("rect", { class: "box", x: node.x, y: node.y, width: node.width, height: node.height, rx: 7 });
  const warns = node.warn ? " warn" : "";
  return drawn("g", { class: node.kind + (node.kind === "switch" && isBroken(node.of) ? " bad" : warns) }, box, ...inside);
}

function text(node, dy, kind, words, dx = 10, anchor = "start") {
  const x = anchor === "end" ? node.x + node.width - dx : node.x + dx;
  return drawn("text", { class: kind, x, y: node.y + dy, "text-anchor": anchor }, words);
}

const below = (one) => (one.parents.length ? `, below ${one.parents.join(", ")}` : "");

function drawSwitch(node, narrow) {
  const one = node.of;
  const share = one.slots ? one.slots_used / one.slots : 0;
  const bar = { x: node.x + 10, y: node.y + node.height - 13, height: 5, rx: 2.5 };
  const rate = one.packets_s === null ? "" : `${count(one.packets_s)} packets/s`;
  const up = narrow && one.parent && one.sent_up_s !== null ? `, up ${count(one.sent_up_s)}/s` : "";
  return boxOf(
    node,
    drawn("title", {}, `${one.name} at ${one.address}, aggregator ${one.aggregator}${below(one)}: ${one.problem || one.state}`),
    text(node, 19, "name", shortened(one.name, one.state === "Ready" ? 22 : 12)),
    text(node, 19, "small state", one.state === "Ready" ? "" : one.state, 10, "end"),
    text(node, 39, "", rate + up),
    text(node, 39, "small", narrow && up ? "" : `${percent(share)} slots`, 10, "end"),
    drawn("rect", { class: "track", width: node.width - 20, ...bar }),
    drawn("rect", { class: "fill", width: (node.width - 20) * share, ...bar }),
  );
}

const drawPort = (node) =>
  boxOf(node, drawn("title", {}, node.text), text(node, 16, "small", shortened(node.text, 30)), text(node, 32, "", `${bytes(node.rate)}/s`));

export function drawFabric(place, status) {
  const roots = nodes(status);
  const room = place.clientWidth;
  let width = -GAP;
  for (const root of roots) width = placeWide(root, width + GAP, 2);
  const narrow = width + 4 > room;
  if (narrow) {
    let bottom = -14;
    for (const root of roots) bottom = placeNarrow(root, 2, bottom + 16);
  }
  const every = roots.flatMap(all);
  const right = Math.max(0, ...every.map((node) => node.x + node.width)) + 3;
  const bottom = Math.max(0, ...every.map((node) => node.y + node.height)) + 3;
  const left = Math.min(...every.map((node) => node.x)) - 2;
  const links = every.flatMap((node) => node.below.flatMap((one) => link(node, one, narrow)));
  const switches = new Map(every.filter((node) => node.kind === "switch").map((node) => [node.of.name, node]));
  for (const node of narrow ? [] : switches.values())
    for (const name of node.of.parents.slice(1))
      if (switches.has(name)) links.push(linkToAnother(switches.get(name), node));
  const boxes = every.map((node) => (node.kind === "switch" ? drawSwitch(node, narrow) : drawPort(node)));
  const names = status.switches.map((one) => `${one.name} ${one.state}`).join(", ");
  place.replaceChildren(
    drawn("svg", { width: right - left, height: bottom, viewBox: `${left} 0 ${right - left} ${bottom}`, role: "img",
      "aria-label": `Switches: ${names}` }, ...links, ...boxes),
  );
}
