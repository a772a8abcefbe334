import type { ComponentChildren } from "preact";
import { useEffect, useId, useRef } from "preact/hooks";

import { Icon } from "../components/Icon";
import { messages } from "../i18n";
import { closeDialog } from "../state/dialogs";

interface Props {
  title: string;
  children: ComponentChildren;
}

/** A native modal dialog: focus, Escape and the inert page behind it are the browser's. */
export function Modal({ title, children }: Props) {
  const element = useRef<HTMLDialogElement>(null);
  const titleId = useId();
  useEffect(() => {
    const shown = element.current!;
    shown.showModal();
    return () => {
      shown.close();
      requestAnimationFrame(rescueFocus);
    };
  }, []);
  return (
    <dialog ref={element} aria-labelledby={titleId} onClose={closeDialog}>
      <div class="dialog-head">
        <h2 id={titleId}>{title}</h2>
        <button type="button" class="icon-button" aria-label={messages.value.dialog.close} onClick={closeDialog}>
          <Icon name="close" />
        </button>
      </div>
      {children}
    </dialog>
  );
}

/** The browser gives focus back to what opened the dialog, which may be gone by now: deleted, for instance. */
function rescueFocus(): void {
  if (document.activeElement === document.body) document.getElementById("main")?.focus({ preventScroll: true });
}
