// SPDX-License-Identifier: Apache-2.0
// The status page. Whatever the controller tells is put there as text, never as HTML.
import { drawFabric } from "./fabric.js";
import { chart, sparkline } from "./charts.js";
import { bytes, count, element, isBroken, percent, seconds } from "./words.js";

const STATUS_MS = 2000;
const HISTORY_MS = 10000;
const OLD_MS = 10000; // after which what is shown is said to be old
const KEY = "p4reduce-token";

const byId = (id) => document.getElementById(id);
const open = new Set(); // names of jobs whose ranks are shown
let history = null;
let status = null;
let answered = Date.now();
let historyAt = 0;

class Refused extends Error {}
class StandsBy extends Error {}

async function ask(path) {
  const token = sessionStorage.getItem(KEY);
  const answer = await fetch(path, {
    headers: token ? { Authorization: `Bearer ${token}` } : {},
    signal: AbortSignal.timeout(5000),
  });
  const told = await answer.json();
  if (answer.status === 401) throw new Refused(token ? told.error : "");
  if (told.standby) throw new StandsBy(told.error);
  if (!answer.ok) throw new Error(told.error);
  return told;
}

function showLogin(why) {
  sessionStorage.removeItem(KEY);
  byId("login-error").textContent = why;
  byId("login").hidden = false;
  byId("main").hidden = byId("logout").hidden = true;
  setHealth("", "not logged in");
}

function showStandby(said) {
  status = history = null;
  historyAt = 0;
  byId("login").hidden = byId("main").hidden = true;
  byId("logout").hidden = !sessionStorage.getItem(KEY);
  setHealth("standby", said);
}

function setHealth(kind, text) {
  byId("health").className = kind;
  byId("health-text").textContent = text;
}

async function refresh() {
  try {
    status = await ask("api/status");
    answered = Date.now();
    if (answered - historyAt >= HISTORY_MS) {
      history = await ask("api/history");
      historyAt = answered;
    }
    byId("login").hidden = true;
    byId("main").hidden = false;
    byId("logout").hidden = !sessionStorage.getItem(KEY);
    setHealth(status.unready ? "bad" : "good", status.unready || "ready");
    show();
  } catch (error) {
    if (error instanceof Refused) return showLogin(error.message);
    if (error instanceof StandsBy) return showStandby(error.message);
    const silent = Math.round((Date.now() - answered) / 1000);
    setHealth("bad", status ? `no answer for ${silent} s: the page shows old data` : `no answer: ${error.message}`);
  }
  byId("main").classList.toggle("old", Date.now() - answered > OLD_MS);
}

function show() {
  byId("figures").replaceChildren(...figures());
  const troubles = [...switchTroubles(), ...stragglers(), ...losses()];
  byId("trouble").hidden = !troubles.length;
  byId("troubles").replaceChildren(...troubles);
  drawFabric(byId("fabric"), status);
  const jobs = status.jobs.toSorted((one, other) => other.age_s - one.age_s).map(job);
  byId("jobs").replaceChildren(...(jobs.length ? jobs : [element("p", { class: "note" }, "No jobs.")]));
  if (history) byId("history").replaceChildren(...charts());
}

const total = (ranks, key) => ranks.reduce((sum, rank) => sum + (rank[key] ?? 0), 0);
const rateOf = (job) => total(job.ranks, "sent_s") + total(job.ranks, "received_s");

function figures() {
  const ranks = status.jobs.flatMap((one) => one.ranks);
  const used = total(status.switches, "slots_used");
  const slots = total(status.switches, "slots");
  const figure = (name, value) => element("div", {}, element("dt", {}, name), element("dd", {}, value));
  return [
    figure("Jobs", count(status.counts.jobs)),
    figure("Ranks", count(status.counts.ranks)),
    figure("Ranks' traffic", `${bytes(total(ranks, "sent_s") + total(ranks, "received_s"))}/s`),
    figure("Sent again", `${count(total(ranks, "retransmissions_s"))}/s`),
    figure("Slots in use", slots ? percent(used / slots) : "–"),
    figure("Finished / aborted", `${count(status.counts.finished)} / ${count(status.counts.aborted)}`),
  ];
}

const trouble = (name, why) => element("li", {}, element("b", {}, name), `: ${why}`);

function switchTroubles() {
  const away = status.switches.filter(isBroken);
  const cut = status.switches.filter((one) => one.ports_down.length);
  return [
    ...cut.map((one) => trouble(`Switch ${one.name}`, `down: port ${one.ports_down.join(", ")}`)),
    ...status.jobs.flatMap((one) => one.trouble.map((why) => trouble(one.name, why))),
    ...away.map((one) => trouble(`Switch ${one.name}`, one.problem)),
  ];
}

