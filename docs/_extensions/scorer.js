// Orders what Sphinx's search finds. By itself it gives all pages that have the words the same score, and puts names that
// have the typed letters anywhere in them ("sse" in "total_processed") before pages. Here a page counts by how many of the
// words its headings or its phrases in search.toml have, and a name only if it is the word; that of an option goes before others.
var Scorer = {
  objNameMatch: 40,
  objPartialMatch: -40,
  objPrio: { 0: 0, 1: 0, 2: 0 },
  objPrioDefault: 0,
  title: 40,
  partialTitle: 7,
  term: 5,
  partialTerm: 2,

  // Pages that have nearly every word, and seldom the answer.
  everything: new Set(["reference/changelog", "reference/reliability", "reference/benchmarks", "explanation/architecture"]),

  // Pages that list others.
  lists: /(^|\/)(index|web-services|models|databases-and-apis|production|everyday)$/,

  // The words that were typed, and by page those of its phrases; found once for a search.
  asked: null,
  phrases: new Map(),
  prepare() {
    const stemmer = new Stemmer();
    const stems = (text) => splitQuery(text.toLowerCase()).map((word) => stemmer.stemWord(word));
    const query = new URLSearchParams(window.location.search).get("q") ?? "";
    Scorer.asked = stems(query).filter((word) => !stopwords.has(word));
    for (const [phrase, places] of Object.entries(Search._index.indexentries)) {
      for (const [page] of places) {
        if (!Scorer.phrases.has(page)) Scorer.phrases.set(page, new Set());
        stems(phrase).forEach((word) => Scorer.phrases.get(page).add(word));
      }
    }
  },

  score([name, title, anchor, descr, score, filename, kind]) {
    if (Scorer.asked === null) Scorer.prepare();
    const late = Scorer.everything.has(name) ? 20 : Scorer.lists.test(name) ? 4 : 0;
    if (kind !== "text") return score - late + (name === "reference/options" ? 5 : 0);
    const page = Search._index.docnames.indexOf(name);
    const has = (words, word) => Object.hasOwn(words, word) && [words[word]].flat().includes(page);
    const worth = (word) =>
      has(Search._index.titleterms, word) || Scorer.phrases.get(page)?.has(word)
        ? 30
        : has(Search._index.terms, word) ? 5 : 0;
    const inTitle = splitQuery(title.toLowerCase());
    const bonus = Scorer.asked.some((word) => inTitle.some((each) => each.startsWith(word))) ? 3 : 0;
    const sum = Scorer.asked.reduce((sum, word) => sum + worth(word), 0);
    return sum / Math.max(Scorer.asked.length, 1) + bonus - late;
  },
};

// Words of questions, which a page need not have. Sphinx knows most of them.
["can", "use", "using"].forEach((word) => stopwords.add(word));
