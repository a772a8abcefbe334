import type { ComponentChildren } from "preact";
import { useEffect, useId, useRef, useState } from "preact/hooks";

import { Icon } from "../components/Icon";
import { messages } from "../i18n";
import { closeDialog, dialog } from "../state/dialogs";

interface Props {
  title: string;
  children: ComponentChildren;
}

/** Native modal dialog: the browser handles focus, Escape and the inert page behind it. */
export function Modal({ title, children }: Props) {
  const element = useRef<HTMLDialogElement>(null);
  const titleId = useId();
  const [ownDialog] = useState(dialog.peek());
  // The close event arrives late: another dialog may already be open.
  const closeOwn = () => {
    if (dialog.peek() === ownDialog) closeDialog();
  };
  useEffect(() => {
    const shown = element.current!;
    shown.showModal();
    return () => {
      shown.close();
      requestAnimationFrame(restoreFocus);
    };
  }, []);
  return (
    <dialog ref={element} aria-labelledby={titleId} onCancel={closeOwn} onClose={closeOwn}>
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

/** Moves the focus to the page if the element that opened the dialog no longer exists. */
function restoreFocus(): void {
  if (document.activeElement === document.body)
    document.getElementById("main")?.focus({ preventScroll: true });
}
