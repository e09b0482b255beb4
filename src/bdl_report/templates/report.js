document.querySelectorAll("table.sortable").forEach(table => {
  const body = table.tBodies[0], heads = [...table.tHead.rows[table.tHead.rows.length - 1].cells];
  heads.forEach((head, column) => {
    const button = document.createElement("button");
    button.append(...head.childNodes);
    head.append(button);
    button.addEventListener("click", () => {
      const up = head.getAttribute("aria-sort") !== "ascending";
      heads.forEach(h => h.removeAttribute("aria-sort"));
      head.setAttribute("aria-sort", up ? "ascending" : "descending");
      const key = row => row.cells[column].dataset.v ?? "";
      const compare = (a, b) => {
        const [x, y] = [key(a), key(b)];
        if (x === "" || y === "") return (x === "") - (y === "");
        const order = isNaN(x) || isNaN(y) ? x.localeCompare(y) : x - y;
        return up ? order : -order;
      };
      body.append(...[...body.rows].sort(compare));
    });
  });
});

const views = new Map();  // a figure that is drawn -> its view
const hide = section => {
  const kinds = [...section.querySelectorAll(".filters input:checked")].map(box => box.value);
  section.querySelectorAll("[data-kinds]").forEach(one => {
    one.hidden = kinds.some(kind => one.dataset.kinds.split(" ").includes(kind));
  });
  section.querySelectorAll("figure.chart").forEach(one => views.get(one)?.signal("hidden", kinds).runAsync());
};
document.querySelectorAll(".filters input").forEach(box => {
  box.addEventListener("change", () => hide(box.closest("section")));
});

const near = new IntersectionObserver(entries => entries.filter(one => one.isIntersecting).forEach(({target}) => {
  near.unobserve(target);
  const [place, data] = [target.querySelector("div"), target.querySelector("script")];
  vegaEmbed(place, JSON.parse(data.textContent), {actions: false, renderer: "svg", config}).then(({view}) => {
    views.set(target, view);
    hide(target.closest("section"));
  });
}), {rootMargin: "900px"});
if (window.vegaEmbed) document.querySelectorAll("figure.chart").forEach(one => near.observe(one));
