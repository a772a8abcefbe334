import type { ComponentChildren } from "preact";
import { useEffect, useId, useRef, useState } from "preact/hooks";

import { Icon } from "../components/Icon";
import { messages } from "../i18n";
import { closeDialog, dialog } from "../state/dialogs";

interface Props {
  title: string;
  children: ComponentChildren;
}

/** A native modal dialog: focus, Escape and the inert page behind it are the browser's. */
export function Modal({ title, children }: Props) {
  const element = useRef<HTMLDialogElement>(null);
  const titleId = useId();
  const [mine] = useState(dialog.peek());
  // The close event comes late, when another dialog may already be open.
  const closeMine = () => {
    if (dialog.peek() === mine) closeDialog();
  };
  useEffect(() => {
    const shown = element.current!;
    shown.showModal();
    return () => {
      shown.close();
      requestAnimationFrame(rescueFocus);
    };
  }, []);
  return (
    <dialog ref={element} aria-labelledby={titleId} onCancel={closeMine} onClose={closeMine}>
      <div class="dialog-head">
        <h2 id={titleId}>{title}</h2>
        <button
          type="button"
          class="icon-button"
          aria-label={messages.value.dialog.close}
          onClick={closeDialog}
        >
          <Icon name="close" />
        </button>
      </div>
      {children}
    </dialog>
  );
}

/** The browser gives focus back to what opened the dialog, which may be gone by now: deleted, for instance. */
function rescueFocus(): void {
  if (document.activeElement === document.body)
    document.getElementById("main")?.focus({ preventScroll: true });
}
