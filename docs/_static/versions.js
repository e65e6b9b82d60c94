// Fills the list of versions from versions.json, which `.ci/publish-site` writes into the folder of each version. In a
// site that was built by hand the list is empty, and the page shows its own version only.
document.addEventListener("DOMContentLoaded", async () => {
  const select = document.getElementById("versions");
  const home = new URL(document.documentElement.dataset.content_root, location.href);
  if (select === null || !home.protocol.startsWith("http")) return;
  const versions = await (await fetch(new URL("versions.json", home))).json();
  if (versions.length === 0) return;
  const own = home.pathname.split("/").at(-2);
  for (const name of versions) select.add(new Option(name, name, false, name === own));
  select.hidden = false;
  select.previousElementSibling.hidden = true;
  select.addEventListener("change", async () => {
    const other = new URL(`../${select.value}/`, home);
    const page = new URL(location.pathname.slice(home.pathname.length), other);
    const there = await fetch(page, { method: "HEAD" });
    location.assign(there.ok ? page : other);
  });
});
