import { describe, expect, it } from "vitest";

import { bytes, period, relative, span } from "../src/format";
import { chooseLanguage, language, messages, setLanguage } from "../src/i18n";
import { en } from "../src/i18n/en";
import { ko } from "../src/i18n/ko";

type Tree = { [key: string]: unknown };

function leaves(tree: Tree, path = ""): Array<[string, unknown]> {
  return Object.entries(tree).flatMap(([key, value]) =>
    typeof value === "object"
      ? leaves(value as Tree, `${path}${key}.`)
      : [[path + key, value] as [string, unknown]],
  );
}

describe("languages", () => {
  it("takes the cookie first, then the browser's preference", () => {
    expect(chooseLanguage("session=x; lang=ko", "en-US")).toBe("ko");
    expect(chooseLanguage("slang=ko", "en-US")).toBe("en");
    expect(chooseLanguage("lang=fr", "ko-KR")).toBe("ko");
    expect(chooseLanguage("", "de")).toBe("en");
  });

  it("stores the choice where the gateway's pages read it, and updates the page", () => {
    setLanguage("ko");
    expect(document.cookie).toContain("lang=ko");
    expect(document.documentElement.lang).toBe("ko");
    expect(messages.value.nav.trash).toBe("휴지통");
    setLanguage("en");
    expect(language.value).toBe("en");
  });

  it("have a text for every key", () => {
    const empty = (tree: Tree) =>
      leaves(tree).filter(([key, text]) => text === "" && key !== "operations.NONE");
    expect(empty(en)).toEqual([]);
    expect(empty(ko)).toEqual([]);
    expect(leaves(ko).map(([key]) => key)).toEqual(leaves(en).map(([key]) => key));
  });
});

describe("times and sizes", () => {
  it("formats a span in at most two units", () => {
    expect(span(45, "en")).toBe("45 s");
    expect(span(3_600 + 20 * 60 + 5, "en")).toBe("1 h 20 min");
    expect(span(600, "ko")).toBe("10분");
    expect(span(-3, "en")).toBe("0 s");
  });
  it("formats a period in one unit", () => {
    expect(period(604_800, "en")).toBe("7 days");
    expect(period(129_600, "en")).toBe("36 hours");
    expect(period(86_400, "ko")).toBe("1일");
  });
  it("formats relative times", () => {
    const now = Date.parse("2026-01-01T12:00:00Z");
    expect(relative("2026-01-01T11:57:00Z", now, "en")).toBe("3 minutes ago");
    expect(relative("2026-01-01T11:59:55Z", now, "en")).toBe("just now");
    expect(relative("2026-01-01T11:59:55Z", now, "ko")).toBe("방금");
    expect(relative("2026-01-03T12:00:00Z", now, "en")).toBe("in 2 days");
  });
  it("formats sizes", () => {
    expect(bytes(999)).toBe("999 B");
    expect(bytes(1_834_000_000)).toBe("1.8 GB");
  });
});
