// The clock: lanes for draft, target rows and verifier on one time axis, decisions on top, passes
// of the models below their lanes. Where everything lies is computed in Python (figures/clock.py), so
// figures and player show the same. What lies ahead is veiled.

const MEANS = {
  draft: "The draft writes steps ahead; several at once if the tree is wide.",
  target: "The target writes its own step at every node at once: one row each, in one batch.",
  verifier: "The verifier compares draft steps with target steps.",
};

class Clock {
  constructor(states, drawing) {
    const { clock, unit } = states;
    Object.assign(this, { states, drawing });
    Object.assign(this, { unit, lanes: clock.lanes, clock, drawn: null });
    this.start = clock.begin;
    this.end = Math.max(clock.end, this.start + 1e-9);
    // A long run begins with a window of about sixty pieces of work, which follows the present.
    const whole = this.end - this.start, count = clock.spans.length;
    this.span = count > 120 ? (whole * 60) / count : whole;
  }

  zoom(factor, time) {
    const whole = this.end - this.start;
    this.span = clamp(this.span * factor, whole / 2000, whole);
    this.show(time);
  }

  measure() {
    const unit = rem(), most = Math.max(9 * unit, innerHeight * (innerWidth < 1000 ? 0.5 : 0.26));
    const rows = this.lanes.reduce((sum, lane) => sum + lane.rows, 0);
    const rest = (2.75 + this.lanes.length * 0.87) * unit;
    const row = clamp((most - rest) / rows, 1.5, 1.3 * unit), tops = {};
    let y = 1.5 * unit;
    for (const { name, rows: count, passes } of this.lanes) {
      tops[name] = y;
      y += count * row + (passes ? 0.42 * unit : 0) + 0.45 * unit;
    }
    const width = this.drawing.parentElement.clientWidth;
    Object.assign(this, { unit_: unit, row, tops, axis: y, left: 4.9 * unit, width });
  }

  x(time) {
    const wide = this.width - this.left - 8;
    return this.left + ((time - this.from) / this.span) * wide;
  }

  timeAt(x) {
    const share = (x - this.left) / (this.width - this.left - 8);
    return clamp(this.from + share * this.span, this.start, this.end);
  }

  show(time) {
    this.from = clamp(time - this.span * 0.6, this.start, this.end - this.span);
    const drawn = [this.from, this.span, innerWidth, innerHeight, rem(),
      this.drawing.parentElement.clientWidth].join();
    if (drawn !== this.drawn) {
      this.drawn = drawn;
      this.measure();
      this.paint();
    }
    const x = clamp(this.x(time), this.left, this.width);
    this.veil.setAttribute("x", x);
    this.veil.setAttribute("width", Math.max(0, this.width - x));
    this.needle.setAttribute("d", `M${x} ${1.1 * this.unit_}V${this.axis}`);
  }

  paint() {
    const { unit_: unit, axis, width } = this, height = axis + 1.25 * unit;
    this.drawing.setAttribute("viewBox", `0 0 ${width} ${height}`);
    this.drawing.style.height = `${height}px`;
    const inside = ({ begin, end }) => end >= this.from && begin <= this.from + this.span;
    const [y, tall] = [1.2 * unit, axis - 1.2 * unit];
    this.veil = shape("rect", "veil", { y, height: tall });
    this.needle = shape("path", "needle", {});
    this.drawing.replaceChildren(
      shape("rect", "ground", { x: 0, y: 0, width, height }),
      ...this.ticks(),
      ...this.clock.passes.filter(inside).map((one) => this.pass(one)),
      ...this.clock.spans.filter(inside).flatMap((one) => this.bar(one)),
      this.veil,
      ...this.marks(),
      shape("rect", "ground", { x: 0, y, width: this.left - 2, height: tall }),
      ...this.lanes.map((lane) => this.lane(lane)),
      this.needle);
  }

  words(classes, x, y, text, tip) {
    const element = shape("text", classes, { x, y }, tip);
    element.textContent = text;
    return element;
  }

