const form = document.getElementById("filters"), all = [...document.querySelectorAll("#findings details")];
const told = document.getElementById("shown"), fold = document.getElementById("fold");
const choices = form ? [...form.querySelectorAll("select")] : [];
if (form) form.hidden = false;
for (const choice of choices) choice.addEventListener("change", () => {
  for (const one of all) {
    one.hidden = choices.some(by => by.value && !one.dataset[by.name].split("\n").includes(by.value));
  }
  const left = all.filter(one => !one.hidden).length;
  told.textContent = left < all.length ? `${left} of ${all.length} shown` : "";
});
function named() {
  fold.textContent = all.some(one => one.open) ? "fold all" : "unfold all";
}
if (fold) {
  fold.addEventListener("click", () => {
    const open = !all.some(one => one.open);
    for (const one of all) one.open = open;
    named();
  });
  for (const one of all) one.addEventListener("toggle", named);
  named();
}
addEventListener("hashchange", () => {  // browsers before 2025 do not open what a link leads into
  const fold = document.getElementById(location.hash.slice(1))?.closest("details");
  if (fold && !fold.open) { fold.open = true; fold.scrollIntoView(); }
});
addEventListener("beforeprint", () => { for (const one of all) one.open = true; });
