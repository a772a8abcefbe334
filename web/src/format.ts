/** Times, spans and sizes as text in the chosen language. */
import { type Language, language } from "./i18n";

type Unit = "day" | "hour" | "minute" | "second";

const UNITS: ReadonlyArray<[Unit, number]> = [
  ["day", 86_400],
  ["hour", 3_600],
  ["minute", 60],
  ["second", 1],
];

const SHORT: Record<Language, Record<Unit, string>> = {
  en: { day: " d", hour: " h", minute: " min", second: " s" },
  ko: { day: "일", hour: "시간", minute: "분", second: "초" },
};

const JUST_NOW: Record<Language, string> = { en: "just now", ko: "방금" };

/** Formats a duration in at most two neighbouring units: "1 h 20 min", "45 s". */
export function span(seconds: number, lang: Language = language.value): string {
  const whole = Math.max(0, Math.round(seconds));
  let index = UNITS.findIndex(([, size]) => whole >= size);
  if (index < 0) index = UNITS.length - 1;
  const [unit, size] = UNITS[index]!;
  const first = Math.floor(whole / size) + SHORT[lang][unit];
  const smaller = UNITS[index + 1];
  if (!smaller) return first;
  const rest = Math.floor((whole % size) / smaller[1]);
  return rest ? `${first} ${rest}${SHORT[lang][smaller[0]]}` : first;
}

/** Formats a duration in one unit, for sentences: "7 days", "36 hours". */
export function period(seconds: number, lang: Language = language.value): string {
  const [unit, size] = UNITS.find(([, size]) => seconds >= size && seconds % size === 0) ?? UNITS[3]!;
  return new Intl.NumberFormat(lang, { style: "unit", unit, unitDisplay: "long" }).format(seconds / size);
}

/** Formats a time relative to now: "3 minutes ago", "in 2 days". */
export function relative(at: string, nowMilliseconds: number, lang: Language = language.value): string {
  const seconds = Math.round((Date.parse(at) - nowMilliseconds) / 1000);
  const format = new Intl.RelativeTimeFormat(lang, { numeric: "auto" });
  for (const [unit, size] of UNITS) {
    if (unit === "second") break;
    if (Math.abs(seconds) >= size) return format.format(Math.trunc(seconds / size), unit);
  }
  return JUST_NOW[lang];
}

export function dateTime(at: string, lang: Language = language.value): string {
  return new Intl.DateTimeFormat(lang, { dateStyle: "medium", timeStyle: "short" }).format(new Date(at));
}

/** Formats a time to the second, for events in quick succession. */
export function exactTime(at: string, lang: Language = language.value): string {
  return new Intl.DateTimeFormat(lang, { dateStyle: "medium", timeStyle: "medium" }).format(new Date(at));
}

export function date(at: string, lang: Language = language.value): string {
  return new Intl.DateTimeFormat(lang, { dateStyle: "medium" }).format(new Date(at));
}

const SIZES = ["B", "KB", "MB", "GB", "TB"];

export function bytes(count: number): string {
  let value = count;
  let unit = 0;
  while (value >= 1000 && unit < SIZES.length - 1) {
    value /= 1000;
    unit += 1;
  }
  return `${unit === 0 || value >= 100 ? Math.round(value) : value.toFixed(1)} ${SIZES[unit]}`;
}

/** Formats 12.3 as "12%". */
export const percent = (value: number, lang: Language = language.value): string =>
  new Intl.NumberFormat(lang, { style: "percent" }).format(value / 100);

export const count = (n: number, lang: Language = language.value): string =>
  new Intl.NumberFormat(lang).format(n);
