// What the state was after n events. Python has computed all states (page.py: states_of) and
// wrote down what changed when; here it is only looked up. Knows no page. Read next: player.js.

// The value that holds after n events, of [[from, value], ...].
function valueAt(history, n, otherwise) {
  let low = 0, high = history.length;
  while (low < high) {
    const middle = (low + high) >> 1;
    if (history[middle][0] <= n) low = middle + 1; else high = middle;
  }
  return low ? history[low - 1][1] : otherwise;
}

class TraceStates {
  constructor(data) {
    const { states, events } = data;
    Object.assign(this, data, states, { count: events.length });
    this.starts = this.count ? events[0][0] : 0;
    this.ends = this.count ? events[this.count - 1][0] : 0;
    this.times = events.map(([time], e) => [time, e + 1]);
  }

  timeAt(n) {
    return n ? this.events[n - 1][0] : this.starts;
  }

  numberAt(time) {
    return valueAt(this.times, time, 0);
  }

  rootAt(n) {
    return valueAt(this.roots, n, null);
  }

  emittedAt(n) {
    return this.emitted.filter((one) => one.at <= n);
  }

  // The cards of a node: [{by, name, standing, tokens, done}]; a draft step leads to node `name`.
  cardsAt(name, n) {
    return valueAt(this.nodes[name].cards, n, []).map(([by, of, standing]) => {
      const step = this.nodes[of][by], [length, done] = valueAt(step.written, n, [0, false]);
      return { by, name: of, standing, tokens: step.tokens.slice(0, length), done };
    });
  }

  // The tree after n events, or none: {name, index, cards, kids}.
  treeAt(name, n) {
    if (!name) return null;
    const cards = this.cardsAt(name, n);
    const live = (node) => node && node.born <= n && !(node.gone && node.gone[0] <= n);
    const kids = cards.filter((card) => card.by === "draft" && live(this.nodes[card.name]))
      .map((card) => this.treeAt(card.name, n)).filter((kid) => kid.cards.length);
    return { name, index: this.nodes[name].index, cards, kids };
  }

  // The names of nodes that left the tree between two times.
  goneBetween(n, since) {
    return Object.keys(this.nodes).filter((name) => {
      const { gone } = this.nodes[name];
      return gone && gone[0] <= n && gone[1] >= since;
    });
  }

  // The branches of a cache: [{number, source, length, node, blocks}].
  branchesAt(cache, n) {
    const there = ([, life]) => life.born <= n && !(life.gone <= n);
    return Object.entries(this.caches[cache].branches).filter(there).map(([number, life]) => {
      const [length, node] = valueAt(life.facts, n, [0, null]);
      return { number, source: life.source, length, node, blocks: valueAt(life.blocks, n, []) };
    });
  }
}
