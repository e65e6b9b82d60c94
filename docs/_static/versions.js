// Fills the list of versions from versions.json, which lies beside the folders of all versions; without one it stays hidden.
document.addEventListener("DOMContentLoaded", async () => {
  const select = document.getElementById("versions");
  const home = new URL(document.documentElement.dataset.content_root, location.href);
  if (select === null || !home.protocol.startsWith("http")) return;
  let versions;
  try {
    const answer = await fetch(new URL("../versions.json", home));
    if (!answer.ok) return;
    versions = await answer.json();
  } catch {
    return;
  }
  const own = home.pathname.split("/").at(-2);
  for (const name of versions) select.add(new Option(name, name, false, name === own));
  select.closest(".versions").hidden = versions.length === 0;
  select.addEventListener("change", async () => {
    const other = new URL(`../${select.value}/`, home);
    const page = new URL(location.pathname.slice(home.pathname.length), other);
    const there = await fetch(page, { method: "HEAD" });
    location.assign(there.ok ? page : other);
  });
});
