// The tour, nine stops with their idea, and the race with plain decoding (story.py).

class Tour {
  constructor(player) {
    Object.assign(this, { player, at: -1 });
  }

  // To stop number `at`, from 0; outside: the tour is over.
  go(at) {
    const stop = this.player.states.tour[at];
    this.at = stop ? at : -1;
    document.body.classList.toggle("touring", Boolean(stop));
    for (const panel of document.querySelectorAll(".panel")) {
      panel.classList.toggle("lit", Boolean(stop) && panel.id === `${stop.panel}-panel`);
    }
    if (!stop) return this.player.redraw();
    this.player.pause();
    this.player.redraw(stop.event);
    // Only this window scrolls: scrollIntoView would move a page around this one, too.
    const { offsetTop } = byId(`${stop.panel}-panel`), { offsetHeight } = byId("now");
    if (innerWidth < 1000) scrollTo({ top: offsetTop - offsetHeight - 12 });
  }

  // The caption of the stop that the player is at, or nothing.
  caption() {
    const { tour } = this.player.states, stop = tour[this.at];
    if (!stop || stop.event !== this.player.n) return null;
    return [`${this.at + 1} of ${tour.length}: ${stop.title}`, stop.words];
  }
}

class Race {
  constructor(states, box) {
    Object.assign(this, { states, box });
    box.hidden = !states.race;
  }

  // The place in passes of the target: between two decisions it runs evenly.
  placeOnClock(n, time, run) {
    const decided = this.states.emittedAt(n).length, times = [0, ...run], { starts } = this.states;
    if (decided === run.length) return times[decided];
    const [from, to] = [decided - 1, decided].map((i) =>
      (i < 0 ? starts : this.states.timeAt(this.states.emitted[i].at)));
    const share = to > from ? clamp((time - from) / (to - from), 0, 1) : 0;
    return times[decided] + share * (times[decided + 1] - times[decided]);
  }

  show(n, time) {
    if (!this.states.race) return;
    const { run, plain } = this.states.race, last = run.length - 1;
    const now = this.placeOnClock(n, time, run), ratio = plain[last] / run[last];
    if (!this.pieces) this.draw(run, plain, Math.max(run[last], plain[last]));
    for (const [at, piece] of this.pieces) piece.classList.toggle("ran", at <= now);
    for (const needle of this.needles) needle.style.left = this.percent(now);
    const count = (times) => times.filter((at) => at <= now).length;
    const factor = (ratio < 1 ? 1 / ratio : ratio).toFixed(2);
    this.head.textContent = `If only passes of the target took time: ${n < this.states.count
      ? `${plural(count(run), "step")} here, ${count(plain)} in plain decoding`
      : `in the end ${factor} times as ${ratio < 1 ? "slow" : "fast"} as plain decoding`}`;
  }

  draw(run, plain, whole) {
    this.percent = (time) => `${(100 * Math.min(time, whole)) / whole}%`;
    const tip = "A pass counts as one, however many rows it has; drafts and verdicts cost nothing. "
      + "Plain decoding takes one pass per token.";
    Object.assign(this, { pieces: [], needles: [], head: make("p", { tip }) });
    const lane = (title, kind, times) => {
      const before = [0, ...times], { percent } = this, pieces = times.map((at, i) => make(
        `i.${kind}`, { style: `left: ${percent(before[i])}; width: ${percent(at - before[i])}` }));
      this.pieces.push(...pieces.map((piece, i) => [times[i], piece]));
      this.needles.push(make("b"));
      return make("div.lane", {}, [make("span.who", { text: title }),
        make("span.course", {}, [...pieces, ...this.needles.slice(-1)])]);
    };
    this.box.replaceChildren(this.head, lane("this run", "accepted", run),
      lane("plain", "target", plain));
  }
}