  ticks() {
    const { unit_: unit, axis, left, width } = this, seconds = this.unit === "second";
    const rough = this.span / Math.max(2, Math.floor((width - left) / (6 * unit)));
    const power = 10 ** Math.floor(Math.log10(rough));
    const step = [1, 2, 5, 10].map((one) => one * power).find((one) => one >= rough);
    const scale = seconds && this.end < 2 ? 1000 : 1;
    const digits = Math.max(0, -Math.floor(Math.log10(step * scale) + 1e-9));
    const found = [this.words("tick first", 2, axis + 0.9 * unit, seconds ? "time"
      : `${this.unit}s`)];
    for (let at = Math.ceil(this.from / step) * step; at <= this.from + this.span; at += step) {
      const x = this.x(at), name = !seconds ? "" : scale > 1 ? " ms" : " s";
      found.push(shape("path", "grid", { d: `M${x} ${1.25 * unit}V${axis}` }));
      if (x < width - 2 * unit) {
        const text = (at * scale).toFixed(digits) + name;
        found.push(this.words("tick", x, axis + 0.9 * unit, text));
      }
    }
    return found;
  }

  lane({ name, rows }) {
    const y = this.tops[name] + (rows * this.row) / 2 + 0.3 * this.unit_;
    const tip = `${MEANS[name]}${rows > 1 ? ` ${rows} rows.` : ""}`;
    return this.words(`lane ${name}`, this.left - 0.7 * this.unit_, y, name, tip);
  }

  bar({ lane, index, begin, end, outcome, row, says }) {
    const y = this.tops[lane] + row * this.row, height = this.row * (this.row > 9 ? 0.85 : 0.7);
    const x = Math.max(this.x(begin), this.left - 4), middle = y + height / 2;
    const width = Math.max(1.5, this.x(end) - x), found = [];
    const off = ["cancelled", "failed"].includes(outcome);
    const at = (time) => clockText(time, this.unit);
    const tip = `${says}\n${at(begin)} to ${at(end)}: ${outcome}`;
    const box = { x, y, width, height, rx: Math.min(3, width / 2) };
    found.push(shape("rect", `bar ${off ? "off" : lane}`, box, tip));
    if (off) {
      const s = Math.min(height * 0.4, 4.5), to = x + width;
      const d = `M${to - s} ${middle - s}l${2 * s} ${2 * s}m0 ${-2 * s}l${-2 * s} ${2 * s}`;
      found.push(shape("path", "cross", { d }));
    }
    const text = width > 3.6 * this.unit_ ? `step ${index}` : `${index}`;
    if (width > (0.5 + 0.5 * text.length) * this.unit_ && this.row > 0.85 * this.unit_) {
      const style = `label${off ? " off" : ""}`;
      found.push(this.words(style, x + 5, middle + 0.27 * this.unit_, text, tip));
    }
    return found;
  }

  pass({ lane, begin, end, says }) {
    const rows = this.lanes.find((one) => one.name === lane).rows, x = this.x(begin);
    const y = this.tops[lane] + rows * this.row + 1, width = Math.max(0.8, this.x(end) - x - 0.6);
    return shape("rect", `pass ${lane}`, { x, y, width, height: 0.28 * this.unit_ }, says);
  }

  // Signs of decisions; those at the same moment stand beside each other.
  marks() {
    const found = [];
    let sign = -Infinity;
    for (const { at, index, origin, mark, colour } of this.states.emitted) {
      const time = this.states.timeAt(at), x = this.x(time);
      if (time < this.from || time > this.from + this.span) continue;
      sign = Math.max(x, Math.min(sign + 0.75 * this.unit_, this.width - 0.4 * this.unit_));
      const tip = `${clockText(time, this.unit)}: step ${index}, ${origin}\n${ORIGINS[origin]}`;
      const d = `M${x} ${1.3 * this.unit_}V${this.axis}`;
      found.push(shape("path", `decision ${colour}`, { d }));
      found.push(this.words(`sign ${colour}`, sign, 0.95 * this.unit_, mark, tip));
    }
    return found;
  }
}
