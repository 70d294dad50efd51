// A page to play with: toggles over computed points, sliders, the user's work, and pictures of what is chosen.
// The state is in the fragment of the address: #model=resnet50&gpu=V100,H100&batch=128. No library, nothing is fetched.
const AXES = ["model", "gpu", "dtype", "options"];
const SLIDERS = ["batch", "devices", "speed"];
const LAST = ["other families", "collective", "idle"];  // the end of each bar; other parts stand in one order in all bars
const MANY = 5;  // more GPUs stand in the order of the answer: the fastest first
const SVG = "http://www.w3.org/2000/svg";
const PREFIXES = { "": 1, k: 1e3, K: 1e3, M: 1e6, G: 1e9, B: 1e9, T: 1e12 };

function values(points, axis) { return [...new Set(points.map(point => point[axis]))]; }

// Each point at each speed of its host, with the cost of a million samples.
function atSpeeds(points) {
  return points.flatMap(({ hosts, ...point }) => hosts.map(host =>
    ({ ...point, ...host, cost: host.per_hour == null ? null : host.per_hour * host.us / point.samples / 3600 })));
}

// The values of a slider.
function stops(points, state, axis) {
  return values(points.filter(point => state.model.includes(point.model)), axis).sort((a, b) => a - b);
}

// The state with sliders where the model has points: else at the largest batch that fits, the fewest GPUs, the host as it is.
function settled(points, state) {
  const of = points.filter(point => state.model.includes(point.model)), sizes = stops(points, state, "batch");
  const fitting = sizes.filter(size => of.every(point => point.batch !== size || point.fits));
  const usual = { batch: (fitting.length ? fitting : sizes).at(-1), devices: stops(points, state, "devices")[0], speed: 1 };
  const at = SLIDERS.map(axis => [axis, stops(points, state, axis).includes(state[axis]) ? state[axis] : usual[axis]]);
  return { ...state, ...Object.fromEntries(at), unit: of.some(point => point.seq_len) ? state.unit : "samples" };
}

