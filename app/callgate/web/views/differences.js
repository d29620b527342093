// @ts-check
// What differs between two texts, word by word.

/** The most words of the differing parts that are compared one by one; beyond it the whole parts are marked. */
const MOST = 1000;

/** @typedef {{text: string, differs: boolean}} Piece */

/**
 * Both texts in pieces, of which those that the other text does not have are marked.
 * @param {string} one @param {string} other @returns {[Piece[], Piece[]]}
 */
export function differences(one, other) {
  const [left, right] = [one, other].map((text) => text.match(/\s+|[\p{L}\p{N}_]+|[^\s\p{L}\p{N}_]/gu) ?? []);
  let start = 0;
  while (start < left.length && start < right.length && left[start] === right[start]) start += 1;
  let end = 0;
  while (end < left.length - start && end < right.length - start && left[left.length - 1 - end] === right[right.length - 1 - end]) end += 1;
  const middles = [left.slice(start, left.length - end), right.slice(start, right.length - end)];
  const isShared = shared(middles[0], middles[1]);
  return /** @type {[Piece[], Piece[]]} */ (
    [left, right].map((words, side) =>
      joined([
        { text: words.slice(0, start).join(""), differs: false },
        ...middles[side].map((text, at) => ({ text, differs: !isShared[side][at] })),
        { text: words.slice(words.length - end).join(""), differs: false },
      ]),
    )
  );
}

/** Which words of each belong to the longest sequence that both have. @param {string[]} left @param {string[]} right @returns {[boolean[], boolean[]]} */
function shared(left, right) {
  /** @type {[boolean[], boolean[]]} */ const found = [left.map(() => false), right.map(() => false)];
  if (left.length > MOST || right.length > MOST) return found;
  const width = right.length + 1;
  const lengths = new Uint16Array((left.length + 1) * width);
  for (let i = left.length - 1; i >= 0; i -= 1)
    for (let j = right.length - 1; j >= 0; j -= 1)
      lengths[i * width + j] = left[i] === right[j] ? lengths[(i + 1) * width + j + 1] + 1 : Math.max(lengths[(i + 1) * width + j], lengths[i * width + j + 1]);
  for (let i = 0, j = 0; i < left.length && j < right.length; )
    if (left[i] === right[j]) found[0][i++] = found[1][j++] = true;
    else if (lengths[(i + 1) * width + j] >= lengths[i * width + j + 1]) i += 1;
    else j += 1;
  return found;
}

/** @param {Piece[]} pieces */
function joined(pieces) {
  /** @type {Piece[]} */ const found = [];
  for (const piece of pieces) {
    const last = found.at(-1);
    if (last && last.differs === piece.differs) last.text += piece.text;
    else if (piece.text) found.push({ ...piece });
  }
  return found;
}
