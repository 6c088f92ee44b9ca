// The answer: the decided steps in order and, in dashed boxes, the drafts ahead of them. Only the
// last steps are in the page; a button fetches the earlier ones.

const WINDOW = 30;

class Answer {
  constructor(states, panel) {
    const [list, ahead] = panel.querySelectorAll("ol"), scroller = panel.querySelector(".scroll");
    Object.assign(this, { states, list, ahead, scroller, all: false, signature: "" });
  }

  show(n) {
    this.n = n;
    const emitted = this.states.emittedAt(n), root = this.states.rootAt(n);
    const from = this.all ? 0 : Math.max(0, emitted.length - WINDOW);
    const ahead = root ? this.pathAhead(root, n) : [];
    const signature = [from, emitted.length, ...ahead.map(([index, by, tokens]) =>
      [index, by, tokens.length])].join();
    if (signature === this.signature) return;
    this.signature = signature;
    const steps = emitted.slice(from).map((one) => this.step(one));
    steps.slice(-1).forEach((step) => step.classList.add("newest"));
    this.list.replaceChildren(...(from ? [this.earlier(from)] : []), ...steps);
    this.ahead.replaceChildren(...ahead.map(([index, by, tokens]) => {
      const tip = by === "draft" ? "A draft step ahead of the last decision: it may be rejected."
        : "The target is writing this step.";
      const origin = this.origin("…", "ahead", index, tip);
      return make(`li.step.ahead.${by}`, {}, [origin, make("div.body", {},
        tokenElements(tokens, by))]);
    }));
    this.follow();
  }

  earlier(count) {
    const text = `show ${plural(count, "earlier step")}`;
    const button = make("button.earlier", { text, type: "button" });
    button.addEventListener("click", () => { this.all = true; this.show(this.n); });
    return make("li", {}, [button]);
  }

  origin(mark, name, index, tip) {
    const sign = make("i", { text: mark, "aria-hidden": "true" });
    return make("div.origin", { tip }, [sign, name, make("span.number", { text: ` · ${index}` })]);
  }

  step({ index, origin, mark, by, colour, tokens, why, rejected }) {
    const tip = `Step ${index}, ${origin}: ${ORIGINS[origin]}.${why ? `\nVerdict: ${why}` : ""}`;
    const words = textOf(tokens) ? tokenElements(tokens, by) : [`the ${by}'s step`];
    const body = [make("div.body", {}, words)];
    if (rejected !== null) {
      body.unshift(make("div", { tip: "The draft step that was rejected, and why." }, [
        make("span.replaced", { text: rejected || "the draft's step" }),
        make("span.reason", { text: ` ${why || ""}` })]));
    }
    return make(`li.step.${colour}`, {}, [this.origin(mark, origin, index, tip),
      make("div", {}, body)]);
  }

  // The first path of drafts below the root: the text if all of them are accepted.
  pathAhead(root, n) {
    const found = [];
    for (let tree = this.states.treeAt(root, n); tree;) {
      const fits = (card) => card.by === "draft" && card.tokens.length
        && !["REJECTED", "CANCELLED", "FAILED"].includes(card.standing);
      const card = tree.cards.find(fits) || (found.length ? null
        : tree.cards.find((one) => one.by === "target" && one.tokens.length));
      if (!card || !textOf(card.tokens)) break;
      found.push([tree.index, card.by, card.tokens]);
      tree = card.by === "draft" ? tree.kids.find((kid) => kid.name === card.name) : null;
    }
    return found;
  }

  follow() {
    const { list, ahead, scroller: { clientHeight: height } } = this;
    const end = list.childElementCount ? list.offsetTop + list.offsetHeight - height : -height;
    this.scroller.scrollTop = end + Math.min(ahead.offsetHeight, height * 0.4);
  }
}