// A line for each switch and rate, however many ports have it.
function losses() {
  return status.switches.flatMap((one) => {
    const alike = new Map();
    for (const { port, direction, rate } of one.losing)
      alike.set(rate, [...(alike.get(rate) ?? []), `${port} (${direction})`]);
    return [...alike].map(([rate, ports]) =>
      trouble(`Switch ${one.name}`, `drops ${percent(rate)} of packets on purpose, at port ${ports.join(", ")}`));
  });
}

const stragglers = () =>
  status.jobs.flatMap((one) => one.stragglers.map((slow) => trouble(`${one.name}, rank ${slow.rank}`, slow.why)));

function job(one) {
  const fact = (name, value, kind = "") =>
    element("span", { class: kind }, element("small", {}, name), value);
  const senders = one.ranks.filter((rank) => rank.leader === undefined).length;
  const ranks = one.ranks.length < one.world_size ? `${one.ranks.length} of ${one.world_size}` : `${one.world_size}`;
  const details = element(
    "details", {},
    element(
      "summary", {},
      element("span", { class: "job" }, one.name),
      fact("state", element("span", { class: `state ${one.state}` }, one.state)),
      fact("ranks", senders < one.ranks.length ? `${ranks}, ${senders} send` : ranks),
      fact("traffic", `${bytes(rateOf(one))}/s`),
      fact("age", seconds(one.age_s)),
      fact("traffic over time", sparkline(history?.at ?? [], history?.jobs[one.name] ?? []), "wide"),
    ),
    element(
      "p", { class: "note" },
      one.switch_packets ? `Its switches have counted ${count(one.switch_packets)} packets, ${bytes(one.switch_bytes)} in all.` : "",
    ),
    element("div", { class: "ranks" }, rankTable(one)),
  );
  details.open = open.has(one.name);
  details.addEventListener("toggle", () => (details.open ? open.add(one.name) : open.delete(one.name)));
  return details;
}

function rankTable(one) {
  const slow = new Set(one.stragglers.map((straggler) => straggler.rank));
  const names = ["rank", "at", "waits for others", "busy", "sent again", "sent", "received", "rounds", "last message"];
  const head = names.map((name) => element("th", { scope: "col" }, name));
  const rows = one.ranks.map((rank) => element("tr", slow.has(rank.rank) ? { class: "warn" } : {}, ...cells(rank)));
  return element("table", {}, element("thead", {}, element("tr", {}, ...head)), element("tbody", {}, ...rows));
}

function cells(rank) {
  const cell = (value, kind = "") => element("td", kind ? { class: kind } : {}, value);
  const at = rank.at.map(([number, port]) => `${status.switches[number].name} port ${port}`).join(", ");
  const where = [cell(`${rank.rank}${rank.is === "here" ? "" : ` (${rank.is})`}`), cell(at || "no HELLO yet")];
  if (rank.leader !== undefined) where[1].append(`, rank ${rank.leader} sends`);
  const heard = cell(rank.heard_s < 1 ? "now" : `${seconds(rank.heard_s)} ago`);
  if (rank.busy === undefined) return [...where, ...Array.from({ length: 6 }, () => cell("–")), heard];
  const again = rank.retransmissions / Math.max(1, rank.packets_sent);
  return [
    ...where,
    share(rank.awaiting),
    share(rank.busy),
    cell(percent(again), again >= 0.01 ? "warn" : ""),
    cell(`${bytes(rank.sent_s)}/s`),
    cell(`${bytes(rank.received_s)}/s`),
    cell(`${count(rank.rounds_s)}/s`),
    heard,
  ];
}

function share(value) {
  const fill = element("i", {});
  fill.style.width = percent(Math.min(1, value));
  return element("td", {}, element("span", { class: "bar" }, fill), element("span", {}, percent(value)));
}

function charts() {
  const names = new Map(status.switches.map((one) => [one.address, one.name]));
  const perSwitch = Object.entries(history.switches).map(([address, values]) => [names.get(address) ?? address, values]);
  const room = byId("history").clientWidth;
  const width = Math.round(room >= 880 ? room / 2 - 13 : room);
  return [
    chart("Ranks' traffic", history.at, [["", history.bytes]], (value) => `${bytes(value)}/s`, width),
    chart("Packets at switches", history.at, perSwitch, (value) => `${count(value)}/s`, width),
    chart("Packets sent again", history.at, [["", history.retransmissions]], (value) => `${count(value)}/s`, width),
    chart("Slots in use", history.at, [["", history.slots]], count, width),
  ];
}

async function run() {
  if (!document.hidden && byId("login").hidden) await refresh();
  setTimeout(run, STATUS_MS);
}

byId("login").addEventListener("submit", (event) => {
  event.preventDefault();
  sessionStorage.setItem(KEY, byId("token").value.trim());
  byId("token").value = "";
  historyAt = 0;
  refresh();
});
byId("logout").addEventListener("click", () => showLogin(""));
document.addEventListener("visibilitychange", () => document.hidden || !byId("login").hidden || refresh());
window.addEventListener("resize", () => status && drawFabric(byId("fabric"), status));
run();
