// Buttons, keys, slider and the theme: each does one thing to the player.

const NAMES = { " ": "space", ArrowLeft: "←", ArrowRight: "→", ArrowUp: "↑", ArrowDown: "↓" };
const HELP = "A small model, the draft, writes reasoning steps ahead; the large one, the target, "
  + "writes its own step at every place at the same time; a verifier says whether a draft step "
  + "means the same. If so it is kept, else the target's step takes its place.";
const NODES = "2:5 is the node before step 5, in the tree that began at step 2, after the target's own "
  + "step 1. 2:5.1 is the second alternative there. Steps are counted from 0.";
const LINKS = "The address ends in #event=number (in the tour #tour=number) when the player rests: "
  + "share it, and it opens at that moment.";

function connect(player) {
  const { tour } = player;
  const settled = (action) => () => { action(); player.toAddress(); };
  const along = (by) => settled(() => (tour.at >= 0 ? tour.go(tour.at + by) : player.step(by > 0)));
  const jump = (list, forward) => settled(() => player.jump(player.data[list], forward));
  const root = document.documentElement, speed = byId("speed");
  const size = (scale) => () => {
    player.scale = clamp(scale(player.scale), 0.7, 2);
    root.style.setProperty("--scale", player.scale.toFixed(2));
    player.redraw();
  };
  const faster = (by) => () => {
    speed.selectedIndex = clamp(speed.selectedIndex + by, 0, speed.options.length - 1);
  };
  const actions = {
    "tour-open": settled(() => tour.go(tour.at < 0 ? 0 : -1)),
    play: () => player.toggle(),
    "event-back": along(-1),
    "event-next": along(1),
    "decision-back": jump("decisions", false),
    "decision-next": jump("decisions", true),
    "rejection-next": jump("rejections", true),
    theme: () => { root.dataset.theme = root.dataset.theme === "dark" ? "light" : "dark"; },
    "text-size": size((scale) => (scale > 1.35 ? 1 : scale + 0.2)),
    "help-open": () => byId("help").showModal(),
    "zoom-in": () => player.clock.zoom(0.5, player.time),
    "zoom-out": () => player.clock.zoom(2, player.time),
    "zoom-all": () => player.clock.zoom(Infinity, player.time),
    "show-refused": () => {
      const hidden = document.body.classList.toggle("hide-refused");
      byId("show-refused").setAttribute("aria-pressed", String(!hidden));
    },
  };
  for (const [id, action] of Object.entries(actions)) byId(id).addEventListener("click", action);
  // By key: what it does, in words and by what. Keys of buttons stand in the page.
  const keys = {
    Home: ["To the beginning", settled(() => player.rest(0))],
    End: ["To the end", settled(() => player.rest(player.count))],
    ArrowUp: ["Faster", faster(1)], ArrowDown: ["Slower", faster(-1)],
    "+": ["Larger text", size((scale) => scale + 0.1)],
    "-": ["Smaller text", size((scale) => scale - 0.1)],
    "Shift+R": ["To the rejection before", jump("rejections", false)],
    Escape: ["End the tour", settled(() => tour.go(-1))],
    C: ["The next cache", () => player.cache.next()],
  };
  for (const button of document.querySelectorAll("[data-key]")) {
    keys[button.dataset.key] = [button.title, () => button.click()];
  }
  document.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey || byId("help").open) return;
    const inField = event.target.matches("select, button")
      && [" ", "Enter", "ArrowUp", "ArrowDown"].includes(event.key);
    const name = event.key.length === 1 ? event.key.toUpperCase().replace("=", "+") : event.key;
    const found = (event.shiftKey && keys[`Shift+${name}`]) || keys[name];
    if (inField || !found) return;
    event.preventDefault();
    found[1]();
  });
  const rest = () => player.toAddress();
  byId("scrub").addEventListener("input", () => player.rest(+byId("scrub").value));
  byId("scrub").addEventListener("change", rest);
  addEventListener("hashchange", () => player.fromAddress());
  const drawing = byId("timeline");
  const drag = (event) => {
    if (!drawing.hasPointerCapture(event.pointerId)) return;
    const time = player.clock.timeAt(event.clientX - drawing.getBoundingClientRect().left);
    player.rest(player.states.numberAt(time), time);
  };
  drawing.addEventListener("pointerdown", (event) => {
    drawing.setPointerCapture(event.pointerId);
    drag(event);
  });
  drawing.addEventListener("pointermove", drag);
  drawing.addEventListener("pointerup", rest);
  const system = matchMedia("(prefers-color-scheme: dark)");
  const follow = () => { root.dataset.theme = system.matches ? "dark" : "light"; };
  system.addEventListener("change", follow);
  follow();
  fillHelp(keys);
}

function fillHelp(keys) {
  const rows = Object.entries(keys).map(([key, [means]]) =>
    [key.replace(/ |Arrow\w+/, (name) => NAMES[name]), means]);
  const table = (rows) => make("table", {}, rows.map(([key, means]) => make("tr", {}, [
    make("td", {}, [make("kbd", { text: key })]), make("td", { text: means })])));
  byId("help").replaceChildren(
    make("form", { method: "dialog" }, [make("button", { text: "Close", type: "submit" })]),
    make("h2", { text: "Help", id: "help-title" }), make("p", { text: HELP }),
    make("h3", { text: "How a step came into the answer" }), table(Object.entries(ORIGINS)),
    make("h3", { text: "Names of nodes" }), make("p", { text: NODES }),
    make("h3", { text: "Keys" }), table(rows),
    make("h3", { text: "Links" }), make("p", { text: LINKS }));
}

addEventListener("DOMContentLoaded", () => {
  window.player = new Player(JSON.parse(byId("data").textContent));
  window.player.start();
});
