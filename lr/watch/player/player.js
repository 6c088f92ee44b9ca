// The player: how many events have happened (n), and moving from there. Panels know how to show the
// state after n events and nothing else.

const SECONDS_PER_STEP = 3, FADE_SECONDS = 1.6;

class Player {
  constructor(data) {
    const states = new TraceStates(data);
    Object.assign(this, { states, n: 0, time: 0, playing: false, scale: 1 });
    this.tree = new Tree(states, byId("tree-panel"));
    this.answer = new Answer(states, byId("answer-panel"));
    this.clock = new Clock(states, byId("timeline"));
    this.cache = new CacheView(states, byId("cache"), byId("cache-tabs"));
    this.race = new Race(states, byId("race"));
    this.tour = new Tour(this);
    this.head(data);
  }

  head(data) {
    const { title, setting, summary, question, speculates, rejections } = data;
    const { states } = this;
    data.decisions = states.emitted.map(({ at }) => at);
    Object.assign(this, { data, count: states.count });
    // At speed 1 a step of the answer takes three seconds.
    const seconds = SECONDS_PER_STEP * Math.max(1, states.emitted.length);
    this.rate = Math.max(states.ends - states.starts, 1e-9) / clamp(seconds, 12, 3600);
    byId("title").textContent = title;
    byId("setting").textContent = byId("setting").dataset.tip = setting;
    byId("question").textContent = question;
    byId("stats").textContent = summary;
    document.body.classList.toggle("without-draft-tokens", !speculates);
    document.body.classList.toggle("without-cache", !this.cache.names.length);
    byId("scrub").max = this.count;
    byId("rejection-next").disabled = !rejections.length;
    byId("tour-open").hidden = !states.tour.length;
    this.marked = null;
  }

  start() {
    this.tips = new Tips(byId("tip"));
    connect(this);
    this.fromAddress();
    new ResizeObserver(() => this.redraw()).observe(byId("panels"));
  }

  rest(n, time) {
    this.pause();
    this.go(n, time);
  }

  // Shows the state after n events; `time` may be later than that of the last event.
  go(n, time) {
    this.n = clamp(Math.round(n), 0, this.count);
    this.time = time === undefined ? this.states.timeAt(this.n) : time;
    const began = performance.now();
    this.say(this.playing ? this.stopBefore(this.n) : this.n);
    this.tree.show(this.n, this.time, FADE_SECONDS * this.rate);
    this.answer.show(this.n);
    this.clock.show(this.time);
    this.race.show(this.n, this.time);
    this.cache.show(this.n);
    byId("scrub").value = this.n;
    byId("scrub").setAttribute("aria-valuetext", `event ${this.n} of ${this.count}`);
    this.marks();
    this.worked = performance.now() - began;
    document.body.dataset.event = this.n;
  }

  redraw(n = this.n) {
    this.tree.signature = this.answer.signature = this.cache.shown = this.clock.drawn = null;
    this.go(n, n === this.n ? this.time : undefined);
  }

  say(n) {
    const [, kind, text, detail] = n ? this.states.events[n - 1] : [0, "", "Before the first event"];
    const [role, sign, , idea] = n ? KINDS[kind] || KINDS.cache : ["soft", "▶"];
    const outcome = ["emit", "judged"].includes(kind) && OUTCOMES[detail];
    const [who, mark] = outcome || [role || detail, sign];
    const invitation = "Press play (space) to begin at the beginning, or take the tour (T).";
    const [head, more] = this.tour.caption() || [text, this.fresh || !n ? invitation : idea];
    byId("now").className = who;
    byId("now-mark").textContent = mark;
    byId("now-text").textContent = head;
    byId("now-text").setAttribute("aria-live", this.playing ? "off" : "polite");
    byId("now-more").textContent = more;
    byId("now-where").textContent = `event ${this.n} of ${this.count},\n`
      + clockText(this.time, this.data.unit);
  }

  stopsAt(n) {
    return (KINDS[this.states.events[n - 1][1]] || KINDS.cache)[2] >= +byId("grain").value;
  }

  // While it plays, the words are those of the last stop: the others come too fast to be read.
  stopBefore(n) {
    for (let at = n; at > Math.max(0, n - 400); at -= 1) if (this.stopsAt(at)) return at;
    return n;
  }

  marks() {
    if (this.marked === innerWidth) return;
    this.marked = innerWidth;
    const { emitted } = this.states, crowded = emitted.length > innerWidth / 60;
    byId("marks").replaceChildren(...emitted.map(({ at, mark, colour }) => {
      const sign = make(`span.${colour}`, { text: crowded ? "|" : mark });
      sign.style.left = `${(100 * at) / Math.max(1, this.count)}%`;
      return sign;
    }));
  }

  // To the next (or previous) of some numbers of events.
  jump(numbers, forward) {
    const found = forward ? numbers.find((one) => one > this.n)
      : [...numbers].reverse().find((one) => one < this.n);
    this.pause();
    if (numbers.length) this.go(found !== undefined ? found : forward ? this.count : 0);
  }

  step(forward) {
    const by = forward ? 1 : -1;
    let n = this.n + by;
    while (n > 0 && n < this.count && !this.stopsAt(n)) n += by;
    this.pause();
    this.go(n);
  }

  toggle() {
    if (this.playing) return this.pause();
    if (this.fresh || this.n >= this.count) this.rest(0);
    this.last = null;
    this.setPlaying(true);
    requestAnimationFrame((now) => this.frame(now));
  }

  pause() {
    this.fresh = false;
    if (!this.playing) return;
    this.setPlaying(false);
    this.say(this.n);
    this.toAddress();
  }

  setPlaying(playing) {
    this.playing = playing;
    document.body.classList.toggle("playing", playing);
    byId("play").setAttribute("aria-label", playing ? "Pause" : "Play");
  }

  frame(now) {
    if (!this.playing) return;
    const passed = this.last === null ? 0 : Math.min(now - this.last, 100) / 1000;
    this.last = now;
    const time = this.time + passed * this.rate * +byId("speed").value;
    this.go(Math.max(this.n, this.states.numberAt(time)), Math.min(time, this.states.ends));
    if (this.n >= this.count) return this.pause();
    requestAnimationFrame((later) => this.frame(later));
  }

  fromAddress() {
    const [, kind, number] = /(?:^|[#&])(event|tour)=(\d+)/.exec(location.hash) || [];
    this.pause();
    if (kind === "tour") return this.tour.go(clamp(number - 1, 0, this.states.tour.length - 1));
    this.fresh = !kind;
    return this.go(kind ? +number : this.firstSight());
  }

  // Where there is something to see: the first rejection, or the first decision.
  firstSight() {
    return this.data.rejections[0] || this.data.decisions[0] || 0;
  }

  toAddress() {
    const { tour, n } = this;
    history.replaceState(null, "", tour.caption() ? `#tour=${tour.at + 1}` : `#event=${n}`);
  }
}
