// The cache over time: which branch holds which block from which event to which. The picture of lr/lab/trace/state.py at any moment.
// Knows no page. Read next: film.js.

const NEVER = Infinity;
// Event number `from` is the first of a life, `until` the one that ends it. After n events (numbers 0 to n - 1) it is there if:
const alive = (life, n) => life.from < n && life.until >= n;

// The last entry of [[number of event, value], ...] that holds after n events.
function lastBefore(entries, n, otherwise) {
  let low = 0, high = entries.length;
  while (low < high) {
    const middle = (low + high) >> 1;
    if (entries[middle][0] < n) low = middle + 1; else high = middle;
  }
  return low ? entries[low - 1][1] : otherwise;
}

class CacheLife {
  constructor(size) {
    Object.assign(this, { total: size ? size.blocks : 0, size: size ? size.block_size : 0, branches: new Map(), copies: [] });
  }

  branch(number) {
    return this.branches.get(number);
  }

  add(e, branch, block) {
    branch.blocks.push({ block, place: branch.now.length, from: e, until: NEVER });
    branch.now.push(branch.blocks[branch.blocks.length - 1]);
  }

  make(e, number, source) {
    const origin = source === null ? null : this.branch(source);
    const made = { number, source, from: e, until: NEVER, blocks: [], now: [], lengths: [], nodes: [] };
    this.branches.set(number, made);
    if (origin) {
      origin.now.forEach((hold) => this.add(e, made, hold.block));
      made.lengths.push([e, lastBefore(origin.lengths, NEVER, 0)]);
    }
  }

  take(e, data) {
    const branch = this.branch(data.branch);
    if (data.event === "open") this.make(e, data.branch, null);
    else if (data.event === "fork") this.make(e, data.branch, data.source);
    else if (data.event === "grow") this.grow(e, data);
    else if (data.event === "cut") {
      branch.lengths.push([e, data.length]);
      for (const hold of branch.now.splice(branch.now.length - data.dropped.length)) hold.until = e;
    } else if (data.event === "close") {
      branch.until = e;
    } else if (data.event === "restore") {
      for (const hold of branch.now.splice(0)) hold.until = e;
      data.blocks.forEach((block) => this.add(e, branch, block));
      branch.lengths.push([e, data.length]);
    } else if (data.event === "hold") {
      branch.nodes.push([e, data.node]);
    } else if (data.event === "replace") {
      this.branch(data.heir).nodes.push([e, lastBefore(branch.nodes, NEVER, null)]);
      branch.nodes.push([e, null]);
    }
  }

  grow(e, data) {
    if (data.copies.length) this.copies.push([e, data.copies]);
    for (const [number, old, made] of data.copies) {
      const branch = this.branch(number);
      const place = branch.now.findIndex((hold) => hold.block === old);
      branch.now[place].until = e;
      branch.now[place] = { block: made, place, from: e, until: NEVER };
      branch.blocks.push(branch.now[place]);
    }
    for (const [number, block] of data.fresh) this.add(e, this.branch(number), block);
    for (const [number, length] of data.rows) this.branch(number).lengths.push([e, length]);
  }

  // [{number, node, length, source, blocks: [id, ...]}] of the branches there are after n events.
  at(n) {
    const found = [];
    for (const branch of this.branches.values()) {
      if (!alive(branch, n)) continue;
      const blocks = branch.blocks.filter((hold) => alive(hold, n)).sort((a, b) => a.place - b.place);
      found.push({
        number: branch.number, source: branch.source, blocks: blocks.map((hold) => hold.block),
        node: lastBefore(branch.nodes, n, null), length: lastBefore(branch.lengths, n, 0),
      });
    }
    return found;
  }
}

const CACHE_EVENTS = new Set(["open", "fork", "grow", "cut", "close", "restore", "hold", "replace"]);
