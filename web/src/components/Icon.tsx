/** Line icons on a 16-pixel grid. Each stands beside a text, so assistive technology ignores it. */
const PATHS = {
  open: "M9.5 2.5h4v4M13.5 2.5 8 8M12 9.5v3a1 1 0 0 1-1 1H3.5a1 1 0 0 1-1-1V5a1 1 0 0 1 1-1h3",
  start: "M5 3.2v9.6l7.5-4.8z",
  stop: "M4 4h8v8H4z",
  restore: "M2.5 8a5.5 5.5 0 1 0 1.8-4.1M2.5 2.5v2.8h2.8M8 5.2V8l2 1.4",
  download: "M8 2.5v7.5M4.8 7 8 10.2 11.2 7M2.5 13.5h11",
  archive: "M2 3h12v3H2zM3.2 6v7h9.6V6M6.5 9h3",
  delete: "M2.5 4.5h11M6 4.5v-2h4v2M4 4.5l.6 9h6.8l.6-9M6.7 7.2v3.6M9.3 7.2v3.6",
  recover: "M8 14s5.5-2.4 5.5-6.7V3.6L8 1.8 2.5 3.6v3.7C2.5 11.6 8 14 8 14zM8 5.4v4.2M5.9 7.5h4.2",
  cancel: "M8 2a6 6 0 1 0 0 12A6 6 0 0 0 8 2zM5.8 5.8l4.4 4.4M10.2 5.8l-4.4 4.4",
  extend: "M8 2a6 6 0 1 0 0 12A6 6 0 0 0 8 2zM8 4.8V8l2.2 1.6",
  undelete: "M5.5 3 2.5 6l3 3M2.5 6h7a4 4 0 0 1 0 8H6",
  plus: "M8 3v10M3 8h10",
  close: "M4 4l8 8M12 4l-8 8",
  alert: "M8 2.2 14.5 13.5h-13zM8 6.5v3.2M8 11.6v.2",
  check: "M3 8.5 6.5 12 13 4.5",
  back: "M10 3 5 8l5 5",
  running: "M5.5 4v8l6-4z",
  standby: "M6 4v8M10 4v8",
  pending: "M8 3.5a4.5 4.5 0 1 0 0 9 4.5 4.5 0 0 0 0-9z",
} as const;

export type IconName = keyof typeof PATHS;

export function Icon({ name }: { name: IconName }) {
  return (
    <svg class="icon" viewBox="0 0 16 16" width="16" height="16" aria-hidden="true" focusable="false">
      <path d={PATHS[name]} />
    </svg>
  );
}
