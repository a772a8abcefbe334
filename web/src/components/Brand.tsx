export function Brand() {
  return (
    <a class="brand" href="/">
      <svg viewBox="0 0 32 32" width="26" height="26" aria-hidden="true" focusable="false">
        <rect width="32" height="32" rx="8" />
        <path d="M12.5 10 7 16l5.5 6M19.5 10 25 16l-5.5 6" />
      </svg>
      CodeHub
    </a>
  );
}
