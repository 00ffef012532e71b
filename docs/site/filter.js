// Filters the table of functions by a part of a name and by what its columns say.
document.addEventListener("DOMContentLoaded", () => {
  const form = document.getElementById("filter");
  if (!form) return;
  const follows = (table) => form.compareDocumentPosition(table) & Node.DOCUMENT_POSITION_FOLLOWING;
  const table = [...document.querySelectorAll("article table")].find(follows);
  const rows = [...table.tBodies[0].rows];
  const [name, ...boxes] = form.querySelectorAll("input");
  const count = form.querySelector("output");
  const show = () => {
    const wanted = name.value.trim().toLowerCase();
    let shown = 0;
    for (const row of rows) {
      const fits = row.cells[0].textContent.toLowerCase().includes(wanted)
        && boxes.every((box) => !box.checked || row.cells[box.value].textContent.trim());
      row.hidden = !fits;
      shown += fits;
    }
    count.textContent = `${shown} of ${rows.length}`;
  };
  form.addEventListener("input", show);
  form.addEventListener("submit", (event) => event.preventDefault());
  show();
});
