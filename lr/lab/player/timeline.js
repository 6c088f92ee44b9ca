// The clock: lanes for draft, target rows and verifier on one time axis, decisions on top, passes of the models below their lanes. Where
// each piece of work lies is computed in Python (lr/lab/viz/lives.py), so figures and player show the same. What lies ahead is pale.

const SIGNS = { accepted: "accepted", correction: "target", bonus: "target", target: "target" };

class Timeline {
  constructor(film, lives, canvas, palette) {
    Object.assign(this, { film, lives, canvas, palette });
    this.lanes = lives.lanes;
    this.start = lives.begin;
    this.end = Math.max(film.ends, this.start + 1e-9);
    this.all();
  }

  all() {
    const whole = this.end - this.start;
    this.span = whole;
    // A long run begins with a window of about sixty pieces of work, which follows the present.
    this.wanted = this.lives.spans.length > 120 ? (whole * 60) / this.lives.spans.length : whole;
  }

  reset() {
    this.span = this.wanted;
  }

  zoom(factor, time) {
    this.span = clamp(this.span * factor, (this.end - this.start) / 2000, this.end - this.start);
    this.show(time);
  }

  window(time) {
    const start = clamp(time - this.span * 0.6, this.start, this.end - this.span);
    return [start, start + this.span];
  }

  sizes() {
    const unit = rem();
    const rows = this.lanes.reduce((sum, lane) => sum + lane.rows, 0), narrow = innerWidth < 1000;
    const most = Math.max(9 * unit, innerHeight * (narrow ? 0.5 : 0.3)) - (2.75 + this.lanes.length * 0.87) * unit;
    const row = clamp(most / rows, 4, 1.3 * unit), tops = [];
    let y = 1.5 * unit;
    for (const lane of this.lanes) {
      tops.push(y);
      y += lane.rows * row + (lane.passes ? 0.42 * unit : 0) + 0.45 * unit;
    }
    return { unit, row, tops, axis: y, height: y + 1.25 * unit, left: 4.9 * unit };
  }

  show(time) {
    this.time = time;
    const size = this.sizes();
    paintOn(this.canvas, size.height, (c, width) => this.paint(c, width, size, time));
  }

  paint(c, width, size, time) {
    const [start, end] = this.window(time), { unit, row, tops, axis, left } = size, p = this.palette;
    const x = (t) => left + ((t - start) / (end - start)) * (width - left - 8);
    this.view = { start, end, width, size, x };
    c.font = `${0.76 * unit}px ${p.font}`;
    c.textBaseline = "middle";
    this.paintAxis(c, width, size, start, end, x);
    this.lanes.forEach((lane, i) => {
      c.fillStyle = p[lane.colour];
      c.textAlign = "right";
      c.fillText(lane.name, left - 0.7 * unit, tops[i] + (lane.rows * row) / 2);
      if (lane.rows > 2 && lane.rows * row > 1.8 * unit) { c.fillStyle = p.soft; c.fillText(`${lane.rows} rows`, left - 0.7 * unit, tops[i] + (lane.rows * row) / 2 + 0.95 * unit); }
    });
    c.save();
    c.beginPath();
    c.rect(left, 0, width - left, axis);
    c.clip();
    for (const one of this.lives.passes) if (one.end >= start && one.begin <= end) this.paintPass(c, one, x, size, time);
    for (const one of this.lives.spans) if (one.end >= start && one.asked <= end) this.paintSpan(c, one, x, size, time);
    let sign = -Infinity; // signs of decisions at the same moment stand beside each other
    for (const one of this.lives.marks) {
      if (one.time < start || one.time > end) continue;
      sign = Math.max(x(one.time), Math.min(sign + 0.75 * unit, width - 0.4 * unit));
      this.paintMark(c, one, x, sign, size, time);
    }
    c.restore();
    c.strokeStyle = p.ink;
    c.lineWidth = 2;
    c.beginPath();
    c.moveTo(x(time), 1.1 * unit);
    c.lineTo(x(time), axis);
    c.stroke();
  }

  paintAxis(c, width, { unit, axis, left, tops }, start, end, x) {
    const p = this.palette, rough = (end - start) / Math.max(2, Math.floor((width - left) / (6 * unit)));
    const power = 10 ** Math.floor(Math.log10(rough)), step = [1, 2, 5, 10].map((one) => one * power).find((one) => one >= rough);
    c.textAlign = "center";
    c.strokeStyle = p.faint;
    c.lineWidth = 1;
    for (let tick = Math.ceil(start / step) * step; tick <= end + 1e-12; tick += step) {
      c.beginPath();
      c.moveTo(x(tick), tops[0] - 4);
      c.lineTo(x(tick), axis);
      c.stroke();
      c.fillStyle = p.soft;
      if (x(tick) < width - 2 * unit) c.fillText(this.tick(tick, step), x(tick), axis + 0.65 * unit);
    }
    c.textAlign = "left";
    c.fillText(this.film.header.unit === "second" ? "time" : `${this.film.header.unit}s`, 2, axis + 0.65 * unit);
  }

  tick(time, step) {
    const inMs = this.film.header.unit === "second" && this.end < 2;
    const shown = inMs ? time * 1000 : time, digits = Math.max(0, -Math.floor(Math.log10(inMs ? step * 1000 : step) + 1e-9));
    return shown.toFixed(digits) + (this.film.header.unit === "second" ? (inMs ? " ms" : " s") : "");
  }

