// SPDX-License-Identifier: Apache-2.0
// Runs the site's own search worker, and prints what it finds: node search.js SITE QUERY...
// For each query one JSON list of pages, best first, each a list of the sections found in it.
"use strict";
const fs = require("fs");
const path = require("path");
const vm = require("vm");

const [site, ...queries] = process.argv.slice(2);
const folder = path.join(site, "assets", "javascripts", "workers");
const worker = fs.readdirSync(folder).find((name) => /^search\..*\.js$/.test(name));
const { config, docs } = JSON.parse(fs.readFileSync(path.join(site, "search", "search_index.json"), "utf8"));
config.separator = config.separator || "[\\s\\-]+";

let answer;
const scope = { console, addEventListener: (_, listener) => (scope.listener = listener), postMessage: (m) => answer(m) };
scope.self = scope.parent = scope;
vm.runInNewContext(fs.readFileSync(path.join(folder, worker), "utf8"), scope);

const ask = (type, data) =>
  new Promise((resolve) => {
    answer = resolve;
    scope.listener({ data: { type, data } });
  });

(async () => {
  await ask(0, { config, docs, options: { suggest: false } });
  const found = [];
  for (const query of queries) {
    const { data } = await ask(2, query);
    found.push(data.items.map((page) => page.map((section) => section.location)));
  }
  console.log(JSON.stringify(found));
})();
