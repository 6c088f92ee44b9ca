// Buttons, keys, slider and the theme: each does one thing to the player.

const KEYS = [
  ["space", "play or pause"], ["← →", "previous, next event; in the tour: stop"],
  ["T Esc", "the tour: begin, end"], ["G", "the race's clock: this machine, or rows are free"],
  ["Shift + ← →", "previous, next decision"],
  ["R", "to the next rejection (Shift: to the one before)"],
  ["Home End", "to the beginning, to the end"], ["↑ ↓", "faster, slower"],
  ["V F", "live: to the next verdict, fork a what-if"],
  ["Z X", "clock: show less time, more time"], ["C", "the next cache"],
  ["D", "light or dark"], ["+ −", "larger or smaller text"], ["?", "this help"],
];
const HELP = "A small model, the draft, writes reasoning steps ahead; the large one, the target, "
  + "writes its own step at every place at the same time; a verifier says whether a draft step "
  + "means the same. If so it is kept, else the target's step takes its place.";
const LINKS = "The address ends in #event=number (in the tour #tour=number) when the player rests: "
  + "share it, and it opens at that moment.";

function connect(player) {
  const settled = (action) => () => { action(); player.toAddress(); };
  const rest = (place) => settled(() => { player.pause(); player.go(place()); });
  const { tour } = player;
  const along = (by) => settled(() => (tour.at >= 0 ? tour.go(tour.at + by) : player.step(by > 0)));
  const actions = {
    "tour-open": settled(() => tour.go(tour.at < 0 ? 0 : -1)),
    play: () => player.toggle(),
    "event-back": along(-1),
    "event-next": along(1),
    "decision-back": settled(() => player.jump(player.data.decisions, false)),
    "decision-next": settled(() => player.jump(player.data.decisions, true, "step")),
    "rejection-next": settled(() => player.jump(player.data.rejections, true, "rejection")),
    theme: () => setTheme(document.documentElement.dataset.theme === "dark" ? "light" : "dark"),
    "text-size": () => setScale(player, scaleNow() > 1.35 ? 1 : scaleNow() + 0.2),
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
  const keys = {
    " ": actions.play, ArrowRight: along(1), ArrowLeft: along(-1),
    t: actions["tour-open"], Escape: settled(() => tour.go(-1)), g: () => player.race.next(),
    "shift ArrowRight": actions["decision-next"], "shift ArrowLeft": actions["decision-back"],
    r: actions["rejection-next"], "shift r": settled(() => player.jump(player.data.rejections, false)),
    Home: rest(() => 0), End: rest(() => player.more("end") ? player.n : player.count), ArrowUp: () => faster(1), ArrowDown: () => faster(-1),
    z: actions["zoom-in"], x: actions["zoom-out"], c: () => player.cache.next(), d: actions.theme,
    "+": () => setScale(player, scaleNow() + 0.1), "=": () => setScale(player, scaleNow() + 0.1),
    v: () => byId("verdict").click(), f: () => byId("fork").click(),
    "-": () => setScale(player, scaleNow() - 0.1), "?": actions["help-open"],
  };
  document.addEventListener("keydown", (event) => {
    const typing = byId("help").open || event.target.matches("[type=text]");
    if (event.ctrlKey || event.metaKey || event.altKey || typing) return;
    const inField = event.target.matches("select, button")
      && [" ", "Enter", "ArrowUp", "ArrowDown"].includes(event.key);
    const key = event.key.length === 1 ? event.key.toLowerCase() : event.key;
    const action = (event.shiftKey && keys[`shift ${key}`]) || keys[key];
    if (inField || !action) return;
    event.preventDefault();
    action();
  });
  byId("scrub").addEventListener("input", () => {
    player.pause();
    player.go(+byId("scrub").value);
  });
  byId("scrub").addEventListener("change", () => player.toAddress());
  addEventListener("hashchange", () => player.fromAddress());
  scrubOn(player, byId("timeline"));
  fillHelp();
  const dark = matchMedia("(prefers-color-scheme: dark)");
  setTheme(dark.matches ? "dark" : "light");
  dark.addEventListener("change", () => setTheme(dark.matches ? "dark" : "light"));
}

function scrubOn(player, drawing) {
  const move = (event) => {
    const left = drawing.getBoundingClientRect().left;
    const time = player.clock.timeAt(event.clientX - left);
    player.pause();
    player.go(player.film.numberAt(time), time);
  };
  drawing.addEventListener("pointerdown", (event) => {
    drawing.setPointerCapture(event.pointerId);
    move(event);
  });
  drawing.addEventListener("pointermove", (event) =>
    drawing.hasPointerCapture(event.pointerId) && move(event));
  drawing.addEventListener("pointerup", () => player.toAddress());
}

function scaleNow() {
  return parseFloat(getComputedStyle(document.documentElement).getPropertyValue("--scale")) || 1;
}

function setScale(player, scale) {
  document.documentElement.style.setProperty("--scale", clamp(scale, 0.7, 2).toFixed(2));
  player.redraw();
}

function setTheme(theme) {
  document.documentElement.dataset.theme = theme;
}

function faster(by) {
  const speed = byId("speed");
  speed.selectedIndex = clamp(speed.selectedIndex + by, 0, speed.options.length - 1);
}

function fillHelp() {
  const table = (rows) => make("table", {}, rows.map(([key, means]) => make("tr", {}, [
    make("td", {}, [make("kbd", { text: key })]), make("td", { text: means })])));
  byId("help").replaceChildren(
    make("form", { method: "dialog" }, [make("button", { text: "Close", type: "submit" })]),
    make("h2", { text: "Help", id: "help-title" }), make("p", { text: HELP }),
    make("h3", { text: "Keys" }), table(KEYS),
    make("h3", { text: "How a step came into the answer" }), table(Object.entries(ORIGINS)),
    make("h3", { text: "Links" }), make("p", { text: LINKS }));
}

addEventListener("DOMContentLoaded", () => {
  window.player = new Player(JSON.parse(byId("data").textContent));
  window.player.start();
});