  paintSpan(c, one, x, { unit, row, tops }, time) {
    const lane = this.lanes[one.lane], p = this.palette, colour = p[lane.colour], y = tops[one.lane] + one.row * row;
    const future = one.begin > time, end = future ? one.end : Math.min(one.end, Math.max(time, one.begin));
    const from = x(one.begin), to = Math.max(from + 1.5, x(end)), height = row - (row > 9 ? 2.5 : 1);
    c.globalAlpha = future ? 0.16 : 1;
    if (one.begin > one.asked) {
      c.strokeStyle = colour;
      c.lineWidth = 1;
      c.beginPath();
      c.moveTo(x(one.asked), y + height / 2);
      c.lineTo(from, y + height / 2);
      c.stroke();
    }
    const running = !future && one.end > time;
    c.fillStyle = one.outcome === "cancelled" && !running ? p.rejectedWash : p[`${lane.colour}Wash`];
    if (running || (one.outcome === "done" && !future)) c.fillStyle = colour;
    if (future) c.fillStyle = colour;
    c.beginPath();
    c.roundRect(from, y, to - from, height, Math.min(3, (to - from) / 2));
    c.fill();
    if (!future && running) {
      c.globalAlpha = 0.16;
      c.beginPath();
      c.roundRect(to, y, Math.max(0, x(one.end) - to), height, 3);
      c.fill();
      c.globalAlpha = 1;
    } else if (!future && one.outcome !== "done" && one.outcome !== "open") {
      c.strokeStyle = p.rejected;
      c.lineWidth = 1;
      c.strokeRect(from + 0.5, y + 0.5, Math.max(1, to - from - 1), height - 1);
      hatch(c, from, y, to - from, height, p.rejected);
      this.cross(c, to, y + height / 2, Math.min(height * 0.42, 4.5), p.ink);
    }
    if (to - from > 3.2 * unit && row > 0.85 * unit && !future) {
      const plain = one.outcome === "done" || running;
      c.fillStyle = plain ? p.panel : p.soft;
      c.textAlign = "left";
      c.save();
      c.beginPath();
      c.rect(from, y, to - from - 3, height);
      c.clip();
      c.fillText(one.label, Math.max(from, x(this.view.start)) + 5, y + height / 2 + 0.5);
      c.restore();
    }
    c.globalAlpha = 1;
  }

  cross(c, x, y, size, colour) {
    c.strokeStyle = colour;
    c.lineWidth = 1.6;
    c.beginPath();
    c.moveTo(x - size, y - size);
    c.lineTo(x + size, y + size);
    c.moveTo(x + size, y - size);
    c.lineTo(x - size, y + size);
    c.stroke();
  }

  paintPass(c, one, x, { unit, row, tops }, time) {
    const lane = this.lanes[one.lane];
    c.globalAlpha = one.begin > time ? 0.16 : 0.75;
    c.fillStyle = this.palette[lane.colour];
    const from = x(one.begin), wide = Math.max(0.8, x(one.end) - from - 0.6);
    c.fillRect(from, tops[one.lane] + lane.rows * row + 1, wide, 0.28 * unit);
    c.globalAlpha = 1;
  }

  paintMark(c, one, x, sign, { unit, axis }, time) {
    const colour = this.palette[SIGNS[one.origin]];
    c.globalAlpha = one.time > time ? 0.3 : 1;
    c.strokeStyle = colour;
    c.lineWidth = 1;
    c.setLineDash([2, 3]);
    c.beginPath();
    c.moveTo(x(one.time), 1.3 * unit);
    c.lineTo(x(one.time), axis);
    c.stroke();
    c.setLineDash([]);
    c.fillStyle = colour;
    c.textAlign = "center";
    c.fillText(ORIGINS[one.origin].mark, sign, 0.65 * unit);
    one.sign = sign;
    c.globalAlpha = 1;
  }

  timeAt(px) {
    const { start, end, width, size } = this.view;
    return clamp(start + ((px - size.left) / (width - size.left - 8)) * (end - start), this.start, this.end);
  }

  explain(px, py) {
    const { x, size } = this.view, { header } = this.film;
    if (py < size.tops[0]) {
      const near = this.lives.marks.find((one) => Math.abs(one.sign - px) < 7);
      return near ? `${clockText(near.time, header)}: step ${near.index}, ${ORIGINS[near.origin].name}\n${ORIGINS[near.origin].means}` : "";
    }
    const lane = this.lanes.findIndex((one, i) => py >= size.tops[i] && py < size.tops[i] + one.rows * size.row + (one.passes ? 0.42 * size.unit : 0));
    if (lane < 0 || px < size.left) return lane < 0 ? "" : this.lanes[lane].means;
    const row = Math.floor((py - size.tops[lane]) / size.row);
    const span = this.lives.spans.find((one) => one.lane === lane && one.row === row && x(one.asked) - 1 <= px && px <= x(one.end) + 2);
    if (span) {
      const waited = span.begin - span.asked > 1e-9 ? `, after waiting ${clockText(span.begin - span.asked, header)}` : "";
      const outcomes = { done: "done", cancelled: "cancelled", failed: "failed", open: "not over at the end" };
      return `${span.says}\n${clockText(span.begin, header)} to ${clockText(span.end, header)}${waited}: ${outcomes[span.outcome]}`;
    }
    const pass = row >= this.lanes[lane].rows && this.lives.passes.find((one) => one.lane === lane && x(one.begin) - 1 <= px && px <= x(one.end) + 1);
    return pass ? pass.says : "";
  }
}
