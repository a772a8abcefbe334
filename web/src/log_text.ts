/** How much of the output stays on the page: its end. */
export const KEPT_CHARACTERS = 256 * 1024;

/** Control characters, and those that change the direction of the text around them. */
// biome-ignore lint/suspicious/noControlCharactersInRegex: these are what must not reach the page as they are.
const INVISIBLE = /[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200b-\u200f\u2028-\u202e\u2060-\u2069\ufeff]/g;

/** Returns output as text that does nothing: a terminal's control sequences become visible symbols. */
export function harmless(output: string): string {
  return output.replace(/\r\n/g, "\n").replace(INVISIBLE, (character) => {
    const code = character.charCodeAt(0);
    if (code < 0x20) return String.fromCharCode(0x2400 + code);
    return code === 0x7f ? "\u2421" : "\ufffd";
  });
}

/** Returns the end of a text, from the beginning of a line. */
export function newest(text: string): string {
  if (text.length <= KEPT_CHARACTERS) return text;
  const kept = text.slice(-KEPT_CHARACTERS);
  return kept.slice(kept.indexOf("\n") + 1);
}
