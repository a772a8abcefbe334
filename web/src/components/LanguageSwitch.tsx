import { language, messages, setLanguage } from "../i18n";

export function LanguageSwitch() {
  const other = language.value === "en" ? "ko" : "en";
  return (
    <button
      type="button"
      class="button button-quiet"
      lang={other}
      data-testid="lang-switch"
      title={messages.value.switchLanguage}
      onClick={() => setLanguage(other)}
    >
      {messages.value.otherLanguage}
    </button>
  );
}
