// From events to lives: one pass over the trace notes for everything the number of the event with which it came and of the one with
// which it went. The state after any n events is then looked up, forwards and backwards alike, and nothing is ever computed again.
// It is the state of lr/lab/trace/state.py; a test compares the two. Knows no page. Read first: cachelife.js.

// A step while it grows. A token: {id, piece, source, p, refused, from, until}; `finish` from event `finished` on.
class StepLife {
  constructor(from) {
    this.from = from;
    this.tokens = [];
    this.finished = NEVER;
    this.finish = "";
  }

  add(e, token) {
    this.tokens.push({ source: "", p: null, refused: [], ...token, from: e, until: NEVER });
  }

  current() {
    return this.tokens.filter((token) => token.until === NEVER);
  }

  // The step as a whole is there; what is known of its tokens stays.
  complete(e, step) {
    const now = this.current();
    const same = now.length === step.tokens.length && now.every((token, i) => token.id === step.tokens[i]);
    if (same) {
      now.forEach((token, i) => { token.whole = step.pieces[i]; });
    } else {
      now.forEach((token) => { token.until = e; });
      step.tokens.forEach((id, i) => this.add(e, { id, piece: step.pieces[i], whole: step.pieces[i] }));
    }
    if (this.finished === NEVER) this.finished = e;
    this.finish = step.finish;
  }

  at(n) {
    return this.tokens.filter((token) => alive(token, n));
  }

  done(n) {
    return this.finished < n;
  }

  text(n) {
    const done = this.done(n);
    return this.at(n).map((token) => (done && token.whole !== undefined ? token.whole : token.piece)).join("");
  }
}

class NodeLife {
  constructor(name, from) {
    Object.assign(this, { name, from, until: NEVER, index: +name.split(":")[1].split(".")[0] });
    Object.assign(this, { parent: null, sibling: 0, linked: NEVER, children: [], draft: null, target: null });
    Object.assign(this, { failed: NEVER, why: "", judged: NEVER, verdict: null, unsure: NEVER, accepted: NEVER, fromTime: 0, untilTime: NEVER });
  }
}

class Film {
  constructor(header, records) {
    this.header = header;
    this.records = records;
    this.nodes = new Map();
    this.roots = [[-1, "0:0"]];
    this.works = [];
    this.emitted = [];
    this.counts = []; // [number of event, how many steps are emitted from it on]
    this.caches = new Map(Object.entries(header.caches || {}).map(([name, size]) => [name, new CacheLife(size)]));
    this.starts = records.length ? records[0].time : 0;
    this.ends = records.length ? records[records.length - 1].time : 0;
    this.open = new Map();
    this.time = 0;
    this.node("0:0", -1);
    records.forEach((data, e) => this.take(e, data));
    this.plain = !this.works.length; // decoding without draft steps
    this.silent = !records.some((data) => data.step && data.step.pieces.some((piece) => piece.trim())); // simulated: tokens without text
  }

  timeAt(n) {
    return n ? this.records[n - 1].time : this.starts;
  }

  // How many events have happened by a time.
  numberAt(time) {
    let low = 0, high = this.records.length;
    while (low < high) {
      const middle = (low + high) >> 1;
      if (this.records[middle].time <= time) low = middle + 1; else high = middle;
    }
    return low;
  }

  rootAt(n) {
    return lastBefore(this.roots, n, "0:0");
  }

  emittedAt(n) {
    return this.emitted.slice(0, lastBefore(this.counts, n, 0));
  }

  worksAt(n) {
    return this.works.filter((work) => alive(work, n));
  }

  childrenOf(node, n) {
    return node.children.map((name) => this.nodes.get(name)).filter((child) => child.linked < n);
  }

  // The nodes of the tree as it is after n events: root first, then level by level.
  live(n) {
    const found = [];
    let level = [this.nodes.get(this.rootAt(n))].filter((node) => node && node.from < n);
    while (level.length) {
      found.push(...level);
      level = level.flatMap((node) => this.childrenOf(node, n).filter((child) => child.until >= n));
    }
    return found;
  }

  node(name, e) {
    let node = this.nodes.get(name);
    if (!node) {
      node = new NodeLife(name, e);
      node.fromTime = this.time;
      this.nodes.set(name, node);
    }
    return node;
  }

  begin(e, kind, name) {
    const work = { kind, node: name, from: e, until: NEVER };
    this.works.push(work);
    this.open.set(kind + " " + name, work);
  }

