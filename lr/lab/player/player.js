// The player: what is shown (the number of events that have happened), the controls, the keys, the address. Panels know how to show the
// state after n events and nothing else.

const KEYS = [
  ["space", "play or pause"], ["← →", "previous, next event"], ["Shift + ← →", "previous, next decision"], ["R", "to the next rejection (Shift: to the one before)"],
  ["Home End", "to the beginning, to the end"], ["↑ ↓", "faster, slower"], ["Z X", "clock: show less time, more time"], ["C", "the next cache"],
  ["D", "light or dark"], ["+ −", "larger or smaller text"], ["?", "this help"],
];
const GRAINS = {
  all: () => true,
  tokens: (record) => !CACHE_EVENTS.has(record.event) && !["forward", "draw", "verifier", "span"].includes(record.event),
  steps: (record) => ["draft", "target", "drafted", "targeted", "judged", "emit", "cancel", "end"].includes(record.event),
};
const SECONDS_PER_STEP = 3, FADE_SECONDS = 1.6;

class Player {
  constructor(data) {
    this.data = data;
    this.film = new Film(data.header, data.records);
    this.count = data.records.length;
    this.palette = new Palette();
    this.n = 0;
    this.time = 0;
    this.playing = false;
    // At speed 1 a step of the answer takes three seconds.
    this.rate = Math.max(this.film.ends - this.film.starts, 1e-9) / clamp(SECONDS_PER_STEP * Math.max(1, this.film.emitted.length), 12, 3600);
    this.tree = new Tree(this.film, byId("tree-field"), byId("tree-lines"), byId("tree"));
    this.answer = new Answer(this.film, byId("steps"), byId("ahead"), byId("answer"));
    this.timeline = new Timeline(this.film, data.lives, byId("timeline"), this.palette);
    this.cache = new CacheView(this.film, byId("cache"), byId("cache-tabs"), this.palette);
    this.stops = { decisions: this.where((r) => r.event === "emit"), rejections: this.rejections() };
  }

  where(wanted) {
    const found = [];
    this.data.records.forEach((record, e) => { if (wanted(record)) found.push(e + 1); });
    return found;
  }

  // Draft steps that are not aligned; in plain decoding guessed tokens that are rejected.
  rejections() {
    const steps = this.where((r) => r.event === "judged" && !r.verdict.aligned);
    return steps.length ? steps : this.where((r) => r.event === "round" && r.detail && r.detail.guesses.some((guess) => guess.kept === false));
  }

  start() {
    const { header, title, headline, notes } = this.data;
    byId("title").textContent = title;
    byId("setting").dataset.tip = this.data.setting;
    byId("setting").textContent = this.data.setting + (notes.length ? ` · ${notes.join("; ")}` : "");
    byId("question").textContent = header.question || header.prompt.pieces.join("").trim();
    for (const { label, value, means } of headline) {
      byId("stats").append(make("div", "", null, { "data-tip": means, tabindex: "0" }, [make("dt", "", label), make("dd", "", value)]));
    }
    document.body.classList.toggle("without-cache", !this.cache.any);
    byId("cache-panel").hidden = !this.cache.any;
    byId("scrub").max = this.count;
    document.body.style.setProperty("--tree-height", this.film.silent ? "13rem" : header.width > 1 ? "24rem" : "17rem");
    byId("rejection-next").disabled = !this.stops.rejections.length;
    this.legends();
    this.tips = new Tips(byId("tip"));
    this.tips.explains(byId("timeline"), (x, y) => this.timeline.explain(x, y));
    this.tips.explains(byId("cache"), (x, y) => this.cache.explain(x, y));
    this.timeline.reset();
    connect(this);
    this.fromAddress();
    new ResizeObserver(() => this.redraw()).observe(byId("panels"));
  }

  legends() {
    const pieces = [["draft", "▌draft step"], ["target", "▌target step"], ["accepted", "✓ aligned"], ["rejected-colour", "✗ not aligned"], ["rejected-colour", "✕ cancelled"]];
    const told = { "▌draft step": "Written by the draft, the small model.", "▌target step": "Written by the target, the large model.", "✓ aligned": ORIGINS.accepted.means, "✗ not aligned": "The verifier says it means something else than the target's step.", "✕ cancelled": STATES.cancelled };
    for (const [who, text] of pieces) {
      const one = make("span", who, text, { "data-tip": told[text] });
      one.style.color = "var(--who)";
      byId("tree-legend").append(one);
    }
    const used = new Set(this.data.records.filter((r) => r.event === "round" && r.detail).map((r) => r.role));
    const words = [["by-draft", "the draft's words"], ["by-target", "the target's words"]];
    if (used.size) words.push(["by-draft guessed", SOURCES.guessed[0]], ["by-target residual", SOURCES.residual[0]], ["by-target after", SOURCES.after[0]]);
    for (const [classes, text] of words) byId("token-legend").append(make("span", `token ${classes}`, text));
    byId("show-refused").hidden = !used.size;
  }