// The state of a fragment. What it does not name is as at first: one model, every GPU, dtype and option, the work that was asked for.
function readState(points, fragment) {
  const asked = Object.fromEntries(new URLSearchParams(fragment.replace(/^#/, "")));
  const state = {};
  for (const axis of AXES) {
    const all = values(points, axis), named = axis in asked ? asked[axis].split("|").filter(value => all.includes(value)) : [];
    state[axis] = named.length ? named : axis === "model" ? all.slice(0, 1) : all;
  }
  state.model = state.model.slice(0, 1);
  for (const axis of SLIDERS) state[axis] = Number(asked[axis]);
  const work = asked.samples || asked.tokens ? asked : points[0].work ?? {};
  const unit = work.tokens ? "tokens" : "samples";
  return settled(points, { ...state, unit, amount: String(work[unit] ?? ""), epochs: String(work.epochs ?? "") });
}

function writeState(points, state) {
  const words = new URLSearchParams();
  for (const axis of AXES) {
    const all = values(points, axis);
    if (axis === "model" ? all.length > 1 : state[axis].length < all.length) words.set(axis, state[axis].join("|"));
  }
  words.set("batch", state.batch);
  if (stops(points, state, "devices").length > 1) words.set("devices", state.devices);
  if (state.speed !== 1) words.set("speed", state.speed);
  if (state.amount) words.set(state.unit, state.amount);
  if (state.amount && state.epochs) words.set("epochs", state.epochs);
  return "#" + words;
}

// The number of a text such as 1281167, 1,281,167, 1.2M or 1e9, as commands read it; null where it is none above 0.
function numberOf(text) {
  const parts = /^\$?(\d{1,3}(?:,\d{3})+(?:\.\d+)?|\d*\.?\d+(?:e\+?\d+)?) ?([kKMGBT]?)$/.exec(text.trim());
  const value = parts ? Number(parts[1].replaceAll(",", "")) * PREFIXES[parts[2]] : 0;
  return value > 0 && value < Infinity ? value : null;
}

// Hours and cost of the user's work, each as the middle, p10 and p90; null where none, or no number, is typed.
function workOf(point, state) {
  const amount = numberOf(state.amount), epochs = numberOf(state.epochs || "1");
  if (!amount || !epochs) return null;
  const samples = epochs * amount / (state.unit === "tokens" ? point.seq_len : 1);
  const hours = [point.us, point.p10, point.p90].map(us => samples * us / point.samples / 3.6e9);
  return { hours, cost: point.per_hour == null ? null : hours.map(hour => hour * point.per_hour) };
}

function chosen(points, state) {
  return points.filter(point => AXES.every(axis => state[axis].includes(point[axis])));
}

// Points that fit and that no other beats in both time and cost of a sample, by time.
function front(points) {
  const priced = points.filter(point => point.fits && point.cost != null);
  priced.sort((a, b) => a.us / a.samples - b.us / b.samples || a.cost - b.cost);
  let least = Infinity;
  return priced.filter(point => point.cost < least && ((least = point.cost), true));
}

function quoted(word) { return /^[\w.,=+:@%/-]+$/.test(word) ? word : "'" + word.replaceAll("'", "'\\''") + "'"; }

// The commands that ask for these points again: one, or one for each set of options where a single one would ask for more.
function command(points, state) {
  const keys = [...new Set(points.flatMap(point => point.overrides.map(text => text.split("=")[0])))];
  const missing = { devices: "devices=1" };  // a step on one GPU says nothing of devices
  const given = key => [...new Set(points.map(point => point.overrides.find(text => text.startsWith(key + "=")) ?? missing[key]))];
  const options = keys.map(key => [key, given(key).map(text => text?.slice(key.length + 1))]);
  const asked = [["gpu", values(points, "gpu")], ["model", values(points, "model")], ["batch_size", values(points, "batch")], ...options];
  const product = asked.reduce((count, [, list]) => count * list.length, 1);
  if (product > points.length || options.some(([, list]) => list.includes(undefined))) {
    const groups = Map.groupBy ? Map.groupBy(points, point => point.overrides.join(" ")) : new Map(points.map(point => [point, [point]]));
    if (groups.size > 1) return [...groups.values()].map(group => command(group, state)).join("\n");
  }
  const words = asked.map(([key, list]) => quoted(`${key}=${list.join(",")}`));
  if (points.length && workOf(points[0], state)) {
    words.push(`--${state.unit} ${quoted(state.amount)}`);
    if (state.epochs) words.push(`--epochs ${quoted(state.epochs)}`);
  }
  return points.length ? `steptime ${points.length > 1 ? "compare" : "predict"} ${words.join(" ")}` : "";
}

function digits(number) {
  if (number >= 999.5) return Math.round(number).toLocaleString("en");
  return number >= 99.95 ? number.toFixed(0) : number >= 9.995 ? number.toFixed(1) : number.toPrecision(3);
}
function time(us) { return us < 999.5 ? `${digits(us)} µs` : `${digits(us / 1000)} ms`; }
function amount(number) {
  return number >= 100 ? Math.round(number).toLocaleString("en") : number >= 1 ? number.toFixed(2) : String(Number(number.toPrecision(3)));
}
function gib(bytes) { return digits(bytes / 2 ** 30); }
function tick(value) { return value >= 1000 ? digits(value) : String(Number(value.toPrecision(3))); }

function label(point, points) {
  const parts = AXES.filter(axis => values(points, axis).length > 1 || axis === "gpu")
    .map(axis => axis === "gpu" && point.devices > 1 ? `${point.devices} x ${point.gpu}` : point[axis]);
  return parts.filter(Boolean).join(" ");
}

function drawn(name, attributes, text) {
  const node = document.createElementNS(SVG, name);
  for (const [key, value] of Object.entries(attributes)) node.setAttribute(key, value);
  if (text !== undefined) node.textContent = text;  // never as HTML: names are the user's
  return node;
}

const ROW = 46, LINE = 16, TOP = 4, LETTER = 6.9, HATCH = "url(#explore-hatch)";

function canvas(host, height, says) {
  const width = Math.max(260, host.clientWidth || 640);
  const picture = drawn("svg", { width, height, viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": says });
  const pattern = drawn("pattern", { id: "explore-hatch", width: 6, height: 6, patternUnits: "userSpaceOnUse",
    patternTransform: "rotate(45)" });
  pattern.append(drawn("rect", { width: 6, height: 6, class: "paper" }), drawn("rect", { width: 1.6, height: 6, class: "soft" }));
  const defs = drawn("defs", {});
  defs.append(pattern);
  picture.append(defs);
  host.replaceChildren(picture);
  return { picture, width };
}

// A name and its numbers stand above each bar, on two lines where a phone has no room for one.
function bars(host, rows, says, longest, draw) {
  const lines = rows.map(row => (row.name.length + row.text.length + 3) * LETTER > Math.max(260, host.clientWidth || 640) ? 2 : 1);
  const height = lines.reduce((sum, count) => sum + ROW + (count - 1) * LINE, TOP);
  const { picture, width } = canvas(host, height, says);
  let top = TOP;
  rows.forEach((row, at) => {
    const below = top + 12 + (lines[at] - 1) * LINE, style = row.bad ? "bad" : "value";
    picture.append(drawn("text", { x: 0, y: top + 12, class: "name" }, row.name),
      drawn("text", { x: lines[at] > 1 ? 0 : width, y: below, class: lines[at] > 1 ? `${style} first` : style }, row.text));
    draw(row, below + 6, value => value / longest * (width - 2), picture);
    top = below - 12 + ROW;
  });
}

function partsOf(points) {
  return values(points.flatMap(point => Object.keys(point.parts).map(name => ({ name }))), "name")
    .sort((a, b) => LAST.indexOf(a) - LAST.indexOf(b));
}

// Bars are as long as their share of the longest of all stops of all sliders, so that they move with each.
function drawSteps(host, points, every, colours) {
  const rows = points.map(point => ({ point, name: label(point, points),
    text: `${time(point.us)}, ${Math.round(100 * point.active / point.us)} % busy, ${point.bound}-bound` }));
  const names = partsOf(points);
  bars(host, rows, "time of one step", Math.max(...every.map(point => point.p90)), (row, top, x, picture) => {
    const { us, active, p10, p90, parts } = row.point, whisker = `M${x(p10)} ${top + 9}H${x(p90)}M${x(p10)} ${top + 4}v10M${x(p90)} ${top + 4}v10`;
    picture.append(drawn("rect", { x: 0, y: top, width: x(active), height: 18, class: "active" }));
    let left = 0;
    for (const name of names.filter(each => each in parts)) {
      const part = parts[name];
      if (name === "idle") left = active;
      const look = name === "idle" ? { fill: HATCH, class: "edge" } : { fill: colours[name], class: "family" };
      const rect = drawn("rect", { x: x(left), y: top, width: x(part), height: 18, ...look });
      rect.append(drawn("title", {}, `${name}: ${time(part)}, ${Math.round(100 * part / us)} %`));
      picture.append(rect);
      left += part;
    }
    picture.append(drawn("path", { d: whisker, class: "halo" }), drawn("path", { d: whisker, class: "ink" }));
  });
}

// What the colours of the bars mean.
function drawFamilies(host, points, colours) {
  host.replaceChildren(...partsOf(points).filter(name => name !== "idle").map(name => {
    const entry = document.createElement("li"), key = drawn("svg", { width: 12, height: 12, viewBox: "0 0 12 12" });
    key.append(drawn("rect", { width: 12, height: 12, fill: colours[name], class: "family" }));
    entry.append(key, name);
    return entry;
  }));
}

// A row per point: hours and cost of the user's work, with p10 to p90.
function drawWork(host, points, state) {
  const found = points.map(point => [point, workOf(point, state)]).filter(([, work]) => work);
  const rows = found.map(([point, { hours, cost }]) => [label(point, points) + (point.fits ? "" : ": does not fit"), hours, cost]);
  const cell = (kind, text, small) => {
    const node = document.createElement(kind);
    node.textContent = text;
    if (small) node.append(Object.assign(document.createElement("small"), { textContent: ` (${small})` }));
    return node;
  };
  const numbers = list => list ? cell("td", amount(list[0]), `${amount(list[1])} to ${amount(list[2])}`) : cell("td", "no price");
  const lines = rows.map(([name, hours, cost]) => [cell("td", name), numbers(hours), numbers(cost)]);
  const currency = points.find(point => point.currency)?.currency ?? "cost";
  if (lines.length) lines.unshift([cell("th", "your work"), cell("th", "hours", "p10 to p90"), cell("th", currency, "p10 to p90")]);
  host.replaceChildren(...lines.map(cells => {
    const line = document.createElement("tr");
    line.append(...cells);
    return line;
  }));
}

function drawMemory(host, points, every) {
  const rows = points.map(point => ({ point, bad: !point.fits, name: label(point, points),
    text: `${gib(point.memory)} of ${gib(point.usable)} GiB` + (point.fits ? point.tight ? ": tight" : "" : ": does not fit") }));
  const longest = Math.max(...every.map(point => Math.max(point.memory, point.usable)));
  bars(host, rows, "memory need and usable memory", longest, (row, top, x, picture) => {
    const { memory, usable } = row.point;
    picture.append(drawn("rect", { x: 0, y: top, width: x(usable), height: 18, class: "room" }),
      drawn("rect", { x: 0, y: top + 3, width: x(memory), height: 12, class: row.bad ? "over" : "active" }),
      drawn("path", { d: `M${x(usable)} ${top - 2}v22`, class: "ink" }));
  });
}

// Round numbers between two ends, for a logarithmic axis: at most about eight.
function ticks(low, high) {
  const found = [], decades = Math.log10(high / low), each = Math.ceil(decades / 8) || 1;
  for (let power = Math.floor(Math.log10(low)); power <= Math.log10(high); power += each)
    found.push(...(decades < 2.5 ? [1, 2, 5] : [1]).map(step => step * 10 ** power).filter(value => value >= low && value <= high));
  return found.length > 1 ? found : [low, high];
}

function drawFront(host, points, state) {
  const priced = points.filter(point => point.fits && point.cost != null), shown = priced.filter(point => point.speed === state.speed);
  if (!shown.length) { host.textContent = "No point that fits has a price: docs/prices.md says how to give one."; return; }
  const seconds = point => point.us / point.samples, ends = list => [Math.min(...list), Math.max(...list)];
  const times = priced.flatMap(point => [point.p10, point.p90].map(us => us / point.samples));
  const paid = priced.flatMap(point => [point.p10, point.p90].map(us => point.cost * us / point.us)), costs = ticks(...ends(paid));
  const left = 12 + LETTER * Math.max(...costs.map(value => tick(value).length));
  const best = front(shown), height = 320, bottom = 44, right = 12;
  const { picture, width } = canvas(host, height, "time against cost of a million samples");
  const logs = list => list.map(Math.log);
  const scale = (list, from, to) => {
    const low = Math.min(...list), high = Math.max(...list), wide = high - low || 1;
    return value => from + (Math.log(value) - low) / wide * (to - from) * (high > low ? 1 : 0) + (high > low ? 0 : (to - from) / 2);
  };
  const x = scale(logs(times), left + 20, width - right - 90);
  const y = scale(logs(paid), height - bottom - 22, 36);
  picture.append(drawn("path", { d: `M${left} 20V${height - bottom}H${width - right}`, class: "axis" }),
    drawn("text", { x: 0, y: 14, class: "name" }, `↑ ${shown[0].currency} for a million samples, logarithmic`),
    drawn("text", { x: width - right, y: height - 8, class: "value" }, "seconds for a million samples, logarithmic →"),
    drawn("path", { d: best.map((point, at) => `${at ? "L" : "M"}${x(seconds(point))} ${y(point.cost)}`).join(""), class: "front" }));
  for (const value of ticks(...ends(times)))
    picture.append(drawn("text", { x: x(value), y: height - bottom + 15, class: "tick" }, tick(value)));
  for (const value of costs)
    picture.append(drawn("text", { x: left - 6, y: y(value) + 4, class: "value" }, tick(value)));
  const named = [];
  for (const point of [...shown].sort((a, b) => y(a.cost) - y(b.cost))) {
    const now = SLIDERS.every(axis => point[axis] === state[axis]), at = [x(seconds(point)), y(point.cost)];
    const says = `${label(point, points)}, batch ${point.batch}: ${digits(seconds(point))} s, ${digits(point.cost)} ${point.currency}`;
    const mark = drawn("circle", { cx: at[0], cy: at[1], r: now ? 6 : 4, class: now ? "now" : "other" });
    mark.append(drawn("title", {}, says));
    picture.append(mark);
    if (now) {  // a longer step costs more: p10 to p90 lie on a slope
      const end = us => `${x(us / point.samples)} ${y(point.cost * us / point.us)}`;
      picture.append(drawn("path", { d: `M${end(point.p10)}L${end(point.p90)}`, class: "reach" }));
    }
    if (!now && !best.includes(point)) continue;
    const text = `${label(point, points)} b${point.batch}`, long = 7 * text.length, left = at[0] + 9 + long > width;
    const from = left ? at[0] - 9 - long : at[0] + 9;
    if (named.some(other => Math.abs(other.y - at[1]) < 13 && from < other.to && from + long > other.from)) continue;
    picture.append(drawn("text", { x: left ? at[0] - 9 : from, y: at[1] + 4, class: left ? "value name" : "name" }, text));
    named.push({ from, to: from + long, y: at[1] });
  }
}

function start() {
  const element = id => document.getElementById(`explore-${id}`);
  const data = JSON.parse(element("data").textContent), points = atSpeeds(data.points);
  let state = readState(points, location.hash);

  function toggles() {
    element("toggles").replaceChildren(...AXES.filter(axis => values(points, axis).length > 1).map(axis => {
      const group = document.createElement("fieldset"), legend = document.createElement("legend");
      legend.textContent = axis === "gpu" ? "GPU" : axis;
      group.append(legend, ...values(points, axis).map(value => {
        const chip = document.createElement("label"), box = document.createElement("input");
        Object.assign(box, { type: axis === "model" ? "radio" : "checkbox", name: `explore-${axis}`, value });
        box.addEventListener("change", () => {
          const on = axis === "model" ? [value] : values(points, axis).filter(other => other === value ? box.checked : state[axis].includes(other));
          change({ [axis]: on.length ? on : state[axis] });
        });
        chip.append(box, " " + (value || "default"));
        return chip;
      }));
      return group;
    }));
  }

  function show() {
    for (const axis of AXES)  // the toggles stay, and with them the keyboard's focus
      for (const box of document.getElementsByName(`explore-${axis}`)) box.checked = state[axis].includes(box.value);
    for (const axis of SLIDERS) {
      const slider = element(axis), all = stops(points, state, axis), now = state[axis].toLocaleString("en");
      Object.assign(slider, { min: 0, max: all.length - 1, value: all.indexOf(state[axis]) });
      slider.parentElement.hidden = all.length < 2;
      slider.nextElementSibling.textContent = axis === "speed" ? now + " ×" : now;
      slider.setAttribute("aria-valuetext", slider.nextElementSibling.textContent);
    }
    for (const [field, text] of Object.entries({ amount: state.amount, epochs: state.epochs || "1" })) {
      if (element(field) !== document.activeElement) element(field).value = state[field];
      element(field).setAttribute("aria-invalid", text !== "" && !numberOf(text));
    }
    const wrong = document.querySelector("#explore [aria-invalid=true]");
    element("hint").textContent = wrong ? "no number above 0: write for example 1281167 or 1.2M" : "";
    const every = points.filter(point => state.model.includes(point.model)), picked = chosen(points, state);
    element("unit").value = state.unit;
    element("unit").disabled = !every.some(point => point.seq_len);
    const rows = picked.filter(point => SLIDERS.every(axis => point[axis] === state[axis]));
    if (values(rows, "gpu").length > MANY) rows.sort((a, b) => a.us / a.samples - b.us / b.samples);
    element("none").hidden = rows.length > 0;
    if (rows.length) { drawSteps(element("steps"), rows, every, data.colours); drawMemory(element("memory"), rows, every); }
    else { element("steps").replaceChildren(); element("memory").replaceChildren(); }
    drawFamilies(element("families"), rows, data.colours);
    drawWork(element("work"), rows, state);
    drawFront(element("front"), picked, state);
    element("command").textContent = command(rows, state);
  }

  function change(part) {
    state = settled(points, { ...state, ...part });
    history.replaceState(null, "", writeState(points, state));
    show();
  }

  for (const axis of SLIDERS)
    element(axis).addEventListener("input", event => change({ [axis]: stops(points, state, axis)[event.target.value] }));
  for (const field of ["amount", "unit", "epochs"])
    element(field).addEventListener("input", event => change({ [field]: event.target.value.trim() }));
  element("copy").addEventListener("click", async () => {
    const text = element("command"), said = element("said");
    try { await navigator.clipboard.writeText(text.textContent); said.textContent = "copied"; }
    catch { getSelection().selectAllChildren(text); said.textContent = "selected: copy it with Ctrl-C"; }
  });
  addEventListener("hashchange", () => {
    if (location.hash.includes("=")) { state = readState(points, location.hash); show(); }
  });
  addEventListener("resize", show);
  toggles();
  show();
}

if (typeof document !== "undefined") start();
