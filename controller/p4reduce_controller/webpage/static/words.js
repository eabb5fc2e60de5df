// SPDX-License-Identifier: Apache-2.0
// Elements, and numbers as people read them.

const SVG = "http://www.w3.org/2000/svg";

function make(made, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) if (value !== "") made.setAttribute(name, value);
  made.append(...children);
  return made;
}

export const element = (tag, attributes, ...children) => make(document.createElement(tag), attributes, children);
export const drawn = (tag, attributes, ...children) => make(document.createElementNS(SVG, tag), attributes, children);

function scaled(value, step, units) {
  let unit = 0;
  while (value >= 999.5 && unit < units.length - 1) {
    value /= step;
    unit += 1;
  }
  const digits = unit === 0 || value >= 99.5 ? 0 : value >= 9.95 ? 1 : 2;
  return `${value.toFixed(digits)}${units[unit]}`;
}

export const bytes = (value) => scaled(value, 1000, [" B", " kB", " MB", " GB", " TB"]);
export const count = (value) => (value > 0 && value < 10 && value % 1 ? value.toFixed(1) : scaled(value, 1000, ["", "k", "M", "G"]));

export function percent(share) {
  const value = 100 * share;
  return `${value > 0 && value < 9.95 ? value.toFixed(1) : value.toFixed(0)}%`;
}

export function seconds(value) {
  if (value < 60) return `${Math.floor(value)} s`;
  if (value < 3600) return `${Math.floor(value / 60)} min`;
  const hours = Math.floor(value / 3600);
  if (hours < 48) return `${hours} h ${Math.floor((value % 3600) / 60)} min`;
  return `${Math.floor(hours / 24)} d`;
}

export const shortened = (text, most) => (text.length > most ? `${text.slice(0, most - 1)}…` : text);

// Not where an operator keeps new jobs from the switch, nor where another switch is the reason.
export const isBroken = (one) => !["Ready", "Draining", "Cordoned", "Unschedulable"].includes(one.state);