  // Whether a piece of work was in flight; then it is over. What comes after that comes too late and is ignored.
  finish(e, kind, name) {
    const work = this.open.get(kind + " " + name);
    if (!work) return false;
    work.until = e;
    return this.open.delete(kind + " " + name);
  }

  leave(e, node) {
    if (node.until !== NEVER) return;
    node.until = e;
    node.untilTime = this.time;
  }

  writing(e, data) {
    const node = this.node(data.node || `${data.index}:${data.index}`, e);
    const side = data.role === "draft" ? "draft" : "target";
    node[side] = node[side] || new StepLife(e);
    return node[side];
  }

  take(e, data) {
    this.time = data.time;
    if (CACHE_EVENTS.has(data.event)) {
      if (!this.caches.has(data.cache)) this.caches.set(data.cache, new CacheLife(null));
      this.caches.get(data.cache).take(e, data);
    } else if (Object.hasOwn(CHANGES, data.event)) {
      CHANGES[data.event](this, e, data);
    }
  }
}

const CHANGES = {
  draft(film, e, data) {
    const parent = film.node(data.node, e);
    data.children.forEach((name, sibling) => {
      const child = film.node(name, e);
      if (!parent.children.includes(name)) parent.children.push(name);
      Object.assign(child, { parent: parent.name, sibling, linked: Math.min(child.linked, e) });
      film.begin(e, "draft", name);
    });
  },
  target(film, e, data) {
    film.node(data.node, e);
    film.begin(e, "target", data.node);
  },
  judge: (film, e, data) => film.begin(e, "judge", data.node),
  drafted(film, e, data) {
    if (!film.finish(e, "draft", data.node)) return;
    if (data.step) film.writing(e, { ...data, role: "draft" }).complete(e, data.step);
    else Object.assign(film.node(data.node, e), { failed: e, why: "no draft can come" });
  },
  targeted(film, e, data) {
    if (film.finish(e, "target", data.node)) film.writing(e, { ...data, role: "target" }).complete(e, data.step);
  },
  judged(film, e, data) {
    if (!film.finish(e, "judge", data.node)) return;
    if (data.verdict) Object.assign(film.node(data.node, e), { judged: e, verdict: data.verdict });
    else film.node(data.node, e).unsure = e;
  },
  cancel: (film, e, data) => film.finish(e, data.work, data.node),
  token(film, e, data) {
    const step = film.writing(e, data);
    if (step.current().length === data.offset) step.add(e, { id: data.token, piece: data.piece, source: "drawn", p: data.p });
  },
  round(film, e, data) {
    if (!data.detail) return;
    const step = film.writing(e, data), detail = data.detail;
    if (step.current().length !== detail.offset) return;
    const kept = detail.guesses.filter((guess) => guess.kept), refused = detail.guesses.filter((guess) => guess.kept === false);
    const added = kept.map((guess) => ({ id: guess.token, piece: guess.piece, source: "guessed", p: guess.p, q: guess.q, refused: [] }));
    const source = detail.residual || refused.length ? "residual" : "after";
    added.push({ id: detail.token, piece: detail.piece, source, p: detail.p, refused: [] });
    for (const guess of refused) {
      let depth = 0;
      for (let above = guess.parent; above >= 0; above = detail.guesses[above].parent) depth += 1;
      if (depth < added.length) added[depth].refused.push(guess);
    }
    added.slice(0, data.emitted).forEach((token) => step.add(e, token));
  },
  written: (film, e, data) => film.writing(e, data).complete(e, data.step),
  emit(film, e, data) {
    const node = film.node(data.node, e), accepted = data.origin === "accepted";
    const step = new StepLife(e), known = accepted ? node.draft : node.target;
    if (known) known.current().forEach((token) => step.add(e, token));
    step.complete(e, data.step);
    if (accepted) node.accepted = Math.min(node.accepted, e);
    const { index, origin, verdict, rejected } = data;
    film.emitted.push({ at: e, time: data.time, index, origin, node: node.name, step, verdict, rejected });
    film.counts.push([e, film.emitted.length]);
    if (data.root) {
      film.roots.push([e, film.node(data.root, e).name]);
      if (data.root !== data.node) film.leave(e, node);
    }
  },
  release: (film, e, data) => film.leave(e, film.node(data.node, e)),
};
