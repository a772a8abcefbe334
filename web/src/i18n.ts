import { computed, signal } from "@preact/signals";

import { en, type Messages } from "./i18n/en";
import { ko } from "./i18n/ko";

export type Language = "en" | "ko";

const DICTIONARIES: Record<Language, Messages> = { en, ko };
const ONE_YEAR_SECONDS = 31_536_000;

export function chooseLanguage(cookies: string, preferred: string): Language {
  const stored = /(?:^|;\s*)lang=(en|ko)(?:;|$)/.exec(cookies)?.[1];
  if (stored === "en" || stored === "ko") return stored;
  return preferred.toLowerCase().startsWith("ko") ? "ko" : "en";
}

export const language = signal<Language>(chooseLanguage(document.cookie, navigator.language));
export const messages = computed<Messages>(() => DICTIONARIES[language.value]);

/**
 * Stores the language in a cookie and not in local storage, because the gateway's pages read it
 * too.
 */
export function setLanguage(next: Language): void {
  // biome-ignore lint/suspicious/noDocumentCookie: Firefox has no Cookie Store API
  document.cookie = `lang=${next}; path=/; max-age=${ONE_YEAR_SECONDS}; SameSite=Lax`;
  language.value = next;
}

language.subscribe((current) => {
  document.documentElement.lang = current;
});
