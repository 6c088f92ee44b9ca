// An answer in the making: asks the engine on this machine (live.py) to go on, to force a verdict,
// to fork, and shows side B, the what-if, beside side A. A reply holds what is new since the last.

// What `old` has become: [all of it], [how many items stay, those that follow], {key: its news}.
function renewed(old, news) {
  if (Array.isArray(news)) return news[1] ? [...old.slice(0, news[0]), ...news[1]] : news[0];
  for (const [key, one] of Object.entries(news)) old[key] = renewed(old[key], one);
  return old;
}

class Live {
  constructor(player) {
    Object.assign(this, { player, over: false, asking: null, second: new Beside(), seen: 0 });
    byId("live").hidden = false;
    byId("live").addEventListener("submit", (event) => {
      event.preventDefault();
      this.press("ask", { question: byId("asked").value });
    });
    for (const what of ["ask", "verdict", "fork", "drop"]) {
      byId(what).addEventListener("click", () => this.press(what));
    }
  }

  async press(what, more) {
    this.player.pause();
    await this.asking;
    this.ask(what, more);
  }

  // One request at a time.
  ask(what, more) {
    this.asking = this.asking || this.send(what, more).finally(() => { this.asking = null; });
  }

  // The engine goes on from where the page is.
  async send(what, more) {
    const { seen } = this, places = { A: this.player.n, ...(this.beside && { B: this.beside.n }) };
    try {
      const reply = await fetch(`do${location.search}`, {
        method: "POST", headers: { "Content-Type": "application/json" },
        body: JSON.stringify({ what, seen, places: what === "look" ? {} : places, ...more }),
      });
      if (!reply.ok) throw new Error(await reply.text());
      this.take(await reply.json());
    } catch ({ message }) {
      this.player.pause();
      byId("told").textContent = `There is no answer; the terminal may say why. (${message})`;
    }
  }

  take({ said, forked, number, sides }) {
    const { player } = this, [a, b] = sides.map((news, i) => renewed((this.sides || [])[i], news));
    Object.assign(this, { seen: number, sides: [a, b] });
    this.over = a.over && (!b || (b.over && b.place >= b.data.events.length));
    player.load(a.data);
    this.beside = b ? this.second : null;
    if (b) this.beside.take(b, a.place, forked);
    document.body.classList.toggle("two", Boolean(b));
    for (const id of ["drop", "tree-b", "answer-b"]) byId(id).hidden = !b;
    byId("told").textContent = said;
    this.latest = a.place;
    if (player.playing) player.go(player.n, player.time); else player.redraw(a.place);
  }

  // Called whenever the player has moved.
  show() {
    const { player, beside } = this, due = player.states.dueAt(player.n).map((node) => ["A", node]);
    if (beside) {
      beside.show(player.n);
      due.push(...beside.states.dueAt(beside.n).map((node) => ["B", node]));
    }
    // In the present both caches are one; the last moments of the two sides are not the same time.
    const at = ({ states, n }) => (player.n >= this.latest ? states.count : n);
    player.cache.sides = beside && beside.shares
      ? [["A ", player.states, at(player)], ["B ", beside.states, at(beside)]] : null;
    if (this.due === String(due)) return;
    this.due = String(due);
    byId("due").replaceChildren(...due.map(([side, node]) => {
      const name = beside ? `${side} ${node}` : node, words = ["aligned", "not aligned"];
      const buttons = words.map((word, i) => {
        const title = `Force the verdict on ${name}: ${word}`;
        const button = make("button", { text: "✓✗"[i], type: "button", title });
        button.addEventListener("click", () => this.press("force", { side, node, aligned: !i }));
        return button;
      });
      return make("span", {}, [`verdict on ${name} `, ...buttons]);
    }));
  }
}

// Side B: a tree and an answer more.
class Beside {
  constructor() {
    this.states = new TraceStates();
    this.views = [new Tree(this.states, byId("tree-b")), new Answer(this.states, byId("answer-b"))];
  }

  // `pairs`: after how many events of side A this side had how many, since it was forked.
  take({ data, place, shares }, other, forked) {
    this.states.load(data);
    this.shares = shares;
    if (forked || !this.pairs) this.pairs = [];
    this.pairs = [...this.pairs.filter(([before]) => before <= other), [other, place]];
    this.views.forEach((view) => { view.signature = null; });
  }

  show(other) {
    const { states, pairs: [[forkedAt]], views: [tree, answer] } = this;
    this.n = Math.min(other < forkedAt ? other : valueAt(this.pairs, other), states.count);
    tree.show(this.n, states.timeAt(this.n), 0);
    answer.show(this.n);
    const stop = states.events.slice(0, this.n).reverse().find((one) => states.stops[one[1]] === 2);
    byId("tree-b").querySelector("h2").textContent = `Side B: ${stop ? stop[4] : "begins"}`;
  }
}
