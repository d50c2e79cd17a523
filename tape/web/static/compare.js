// What differs between two texts, and between two conversations, found in the page.

const TOKEN = /[\p{L}\p{N}\p{M}_]{1,64}|\n|[^\S\n]+|./gsu;
const LINE = /[^\n]*\n|[^\n]+/g;
const LONGEST = 200000;
// Lists with more pairs than this are compared no further than where they begin and end.
const PAIRS = 8000000;

// What two lists have in common, and what stands between: runs of [same, from, to, from, to].
function runs(a, b) {
  let start = 0;
  while (start < a.length && start < b.length && a[start] === b[start]) start += 1;
  let [n, m] = [a.length, b.length];
  while (n > start && m > start && a[n - 1] === b[m - 1]) { n -= 1; m -= 1; }
  const found = [];
  const add = (same, i, j, k, l) => {
    const last = found.at(-1);
    if (i === j && k === l) return;
    if (last?.[0] === same) [last[2], last[4]] = [j, l];
    else found.push([same, i, j, k, l]);
  };
  add(true, 0, start, 0, start);
  let [i, j] = [start, start];
  const width = m - start + 1;
  if ((n - start) * width <= PAIRS) {
    // How much the rests have in common, from each pair of places on.
    const rest = new Uint16Array((n - start + 1) * width);
    const at = (x, y) => (x - start) * width + y - start;
    for (let x = n - 1; x >= start; x -= 1) {
      for (let y = m - 1; y >= start; y -= 1) rest[at(x, y)] = a[x] === b[y] ? rest[at(x + 1, y + 1)] + 1 : Math.max(rest[at(x + 1, y)], rest[at(x, y + 1)]);
    }
    while (i < n && j < m) {
      const same = a[i] === b[j];
      const [x, y] = same ? [i + 1, j + 1] : rest[at(i + 1, j)] >= rest[at(i, j + 1)] ? [i + 1, j] : [i, j + 1];
      add(same, i, x, j, y);
      [i, j] = [x, y];
    }
  }
  add(false, i, n, j, m);
  add(true, n, a.length, m, b.length);
  return found;
}

const split = (before, after, pattern) => {
  const [a, b] = [before.match(pattern) ?? [], after.match(pattern) ?? []];
  return runs(a, b).map(([same, i, j, k, l]) => [same, a.slice(i, j).join(""), b.slice(k, l).join("")]);
};

// [kind, text]: the equal and removed ones are the first text, the equal and added ones the second.
export function spans(before, after) {
  if (before.length + after.length > LONGEST) return null;
  const found = split(before, after, LINE).flatMap((run) => (run[0] ? [run] : split(run[1], run[2], TOKEN)));
  const told = [];
  let changed = 0;
  for (const [at, [same, gone, come]] of found.entries()) {
    const [next, removed, added] = found[at + 1] ?? [true];
    // Words that two rewritten passages only happen to share count as changed with them.
    const kept = same && (next || gone.includes("\n") || gone.trim().length > Math.min(Math.max(removed.length, added.length), changed));
    changed = kept ? 0 : changed + Math.max(gone.length, come.length);
    const last = told.at(-1);
    if (last?.[0] === kept) [last[1], last[2]] = [last[1] + gone, last[2] + come];
    else told.push([kept, gone, come]);
  }
  return told.flatMap(([kept, gone, come]) => (kept ? [["equal", gone]] : [["removed", gone], ["added", come]])).filter(([, text]) => text);
}

// Pairs of places, those that stand for each other together; -1 where one side has nothing.
export function pairs(a, b) {
  const found = [];
  for (const [, i, j, k, l] of runs(a, b)) {
    for (let place = 0; place < Math.max(j - i, l - k); place += 1) found.push([i + place < j ? i + place : -1, k + place < l ? k + place : -1]);
  }
  return found;
}