  // Shows the state after n events; `time`: the clock's, which may be later than that of the last event.
  go(n, time) {
    this.n = clamp(Math.round(n), 0, this.count);
    this.time = time === undefined ? this.film.timeAt(this.n) : time;
    this.render();
  }

  render() {
    const began = performance.now(), { n, time } = this, fade = FADE_SECONDS * this.rate;
    this.say(n);
    this.tree.show(n, time, fade);
    this.answer.show(n);
    this.timeline.show(time);
    this.cache.show(n);
    byId("scrub").value = n;
    byId("scrub").setAttribute("aria-valuetext", `event ${n} of ${this.count}`);
    this.marks();
    this.worked = performance.now() - began;
    document.body.dataset.event = n;
  }

  redraw() {
    this.tree.drawn = null;
    this.answer.moved = true;
    this.render();
  }

  say(n) {
    const shown = this.playing ? this.stopBefore(n) : n;
    const told = shown ? describe(this.data.records[shown - 1], this.film) : { who: "soft", mark: "▶", text: "Before the first event", more: "Press play, or step with the arrow keys. Everything explains itself when you point at it." };
    if (this.said !== shown) {
      this.said = shown;
      byId("now").style.setProperty("--who", `var(--${told.who})`);
      byId("now-mark").textContent = told.mark;
      byId("now-text").textContent = told.text;
      byId("now-text").title = told.text;
      byId("now-more").textContent = told.more;
      byId("now-more").title = told.more;
      byId("now-text").setAttribute("aria-live", this.playing ? "off" : "polite");
    }
    byId("now-where").textContent = `event ${n} of ${this.count}${innerWidth > 700 ? "\n" : " · "}${clockText(this.time, this.film.header)}`;
  }

  // While it plays, the words are those of the last event at which the arrows would stop: the others come too fast to be read.
  stopBefore(n) {
    const stops = GRAINS[byId("grain").value];
    for (let at = n; at > Math.max(0, n - 400); at -= 1) if (stops(this.data.records[at - 1])) return at;
    return n;
  }

  // Decisions and rejections above the slider.
  marks() {
    if (this.marked === `${innerWidth} ${this.palette.ink}`) return;
    this.marked = `${innerWidth} ${this.palette.ink}`;
    const unit = rem();
    paintOn(byId("marks"), byId("scrub").parentElement.clientHeight, (c, width) => {
      const x = (n) => 8 + (n / Math.max(1, this.count)) * (width - 16), crowded = this.stops.decisions.length > width / 30;
      c.font = `${0.8 * unit}px ${this.palette.font}`;
      c.textAlign = "center";
      c.textBaseline = "middle";
      for (const one of this.film.emitted) {
        c.fillStyle = this.palette[SIGNS[one.origin]];
        if (crowded) c.fillRect(x(one.at + 1) - 0.5, one.origin === "accepted" ? 5 : 1, 1, 10);
        else c.fillText(ORIGINS[one.origin].mark, x(one.at + 1), 0.55 * unit);
      }
    });
  }

  // To the next (or previous) of some numbers of events.
  jump(numbers, forward) {
    if (!numbers.length) return;
    const found = forward ? numbers.find((one) => one > this.n) : [...numbers].reverse().find((one) => one < this.n);
    this.pause();
    if (found !== undefined) this.go(found);
    else this.go(forward ? this.count : 0);
  }

  step(forward) {
    const stops = GRAINS[byId("grain").value], records = this.data.records;
    let n = this.n + (forward ? 1 : -1);
    while (n > 0 && n < this.count && !stops(records[n - 1])) n += forward ? 1 : -1;
    this.pause();
    this.go(n);
  }

  get speed() {
    return +byId("speed").value;
  }

  toggle() {
    if (this.playing) return this.pause();
    if (this.n >= this.count) this.go(0);
    this.playing = true;
    this.last = null;
    this.button();
    requestAnimationFrame((now) => this.frame(now));
  }

  pause() {
    if (!this.playing) return;
    this.playing = false;
    this.button();
    this.said = null;
    this.say(this.n);
    this.toAddress();
  }

  button() {
    document.body.classList.toggle("playing", this.playing);
    byId("play").setAttribute("aria-label", this.playing ? "Pause" : "Play");
  }

  frame(now) {
    if (!this.playing) return;
    const passed = this.last === null ? 0 : Math.min(now - this.last, 100) / 1000;
    this.last = now;
    const time = this.time + passed * this.rate * this.speed;
    this.go(Math.max(this.n, this.film.numberAt(time)), Math.min(time, this.film.ends));
    if (this.n >= this.count) this.pause();
    else requestAnimationFrame((later) => this.frame(later));
  }

  fromAddress() {
    const found = /(?:^|[#&])event=(\d+)/.exec(location.hash);
    this.pause();
    this.go(found ? +found[1] : 0);
  }

  toAddress() {
    history.replaceState(null, "", `#event=${this.n}`);
  }
}
