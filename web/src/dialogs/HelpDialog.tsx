import { messages } from "../i18n";
import { setShortcutsEnabled, shortcutsEnabled } from "../state/shortcuts";
import { Modal } from "./Modal";

export function HelpDialog() {
  const text = messages.value.help;
  const rows = [
    ["n", text.create],
    ["/", text.search],
    ["?", text.help],
    ["Esc", text.close],
  ];
  return (
    <Modal title={text.title}>
      <dl class="keys">
        {rows.map(([key, meaning]) => (
          <div key={key}>
            <dt>
              <kbd>{key}</kbd>
            </dt>
            <dd>{meaning}</dd>
          </div>
        ))}
      </dl>
      <label class="check">
        <input
          type="checkbox"
          checked={shortcutsEnabled.value}
          onChange={(event) => setShortcutsEnabled(event.currentTarget.checked)}
        />
        {text.enabled}
      </label>
    </Modal>
  );
}
